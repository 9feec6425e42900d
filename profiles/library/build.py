"""Writes the profiles that ship, from public measurements and data sheets.

    python -m rlplan.profiles.library.build --decode FILE --train FILE --sync FILE [--out FOLDER]

The files are those of benchmarks/: time per output token by GPU, model, precision, TP and batch; trainer steps; weight
syncs. None of them holds the models of the library on these GPUs, so factors over the data sheets are carried over: for
each GPU generation and kind of model, the mean over the measured groups and the data sheets themselves. How far that is
off is measured the same way, by predicting each group from the others; where a generation has no data for a GPU, the
error is widened.
The same files give the same bytes.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...plans.errors import InputError
from ...plans.yaml_io import WRITTEN_DIGITS, dump
from ..architecture import Architecture, architecture_of
from ..decode_model import FACTORS, DecodeLaw, sheet
from ..fit import MEAN_OVER_DEVIATION, MEDIAN_OVER_DEVIATION, nonnegative_least_squares
from ..hardware import GPUS, Gpu, gpu_of
from ..memory import ENGINE_RESERVE_BYTES, UTILISATION, kv_capacity_tokens
from ..schema import Evidence, Machine, Profile, Reward, Rollout, Spread, TrainLaw
from ..served import Served, seconds_per_token
from ..served_file import Group, read_served
from ..served_fit import fit_served, sheet_of
from ..sync import cold_start_s, fit_sync, left_out_error, read_syncs, sync_s
from ..train_error import PARALLEL_FACTOR, PHYSICS_ERROR
from ..train_file import fit_memory, fit_time, memory_errors, read_runs, time_errors
from . import FOLDER, GPU_NAMES, MODEL_NAMES, library_path

Array = NDArray[np.float64]

GENERATION = {"H100": "Hopper", "H200": "Hopper", "H800": "Hopper", "H20": "Hopper", "B200": "Blackwell"}
GENERATIONS = GENERATION | {"B300": "Blackwell", "GH200": "Hopper"}
LEAST_POINTS = 12
# Rollout decodes long answers to short prompts; points beyond this say more of prefill (and of how it was scheduled).
MOST_PROMPT_PER_OUTPUT = 8.0
# What no left-out group shows: engine versions. The RollPacker runs (vLLM 0.8) took 13.7 ms a token where the points of
# these files (0.12 and later) say 8 to 9 (refs/rollpacker.md 5.4).
LEAST_ERROR = 0.15
UNMEASURED = 1.5  # errors of a GPU of which there is no measurement, over those of its generation
CURVE = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
Z95 = 1.645  # standard normal quantile at 95 %
LEAST_KV_TOKENS = 16384  # an engine that holds less is no layout
FABRIC_BYTES_PER_S = 50e9  # 400 Gb/s a GPU, as in the RollPacker cluster (refs/rollpacker.md 5.1)
NOTE = (
    "Derived from data sheets and public measurements of other machines: not a measurement of your cluster. Each value "
    "names its source and its relative error under evidence; run rlplan profile on your machines before you trust a "
    "plan."
)


@dataclass(frozen=True)
class Carried:
    """Factors for a generation and a kind of model, and how far they are off on groups that they do not come from."""

    logs: Array
    error: float
    groups: int


def carried(data: dict[Group, Served]) -> dict[tuple[str, bool], Carried]:
    """By (generation, has experts): factors between the measured groups' and the data sheets' own."""
    centre = np.array([factor.log_mean for factor in FACTORS])
    fitted: dict[tuple[str, bool], dict[Group, Array]] = {}
    kept = {g: p.take(p.isl <= MOST_PROMPT_PER_OUTPUT * p.osl) for g, p in sorted(data.items())}
    for group, points in kept.items():
        gpu, architecture = gpu_of(group.system), architecture_of(group.model)
        known = gpu is not None and architecture is not None and not architecture.guessed
        if len(points) < LEAST_POINTS or not known:
            continue
        assert gpu is not None and architecture is not None
        if gpu.name in GENERATIONS:
            kind = (GENERATIONS[gpu.name], bool(architecture.experts))
            fitted.setdefault(kind, {})[group] = fit_served(group, points).law.logs
    found = {}
    for kind, logs in fitted.items():
        errors = []
        for group in logs:
            others = [value for other, value in logs.items() if other != group]
            if others:
                law = DecodeLaw(sheet_of(group), np.mean([*others, centre], axis=0))
                predicted = seconds_per_token(law, kept[group])
                errors.append(float(np.mean(np.abs(predicted / kept[group].seconds - 1))))
        error = max(LEAST_ERROR, float(np.mean(errors))) if errors else 2 * LEAST_ERROR
        found[kind] = Carried(np.mean([*logs.values(), centre], axis=0), error, len(logs))
    return found


def rollout(a: Architecture, gpu: Gpu, tp: int, factors: Carried, sync: tuple[float, float], widen: float) -> Rollout:
    """One engine of `tp` ranks. `sync`: seconds and the relative standard deviation of their error."""
    s = sheet(a, gpu, 2.0)
    # Weights and KV are bf16 here: the width that measured groups chose says nothing of it.
    logs = factors.logs.copy()
    logs[[f.name for f in FACTORS].index("kv_width")] = 0.0
    law = DecodeLaw(s, logs)
    base = law.base_s(float(tp), np.array(CURVE, dtype=float))
    a_s, b_s = nonnegative_least_squares(np.stack([np.ones(len(CURVE)), np.array(CURVE)], axis=1), base)
    decode = factors.error * widen
    # Beside the sheet: compute and what ranks exchange, per token; attention per pair, half of which are masked.
    token = law.factor("compute") * s.token_s / tp
    token += float(law.sums_s(float(tp), 1.0)) - float(law.sums_s(float(tp), 0.0))
    start = cold_start_s(a, tp)
    return Rollout(
        tp=tp,
        engines=1,
        step_s=float(a_s),
        step_s_per_sequence=float(b_s),
        step_s_per_kv_token=float(law.kv_s(float(tp), 1.0)),
        prefill_s=law.factor("join") * s.join_s,
        prefill_s_per_token=token,
        kv_capacity_tokens=kv_capacity_tokens(a, gpu, tp),
        kv_bytes_per_token=round(s.kv_bytes_per_token),
        start=Spread(p50=start, p95=2 * start, repeats=0),
        sync=Spread(p50=sync[0], p95=sync[0] * (1 + Z95 * sync[1]), repeats=0),
        error=decode,
        curve_sequences=CURVE,
        curve_s=tuple(np.maximum.accumulate(base).tolist()),
        prefill_s_per_token_squared=law.factor("compute") * s.pair_s / 2 / tp,
        evidence={
            # Mean absolute errors of what was left out, and evidence states standard deviations.
            "decode": Evidence(source="decode", error=decode / MEAN_OVER_DEVIATION),
            "prefill": Evidence(source="decode", error=2 * decode / MEAN_OVER_DEVIATION),
            "kv_capacity_tokens": Evidence(source="memory", error=0.1),
            "start": Evidence(source="start", error=0.5),
            "sync": Evidence(source="sync", error=sync[1]),
        },
    )


def profiles(decode: Path, train: Path, sync: Path) -> dict[Path, Profile]:
    """All of them by file name. Raises InputError for whatever is wrong with the data."""
    served = read_served(decode)
    laws = carried(served)
    runs = read_runs(train)
    hopper = [run for run in runs if run.device in ("H100", "H200")]
    policy = [run for run in hopper if run.policy_loss]
    syncs = read_syncs(sync)
    if not hopper or not policy:
        raise InputError("has no run on H100 or H200 with a policy loss", str(train))
    time, memory, copies = fit_time(hopper), fit_memory(policy), fit_sync(syncs)
    by_model = time_errors(hopper, lambda run: run.model)
    train_error = float(np.mean(list(by_model.values())))
    elsewhere = time_errors([*hopper, *(r for r in runs if r.device == "B200")], lambda run: run.device)
    memory_error = float(np.mean(list(memory_errors(policy, lambda run: run.model).values())))
    sync_error = left_out_error(syncs) / MEDIAN_OVER_DEVIATION
    found: dict[Path, Profile] = {}
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
            seconds = sync_s(a, copies.as_dict())
            entries = [
                rollout(a, gpu, tp, law, (seconds, sync_error), widen)
                for tp in (1, 2, 4, 8)
                if a.heads % tp == 0
                and (a.kv_heads % tp == 0 or tp % a.kv_heads == 0)
                and kv_capacity_tokens(a, gpu, tp) >= LEAST_KV_TOKENS
            ]
            found[Path(library_path(gpu_name, model).name)] = Profile(
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
                    error=elsewhere.get(gpu_name, 0.0) if gpu_name == "B200" else train_error * widen,
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
    return found


def sources(
    gpu: str,
    kind: tuple[str, bool],
    law: Carried,
    measured: bool,
    by_model: dict[str, float],
    elsewhere: dict[str, float],
) -> dict[str, str]:
    """What `evidence` cites."""
    of = f"{law.groups} groups of {'sparse' if kind[1] else 'dense'} models on {kind[0]} GPUs"
    known = "" if measured else f"; no measurement of {gpu} is among them, so its error is {UNMEASURED} times theirs"
    left = ", ".join(f"{name} {error:.0%}" for name, error in sorted(by_model.items()))
    trained = f"fitted to full-parameter runs on H100 and H200; left out in turn: {left}"
    if gpu == "B200":
        trained += f"; public runs on B200 are {elsewhere.get(gpu, 0.0):.0%} off it (older kernels)"
    elif gpu not in ("H100", "H200"):
        trained += f"; no run on {gpu} is public"
    return {
        "decode": f"data sheet of {gpu} times factors between {of} in "
        "aiconfigurator's public vLLM samples "
        f"(ai-dynamo/aiconfigurator, Apache-2.0) and the sheet's own; error: each group predicted from the others, at "
        f"least {LEAST_ERROR:g} for engine versions{known}",
        "memory": f"arithmetic: {UTILISATION:g} of the memory, less weights in bf16 and "
        f"{ENGINE_RESERVE_BYTES / 1e9:g} GB a GPU",
        "start": "cold starts of vLLM on A100 (vLLM sleep mode, 0.6B to 235B), by bytes a GPU",
        "sync": "full broadcasts in verl's documentation (Apache-2.0), by bytes and tensors; error: left-out models",
        "train": f"PrimeIntellect-ai/prime-rl trainer benchmark (Apache-2.0), {trained}; tensor, context, pipeline and "
        f"expert parallelism are physics only, times {PARALLEL_FACTOR:g}, as RollPacker's 7B update takes over it "
        "(arXiv 2509.21009; its 14B and 32B updates 2 to 4.8 times, padded); these and ranks on several nodes carry "
        "physics_error",
        "reward": "assumed: a rule-based check; measure yours",
    }


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0, or 2 with one line when a file is absent or wrong."""
    parser = argparse.ArgumentParser(prog="python -m rlplan.profiles.library.build")
    parser.add_argument("--decode", type=Path, required=True, help="CSV of serving measurements")
    parser.add_argument("--train", type=Path, required=True, help="CSV of trainer steps")
    parser.add_argument("--sync", type=Path, required=True, help="CSV of weight syncs")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write to; default: the library itself")
    options = parser.parse_args(arguments)
    try:
        for name, profile in profiles(options.decode, options.train, options.sync).items():
            dump(profile, options.out / name, WRITTEN_DIGITS)
    except InputError as error:
        print(f"library: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
