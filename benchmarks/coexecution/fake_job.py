"""A job of a co-execution group whose devices are a clock: it takes turns through the actor that gives permits.

It does what the executor's own processes do (MemberPermits), and takes as long as the simulator's clocks would: a
switch where another job had a unit last, a rollout on a part of its units at that part of its pace, a tail that moves
together as fast as before, seconds lost by a pause. It speaks at the very second in which its phase ends
(virtual_time.py).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import ray

from rlplan.executor.groups.member_state import HeldTurn
from rlplan.executor.groups.permit_actor import NAMESPACE, GroupState, MemberPermits, ask
from rlplan.planner.groups.simulate.permit_simulator import TrueTurns
from rlplan.rounds.permits.permit_events import PHASES, Seat

from .virtual_time import ALARM, VirtualTime

LOOK_S = 0.001


async def group_state(actor: str) -> GroupState:
    """The state of the group whose actor has this name."""
    return GroupState(*await ask(lambda: ray.get_actor(actor, NAMESPACE), "state"))


def set_alarm(time: VirtualTime, state: GroupState) -> None:
    """Have the clock stand when the actor is to be woken."""
    time.is_due(ALARM, math.inf if state.wake_s is None else state.wake_s)


async def all_know(time: VirtualTime, actor: str, speaker: str) -> GroupState:
    """Wait until each job but the speaker knows what was decided on its word; returns the group's state."""
    state = await group_state(actor)
    for job, held in state.held.items():
        while job != speaker and time.known_s(job) < held["since_s"]:
            await asyncio.sleep(LOOK_S)
    set_alarm(time, state)
    return state


class FakeTurn:
    """A turn that runs: when it ends, and when its tail begins, as the simulator reckons it."""

    def __init__(self, seat: Seat, seconds: float, tail_share: float, held: HeldTurn) -> None:
        self.held, self._seat, self._tail_share_s = held, seat, seconds * tail_share
        self._units = len(seat.units[held.turn % 2])
        self._left_s = seconds
        self._begin(held, held.begun_s, held.resident)

    def _begin(self, held: HeldTurn, at_s: float, resident: bool) -> None:
        self._left_s += 0.0 if resident else self._seat.switch_s[held.turn % 2]
        self._rate = len(held.units) / self._units
        self.ends_s = at_s + self._left_s / self._rate
        self.tail_s = math.inf
        if held.phase == "rollout" and self._seat.keep > 0 and 0 < self._tail_share_s < self._left_s:
            self.tail_s = at_s + (self._left_s - self._tail_share_s) / self._rate

    @property
    def due_s(self) -> float:
        """When its job has something to say."""
        return min(self.ends_s, self.tail_s)

    def move(self, held: HeldTurn) -> bool:
        """It has other units; returns whether it left some. Only those that are added change its pace."""
        left = len(held.units) < len(self.held.units)
        rate, now_s = len(held.units) / self._units, held.since_s
        if not held.units:
            self._left_s = (self.ends_s - now_s) * self._rate + (self._seat.resume_s[held.turn % 2] or 0.0)
            self.ends_s = self.tail_s = math.inf
        elif not self.held.units:
            self._begin(held, now_s, resident=False)
        elif not left and rate != self._rate:
            self.ends_s = now_s + (self.ends_s - now_s) * self._rate / rate
            self.tail_s = now_s + (self.tail_s - now_s) * self._rate / rate
            self._rate = rate
        self.held = held
        return left


class FakeJob:
    """The job, as a Ray actor."""

    def __init__(self, time: VirtualTime, actor: str, seat: Seat, truth: TrueTurns, until_s: float) -> None:
        self._time, self._actor, self._seat, self._truth, self._until_s = time, actor, seat, truth, until_s
        self._permits = MemberPermits(actor, seat.job, f"fake {seat.job}")
        self._speaks = False

    async def run(self) -> str:
        """Take turns until `until_s`; returns Ray's id of its node."""
        await self._permits.ready()
        while min((state := await group_state(self._actor)).arrivals.values()) < 1:
            await asyncio.sleep(LOOK_S)
        set_alarm(self._time, state)  # before the clock may go
        self._heard(state)
        number = 0
        while await self._turn(number):
            number += 1
        return str(ray.get_runtime_context().get_node_id())

    def _heard(self, state: GroupState) -> None:
        """A job that waits has nothing to say; one whose turn has begun tells when it has (`_turn`)."""
        if self._seat.job not in state.held:
            self._time.is_due(self._seat.job, math.inf)

    async def _turn(self, number: int) -> bool:
        """Take a turn; returns whether it ended before `until_s`."""
        begin = asyncio.create_task(self._permits.begin(PHASES[number % 2]))
        while not begin.done():
            if self._time() >= self._until_s:
                begin.cancel()
                return False
            await asyncio.wait([begin], timeout=0.1)
        begin.result()
        held = await self._permits.holding()
        assert held is not None and held.turn == number, "it holds what it was given"
        draws = self._truth.draws_s
        turn = FakeTurn(self._seat, draws[number // 2 % len(draws)][number % 2], self._truth.tail_share, held)
        self._tell(turn)
        watch = asyncio.create_task(self._watch(turn))
        try:
            while await self._is_due(turn):
                if turn.tail_s > turn.ends_s:
                    break
                turn.tail_s = math.inf
                await self._say(self._permits.tail)
                self._tell(turn)
            else:
                return False
        finally:
            watch.cancel()
        await self._say(self._permits.end)
        return True

    def _tell(self, turn: FakeTurn) -> None:
        if not self._speaks:  # else the clock stands until all has been said
            self._time.is_due(self._seat.job, turn.due_s)
        self._time.knows(self._seat.job, turn.held.since_s)

    async def _say(self, word: Callable[[], Awaitable[None]]) -> None:
        self._speaks = True
        await word()
        self._heard(await all_know(self._time, self._actor, self._seat.job))
        self._speaks = False

    async def _watch(self, turn: FakeTurn) -> None:
        """Follow the units of a turn."""
        while (held := await self._permits.holding(turn.held.since_s)) is not None:
            if held.since_s > turn.held.since_s:
                if turn.move(held):
                    await self._permits.cleared(held.since_s)
                self._tell(turn)

    async def _is_due(self, turn: FakeTurn) -> bool:
        """Wait until a turn has something to say; False: the clock has come to its end."""
        while not self._time.may_speak(self._seat.job):
            if self._time() >= self._until_s:
                return False
            await asyncio.sleep(LOOK_S)
        return turn.due_s < self._until_s
