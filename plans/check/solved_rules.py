"""Whether a plan's decisions and predictions are those that were solved, by which version of rlplan, and when."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from ... import __version__
from ..facts.digest import groups_decisions, groups_predictions, job_decisions, job_predictions
from ..schema.groups_plan import GroupsPlan
from ..schema.plan import Plan
from .finding import Fault


def decisions_of(plan: Plan | GroupsPlan) -> str:
    """Digest of the decisions as they stand in the plan."""
    return job_decisions(plan.job) if isinstance(plan, Plan) else groups_decisions(plan.groups)


def predictions_of(plan: Plan | GroupsPlan) -> str:
    """Digest of the predictions as they stand in the plan."""
    if isinstance(plan, Plan):
        return job_predictions(plan.predicted)
    return groups_predictions(plan.predicted, plan.groups)


def edited(plan: Plan | GroupsPlan) -> Iterator[Fault]:
    """Decisions that differ from those that were solved."""
    if decisions_of(plan) != plan.decisions_sha256:
        again = "run rlplan refresh, or solve again" if isinstance(plan, Plan) else "solve again"
        yield Fault(
            "decisions-edited",
            ("decisions_sha256",),
            "the decisions were edited after they were solved, so that what is predicted is not of them",
            f"{again}, or say allow_edited: true in a policy",
        )


def predictions_edited(plan: Plan | GroupsPlan) -> Iterator[Fault]:
    """Figures of `predicted` that are not those that were solved, or of which nothing tells whether they are."""
    if plan.predicted_sha256 is None:
        what = "the plan has no digest of its predictions, so that nothing tells whether they were edited"
        yield Fault("predictions-edited", ("predicted",), what, "solve again")
    elif predictions_of(plan) != plan.predicted_sha256:
        what = "the figures under 'predicted' were edited after they were solved"
        yield Fault(
            "predictions-edited",
            ("predicted_sha256",),
            what,
            "restore them, or solve again: no command keeps edited figures",
        )


def other_version(plan: Plan | GroupsPlan, installed: str = __version__) -> Iterator[Fault]:
    """A plan of another major or minor version than the one installed, or of a newer one."""
    wrote = plan.volatile.rlplan
    then, now = _version(wrote), _version(installed)
    if then[:2] == now[:2] and then <= now:
        return
    newer = then > now
    yield Fault(
        "other-version",
        ("volatile", "rlplan"),
        f"was solved by rlplan {wrote}, {'newer' if newer else 'older'} than the {installed} that is installed",
        f"{'install that version' if newer else 'solve again'}, or say allow_other_versions: true in a policy",
    )


CLOCKS_DAYS = 1.0
"""By how much the clocks of two machines, or a date without its zone, may differ."""


def days_since(written: str, now: datetime) -> float | None:
    """Days from an ISO 8601 time (UTC where it names no zone) to `now`, negative of one to come; None if unreadable."""
    try:
        then = datetime.fromisoformat(written)
        return (now - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds() / 86400
    except (ValueError, OverflowError):
        return None


def undated(plan: Plan | GroupsPlan, now: datetime) -> Iterator[Fault]:
    """A plan whose time of solving is no time, or is still to come."""
    days, written = days_since(plan.volatile.solved_at, now), plan.volatile.solved_at[:40]
    if days is None:
        what = f"'{written}' is no ISO 8601 time"
    elif days < -CLOCKS_DAYS:
        what = f"'{written}' is still to come"
    else:
        return
    yield Fault("solved-at-unlikely", ("volatile", "solved_at"), what, "solve again, or set the clock of this machine")


def _version(text: str) -> tuple[tuple[int, str], ...]:
    """Major, minor and patch in a form that compares as the numbers do, however many digits they have."""
    found = re.match(r"([0-9]+)\.([0-9]+)\.([0-9]+)", text)
    assert found is not None, "volatile.rlplan has this form"
    return tuple((len(digits), digits) for digits in (part.lstrip("0") for part in found.groups()))
