"""Whether the machines that a job's plan or run speaks of are those of its reference in a workload.

Seconds of one accelerator, or of one number of nodes, say nothing of another, so they are not carried over: what the
plan was solved for has to be the reference of both phases, and where else they can run is written as ways with factors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ....plans.check.plan_check import input_path
from ....plans.schema.cluster import Accelerators, Cluster, Pool, load_cluster
from ....plans.schema.plan import Plan
from ....plans.schema.workload import Phases
from ....plans.yaml.errors import InputError
from ....plans.yaml.yaml_doc import Loc
from ....profiles.hardware import gpu_of


def other_machines(
    plan: Plan, plan_path: Path, source: str, phases: Phases, cluster: Cluster
) -> Iterator[tuple[Loc, str]]:
    """Where a reference is on other machines than the plan: (location within the job, what is wrong and what to write).

    Accelerators are compared as the plan's cluster file names them. Where that file is gone, or no longer has the
    plan's pool, the pools' names have to be the same.

    Args:
        source: how the workload names the plan or the run.
        cluster: the workload's.
    """
    name = plan.job.rounds.short.rollout.pool
    solved = _pool_of(plan, plan_path, name)
    for key, phase in (("rollout", phases.rollout), ("train", phases.train)):
        pool = cluster.pools[phase.pool]
        alike = phase.pool == name if solved is None else _alike(solved.accelerators, pool.accelerators)
        if not alike:
            there = f"pool '{name}'" + ("" if solved is None else f" ({_words(solved.accelerators)})")
            yield (
                ("phases", key, "pool"),
                f"the seconds of '{source}' are of {there}, not of pool '{phase.pool}' ({_words(pool.accelerators)}); "
                "make a pool like that one the reference and write this one under ways with its factor, or remove the "
                "source and write the seconds here",
            )
            continue
        right = _nodes(plan, key, pool)
        if phase.nodes not in right:
            yield (
                ("phases", key, "nodes"),
                f"the seconds of '{source}' are of {plan.predicted.nodes} node(s), not of {phase.nodes}; write nodes: "
                f"{' or '.join(map(str, sorted(right)))} and other widths under ways with their factor, or solve the "
                f"job for {phase.nodes} node(s)",
            )


def _pool_of(plan: Plan, plan_path: Path, name: str) -> Pool | None:
    """The pool that the plan was solved for; None: nothing says any more what it was."""
    path = input_path(plan.inputs.cluster, plan_path)
    if not path.is_file():
        return None
    try:
        return load_cluster(path).pools.get(name)
    except InputError:
        # `check` of the plan reports it; here it is only of no help.
        return None


def _alike(there: Accelerators, here: Accelerators) -> bool:
    """Whether a node has as many of the same accelerators."""
    if (there.kind, there.per_node) != (here.kind, here.per_node):
        return False
    known = gpu_of(there.name)
    return there.name == here.name or (there.kind == "cuda" and known is not None and known == gpu_of(here.name))


def _nodes(plan: Plan, key: str, pool: Pool) -> set[int]:
    """Nodes that the phase may be said to take: all of the plan's, or those that its own widest kind of round fills."""
    rounds = [kind for kind in (plan.job.rounds.short, plan.job.rounds.long) if kind is not None]
    if key == "rollout":
        own = max(pool.nodes_of(kind.rollout.engines, kind.rollout.tp) for kind in rounds)
    else:
        own = max(pool.nodes_of(1, kind.train.accelerators) for kind in rounds)
    return {own, plan.predicted.nodes}


def _words(accelerators: Accelerators) -> str:
    return f"{accelerators.per_node} x {accelerators.name} a node"
