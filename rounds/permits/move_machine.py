"""The move machine: the order in which running jobs leave, move and join when another plan of groups is applied.

It reads no clock and starts nothing: its driver reports what happened, and does what the machine returns.

Invariants (`check_invariants`):
- the jobs in a group are always a subset of its jobs in the old plan, or a subset of its jobs in the new plan: no job
  enters a group before every job that leaves the group has left it. A subset of a planned group keeps all bounds (the
  solver demands that), so no bound breaks during the moves;
- jobs that leave for good go first, jobs that join come last, when the nodes of the others are free;
- one job moves at a time, so that the others go on. In a ring, where each job waits until the next one has left its
  group, all jobs of the ring leave before the first of them enters;
- a job whose new group lacks nodes lets the others move first, and is tried again once one of them has left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class JobMove:
    """The group that a job leaves (None: it joins) and the group that it enters (None: it leaves for good). If both are
    the same, the job changes nodes there."""

    job: str
    from_group: str | None
    to_group: str | None


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop the job at the end of its step, with a checkpoint; then call `out`."""

    job: str


@dataclass(frozen=True, slots=True)
class Enter:
    """Start the job in its new group, from its checkpoint; then call `entered`, or `short` if there are no nodes."""

    job: str
    group: str


State = Literal["waits", "drains", "out", "short", "enters", "done"]


class MoveMachine:
    """See the module.

    Args:
        moves: of each job that leaves, moves or joins, moves in the order in which they should be made.

    Raises ValueError for two moves of a job, or one that changes nothing.
    """

    def __init__(self, moves: Iterable[JobMove]) -> None:
        self.moves: dict[str, JobMove] = {}
        for move in moves:
            if move.job in self.moves or (move.from_group is None and move.to_group is None):
                raise ValueError(f"{move.job}: one move, from or to a group")
            self.moves[move.job] = move
        self.states: dict[str, State] = {
            job: "waits" if move.from_group is not None else "out" for job, move in self.moves.items()
        }

        self._ended: set[str] = set()

    @property
    def done(self) -> bool:
        """Whether no move is left."""
        return all(state == "done" for state in self.states.values())

    def begin(self) -> list[Drain | Enter]:
        """What to do first."""
        return self._next()

    def out(self, job: str) -> list[Drain | Enter]:
        """A job has stopped in the group that it leaves. Raises ValueError if it does not leave one, or has already."""
        self._must_be(job, "waits", "drains")
        self.states[job] = "out" if self.moves[job].to_group is not None else "done"
        self._try_short_again()
        return self._next()

    def entered(self, job: str) -> list[Drain | Enter]:
        """A job that moves or joins is ready in its new group."""
        self._must_be(job, "enters")
        self.states[job] = "done"
        return self._next()

    def short(self, job: str) -> list[Drain | Enter]:
        """A job's new group lacks nodes for it now."""
        self._must_be(job, "enters")
        self.states[job] = "short"
        return self._next()

    def ended(self, job: str) -> list[Drain | Enter]:
        """A job has ended or failed for good, wherever it was: it is in no group any more."""
        if job in self.states and self.states[job] != "done":
            self.states[job] = "done"
            self._ended.add(job)
            self._try_short_again()
        return self._next()

    def again(self, job: str) -> list[Drain | Enter]:
        """Try again to start a job that lacked nodes."""
        self._must_be(job, "short")
        self.states[job] = "out"
        return self._next()

    def lacking(self) -> list[str]:
        """Jobs that lack nodes, once no other job is left that could give nodes back; empty before."""
        left = {job: state for job, state in self.states.items() if state != "done"}
        return list(left) if left and all(state == "short" for state in left.values()) else []

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _try_short_again(self) -> None:
        """Nodes may be free now for the jobs that lacked them."""
        self.states |= {job: "out" for job, state in self.states.items() if state == "short"}

    def _next(self) -> list[Drain | Enter]:
        leaving = [job for job, move in self.moves.items() if move.to_group is None and self.states[job] != "done"]
        if leaving:
            return [self._drain(job) for job in leaving if self.states[job] == "waits"]
        actions: list[Drain | Enter] = []
        moving = [job for job, move in self.moves.items() if None not in (move.from_group, move.to_group)]
        actions += [self._enter(job) for job in moving if self.states[job] == "out" and self._may_enter(job)]
        if any(self.states[job] in ("drains", "enters") for job in moving):
            return actions
        waiting = [job for job in moving if self.states[job] == "waits"]
        if waiting:
            # In a ring no job may enter before another has left: the first one leaves, and the others follow.
            first = next((job for job in waiting if self._may_enter(job)), waiting[0])
            return [*actions, self._drain(first)]
        joining = [job for job, move in self.moves.items() if move.from_group is None and self.states[job] == "out"]
        return actions + [self._enter(job) for job in joining]

    def _may_enter(self, job: str) -> bool:
        """Whether every other job that leaves the job's new group has left it."""
        group = self.moves[job].to_group
        return not any(
            other != job and move.from_group == group and self.states[other] in ("waits", "drains")
            for other, move in self.moves.items()
        )

    def _drain(self, job: str) -> Drain:
        self.states[job] = "drains"
        return Drain(job)

    def _enter(self, job: str) -> Enter:
        group = self.moves[job].to_group
        assert group is not None, "it enters a group"
        self.states[job] = "enters"
        return Enter(job, group)

    def _must_be(self, job: str, *states: State) -> None:
        if self.states.get(job) not in states:
            raise ValueError(f"{job} is {self.states.get(job, 'not moved')}, not {' or '.join(states)}")

    # -- what holds ----------------------------------------------------------------------------------------------------

    def members(self, before: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
        """The jobs of each group now, if `before` were in them at the beginning; one that enters counts as there."""
        now = {group: set(jobs) for group, jobs in before.items()}
        for job, move in self.moves.items():
            state = self.states[job]
            if move.from_group is not None and state not in ("waits", "drains"):
                now[move.from_group].discard(job)
            if move.to_group is not None and state in ("enters", "done") and job not in self._ended:
                now.setdefault(move.to_group, set()).add(job)
        return now

    def check_invariants(self, before: Mapping[str, Iterable[str]]) -> None:
        """Assert that each group's jobs are some of those before, or some of those after."""
        after = {group: set(jobs) for group, jobs in before.items()}
        for job, move in self.moves.items():
            if move.from_group is not None:
                after[move.from_group].discard(job)
        for job, move in self.moves.items():
            if move.to_group is not None:
                after.setdefault(move.to_group, set()).add(job)
        for group, jobs in self.members(before).items():
            assert jobs <= set(before.get(group, ())) or jobs <= after.get(group, set()), f"{group}: {sorted(jobs)}"
