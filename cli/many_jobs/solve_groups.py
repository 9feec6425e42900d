"""`rlplan solve WORKLOAD`: co-execution groups for many jobs."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ...plans.phrases.numbers import count

if TYPE_CHECKING:
    from ...planner.groups.inputs.workload_jobs import Problem
    from ...plans.schema.groups_plan import GroupsPlan
    from ...plans.schema.workload import Objective


def solve_groups_command(
    path: Path,
    out: Path | None,
    previous_path: Path | None,
    moving: bool,
    as_json: bool,
    objective: Objective | None = None,
    force: bool = False,
) -> int:
    """Solve the workload at `path` and write the plan of groups.

    `objective` replaces that of the workload's rules; `force` allows `out` to be a file that rlplan did not write.
    """
    from ...api.input_paths import accelerators_must_be_known, check_target
    from ...api.plan_points import LEAST_GAIN, plan_near_alone, plan_neighbours
    from ...planner.groups.inputs.running_plan import solved_from
    from ...planner.groups.inputs.workload_jobs import problem_of
    from ...planner.groups.solve_workload import solve_workload
    from ...plans.schema.groups_plan import load_groups_plan
    from ...plans.schema.workload import load_workload
    from ...plans.yaml.editor_schemas import write_document
    from ...plans.yaml.yaml_io import WRITTEN_DIGITS
    from ..shared.paths import check_stdout, tell
    from ..shared.progress import steps
    from .groups_summary import summary

    out = out or path.with_name("groups.yaml")
    workload, cluster = load_workload(path)
    accelerators_must_be_known(cluster, path.parent / workload.cluster)
    if objective is not None:
        workload = workload.model_copy(update={"rules": workload.rules.model_copy(update={"objective": objective})})
    check_stdout(out, "--out", as_json)
    with steps("planning jobs") as notify:
        plan_near_alone(path, workload, cluster, notify)
    problem = problem_of(workload, path, cluster)
    previous = None if previous_path is None else (load_groups_plan(previous_path), previous_path)
    files = [path, path.parent / workload.cluster, *problem.read.values(), *([previous_path] if previous_path else [])]
    check_target(out, *files, kind="plan", force=force)
    with steps("solving") as notify:

        def solved(problem: Problem) -> GroupsPlan:
            inputs = solved_from(path, workload, problem, previous_path, out)
            return solve_workload(workload, problem, inputs, previous, moving, notify)

        plan = solved(problem)
        while plan_neighbours(path, workload, cluster, plan, notify):
            wider = solved(problem_of(workload, path, cluster))
            if wider.predicted.plan.usd_per_hour >= plan.predicted.plan.usd_per_hour * (1 - LEAST_GAIN):
                break
            plan = wider
    write_document(plan, out, WRITTEN_DIGITS)
    for name, member in sorted(item for group in plan.groups.values() for item in group.jobs.items()):
        if not member.slowdown.keeps:
            warnings.warn(f"{name} does not keep its bound of {member.slowdown.slo:g}x where it runs", stacklevel=1)
    tell(json.dumps(summary(plan, out)) if as_json else _text(plan, out), out)
    return 0


def _text(plan: GroupsPlan, out: Path) -> str:
    from ...plans.phrases.solver_status import groups_status
    from ..screens.groups_screen import costs_text, groups_text, moves_text
    from ..shared.paths import see_it

    head = (
        f"{sum(len(group.jobs) for group in plan.groups.values())} jobs in "
        f"{count(len(plan.groups), 'group')} -> {out}\n"
        f"{groups_status(plan)} ({plan.solver.name})"
    )
    return "\n".join([head, costs_text(plan), *groups_text(plan), *moves_text(plan), *see_it(out)])
