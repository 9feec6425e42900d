"""Re-planning from running groups: an arrival or a departure, then the moves that pay or that repair a bound.

The saving of a placement in USD per hour lasts until the next change near it: with arrivals and departures every
`change_every_h` hours, a placement saves for about that long before it is planned anew. So moves are chosen by

    min  USD per hour of all groups + (1 + hysteresis) / change_every_h * sum of the prices of the moves

over the columns of group_program.py (move_program.py has the integer program, move_prices.py the prices). Without
enough credit a job moves only to repair a bound: when its running group no longer keeps all bounds (a member left,
durations drifted). New groups are taken only if they keep all bounds whoever leaves, so that departures seldom need a
repair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..choose.group_columns import Column
from ..choose.group_search import GroupSearch
from ..choose.group_solution import QUICK, Effort, SolveMemory
from ..inputs.group_model import Group, GroupJob, Jobs, NodeTypes, Rules
from ..inputs.groups_state import GroupsState
from ..place.best_fit import BestFit
from ..place.group_nodes import resident
from ..place.placer import depart_in_place
from ..simulate.slowdowns import slowdowns
from .move_prices import Move, MovePrices, Patience
from .move_program import cheapest_state
from .moved_jobs import moved_jobs


@dataclass(frozen=True)
class Replan:
    """The next placement and the moves that lead to it."""

    state: GroupsState
    moves: tuple[Move, ...]
    """In the order in which they are to be made: into groups that get nodes of their own first."""
    saves_usd_per_hour: float
    """Against staying; negative where bounds had to be repaired."""


class Replanner:
    """The placer with moves: every arrival and departure is placed, and then the moves are made that pay."""

    def __init__(
        self, node_types: NodeTypes, rules: Rules, patience: Patience | None = None, effort: Effort = QUICK
    ) -> None:
        self.node_types, self.rules, self.effort = node_types, rules, effort
        self.memory = SolveMemory(rules)
        self.place = BestFit(node_types, rules, checker=self.memory.checker)
        self.prices = MovePrices(node_types, patience or Patience(), self.memory.checker)

    def observe(self, elapsed_s: float, done_s: Mapping[str, float], jobs: Jobs) -> None:
        """Count credit: in `elapsed_s` seconds each job did iterations that take it `done_s` seconds solo."""
        credit_s = self.prices.credit_s
        for name, done in done_s.items():
            credit_s[name] = credit_s.get(name, 0.0) + jobs[name].slo * done - elapsed_s

    def arrive(self, state: GroupsState, job: GroupJob) -> GroupsState:
        """The state with `job`, after every move that pays now."""
        return self.replan(self.place.arrive(state, job), new=(job.name,)).state

    def depart(self, state: GroupsState, name: str) -> GroupsState:
        """The state without the job, after repairs of the bounds that its departure breaks and moves that pay."""
        return self.replan(depart_in_place(state, name, self.node_types)).state

    def at_risk(self, state: GroupsState, jobs: Jobs, look_s: float) -> list[str]:
        """Ids of groups in which a job as it is now exceeds its bound and cannot afford that for `look_s` seconds more.

        A job that is ahead of its bound may be slow for a while: moving it would cost its credit.
        """

        def in_danger(name: str, mean: float) -> bool:
            loses_s = (1.0 - jobs[name].slo / mean) * look_s
            return loses_s > 0 and self.prices.lacks_credit(jobs[name], mean, loses_s)

        return [
            key
            for key, group in state.groups.items()
            if any(in_danger(name, slow.mean) for name, slow in slowdowns(group, jobs, self.rules).items())
        ]

    def drifted(self, state: GroupsState, jobs: Jobs) -> GroupsState:
        """The state with jobs as they are now (other durations), after repairs of the bounds that broke."""
        now = {name: jobs.get(name, job) for name, job in state.jobs.items()}
        return self.replan(GroupsState(now, state.groups)).state

    def replan(self, state: GroupsState, new: Sequence[str] = (), wished: Sequence[Group] = ()) -> Replan:
        """The best next placement from `state`; jobs in `new` have not started, so their moves cost nothing.

        `wished`: feasible groups to consider beside the groups that the search generates. Raises Infeasible if the jobs
        need more nodes than there are, wherever they go.
        """
        if not state.jobs:
            return Replan(state, (), 0.0)
        search = GroupSearch(list(state.jobs.values()), self.node_types, self.rules, self.effort, self.memory)
        search.start(list(state.groups.values()))
        search.generate()
        columns = search.shortlist()
        # A running group may have a cheaper rival of the same jobs, which they would have to move into.
        listed = {column.group for column in columns}
        running = [group for group in state.groups.values() if resident(group, state.jobs, self.node_types)]
        columns += [
            Column(group, group.usd_per_hour(self.node_types))
            for group in dict.fromkeys((*running, *wished))
            if group not in listed
        ]
        after = cheapest_state(state, columns, set(new), self.prices, set(running) - search.warm, self.rules.group_cap)
        moves = [
            self.prices.move(state, after, name)
            for name in moved_jobs(state, after, self.node_types)
            if name not in new
        ]
        members = {key: len(group.pins) for key, group in after.groups.items()}
        moves.sort(key=lambda move: (move.to_group in state.groups, members[move.to_group], move.job))
        saves = state.usd_per_hour(self.node_types) - after.usd_per_hour(self.node_types)
        return Replan(after, tuple(moves), saves)
