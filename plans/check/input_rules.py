"""Whether the files that a plan was solved from still exist and are unchanged. Reads these files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..facts.solver_read import UNREAD, read_digest
from ..schema.groups_plan import GroupsPlan
from ..schema.plan import InputFile, Plan
from ..yaml.errors import InputError
from ..yaml.input_files import is_file
from ..yaml.yaml_doc import Loc
from ..yaml.yaml_io import sha256_file
from .finding import Fault

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
