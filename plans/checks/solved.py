"""Whether a plan's decisions are those that were solved, and by which version of rlplan."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ... import __version__
from ..digest import groups_decisions, job_decisions
from ..groups_plan import GroupsPlan
from ..plan import Plan
from .finding import Fault


def decisions_of(plan: Plan | GroupsPlan) -> str:
    """Digest of the decisions as they stand in the plan."""
    return job_decisions(plan.job) if isinstance(plan, Plan) else groups_decisions(plan.groups)


def edited(plan: Plan | GroupsPlan) -> Iterator[Fault]:
    """Decisions that differ from those that were solved."""
    if decisions_of(plan) != plan.decisions_sha256:
        yield Fault(
            "decisions-edited",
            ("decisions_sha256",),
            "the decisions were edited after they were solved, so that what is predicted is not of them",
            "solve again, or say allow_edited: true in a policy",
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


def _version(text: str) -> tuple[tuple[int, str], ...]:
    """Major, minor and patch in a form that compares as the numbers do, however many digits they have."""
    found = re.match(r"([0-9]+)\.([0-9]+)\.([0-9]+)", text)
    assert found is not None, "volatile.rlplan has this form"
    return tuple((len(digits), digits) for digits in (part.lstrip("0") for part in found.groups()))
