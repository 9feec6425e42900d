"""The difference of two plans of one job: changes of seconds, USD, bias and memory, and their causes.

Two plans are the same if decisions, predictions, inputs (by digest) and solver are the same. The texts of `why`, time
and version of solving (`volatile`), the order of keys and the spelling of numbers do not count. A new plan whose input
file has changed since it was solved is not the same: it does not fit the file that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from ..check.solved_rules import has_edited_decisions, has_edited_predictions
from ..phrases.sentences import PHASE_NAMES
from ..schema.base import whole
from ..schema.groups_plan import GroupsPlan
from ..schema.plan import Plan
from ..schema.predicted import Predicted, PredictedError
from .change import KeyChange, Quantity, Unit, changes, finite
from .difference_error import Errors, errors_at_once, errors_of, same_basis
from .input_diff import InputChange, InputFiles, State, altered, input_changes, inputs_of, stale_inputs

P = TypeVar("P", Plan, GroupsPlan)


@dataclass(frozen=True)
class Decision:
    """A decision that differs.

    Attributes:
        change: its key is dotted below the plan's `job`.
        block: `short round`, `long round` or `job`.
        why: the new plan's reason for the decision; "" if it gives none, or if its decisions were edited.
    """

    change: KeyChange
    block: str
    why: str

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {**self.change.as_dict(), "group": self.block, "why": self.why or None}


@dataclass(frozen=True)
class Repriced:
    """What the old decisions cost with the new inputs, as the new plan's own figures have them.

    Attributes:
        error: that of the old decisions with the new inputs; `sampling` is that of the ratio of the two plans' seconds.
    """

    seconds_per_sample: float
    usd_per_1k_samples: float
    error: PredictedError


@dataclass(frozen=True)
class AnyDiff(Generic[P]):
    """What differs between two plans of one kind, whatever the kind.

    Attributes:
        old, new: the plans.
        same: whether nothing differs that counts.
        effects: figures of the whole plan.
        inputs: files that differ by digest.
        stale: input files of the new plan that have changed since it was solved, or are missing, by name.
        solver: keys of `solver` that differ, and the provenance of the profile, dotted from the top of the plan.
        edited: sides (`old`, `new`) whose decisions were edited after they were solved.
        figures_edited: sides whose predictions were edited after they were solved.
    """

    old: P
    new: P
    same: bool
    effects: tuple[Quantity, ...]
    inputs: tuple[InputChange, ...]
    stale: Mapping[str, State]
    solver: tuple[KeyChange, ...]
    edited: tuple[str, ...]
    figures_edited: tuple[str, ...]

    def effect(self, key: str) -> Quantity:
        """The figure with this key."""
        return next(quantity for quantity in self.effects if quantity.key == key)

    def as_dict(self) -> dict[str, Any]:
        """Everything with numbers, for JSON."""
        return {
            "same": self.same,
            "effects": {quantity.key: quantity.as_dict() for quantity in self.effects},
            "inputs": [change.as_dict() for change in self.inputs],
            "stale": dict(self.stale),
            "solver": [change.as_dict() for change in self.solver],
            "versions": {"old": self.old.volatile.rlplan, "new": self.new.volatile.rlplan},
            "edited": list(self.edited),
            "figures_edited": list(self.figures_edited),
        }


@dataclass(frozen=True)
class PlanDiff(AnyDiff[Plan]):
    """What differs between two plans of one job.

    Attributes:
        errors: the errors of both plans, to combine.
        phases: mean seconds of a step by phase, and of a step by kind of round.
        decisions: decisions that differ.
        predictions: keys of `predicted` that differ, dotted below `predicted`.
        repriced: the old decisions with the new inputs, where inputs and decisions differ; a text: why they have no
            price; None: nothing to price.
    """

    errors: Errors
    phases: tuple[Quantity, ...]
    decisions: tuple[Decision, ...]
    predictions: tuple[KeyChange, ...]
    repriced: Repriced | str | None = None

    @property
    def comparable(self) -> bool:
        """Whether the two plans' predictions rest on the same inputs, so that the decisions make the difference."""
        return same_basis(self.old, self.new)

    def effect(self, key: str) -> Quantity:
        """The figure with this key."""
        return next(quantity for quantity in (*self.effects, *self.phases) if quantity.key == key)

    def as_dict(self) -> dict[str, Any]:
        """Everything with numbers, for JSON."""
        return (
            {"kind": "job"}
            | super().as_dict()
            | {
                "job": self.new.job.name,
                "error": self.errors.as_dict(),
                "phases": {quantity.key: quantity.as_dict() for quantity in self.phases},
                "decisions": [decision.as_dict() for decision in self.decisions],
                "predictions": [change.as_dict() for change in self.predictions],
                "comparable": self.comparable,
                "not_repriced": self.repriced if isinstance(self.repriced, str) else None,
            }
        )


NO_FILES = InputFiles(None)
"""For plans whose input files are not at hand."""


def diff_jobs(
    old: Plan,
    new: Plan,
    old_files: InputFiles = NO_FILES,
    new_files: InputFiles = NO_FILES,
    repriced: Repriced | str | None = None,
) -> PlanDiff:
    """The difference from `old` to `new`.

    Args:
        old_files, new_files: input files, to compare those that are at hand.
        repriced: what planner/reprice.py says of the two; None: it was not asked.
    """
    errors = errors_of(old, new)
    decisions = _decisions(old, new, stale=has_edited_decisions(new))
    predictions = tuple(changes(whole(old.predicted), whole(new.predicted)))
    profile = tuple(changes(_profile_facts(old), _profile_facts(new), prefix="inputs.profile"))
    return PlanDiff(
        **parts_of(
            old,
            new,
            (old_files, new_files),
            differs=bool(decisions or predictions or profile),
            effects=_effects(old, new, errors, repriced if isinstance(repriced, Repriced) else None),
            profile=profile,
        ),
        errors=errors,
        phases=_phases(old.predicted, new.predicted),
        decisions=decisions,
        predictions=predictions,
        repriced=repriced,
    )


def parts_of(
    old: P,
    new: P,
    files: tuple[InputFiles, InputFiles],
    differs: bool,
    effects: tuple[Quantity, ...],
    profile: tuple[KeyChange, ...] = (),
    from_old: bool | None = None,
) -> dict[str, Any]:
    """The attributes of `AnyDiff` for two plans of one kind.

    Args:
        files: the input files of both plans.
        differs: whether something differs that counts, beside inputs and solver.
        profile: what differs of the profile beside its bytes.
        from_old: whether the old plan is the `previous` input of the new one, which is no difference between the two.
    """
    inputs = input_changes(inputs_of(old), inputs_of(new), *files)
    if from_old:
        inputs = tuple(change for change in inputs if change.name != "previous")
    solver = tuple(changes(whole(old.solver), whole(new.solver), prefix="solver"))
    stale = {} if files[1].folder is None else stale_inputs(new, files[1])
    edited = sides_of(has_edited_decisions(old), has_edited_decisions(new))
    return {
        "old": old,
        "new": new,
        "same": not (differs or inputs or solver or altered(stale)) and len(edited) != 1,
        "effects": effects,
        "inputs": inputs,
        "stale": stale,
        "solver": solver + profile,
        "edited": edited,
        "figures_edited": sides_of(has_edited_predictions(old), has_edited_predictions(new)),
    }


def sides_of(old: bool, new: bool) -> tuple[str, ...]:
    """The sides whose argument is true: `old`, `new`, both or none."""
    return ("old",) * old + ("new",) * new


_BLOCKS = {"rounds.short": "short round", "rounds.long": "long round"}


def _profile_facts(plan: Plan) -> dict[str, object]:
    """What a plan says of its profile beside its name."""
    audit = plan.inputs.profile.reward_audit
    facts: dict[str, object] = {} if audit is None else {"reward_audit": audit.model_dump()}
    return {"provenance": plan.inputs.profile.provenance, **facts}


def _decisions(old: Plan, new: Plan, stale: bool) -> tuple[Decision, ...]:
    key_changes = changes(decided(old), decided(new))
    decisions = [
        Decision(change, _block_of(change.key), "" if stale else why_of(change.key, new.job.why))
        for change in key_changes
    ]
    order = ["job", *_BLOCKS.values()]
    return tuple(sorted(decisions, key=lambda decision: order.index(decision.block)))


def decided(plan: Plan) -> dict[str, Any]:
    """The decisions of a plan without their reasons, with the keys that its file leaves out."""
    return {key: value for key, value in whole(plan.job).items() if key != "why"}


def _block_of(key: str) -> str:
    return next((block for prefix, block in _BLOCKS.items() if key.startswith(prefix)), "job")


_DERIVED = ("max_num_seqs", "kv_tokens")
"""Keys that follow from the samples and the engines: the reason for their layout does not explain them."""


def why_of(key: str, why: Mapping[str, str]) -> str:
    """The reason that a plan gives for the decision `key`: that of `key`, else that of the nearest key above it; "" if
    there is none."""
    path = key.split(".")
    if path[-1] in _DERIVED:
        return why.get(key, "")
    for end in range(len(path), 0, -1):
        above = ".".join(path[:end])
        # The reason of `rounds` is only about the share of long rounds.
        if above in why and (above != "rounds" or key == "rounds.long"):
            return why[above]
    return ""


_WAITS: tuple[tuple[str, str, Unit], ...] = (
    ("mean_rounds", "long rounds that a prompt waits for", "ratio"),
    ("untrained", "prompts that long rounds lack", "share"),
)


def speedup(predicted: Predicted) -> float | None:
    """How many times faster than the plain synchronous plan, by seconds per sample; None if unknown."""
    return finite(predicted.speedup)


MEMORY_NAMES = {"kv": "KV memory free", "train": "training memory free", "host": "host memory free"}


def free_memory(predicted: Predicted) -> dict[str, float | None]:
    """Free shares of KV cache, training memory and host memory, each the minimum over the kinds of round; None where
    that of one of them is unknown."""
    free: dict[str, float | None] = {}
    for place in MEMORY_NAMES:
        known = [bar.headroom for at, _, bar in predicted.memory_bars if at == place]
        complete = len(known) == (1 if place == "host" else len(predicted.rounds.kinds))
        free[place] = finite(min(known)) if complete else None
    return free


def _quantity(
    key: str, label: str, unit: Unit, pair: tuple[float | None, float | None], errors: Errors | None, better: int
) -> Quantity:
    old, new = finite(pair[0]), finite(pair[1])
    if errors is None or old is None or new is None:
        return Quantity(key, label, unit, old, new, better=better)
    return Quantity(key, label, unit, old, new, errors.sigma(old, new), errors.ratio_sigma(old, new), better)


def _effects(old: Plan, new: Plan, errors: Errors, repriced: Repriced | None) -> tuple[Quantity, ...]:
    a, b = old.predicted, new.predicted
    free = free_memory(a), free_memory(b)

    # `better` stays 0 for a figure that is uncertain and has no stated error.

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
        *(_apart(old, new, errors, repriced) if repriced is not None else []),
        of("usd_per_1k_samples", "USD per 1000 samples", "usd", lambda p: p.usd_per_1k_samples, -1, True),
        of("speedup", "speed-up over plain rounds", "x", speedup),
        of("usd_per_hour", "USD per hour", "usd", lambda p: p.usd_per_hour, -1),
        of("nodes", "nodes", "count", lambda p: float(p.nodes), -1),
        of("length_ratio", "length ratio", "ratio", lambda p: p.length_ratio),
        Quantity("bias_budget", "bias budget", "share", old.job.bias.budget, new.job.bias.budget),
    ]
    if a.cut or b.cut:
        rows.append(of("cut.share", "trained samples cut at the cap", "share", lambda p: p.cut_share))
    if a.wait or b.wait:
        waits = [(None, None) if p.wait is None else (p.wait.mean_rounds, p.wait.untrained) for p in (a, b)]
        for (key, label, unit), *each in zip(_WAITS, *waits, strict=True):
            rows.append(Quantity(f"wait.{key}", label, unit, *each))
    for key, label in MEMORY_NAMES.items():
        rows.append(Quantity(f"memory.{key}", label, "share", free[0][key], free[1][key], better=1))
    rows.append(of("step_s.p50", "step, p50", "s", lambda p: p.step_s.p50))
    rows.append(of("step_s.p95", "step, p95", "s", lambda p: p.step_s.p95))
    rows.append(of("step_s.mean", "step, mean", "s", lambda p: p.step_s.mean, -1, True))
    return tuple(rows)


def _apart(old: Plan, new: Plan, errors: Errors, repriced: Repriced) -> Iterator[Quantity]:
    """What the inputs changed of the old decisions, and what the decisions changed on the new inputs."""
    paired, errors = errors_at_once(repriced.error, new.predicted.error), replace(errors, new=repriced.error)
    for key, name in (("seconds_per_sample", "seconds"), ("usd_per_1k_samples", "USD")):
        before, now, after = (getattr(each, key) for each in (old.predicted, repriced, new.predicted))
        unit: Unit = "s" if name == "seconds" else "usd"
        yield _quantity(f"by_inputs.{key}", f"· {name}, by the inputs", unit, (before, now), errors, 0)
        yield _quantity(f"by_decisions.{key}", f"· {name}, by the decisions", unit, (now, after), paired, -1)


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
    # A plan may have no rounds of a kind: its time is then "none" and not "unknown".
    quantities = [Quantity(key, label, "s", finite(a), finite(b), missing="none") for key, label, a, b in pairs]
    sides = old.rounds.long, new.rounds.long
    if any(side is not None for side in sides):
        # The share of long rounds in a plan without long rounds is 0, not unknown.
        shares = [0.0 if side is None else side.share for side in sides]
        quantities.append(Quantity("rounds.long.share", "· long rounds' share", "share", shares[0], shares[1]))
    return tuple(quantities)
