"""`rlplan doctor`: what is wrong with a set-up, what would mend it, and which placements of its GPUs would be faster.

A remedy is a change of a few settings that was tried: the set-up with it fits. It is told as attributes of TrainerSetup;
who prints it says it in the framework's own keys.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from ...plans.facts.model_shape import named_model, undivided
from ...plans.facts.public_models import Architecture
from ...plans.facts.trainer_setup import TrainerSetup
from ...plans.phrases.numbers import bytes_text
from ...plans.schema.levers import UpdateLayout
from ...plans.yaml.errors import InputError
from ...profiles.hardware import GPUS, Gpu
from ...profiles.laws.train_law import layout_faults
from .oversampling import trained_length_ratio
from .setup_memory import (
    SetupUse,
    capacity_bytes,
    engine_weight_bytes,
    first_overflow,
    memory_share,
    micro_batch_tokens,
    setup_uses,
)
from .setup_seconds import SetupSeconds, setup_seconds

TIGHT = 0.95
"""Share of a place that may be needed before it is called tight: the sums of public runs are off by 5 %."""

Changes = Mapping[str, Any]
"""Attributes of a TrainerSetup and their new values."""

NODES_TRIED = (2, 4, 8)
"""Times as many nodes, as a last remedy."""


@dataclass(frozen=True)
class DoctorFinding:
    """One thing that the doctor found.

    Attributes:
        rule: its name.
        message: what is wrong.
        warning: it stops nothing.
        arithmetic: the sums behind it.
        attributes: of the set-up, whose keys are at fault.
        remedies: sets of changes; with each of them alone the finding is gone.
        advice: what to do that is no change of the set-up.
    """

    rule: str
    message: str
    warning: bool = False
    arithmetic: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    remedies: tuple[Changes, ...] = ()
    advice: str = ""


@dataclass(frozen=True)
class PlacedSetup:
    """Another placement of the same GPUs, or of fewer: the changes, and what a step takes."""

    changes: Changes
    name: str
    step_s: float
    gpus: int
    gain: float
    """Seconds of the set-up's step over this one's."""

    gpu_seconds: float
    """GPU seconds of a step."""


@dataclass(frozen=True)
class Diagnosis:
    """What `rlplan doctor` says of a set-up; `seconds` is None where the model or GPU has no price."""

    setup: TrainerSetup
    architecture: Architecture
    uses: tuple[SetupUse, ...]
    findings: tuple[DoctorFinding, ...]
    seconds: SetupSeconds | None
    placements: tuple[PlacedSetup, ...]
    no_seconds: str = ""

    @property
    def first(self) -> SetupUse | None:
        """The first place and phase that does not fit."""
        return first_overflow(self.uses)

    @property
    def fits(self) -> bool:
        """Whether every place has room in every phase."""
        return self.first is None

    @property
    def exit_code(self) -> int:
        """0 without findings but warnings, else 1, as `rlplan check`."""
        return int(any(not finding.warning for finding in self.findings))


def diagnose(setup: TrainerSetup) -> Diagnosis:
    """Judge a set-up. Takes seconds, and no GPU.

    Raises InputError where the model's shape or the GPU is not known.
    """
    a, gpu = known_model(setup), known_gpu(setup)
    impossible = list(_layout(setup, a))
    uses = setup_uses(setup, a, gpu)
    found = [*impossible, *_memory(setup, a, gpu, uses), *_batches(setup), *_engines(setup, a, gpu), *_lengths(setup)]
    found += _keys(setup)
    seconds, why = _seconds(setup) if not impossible else (None, "the layout cannot be")
    placements = _placements(setup, a, gpu, seconds) if seconds is not None else ()
    if seconds is not None:
        found.append(_binds(seconds))
    return Diagnosis(setup, a, uses, tuple(found), seconds, placements, why)


def known_model(setup: TrainerSetup) -> Architecture:
    """The shape of a set-up's model. Raises InputError where it is not known."""
    named = named_model(setup.model)
    if named.architecture is None:
        raise InputError(f"model {setup.model}: {named.unsure or 'its shape is not known'}; name one with --model")
    return named.architecture


def known_gpu(setup: TrainerSetup) -> Gpu:
    """The data sheet of a set-up's GPU. Raises InputError where it is not known."""
    if setup.gpu is None:
        raise InputError(
            f"{setup.source or 'the set-up'} does not say which GPUs it runs on; add --gpus, as in "
            f"--gpus {setup.nodes}x{setup.gpus_per_node}xH100"
        )
    if setup.gpu not in GPUS:
        raise InputError(f"GPU {setup.gpu} has no data sheet here; known: {', '.join(GPUS)}")
    return GPUS[setup.gpu]


# -- memory ------------------------------------------------------------------------------------------------------------


def _memory(setup: TrainerSetup, a: Architecture, gpu: Gpu, uses: Sequence[SetupUse]) -> Iterator[DoctorFinding]:
    """One finding for each place and phase that overflows, and one for the tightest that does not."""
    seen = set()
    for use in uses:
        if use.fits or (use.phase, use.where) in seen:
            continue
        seen.add((use.phase, use.where))
        remedies = remedies_of(setup, a, gpu, use)
        more = ""
        if use.where == "host":
            assert setup.host_bytes is not None
            share = use.capacity_bytes / setup.host_bytes
            more = f"or take hosts of {bytes_text(math.ceil(use.needed_bytes / share / 1e9) * 1e9)}"
        yield DoctorFinding(
            f"{use.where}-memory",
            f"{use_name(use)} needs {bytes_text(use.needed_bytes)} and there are {bytes_text(use.capacity_bytes)}",
            arithmetic=tuple(use.arithmetic),
            remedies=remedies,
            advice=more,
        )
    if not seen:
        tightest = max(uses, key=lambda use: use.needed_bytes / use.capacity_bytes)
        share = tightest.needed_bytes / tightest.capacity_bytes
        if share > TIGHT:
            yield DoctorFinding(
                "tight-memory",
                f"{use_name(tightest)} takes {share:.0%} of {bytes_text(tightest.capacity_bytes)}; the sums are off by 5 %",
                warning=True,
                arithmetic=tuple(tightest.arithmetic),
            )


def use_name(use: SetupUse) -> str:
    """A use in words: `train on a GPU, from the second step on`."""
    place = "a GPU" if use.where == "device" else "a node's host"
    whose = "" if use.side == "both" else f" of the {use.side}"
    when = ", from the first update on" if use.step > 1 else ""
    phase = {"init": "start", "rollout": "rollout", "train": "training"}[use.phase]
    return f"{phase} on {place}{whose}{when}"


def remedies_of(setup: TrainerSetup, a: Architecture, gpu: Gpu, use: SetupUse) -> tuple[Changes, ...]:
    """Up to three sets of changes with each of which all places fit, the fewest and cheapest changes first."""
    found: list[Changes] = []
    singles = list(_changes(setup, a, use))
    for changes in itertools.chain(singles, _pairs(singles)):
        if any(changes.items() >= earlier.items() for earlier in found):
            continue
        changed = replace(setup, **changes)
        if not list(_layout(changed, a)) and first_overflow(setup_uses(changed, a, gpu)) is None:
            found.append(changes)
        if len(found) == 3:
            break
    return tuple(found)


def _pairs(singles: Sequence[Changes]) -> Iterator[Changes]:
    for one, two in itertools.combinations(singles, 2):
        if not one.keys() & two.keys():
            yield {**one, **two}


def _changes(setup: TrainerSetup, a: Architecture, use: SetupUse) -> Iterator[Changes]:
    """Single changes that may help, from those that cost least seconds."""
    if use.where == "host":
        if setup.engine_keeps_weights_on_host:
            yield {"engine_keeps_weights_on_host": False}
        if setup.engine_sleeps and setup.engine_keeps_weights_on_host:
            yield {"engine_sleeps": False, "engine_keeps_weights_on_host": False}
        if setup.optimizer_at != "device":
            yield {"optimizer_at": "between" if setup.optimizer_at == "host" and setup.colocated else "device"}
        if setup.weights_at != "device":
            yield {"weights_at": "device"}
    if setup.recompute != "full":
        yield {"recompute": "full"}
    if not setup.chunked_logits and setup.framework in ("verl", "trl"):
        yield {"chunked_logits": True}
    if setup.colocated and not setup.engine_sleeps and setup.engine != "transformers":
        yield {"engine_sleeps": True}
    if setup.micro_batch_samples and setup.micro_batch_samples > 1:
        for samples in _halves(setup.micro_batch_samples):
            yield {"micro_batch_samples": samples}
    longest = setup.max_prompt_tokens + setup.max_response_tokens
    if setup.micro_batch_tokens and setup.micro_batch_tokens * setup.cp * setup.sp > longest:
        yield {"micro_batch_tokens": -(-longest // (setup.cp * setup.sp))}
    if use.where == "device":
        if setup.colocated and setup.weights_at == "device" and setup.optimizer_at == "device":
            yield {"weights_at": "between", "optimizer_at": "between"}
        for share in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2):
            if setup.engine != "transformers" and share < memory_share(setup):
                yield {"memory_share": share}
        if use.phase == "init":
            for share in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
                if share > memory_share(setup):
                    yield {"memory_share": share}
            for ranks in (2, 4, 8):
                if ranks > setup.rollout_tp and setup.rollout_gpus % ranks == 0:
                    yield {"rollout_tp": ranks}
        if setup.optimizer_at != "host":
            yield {"optimizer_at": "host"}
        if setup.backend in ("deepspeed", "ddp") and setup.zero < 3:
            yield {"backend": "deepspeed", "zero": 3, "weight_bytes": None, "gradient_bytes": None, "optimizer_bytes": None}
    if setup.backend == "megatron":
        for tp in (2, 4, 8):
            if tp > setup.tp and setup.train_gpus % (tp * setup.pp * setup.cp) == 0:
                yield {"tp": tp}
        for ep in (2, 4, 8, 16, 32):
            if a.experts and ep > setup.ep and setup.train_gpus % (ep * setup.etp * setup.pp) == 0:
                yield {"ep": ep}
        for cp in (2, 4):
            if cp > setup.cp and setup.train_gpus % (cp * setup.tp * setup.pp) == 0:
                yield {"cp": cp}
    elif setup.backend == "fsdp":
        for sp in (2, 4, 8):
            if sp > setup.sp and setup.train_gpus % sp == 0 and a.heads % sp == 0:
                yield {"sp": sp}
    for times in NODES_TRIED:
        yield {
            "nodes": setup.nodes * times,
            "train_gpus": setup.train_gpus * times,
            "rollout_gpus": setup.rollout_gpus * times,
        }


def _halves(size: int) -> Iterator[int]:
    while size > 1:
        size = -(-size // 2)
        yield size


# -- layouts, batches, engines ------------------------------------------------------------------------------------------


def _layout(setup: TrainerSetup, a: Architecture) -> Iterator[DoctorFinding]:
    """Sizes that do not divide what they are to share out."""
    model_ranks = setup.tp * setup.pp * setup.cp * setup.sp
    if setup.train_gpus % model_ranks:
        yield DoctorFinding(
            "layout",
            f"tp {setup.tp} x pp {setup.pp} x cp {setup.cp}{f' x sp {setup.sp}' if setup.sp > 1 else ''} = {model_ranks} "
            f"ranks of a replica do not divide {setup.train_gpus} training GPUs",
            attributes=("tp", "pp", "cp"),
        )
    else:
        layout = UpdateLayout(
            dp=setup.dp, tp=setup.tp, pp=setup.pp, cp=setup.cp, sp=setup.sp, ep=1, micro_batch_tokens=setup.cp * setup.sp
        )
        for name, why in layout_faults(a, layout, setup.gpus_per_node):
            # Stages of uneven depth can be set by hand in Megatron.
            uneven = name == "pp" and setup.backend == "megatron"
            yield DoctorFinding("layout", why, warning=uneven, attributes=(name,))
    if setup.ep > 1 and (not a.experts or a.experts % setup.ep or setup.train_gpus % (setup.ep * setup.etp * setup.pp)):
        why = f"does not divide {a.experts} experts over {setup.train_gpus} GPUs" if a.experts else "is of no use: no experts"
        yield DoctorFinding("layout", f"ep {setup.ep} {why}", attributes=("ep",))
    engine_ranks = setup.rollout_tp * setup.rollout_dp
    if setup.engine != "transformers":
        if setup.rollout_gpus % engine_ranks:
            text = f"engines of {engine_ranks} GPUs do not divide {setup.rollout_gpus} rollout GPUs"
            yield DoctorFinding("layout", text, attributes=("rollout_tp",))
        if why := undivided(setup.rollout_tp, a):
            yield DoctorFinding("layout", f"rollout tp {why}", attributes=("rollout_tp",))
    if setup.colocated and setup.rollout_gpus != setup.train_gpus and setup.engine != "transformers":
        text = f"engines and trainers share GPUs, but have {setup.rollout_gpus} and {setup.train_gpus} of them"
        yield DoctorFinding("layout", text, attributes=("rollout_gpus",))


def _batches(setup: TrainerSetup) -> Iterator[DoctorFinding]:
    """Units of batches: what does not divide, what is split otherwise than it reads."""
    step, dp = setup.prompts * setup.samples, setup.dp
    mini = setup.mini_batch_samples or step
    if step % mini:
        yield DoctorFinding(
            "batch",
            f"a step has {setup.prompts} prompts x {setup.samples} samples = {step} samples, which optimizer steps of "
            f"{mini} samples do not divide",
            attributes=("mini_batch_samples",),
        )
    elif mini % dp:
        yield DoctorFinding(
            "batch",
            f"an optimizer step of {mini} samples does not divide over {dp} data-parallel ranks",
            warning=setup.micro_batch_tokens is not None,
            attributes=("mini_batch_samples",),
        )
    elif setup.micro_batch_samples and (mini // dp) % setup.micro_batch_samples:
        yield DoctorFinding(
            "batch",
            f"{mini // dp} samples of a rank do not divide into micro-batches of {setup.micro_batch_samples}",
            attributes=("micro_batch_samples",),
        )
    if mini < step:
        yield DoctorFinding(
            "off-policy",
            f"{step // mini} optimizer steps on one rollout: all but the first train on samples of older weights",
            warning=True,
            attributes=("mini_batch_samples",),
        )
    longest = setup.max_prompt_tokens + setup.max_response_tokens
    if setup.micro_batch_tokens and setup.micro_batch_tokens * setup.cp * setup.sp < longest:
        yield DoctorFinding(
            "micro-batch",
            f"micro-batches of {setup.micro_batch_tokens * setup.cp * setup.sp:,} tokens cannot hold a sample of "
            f"{setup.max_prompt_tokens:,} + {setup.max_response_tokens:,} tokens, which is never split: memory is that of "
            f"{longest:,}",
            warning=True,
            attributes=("micro_batch_tokens",),
        )
    if setup.steps_ahead:
        text = f"generation runs {setup.steps_ahead} steps ahead: training is not on-policy"
        yield DoctorFinding("off-policy", text, warning=True, attributes=("steps_ahead",))


def _engines(setup: TrainerSetup, a: Architecture, gpu: Gpu) -> Iterator[DoctorFinding]:
    """Engines whose KV is small for what they are asked to decode, or that hold memory while trainers train."""
    if setup.engine == "transformers":
        text = "samples are decoded by transformers, without an engine: one step at a time, at the longest's pace"
        yield DoctorFinding("no-engine", text, warning=True, attributes=("engine",))
        return
    room = memory_share(setup) * capacity_bytes(gpu) - engine_weight_bytes(setup, a) - 2e9
    ranks = min(setup.rollout_tp, 1 if a.latent_kv else a.kv_heads)
    tokens = max(0.0, room * ranks / (2.0 * a.kv_values_per_token))
    each = setup.mean_response_tokens or setup.max_response_tokens / 2
    asked = math.ceil(setup.prompts * setup.samples / setup.engines)
    at_once = min(asked, setup.max_num_seqs or asked)
    held = at_once * (setup.max_prompt_tokens / 2 + each)
    if 0 < tokens < held:
        yield DoctorFinding(
            "kv-cache",
            f"an engine has room for {tokens:,.0f} KV tokens, and {at_once} samples at once hold {held:,.0f}: it will "
            "preempt, and decode them again",
            warning=True,
            arithmetic=(
                f"{memory_share(setup):g} of {bytes_text(capacity_bytes(gpu))} less weights "
                f"{bytes_text(engine_weight_bytes(setup, a))} and 2 GB, by {2 * a.kv_values_per_token / ranks / 1e3:.0f} kB a token",
                f"{at_once} x ({setup.max_prompt_tokens} / 2 + {each:,.0f}) tokens"
                + ("" if setup.mean_response_tokens else " (half of the cap; give --mean-response-tokens)"),
            ),
            attributes=("memory_share", "max_num_seqs"),
        )
    if setup.colocated and not setup.engine_sleeps:
        held_bytes = memory_share(setup) * capacity_bytes(gpu)
        yield DoctorFinding(
            "awake-engine",
            f"engines hold {bytes_text(held_bytes)} of each GPU while trainers train",
            warning=True,
            attributes=("engine_sleeps",),
        )


def _lengths(setup: TrainerSetup) -> Iterator[DoctorFinding]:
    """What over-sampling does to the lengths that are trained."""
    issued = setup.issued_prompts or setup.prompts
    if issued <= setup.prompts:
        return
    ratio = trained_length_ratio(issued, setup.prompts, setup.samples)
    kept = "they go on in the next step, under older weights" if setup.partial_rollout else "they are dropped until the next epoch"
    yield DoctorFinding(
        "over-sampling",
        f"{issued} prompts are issued and the first {setup.prompts} to end are trained: their responses have "
        f"{ratio:.2f} of the mean length, and of those that did not end {kept}",
        warning=True,
        arithmetic=(
            f"{issued} groups of {setup.samples} drawn from the lengths math-16k, all decoded at one rate; the "
            f"{setup.prompts} whose longest sample ends first: mean length {ratio:.3f} of all",
        ),
        attributes=("issued_prompts",),
        advice="rlplan's rounds of mode exact over-issue without this bias: rlplan export, or the plug-in",
    )


def _keys(setup: TrainerSetup) -> Iterator[DoctorFinding]:
    """Settings that the framework does not read."""
    for setting in setup.left_aside:
        if setting.dead:
            yield DoctorFinding("dead-key", f"{setting.key} {setting.value}: {setting.why}".strip(), warning=True)


# -- seconds and placements ---------------------------------------------------------------------------------------------


def _seconds(setup: TrainerSetup) -> tuple[SetupSeconds | None, str]:
    try:
        return setup_seconds(setup), ""
    except ValueError as error:  # no price for this model on this GPU, or layout
        return None, str(error)


def _binds(seconds: SetupSeconds) -> DoctorFinding:
    phase, taken = max(seconds.phases_s.items(), key=lambda item: item[1])
    total = sum(seconds.phases_s.values())
    parts = ", ".join(f"{name} {size:.3g} s" for name, size in seconds.phases_s.items() if size > 0)
    return DoctorFinding("binds", f"{phase} takes {taken / total:.0%} of a step", warning=True, arithmetic=(parts,))


def _placements(
    setup: TrainerSetup, a: Architecture, gpu: Gpu, seconds: SetupSeconds
) -> tuple[PlacedSetup, ...]:
    """Placements that fit and take fewer seconds, or fewer GPU seconds, a step; the fastest first, six at most."""
    if setup.engine == "transformers":
        return ()
    total = setup.nodes * setup.gpus_per_node
    used = max(setup.train_gpus, setup.rollout_gpus) if setup.colocated else setup.train_gpus + setup.rollout_gpus
    replica = setup.tp * setup.pp * setup.cp * setup.sp
    found = []
    for changes, name in _variants(setup, used, total):
        changed = replace(setup, **changes)
        gpus = changed.train_gpus if changed.colocated else changed.train_gpus + changed.rollout_gpus
        if changed.train_gpus % replica or any(not finding.warning for finding in _layout(changed, a)):
            continue
        if first_overflow(setup_uses(changed, a, gpu)) is not None:
            continue
        priced, _ = _seconds(changed)
        if priced is not None:
            placed = PlacedSetup(changes, name, priced.step_s, gpus, seconds.step_s / priced.step_s, gpus * priced.step_s)
            found.append(placed)
    better = [
        placed
        for placed in found
        if placed.step_s < 0.99 * seconds.step_s or placed.gpu_seconds < 0.99 * used * seconds.step_s
    ]
    return tuple(sorted(better, key=lambda placed: (placed.step_s, placed.name))[:6])


def _variants(setup: TrainerSetup, used: int, total: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Changes of a placement, each with a name: shared or apart, sizes of engines, half of the GPUs."""
    for gpus in sorted({used, used // 2, total} - {0}):
        nodes = max(1, -(-gpus // setup.gpus_per_node))
        for tp in (1, 2, 4, 8):
            base: dict[str, Any] = {"nodes": nodes, "rollout_tp": tp, "rollout_dp": 1, "rollout_ep": 1}
            shared = {"colocated": True, "engine_sleeps": True, "weights_at": "between", "optimizer_at": "between"}
            if setup.colocated:
                shared = {"colocated": True}
            elif setup.optimizer_at == "host":
                shared["optimizer_at"] = "host"
            yield {**base, **shared, "train_gpus": gpus, "rollout_gpus": gpus}, f"{gpus} shared, engines of tp {tp}"
            for part in (0.25, 0.5, 0.75):
                train = round(gpus * part)
                if 0 < train < gpus:
                    apart = {"colocated": False, "weights_at": "device", "train_gpus": train, "rollout_gpus": gpus - train}
                    if setup.optimizer_at == "between":
                        apart["optimizer_at"] = "device"
                    yield {**base, **apart}, f"{train} train, {gpus - train} decode by tp {tp}"


def as_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """What `rlplan doctor --json` prints, remedies as attributes."""
    first, seconds = diagnosis.first, diagnosis.seconds
    return {
        "fits": diagnosis.fits,
        "first": None
        if first is None
        else {
            "phase": first.phase,
            "where": first.where,
            "step": first.step,
            "needed_bytes": round(first.needed_bytes),
            "capacity_bytes": round(first.capacity_bytes),
        },
        "findings": [{**asdict(finding), "remedies": list(map(dict, finding.remedies))} for finding in diagnosis.findings],
        "step_s": None if seconds is None else seconds.step_s,
        "step_error": None if seconds is None else seconds.error,
        "phases_s": {} if seconds is None else dict(seconds.phases_s),
        "placements": [asdict(placed) for placed in diagnosis.placements],
        "memory": [
            {
                "phase": use.phase,
                "where": use.where,
                "step": use.step,
                "side": use.side,
                "needed_bytes": round(use.needed_bytes),
                "capacity_bytes": round(use.capacity_bytes),
                "fits": use.fits,
                "sum": use.arithmetic,
            }
            for use in diagnosis.uses
        ],
        "setup": {
            "framework": diagnosis.setup.framework,
            "version": diagnosis.setup.version,
            "model": diagnosis.setup.model,
            "parameters": diagnosis.architecture.parameters,
            "defaulted": list(diagnosis.setup.defaulted),
            "left_aside": [asdict(setting) for setting in diagnosis.setup.left_aside],
        },
        "no_seconds": diagnosis.no_seconds,
    }


_ = (np, field, micro_batch_tokens)
