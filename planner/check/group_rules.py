"""All faults of a plan of groups, and of a workload. Reads their inputs."""

from __future__ import annotations

import os
from pathlib import Path

from ...plans.check.finding import Fault
from ...plans.check.groups_fit import against_cluster, against_workload, of_itself
from ...plans.check.input_rules import input_path, stale_inputs
from ...plans.check.policy_rules import group_breaches, unknown_pools
from ...plans.check.solved_rules import edited, other_version, predictions_edited, undated
from ...plans.schema.cluster import Cluster
from ...plans.schema.groups_plan import GroupsPlan
from ...plans.schema.workload import Workload
from ...plans.schema.workload import faults as way_faults
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_doc import Loc
from ..groups.inputs.capacity import shortages
from ..groups.inputs.workload_jobs import Problem, problem_of
from .accelerator_rules import unlike_names_at
from .check_options import Asked, opened
from .state_rules import against_jobs


def faults(plan: GroupsPlan, path: str, asked: Asked) -> tuple[list[Fault], str]:
    """(faults, a line on what was checked)."""
    found: list[Fault] = [*stale_inputs(plan, path), *edited(plan), *other_version(plan), *of_itself(plan)]
    found += predictions_edited(plan)
    found += undated(plan, asked.now)
    inputs = plan.inputs
    cluster = opened(input_path(inputs.cluster, path), inputs.cluster.path, Cluster, ("inputs", "cluster"), found)
    workload_path = input_path(inputs.workload, path)
    workload = opened(workload_path, inputs.workload.path, Workload, ("inputs", "workload"), found)
    if cluster is not None:
        found += against_cluster(plan, cluster)
        found += unlike_names_at(("inputs", "cluster"), cluster)
    if workload is not None:
        found += against_workload(plan, workload)
    if workload is not None and cluster is not None and not any(way_faults(workload, cluster)):
        try:
            found += against_jobs(plan, problem_of(workload, workload_path, cluster))
        except InputError as error:
            found += [_unsolvable(("inputs", "workload"), each) for each in error.each()]
    if asked.policy is not None:
        found += group_breaches(plan, asked.policy)
        found += unknown_pools(asked.policy, cluster, ("inputs", "cluster"))
    jobs = sum(len(group.jobs) for group in plan.groups.values())
    return found, f"plan of {jobs} jobs in {len(plan.groups)} group(s)"


def workload_faults(workload: Workload, path: str) -> list[Fault]:
    """What can be said of a workload before it is solved."""
    found: list[Fault] = []
    cluster_path = Path(path).parent / workload.cluster
    if not os.path.isfile(cluster_path):  # noqa: PTH113 (pathlib raises for what can be no path)
        what = f"no such file: '{workload.cluster}'"
        return [Fault("input-missing", ("cluster",), what, "paths are relative to this file")]
    cluster = opened(cluster_path, workload.cluster, Cluster, ("cluster",), found)
    if cluster is None:
        return found
    found += unlike_names_at(("cluster",), cluster)
    for loc, text in way_faults(workload, cluster):
        what, _, remedy = text.partition("; ")
        found.append(Fault("unknown-pool" if loc[-1] == "pool" else "does-not-fit-pool", loc, what, remedy))
    if found:
        return found
    try:
        problem = problem_of(workload, Path(path), cluster)
    except InputError as error:
        return [_unsolvable(("jobs",), each) for each in error.each()]
    return _too_large(problem)


def _too_large(problem: Problem) -> list[Fault]:
    return [
        Fault("workload-too-large", ("jobs",), str(short), "add nodes, give jobs other ways, or raise their slo")
        for short in shortages(problem.jobs, problem.node_types, problem.rules)
    ]


def _unsolvable(at: Loc, error: InputError) -> Fault:
    """The message begins with the workload's own key, if the fault is there and in no file behind it."""
    what, _, remedy = error.message.partition("; ")
    key, _, rest = what.partition(": ")
    if at == ("jobs",) and rest and key.startswith("jobs."):
        return Fault("workload-unsolvable", tuple(_part(part) for part in key.split(".")), rest, remedy)
    place = f"{Path(error.path).name}:{error.line}: " if error.path and error.line else ""
    return Fault("workload-unsolvable", at, f"{place}{what}", remedy)


def _part(text: str) -> str | int:
    return int(text) if text.isdigit() else text
