"""Algorithm 1 of RollMux: the published greedy placement (refs/rollmux.md 3.2-3.4).

One arrival at a time; a job that is placed never moves. For every group that is not saturated (T_load < T_cycle), the
oldest first: pack into existing nodes (price 0), or add the rollout nodes that the job needs; otherwise a group of its
own. A placement must leave host memory on every node and keep the bound of every member, old and new, in a
simulation of the group's schedule. The cheapest placement wins, the first found among equals (strict <).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..inputs.group_model import Group, GroupJob, NodeKind, Rules
from .assemble import alone, choices, cycle_s, grow, keeps_bounds, load_s, pinned, resident
from .placing import State, depart_in_place, next_id


class Algorithm1:
    """The published policy; `rules.policy` is the executor's, `first_come`."""

    def __init__(self, kinds: Mapping[str, NodeKind], rules: Rules) -> None:
        self.kinds = kinds
        self.rules = rules

    def arrive(self, state: State, job: GroupJob) -> State:
        """The state with `job` where it adds the least to the price; nobody moves."""
        jobs = {**state.jobs, job.name: job}
        best, key = alone(job, self.kinds), next_id(state.groups)
        price = best.usd_per_hour(self.kinds)
        for at, group in state.groups.items():
            if price <= 0.0:
                break  # nothing is strictly cheaper
            if len(group.pins) >= self.rules.group_cap or load_s(group, jobs) >= cycle_s(group, jobs):
                continue
            for added, candidate in placements(group, job, self.kinds):
                if added >= price:
                    break  # ascending in price
                if resident(candidate, jobs, self.kinds) and keeps_bounds(candidate, jobs, self.rules):
                    best, key, price = candidate, at, added
                    break
        return State(jobs, {**state.groups, key: best})

    def depart(self, state: State, name: str) -> State:
        """The state without the job; nobody moves."""
        return depart_in_place(state, name, self.kinds)


def placements(group: Group, job: GroupJob, kinds: Mapping[str, NodeKind]) -> Iterator[tuple[float, Group]]:
    """(added USD per hour, group with the job) in ascending order of price: direct packing, then rollout scaling.

    The job trains on all training nodes of the group, by its first way of that width; a job without one cannot join.
    """
    rollout, pool = job.rollout[0], job.train[0].pool
    training = [at for at, p in enumerate(group.nodes) if p == pool]
    width = len(training)
    way = next((at for at, w in enumerate(job.train) if w.pool == pool and w.nodes == width), None)
    if way is None:
        return
    for new in range(rollout.nodes + 1):
        grown, added = grow(group, [rollout.pool] * new, kinds)
        on_train = [at for at, p in enumerate(grown.nodes) if p == pool]
        old = [at for at, p in enumerate(grown.nodes) if p == rollout.pool and at not in added]
        for some in choices(grown, old, rollout.nodes - new, kinds):
            yield (
                new * kinds[rollout.pool].usd_per_hour,
                pinned(grown, job.name, (0, way), (*some, *added), on_train, kinds),
            )
