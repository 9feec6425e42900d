"""Set-ups with a few settings changed: those that mend what does not fit, and placements that are faster or cheaper."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...plans.facts.model_shape import undivided
from ...plans.facts.public_models import Architecture
from ...plans.facts.trainer_setup import TrainerSetup
from ...profiles.hardware import Gpu
from .rank_states import SetupUse
from .setup_memory import first_overflow, memory_share, setup_uses
from .setup_rules import Changes, is_impossible
from .setup_seconds import SetupSeconds, setup_seconds

NODES_TRIED = (2, 4, 8)
"""Times as many nodes, as a last remedy."""


NO_SETTING: Mapping[str, frozenset[tuple[str, Any]]] = {
    "verl": frozenset({("colocated", False)}),
    "trl": frozenset({("weights_at", "between"), ("optimizer_at", "between"), ("optimizer_at", "device"), ("sp", None),
                      ("micro_batch_tokens", None)}),
    "openrlhf": frozenset({("weights_at", "device")}),
    "skyrl": frozenset({("weights_at", "device"), ("optimizer_at", "device"), ("engine_sleeps", None),
                        ("engine_keeps_weights_on_host", None)}),
    "rlplan": frozenset({("memory_share", None), ("engine_sleeps", None), ("micro_batch_samples", None), ("sp", None),
                         ("engine_keeps_weights_on_host", None), ("weights_at", None), ("optimizer_at", "between"),
                         ("optimizer_at", "device")}),
    "slime": frozenset(),
    "vime": frozenset(),
}  # fmt: skip
"""Attributes and values that a framework has no setting for (None: any value): no remedy and no placement for it.
verl's synchronous trainer shares GPUs with its engines; that with GPUs apart runs ahead."""


def can_be_set(setup: TrainerSetup, changes: Changes) -> bool:
    """Whether the set-up's framework has settings for these changes."""
    lacking = NO_SETTING[setup.framework]
    changed = [(name, value) for name, value in changes.items() if getattr(setup, name) != value]
    return not any((name, None) in lacking or (name, value) in lacking for name, value in changed)


MOST_WORK = 9.5e6
"""Placings of samples on engines that are simulated for a diagnosis: some five seconds."""


def simulated_work(setup: TrainerSetup) -> float:
    """What a simulated rollout costs: each sample looks at each engine, and takes as long as 60 of these looks."""
    beside = 1 + setup.steps_ahead if setup.partial_rollout and not setup.colocated else 1
    return beside * max(setup.prompts, setup.issued_prompts or 0) * setup.samples * (setup.engines + 60.0)


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


def remedies_of(setup: TrainerSetup, a: Architecture, gpu: Gpu, use: SetupUse) -> tuple[Changes, ...]:
    """Up to three sets of changes with each of which all places fit, the fewest and cheapest changes first."""
    found: list[Changes] = []
    singles = [changes for changes in _changes(setup, a, use) if can_be_set(setup, changes)]
    for changes in itertools.chain(singles, _pairs(singles)):
        if any(changes.keys() >= earlier.keys() for earlier in found):  # values are tried from the mildest one
            continue
        changed = replace(setup, **changes)
        if not is_impossible(changed, a) and first_overflow(setup_uses(changed, a, gpu)) is None:
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
        if setup.engine_sleeps and setup.engine_keeps_weights_on_host:
            awake = {"engine_sleeps": False, "engine_keeps_weights_on_host": False}
            yield awake
            for share in (0.6, 0.5, 0.4, 0.3, 0.2):  # an engine that stays needs to be smaller
                if share < memory_share(setup):
                    yield {**awake, "memory_share": share}
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
            yield {
                "backend": "deepspeed",
                "zero": 3,
                "weight_bytes": None,
                "gradient_bytes": None,
                "optimizer_bytes": None,
            }
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


def with_layout(setup: TrainerSetup, a: Architecture, gpu: Gpu) -> TrainerSetup:
    """A set-up of which no layout was said, with the smallest that has room: ranks of an engine, and those of a replica
    of Megatron. If none has room, the layout that needs least."""
    if "rollout_tp" in setup.defaulted and setup.engine != "transformers":
        for ranks in (tp for tp in (1, 2, 4, 8) if tp >= setup.rollout_tp and setup.rollout_gpus % tp == 0):
            changed = replace(setup, rollout_tp=ranks)
            if undivided(ranks, a) is None:
                setup = changed
                if not any(use.phase == "init" and use.where == "device" for use in setup_uses(changed, a, gpu)):
                    break
    if setup.backend != "megatron" or not {"tp", "pp", "ep", "cp"} <= set(setup.defaulted):
        return setup

    def needed(changed: TrainerSetup) -> float:
        uses = setup_uses(replace(changed, host_bytes=None), a, gpu)
        return max(use.needed_bytes / use.capacity_bytes for use in uses if use.phase == "train")

    tried = []
    for pp, tp, ep in itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8, 16, 32) if a.experts else (1,)):
        changed = replace(setup, tp=tp, pp=pp, ep=ep)
        if not is_impossible(changed, a):
            tried.append((tp * pp, ep, changed))
    for _, _, changed in sorted(tried, key=lambda each: each[:2]):
        if needed(changed) <= 1.0:
            return changed
    return min((changed for _, _, changed in tried), key=needed, default=setup)


def priced(setup: TrainerSetup) -> tuple[SetupSeconds | None, str]:
    """(seconds of a step, ""); (None, why) where the model on this GPU, or the layout, has no price."""
    if simulated_work(setup) > MOST_WORK:
        samples = max(setup.prompts, setup.issued_prompts or 0) * setup.samples
        return None, f"{samples:,} samples on {setup.engines:,} engines are more than is simulated"
    try:
        return setup_seconds(setup), ""
    except ValueError as error:  # no price for this model on this GPU, or layout
        return None, str(error)


def better_placements(setup: TrainerSetup, a: Architecture, gpu: Gpu, seconds: SetupSeconds) -> tuple[PlacedSetup, ...]:
    """Placements that fit and take fewer seconds, or fewer GPU seconds, a step; the fastest first, six at most.

    Sizes of engines are tried on all GPUs, shared; then splits of the GPUs, and half of them, with the fastest size.
    What would simulate more than MOST_WORK in all is left out.
    """
    if setup.engine == "transformers":
        return ()
    total = setup.nodes * setup.gpus_per_node
    used = setup.train_gpus if setup.colocated else setup.train_gpus + setup.rollout_gpus
    tried: list[PlacedSetup] = []
    left = MOST_WORK - simulated_work(setup)

    def tell(changes: dict[str, Any] | None, name: str) -> None:
        if changes is None or not can_be_set(setup, changes):
            return
        nonlocal left
        changed = replace(setup, **changes)
        gpus = changed.train_gpus if changed.colocated else changed.train_gpus + changed.rollout_gpus
        if is_impossible(changed, a) or first_overflow(setup_uses(changed, a, gpu)) is not None:
            return
        if (work := simulated_work(changed)) > left:
            return
        left -= work
        taken, _ = priced(changed)
        if taken is not None:
            gain = seconds.step_s / taken.step_s
            tried.append(PlacedSetup(changes, name, taken.step_s, gpus, gain, gpus * taken.step_s))

    for ranks in (8, 4, 2, 1):  # those that take least to simulate first
        tell(_shared(setup, total, ranks), f"{total} shared, engines of tp {ranks}")
    fastest = min(tried, key=lambda placed: placed.step_s, default=None)
    ranks = setup.rollout_tp if fastest is None else fastest.changes["rollout_tp"]
    for train in sorted({total // 4, total // 2, total * 3 // 4} - {0, total}):
        tell(_apart(setup, train, total - train, ranks), f"{train} train, {total - train} decode by tp {ranks}")
    if total > 1:
        tell(_shared(setup, total // 2, ranks), f"{total // 2} shared, engines of tp {ranks}")
    better = [
        placed
        for placed in tried
        if placed.step_s < 0.99 * seconds.step_s or placed.gpu_seconds < 0.99 * used * seconds.step_s
    ]
    return tuple(sorted(better, key=lambda placed: (placed.step_s, placed.name))[:6])


def _engines_of(setup: TrainerSetup, gpus: int, ranks: int) -> dict[str, Any] | None:
    """Changes of machines and engines; None where so many GPUs are no whole nodes."""
    per_node = min(gpus, setup.gpus_per_node)
    if gpus % per_node:
        return None
    machines = {"nodes": gpus // per_node, "gpus_per_node": per_node}
    return {**machines, "rollout_tp": ranks, "rollout_dp": 1, "rollout_ep": 1}


def _shared(setup: TrainerSetup, gpus: int, ranks: int) -> dict[str, Any] | None:
    """Changes by which engines and trainers take turns on so many GPUs."""
    machines = _engines_of(setup, gpus, ranks)
    changes: dict[str, Any] = {"colocated": True, "train_gpus": gpus, "rollout_gpus": gpus}
    if not setup.colocated:
        moved = "host" if setup.optimizer_at == "host" else "between"
        changes |= {"engine_sleeps": True, "weights_at": "between", "optimizer_at": moved}
    return None if machines is None else machines | changes


def _apart(setup: TrainerSetup, train: int, rollout: int, ranks: int) -> dict[str, Any] | None:
    """Changes by which each side has GPUs of its own."""
    machines = _engines_of(setup, train + rollout, ranks)
    changes: dict[str, Any] = {"colocated": False, "train_gpus": train, "rollout_gpus": rollout, "weights_at": "device"}
    if setup.optimizer_at == "between":
        changes["optimizer_at"] = "device"
    return None if machines is None else machines | changes
