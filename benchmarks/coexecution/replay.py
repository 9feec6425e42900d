"""Hours of the groups example through the real actor that gives permits, beside the simulator, in a minute.

The jobs of each group are Ray actors on three nodes of this machine, with clocks for devices; their phases
take the seconds that the simulator draws. The actor is the executor's own, on a clock that goes many times as
fast as the wall's and stands while a word is under way; it is killed once.

"The same decisions, bit for bit": as the journal has them, each turn and each move with its job, phase, units,
`resident` and second are equal to those of the simulator, all digits of the second, in the same order.
"""

from __future__ import annotations

import asyncio
import math
import mmap
import random
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import ray

import rlplan.plans
from rlplan.executor.groups.member_state import HeldPhase
from rlplan.executor.groups.permit_actor import NAMESPACE, GroupState, MemberPermits, ask, start_permits
from rlplan.executor.placement.live_nodes import cluster_nodes, on_node
from rlplan.executor.processes.actors import start_ray
from rlplan.planner.groups.inputs.running_plan import running_state
from rlplan.planner.groups.inputs.workload_jobs import problem_of
from rlplan.planner.groups.simulate.permit_simulator import TruePhases, placed_jobs, simulate_phases
from rlplan.plans.schema.groups_plan import load_groups_plan
from rlplan.plans.schema.workload import load_workload
from rlplan.rounds.permits.permit_events import PHASES, Action, Consolidate, Event, Grow, Pause, PlacedJob, Start
from rlplan.rounds.permits.permit_machine import PermitMachine
from rlplan.traces.groups.group_journal import GROUP_JOURNAL
from rlplan.traces.trace import read_trace

# A clock that goes many times as fast as the wall's and that all processes of this machine read from one file.
#
# A word that a job says to an actor is under way for some milliseconds, which at a hundred times the wall's pace is a
# second, and longer while the actor is started again. So that no word comes late, the clock stands while one is under
# way: it never passes the second in which somebody is due to speak, and stands there until that one has spoken and
# all whom it concerns know what was decided.
#
# The file holds doubles: the time, then for each name when it is due to speak, and as of when it knows its turn. A
# double is written at once, so that no reader sees a part of it.

TICK_S = 0.001
STALL_S = 0.05
"""Seconds of the wall for which the clock goes on at most at once, if its thread was kept from running."""

ALARM = "the alarm"
"""Name, besides the jobs', of whoever wakes the actor; at the same second all jobs speak before it."""


class VirtualTime:
    """The clock as each process has it: call it for its seconds.

    Args:
        path: its file; `create` writes it.
        names: of the jobs, in the order in which they speak if they are due in the same second.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._path, self._names = path, [*names, ALARM]
        self._doubles: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_names": self._names, "_doubles": None}

    def create(self) -> None:
        """Write the file: second 0, at which all jobs are due, so that the clock stands until they have spoken."""
        self._path.write_bytes(bytes(8 * (1 + 2 * len(self._names))))
        for name in self._names:
            self.knows(name, -1.0)
        self.is_due(ALARM, math.inf)

    def __call__(self) -> float:
        return self._read(0)

    def is_due(self, name: str, at_s: float) -> None:
        """Somebody is due to speak in this second, and no sooner: the clock may go on until then."""
        self._write(1 + self._names.index(name), at_s)

    def knows(self, name: str, since_s: float) -> None:
        """A job knows the turn and the units that it has since this second."""
        self._write(1 + len(self._names) + self._names.index(name), since_s)

    def known_s(self, name: str) -> float:
        """Since when a job has the turn and the units that it knows of."""
        return self._read(1 + len(self._names) + self._names.index(name))

    def may_speak(self, name: str) -> bool:
        """Whether the second is there in which this one is due, and nobody is due before it."""
        dues = self._dues_s()
        own = self._names.index(name)
        return dues[own] <= self._read(0) and min(range(len(dues)), key=lambda number: (dues[number], number)) == own

    def _dues_s(self) -> list[float]:
        return [self._read(1 + number) for number in range(len(self._names))]

    def _open(self) -> Any:
        if self._doubles is None:
            with self._path.open("r+b") as file:
                self._doubles = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
        return self._doubles

    def _read(self, index: int) -> float:
        return float(self._open()[index])

    def _write(self, index: int, value: float) -> None:
        self._open()[index] = value

    def advance(self, seconds: float, until_s: float) -> bool:
        """Go on by so many seconds, or to the first second in which somebody is due; returns whether it stands."""
        now_s, stop_s = self._read(0), min([until_s, *self._dues_s()])
        self._write(0, max(now_s, min(now_s + seconds, stop_s)))
        return stop_s <= now_s


class Ticking:
    """A thread that lets the clock go; a context. `stood_s`: of each time that it stood, seconds of the wall."""

    def __init__(self, clock: VirtualTime, speed: float, until_s: float) -> None:
        self._clock, self._speed, self._until_s = clock, speed, until_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.stood_s: list[float] = []

    def __enter__(self) -> Ticking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        last_s, stands_since_s = time.monotonic(), 0.0
        while not self._ended.wait(TICK_S):
            now_s = time.monotonic()
            stands = self._clock.advance(min(now_s - last_s, STALL_S) * self._speed, self._until_s)
            last_s = now_s
            if stands and not stands_since_s:
                stands_since_s = now_s
            elif stands_since_s and not stands:
                self.stood_s.append(now_s - stands_since_s)
                stands_since_s = 0.0


# A job of a co-execution group whose devices are a clock: it takes turns through the actor that gives permits.
#
# It does what the executor's own processes do (MemberPermits), and takes as long as the simulator's clocks would: a
# switch where another job had a unit last, a rollout on a part of its units at that part of its pace, a tail that
# moves together as fast as before, seconds lost by a pause. It speaks at the very second in which its phase ends
# .

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

    def __init__(self, seat: PlacedJob, seconds: float, tail_share: float, held: HeldPhase) -> None:
        self.held, self._seat, self._tail_share_s = held, seat, seconds * tail_share
        self._units = len(seat.units[held.number % 2])
        self._left_s = seconds
        self._begin(held, held.begun_s, held.resident)

    def _begin(self, held: HeldPhase, at_s: float, resident: bool) -> None:
        self._left_s += 0.0 if resident else self._seat.switch_s[held.number % 2]
        self._rate = len(held.units) / self._units
        self.ends_s = at_s + self._left_s / self._rate
        self.tail_s = math.inf
        if held.phase == "rollout" and self._seat.keep > 0 and 0 < self._tail_share_s < self._left_s:
            self.tail_s = at_s + (self._left_s - self._tail_share_s) / self._rate

    @property
    def due_s(self) -> float:
        """When its job has something to say."""
        return min(self.ends_s, self.tail_s)

    def move(self, held: HeldPhase) -> bool:
        """It has other units; returns whether it left some. Only those that are added change its pace."""
        left = len(held.units) < len(self.held.units)
        rate, now_s = len(held.units) / self._units, held.since_s
        if not held.units:
            self._left_s = (self.ends_s - now_s) * self._rate + (self._seat.resume_s[held.number % 2] or 0.0)
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

    def __init__(self, time: VirtualTime, actor: str, seat: PlacedJob, truth: TruePhases, until_s: float) -> None:
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
        assert held is not None and held.number == number, "it holds what it was given"
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
                    await self._permits.released(held.since_s)
                self._tell(turn)

    async def _is_due(self, turn: FakeTurn) -> bool:
        """Wait until a turn has something to say; False: the clock has come to its end."""
        while not self._time.may_speak(self._seat.job):
            if self._time() >= self._until_s:
                return False
            await asyncio.sleep(LOOK_S)
        return turn.due_s < self._until_s


WORKLOAD = Path(rlplan.plans.__file__).parent / "examples" / "groups" / "workload.yaml"
NODES = 3
SPEED = 100.0
END_S = 300.0
"""Seconds of the wall, besides those of the clock, after which a replay is given up."""


class Decided(NamedTuple):
    """What was decided on one event: when, the units that turns have from then on where these changed (none: it was
    paused), and the turns that began, as (job, phase, units, resident)."""

    at_s: float
    moved: dict[str, tuple[int, ...]]
    begun: tuple[tuple[str, str, tuple[int, ...], bool], ...]

    @property
    def count(self) -> int:
        """Number of decisions."""
        return len(self.moved) + len(self.begun)


class RecordedMachine(PermitMachine):
    """A permit machine that keeps what it decided."""

    def __init__(self, permit_rule: str) -> None:
        super().__init__(permit_rule)
        self.decided: list[Decided] = []
        self._paused: set[str] = set()

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """As the machine does."""
        actions = super().handle(event, now_s)
        moved, begun = {}, []
        for action in actions:
            match action:
                case Start(job, phase, units, resident) if job not in self._paused:
                    begun.append((job, phase, units, resident))
                case Start(job, _, units) | Consolidate(job, units) | Grow(job, units):
                    moved[job] = units
                    self._paused.discard(job)
                case Pause(job):
                    moved[job] = ()
                    self._paused.add(job)
        if moved or begun:
            self.decided.append(Decided(now_s, moved, tuple(begun)))
        return actions


class ReplayGroup(NamedTuple):
    """A group of the plan: its id and permit rule, its seats, and the true seconds of each job's turns."""

    key: str
    rule: str
    seats: list[PlacedJob]
    truths: list[TruePhases]


def groups_to_replay(plan: Path, seed: int) -> list[ReplayGroup]:
    """The groups of a plan of WORKLOAD; each job draws its seconds in an order that the seed gives."""
    workload, cluster = load_workload(WORKLOAD)
    problem = problem_of(workload, WORKLOAD, cluster)
    read = load_groups_plan(plan)
    state = running_state(read, plan, problem.jobs, problem.node_types)
    assert problem.rules.interference == 0.0, "fake devices do not slow each other"
    groups = []
    for key, group in state.groups.items():
        seats, truths = placed_jobs(group, state.jobs, problem.rules)
        rng = np.random.default_rng(seed)
        drawn = []
        for truth in truths:
            order = rng.permutation(len(truth.draws_s))
            drawn.append(TruePhases(tuple(truth.draws_s[number] for number in order), truth.tail_share))
        groups.append(ReplayGroup(key, problem.rules.permit_rule, seats, drawn))
    return groups


def simulated(group: ReplayGroup, until_s: float) -> list[Decided]:
    """What the simulator decides before a second."""
    machine = RecordedMachine(group.rule)
    spans = simulate_phases(machine, group.seats, group.truths, check=True)
    while machine.decided == [] or machine.decided[-1].at_s < until_s:
        next(spans)
    return [decided for decided in machine.decided if decided.at_s < until_s]


def journalled(journal: Path, until_s: float) -> list[Decided]:
    """What the actor decided before a second, as its journal has it."""
    found = []
    for event in read_trace(journal):
        if event["event"] == "turns" and event["t_s"] < until_s:
            moved = {job: tuple(units) for job, units in event.get("moved", {}).items()}
            begun = ((turn["job"], turn["phase"], tuple(turn["units"]), turn["resident"]) for turn in event["begun"])
            found.append(Decided(event["t_s"], moved, tuple(begun)))
    return found


async def replay_group(
    group: ReplayGroup, folder: Path, until_s: float, speed: float, kill_at_s: float | None
) -> tuple[dict[str, Any], list[float], set[str]]:
    """Replay a group; returns its figures, for how many seconds the clock stood each time, and the jobs' nodes."""
    folder.mkdir(parents=True)
    jobs = [seat.job for seat in group.seats]
    clock = VirtualTime(folder / "clock", jobs)
    clock.create()
    name = f"permits-{group.key}-{uuid.uuid4().hex}"
    actor = start_permits(name, group.key, group.rule, group.seats, folder / GROUP_JOURNAL, clock)
    nodes = [node.node_id for node in cluster_nodes("rlplan_core")]
    remote: Any = ray.remote(FakeJob)
    fakes = [
        remote.options(num_cpus=0, **on_node(nodes[number % len(nodes)])).remote(clock, name, seat, truth, until_s)
        for number, (seat, truth) in enumerate(zip(group.seats, group.truths, strict=True))
    ]
    kills = 0

    async def kill() -> None:
        nonlocal kills
        if kill_at_s is not None:
            while clock() < kill_at_s:
                await asyncio.sleep(LOOK_S)
            ray.kill(actor, no_restart=False)
            kills += 1

    began_s = time.monotonic()
    with Ticking(clock, speed, until_s) as ticking:
        others = [asyncio.create_task(kill()), asyncio.create_task(_alarm(clock, actor, name))]
        try:
            runs = asyncio.gather(*(asyncio.wrap_future(fake.run.remote().future()) for fake in fakes))
            used = set(await asyncio.wait_for(runs, until_s / speed + END_S))
            await others[0]
        finally:
            for task in others:
                task.cancel()
            for each in (*fakes, actor):
                ray.kill(each)
    wanted, found = simulated(group, until_s), journalled(folder / GROUP_JOURNAL, until_s)
    identical = found == wanted
    if not identical:
        pairs = zip([*found, None], [*wanted, None], strict=False)
        first = next((pair for pair in pairs if pair[0] != pair[1]), None)
        click.echo(f"{group.key}: the actor, then the simulator: {first}", err=True)
    figures = {
        "decisions": sum(decided.count for decided in found),
        "identical": identical,
        "kills": kills,
        "wall_s": round(time.monotonic() - began_s, 1),
    }
    return figures, ticking.stood_s, used


async def _alarm(clock: VirtualTime, actor: Any, name: str) -> None:
    """Wake the actor when it asked for it."""
    while True:
        await asyncio.sleep(LOOK_S)
        if clock.may_speak(ALARM):
            await ask(lambda: actor, "wake")
            await all_know(clock, name, ALARM)


async def _replay(groups: Sequence[ReplayGroup], folder: Path, until_s: float, speed: float, seed: int) -> Any:
    rng = random.Random(seed)
    return await asyncio.gather(
        *(replay_group(group, folder / group.key, until_s, speed, rng.uniform(0.2, 0.8) * until_s) for group in groups)
    )


def replay(plan: Path, folder: Path, until_s: float, speed: float = SPEED, seed: int = 0) -> dict[str, Any]:
    """Replay all groups of a plan at once on the nodes of RAY_ADDRESS, into `folder`; returns the figures."""
    start_ray()
    groups = groups_to_replay(plan, seed)
    results = asyncio.run(_replay(groups, folder.resolve(), until_s, speed, seed))
    ray.shutdown()
    stood_s = [each for _, stood, _ in results for each in stood]
    return {
        "virtual_s": until_s,
        "speed": speed,
        "nodes": len(set().union(*(used for _, _, used in results))),
        "groups": {group.key: figures for group, (figures, _, _) in zip(groups, results, strict=True)},
        "lag_p95_s": round(float(np.quantile(stood_s, 0.95)), 4),
        "identical": all(figures["identical"] for figures, _, _ in results),
    }
