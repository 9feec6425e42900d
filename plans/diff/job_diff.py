"""The difference of two plans of one job: what changes in seconds, USD, bias and memory, and what it comes from.

Two plans are the same if decisions, predictions, inputs (by digest) and solver are. Wording alone (`why`), when and by
which version a plan was solved (`volatile`), the order of keys and the spelling of numbers do not count. A new plan
whose input file has changed since it was solved is not the same: it no longer holds for what it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..check.solved_rules import decisions_of, predictions_of
from ..phrases.phase_names import PHASE_NAMES
from ..schema.groups_plan import GroupsPlan
from ..schema.plan import Plan
from ..schema.predicted import MemoryBar, Predicted
from .change import KeyChange, Quantity, Unit, changes, finite
from .difference_error import Errors, errors_of
from .input_diff import InputChange, InputFiles, State, altered, input_changes, inputs_of, stale_inputs


@dataclass(frozen=True)
class Decision:
    """A decision that differs.

    Attributes:
        change: below the plan's `job`.
        block: `short round`, `long round` or `job`.
        why: what the new plan says about it; "" if nothing, or if it was edited since.
    """

    change: KeyChange
    block: str
    why: str

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {**self.change.as_dict(), "group": self.block, "why": self.why or None}


@dataclass(frozen=True)
class PlanDiff:
    """What differs between two plans of one job.

    Attributes:
        old, new: the plans.
        same: whether they mean the same.
        errors: how the errors of both combine.
        effects: figures of the whole plan.
        phases: mean seconds of a step by phase, and of a step by kind of round.
        inputs: files that differ by digest.
        stale: input files of the new plan that are not what it was solved from, by name.
        decisions: what is done differently.
        solver: how it was found differently, and the provenance of the profile, by dotted key of the plan.
        predictions: all that is predicted differently, dotted below `predicted`.
        edited: sides (`old`, `new`) whose decisions were edited since they were solved.
        figures_edited: sides whose predictions were edited since they were solved.
    """

    old: Plan
    new: Plan
    same: bool
    errors: Errors
    effects: tuple[Quantity, ...]
    phases: tuple[Quantity, ...]
    inputs: tuple[InputChange, ...]
    stale: Mapping[str, State]
    decisions: tuple[Decision, ...]
    solver: tuple[KeyChange, ...]
    predictions: tuple[KeyChange, ...]
    edited: tuple[str, ...]
    figures_edited: tuple[str, ...]

    def effect(self, key: str) -> Quantity:
        """The figure with this key."""
        return next(each for each in (*self.effects, *self.phases) if each.key == key)

    def as_dict(self) -> dict[str, Any]:
        """Everything with numbers, for JSON."""
        return {
            "kind": "job",
            "job": self.new.job.name,
            "same": self.same,
            "error": self.errors.as_dict(),
            "effects": {each.key: each.as_dict() for each in self.effects},
            "phases": {each.key: each.as_dict() for each in self.phases},
            "inputs": [each.as_dict() for each in self.inputs],
            "stale": dict(self.stale),
            "decisions": [each.as_dict() for each in self.decisions],
            "solver": [each.as_dict() for each in self.solver],
            "predictions": [each.as_dict() for each in self.predictions],
            "versions": {"old": self.old.volatile.rlplan, "new": self.new.volatile.rlplan},
            "edited": list(self.edited),
            "figures_edited": list(self.figures_edited),
        }


NOWHERE = InputFiles(None)
"""For plans whose inputs are not at hand."""


def diff_jobs(old: Plan, new: Plan, old_files: InputFiles = NOWHERE, new_files: InputFiles = NOWHERE) -> PlanDiff:
    """What differs from `old` to `new`; the files say what changed in the inputs, as far as they are at hand."""
    errors = errors_of(old, new)
    inputs = input_changes(inputs_of(old), inputs_of(new), old_files, new_files)
    sides = sides_of(edited(old), edited(new))
    decisions = _decisions(old, new, stale="new" in sides)
    solver = found_by(old, new) + tuple(
        changes(old.inputs.profile.provenance, new.inputs.profile.provenance, at="inputs.profile.provenance")
    )
    predictions = tuple(changes(_dump(old.predicted), _dump(new.predicted)))
    stale = {} if new_files.folder is None else stale_inputs(new, new_files)
    return PlanDiff(
        old=old,
        new=new,
        same=not (inputs or decisions or solver or predictions or altered(stale)) and len(sides) != 1,
        errors=errors,
        effects=_effects(old, new, errors),
        phases=_phases(old.predicted, new.predicted),
        inputs=inputs,
        stale=stale,
        decisions=decisions,
        solver=solver,
        predictions=predictions,
        edited=sides,
        figures_edited=sides_of(figures_edited(old), figures_edited(new)),
    )


def edited(plan: Plan | GroupsPlan) -> bool:
    """Whether a plan's decisions were changed since it was solved."""
    return decisions_of(plan) != plan.decisions_sha256


def figures_edited(plan: Plan | GroupsPlan) -> bool:
    """Whether a plan's predictions were changed since it was solved; false where it has no digest of them."""
    return plan.predicted_sha256 is not None and predictions_of(plan) != plan.predicted_sha256


def sides_of(old: bool, new: bool) -> tuple[str, ...]:
    """The sides of which something holds: `old`, `new`, both or none."""
    return ("old",) * old + ("new",) * new


def found_by(old: Plan | GroupsPlan, new: Plan | GroupsPlan) -> tuple[KeyChange, ...]:
    """How the two were found differently, by dotted key of the plan."""
    return tuple(changes(_dump(old.solver), _dump(new.solver), at="solver"))


def _dump(model: Any, **options: Any) -> Any:
    return model.model_dump(mode="json", **options)


_BLOCKS = {"rounds.short": "short round", "rounds.long": "long round"}


def _decisions(old: Plan, new: Plan, stale: bool) -> tuple[Decision, ...]:
    found = changes(_dump(old.job, exclude={"why"}), _dump(new.job, exclude={"why"}))
    blocks = [(next((b for at, b in _BLOCKS.items() if change.key.startswith(at)), "job"), change) for change in found]
    order = ["job", *_BLOCKS.values()]
    blocks.sort(key=lambda item: order.index(item[0]))
    return tuple(Decision(change, block, "" if stale else why_of(change.key, new.job.why)) for block, change in blocks)


_FOLLOWS = "max_num_seqs"  # from what is issued and how many engines there are; no reason of the layout is its own


def why_of(key: str, why: Mapping[str, str]) -> str:
    """What a plan says about the decision `key`: what stands under it, else under the nearest key above it."""
    parts = key.split(".")
    if parts[-1] == _FOLLOWS:
        return why.get(key, "")
    for end in range(len(parts), 0, -1):
        above = ".".join(parts[:end])
        # `rounds` speaks of the share of long rounds and of nothing else.
        if above in why and (above != "rounds" or key == "rounds.long"):
            return why[above]
    return ""


def speedup(predicted: Predicted) -> float | None:
    """Times as fast as the plain synchronous plan, per sample."""
    return finite(predicted.baseline.seconds_per_sample / predicted.seconds_per_sample)


def headroom(bars: list[MemoryBar | None]) -> float | None:
    """The least share that stays free over some memories; None if one of them is not known."""
    known = [bar.headroom for bar in bars if bar is not None]
    return finite(min(known)) if known and len(known) == len(bars) else None


def memory(predicted: Predicted) -> dict[str, float | None]:
    """Headroom of KV cache, of training, and of the host: the least over kinds of round."""
    rounds = [kind for kind in (predicted.rounds.short, predicted.rounds.long) if kind is not None]
    return {
        "kv": headroom([kind.memory.kv for kind in rounds]),
        "train": headroom([kind.memory.train for kind in rounds]),
        "host": headroom([predicted.host_memory]),
    }


def _quantity(
    key: str, label: str, unit: Unit, pair: tuple[float | None, float | None], errors: Errors | None, better: int
) -> Quantity:
    old, new = finite(pair[0]), finite(pair[1])
    if errors is None or old is None or new is None:
        return Quantity(key, label, unit, old, new, better=better)
    return Quantity(key, label, unit, old, new, errors.sigma(old, new), errors.ratio_sigma(old, new), better)


def _effects(old: Plan, new: Plan, errors: Errors) -> tuple[Quantity, ...]:
    a, b = old.predicted, new.predicted
    free = memory(a), memory(b)

    # What is neither certain nor states its error is neither called better nor worse.

    def of(
        key: str,
        label: str,
        unit: Unit,
        read: Callable[[Predicted], float | None],
        better: int = 0,
        uncertain: bool = False,
    ) -> Quantity:
        return _quantity(key, label, unit, (read(a), read(b)), errors if uncertain else None, better)

    rows = [
        of("seconds_per_sample", "seconds per sample", "s", lambda p: p.seconds_per_sample, -1, True),
        of("usd_per_1k_samples", "USD per 1000 samples", "usd", lambda p: p.usd_per_1k_samples, -1, True),
        of("speedup", "speed over plain synchronous rounds", "x", speedup),
        of("usd_per_hour", "USD per hour", "usd", lambda p: p.usd_per_hour, -1),
        of("nodes", "nodes", "count", lambda p: float(p.nodes), -1),
        of("length_ratio", "length ratio", "ratio", lambda p: p.length_ratio),
        Quantity("bias_budget", "bias budget", "share", old.job.bias.budget, new.job.bias.budget),
    ]
    for key, label in (("kv", "KV memory free"), ("train", "training memory free"), ("host", "host memory free")):
        rows.append(Quantity(f"memory.{key}", label, "share", free[0][key], free[1][key], better=1))
    rows.append(of("step_s.p50", "step, p50", "s", lambda p: p.step_s.p50))
    rows.append(of("step_s.p95", "step, p95", "s", lambda p: p.step_s.p95))
    rows.append(of("step_s.mean", "step, mean", "s", lambda p: p.step_s.mean, -1, True))
    return tuple(rows)


def _phases(old: Predicted, new: Predicted) -> tuple[Quantity, ...]:
    pairs: list[tuple[str, str, float | None, float | None]] = [
        (f"phases_s.{key}", f"· {PHASE_NAMES[key]}", getattr(old.phases_s, key), getattr(new.phases_s, key))
        for key in ("rollout", "reward_exposed", "train", "sync")
    ]
    for kind in ("short", "long"):
        sides = getattr(old.rounds, kind), getattr(new.rounds, kind)
        if any(side is not None for side in sides):
            means = [None if side is None else side.step_s.mean for side in sides]
            pairs.append((f"rounds.{kind}.step_s.mean", f"· {kind} round, mean", means[0], means[1]))
    # A kind of round that one of the plans does not have takes no unknown time: there is none of it.
    found = [Quantity(key, label, "s", finite(a), finite(b), missing="none") for key, label, a, b in pairs]
    sides = old.rounds.long, new.rounds.long
    if any(side is not None for side in sides):
        # A plan without long rounds has none of them, which is known.
        shares = [0.0 if side is None else side.share for side in sides]
        found.append(Quantity("rounds.long.share", "· long rounds' share", "share", shares[0], shares[1]))
    return tuple(found)
