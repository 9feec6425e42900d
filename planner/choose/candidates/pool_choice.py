"""Which pools a job's engines and trainers are on."""

from __future__ import annotations

from typing import NamedTuple

from ....plans.check.plan_fit import pool_faults
from ....plans.schema.cluster import Cluster
from ....plans.schema.job import Job
from ....plans.schema.sections.planned_job import PlannedJob
from ....plans.yaml.errors import Infeasible
from ....plans.yaml.yaml_doc import Loc
from ....profiles.fitness import differences, machine_of, other_accelerator
from ....profiles.profile_schema import Profile
from ...costs.job_pools import JobPools, job_pools
from .job_limits import Unplannable

LOCATION: Loc = ("placement", "train_pool")

Fault = tuple[str, str, str]
"""Rule, message and remedy."""


class ChosenPools(NamedTuple):
    """Names of the pools of engines and of trainers (None: the engines'), and what they are."""

    rollout: str
    train: str | None
    pools: JobPools


def choose_pools(cluster: Cluster, job: Job, profile: Profile, planned: PlannedJob | None = None) -> ChosenPools:
    """The pools of a job, or of the plan `planned` of it.

    Trainers are on the pool that the job names for them, else on that of the engines. Engines are on the first other
    pool by name that is like the profiled machine, else on the first whose accelerators are of its kind. Raises
    Unplannable for a pool that trainers cannot have, and Infeasible where engines have none.
    """
    named = job.placement if planned is None else planned.placement
    train, kind = None if named is None else named.train_pool, profile.machine.kind
    if train is not None and train not in cluster.pools:
        raise _unplannable(next(pool_faults(cluster, train, "")))
    names = [name for name, pool in sorted(cluster.pools.items()) if pool.accelerators.kind == kind and name != train]
    names.sort(key=lambda name: bool(differences(profile, machine_of(cluster.pools[name]))))
    if not names and train is not None:
        raise _unplannable(_without_engines(cluster, train, kind))
    if not names:
        raise Infeasible(
            f"the profile was measured on {kind} accelerators and cluster '{cluster.name}' has no pool of that kind; "
            "add one or profile on this cluster"
        )
    rollout = names[0]
    if train is not None:
        for fault in pool_faults(cluster, train, rollout):
            raise _unplannable(fault)
        unlike = other_accelerator(profile, cluster.pools[train], train)
        if unlike is not None:
            raise Unplannable("job", LOCATION, unlike)
    relay = None if planned is None else planned.sync.relay
    return ChosenPools(rollout, train, job_pools(cluster, rollout, train, relay))


def only_pool_fault(cluster: Cluster, train: str) -> Fault | None:
    """The fault of pool `train` as that of trainers alone where the cluster has no other; None if it has."""
    if any(name != train for name in cluster.pools):
        return None
    message = f"is {train}, the only pool of cluster '{cluster.name}', and engines need another"
    return "same-pool", message, "add a pool, or remove placement: they then take turns"


def _without_engines(cluster: Cluster, train: str, kind: str) -> Fault:
    """The fault of trainers that leave engines no pool of the profile's kind."""
    others = ", ".join(name for name in cluster.pools if name != train)
    return only_pool_fault(cluster, train) or (
        "pools-of-two-kinds",
        f"is {train}, which leaves engines {others}, and the profile is of accelerators of kind {kind}",
        "name another pool, or add one of that kind",
    )


def _unplannable(fault: Fault) -> Unplannable:
    _, message, remedy = fault
    return Unplannable("job", LOCATION, f"{message}; {remedy}")
