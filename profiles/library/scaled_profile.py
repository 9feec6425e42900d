"""A derived profile of one model as the profile of another one of its kind, and what that may be off by.

Shipped profiles are laws of a model's shape (laws/): decode steps, prefill, updates, memory, starts, transfers. Their
factors over the data sheets are of a GPU, not of a model. Those of the decode law are found again from the profile's
own figures, and the law with the job's model gives the figures of that one: KV bytes, layers, heads, vocabulary and
weights are the job's model's alone. What the law misses in a figure (a run corrected it, somebody edited it) is kept as
a factor. Scaled to a model of which a profile ships, the shipped one comes out: docs/accuracy.md has the differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...plans.facts.device_shares import ENGINE_SHARE, engine_share, kv_value_bytes
from ...plans.facts.model_shape import named_model
from ...plans.facts.public_models import ARCHITECTURES, Architecture
from ...plans.schema.job import Job
from ...plans.yaml.errors import InputError
from ..hardware import GPUS, Gpu, gpu_of
from ..laws.decode_law import CURVE, FACTORS, DecodeLaw, Sheet, sheet
from ..laws.factor_fit import fit_factors
from ..laws.hardware_peaks import shape_of_policy
from ..laws.measured_fit import MEAN_OVER_DEVIATION, nonnegative_least_squares
from ..laws.rank_memory import adapters_of, engine_tps, kv_capacity_tokens
from ..laws.sync_law import FACTORS as SYNC_FACTORS
from ..laws.sync_law import adapters_s, cold_start_s, sync_s
from ..phase_schema import DecodePoint, Evidence, Rollout, Spread, TrainedAdapters, TrainLaw
from ..profile_schema import Profile
from . import FARTHEST, nearest_shipped, shape_of_shipped, shipped_model, size_distance

Array = NDArray[np.float64]

SCALED_ERROR = {"dense": 0.1, "experts": 0.2}
"""Mean relative error of decoding that scaling adds, in quadrature, by kind of model, between models of one size.

The law that is fitted to the served points of one model, asked for another model's on the same GPU (benchmarks/
decode_fit.py, `other_model`): two pairs of dense models, H100, Qwen3-32B and Llama-3.1-70B, are off by 3.8 and 4.8 %,
too few to state less than twice the worse one. Ten pairs of mixtures of experts: median 18 %, worst 31 %, which 20 %
and the 24 % that their profiles state already make together. Errors of updates, memory and transfers are of left-out
models as they stand (tools/build_library.py).

Between models of two sizes decoding adds this times one more than their `size_distance`, updates this times that
distance. It is a bound, not a fit: Qwen2.5-7B's costs, asked for a model of 0.5B on an H100, have steps of 1.8 ms where
2.5 ms were measured (docs/accuracy.md); 37 % is stated.
"""

QUIET = 0.01
"""A fine-tune may add tokens. Nothing is said if that changes the parameters by at most this share."""

_WIDEN = 10.0
"""Factor on the width of the priors of the decode law's factors: the figures came from that law, so they decide."""


def policy_shape(model: str, folder: Path | None) -> Architecture | None:
    """The shape of a job's model, which is at `folder` if it is on this machine; None where it is not known, or guessed
    from a name. What a config of an unknown family states is its own."""
    try:
        named = named_model(model if folder is None else folder)
    except InputError:  # no readable config.json, which others report
        return None
    if named.architecture is None or (named.architecture.guessed and named.shape is None):
        return None
    return replace(named.architecture, guessed=False)


def scaling_fault(law: TrainLaw, old: Architecture, new: Architecture, model: str) -> str | None:
    """Why costs of `old`, which the law is of, cannot be scaled to `new`, the model of that name; None if they can."""
    of, trained = (f"{a.parameters / 1e9:.1f}B" for a in (old, new))
    sizes = f"is of {law.model} ({of} parameters), the job trains {model} ({trained})"
    if bool(old.experts) != bool(new.experts):
        kinds = ["a mixture of experts" if a.experts else "a dense model" for a in (old, new)]
        return f"{sizes}: {kinds[0]}, and {kinds[1]}"
    away, nearest = size_distance(old, new), nearest_shipped(new, law.accelerator)
    if away > math.log(FARTHEST):
        return f"{sizes}: they are more than {FARTHEST:g} times apart"
    if away and nearest is not None and size_distance(shape_of_shipped(nearest), new) < away:
        return f"{sizes}, and that of {nearest}, which ships, is nearer"
    if not new.kv_values_per_token:
        return f"{sizes}, whose layers all attend to a window only"
    if not engine_tps(new, GPUS[law.accelerator]):
        return f"{sizes}, of which no engine fits on {law.accelerator}s"
    return None


def scaling_errors(old: Architecture, new: Architecture) -> tuple[float, float]:
    """Mean relative errors of decode steps and of updates that costs of `old` have more, in quadrature, where they are
    scaled to `new`."""
    error, away = SCALED_ERROR["experts" if new.experts else "dense"], size_distance(old, new)
    return error * (1 + away), error * away


def priced_as(profile: Profile, job: Job, folder: Path | None) -> Profile:
    """As `priced_as_model`, and then, once, with the KV cache that the job's section `engine` says, unless the profile
    was measured with it: its room in tokens, and bytes a token. Decode steps are priced as before."""
    priced = priced_as_model(profile, job, folder)
    gpu = gpu_of(profile.machine.accelerator)
    if job.engine is None or profile.provenance == "measured" or gpu is None:
        return priced
    # Profiles that were not measured are of KV in two bytes, and of engines that take the usual share.
    narrower, less = kv_value_bytes(job) / 2, (ENGINE_SHARE - engine_share(job)) * gpu.memory_bytes

    def entry(each: Rollout) -> Rollout:
        kv_bytes = max(1, round(each.kv_bytes_per_token * narrower))
        room = each.kv_capacity_tokens * each.kv_bytes_per_token - less * each.tp
        return each.model_copy(
            update={"kv_bytes_per_token": kv_bytes, "kv_capacity_tokens": max(1, int(room / kv_bytes))}
        )

    return priced.model_copy(update={"rollout": tuple(map(entry, priced.rollout))})


def priced_as_model(profile: Profile, job: Job, folder: Path | None) -> Profile:
    """The profile as it prices the job's model: itself if it was measured, or is of a model of that shape, or of one
    that is too unlike (fitness.unfit refuses it); else scaled. `scaled` says so, or that the shape is not known. With
    the job's adapters, by the profile's law. Raises InputError for a profile of other adapters.

    `folder`: of the job's model, if it is on this machine.
    """
    return _with_adapters(_scaled(profile, job, folder), job)


def _with_adapters(profile: Profile, job: Job) -> Profile:
    """A derived profile whose updates and weight transfers are of the job's adapters (model.lora). What was measured is
    of what the job said then, which its digest holds; what a run corrected (rlplan tune) has its adapters already.
    Raises InputError where those are not the job's."""
    law = profile.train_law
    if profile.provenance == "measured" or law is None:
        return profile
    adapters, rollout = adapters_of(law.shape, job.model.lora, job.model.dtype), profile.rollout
    if profile.adapters == adapters:
        return profile
    if profile.adapters is not None:
        raise InputError(
            f"the profile's costs are of adapters of rank {profile.adapters.rank}, and the job's model.lora says "
            "another thing now; begin with a profile that ships: rlplan profile JOB --shipped MODEL"
        )
    assert adapters is not None, "one of the two is"
    if adapters.sent == "adapter":
        rollout = tuple(_sends_adapters(entry, law, adapters) for entry in rollout)
    # What was measured in single layouts was of all weights; the law has all of them.
    changed = {"adapters": adapters, "rollout": rollout, "train": ()}
    return profile.model_copy(update={**changed, "train_law": law.model_copy(update={"adapters": adapters})})


def _sends_adapters(entry: Rollout, law: TrainLaw, adapters: TrainedAdapters) -> Rollout:
    """An entry whose engines are sent adapters, and merge them with the model's weights (sync_law.adapters_s)."""
    gpu = GPUS[law.accelerator]

    def seconds(spread: Spread, colocated: bool) -> Spread:
        p50 = adapters_s(law.shape, adapters.parameters, gpu.host_copy_bytes_per_s, colocated=colocated)
        return Spread(p50=p50, p95=p50 * (spread.p95 / spread.p50 if spread.p50 else 1.0), repeats=0)

    apart = seconds(entry.sync_apart or entry.sync, False)
    return entry.model_copy(update={"sync": seconds(entry.sync, True), "sync_apart": apart})


def _scaled(profile: Profile, job: Job, folder: Path | None) -> Profile:
    law = profile.train_law
    if profile.provenance == "measured" or law is None:
        return profile
    old, new = law.shape, policy_shape(job.model.path, folder)
    if new is None:
        said = f"cannot tell from its name whether {job.model.path} is {law.model}, which the profile is of"
        remedy = "its KV and its memory are planned as that model's: name a folder with its config.json in model.path"
        return profile.model_copy(update={"scaled": f"{said}; {remedy}"})
    if old.is_shaped_as(new) or scaling_fault(law, old, new, job.model.path) is not None:
        return profile
    quiet = old.is_shaped_as(replace(new, vocab=old.vocab)) and abs(new.parameters / old.parameters - 1) <= QUIET
    added, added_update = (0.0, 0.0) if quiet else scaling_errors(old, new)
    known = next((a for a in ARCHITECTURES if a.is_shaped_as(new)), None)
    sizes = {name: int(size) for name, size in asdict(new).items() if name != "name"}
    name = job.model.path.rstrip("/").split("/")[-1] if known is None else known.name
    scaled = profile.model_copy(
        update={
            "model_parameters": new.parameters,
            "shape": profile.shape and shape_of_policy(new, new.parameters, profile.shape.dtype),
            "rollout": _entries(profile.rollout, old, new, GPUS[law.accelerator], added),
            # What was measured in single layouts was of the other model; the law has all of them.
            "train": (),
            "train_law": law.model_copy(
                update={
                    "model": name,
                    "architecture": {} if known else sizes,
                    "error": math.hypot(law.error, added_update),
                }
            ),
            "checks": tuple(
                check.model_copy(update={"error": math.hypot(check.error, added)}) for check in profile.checks
            ),
        }
    )
    if quiet:
        return scaled
    return scaled.model_copy(update={"scaled": _scaled_text(profile, scaled, old, new, job.model.path)})


def _scaled_text(profile: Profile, scaled: Profile, old: Architecture, new: Architecture, model: str) -> str:
    """The line on a scaled profile: from what to what, with what error, and what to do."""
    assert profile.train_law is not None, "it was scaled by its law"
    kv = [f"{entry.kv_bytes_per_token / 1e3:.0f}" for entry in (scaled.rollout[0], profile.rollout[0])]
    weights = [f"{2 * a.parameters / 1e9:.1f}" for a in (new, old)]
    errors = [f"{100 * _decode_error(entry):.0f}" for entry in (scaled.rollout[0], profile.rollout[0])]
    own = shipped_model(new)
    remedy = "measure it: rlplan profile" + (f", or take its own: rlplan profile --shipped {own}" if own else "")
    return (
        f"costs of {profile.train_law.model} scaled to {model} (KV {kv[0]} kB a token in place of {kv[1]}, weights "
        f"{weights[0]} GB in place of {weights[1]}): decoding +-{errors[0]}% in place of {errors[1]}%; {remedy}"
    )


def _decode_error(entry: Rollout) -> float:
    """Relative standard deviation of an entry's decode steps."""
    return entry.evidence["decode"].error if "decode" in entry.evidence else entry.error / MEAN_OVER_DEVIATION


def _entries(
    entries: Sequence[Rollout], old: Architecture, new: Architecture, gpu: Gpu, added: float
) -> tuple[Rollout, ...]:
    """Entries for the engines of `new`: of the profile's sizes, and of sizes that only `old` cannot have."""
    before, after = sheet(old, gpu, 2.0), sheet(new, gpu, 2.0)
    logs = _factors(entries, before)
    laws = DecodeLaw(before, logs), DecodeLaw(after, logs)
    sizes = sorted({entry.tp for entry in entries})
    impossible = set(engine_tps(new, gpu)) - set(engine_tps(old, gpu)) - set(sizes)
    made = [(entry, entry.tp) for entry in entries if entry.tp in engine_tps(new, gpu, sizes)]
    for tp in sorted(impossible):
        nearest = min(entries, key=lambda entry: (abs(math.log(entry.tp / tp)), entry.engines))
        made.append((nearest, tp))
    if not made:
        made = [(entries[0], tp) for tp in engine_tps(new, gpu)]
    return tuple(
        _entry(entry, tp, laws, (old, new), (gpu, gpu), added) for entry, tp in sorted(made, key=lambda m: m[1])
    )


def entry_by_law(profile: Profile, new: Architecture, gpu: Gpu, tp: int, added: float) -> Rollout:
    """The figures of engines of `tp` ranks of `gpu` for any model, by the decode law of a shipped profile of another.

    `added`: mean relative error of decoding that goes with it, in quadrature. The profile has a law.
    """
    assert profile.train_law is not None, "shipped profiles have laws"
    old, of = profile.train_law.shape, GPUS[profile.train_law.accelerator]
    before = sheet(old, of, 2.0)
    logs = _factors(profile.rollout, before)
    nearest = min(profile.rollout, key=lambda entry: (abs(math.log(entry.tp / tp)), entry.engines))
    laws = DecodeLaw(before, logs), DecodeLaw(sheet(new, gpu, 2.0), logs)
    return _entry(nearest, tp, laws, (old, new), (of, gpu), added)


def _factors(entries: Sequence[Rollout], sheet_of_model: Sheet) -> Array:
    """Logarithms of the decode law's factors that give the entries' figures."""
    stated = np.concatenate([_stated(entry) for entry in entries])

    def formula(logs: Array) -> Array:
        law = DecodeLaw(sheet_of_model, logs)
        return np.concatenate([_figures(law, entry, entry.tp) for entry in entries])[stated > 0]

    return fit_factors(FACTORS, formula, stated[stated > 0], _WIDEN).logs


def _counts(entry: Rollout) -> Array:
    return np.array(entry.curve_sequences or CURVE, float)


def _stated(entry: Rollout) -> Array:
    """Decode seconds by sequences, seconds a KV token, and those of prefill, as an entry has them."""
    base = entry.curve_s or (entry.step_s + entry.step_s_per_sequence * _counts(entry)).tolist()
    prefill = (entry.prefill_s, entry.prefill_s_per_token, entry.prefill_s_per_token_squared)
    return np.array([*base, entry.step_s_per_kv_token, *prefill])


def _figures(law: DecodeLaw, entry: Rollout, tp: int) -> Array:
    """The same figures by the law, for an engine of `tp` ranks."""
    ep = float(min(entry.ep, tp))
    return np.array([*law.base_s(tp, _counts(entry), ep), float(law.kv_s(tp, 1.0)), *law.prefill_s(tp)])


def _entry(
    entry: Rollout,
    tp: int,
    laws: tuple[DecodeLaw, DecodeLaw],
    models: tuple[Architecture, Architecture],
    gpus: tuple[Gpu, Gpu],
    added: float,
) -> Rollout:
    """An entry of the first model, on the first GPU, as one of the second, with engines of `tp` ranks."""
    (law, law_now), (old, new), (gpu, gpu_now) = laws, models, gpus
    ep = min(entry.ep, tp)
    figures = _stated(entry) * _figures(law_now, entry, tp) / _figures(law, entry, entry.tp)
    counts, curve = _counts(entry), np.maximum.accumulate(figures[:-4])
    a_s, b_s = nonnegative_least_squares(np.stack([np.ones(len(counts)), counts], axis=1), curve).tolist()
    kv_s, join_s, token_s, squared_s = figures[-4:].tolist()
    kv_bytes = round(entry.kv_bytes_per_token * law_now.sheet.kv_bytes_per_token / law.sheet.kv_bytes_per_token)
    # What the profile has beside the formula of KV that fits is memory, whatever the model.
    ranks = [float(each.kv_ranks(size)) / size for each, size in ((law, entry.tp), (law_now, tp))]
    beside = (entry.kv_capacity_tokens - kv_capacity_tokens(old, gpu, entry.tp)) * entry.kv_bytes_per_token / ranks[0]
    room = kv_capacity_tokens(new, gpu_now, tp) + round(beside * tp / entry.tp * ranks[1] / kv_bytes)

    def grown(point: DecodePoint) -> float:
        now_s = law_now.step_s(tp, point.sequences, point.kv_tokens, ep)
        return float(now_s / law.step_s(entry.tp, point.sequences, point.kv_tokens, entry.ep))

    moved = new.parameters / old.parameters
    ones = {factor.name: 1.0 for factor in SYNC_FACTORS}
    return entry.model_copy(
        update={
            "tp": tp,
            "ep": ep,
            "step_s": max(a_s, 1e-9),
            "step_s_per_sequence": b_s,
            "step_s_per_kv_token": kv_s,
            "prefill_s": join_s,
            "prefill_s_per_token": token_s,
            "prefill_s_per_token_squared": squared_s,
            "kv_capacity_tokens": max(1, room),
            "kv_bytes_per_token": kv_bytes,
            "start": entry.start.scaled(cold_start_s(new, tp) / cold_start_s(old, entry.tp)),
            "sync": entry.sync.scaled(sync_s(new, ones, colocated=True) / sync_s(old, ones, colocated=True)),
            "sync_apart": entry.sync_apart and entry.sync_apart.scaled(sync_s(new, ones) / sync_s(old, ones)),
            "sleep_s": None if entry.sleep_s is None else entry.sleep_s * moved,
            "wake_s": None if entry.wake_s is None else entry.wake_s * moved,
            "error": math.hypot(entry.error, added),
            "points": tuple(point.model_copy(update={"step_s": point.step_s * grown(point)}) for point in entry.points),
            "curve_s": tuple(curve.tolist()) if entry.curve_s else (),
            "evidence": {name: _less_sure(name, of, added) for name, of in entry.evidence.items()},
        }
    )


def _less_sure(name: str, evidence: Evidence, added: float) -> Evidence:
    """The evidence of an engine's figure, a standard deviation, with the error that scaling adds."""
    if name not in ("decode", "prefill"):
        return evidence
    return evidence.model_copy(update={"error": math.hypot(evidence.error, added / MEAN_OVER_DEVIATION)})
