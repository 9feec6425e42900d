"""When the machine's speed is measured again, what that asks of engines and trainer, and what the trace says of it."""

import asyncio
from types import SimpleNamespace

import pytest

from rlplan.executor import speed_check as module
from rlplan.executor.engines.engine_bench import EngineBench
from rlplan.executor.speed_check import SpeedCheck
from rlplan.executor.trainer.trainer_group import TrainerDied
from rlplan.plans.schema.predicted import PredictedSpeed
from rlplan.plans.yaml.errors import RunFailed

SPEED = PredictedSpeed.model_validate({
    "decode": [{"sequences": n, "kv_tokens": 56.0, "step_s": s} for n, s in ((1, 0.01), (8, 0.02))],
    "update": {"groups": 3, "prompt_tokens": 5, "response_tokens": [4, 9], "seconds": 0.5},
})  # fmt: skip


class Run:
    """A run whose trainer takes 1 s an update; `fails`: what measuring it raises."""

    def __init__(self, fails=None):
        self.name, self.step_number, self.events, self.did, self.fails = "r", 0, [], [], fails
        update = SimpleNamespace(micro_batch_tokens=64)
        rounds = lambda kind: SimpleNamespace(rollout=SimpleNamespace(layout=kind))  # noqa: E731
        self.settings = SimpleNamespace(of_round=rounds, update_of=lambda kind: update)
        self.trainer = SimpleNamespace(lost=self.lost, time_update=self.time_update)
        self.weights = SimpleNamespace(sync=self.sync, retire=lambda: self.did.append("retire"))
        self.turns = SimpleNamespace(to_sending=self.turn, to_decoding=self.turn, to_training=self.turn)

    async def lost(self):
        await asyncio.sleep(60)

    async def turn(self, run, engines=()):
        self.did.append("turn")

    async def sync(self, engines, version, checked, none_left):
        self.did.append("sync")
        for engine in engines:
            engine.version = version

    async def time_update(self, groups, update):
        self.groups = groups
        if self.fails is not None:
            raise self.fails
        return 1.0

    async def recover(self, death):
        self.did.append("recover")

    def event(self, event, **fields):
        self.events.append({"event": event, **fields})


class Fleet:
    draft_tokens = 2

    def __init__(self):
        self.drafts = []
        self.engine = SimpleNamespace(name="e", version="", begin_drafts=self.begin_drafts)

    async def begin_drafts(self, *limits):
        self.drafts.append(limits)

    def engines(self, layout):
        assert layout == "short"
        return [self.engine]

    def listen(self, hear):
        self.heard = True

    def listen_no_more(self):
        self.heard = False


@pytest.fixture
def fleet(monkeypatch):
    """Engines whose decode steps take 15 ms, whatever they decode."""

    async def seconds(self, engines, batches, tokens):
        assert self._news is not None and len(batches) == len(engines) == 1
        return 0.015 * tokens

    monkeypatch.setattr(module.EngineBench, "seconds", seconds)
    assert module.EngineBench is EngineBench
    return Fleet()


def check(fleet, every=None):
    return SpeedCheck(fleet, {"r": SPEED}, vocabulary=50, seeded=True, every=every)


def test_a_check_tells_how_many_times_as_long_things_take(fleet):
    run = Run()
    line = asyncio.run(check(fleet).before_step(run, begun=False))
    (event,) = run.events
    assert event["decode_s"] == pytest.approx([0.015, 0.015]) and (event["event"], event["step"]) == ("speed", 0)
    assert event["rollout"] == pytest.approx((1.5 + 0.75) / 2) and event["train"] == 2.0
    assert line == "r: decoding takes 1.12x the seconds that the profile has, training 2.00x"
    assert run.did == ["turn", "sync", "turn", "retire", "turn"], "engines have new weights, then the trainer its turn"
    assert fleet.drafts == [(0, 0)] and not fleet.heard
    assert [[sample.tokens for sample in group] for group in run.groups] == [[9, 14]] * 3
    assert all(group[0].reward != group[1].reward for group in run.groups)


@pytest.mark.parametrize(("every", "checked"), [(None, [0]), (3, [0, 3, 6])])
def test_a_check_comes_before_the_first_step_and_when_due(fleet, every, checked):
    async def steps(run, speed):
        for number in range(8):
            run.step_number = number
            await speed.before_step(run, begun=number > 0)

    run = Run()
    asyncio.run(steps(run, check(fleet, every)))
    assert [event["step"] for event in run.events] == checked
    run.name = "another, without what was profiled"
    assert asyncio.run(check(fleet).before_step(run, begun=False)) is None and len(run.events) == len(checked)


def test_a_check_that_fails_ends_no_run(fleet):
    run = Run(RunFailed("an engine of e died while it was timed"))
    assert "speed is not known: an engine of e died" in asyncio.run(check(fleet).before_step(run, begun=False))
    dead = Run(TrainerDied("trainer r", "killed"))
    assert asyncio.run(check(fleet).before_step(dead, begun=False)) is None and dead.did[-1] == "recover"
    assert run.events == dead.events == [] and not fleet.heard


def test_a_stall_while_decode_steps_are_timed_is_told(fleet, monkeypatch):
    async def seconds(self, engines, batches, tokens):
        return 1.0 / tokens

    monkeypatch.setattr(module.EngineBench, "seconds", seconds)
    run = Run()
    assert "stalled" in asyncio.run(check(fleet).before_step(run, begun=False)) and run.events == []
