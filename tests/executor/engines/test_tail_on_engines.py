"""A round that begins on two real engines of TP 1 and ends on one of TP 2, by the same weights."""

import asyncio

import pytest

from rlplan.executor.memory.device_turns import DeviceTurns
from rlplan.executor.rollout.engine_change import round_tail
from rlplan.executor.rollout.round_runner import RoundOptions
from rlplan.plans.schema.levers import EngineLayout, RoundTail
from rlplan.rounds.device_ledger import Device, DeviceLedger, Holder
from rlplan.rounds.machines.race import RaceRound
from rlplan.rounds.seeds import RoundSeeds

from ..conftest import RunInMemory
from .test_engines import PROMPTS, load, runner

pytestmark = pytest.mark.engine

ONE, TWO = EngineLayout(1, 2), EngineLayout(2, 1)
LONGEST, GROUP = 200, 4


class Ranks:
    """A trainer that keeps to itself."""

    async def place(self, parts): ...


async def tail_round(fleet, path, version, spec):
    """A seeded round on the engines of TP 1, as `spec` has its tail; (its machine, result, run)."""
    small, large, run = fleet.engines(ONE), fleet.engines(TWO), RunInMemory()
    devices = [
        Device(f"core {n}", float("inf"), [Holder(e.name, "engine") for e in (small[n], *large)]) for n in range(2)
    ]
    devices.append(Device("trainer's core", float("inf"), [Holder("trainer a", "trainer")]))
    turns = DeviceTurns(DeviceLedger(devices), fleet, {"a": Ranks()})
    machine = RaceRound(list(PROMPTS), len(PROMPTS), GROUP, GROUP, LONGEST)
    try:
        await turns._go(lambda ledger: [])  # all engines are up
        await turns.to_sending(run, small)
        await load(fleet, ONE, path, version)
        await turns.to_decoding(run, small)

        async def give(engine, to):
            await engine.load(str(path), to, False)

        async def give_all(engines, to):
            await asyncio.gather(*(give(engine, to) for engine in engines))

        tail = round_tail(run, spec, len(PROMPTS) * GROUP, small, fleet, turns, give_all)
        seeds = RoundSeeds(7, lambda prompt: 0, None)
        levers = [] if tail is None else [tail]
        result = await runner(fleet).run(machine, ONE, version, give, version, RoundOptions(seeds), levers)
        if tail is not None:
            tail.report(run, result)
        # As tests that share the engines expect them: awake.
        for engine in [*small, *large]:
            state = turns.ledger.states[engine.name]
            if state == "asleep":
                await engine.wake("weights")
            if state in ("asleep", "loading"):
                await give(engine, version)
                await engine.wake("kv_cache")
    finally:
        for engine in [*small, *large]:
            engine.room = engine.gone = None
    return machine, result, run


def check(machine, result, version):
    """Every group is trained, and every token is of the round's weights."""
    assert len(machine.outcome().trained) == len(PROMPTS)
    ended = [sample for sample in result.samples.values() if sample.finished_s is not None]
    assert {(sample.version_start, sample.version_end) for sample in ended} == {(version, version)}
    assert all(len(sample.tokens) == len(sample.logprobs) for sample in ended)


def test_samples_that_go_on_at_tp_2_are_unchanged(fleet, loop, tiny_model):
    async def body():
        path = tiny_model / "model.safetensors"
        plain = await tail_round(fleet, path, "plain", None)
        return plain, await tail_round(fleet, path, "tail", RoundTail(engines=1, tp=2, at_finished=0.25))

    (plain_machine, plain, _), (machine, result, run) = loop.run_until_complete(body())
    check(plain_machine, plain, "plain")
    check(machine, result, "tail")
    moved = [sample for sample in result.samples.values() if sample.moves]
    assert moved and {sample.engine for sample in moved} == {"rollout-tp2-0"}
    assert {sample.engine for sample in result.samples.values() if not sample.moves} <= {
        e.name for e in fleet.engines(ONE)
    }
    (told,) = [fields for event, fields in run.events if event == "tail"]
    assert told["moved"] == len(moved) and told["at_s"] > 0 and told["seconds"] > 0
    assert plain.samples.keys() == result.samples.keys(), "no sample was drawn again"
    for key, sample in result.samples.items():
        assert sample.tokens == plain.samples[key].tokens
        # Two ranks sum in another order than one.
        assert sample.logprobs == pytest.approx(plain.samples[key].logprobs, abs=1e-4)
    turns = [fields["turn"] for event, fields in run.events if event == "turn"]
    assert turns == ["engine_sleeps", "engine_sleeps", "engine_wakes_weights", "engine_wakes_kv"]
