"""What drafts gave in a run, as the profile has it: tokens by place, epoch and batch, and seconds beyond theirs."""

from __future__ import annotations

from ...plans.yaml.errors import InputError
from ...profiles.draft_schema import DraftRates, ProfiledDrafts
from ...profiles.laws.draft_counts import DraftCounts, fit_drafts, summed
from ...profiles.profile_schema import Profile
from ..costs.decode_costs import DecodeCost, layout_cost
from .executed_run import ExecutedRun


def with_drafts_of(run: ExecutedRun, profile: Profile) -> Profile:
    """The profile with what the run's drafts gave, the first epoch apart from later ones; as it is where the run had
    none, or none in an epoch that has steps enough. Raises InputError for an event that is damaged."""
    counts: dict[bool, list[DraftCounts]] = {True: [], False: []}
    steps_of: dict[str, int] = {}
    try:
        for step in run.steps:
            if step.drafts is not None:
                counts[step.first_epoch].append(DraftCounts.of_event(step.drafts))
                steps_of[step.kind] = steps_of.get(step.kind, 0) + counts[step.first_epoch][-1].sequence_steps
    except ValueError as error:
        raise InputError(str(error), str(run.home)) from error
    if not steps_of:
        return profile
    # Steps of the kind of round that drafted most tell which engines drafted.
    rounds, kind = run.plan.job.rounds, max(steps_of, key=lambda each: (steps_of[each], each))
    engines = rounds.long if kind == "long" and rounds.long is not None else rounds.short
    cost = layout_cost(profile, engines.rollout.layout)
    if cost is None:
        return profile
    fitted = fit_drafts(summed(counts[True]), summed(counts[False]), lambda batch: _step_s(cost, batch), None)
    return profile if fitted is None else profile.model_copy(update={"drafts": _kept(fitted, profile.drafts)})


def _step_s(cost: DecodeCost, sequences: float) -> float:
    low = int(sequences)
    low_s, high_s = [cost.device_s(batch) + cost.host_s(batch) for batch in (low, low + 1)]
    return low_s + (sequences - low) * (high_s - low_s)


def _kept(fitted: ProfiledDrafts, old: ProfiledDrafts | None) -> ProfiledDrafts:
    """What the run says, with what it does not say as the profile had it: an epoch without rounds, and places beyond
    the plan's drafts, which move as the last place that was run."""
    if old is None:
        return fitted
    later = old.later if fitted.later is None else _longer(fitted.later, old.later or old.first)
    first = _longer(fitted.first, old.first)
    if fitted.first is fitted.later or fitted.first == fitted.later:  # the run had no first epoch
        first = old.first
    places = min(len(first.drafted), len(later.drafted)) if later else len(first.drafted)
    return fitted.model_copy(update={"first": _cut(first, places), "later": later and _cut(later, places)})


def _cut(rates: DraftRates, places: int) -> DraftRates:
    return rates.model_copy(update={"drafted": rates.drafted[:places], "accepted": rates.accepted[:places]})


def _longer(run: DraftRates, old: DraftRates) -> DraftRates:
    """Rates of a run whose plan drafts fewer tokens than the profile tells of: beyond them the profile's, times what
    the last of them changed by."""
    places = len(run.drafted)
    if len(old.drafted) <= places:
        return run
    drafted, accepted = (
        tuple(value * (ran[-1] / before[places - 1] if before[places - 1] else 1.0) for value in before[places:])
        for ran, before in ((run.drafted, old.drafted), (run.accepted, old.accepted))
    )
    drafted = tuple(min(value, run.drafted[-1]) for value in drafted)
    accepted = tuple(min(pair) for pair in zip(drafted, accepted, strict=True))
    return run.model_copy(update={"drafted": run.drafted + drafted, "accepted": run.accepted + accepted})
