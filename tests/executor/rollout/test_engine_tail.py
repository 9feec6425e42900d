"""A round whose tail other engines decode: its samples move, tokens kept; the engines are fakes, all else is real."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

from rlplan.executor.engines.engine_handle import EngineBack, EngineHandle
from rlplan.executor.engines.fleet import Fleet, FleetConfig
from rlplan.executor.engines.messages import EngineEvent, EngineFacts
from rlplan.executor.faults import ActorFailed
from rlplan.executor.memory.device_holds import trainer_name
from rlplan.executor.memory.device_turns import DeviceTurns
from rlplan.executor.rewards.pool import RewardResult
from rlplan.executor.rollout import round_runner
from rlplan.executor.rollout.changes.engine_tail import round_tail
from rlplan.executor.rollout.prompts import PromptText
from rlplan.executor.rollout.round_runner import RoundRunner
from rlplan.executor.supervision import Patience, Supervisor
from rlplan.executor.trainer.trainer_group import TrainerDied
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.plans.yaml.errors import RunFailed
from rlplan.rounds.device_holders import KV_CACHE, MOMENTS, PARAMETERS, engine_holder, staying, trainer_holder
from rlplan.rounds.device_ledger import DeviceLedger, DeviceLedgers
from rlplan.rounds.hand_over import TailSpec
from rlplan.rounds.machines.race import RaceRound

from ..conftest import RunInMemory
from ..engines.engine_fakes import FakeActor

PROMPTS = {f"p{i}": PromptText(f"p{i}", "text", (3, 4), None) for i in range(4)}
GROUP, LONGEST = 2, 40
ROUND, TAIL = EngineLayout(1, 2), EngineLayout(2, 1)
SPEC = TailSpec(engines=1, tp=2, at_finished=0.25)


class TokenActor(FakeActor):
    """Decodes a token every `token_s`, each the number of the sample's tokens before it; sample 0 of each group is
    short. `gate`, if set, is waited for before weights are loaded."""

    token_s, capacity, gate, fails_at = 0.01, 10_000, None, ""

    async def _start(self):
        await super()._start()
        return EngineFacts(0.0, self.capacity, 16, 0, ())

    async def _load_weights(self, path, version, checksums):
        if self.gate is not None:
            await self.gate.wait()
        return await super()._load_weights(path, version, checksums)

    async def _decode(self, request):
        draw, sample = map(int, request.request_id.split("/")[-1].split(".")[:2])
        longest = 3 + draw if sample == 0 else LONGEST
        drawn = request.drawn_tokens
        tokens = self.decoded[request.request_id] = []
        while drawn + len(tokens) < longest:
            await asyncio.sleep(self.token_s)
            tokens.append(drawn + len(tokens))
        self._end("finished", request.request_id)

    def _end(self, name, request_id):
        del self.running[request_id]
        tokens = self.decoded.pop(request_id)
        self.outbox.append(
            EngineEvent(name, request_id, tokens, [0.0] * len(tokens), False, self.version, self.version)
        )

    async def _release(self, request_ids):
        for request_id in request_ids:
            self.log.append((self.name, "release", request_id))
            if request_id in self.running:
                self.running[request_id].cancel()
                self.decoded.setdefault(request_id, [])
                self._end("released", request_id)

    async def _held_tokens(self):
        return {name: 2 + len(tokens) for name, tokens in self.decoded.items()}

    async def _sleep(self):
        assert not self.running, "it sleeps while requests decode"
        self.version = ""
        self.log.append((self.name, "sleep"))

    async def _wake(self, part):
        if part == self.fails_at:
            raise ActorFailed(self.name, f"vLLM could not wake {part}")
        self.log.append((self.name, f"wake {part}"))

    def __init__(self, name, log):
        super().__init__(name, log)
        self.decoded = {}


class Rewards:
    """Scores at once, or when `give` is called if they are `held`."""

    def __init__(self, held=False):
        self.held, self.pending = held, []

    def score(self, key, prompt, response, answer, deadline_s=None):
        future = asyncio.get_running_loop().create_future()
        self.pending.append(future)
        if not self.held:
            self.give()
        return future

    def give(self):
        pending, self.pending = self.pending, []
        for future in pending:
            future.set_result(RewardResult(1.0, 0.0, "ok", "", 1, "w"))

    def cancel(self, key):
        return False


class Ranks:
    """A trainer that is placed as it is told."""

    name = "trainer a"

    async def start(self): ...

    async def place(self, parts): ...

    async def close(self): ...


class Stage:
    """Two engines of TP 1 and one of TP 2 on the same two devices, whose memory holds one layout at a time if they are
    `bounded`; and a trainer that shares them."""

    def __init__(self, tmp_path, bounded, prepare=lambda actor: None):
        self.log, self.actors, self.run = [], [], RunInMemory()
        self.path = tmp_path / "weights"
        self.path.write_bytes(b"0")
        supervisor = Supervisor(Patience(stall_s=1.0), pause=lambda seconds: asyncio.sleep(0))

        def spawn(config):
            actor = TokenActor(config.name, self.log)
            self.actors.append(actor)
            prepare(actor)
            return actor

        def handle(config, tell, supervisor):
            return EngineHandle(config, tell, supervisor, spawn, lambda actor: None)

        self.fleet = Fleet(FleetConfig((ROUND, TAIL), "", "float32", "cpu", 8, 8, 1), supervisor, handle)
        self.first, self.tail = self.fleet.engines(ROUND), self.fleet.engines(TAIL)
        states = {PARAMETERS: 10.0, MOMENTS: 20.0}
        trainer = trainer_holder(trainer_name("a"), states, staying(states, 10.0), {"all": 90.0})
        parts = {"engine_weights": 20.0, KV_CACHE: 60.0} if bounded else {}
        devices = []
        for number in range(2):
            holders = [engine_holder(name, parts) for name in (self.first[number].name, self.tail[0].name)]
            holders.append(trainer if bounded else type(trainer)(trainer.name, "trainer"))
            devices.append(DeviceLedger(f"GPU {number}", 100.0, holders))
        self.turns = DeviceTurns(DeviceLedgers(devices), self.fleet, {"a": Ranks()})
        self.given = []

    def actor(self, handle):
        return [actor for actor in self.actors if actor.name == handle.name][-1]

    async def give(self, engine, version):
        await engine.load(str(self.path), version, False)

    async def give_all(self, engines, version):
        self.given.append([engine.name for engine in engines])
        for engine in engines:
            await self.give(engine, version)

    async def round(self, machine=None, spec=SPEC, version="v", during=None, stall_s=20.0, rewards=None):
        """One round, from the turns before it to those after it."""
        await self.turns.to_sending(self.run, self.first, self.tail)
        for engine in self.first:
            if engine.alive:
                await self.give(engine, version)
        await self.turns.to_decoding(self.run, self.first)
        machine = machine or RaceRound(list(PROMPTS), len(PROMPTS), GROUP, GROUP, max_tokens=LONGEST)
        samples = len(PROMPTS) * GROUP
        tail = round_tail(self.run, spec, samples, self.first, self.fleet, self.turns, self.give_all)
        runner = RoundRunner(self.fleet, rewards or Rewards(), PROMPTS, str, temperature=1.0, stall_s=stall_s)
        task = asyncio.create_task(runner.run(machine, ROUND, version, self.give, version, max_num_seqs=8, tail=tail))
        try:
            if during is not None:
                await during(task)
            return await asyncio.wait_for(task, 20)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, RunFailed):
                await task
            if tail is not None and task.done() and not task.cancelled() and task.exception() is None:
                tail.tell(self.run, task.result().samples.values())

    def submitted(self, handle):
        return [entry[2] for entry in self.log if entry[:2] == (handle.name, "submit")]


def play(body, tmp_path, bounded, **options):
    async def scene():
        stage = Stage(tmp_path, bounded, **options)
        try:
            await stage.turns.start()
            await body(stage)
            stage.turns.ledgers.check_invariants()
        finally:
            await stage.fleet.close()

    asyncio.run(asyncio.wait_for(scene(), 40))


def check(result, version="v"):
    """Every sample is whole, by the round's weights."""
    ended = [sample for sample in result.samples.values() if sample.finished_s is not None]  # a lost one is drawn anew
    assert len(ended) == len(PROMPTS) * GROUP
    for sample in ended:
        assert sample.tokens == list(range(len(sample.tokens))), "tokens are kept where a sample moves"
        assert len(sample.tokens) == (3 + sample.key.draw if sample.key.sample == 0 else LONGEST)
        assert (sample.version_start, sample.version_end) == (version, version)


async def until(condition, seconds=10.0):
    for _ in range(int(seconds / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen")


both = pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "unbounded"])


@both
def test_samples_move_to_the_tails_engine_with_their_tokens_and_the_next_round_begins_as_ever(tmp_path, bounded):
    async def body(stage):
        (tail,) = stage.tail
        check(await stage.round())
        moved = stage.submitted(tail)
        assert moved and all(name.endswith(".1") for name in moved), "the second attempt of each that ran"
        assert {sample for sample in moved} <= {f"v/{draw}.{sample}.1" for draw in range(4) for sample in range(2)}
        began = stage.log.index((tail.name, "wake weights"))
        one, other = (stage.log.index((engine.name, "sleep"), 6) for engine in stage.first)
        assert max(one, other) < began < stage.log.index((tail.name, "load", "v"))
        assert stage.log.index((tail.name, "load", "v")) < stage.log.index((tail.name, "wake kv_cache"))
        assert stage.log.index((tail.name, "wake kv_cache")) < stage.log.index((tail.name, "submit", moved[0]))
        assert [fields["turn"] for fields in stage.run.told("turn")][-3:] == [
            "engine_sleeps", "engine_wakes_weights", "engine_wakes_kv",
        ]  # fmt: skip
        (told,) = stage.run.told("tail")
        assert (told["step"], told["engines"], told["tp"], told["moved"]) == (1, 1, 2, len(moved))
        assert 0 < told["seconds"] < told["at_s"] + told["seconds"] < 5
        # The update, and a second round on the first layout again.
        await stage.turns.to_training(stage.run)
        check(await stage.round(version="w"), "w")
        assert len(stage.run.told("tail")) == 2 and len(stage.given) == 2

    play(body, tmp_path, bounded)


@both
def test_what_does_not_fit_into_the_tail_stays_where_it_is(tmp_path, bounded):
    def prepare(actor):
        actor.capacity = 5

    async def body(stage):
        check(await stage.round(spec=TailSpec(1, 2, 0.25, growth_tokens=LONGEST)))
        assert not stage.given and not stage.submitted(stage.tail[0])
        (told,) = stage.run.told("tail")
        assert (told["at_s"], told["seconds"], told["moved"]) == (None, None, 0)

    play(body, tmp_path, bounded, prepare=prepare)


def test_an_error_of_asking_what_engines_hold_ends_the_round_with_it(tmp_path):
    async def body(stage):
        async def no_answer(request_ids=()):
            raise ValueError("held_tokens has no answer")

        for engine in stage.first:
            engine.held_tokens = no_answer
        with pytest.raises(RunFailed, match="held_tokens has no answer"):
            await stage.round()

    play(body, tmp_path, False)


@both
def test_an_engine_of_the_tail_that_is_gone_before_the_change_keeps_the_round_where_it_is(tmp_path, bounded):
    async def body(stage):
        (tail,) = stage.tail

        async def during(task):
            spawn = tail._spawn
            tail._spawn = lambda config: stuck(spawn(config))
            tail.fail("the test ends it")

        check(await stage.round(during=during))
        assert not stage.given and not tail.alive

    def stuck(actor):
        actor.stuck_in_start = True
        return actor

    play(body, tmp_path, bounded)


def test_an_engine_of_the_tail_that_found_no_room_to_start_is_there_in_the_next_long_round(tmp_path):
    async def body(stage):
        (tail,) = stage.tail

        async def during(task):
            tail.fail("the test ends it")

        check(await stage.round(during=during))
        assert not stage.given and not tail.alive, "beside the engines of the round is no room for it"
        await stage.turns.to_training(stage.run)
        check(await stage.round(version="w"), "w")
        assert stage.given and stage.submitted(tail)
        assert [fields["at_s"] is None for fields in stage.run.told("tail")] == [True, False]

    play(body, tmp_path, True)


@both
@pytest.mark.parametrize("when", ["weights", "loads", "kv_cache", "decodes"])
def test_an_engine_of_the_tail_that_dies_in_the_change_or_after_it_is_replaced_and_nothing_is_lost(
    tmp_path, bounded, when
):
    async def body(stage):
        (tail,) = stage.tail
        first = stage.actor(tail)

        async def during(task):
            if when in ("weights", "kv_cache"):
                first.fails_at = when
            elif when == "loads":
                first.gate = asyncio.Event()
                await until(lambda: stage.given)
                first.core_dead = True
                first.gate.set()
            else:
                await until(lambda: stage.submitted(tail))
                first.core_dead = True

        check(await stage.round(during=during))
        assert [actor.name for actor in stage.actors].count(tail.name) == 2
        ran = [name for name in stage.submitted(tail) if not name.endswith(".0")]
        assert ran
        (told,) = stage.run.told("tail")
        assert told["at_s"] is not None and told["seconds"] is not None

    play(body, tmp_path, bounded)


@both
def test_an_engine_of_the_round_that_dies_as_its_samples_are_released_costs_these_tokens_and_no_sample(
    tmp_path, bounded
):
    async def body(stage):
        async def during(task):
            one = stage.first[0]
            await until(lambda: any(entry[1] == "release" for entry in stage.log))
            one.fail("the test ends it")

        result = await stage.round(during=during)
        check(result)
        assert stage.given == [[stage.tail[0].name]]

    play(body, tmp_path, bounded)


@both
def test_a_round_that_is_done_in_mid_change_ends_with_the_step_of_it_that_goes_on(tmp_path, bounded):
    async def body(stage):
        (tail,) = stage.tail
        gate = stage.actor(tail).gate = asyncio.Event()
        rewards = Rewards(held=True)

        async def during(task):
            await until(lambda: stage.given)
            rewards.held = False
            rewards.give()
            await asyncio.sleep(0.05)
            assert not task.done(), "the weights that are on their way are waited for"
            gate.set()

        # A group of one sample is trained, and what decodes or waits of the others is of no use then.
        machine = RaceRound(list(PROMPTS), 1, 1, 2, max_tokens=LONGEST)
        result = await stage.round(machine, TailSpec(1, 2, 0.125), during=during, rewards=rewards)
        assert len(machine.outcome().trained) == 1
        waited = [sample for sample in result.samples.values() if sample.aborted and sample.tokens]
        assert waited and not stage.submitted(tail)
        assert (tail.name, "wake kv_cache") not in stage.log
        (told,) = stage.run.told("tail")
        assert told["at_s"] is not None and told["seconds"] is None and told["moved"] == 0
        await stage.turns.to_training(stage.run)
        check(await stage.round(version="w"), "w")

    play(body, tmp_path, bounded)


@both
def test_an_engine_of_the_tail_that_cannot_be_replaced_ends_the_round_with_the_reason(tmp_path, bounded):
    async def body(stage):
        (tail,) = stage.tail

        async def during(task):
            await until(lambda: stage.submitted(tail))
            spawn = tail._spawn
            tail._spawn = lambda config: dying(spawn(config))
            stage.actor(tail).core_dead = True

        with pytest.raises(RunFailed, match="did not start"):
            await stage.round(during=during)

    def dying(actor):
        actor.dies_in_start = True
        return actor

    play(body, tmp_path, bounded)


@both
def test_a_round_that_ends_in_the_change_leaves_nothing_that_moves(tmp_path, bounded):
    """What decodes when the change begins is aborted in mid-change: the load has begun and is carried out, and no
    further step is taken."""

    async def body(stage):
        (tail,) = stage.tail
        stage.actor(tail).gate = asyncio.Event()

        async def during(task):
            await until(lambda: stage.given)
            task.cancel()
            await asyncio.sleep(0.05)
            stage.actor(tail).gate.set()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        with pytest.raises(asyncio.CancelledError):
            await stage.round(during=during)
        assert (tail.name, "wake kv_cache") not in stage.log
        await stage.turns.to_training(stage.run)
        before = len(stage.log)
        await asyncio.sleep(0.1)
        assert len(stage.log) == before, "nobody moves any more"
        check(await stage.round(version="w"), "w")

    play(body, tmp_path, bounded)


@both
def test_a_trainer_that_dies_while_the_tail_gets_weights_costs_no_engine(tmp_path, bounded):
    async def body(stage):
        (tail,) = stage.tail
        lives, give_all = tail.lives, stage.give_all

        async def dies(engines, version):
            stage.given.append([])
            raise TrainerDied("trainer a", "it is gone")

        async def during(task):
            await until(lambda: stage.given)
            await asyncio.sleep(0.05)
            task.cancel()  # as the run does, which goes back to its checkpoint

        stage.give_all = dies
        with pytest.raises(asyncio.CancelledError):
            await stage.round(during=during)
        assert tail.alive and tail.lives == lives
        await stage.turns.to_training(stage.run)
        stage.give_all = give_all
        result = await stage.round(version="w")
        check(result, "w")
        assert any(sample.moves for sample in result.samples.values()), "the next round has its tail"

    play(body, tmp_path, bounded)


def test_a_round_is_left_even_if_a_message_comes_with_the_cancellation(tmp_path):
    async def body(stage):
        async def during(task):
            await until(lambda: stage.submitted(stage.first[0]))
            stage.fleet.hear(EngineBack(stage.first[0]))
            task.cancel()
            await asyncio.wait({task}, timeout=0.2)
            assert task.cancelled()

        with pytest.raises(asyncio.CancelledError):
            await stage.round(during=during)

    play(body, tmp_path, True)


def test_a_round_that_is_left_does_not_wait_for_a_load_that_hangs_and_the_next_turn_does(tmp_path, monkeypatch):
    monkeypatch.setattr(round_runner, "LEAVE_S", 0.1)

    async def body(stage):
        (tail,) = stage.tail
        gate = stage.actor(tail).gate = asyncio.Event()

        async def during(task):
            await until(lambda: stage.given)
            task.cancel()
            await asyncio.wait({task}, timeout=1.0)
            assert task.done()

        with pytest.raises(asyncio.CancelledError):
            await stage.round(during=during)
        gate.set()
        await stage.turns.to_training(stage.run)
        await asyncio.sleep(0.05)
        assert (tail.name, "wake kv_cache") not in stage.log

    play(body, tmp_path, True)


def test_a_change_that_the_devices_have_no_room_for_is_refused(tmp_path):
    async def body(stage):
        tail = stage.tail[0].name
        for ledger in stage.turns.ledgers.ledgers:
            ledger.holders[tail] = engine_holder(tail, {"engine_weights": 20.0, KV_CACHE: 75.0})
        check(await stage.round())
        assert not stage.given and stage.run.told("tail")[0]["at_s"] is None

    play(body, tmp_path, True)
