"""Which pools a job's engines and trainers are on."""

from __future__ import annotations

from typing import NamedTuple

from ....plans.check.plan_fit import pool_faults
from ....plans.schema.cluster import Cluster
from ....plans.schema.job import Job
from ....plans.schema.planned_job import PlannedJob
from ....plans.yaml.errors import Infeasible
from ....plans.yaml.yaml_doc import Loc
from ....profiles.fitness import differences, machine_of, other_accelerator
from ....profiles.profile_schema import Profile
from ...costs.job_pools import JobPools, job_pools
from .job_limits import Unplannable

LOCATION: Loc = ("placement", "train_pool")
"""Of the job's key."""


class ChosenPools(NamedTuple):
    """Names of the pools of engines and of trainers (None: the engines'), and what they are."""

    rollout: str
    train: str | None
    pools: JobPools


def choose_pools(
    cluster: Cluster, job: Job, profile: Profile, planned: PlannedJob | None = None, pool: str | None = None
) -> ChosenPools:
    """The pools of a job, or of the plan `planned` of it.

    Trainers are on the pool that the job names for them, else on that of the engines. Engines are on `pool`, or, if it
    is None, on the first of `engine_pools`. Raises Unplannable for a pool that trainers cannot have, and Infeasible
    where engines have none.
    """
    if planned is not None:
        pool = planned.rounds.short.rollout.pool
    train, names = _trainers_pool(cluster, job, profile, planned), engine_pools(cluster, job, profile, planned)
    chosen = pool if pool in cluster.pools else names[0]
    return ChosenPools(chosen, train, job_pools(cluster, chosen, train))


def engine_pools(cluster: Cluster, job: Job, profile: Profile, planned: PlannedJob | None = None) -> list[str]:
    """Pools that the profile prices engines on, by name: those like the profiled machine, else the first whose
    accelerators are of its kind. Raises as `choose_pools` does."""
    train, kind = _trainers_pool(cluster, job, profile, planned), profile.machine.kind
    names = [name for name, each in sorted(cluster.pools.items()) if each.accelerators.kind == kind and name != train]
    alike = [name for name in names if not differences(profile, machine_of(cluster.pools[name]))]
    if not names:
        raise Infeasible(
            f"the profile was measured on {kind} accelerators and cluster '{cluster.name}' has no pool of that kind; "
            "add one or profile on this cluster"
        )
    return alike or names[:1]


def _trainers_pool(cluster: Cluster, job: Job, profile: Profile, planned: PlannedJob | None) -> str | None:
    """The pool that trainers have to themselves. Raises Unplannable for one that they cannot have."""
    named = job.placement if planned is None else planned.placement
    train = None if named is None else named.train_pool
    fault = None if train is None else placement_fault(cluster, train, profile)
    if fault is not None:
        _, message, remedy = fault
        raise Unplannable("job", LOCATION, f"{message}; {remedy}")
    return train


def placement_fault(cluster: Cluster, train: str, profile: Profile | None) -> tuple[str, str, str] | None:
    """(rule, message, remedy) of pool `train` as one that trainers have to themselves: the cluster lacks it, engines
    have no other of its kind, or the profile (None: unknown) does not price it. None if they may have it."""
    unknown = next(pool_faults(cluster, train, ""), None)
    if unknown is not None:
        return unknown
    others, kind = (
        [pool for name, pool in cluster.pools.items() if name != train],
        cluster.pools[train].accelerators.kind,
    )
    if not others:
        message = f"is {train}, the only pool of cluster '{cluster.name}', and engines need another"
        return "same-pool", message, "add a pool, or remove placement: they then take turns"
    if not any(pool.accelerators.kind == kind for pool in others):
        message = f"pool '{train}' is of kind {kind}, and no other pool of cluster '{cluster.name}' is"
        return "pools-of-two-kinds", message, "name one of two pools of the same kind"
    unlike = None if profile is None else other_accelerator(profile, cluster.pools[train], train)
    if unlike is None:
        return None
    message, _, remedy = unlike.partition("; ")
    return "profile-of-other-machine", message, remedy
