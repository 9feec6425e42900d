"""Writes the profiles that ship, from public measurements and data sheets.

    python -m rlplan.tools.build_library --decode FILE --train FILE --sync FILE [--prices FILE] [--out FOLDER]

The files are those of benchmarks/: time per output token by GPU, model, precision, TP and batch; trainer steps; weight
transfers; and prices. None of them holds the library's models in bf16 on these GPUs, so factors over the
data sheets are carried over (carried.py). Where a generation has no data for a GPU, the error is widened. The same
files give the same bytes.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np

from rlplan.plans.facts.model_names import architecture_of
from rlplan.plans.facts.public_models import Architecture
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import WRITTEN_DIGITS, dump
from rlplan.profiles.hardware import GPUS, Gpu, gpu_of
from rlplan.profiles.laws.decode_law import CURVE, FACTORS, HOST_ERROR, DecodeLaw, sheet
from rlplan.profiles.laws.measured_fit import MEAN_OVER_DEVIATION, MEDIAN_OVER_DEVIATION, nonnegative_least_squares
from rlplan.profiles.laws.rank_memory import ENGINE_RESERVE_BYTES, UTILISATION, engine_tps, kv_capacity_tokens
from rlplan.profiles.laws.sync_law import COLOCATED_ERROR, cold_start_s, sync_s
from rlplan.profiles.laws.train_error import PARALLEL_FACTOR, PHYSICS_ERROR
from rlplan.profiles.library import FOLDER, GPU_NAMES, MODEL_NAMES, PRICES_NAME, library_path
from rlplan.profiles.phase_schema import Evidence, Reward, Rollout, Spread, TrainLaw
from rlplan.profiles.profile_schema import Machine, Profile

from .carried import GENERATION, LEAST_ERROR, LEAST_POINTS, Carried, carried
from .served_fit import read_served
from .train_file import fit_memory, fit_time, memory_errors, read_runs, time_errors
from .transfers_and_prices import fit_sync, left_out_error, read_prices, read_syncs

UNMEASURED = 1.5  # errors of a GPU of which there is no measurement, over those of its generation
Z95 = 1.645  # standard normal quantile at 95 %
FABRIC_BYTES_PER_S = 50e9  # 400 Gb/s a GPU, as in the cluster of RollPacker (arXiv 2509.21009)
NOTE = (
    "Derived from data sheets and public measurements of other machines: not a measurement of your cluster. Each value "
    "names its source and its relative error under evidence; run rlplan profile on your machines before you trust a "
    "plan."
)


def rollout(
    a: Architecture, gpu: Gpu, tp: int, factors: Carried, sync: tuple[float, float, float], widen: float
) -> Rollout:
    """One engine of `tp` ranks. `sync`: seconds colocated and apart, and the relative standard deviation of both."""
    s = sheet(a, gpu, 2.0)
    # Weights and KV are bf16 here: the width that measured groups chose says nothing of it.
    logs = factors.logs.copy()
    logs[[f.name for f in FACTORS].index("kv_width")] = 0.0
    law = DecodeLaw(s, logs)
    base = law.base_s(float(tp), np.array(CURVE, dtype=float))
    a_s, b_s = nonnegative_least_squares(np.stack([np.ones(len(CURVE)), np.array(CURVE)], axis=1), base)
    decode = max(factors.error * widen, HOST_ERROR * MEAN_OVER_DEVIATION)
    join, token, squared = law.prefill_s(tp)
    start = cold_start_s(a, tp)
    return Rollout(
        tp=tp,
        engines=1,
        step_s=float(a_s),
        step_s_per_sequence=float(b_s),
        step_s_per_kv_token=float(law.kv_s(float(tp), 1.0)),
        prefill_s=join,
        prefill_s_per_token=token,
        kv_capacity_tokens=kv_capacity_tokens(a, gpu, tp),
        kv_bytes_per_token=round(s.kv_bytes_per_token),
        start=Spread(p50=start, p95=2 * start, repeats=0),
        sync=Spread(p50=sync[0], p95=sync[0] * (1 + Z95 * sync[2]), repeats=0),
        sync_apart=Spread(p50=sync[1], p95=sync[1] * (1 + Z95 * sync[2]), repeats=0),
        error=decode,
        curve_sequences=CURVE,
        curve_s=tuple(np.maximum.accumulate(base).tolist()),
        host_s=float(law.host_s(0.0)),
        host_s_per_sequence=float(law.host_s(1.0) - law.host_s(0.0)),
        prefill_s_per_token_squared=squared,
        evidence={
            # Mean absolute errors of what was left out, and evidence states standard deviations.
            "decode": Evidence(source="decode", error=decode / MEAN_OVER_DEVIATION),
            "prefill": Evidence(source="decode", error=2 * decode / MEAN_OVER_DEVIATION),
            "kv_capacity_tokens": Evidence(source="memory", error=0.1),
            "start": Evidence(source="start", error=0.5),
            "sync": Evidence(source="sync", error=sync[2]),
        },
    )


def profiles(decode: Path, train: Path, sync: Path) -> dict[Path, Profile]:
    """All of them by file name. Raises InputError for whatever is wrong with the data."""
    served = read_served(decode)
    laws = carried(served)
    runs = read_runs(train)
    hopper = [run for run in runs if run.device in ("H100", "H200")]
    policy = [run for run in hopper if run.policy_loss]
    syncs, shared = read_syncs(sync), read_syncs(sync, colocated=True)
    if not hopper or not policy:
        raise InputError("has no run on H100 or H200 with a policy loss", str(train))
    time, memory, apart = fit_time(hopper), fit_memory(policy), fit_sync(syncs).as_dict()
    # Another implementation's factors: half the way from what is expected of ours.
    colocated = {name: math.sqrt(factor) for name, factor in fit_sync(shared).as_dict().items()}
    by_model = time_errors(hopper, lambda run: run.model)
    train_error = float(np.mean(list(by_model.values())))
    # A6000: the only Ampere GPU of which trainer steps are public.
    elsewhere = {
        name: time_errors([*hopper, *(r for r in runs if r.device == name)], lambda run: run.device).get(name, 0.0)
        for name in ("B200", "A6000")
    }
    memory_error = float(np.mean(list(memory_errors(policy, lambda run: run.model).values())))
    sync_error = max(left_out_error(syncs) / MEDIAN_OVER_DEVIATION, COLOCATED_ERROR)
    built: dict[Path, Profile] = {}
    for gpu_name in GPU_NAMES:
        for model in MODEL_NAMES:
            gpu, a = GPUS[gpu_name], architecture_of(model)
            assert a is not None
            kind = (GENERATION[gpu_name], bool(a.experts))
            if kind not in laws:
                raise InputError(f"has no {LEAST_POINTS} points of a {'sparse' if kind[1] else 'dense'} model on "
                                 f"{kind[0]} GPUs", str(decode))  # fmt: skip
            law = laws[kind]
            measured = any(gpu_of(group.system) == gpu for group in served)
            widen = 1.0 if measured else UNMEASURED
            transfer = sync_s(a, colocated, colocated=True), sync_s(a, apart), sync_error
            entries = [rollout(a, gpu, tp, law, transfer, widen) for tp in engine_tps(a, gpu)]
            built[Path(library_path(gpu_name, model).name)] = Profile(
                rlplan_profile=1,
                job=f"{gpu_name.lower()}.{model.lower()}",
                provenance="derived",
                note=NOTE,
                machine=Machine(
                    accelerator=gpu_name, kind="cuda", accelerators=8, cores=112, host_memory_bytes=2 * 10**12
                ),
                model_parameters=a.parameters,
                rollout=tuple(entries),
                train_law=TrainLaw(
                    model=model,
                    accelerator=gpu_name,
                    factors=time.as_dict(),
                    memory_factors=memory.as_dict(),
                    fabric_bytes_per_s=FABRIC_BYTES_PER_S,
                    accelerators_per_node=8,
                    error=_train_error(gpu_name, train_error * widen, elsewhere),
                    memory_error=memory_error,
                    physics_error=PHYSICS_ERROR,
                    parallel_factor=PARALLEL_FACTOR,
                    source="train",
                ),
                reward=Reward(
                    workers=16,
                    latency=Spread(p50=0.005, p95=0.02, repeats=0),
                    per_sample_s=0.005,
                    evidence={"per_sample_s": Evidence(source="reward", error=1.0)},
                ),
                sources=sources(gpu_name, kind, law, measured, by_model, elsewhere),
            )
    return built


def _train_error(gpu: str, of_hopper: float, elsewhere: dict[str, float]) -> float:
    """Of a trainer's seconds on a GPU: what public runs on it say, else those of its generation."""
    if gpu == "B200":
        return elsewhere[gpu]
    return max(of_hopper, elsewhere["A6000"]) if GENERATION[gpu] == "Ampere" else of_hopper


def sources(
    gpu: str,
    kind: tuple[str, bool],
    law: Carried,
    measured: bool,
    by_model: dict[str, float],
    elsewhere: dict[str, float],
) -> dict[str, str]:
    """The sources that `evidence` cites, by name."""
    of = f"{law.groups} groups of {'sparse' if kind[1] else 'dense'} models on {' and '.join(law.on)} GPUs"
    unmeasured = (
        "" if measured else f"; no measurement of {gpu} is among them, so its error is {UNMEASURED} times theirs"
    )
    if kind[0] not in law.on:
        unmeasured = (
            f"; no measurement of {gpu}, nor of any {kind[0]} GPU, is among them, so its error is {UNMEASURED} times "
            "that of one generation predicted from another"
        )
    left = ", ".join(f"{name} {error:.0%}" for name, error in sorted(by_model.items()))
    trained = f"fitted to full-parameter runs on H100 and H200; left out in turn: {left}"
    if gpu == "B200":
        trained += f"; public runs on B200 are {elsewhere[gpu]:.0%} off it (older kernels)"
    elif kind[0] == "Ampere":
        trained += f"; no run on {gpu} is public, those on A6000 (Ampere, too) are {elsewhere['A6000']:.0%} off it"
    elif gpu not in ("H100", "H200"):
        trained += f"; no run on {gpu} is public"
    return {
        "decode": f"data sheet of {gpu} times factors between {of} in "
        "aiconfigurator's public vLLM samples "
        f"(ai-dynamo/aiconfigurator, Apache-2.0) and the sheet's own; error: each group predicted from the others, at "
        f"least {LEAST_ERROR:g} for engine versions{unmeasured}",
        "memory": f"arithmetic: {UTILISATION:g} of the memory, less weights in bf16 and "
        f"{ENGINE_RESERVE_BYTES / 1e9:g} GB a GPU",
        "start": "cold starts of vLLM on A100 (vLLM sleep mode, 0.6B to 235B), by bytes a GPU",
        "sync": "by bytes and tensors: updates of checkpoint-engine between ranks that share GPUs (MIT), half the way "
        "from 30 GB/s, and full broadcasts between pools in verl's documentation (Apache-2.0); error: other "
        "implementations",
        "train": f"PrimeIntellect-ai/prime-rl trainer benchmark (Apache-2.0), {trained}; tensor, context, pipeline and "
        f"expert parallelism are physics only, times {PARALLEL_FACTOR:g}: over it RollPacker's updates take 1.9 to 4.8 "
        "times (arXiv 2509.21009), NeMo-RL's 0.93, torchtitan's 0.65; these and ranks on several nodes carry "
        "physics_error",
        "reward": "assumed: a rule-based check; measure yours",
    }


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0, or 2 with one line when a file is absent or wrong."""
    parser = argparse.ArgumentParser(prog="python -m rlplan.tools.build_library")
    parser.add_argument("--decode", type=Path, required=True, help="CSV of serving measurements")
    parser.add_argument("--train", type=Path, required=True, help="CSV of trainer steps")
    parser.add_argument("--sync", type=Path, required=True, help="CSV of weight transfers")
    parser.add_argument("--prices", type=Path, help="CSV of prices of GPUs; without it prices.yaml stays as it is")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write to; default: the library itself")
    options = parser.parse_args(arguments)
    try:
        for name, profile in profiles(options.decode, options.train, options.sync).items():
            dump(profile, options.out / name, WRITTEN_DIGITS)
        if options.prices is not None:
            dump(read_prices(options.prices), options.out / PRICES_NAME)
    except InputError as error:
        print(f"library: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
