"""Hours of the groups example through the real actor that gives permits, beside the simulator, in a minute.

The jobs of each group are Ray actors on three nodes of this machine, with clocks for devices (fake_job.py); their
phases take the seconds that the simulator draws. The actor is the executor's own, on a clock that goes many times as
fast as the wall's and stands while a word is under way (virtual_time.py); it is killed once.

"The same decisions, bit for bit": as the journal has them, each turn and each move with its job, phase, units,
`resident` and second are equal to those of the simulator, all digits of the second, in the same order.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import ray

import rlplan.plans
from rlplan.executor.groups.permit_actor import ask, start_permits
from rlplan.executor.placement.live_nodes import cluster_nodes, on_node
from rlplan.executor.processes.actors import start_ray
from rlplan.planner.groups.inputs.running_plan import running_state
from rlplan.planner.groups.inputs.workload_jobs import problem_of
from rlplan.planner.groups.simulate.permit_simulator import TrueTurns, machine_seats, simulate_turns
from rlplan.plans.schema.groups_plan import load_groups_plan
from rlplan.plans.schema.workload import load_workload
from rlplan.rounds.permits.permit_events import Action, Consolidate, Event, Grow, Pause, Seat, Start
from rlplan.rounds.permits.permit_machine import PermitMachine
from rlplan.traces.groups.group_turns import TURNS
from rlplan.traces.trace import read_trace

from .fake_job import LOOK_S, FakeJob, all_know
from .virtual_time import ALARM, Ticking, VirtualTime

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
    seats: list[Seat]
    truths: list[TrueTurns]


def groups_to_replay(plan: Path, seed: int) -> list[ReplayGroup]:
    """The groups of a plan of WORKLOAD; each job draws its seconds in an order that the seed gives."""
    workload, cluster = load_workload(WORKLOAD)
    problem = problem_of(workload, WORKLOAD, cluster)
    read = load_groups_plan(plan)
    state = running_state(read, plan, problem.jobs, problem.node_types)
    assert problem.rules.interference == 0.0, "fake devices do not slow each other"
    groups = []
    for key, group in state.groups.items():
        seats, truths = machine_seats(group, state.jobs, problem.rules)
        rng = np.random.default_rng(seed)
        drawn = []
        for truth in truths:
            order = rng.permutation(len(truth.draws_s))
            drawn.append(TrueTurns(tuple(truth.draws_s[number] for number in order), truth.tail_share))
        groups.append(ReplayGroup(key, problem.rules.permit_rule, seats, drawn))
    return groups


def simulated(group: ReplayGroup, until_s: float) -> list[Decided]:
    """What the simulator decides before a second."""
    machine = RecordedMachine(group.rule)
    spans = simulate_turns(machine, group.seats, group.truths, check=True)
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
    actor = start_permits(name, group.key, group.rule, group.seats, folder / TURNS, clock)
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
    wanted, found = simulated(group, until_s), journalled(folder / TURNS, until_s)
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
