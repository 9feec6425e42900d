"""Whether a job's plan or run (its source) is for the same machines as the job's reference in a workload.

Seconds on one accelerator, or on one number of nodes, say nothing of another, so they are not carried over: the
machines that the plan was solved for must be the reference of both phases, and other machines are written as ways with
factors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ....plans.check.plan_check import input_path
from ....plans.phrases.numbers import count
from ....plans.schema.cluster import Accelerators, Cluster, Pool, load_cluster
from ....plans.schema.plan import Plan
from ....plans.schema.workload import Phases
from ....plans.yaml.errors import InputError
from ....plans.yaml.yaml_doc import Loc
from ....profiles.hardware import gpu_of


def other_machines(
    plan: Plan, plan_path: Path, source: str, phases: Phases, cluster: Cluster
) -> Iterator[tuple[Loc, str]]:
    """Faults where a reference is on other machines than the plan: (location within the job, fault and remedy).

    Accelerators are compared as the plan's cluster file names them. Where that file is gone, or no longer has the
    plan's pool, the pools' names have to be the same.

    Args:
        source: how the workload names the plan or the run.
        cluster: the workload's.
    """
    engines, placement = plan.job.rounds.short.rollout.pool, plan.job.placement
    trainers = engines if placement is None else placement.train_pool
    for key, phase, name in (("rollout", phases.rollout, engines), ("train", phases.train, trainers)):
        solved = _pool_of(plan, plan_path, name)
        pool = cluster.pools[phase.pool]
        alike = phase.pool == name if solved is None else _alike(solved.accelerators, pool.accelerators)
        if not alike:
            there = f"pool '{name}'" + ("" if solved is None else f" ({_text(solved.accelerators)})")
            yield (
                ("phases", key, "pool"),
                f"the seconds of '{source}' are of {there}, not of pool '{phase.pool}' ({_text(pool.accelerators)}); "
                "make a pool like that one the reference and write this one under ways with its factor, or remove the "
                "source and write the seconds here",
            )
            continue
        right = _nodes(plan, key, pool)
        if phase.nodes not in right:
            yield (
                ("phases", key, "nodes"),
                f"the seconds of '{source}' are of {count(max(right), 'node')}, not of {phase.nodes}; write "
                f"nodes: {' or '.join(map(str, sorted(right)))} and other widths under ways with their factor, or "
                f"solve the job for {count(phase.nodes, 'node')}",
            )


def _pool_of(plan: Plan, plan_path: Path, name: str) -> Pool | None:
    """The pool that the plan was solved for; None: its cluster file is gone or no longer has the pool."""
    path = input_path(plan.inputs.cluster, plan_path)
    if not path.is_file():
        return None
    try:
        return load_cluster(path).pools.get(name)
    except InputError:
        # `check` of the plan reports the error.
        return None


def _alike(there: Accelerators, here: Accelerators) -> bool:
    """Whether a node has as many of the same accelerators."""
    if (there.kind, there.per_node) != (here.kind, here.per_node):
        return False
    gpu = gpu_of(there.name)
    return there.name == here.name or (there.kind == "cuda" and gpu is not None and gpu == gpu_of(here.name))


def _nodes(plan: Plan, key: str, pool: Pool) -> set[int]:
    """Nodes that the phase may be written with: all nodes of the plan in its pool, or those that its widest round kind
    fills."""
    of_trainers = plan.predicted.train_nodes or 0
    taken = of_trainers if key == "train" and of_trainers else plan.predicted.nodes - of_trainers
    rounds = [r for r in (plan.job.rounds.short, plan.job.rounds.long) if r is not None]
    if key == "rollout":
        needed_nodes = max(pool.nodes_of(r.rollout.engines, r.rollout.tp) for r in rounds)
    else:
        needed_nodes = max(pool.nodes_of(1, r.train.accelerators) for r in rounds)
    return {needed_nodes, taken}


def _text(accelerators: Accelerators) -> str:
    return f"{accelerators.per_node} x {accelerators.name} a node"
