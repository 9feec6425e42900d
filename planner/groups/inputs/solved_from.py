"""The files that a plan of groups is solved from, with their digests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ....plans.schema.groups_plan import GroupsInputs, MeasuredPhases
from ....plans.schema.plan import InputFile
from ....plans.schema.workload import Workload
from ....plans.yaml.yaml_io import sha256_file
from .workload_jobs import Problem


def solved_from(
    path: Path,
    workload: Workload,
    problem: Problem,
    previous: Path | None,
    out: Path,
    measured: Mapping[str, MeasuredPhases] | None = None,
) -> GroupsInputs:
    """Return the inputs of a plan that is written to `out`.

    Args:
        path: of the workload.
        problem: that the workload states.
        previous: the running plan; None: there is none.
        measured: by job, seconds that stand in for those of the workload.

    Raises InputError for a file that cannot be read.
    """

    def named(file: Path) -> InputFile:
        relative = os.path.relpath(file.resolve(), out.resolve().parent)
        return InputFile(path=Path(relative).as_posix(), sha256=sha256_file(file))

    return GroupsInputs(
        workload=named(path),
        cluster=named(path.parent / workload.cluster),
        sources={name: named(file) for name, file in sorted(problem.read.items())},
        previous=named(previous) if previous else None,
        measured=dict(sorted((measured or {}).items())),
    )
