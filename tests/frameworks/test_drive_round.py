"""Rounds driven on a fake engine: whatever order requests end in, the machine's account holds."""

import asyncio
import random

import pytest

from rlplan.frameworks.drive_round import DecodedSample, EngineGone, drive_round
from rlplan.plans.yaml.errors import InputError
from rlplan.rounds.round_spec import QueueRule, RoundSpec
from rlplan.rounds.schedule import Schedule

SPEC = RoundSpec("exact", 4, 2, 64, 6, 2, cutoff_tokens=16, queue=QueueRule(6))


class FakeEngine:
    """Draws a length for each sample, waits at random; counts requests that are open."""

    def __init__(self, seed, dies=0.0):
        self.random, self.dies = random.Random(seed), dies
        self.open, self.most, self.lengths = 0, 0, {}

    async def decode(self, issue, before, max_tokens):
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            for _ in range(self.random.randrange(4)):
                await asyncio.sleep(0)
            if self.random.random() < self.dies:
                raise EngineGone
            whole = before.sample[1] if before else min(64, 1 + int(self.random.expovariate(1 / 14)))
            tokens = min(whole, max_tokens)
            return DecodedSample((issue.prompt, whole), tokens, tokens < whole or whole == 64)
        finally:
            self.open -= 1


async def score(sample):
    await asyncio.sleep(0)
    return float(sample[1] % 2)


@pytest.mark.parametrize("dies", [0.0, 0.1])
def test_all_prompts_are_trained_once_an_epoch(dies):
    engine, prompts = FakeEngine(7, dies), [f"p{n:02d}" for n in range(40)]
    schedule, trained, kinds = Schedule(SPEC, prompts, seed=3), {}, set()
    while schedule.epoch < 4:
        machine = schedule.begin()
        kinds.add(machine.kind)
        decoded = asyncio.run(drive_round(machine, engine.decode, score))
        assert engine.open == 0
        for group in schedule.end(machine).trained:
            trained[group.prompt] = trained.get(group.prompt, 0) + 1
            assert [decoded[key].tokens for key in group.keys] == list(group.tokens)
    assert kinds == {"short", "long"} and engine.most > 4
    assert set(trained) == set(prompts)
    assert max(trained.values()) - min(trained.values()) <= 2


def test_an_error_of_the_engine_fails_its_prompt_at_last():
    async def broken(issue, before, max_tokens):
        if issue.prompt == "p01":
            raise OSError("no route")
        return DecodedSample((issue.prompt, 5), 5, False)

    schedule = Schedule(SPEC, [f"p{n:02d}" for n in range(12)], seed=1)
    failures = {}
    for _ in range(4):
        machine = schedule.begin()
        asyncio.run(drive_round(machine, broken, score))
        failures |= schedule.end(machine).failures
    assert failures == {"p01": "OSError: no route"}


def test_a_round_that_is_left_leaves_no_request():
    engine = FakeEngine(5)

    async def hangs(issue, before, max_tokens):
        engine.open += 1
        try:
            await asyncio.sleep(3600)
        finally:
            engine.open -= 1

    async def leave():
        task = asyncio.ensure_future(drive_round(Schedule(SPEC, list("abcdefgh"), 1).begin(), hangs, score))
        await asyncio.sleep(0.01)
        assert engine.open == 12
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert engine.open == 0


def test_an_aborted_request_has_ended_when_the_round_has():
    stopping, stopped = [], []

    async def slow_to_stop(issue, before, max_tokens):
        try:
            await asyncio.sleep(0 if issue.key.draw < 4 else 3600)
        except asyncio.CancelledError:
            stopping.append(issue.key)
            for _ in range(50):
                await asyncio.sleep(0)
            stopped.append(issue.key)
            raise
        return DecodedSample((issue.prompt, 5), 5, False)

    machine = Schedule(SPEC, [f"p{n:02d}" for n in range(12)], seed=1).begin()
    asyncio.run(drive_round(machine, slow_to_stop, score))
    assert len(stopping) == 4 and stopped == stopping


def test_wrong_input_ends_the_round_and_is_no_failure_of_machines():
    async def wrong(issue, before, max_tokens):
        raise InputError("rows with an agent of their own: leave the column out")

    machine = Schedule(SPEC, [f"p{n:02d}" for n in range(12)], seed=1).begin()
    with pytest.raises(InputError, match="leave the column out"):
        asyncio.run(drive_round(machine, wrong, score))
