"""What is asked of engines and trainers, in which order, and what follows from the seconds that they take."""

import asyncio
import itertools
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from rlplan.executor.drafts.draft_messages import BatchSteps, DraftReport
from rlplan.executor.engines import engine_bench
from rlplan.executor.engines.engine_handle import EngineDied, EngineEvents
from rlplan.executor.engines.messages import EngineEvent
from rlplan.executor.rollout.prompts import PromptText
from rlplan.executor.rollout.reward_sum import PartScore
from rlplan.executor.rollout.round_samples import RolloutResult, RolloutSample
from rlplan.executor.trainer.step_checks import LOGPROB_LIMITS
from rlplan.executor.trainer.train_samples import TrainSample
from rlplan.plans.schema.levers import EngineLayout, UpdateLayout
from rlplan.plans.yaml.errors import RunFailed
from rlplan.profiles.laws.draft_counts import fit_drafts, summed
from rlplan.profiles.laws.measured_fit import MeasuredRound
from rlplan.profiles.laws.reward_fit import ScoredSample
from rlplan.profiles.measure import measure_drafts
from rlplan.profiles.measure import measure_job as engines_module
from rlplan.profiles.measure import measure_job as reward_module
from rlplan.profiles.measure import measure_judge as judge_module
from rlplan.profiles.measure import measure_rollout as rollout
from rlplan.profiles.measure import measure_rounds as rounds_module
from rlplan.profiles.measure import measure_updates as updates_module
from rlplan.profiles.measure.measure_rollout import Decoded, decode_grid, measure_layout, spread
from rlplan.profiles.measure.measure_rounds import Effort, RoundSampler, Sampled, wide_prompts
from rlplan.profiles.measure.measure_site import FIRST, Subject
from rlplan.profiles.measure.measure_updates import Bench as UpdateBench
from rlplan.profiles.measure.measure_updates import measure_updates, scaled, step_groups
from rlplan.profiles.phase_schema import Train
from rlplan.rounds.device_ledger import Holder
from rlplan.rounds.machines.events import Finished, Issue, Scored

from .fakes import Bench, Clock, Turns, budget, demo_job, engine, pool


@pytest.fixture
def clock(monkeypatch):
    """The seconds that measuring modules see."""
    found = Clock()
    for module in (engine_bench, rounds_module, updates_module, judge_module, reward_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=found))
    return found


# -- decode steps and prefill ------------------------------------------------------------------------------------------


def test_a_grid_reaches_from_one_sequence_to_the_longest_context():
    grid = decode_grid(Decoded(64, 96, 1120), 1, 10**6, 128)
    assert [tuple(point) for point in grid] == [
        (1, 16, True), (8, 16, False), (32, 16, False), (128, 16, True), (16, 1025, True), (64, 1025, True),
    ]  # fmt: skip
    # One token beyond whole blocks of the cache, and no further than a sample may get.
    assert max(point.context_tokens for point in decode_grid(Decoded(512, 1024, 17408), 8, 10**6, 16)) == 17329
    assert max(point.context_tokens for point in decode_grid(Decoded(64, 8, 60), 1, 10**6, 128)) == 32


@pytest.mark.parametrize("capacity", [2_000, 30_000, 500_000])
def test_no_point_of_the_grid_overfills_the_engines_cache(capacity):
    points = [p for p in decode_grid(Decoded(512, 1024, 17408), 2, capacity, 16) if p.context_tokens > 16]
    held = [p.sequences * (p.context_tokens + rollout.LONG_TOKENS) for p in points if p.sequences > 1]
    assert all(tokens <= rollout.CACHE_SHARE * capacity for tokens in held)
    assert points and (capacity < 500_000 or held)


def measured(bench, time, engines=1, samples=64):
    facts = [engine(kv_capacity_tokens=10**6 + n, kv_block_tokens=128, start_s=3.0 + n) for n in range(engines)]
    layout = EngineLayout(1, engines)
    return asyncio.run(measure_layout(bench, facts, layout, Decoded(samples, 96, 1120), time, "one"))


def test_the_costs_of_steps_and_prompts_are_found_again():
    time, clock, lines = budget()
    bench = Bench(clock, request_s=0.003)
    costs = measured(bench, time, engines=2)
    assert (costs.decode.a, costs.decode.b, costs.decode.c) == pytest.approx((0.01, 1e-3, 1e-6), rel=1e-6)
    assert costs.prefill_s_per_token == pytest.approx(1e-4, rel=0.02)
    assert costs.prefill_s == pytest.approx(0.003, rel=0.02)
    assert (costs.kv_capacity_tokens, costs.kv_block_tokens) == (10**6, 128)
    assert (costs.start.p50, costs.start.repeats) == (3.5, 2)
    assert len(costs.decode.points) == 6 and time.outcome is None
    assert lines[-1].startswith("one: prefill (") and "one: decode: 1 sequences, context 16" in lines[0]
    # A point: one prompt alone, all once, and two pairs of a short and a long decode that agree.
    of_64 = [tokens for _, sequences, _, tokens, _ in bench.asked if sequences == 64]
    assert of_64 == [1, 8, 72, 8, 72] and {engines for engines, *_ in bench.asked} == {2}


def test_only_the_least_of_a_grid_is_measured_without_time():
    time, clock, _ = budget(0)
    costs = measured(Bench(clock), time)
    assert [(p.sequences, p.kv_tokens) for p in costs.decode.points] == [(1, 56), (128, 7168), (16, 17040), (64, 68160)]
    assert time.outcome.endswith("were over: one: decode steps between the ends of the grid")


def test_prompts_of_a_long_context_are_shared_where_prefill_takes_long():
    time, clock, _ = budget()
    bench = Bench(clock, request_s=6.0)
    measured(bench, time)
    prefilled = [(of, new) for _, of, context, tokens, new in bench.asked if tokens == 1 and context == 1025]
    assert prefilled == [(1, 1), (16, 2), (1, 1), (64, 2)], "three prompts take 18 s"


def test_steps_that_disagree_are_measured_again_and_stalls_are_not(monkeypatch):
    def steps_of(*took_s):
        seconds = iter([0.1, 0.1, *took_s])

        class Unsteady(Bench):
            async def seconds(self, engines, batches, tokens):
                return next(seconds)

        found = rollout._measure_point(Unsteady(Clock()), [engine()], rollout.GridPoint(4, 16, True))
        return asyncio.run(found)

    point = steps_of(1.0, 1.64, 1.0, 2.28, 1.0, 1.96)
    assert (point.step_s, point.kv_tokens, point.sequences) == (pytest.approx(0.015), 4 * 56, 4)
    assert point.spread == pytest.approx(1 / 3)
    assert steps_of(1.0, 1.64, 1.0, 1.65).step_s == pytest.approx(0.01008, rel=0.01), "two that agree are enough"
    assert steps_of(*[2.0, 1.0] * 3) is None


def test_more_work_in_less_time_is_measured_again():
    time, clock, lines = budget()

    class Warming(Bench):
        """The first decodes of one sequence take ten times as long: something else ran."""

        slow = 6

        async def seconds(self, engines, batches, tokens):
            took_s = await super().seconds(engines, batches, tokens)
            if len(batches[0]) == 1 and tokens > 1 and self.slow:
                self.slow -= 1
                return 10 * took_s
            return took_s

    costs = measured(Warming(clock), time, samples=4)
    assert costs.decode.points[0].sequences == 1 and costs.decode.points[0].step_s == pytest.approx(0.011, rel=0.01)
    assert any("again, since more work took less time: 1 sequences" in line for line in lines)
    assert costs.decode.a == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize(("times", "p50", "p95"), [([3.0, 1.0, 2.0], 2.0, 3.0), ([5.0] * 19 + [9.0], 5.0, 5.0)])
def test_a_spread_is_median_and_nearest_rank(times, p50, p95):
    found = spread(times)
    assert (found.p50, found.p95, found.repeats) == (p50, p95, len(times))


class Fleet:
    def listen(self, hear):
        self.hear = hear


class Engine:
    """Ends what it is asked after so many seconds, or dies."""

    name, version = "e0", "v1"

    def __init__(self, fleet, clock, dies=False):
        self.fleet, self.clock, self.dies, self.requests = fleet, clock, dies, []

    async def submit(self, requests, version):
        assert version == "v1"
        self.requests += requests
        self.clock.now += 2.5
        ends = [EngineEvent("finished", request.request_id) for request in requests]
        for event in (EngineEvent("alive", ""), *ends):
            self.fleet.hear(EngineDied(self, "gone") if self.dies else EngineEvents(self, [event]))


def test_a_batch_takes_until_its_last_prompt_has_its_tokens(clock):
    for seeded in (True, False):
        fleet = Fleet()
        bench = engine_bench.EngineBench(fleet, 50, 7, seeded)
        one, other = Engine(fleet, clock), Engine(fleet, clock)
        batches = bench.prompts(2, 3, 4)
        assert asyncio.run(bench.seconds([one, other], batches, 9)) == 5.0
        requests = one.requests + other.requests
        assert [r.prompt_tokens for r in requests] == [prompt for batch in batches for prompt in batch]
        assert len({r.request_id for r in requests}) == 6 and len({r.prompt_tokens for r in requests}) == 6
        assert {(r.max_tokens, r.ignore_eos) for r in requests} == {(9, True)}
        assert {r.seed for r in requests} == (set(range(6)) if seeded else {None})
    with pytest.raises(RunFailed, match="an engine of e0 died"):
        asyncio.run(bench.seconds([Engine(fleet, clock, dies=True)], [[(1,)]], 2))


# -- engines, one TP size after another --------------------------------------------------------------------------------

LAYOUTS = [EngineLayout(1, 1), EngineLayout(1, 2), EngineLayout(2, 1)]


class Sampler:
    """Notes what it is asked for."""

    def __init__(self, clock, takes_s=10.0, fails=()):
        self.asked, self.sampled, self._clock, self._takes_s, self._fails = [], Sampled(), clock, takes_s, fails

    def __getattr__(self, name):
        async def ask(layout, *more, first=None):
            self.asked.append(f"{name} {layout.tp}x{layout.engines}{' first' if first else ''}")
            self._clock.now += self._takes_s
            if (name, layout.tp) in self._fails:
                raise RunFailed("out of memory")
            if name == "lengths":
                self.sampled.groups.append([])

        return ask


def engines_of(monkeypatch, kind="cuda", minutes=15.0, fails=(), beside=None):
    time, clock, lines = budget(minutes)
    sampler, turns = Sampler(clock, fails=fails), Turns()
    decoded, begin = [], time.begin
    time.begin = lambda parts: lines.append(parts) or begin(parts)

    async def measure(bench, engines, layout, of, budget, prefix):
        decoded.append((layout, of.samples, prefix))
        return layout

    async def start():
        turns.taken.append(("rewards",))

    monkeypatch.setattr(engines_module, "measure_layout", measure)
    monkeypatch.setattr(engines_module, "EngineBench", lambda *how, **more: "bench")
    names = {1: ["a", "b"], 2: ["c"]}
    fleet = SimpleNamespace(
        engines=lambda layout: [SimpleNamespace(name=name) for name in names[layout.tp][: layout.engines]],
        all_engines=lambda: [SimpleNamespace(name=name) for name in "abc"],
    )
    site = SimpleNamespace(fleet=fleet, turns=turns, rewards=SimpleNamespace(start=start))
    job, paths = demo_job()
    subject = Subject(job, paths, "main", pool(2, kind=kind), 10**6)
    measuring = engines_module.measure_engines(subject, site, sampler, time, LAYOUTS, 100, beside)
    costs = asyncio.run(measuring)
    taken = [
        (name, *("".join(getattr(each, "name", each) for each in who) for who in whom)) for name, *whom in turns.taken
    ]
    return costs, sampler.asked, taken, decoded, time, lines


def test_engines_of_a_size_are_measured_before_those_of_the_next(monkeypatch):
    besides = []

    async def beside(engine, bench):
        besides.append((engine.name, bench))

    costs, asked, taken, decoded, time, lines = engines_of(monkeypatch, beside=beside)
    assert list(costs) == LAYOUTS and time.outcome is None and besides == [("a", "bench")]
    assert asked == [
        "ready 1x1", "least 1x1 first", "ready 1x2", "least 1x2", "lengths 1x2", "ready 1x2",
        "more 1x1 first", "more 1x2", "more_lengths 1x2", "ready 2x1", "least 2x1", "more 2x1",
    ]  # fmt: skip
    assert sorted(taken[:2]) == [("rewards",), ("start", "ab", FIRST)]
    assert taken[2:] == [("end", "ab"), ("start", "c", ""), ("end", "c")]
    # A step has 64 samples, of which one engine of two has half.
    assert [(samples, prefix) for _, samples, prefix in decoded] == [
        (32, "1 engine, TP 1"), (64, "2 engines, TP 1"), (64, "1 engine, TP 2")
    ]  # fmt: skip
    assert [line if isinstance(line, float) else line.split(" (")[0] for line in lines] == [
        2.5, "starting a, b", "1 engine, TP 1: first weights", "2 engines, TP 1: first weights",
        1.5, "starting c", "1 engine, TP 2: first weights",
    ]  # fmt: skip


def test_cpu_engines_of_all_sizes_start_at_once(monkeypatch):
    _, _, taken, decoded, _, lines = engines_of(monkeypatch, kind="cpu")
    assert lines[0] == 3.0, "on CPUs half a part is for drafts, too"
    assert ("start", "abc", FIRST) in taken and ("start", "", "") in taken
    assert [samples for _, samples, _ in decoded] == [64, 64, 64]


def test_a_size_that_fails_or_has_no_time_is_left_out(monkeypatch):
    costs, _, taken, _, _, lines = engines_of(monkeypatch, fails=[("more", 2)])
    assert list(costs) == LAYOUTS and taken[-1] == ("end", "c")
    assert "the rest of 1 engine, TP 2 is left out: out of memory (" in lines[-1]
    with pytest.raises(RunFailed, match="out of memory"):
        engines_of(monkeypatch, fails=[("least", 1)])
    costs, _, taken, _, time, _ = engines_of(monkeypatch, minutes=1.2)
    assert list(costs) == LAYOUTS[:2] and ("start", "c", "") not in taken
    assert time.outcome.startswith("left out, since --minutes 1.2 were over: 1 engine, TP 2; the least")


# -- rounds ------------------------------------------------------------------------------------------------------------


class Runner:
    """Drives a round; each sample has as many tokens as its prompt's number says, and takes the clock a second."""

    def __init__(self, clock, restarts=()):
        self.clock, self.rounds, self.restarts = clock, [], list(restarts)

    async def run(self, round_, layout, version, join, started, options):
        self.rounds.append((list(round_.taken), round_.max_tokens, options.seeds is not None))
        samples, pending = {}, round_.start()
        while pending:
            action = pending.pop(0)
            if isinstance(action, Issue):
                tokens = min(int(action.prompt[1:]) + 1, action.max_tokens)
                samples[action.key] = RolloutSample(
                    action.prompt, action.key.sample, (1, 2), [7] * tokens, [0.0] * tokens, 1.0, draw=action.key.draw,
                    reward_parts={"function": PartScore(1.0, 0.25, "ok")},
                )  # fmt: skip
                pending += round_.handle(Finished(action.key, tokens, False))
            else:
                pending += round_.handle(Scored(action.key, 1.0))
        self.clock.now += len(round_.taken)
        return RolloutResult(3.0, 0.5, samples, self.restarts)


def sampler_of(clock, minutes=15.0, prompts=40, effort=None, restarts=(), **rollout):
    time, _, _ = budget(minutes)
    time._now = clock
    time._began = clock.now
    time.begin(1)
    job, _ = demo_job(**({"prompts_per_step": 2, "samples_per_prompt": 2, "max_response_tokens": 32} | rollout))
    turns, synced = Turns(), []

    async def sync(engines, version, whole):
        synced.append(version)
        clock.now += 0.125

    trained = []

    async def step(groups, settings):
        trained.append((settings.micro_batch_tokens, [group[0].prompt_id for group in groups]))
        clock.now += 0.5
        return

    weights = SimpleNamespace(sync=sync, join=None, retire=lambda: None)
    site = SimpleNamespace(
        fleet=SimpleNamespace(engines=lambda layout: [layout]), turns=turns, weights=lambda path: weights,
        trainers={FIRST: SimpleNamespace(step=step)}, updates={FIRST: UpdateLayout(dp=1, micro_batch_tokens=64)},
    )  # fmt: skip
    runner, layout = Runner(clock, restarts), EngineLayout(1, 1)
    names = [f"k{number}" for number in range(prompts)]
    effort = effort or Effort()
    sampler = RoundSampler(job, site, runner, None, names, [64, 128], effort, time, {layout: 1.0})
    return sampler, runner, layout, trained, time


@pytest.fixture
def unrefused(monkeypatch):
    monkeypatch.setattr(updates_module, "refusal", lambda metrics, limits: metrics)


def test_rounds_give_lengths_updates_and_what_rewards_take(clock, unrefused, monkeypatch):
    monkeypatch.setattr(rounds_module, "WIDE_SAMPLES", 8)
    sampler, runner, layout, trained, _ = sampler_of(clock)
    asyncio.run(sampler.least(layout, first=True))
    # One that is not recorded, then under a low cap, every other one of twice the prompts.
    assert [(len(prompts), cap, seeded) for prompts, cap, seeded in runner.rounds] == [(2, 4, True)] * 2 + [
        (4, 4, True)
    ]
    assert [budget for budget, _ in trained] == [128, 64, 128], "micro-batches take turns"
    sampled = sampler.sampled
    assert [(r.layout, r.cap_tokens, len(r.lengths), r.rollout_s) for r in sampled.rounds] == [
        (layout, 4, 4, 3.0), (layout, 4, 8, 3.0),
    ]  # fmt: skip
    assert {prompt for prompt, _, _ in sampled.rounds[0].lengths.values()} == set(runner.rounds[1][0])
    assert sampled.sync_s == {layout: [0.125, 0.125]} and sampled.reward_exposed_s == [0.5, 0.5]
    assert not sampled.rows, "cut samples tell no lengths"
    (point,) = sampled.updates[64]
    lengths = [2 + min(int(prompt[1:]) + 1, 4) for prompt in runner.rounds[1][0] for _ in range(2)]
    assert (point.tokens, point.squared_tokens, point.seconds) == (sum(lengths), sum(n * n for n in lengths), 0.5)
    asyncio.run(sampler.lengths(layout))
    asyncio.run(sampler.more(layout, first=True))
    caps = [cap for _, cap, _ in runner.rounds[4:]]
    assert caps == [32, 4, 32, 4, 32, 32, 32, 32], "of each kind in turn"
    assert len(sampled.scored) == 8 + 6 * 4 == len(sampled.rows) and sampled.scored_rollout_s == 7 * 3.0
    assert sampled.scored[0].seconds == 0.25 and set(sampled.prompt_tokens.values()) == {2}
    assert sampler.turns[layout] == (0.0, 0.0), "no turn took time"
    turns = [(name, *whom) for name, _, *whom in sampler._site.turns.taken]
    assert turns[:4] == [
        ("to_sending", [layout]),
        ("to_decoding", [layout]),
        ("to_training",),
        ("to_sending", [layout]),
    ]


def test_wide_rounds_train_on_the_longest_and_come_again(clock, unrefused, monkeypatch):
    monkeypatch.setattr(rounds_module, "WIDE_SAMPLES", 12)
    sampler, runner, layout, trained, _ = sampler_of(clock, prompts=20)
    assert wide_prompts(sampler._job) == 6
    asyncio.run(sampler.lengths(layout))
    ((prompts, cap, _),) = runner.rounds
    assert (len(prompts), cap) == (6, 32)
    longest = sorted(prompts, key=lambda name: -min(int(name[1:]) + 1, 32))
    assert sorted(trained[0][1]) == sorted(longest[:2]) and sorted(trained[1][1]) == sorted(longest[2:4])
    assert not sampler.sampled.rounds and len(sampler.sampled.rows) == 12
    asyncio.run(sampler.more_lengths(layout))
    assert len(runner.rounds) == 4, "two more, and one that begins with the first prompts again"
    assert runner.rounds[3][0] == prompts and not set(runner.rounds[1][0]) & set(prompts)
    assert {row.epoch for row in sampler.sampled.rows[-12:]} == {1}


def test_further_rounds_are_left_out_where_time_is_short(clock, unrefused):
    sampler, runner, layout, _, time = sampler_of(clock, minutes=0.3)
    asyncio.run(sampler.least(layout, first=False))
    asyncio.run(sampler.lengths(layout))
    asyncio.run(sampler.more(layout, first=False))
    asyncio.run(sampler.more_lengths(layout))
    assert len(runner.rounds) == 3
    assert time.outcome.endswith("over: real rounds of 1 engine, TP 1; wide rounds, which give lengths")


def test_a_round_that_waited_for_a_new_engine_tells_no_costs(clock, unrefused):
    sampler, _, layout, _, _ = sampler_of(clock, restarts=["e0 died"], seed_per_sample=False)
    asyncio.run(sampler.least(layout, first=False))
    assert not sampler.sampled.rounds and sampler.sampled.sync_s


# -- updates -----------------------------------------------------------------------------------------------------------


def group(prompt):
    return [TrainSample(prompt, sample, [1], [2], [-1.0], 0.0, False) for sample in range(2)]


def test_steps_are_whole_and_of_different_prompts():
    steps = step_groups([group(f"p{number % 5}") for number in range(40)], 4)
    assert len(steps) == 1 + updates_module.UPDATES
    for step in steps:
        assert len({samples[0].prompt_id for samples in step}) == len(step) == 4
    few = step_groups([group("a"), group("b"), group("a")], 4)
    assert [[samples[0].prompt_id for samples in step] for step in few] == [["a", "b"]]


FIT = Train(dp=1, micro_batch_tokens=4096, step_s=1.0, step_s_per_token=1e-3, step_s_per_token_squared=1e-7, error=0.03)


def test_a_layouts_entry_is_one_ranks_times_the_ratio_of_seconds():
    layout = UpdateLayout(dp=1, sp=2, micro_batch_tokens=4096, recompute="full")
    steady, unsteady = scaled(FIT, layout, [0.6, 0.6, 0.6]), scaled(FIT, layout, [0.5, 0.6, 0.7])
    assert steady.layout == layout
    assert (steady.step_s, steady.step_s_per_token) == pytest.approx((0.6, 6e-4))
    assert steady.step_s_per_token_squared == pytest.approx(6e-8)
    assert steady.error == pytest.approx(0.03)
    assert unsteady.error == pytest.approx((0.03**2 + (1 / 9) ** 2) ** 0.5), "less sure the more they differ"


class Trainer:
    """Updates take these seconds, by whether they compute again; peaks come one after another."""

    def __init__(self, clock, plain_s, again_s=0.0):
        self.clock, self.seconds, self.peaks, self.steps = clock, (plain_s, again_s), itertools.count(100), 0

    async def step(self, groups, settings):
        self.clock.now += self.seconds[settings.recompute]
        self.steps += 1

    async def peak_bytes(self):
        return next(self.peaks)


def updates_of(clock, trainers, minutes=15.0, on_gpu=True, fails=(), host=1.0):
    time, _, lines = budget(minutes)
    time._now, time._began = clock, clock.now
    time.begin(1)
    layouts = {FIRST: UpdateLayout(dp=1, micro_batch_tokens=4096)}
    layouts |= {name: UpdateLayout(dp=2, micro_batch_tokens=4096, offload=True) for name in trainers if name != FIRST}
    turns, held = Turns(), {"offloaded": {"states": host}}
    holders = {f"trainer {name}": Holder(name, "trainer", {}, held) for name in trainers}

    class Failing(Turns):
        ledger = SimpleNamespace(holders=holders)

        async def start(self, engines, names, failed=None):
            turns.taken += [("start", *names)] if failed is not None else []
            for name in names:
                if name in fails and failed is None:
                    raise RunFailed("no memory")
                if name in fails:
                    failed(name, RunFailed("no memory"))

        async def end(self, engines, names):
            turns.taken.append(("end", *names))

        async def to_decoding(self, log, engines):
            turns.taken.append("away")
            log.event("turn", turn="trainer_offloads", whom=["t"], seconds=0.25)

    site = SimpleNamespace(
        updates=layouts, turns=Failing(), trainers=trainers, fleet=SimpleNamespace(all_engines=lambda: [])
    )
    bench = UpdateBench(site, [[group("a")]] * 4, LOGPROB_LIMITS["bfloat16"], on_gpu, time)
    other_budget = FIT.model_copy(update={"micro_batch_tokens": 2048})
    return asyncio.run(measure_updates(bench, [other_budget, FIT])), time, lines, turns


def test_layouts_of_trainers_are_measured_beside_the_first(clock, unrefused):
    trainers = {FIRST: Trainer(clock, 2.0, 3.0), "other": Trainer(clock, 1.0, 1.5)}
    entries, time, _, turns = updates_of(clock, trainers)
    assert [(e.dp, e.micro_batch_tokens, e.recompute, e.step_s) for e in entries] == [
        (1, 2048, "none", 1.0), (1, 4096, "none", 1.0), (2, 4096, "none", 0.5), (2, 4096, "full", 0.75),
    ]  # fmt: skip
    # The first peak is of a call that is not counted; that of other micro-batches is not known.
    assert [e.peak_bytes for e in entries] == [0, 101, 101, 102]
    assert {e.moves_s for e in entries} == {0.25} and time.outcome is None
    assert turns.taken == ["away"] * 4 + [("end", "other")]
    assert trainers[FIRST].steps == 1 + 3 + updates_module.RECOMPUTED_UPDATES


def test_the_fastest_layout_alone_is_measured_with_recomputation(clock, unrefused):
    trainers = {FIRST: Trainer(clock, 1.0, 1.5), "slower": Trainer(clock, 4.0, 6.0)}
    entries, _, _, turns = updates_of(clock, trainers, on_gpu=False)
    assert [(e.dp, e.recompute, e.step_s) for e in entries[1:]] == [
        (1, "none", 1.0),
        (2, "none", 4.0),
        (1, "full", 1.5),
    ]
    assert {e.moves_s for e in entries} == {None} and turns.taken == [("end", "slower")]


def test_a_recompute_that_gains_is_measured_again(clock, unrefused):
    class Warming(Trainer):
        """Kernels are planned in the first updates; afterwards recomputation takes longer, as it must."""

        async def step(self, groups, settings):
            self.clock.now += 4.0 if self.steps < 4 else self.seconds[settings.recompute]
            self.steps += 1

    trainers = {FIRST: Warming(clock, 1.0, 1.5)}
    entries, _, lines, _ = updates_of(clock, trainers)
    assert [(e.recompute, e.step_s) for e in entries] == [("none", 1.0), ("none", 1.0), ("full", 1.5)]
    assert any("again, since updates with recomputation took less time" in line for line in lines)
    steady = {FIRST: Trainer(clock, 1.0, 1.5)}
    assert not any("again" in line for line in updates_of(clock, steady)[2])


def test_updates_that_gain_on_known_lengths_are_told(clock, unrefused):
    """By the fit, three updates take 3 s and a little after their rounds."""
    lines = updates_of(clock, {FIRST: Trainer(clock, 0.5, 0.7)})[2]
    assert any("and 1.5 s when repeated on the same samples" in line for line in lines)


def test_a_layout_that_fails_or_has_no_time_is_left_out(clock, unrefused):
    trainers = {FIRST: Trainer(clock, 1.0, 1.0), "large": Trainer(clock, 1.0, 1.0)}
    entries, _, lines, turns = updates_of(clock, trainers, fails=["large"])
    assert [e.dp for e in entries] == [1, 1, 1] and turns.taken[-1] == ("end", "large")
    assert "updates with dp 2, offload are left out: no memory" in lines[-1]
    entries, time, _, _ = updates_of(clock, trainers, minutes=0.1)
    assert [e.dp for e in entries] == [1, 1, 1] and time.outcome.endswith("updates with dp 2, offload")


def test_several_trainers_start_side_by_side_where_the_host_holds_them(clock, unrefused, monkeypatch):
    monkeypatch.setattr(updates_module, "free_host_bytes", lambda: 100)
    names = ("second", "third", "large")

    def measured(host, **options):
        trainers = {FIRST: Trainer(clock, 1.0, 1.5)} | {name: Trainer(clock, 1.0, 1.5) for name in names}
        return updates_of(clock, trainers, fails=["large"], host=host, **options)

    # Two ranks of each: 3 x 2 x 8 bytes of the half of 100.
    for host, together in ((8.0, True), (9.0, False)):
        entries, _, lines, turns = measured(host)
        assert [taken for taken in turns.taken if taken[0] == "start"] == [("start", *names)] * together
        assert [e.dp for e in entries if e.recompute == "none"] == [1, 1, 2, 2]
        assert sum("are left out: no memory" in line for line in lines) == 1
    assert not any(taken[0] == "start" for taken in measured(8.0, on_gpu=False)[3].taken)


def test_an_update_that_is_refused_has_no_seconds(clock, monkeypatch):
    monkeypatch.setattr(updates_module, "refusal", lambda metrics, limits: SimpleNamespace(text="nan"))
    with pytest.raises(RunFailed, match="an update was refused, so its seconds say nothing: nan"):
        updates_of(clock, {FIRST: Trainer(clock, 1.0)})


# -- drafts ------------------------------------------------------------------------------------------------------------


def drafting(monkeypatch, minutes=15.0, kind="cpu", steps=10_000, fails=False, drafts=None):
    """Rounds with drafts on an engine that counts `steps` steps in each; what the profile gets, and what was asked."""
    time, clock, _ = budget(minutes)
    job, paths = demo_job(prompts_per_step=4)
    if drafts is not None:
        job = job.model_copy(update={"search": job.search.model_copy(update={"drafts": drafts})})
    asked = []

    def counts(epoch):
        one = BatchSteps(0.01, 0.012, 1.5 + epoch, 0, 0.0, steps, steps, 3 * steps, steps)
        taken = [int(steps * (0.3 + 0.2 * epoch)), steps // 10]
        return DraftReport(steps, steps, [steps, steps], taken, batches={1: one})

    class DraftingEngine:
        def __init__(self, other, tokens, seeded):
            asked.append(("draws", other, tokens, seeded))

        async def start(self, sampler):
            asked.append("started")
            clock.now += 5

        async def close(self):
            asked.append("closed")

        async def answer(self, prompts, epoch, subject):
            if fails:
                raise RunFailed("it died")
            asked.append((sorted(prompts), epoch))
            clock.now += 10
            return measure_drafts.DraftCounts.of(counts(epoch))

    monkeypatch.setattr(measure_drafts, "_DraftingEngine", DraftingEngine)
    prompts = {f"k{n:02d}": PromptText(f"k{n:02d}", "", (1,), None) for n in range(14)}
    layout = EngineLayout(1, 1)
    decode = SimpleNamespace(a=0.01, b=1e-4)
    costs = [
        SimpleNamespace(layout=EngineLayout(2, 1)),
        SimpleNamespace(layout=layout, start=spread([4.0]), decode=decode),
    ]
    sampled = Sampled(rounds=[MeasuredRound(layout, cap, {}, s) for cap, s in ((768, 9.0), (96, 2.0))])
    site = SimpleNamespace(fleet=SimpleNamespace(engines=lambda layout: [layout]))
    found = measure_drafts.measure_drafts(
        Subject(job, paths, "main", pool(2, kind=kind), 10**6),
        site,
        SimpleNamespace(sampled=sampled),
        prompts,
        costs,
        time,
    )
    return asyncio.run(found), asked, time, counts


def test_prompts_are_answered_twice_until_drafts_tell_enough(monkeypatch):
    found, asked, time, counts = drafting(monkeypatch, steps=6000)
    (_, *engine_of), started, *rounds, closed = asked
    assert engine_of == [EngineLayout(1, 1), measure_drafts.DRAFT_TOKENS, True]
    assert (started, closed) == ("started", "closed")
    assert [epoch for _, epoch in rounds] == [0, 1] * 3, "16,000 steps are enough"
    assert rounds[0][0] == rounds[1][0] and len({name for names, _ in rounds for name in names}) == 12
    first, later = ([measure_drafts.DraftCounts.of(counts(epoch))] * n for epoch, n in ((0, 2), (1, 3)))
    assert found == fit_drafts(summed(first), summed(later), lambda batch: 0.01 + 1e-4 * batch), (
        "the first knew nothing"
    )
    assert time.outcome is None


def test_drafts_end_with_their_seconds_and_are_left_out_without_any(monkeypatch):
    _, asked, _, _ = drafting(monkeypatch, steps=10)
    assert len(asked) == 3 + 2 * 3, "60 s, where none begins after 45 s"
    found, asked, time, _ = drafting(monkeypatch, minutes=0.3)
    assert found is None and not asked and time.outcome.endswith("over: drafts"), "a start of 4 s, two rounds of 9 s"
    found, asked, time, _ = drafting(monkeypatch, fails=True)
    assert found is None and asked[-1] == "closed" and time.outcome.endswith("drafts (it died)")
    found, asked, time, _ = drafting(monkeypatch, kind="cuda")
    assert found is None and not asked and "not measured on GPUs" in time.outcome


def test_an_engine_drafts_from_what_it_wrote_before(monkeypatch):
    job, paths = demo_job(samples_per_prompt=2)
    subject, done = Subject(job, paths, "main", pool(2, kind="cpu"), 1), []

    @dataclass(frozen=True)
    class Config:
        name: str = "e"
        draft_tokens: int = 0
        max_num_seqs: int = 9

        def renamed(self, name):
            return replace(self, name=name)

    class Handle:
        version = "v"

        def __init__(self, config, tell, supervisor):
            self.config, self.name, self.tell = config, config.name, tell

        def __getattr__(self, name):
            async def call(*arguments):
                done.append((name, *arguments))
                for request in arguments[0] if name == "submit" else []:
                    self.tell(EngineEvents(self, [EngineEvent("finished", request.request_id, [5, 6])]))
                return DraftReport(sequence_steps=3, drafted_at=[2], accepted_at=[1])

            return call

    monkeypatch.setattr(measure_drafts, "EngineHandle", Handle)
    synced = SimpleNamespace(weights=SimpleNamespace(sync=lambda *how: asyncio.sleep(0, done.append(("sync", *how)))))

    async def answers():
        engine = measure_drafts._DraftingEngine(SimpleNamespace(config=Config()), 4, True)
        await engine.start(synced)
        prompts = {"k": PromptText("k", "", (1, 2), None)}
        counts = [await engine.answer(prompts, epoch, subject) for epoch in (0, 1)]
        await engine.close()
        return counts

    assert [count.sequence_steps for count in asyncio.run(answers())] == [3, 3]
    names = [name for name, *_ in done]
    one = ["begin_drafts", "remember", "submit", "take_drafts"]
    assert names == ["start", "sync", *one, *one, "close"]
    assert done[2][1:] == (4, 9) and done[1][2:] == ("profile-drafts", False)
    assert done[3][1] == [] and len(done[7][1]) == 1, "what it wrote first"
    requests = done[4][1] + done[8][1]
    assert done[4][2] == "v" and len({r.request_id for r in requests}) == len({r.seed for r in requests}) == 4
    assert {(r.prompt_tokens, r.max_tokens, r.prompt_id) for r in requests} == {((1, 2), 768, "k")}


@pytest.mark.parametrize(
    ("tokens", "acceptance", "wanted"),
    [(None, None, measure_drafts.DRAFT_TOKENS), ((2, 5), None, 5), ((2, 5), 0.5, 0), ((), None, 0)],
)
def test_the_longest_draft_of_the_job_is_measured(tokens, acceptance, wanted):
    drafts = SimpleNamespace(tokens=tokens, acceptance=acceptance)
    subject = SimpleNamespace(job=SimpleNamespace(search=SimpleNamespace(drafts=drafts)))
    assert measure_drafts.wanted_tokens(subject) == wanted


# -- rewards and judges ------------------------------------------------------------------------------------------------


def scored(seconds, clock, outcome="ok"):
    """A pool that scores a sample at a time."""
    asked = []

    async def score(key, prompt, response, answer):
        asked.append((key, prompt, response, answer))
        clock.now += seconds
        return SimpleNamespace(outcome=outcome, detail="no verdict")

    return SimpleNamespace(score=lambda *question: asyncio.ensure_future(score(*question)), asked=asked)


@pytest.mark.parametrize(("seconds", "alone"), [(0.009, [0.125, 0.25]), (0.1, [0.1] * 9)])
def test_a_reward_takes_a_share_of_its_workers_in_a_burst(clock, seconds, alone):
    workers_pool = scored(seconds, clock)
    job, _ = demo_job()
    sampled = Sampled(groups=[group("a"), group("b")], reward_exposed_s=[0.125, 0.25], scored_rollout_s=8.0)
    sampled.scored = [ScoredSample("a", 1.0, 3.0), ScoredSample("b", 0.0, 1.0)]
    prompts = {name: PromptText(name, f"text of {name}", (1,), f"answer to {name}") for name in "ab"}
    tokenizer = SimpleNamespace(decode=lambda tokens, skip_special_tokens: f"{tokens} decoded")
    rewards = SimpleNamespace(scorer=lambda label: workers_pool)
    found = asyncio.run(reward_module.measure_reward(rewards, prompts, tokenizer, sampled, job, 2))
    assert found.per_sample_s == pytest.approx(seconds * 2) and found.workers == 2
    assert found.latency.p50 == pytest.approx(spread(alone).p50) and found.latency.repeats == len(alone)
    assert found.load == 0.5 and found.executions is None, "only code takes as long as its response likes"
    assert [asked[1:] for asked in workers_pool.asked[:4]] == [
        (f"text of {name}", "[2] decoded", f"answer to {name}") for name in "aabb"
    ]


def test_lengths_that_the_driver_looks_at_have_no_workers():
    job = SimpleNamespace(reward=SimpleNamespace(pooled=()))
    found = asyncio.run(reward_module.measure_reward(None, {}, None, Sampled(), job, 5))
    assert (found.workers, found.per_sample_s, found.latency.p50, found.latency.repeats) == (1, 0.0, 0.0, 0)


@pytest.mark.parametrize(
    "template",
    [
        "Rate. {response}",
        "Rate. {prompt} {response}",
        "{answer} or {response}?",
        "{response} {prompt}",
        "{{}} {response}",
    ],
)
def test_no_two_questions_share_more_than_the_rubric(template):
    rubric = template.format(prompt="\0", response="\0", answer="\0").partition("\0")[0]
    asked = set()
    for number in range(3):
        prompt, response, answer = judge_module.numbered(template, number, "p", "r", {"a": 1})
        asked.add(template.format(prompt=prompt, response=response, answer=answer)[len(rubric) :].split()[0])
    assert asked == {"0", "1", "2"}, "they differ in their first word after the rubric"


def test_bursts_of_a_judge_are_of_short_long_and_mixed_samples(clock):
    questions = [judge_module._Question("p", "r", "a", tokens) for tokens in (80, 10, 40, 20, 70, 30, 60, 50)]
    judge = scored(0.5, clock)
    timed = judge_module._Timed(judge, "{response}", questions)
    assert {q.tokens for q in timed.short_questions()} == {10, 20, 30, 40}
    assert [q.tokens for q in timed.long_questions()] == [80] * judge_module.BURST
    assert [q.tokens for q in timed.mixed(3) + timed.mixed(1)] == [80, 10, 40, 20]

    async def asked():
        return await timed.burst(timed.mixed(2))

    assert asyncio.run(asked()) == (2, 50.0, 1.0)
    assert [response for _, _, response, _ in judge.asked] == ["0 r", "1 r"]

    timed = judge_module._Timed(scored(0.5, clock, "timeout"), "{response}", questions)
    with pytest.raises(RunFailed, match="the judge cannot be measured: no verdict"):
        asyncio.run(timed.burst(timed.mixed(2)))


def test_a_judge_is_timed_alone_and_beside_an_engine(clock, monkeypatch):
    """Its verdicts take half a second, one after another; the engine's batch takes two seconds."""
    planned, closed = [], []

    def pool_of(config, own, supervisor):
        judge = scored(0.5, clock)

        async def start():
            planned.append((config.share, config.engines))

        async def close():
            closed.append(config.share)

        return SimpleNamespace(start=start, close=close, score=judge.score)

    @dataclass(frozen=True)
    class Config:
        share: object
        engines: tuple = (EngineSeat(1, 1), EngineSeat(2, 2))
        template: str = "{response}"

    class Engines(Bench):
        async def seconds(self, engines, batches, tokens):
            assert (len(batches[0]), tokens) == (judge_module.DECODE_SEQUENCES, judge_module.DECODE_TOKENS)
            await asyncio.sleep(0)
            return 2.0

    monkeypatch.setattr(judge_module, "judge_config", lambda job, paths, planned, pool, own: Config(planned.share))
    monkeypatch.setattr(judge_module, "JudgePool", pool_of)
    job, paths = demo_job()
    policy = SimpleNamespace(decode=lambda tokens, skip_special_tokens: "text")
    prompts = {name: PromptText(name, name, (1,), None) for name in "ab"}
    beside = SimpleNamespace(config=SimpleNamespace(cores=(3,), node_id="n"))
    found = asyncio.run(
        judge_module.measure_judge(
            Subject(job, paths, "main", pool(2), 1), beside, Engines(clock), prompts, [group("a"), group("b")],
            (policy, None), budget()[0],
        )
    )  # fmt: skip
    assert [share for share, _ in planned] == [None, judge_module.SHARE] == closed
    assert {(seat.cores, seat.node_id) for _, seats in planned for seat in seats} == {((3,), "n")}, "the engine's own"
    assert (found.per_sample_s, found.per_token_s, found.at_once) == (0.5, 0.0, judge_module.AT_ONCE)
    assert found.latency_s == 0.5 and found.rollout_factor == 1.0 == found.beside_factor
    assert [(s.share, s.beside_factor, s.rollout_factor) for s in found.shares] == [(judge_module.SHARE, 1.0, 1.0)]


@dataclass(frozen=True)
class EngineSeat:
    cores: object
    node_id: object


def test_a_judge_is_kept_busy_while_an_engine_decodes(clock):
    async def busy(judge):
        timed = judge_module._Timed(judge, "{response}", [judge_module._Question("p", "r", "a", 30)])
        decoding = asyncio.get_running_loop().create_future()

        async def ends():
            for _ in range(6):
                await asyncio.sleep(0)
            decoding.set_result(1.0)

        ending = asyncio.ensure_future(ends())
        try:
            return await timed.while_running(decoding)
        finally:
            await ending

    judge = scored(0.5, clock)
    found = asyncio.run(busy(judge))
    assert found.samples >= 2 * judge_module.AT_ONCE and found.mean_tokens == 30
    assert found.seconds == 0.5 * len(judge.asked)

    async def never(*_):
        await asyncio.sleep(3600)

    with pytest.raises(RunFailed, match="gave no verdict"):
        asyncio.run(busy(SimpleNamespace(score=lambda *question: asyncio.ensure_future(never(*question)))))
