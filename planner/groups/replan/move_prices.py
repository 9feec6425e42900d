"""The price of moving a running job to other nodes, in seconds of outage and in USD.

A job that moves loses the iteration in progress (half of one on average; nothing if it waits for the boundary) and
starts cold on its new nodes while its old nodes may still be held. The price in USD is the outage at the price of the
nodes that the job would need solo, with the cold start counted twice.

A job that moves falls behind by the outage, so a move is paid out of credit: the seconds by which the job is ahead of
its bound so far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..choose.group_checker import Checker
from ..choose.group_columns import Column
from ..inputs.group_model import GroupJob, NodeTypes
from ..inputs.groups_state import GroupsState
from ..simulate.start_seconds import start_s


@dataclass(frozen=True)
class Move:
    """One job that changes nodes."""

    job: str
    from_group: str
    to_group: str
    outage_s: float
    """Cold start and work done again."""
    price_usd: float


@dataclass(frozen=True)
class Patience:
    """When a move pays: savings count for `change_every_h` hours, and must exceed the price by `hysteresis`."""

    change_every_h: float = 1.0
    hysteresis: float = 0.25
    wait_for_boundary: bool = False
    """Whether moves are made between iterations: no work is lost, and the old nodes are held until then."""

    @property
    def usd_per_hour_of_a_usd(self) -> float:
        """USD per hour that a placement must save for each USD of its moves."""
        return (1.0 + self.hysteresis) / self.change_every_h


class MovePrices:
    """Prices and outages of moves, and the credit of each job."""

    def __init__(self, node_types: NodeTypes, patience: Patience, checker: Checker) -> None:
        self.node_types, self.patience, self.checker = node_types, patience, checker
        self.credit_s: dict[str, float] = {}
        """Seconds that each job is ahead of its bound."""
        self.usd_per_unit = 0.0
        """Price of a unit of training that members do less than solo (unit_price.py); 0: only USD per hour counts."""

    def outage_s(self, job: GroupJob, slowdown: float) -> float:
        """Seconds that a move takes on average from a job that now runs at this slowdown."""
        return job.cold_s + self._half_iteration_s(job, slowdown)

    def longest_outage_s(self, job: GroupJob, slowdown: float) -> float:
        """Seconds that a move takes if it comes at the worst moment of an iteration."""
        return self.outage_s(job, slowdown) + self._half_iteration_s(job, slowdown)

    def _half_iteration_s(self, job: GroupJob, slowdown: float) -> float:
        return 0.0 if self.patience.wait_for_boundary else 0.5 * slowdown * job.solo_s

    def price_usd(self, job: GroupJob, slowdown: float) -> float:
        """USD of a move: the outage on the job's own nodes, and the cold start on the old nodes too."""
        return (self.outage_s(job, slowdown) + job.cold_s) / 3600.0 * job.solo_usd_per_hour(self.node_types)

    def lacks_credit(self, job: GroupJob, slowdown: float, besides_s: float = 0.0) -> bool:
        """Whether the job's credit does not cover the longest outage and `besides_s` seconds."""
        return self.credit_s.get(job.name, 0.0) < besides_s + self.longest_outage_s(job, slowdown)

    def with_lost_training(self, column: Column, state: GroupsState) -> Column:
        """The column with the price of the training that its members do less than solo added to its USD per hour."""
        if not self.usd_per_unit:
            return column
        lost = self.checker.lost(column.group, state.jobs, self.node_types)
        return replace(column, usd_per_hour=column.usd_per_hour + self.usd_per_unit * lost)

    def move(self, before: GroupsState, after: GroupsState, name: str) -> Move:
        """The move of a job from its group in `before` to its group in `after`, whose other jobs run meanwhile."""
        key, new_key = before.group_of(name), after.group_of(name)
        slow = self.checker.slowdowns(before.groups[key], before.jobs)[name].mean
        cold_s = start_s(name, after.groups[new_key], after.jobs, self.node_types, self.checker.rules)
        job = replace(before.jobs[name], cold_s=cold_s)
        return Move(name, key, new_key, self.outage_s(job, slow), self.price_usd(job, slow))
