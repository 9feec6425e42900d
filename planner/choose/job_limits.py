"""What of a job and a pool the planner refuses before it simulates anything: it would never end, or the plan would be
one that `rlplan check` rejects."""

from __future__ import annotations

from typing import Literal

from ...plans.checks.resources import too_many_workers
from ...plans.cluster import Pool
from ...plans.errors import InputError
from ...plans.job import Job
from ...plans.limits import MOST_ACCELERATORS
from ...plans.yaml_doc import Loc
from ..check.accelerator_rules import accelerator_fault


class Unplannable(InputError):
    """A fault at `loc` of the job or of the cluster; a caller that knows its file adds the line."""

    def __init__(self, document: Literal["job", "cluster"], loc: Loc, message: str) -> None:
        super().__init__(f"{'.'.join(map(str, loc))}: {message}")
        self.document, self.loc = document, loc


def must_be_plannable(job: Job, name: str, pool: Pool) -> None:
    """Raise Unplannable if `job` has more reward workers than the pool called `name` has cores, or if the pool has
    accelerators that cannot be what they are called, or more of them than are simulated."""
    if pool.accelerators_total > MOST_ACCELERATORS:
        most = MOST_ACCELERATORS // pool.accelerators.per_node
        what = f"a pool of {pool.accelerators_total:,} accelerators is not simulated, one of {MOST_ACCELERATORS:,} is"
        raise Unplannable("cluster", ("pools", name, "nodes"), f"{what}; write at most {most} nodes for this job")
    fault = accelerator_fault(pool.accelerators)
    if fault is not None:
        key, what, remedy = fault
        raise Unplannable("cluster", ("pools", name, "accelerators", key), f"{what}; {remedy}")
    workers = too_many_workers(job.reward.workers, name, pool)
    if workers is not None:
        raise Unplannable("job", ("reward", "workers"), workers)
