"""Whether a plan was edited after it was solved, which version of rlplan solved it, and when."""

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
    """Digest of the decisions that the plan has now."""
    return job_decisions(plan.job) if isinstance(plan, Plan) else groups_decisions(plan.groups)


def predictions_of(plan: Plan | GroupsPlan) -> str:
    """Digest of the predictions that the plan has now."""
    if isinstance(plan, Plan):
        return job_predictions(plan.predicted)
    return groups_predictions(plan.predicted, plan.groups)


def has_edited_decisions(plan: Plan | GroupsPlan) -> bool:
    """Whether a plan's decisions were edited after it was solved."""
    return decisions_of(plan) != plan.decisions_sha256


def has_edited_predictions(plan: Plan | GroupsPlan) -> bool:
    """Whether a plan's predictions were edited after it was solved; false if it has no digest of them."""
    return plan.predicted_sha256 is not None and predictions_of(plan) != plan.predicted_sha256


def decisions_edited(plan: Plan | GroupsPlan) -> Iterator[Fault]:
    """The fault of decisions that differ from the solved decisions."""
    if has_edited_decisions(plan):
        again = "run rlplan refresh, or solve again" if isinstance(plan, Plan) else "solve again"
        yield Fault(
            "decisions-edited",
            ("decisions_sha256",),
            "the decisions were edited after they were solved, so the predictions are not of these decisions",
            f"{again}, or say allow_edited: true in a policy",
        )


def predictions_edited(plan: Plan | GroupsPlan) -> Iterator[Fault]:
    """The fault of figures in `predicted` that differ from the solved figures, or that have no digest."""
    if plan.predicted_sha256 is None:
        message = "the plan has no digest of its predictions, so an edit of them cannot be detected"
        yield Fault("predictions-edited", ("predicted",), message, "solve again")
    elif has_edited_predictions(plan):
        message = "the predictions were edited by hand"
        yield Fault(
            "predictions-edited",
            ("predicted_sha256",),
            message,
            "restore them, or solve again",
        )


def other_version(plan: Plan | GroupsPlan, installed: str = __version__) -> Iterator[Fault]:
    """The fault of a plan from another major or minor version than the installed version, or from a newer version."""
    solved_by = plan.volatile.rlplan
    solved, current = _version(solved_by), _version(installed)
    if solved[:2] == current[:2] and solved <= current:
        return
    newer = solved > current
    yield Fault(
        "other-version",
        ("volatile", "rlplan"),
        f"was solved by rlplan {solved_by}, {'newer' if newer else 'older'} than the {installed} that is installed",
        f"{'install that version' if newer else 'solve again'}, or say allow_other_versions: true in a policy",
    )


CLOCKS_DAYS = 1.0
"""Days that a time may be in the future: clocks differ between machines, and a date may lack its time zone."""


def days_since(written: str, now: datetime) -> float | None:
    """Days from an ISO 8601 time (UTC without a zone) to `now`, negative for a future time; None if unreadable."""
    try:
        then = datetime.fromisoformat(written)
        return (now - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds() / 86400
    except (ValueError, OverflowError):
        return None


def solved_at_unlikely(plan: Plan | GroupsPlan, now: datetime) -> Iterator[Fault]:
    """The fault of a plan whose `solved_at` is not a time, or is in the future."""
    days, written = days_since(plan.volatile.solved_at, now), plan.volatile.solved_at[:40]
    if days is None:
        message = f"'{written}' is not an ISO 8601 time"
    elif days < -CLOCKS_DAYS:
        message = f"'{written}' is in the future"
    else:
        return
    yield Fault(
        "solved-at-unlikely", ("volatile", "solved_at"), message, "solve again, or set the clock of this machine"
    )


def _version(text: str) -> tuple[tuple[int, str], ...]:
    """(digits, number) of major, minor and patch; such tuples compare like the versions, without int() of the text."""
    match = re.match(r"([0-9]+)\.([0-9]+)\.([0-9]+)", text)
    assert match is not None, "volatile.rlplan has this form"
    return tuple((len(digits), digits) for digits in (part.lstrip("0") for part in match.groups()))
