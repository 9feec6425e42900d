"""Whether the files that a plan was solved from are there, and are still the same. Reads these files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..facts.solver_read import UNREAD, read_digest
from ..schema.groups_plan import GroupsPlan
from ..schema.plan import Plan
from ..schema.sections.origin import InputFile
from ..yaml.errors import InputError
from ..yaml.yaml_doc import Loc
from ..yaml.yaml_io import sha256_file
from .finding import Fault

# How to get an input that is not there, where a command makes one.
_MAKERS: dict[str, str] = {
    "cluster": " from another (rlplan init --gpus 8x8xH100 --model NAME FOLDER writes one)",
    "job": " from another (rlplan init --gpus 8x8xH100 --model NAME FOLDER writes one)",
    "profile": " from another (rlplan profile JOB measures one; rlplan profile JOB --shipped MODEL needs no GPU)",
    "lengths": " from another (rlplan profile JOB measures one; rlplan solve JOB --trace FILE takes any)",
    "workload": "",
    "sources": " from another (rlplan solve writes plans, rlplan execute runs)",
}


def input_path(file: InputFile, plan_path: str | Path) -> Path:
    """Where an input of the plan at `plan_path` is."""
    return Path(plan_path).parent / file.path


def input_files(plan: Plan | GroupsPlan) -> list[tuple[Loc, InputFile]]:
    """The input files of a plan with their places in it."""
    if isinstance(plan, Plan):
        of_job = plan.inputs
        lengths = of_job.lengths.file
        named: list[tuple[Loc, InputFile]] = [
            (("inputs", "cluster"), of_job.cluster),
            (("inputs", "job"), of_job.job),
            (("inputs", "profile"), of_job.profile),
        ]
        # A table that ships is no file of the plan's: planner/checks looks whether it is still the same.
        return named + ([(("inputs", "lengths"), lengths)] if lengths is not None else [])
    of_groups = plan.inputs
    found: list[tuple[Loc, InputFile]] = [
        (("inputs", "workload"), of_groups.workload),
        (("inputs", "cluster"), of_groups.cluster),
    ]
    found += [(("inputs", "sources", name), file) for name, file in of_groups.sources.items()]
    return found


def stale_inputs(plan: Plan | GroupsPlan, plan_path: str | Path) -> Iterator[Fault]:
    """Inputs that are missing, or of which something changed that the solver reads; the running plan that a plan of
    groups began from is no more needed."""
    return (found for found in _looked_at(plan, plan_path) if isinstance(found, Fault))


def unread_changes(plan: Plan | GroupsPlan, plan_path: str | Path) -> list[str]:
    """Paths, as the plan has them, of inputs that have changed in nothing that the solver reads: no fault, a notice."""
    return [found for found in _looked_at(plan, plan_path) if isinstance(found, str)]


UNREAD_TEXT = "has changed since the plan was solved, in nothing that the solver reads; the plan holds"
"""What is said of such an input, behind its path."""


def _looked_at(plan: Plan | GroupsPlan, plan_path: str | Path) -> Iterator[Fault | str]:
    for loc, file in input_files(plan):
        path = input_path(file, plan_path)
        if not os.path.isfile(path):  # noqa: PTH113 (a path from a document may be one that pathlib raises for)
            yield Fault(
                "input-missing",
                (*loc, "path"),
                f"no such file: '{file.path}'",
                f"paths are relative to the plan; put the file back, or solve again{_MAKERS[str(loc[1])]}",
            )
            continue
        try:
            actual = sha256_file(path)
        except InputError as error:
            yield Fault("input-unreadable", loc, f"'{file.path}' {error.message}", "make it readable or solve again")
            continue
        if actual == file.sha256:
            continue
        if _reads_alike(plan, str(loc[-1]), path):
            yield file.path
            continue
        yield Fault(
            "input-changed",
            loc,
            f"'{file.path}' has changed since the plan was solved (sha256 {actual[:12]}…, the plan "
            f"has {file.sha256[:12]}…)",
            "run `rlplan solve` again or restore the file",
        )


def _reads_alike(plan: Plan | GroupsPlan, name: str, path: Path) -> bool:
    """Whether the file still has all that the solver read of it."""
    known = plan.inputs.solver_read if isinstance(plan, Plan) else None
    kind = next((kind for kind in UNREAD if kind == name), None)
    if known is None or kind is None:
        return False
    try:
        return read_digest(kind, path) == str(getattr(known, kind))
    except InputError:
        return False  # it is no document of its kind any more, which those who read it report
