"""Nodes that are to be taken away: what is done between two steps, and in which order; all around is fake."""

import asyncio
from types import SimpleNamespace

import pytest

from rlplan.executor.turns import Leaving


class Stage:
    """Node 0 has an engine, node 1 an engine, a judge and the trainer of run a; `log` has what was done."""

    def __init__(self, draining, room=True, fault=None, bad=()):
        self.bad = dict(bad)
        self.draining, self.room, self.fault, self.log, self.notes = draining, room, fault, [], []

    def newly_draining(self):
        new, self.draining = self.draining, {}
        return new

    def failing(self):
        return self.bad

    def exclude(self, number, why):
        self.log.append(f"exclude {number}")
        self.bad = {}

    def address(self, number):
        return f"10.0.0.{number}"

    def trains_on(self, plan, number):
        return (plan, number) == ("a", 1)

    def runs_on(self, engine, number):
        return engine.endswith(str(number))

    def leave(self, number):
        self.log += [f"leave {number}"] if self.room else []
        return self.room

    def all_engines(self):
        return [self.engine("engine-0"), self.engine("engine-1")]

    def engine(self, name):
        return SimpleNamespace(name=name, leave_node=lambda why: self.log.append(f"end {name}: {why}"))

    def run(self, name):
        async def checkpoint():
            self.log.append(f"checkpoint {name}")

        async def recover(death):
            self.log.append(f"recover {death.process}: {death.reason}")

        def event(event, **fields):
            self.log.append(f"{event} {[*fields.values()]} in {name}")

        return SimpleNamespace(
            name=name, step_number=4, checkpoint_fault=self.fault, trainer=SimpleNamespace(name=f"trainer {name}"),
            checkpoint=checkpoint, recover=recover, event=event,
        )  # fmt: skip

    def between_steps(self):
        leaving = Leaving(self, self, [self.run("a"), self.run("b")], [self.engine("judge-1")])

        async def body():
            for _ in range(2):
                await leaving.between_steps(self.notes.append)

        asyncio.run(body())
        return self.log


def test_a_trainers_node_is_left_after_a_checkpoint_of_its_run_alone():
    stage, why = Stage({1: 90.0}), "its node 10.0.0.1 is to be taken away"
    assert stage.between_steps() == [
        "node_draining [4, 1, '10.0.0.1', 90.0] in a", "node_draining [4, 1, '10.0.0.1', 90.0] in b", "checkpoint a",
        "leave 1", f"end engine-1: {why}", f"end judge-1: {why}", f"recover trainer a: {why}",
    ]  # fmt: skip
    assert stage.notes == ["node 10.0.0.1 is to be taken away in 90 s"]


@pytest.mark.parametrize(
    ("stage", "done", "notes"),
    [
        (Stage({0: None}), ["leave 0", "end engine-0: its node 10.0.0.0 is to be taken away"], []),
        (Stage({1: 30.0}, room=False), ["checkpoint a"], ["no other node has room for what runs on node 10.0.0.1; it "
         "stays until the node is gone"]),
        (Stage({1: 90.0}, fault="the disk is full"), ["checkpoint a"], ["node 10.0.0.1 is used until it is gone, since "
         "no checkpoint could be written: the disk is full"]),
    ],
    ids=["engines alone", "no room", "no checkpoint"],
)  # fmt: skip
def test_a_node_is_left_if_nothing_would_be_lost(stage, done, notes):
    assert stage.between_steps()[2:] == done and stage.notes[1:] == notes
    assert stage.notes[0].endswith("is to be taken away") == (done[0] == "leave 0")


def test_a_trainers_node_that_fails_is_excluded_between_steps():
    # Words of memory that ran out elsewhere would count as the trainer's own.
    stage = Stage({}, bad={1: "2 failures there; the last: engine-1: CUDA out of memory"})
    assert stage.between_steps() == [
        "checkpoint a", "exclude 1", "recover trainer a: its node 10.0.0.1 is excluded"
    ]  # fmt: skip
    stage = Stage({}, bad={1: "2 failures there"}, fault="the disk is full")
    assert set(stage.between_steps()) == {"checkpoint a"}, "its state is nowhere else"
