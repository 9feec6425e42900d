"""Rounds on a stage (stage.py): four groups of two samples, the first of them short; permits of a group are real."""

import asyncio
import contextlib

from rlplan.executor.groups.live_permits import LivePermits
from rlplan.executor.rollout.engine_change import round_tail
from rlplan.executor.rollout.prompts import PromptText
from rlplan.executor.rollout.round_runner import RoundOptions, RoundRunner
from rlplan.executor.rollout.unit_change import EngineUnits, round_units
from rlplan.plans.yaml.errors import RunFailed
from rlplan.rounds.machines.race import RaceRound
from rlplan.rounds.permits.permit_events import Seat
from rlplan.traces.trace import read_trace

from ..engines.engine_fakes import FakeActor, Rewards
from ..stage import SHORT, Stage

PROMPT_COUNT, GROUP, LONGEST = 4, 2, 40
PROMPTS = {f"p{i}": PromptText(f"p{i}", "text", (3, 4), None) for i in range(PROMPT_COUNT)}
SAMPLES = PROMPT_COUNT * GROUP


class RoundActor(FakeActor):
    def length(self, request):
        draw, sample = map(int, request.request_id.split("/")[-1].split(".")[:2])
        return LONGEST if sample else 3 + draw


def race(kept=PROMPT_COUNT, group=GROUP, issued=GROUP):
    return RaceRound(list(PROMPTS), kept, group, issued, max_tokens=LONGEST)


class RoundStage(Stage):
    """`given` has the engines that were given weights in mid-round; `prepare` is told each new actor."""

    needs = ("tmp_path",)

    def __init__(self, tmp_path, bounded=True, prepare=lambda actor: None):
        super().__init__(bounded=bounded, actor=RoundActor)
        self.prepare, self.given, self.rewards = prepare, [], Rewards()
        self.path = tmp_path / "weights"
        self.path.write_bytes(b"0")

    async def give(self, engine, version):
        await engine.load(str(self.path), version, False)

    async def give_all(self, engines, version):
        self.given.append([engine.name for engine in engines])
        for engine in engines:
            await self.give(engine, version)

    async def units(self, permits, at_finished):
        return None

    async def round(self, version="v", during=None, machine=None, spec=None, permits=None, at_finished=0.25, **options):
        """One round, from the turns before it; `during(task)` goes on beside it."""
        units = await self.units(permits, at_finished)
        engines = self.short if units is None else units.here
        await self.turns.to_sending(self.run, engines, () if spec is None else self.long)
        for engine in engines:
            if engine.alive:
                await self.give(engine, version)
        await self.turns.to_decoding(self.run, engines)
        tail = round_tail(self.run, spec, SAMPLES, engines, self.fleet, self.turns, self.give_all)
        if units is not None:
            units.samples = SAMPLES
        runner = RoundRunner(self.fleet, self.rewards, PROMPTS, str, temperature=1.0, **{"stall_s": 20.0, **options})
        levers = [lever for lever in (tail, units) if lever is not None]
        how = RoundOptions(max_num_seqs=8)
        running = runner.run(machine or race(), SHORT, version, self.give, version, how, levers)
        task = asyncio.create_task(running)
        try:
            if during is not None:
                await during(task)
            return await asyncio.wait_for(task, 600)
        finally:
            await left(task)
            for lever in levers:
                if not task.cancelled() and task.exception() is None:
                    lever.report(self.run, task.result())


async def left(task):
    """Cancel a round and wait for its end."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, RunFailed):
        await task


def check(result, version="v"):
    """Every sample is whole, by the round's weights."""
    ended = [sample for sample in result.samples.values() if sample.finished_s is not None]  # a lost one is drawn anew
    assert len(ended) == SAMPLES
    for sample in ended:
        assert sample.tokens == list(range(len(sample.tokens))), "tokens are kept where a sample moves"
        assert len(sample.tokens) == (3 + sample.key.draw if sample.key.sample == 0 else LONGEST)
        assert (sample.version_start, sample.version_end) == (version, version)


class Turns:
    """A job's side of the group, as MemberPermits has it, in this process."""

    def __init__(self, live, job):
        self.live, self.job = live, job
        self.arrival, self.turn = live.ready(job, job), 0

    async def holding(self, since_s=-1.0):
        while (held := self.live.holding(self.job, self.arrival, self.turn)) is not None and held.since_s <= since_s:
            await asyncio.sleep(0.005)
        return held

    async def tail(self):
        self.live.tail(self.job, self.arrival, self.turn)

    async def cleared(self, since_s):
        self.live.cleared(self.job, self.arrival, self.turn, since_s)

    def given(self):
        return self.live.given(self.job, self.arrival, self.turn)

    def end(self):
        self.live.done(self.job, self.arrival, self.turn)
        self.turn += 1


class Shared(RoundStage):
    """Two engines on two units of a group, which job b wants as well; `a` has the first turn, and its tail keeps one
    unit."""

    pauses = False
    seats = tuple(Seat(job, ((0, 1), (2,)), (10.0, 1.0), keep=1) for job in "ab")

    def __init__(self, tmp_path, **options):
        super().__init__(tmp_path, **options)
        self.journal = tmp_path / "turns.jsonl"
        self.begin_group()

    def begin_group(self):
        self.group("first_come", self.seats)
        self.b = Turns(self.live, "b")

    def group(self, rule, seats):
        self.live = LivePermits("g1", rule, seats, self.journal, asyncio.get_running_loop().time)
        self.a = Turns(self.live, "a")

    async def units(self, permits, at_finished):
        of_engine = {engine.name: frozenset({number}) for number, engine in enumerate(self.short)}
        where = EngineUnits(of_engine, 1, at_finished, self.pauses and permits.job == "a")
        return await round_units(self.run, permits, where, self.short, self.turns, self.give_all)

    def close(self):
        self.live.close()

    def words(self):
        return [event["event"] for event in read_trace(self.journal) if event["event"] in ("tail", "cleared")]
