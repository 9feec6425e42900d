"""Which pools a job's engines and trainers are on."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ....plans.check.plan_fit import too_many_accelerators
from ....plans.schema.cluster import Cluster, Pool
from ....plans.schema.job import Job
from ....plans.schema.planned_job import PlannedJob
from ....plans.yaml.errors import Infeasible, InputError
from ....plans.yaml.yaml_doc import Loc
from ....profiles.library.fitness import differences, machine_of, placement_unfit
from ....profiles.profile_schema import Profile
from ...check.accelerator_rules import accelerator_fault, unknown_fault
from ...check.reward_rules import crowded_workers, short_deadlines
from ...costs.job_pools import JobPools, job_pools

# Limits of a job and a pool beyond which nothing is simulated: the solve would never end, or `rlplan check` would
# reject its plan.


class Unplannable(InputError):
    """A fault at location `loc` of the job or of the cluster; a caller that knows the file adds the line."""

    def __init__(self, document: Literal["job", "cluster"], loc: Loc, message: str) -> None:
        super().__init__(f"{'.'.join(map(str, loc))}: {message}")
        self.document, self.loc = document, loc


def must_be_plannable(job: Job, name: str, pool: Pool, profile: Profile) -> None:
    """Raise Unplannable if `job` has more reward workers than the pool called `name` has cores, if most of its scores
    would time out by `profile`, or if the pool has accelerators whose memory or kind contradicts their name, or more
    accelerators than can be simulated."""
    must_be_a_pool(name, pool, profile)
    if (crowded := crowded_workers(job, name, pool)) is not None:
        raise Unplannable("job", *crowded)
    for location, text in short_deadlines(job, profile):
        raise Unplannable("job", location, text)


def must_be_a_pool(name: str, pool: Pool, profile: Profile) -> None:
    """Raise Unplannable if the pool called `name` has more accelerators than can be simulated, such whose memory or
    kind contradicts their name, or GPUs of an unknown name that `profile` did not measure."""
    large = too_many_accelerators(pool)
    if large is not None:
        raise Unplannable("cluster", ("pools", name, "nodes"), large)
    fault = accelerator_fault(pool.accelerators) or unknown_fault(pool.accelerators, profile)
    if fault is not None:
        key, message, remedy = fault
        raise Unplannable("cluster", ("pools", name, "accelerators", key), f"{message}; {remedy}")


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
    why = None if train is None else placement_unfit(cluster, train, profile)
    if why is not None:
        raise Unplannable("job", ("placement", "train_pool"), f"{why.message}; {why.remedy}")
    return train
