"""Limits of a job and a pool beyond which nothing is simulated: the solve would never end, or `rlplan check` would
reject its plan."""

from __future__ import annotations

from typing import Literal

from ....plans.check.plan_fit import too_many_accelerators
from ....plans.schema.cluster import Pool
from ....plans.schema.job import Job
from ....plans.yaml.errors import InputError
from ....plans.yaml.yaml_doc import Loc
from ....profiles.profile_schema import Profile
from ...check.accelerator_rules import accelerator_fault, unknown_fault
from ...check.reward_rules import crowded_workers, short_deadlines


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
