"""Whether a plan is as it was solved: edited since, by which version and when, and its input files unchanged.

Rules of the input files read these files; the others read none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from ... import __version__
from ..facts.digest import UNREAD, groups_decisions, groups_predictions, job_decisions, job_predictions, read_digest
from ..schema.groups_plan import GroupsPlan
from ..schema.plan import InputFile, Plan
from ..yaml.errors import InputError
from ..yaml.input_files import is_file
from ..yaml.yaml_doc import Loc
from ..yaml.yaml_io import sha256_file
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


# Which command writes a new input of this kind, for the remedy of a missing input.
_MAKERS: dict[str, str] = {
    "cluster": " from another (rlplan init --gpus 8x8xH100 --model NAME FOLDER writes one)",
    "job": " from another (rlplan init --gpus 8x8xH100 --model NAME FOLDER writes one)",
    "profile": " from another (rlplan profile JOB measures one; rlplan profile JOB --shipped MODEL needs no GPU)",
    "lengths": " from another (rlplan profile JOB measures one; rlplan solve JOB --trace FILE takes any)",
    "workload": "",
    "sources": " from another (rlplan solve writes plans, rlplan execute runs)",
}


def input_path(file: InputFile, plan_path: str | Path) -> Path:
    """Path of an input of the plan at `plan_path`."""
    return Path(plan_path).parent / file.path


def input_files(plan: Plan | GroupsPlan) -> list[tuple[Loc, InputFile]]:
    """The input files of a plan with their locations in the plan."""
    files: dict[Loc, InputFile]
    if isinstance(plan, Plan):
        job_inputs = plan.inputs
        files = {
            ("inputs", "cluster"): job_inputs.cluster,
            ("inputs", "job"): job_inputs.job,
            ("inputs", "profile"): job_inputs.profile,
        }
        # Lengths of a table that ships with rlplan have no file; planner/check checks that table.
        if job_inputs.lengths.file is not None:
            files["inputs", "lengths"] = job_inputs.lengths.file
    else:
        files = {("inputs", "workload"): plan.inputs.workload, ("inputs", "cluster"): plan.inputs.cluster}
        files |= {("inputs", "sources", name): file for name, file in plan.inputs.sources.items()}
    return list(files.items())


def stale_inputs(plan: Plan | GroupsPlan, plan_path: str | Path) -> Iterator[Fault]:
    """Faults of inputs that are missing, or that changed in a key that the solver reads. The running plan that a plan
    of groups was solved from (`inputs.previous`) is not needed any more and not checked."""
    return (change for change in _changes(plan, plan_path) if isinstance(change, Fault))


def unread_changes(plan: Plan | GroupsPlan, plan_path: str | Path) -> list[str]:
    """Paths, as written in the plan, of inputs that changed only where the solver does not read: a notice, no fault."""
    return [change for change in _changes(plan, plan_path) if isinstance(change, str)]


UNREAD_TEXT = (
    "has changed since the plan was solved, but not in anything that the solver reads; the plan is still valid"
)
"""The notice on such an input; the path stands before it."""


def _changes(plan: Plan | GroupsPlan, plan_path: str | Path) -> Iterator[Fault | str]:
    """A Fault for each input that is missing or changed; only the path if the solver reads nothing of the change."""
    for location, file in input_files(plan):
        path = input_path(file, plan_path)
        if not is_file(path):
            yield Fault(
                "input-missing",
                (*location, "path"),
                f"no such file: '{file.path}'",
                f"paths are relative to the plan; put the file back, or solve again{_MAKERS[str(location[1])]}",
            )
            continue
        try:
            actual = sha256_file(path)
        except InputError as error:
            yield Fault(
                "input-unreadable", location, f"'{file.path}' {error.message}", "make it readable or solve again"
            )
            continue
        if actual == file.sha256:
            continue
        if _same_for_solver(plan, str(location[-1]), path):
            yield file.path
            continue
        yield Fault(
            "input-changed",
            location,
            f"'{file.path}' has changed since the plan was solved (sha256 {actual[:12]}…, the plan "
            f"has {file.sha256[:12]}…)",
            "run `rlplan solve` again or restore the file",
        )


def _same_for_solver(plan: Plan | GroupsPlan, name: str, path: Path) -> bool:
    """Whether all keys of the file that the solver read are unchanged."""
    solver_read = plan.inputs.solver_read if isinstance(plan, Plan) else None
    kind = next((kind for kind in UNREAD if kind == name), None)
    if solver_read is None or kind is None:
        return False
    try:
        return read_digest(kind, path) == str(getattr(solver_read, kind))
    except InputError:
        return False  # the file is no valid document any more; the rules that open it report that
