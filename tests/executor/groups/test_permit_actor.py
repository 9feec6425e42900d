"""The actor that gives permits, in Ray: jobs whose devices are clocks take turns through it, and it is killed."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("ray")

import ray

from rlplan.executor.actors import start_ray
from rlplan.executor.groups import permit_actor
from rlplan.executor.groups.permit_actor import GroupState, MemberPermits, ask, start_permits
from rlplan.plans.yaml.errors import RunFailed
from rlplan.rounds.permits.permit_events import Arrive, Done, Leave, Seat, Start, Wake
from rlplan.rounds.permits.permit_machine import PermitMachine
from rlplan.traces.groups.group_turns import TURNS, read_turns

SECONDS = {"a": (0.06, 0.03), "b": (0.04, 0.05), "c": (0.02, 0.02)}
ITERATIONS = 12


def seats():
    return [Seat(job, ((0,), (1,)), each) for job, each in SECONDS.items()]


async def train(name, job):
    """A job with devices that are clocks; it begins its third rollout twice, as one whose trainer died does."""
    permits = MemberPermits(name, job, f"process of {job}")
    await permits.ready()
    for iteration in range(ITERATIONS):
        for phase, seconds in zip(("rollout", "train"), SECONDS[job], strict=True):
            await permits.begin(phase)
            await asyncio.sleep(seconds)
            if iteration == 2 and phase == "train":
                await permits.begin("rollout")
                await permits.begin("train")
            await permits.end()
    await permits.leave()


def test_turns_go_on_where_they_stood_when_the_actor_dies_and_are_those_of_the_machine(tmp_path, loop):
    start_ray()
    actor = start_permits("permits-test", "g1", "multi_rate", seats(), tmp_path / TURNS)

    async def kill():
        for _ in range(3):
            await asyncio.sleep(0.7)
            ray.kill(actor, no_restart=False)

    async def run():
        await asyncio.wait_for(asyncio.gather(*(train("permits-test", job) for job in SECONDS), kill()), 120)
        return GroupState(*await ask(lambda: actor, "state"))

    state = loop.run_until_complete(run())
    assert state.held == {}
    turns = read_turns(tmp_path / TURNS)
    for job in SECONDS:
        ended = [turn for turn in turns.turns if turn.job == job and turn.ended]
        assert [turn.phase for turn in ended] == ["rollout", "train"] * (len(ended) // 2)
        assert len(ended) == 2 * ITERATIONS + 2
    assert decided(tmp_path / TURNS) == told(tmp_path / TURNS)


def events(journal):
    return [json.loads(line) for line in journal.read_text().splitlines()]


def told(journal):
    """(second, job, phase) of each turn that the actor gave, as its journal has them."""
    return [
        (e["t_s"], turn["job"], turn["phase"]) for e in events(journal) if e["event"] == "turns" for turn in e["begun"]
    ]


def decided(journal):
    """The same by a machine that is given the journal's events at their times."""
    machine, ready, made = PermitMachine("multi_rate"), 0, []
    for event in events(journal):
        given = None
        match event["event"]:
            case "ready":
                ready += 1
                given = Arrive(tuple(seats())) if ready == len(SECONDS) else None
            case "done":
                given = Done(event["job"])
            case "leave":
                given = Leave(event["job"])
            case "wake":
                given = Wake()
        actions = [] if given is None else machine.handle(given, event["t_s"])
        made += [(event["t_s"], action.job, action.phase) for action in actions if isinstance(action, Start)]
    return made


def test_a_job_that_finds_no_actor_gives_up_in_time(monkeypatch, loop):
    start_ray()
    monkeypatch.setattr(permit_actor, "ACTOR_S", 1.0)
    with pytest.raises(RunFailed, match="actor that gives permits is gone"):
        loop.run_until_complete(MemberPermits("nobody", "a", "p").ready())
