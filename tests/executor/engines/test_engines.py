"""Real vLLM engines behind real Ray actors: rollout on TP 1 and 2, abort, weight updates, death."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest

from rlplan.executor.engines.engine_handle import EngineEvents
from rlplan.executor.engines.messages import Request
from rlplan.executor.rollout.prompts import PromptText
from rlplan.executor.rollout.round_runner import RoundOptions, RoundRunner
from rlplan.planner.costs.decode_costs import DecodeCost
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.simulate.reference_round import RoundLengths, simulate_round
from rlplan.plans.schema.levers import EngineLayout, RoundPrefix
from rlplan.rounds.balancing.placement import BLOCK_TOKENS
from rlplan.rounds.machines.events import SampleKey
from rlplan.rounds.machines.exact import ExactQueueRound, ExactShortRound
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.machines.race import RaceRound

from ..conftest import make_tiny_model, runs

pytestmark = pytest.mark.engine

PROMPTS = {f"p{i}": PromptText(f"p{i}", f"w{i} w{i + 1}", (3 + i, 4 + i, 5 + i), None) for i in range(8)}

# Long enough to fill blocks of 32 tokens: one block, one that the last token ends, none, one.
LONG_PROMPTS = {
    f"long{i}": PromptText(f"long{i}", "", tuple(3 + (i + k * (i + 2)) % 60 for k in range(tokens)), None)
    for i, tokens in enumerate([50, 33, 32, 40])
}


class InstantRewards:
    """Scores by length at once; real reward workers have their own tests."""

    def __init__(self):
        self.cancelled = []

    def score(self, key, prompt, response, answer, deadline_s=None):
        from rlplan.executor.rewards.pool import RewardResult

        future = asyncio.get_running_loop().create_future()
        future.set_result(
            RewardResult(reward=float(len(response) % 2), seconds=0.0, outcome="ok", detail="", attempts=1, worker="w")
        )
        return future

    def cancel(self, key):
        self.cancelled.append(key)
        return True


def weights_of(model, folder, seed):
    """A safetensors file of other random weights of the same shape."""
    return make_tiny_model(folder / f"other-{seed}", seed) / "model.safetensors"


def events_in(news):
    return news.events if isinstance(news, EngineEvents) else []


async def decode(fleet, layout, version, requests):
    """Submit to the layout's engines in turn; returns finished events by request id."""
    inbox = asyncio.Queue()
    fleet.listen(lambda news: inbox.put_nowait(events_in(news)))
    engines = fleet.engines(layout)
    for index, request in enumerate(requests):
        await engines[index % len(engines)].submit([request], version)
    found = {}
    while len(found) < len(requests):
        for event in await asyncio.wait_for(inbox.get(), 60):
            if event.name == "finished":
                found[event.request_id] = event
    return found


async def load(fleet, layout, path, version):
    return [await engine.load(str(path), version, True) for engine in fleet.engines(layout)]


def by_path(path):
    """Gives an engine that comes back in a round the weights at `path`."""
    return lambda engine, version: engine.load(str(path), version, False)


def greedy(name, prompt=(3, 4, 5), tokens=24):
    return Request(name, prompt, tokens, temperature=0.0, ignore_eos=True)


def test_tp_1_and_tp_2_decode_the_same_greedy_tokens(fleet, loop, tiny_model):
    path = tiny_model / "model.safetensors"

    async def body():
        results = []
        for layout in (EngineLayout(1, 2), EngineLayout(2, 1)):
            await load(fleet, layout, path, "same")
            results.append(await decode(fleet, layout, "same", [greedy(f"tp{layout.tp}-{i}") for i in range(2)]))
        return results

    one, two = loop.run_until_complete(body())
    assert one["tp1-0"].tokens == one["tp1-1"].tokens == two["tp2-0"].tokens
    assert len(one["tp1-0"].tokens) == 24 and one["tp1-0"].truncated
    assert two["tp2-0"].logprobs == pytest.approx(one["tp1-0"].logprobs, abs=1e-4)


def test_new_weights_change_output_and_checksum_and_old_ones_restore_both(fleet, loop, tiny_model, tmp_path):
    layout = EngineLayout(1, 1)
    old, new = tiny_model / "model.safetensors", weights_of(tiny_model, tmp_path, 7)

    async def body():
        seen = []
        for number, path in enumerate((old, new, old)):
            received = (await load(fleet, layout, path, f"v{number}"))[0]
            engine = fleet.engines(layout)[0]
            event = (await decode(fleet, layout, f"v{number}", [greedy(f"update-{number}")]))[f"update-{number}"]
            seen.append((received, await engine.live_checksum(), event.tokens, event.version_start, event.version_end))
        return seen

    first, second, third = loop.run_until_complete(body())
    assert first[0] != second[0] and first[1] != second[1] and first[2] != second[2]
    assert first[:3] == third[:3]
    assert second[3] == second[4] == "v1"


def test_log_probs_after_an_update_are_those_of_the_new_weights(fleet, loop, tiny_model, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    path = weights_of(tiny_model, tmp_path, 11)

    async def body(layout):
        await load(fleet, layout, path, f"tied-{layout.tp}")
        return (await decode(fleet, layout, f"tied-{layout.tp}", [Request(f"tied-{layout.tp}", (3, 4), 20)])).popitem()[
            1
        ]

    model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32)
    for layout in (EngineLayout(1, 1), EngineLayout(2, 1)):
        event = loop.run_until_complete(body(layout))
        with torch.no_grad():
            expected = torch.log_softmax(model(torch.tensor([[3, 4, *event.tokens]])).logits[0], -1)
        wanted = [expected[1 + i, token].item() for i, token in enumerate(event.tokens)]
        assert event.logprobs == pytest.approx(wanted, abs=1e-4)


def test_what_an_engine_received_has_the_checksums_of_what_was_sent(fleet, loop, tiny_model):
    from safetensors.torch import load_file

    from rlplan.executor.weights.transfer import tensor_checksum

    path = tiny_model / "model.safetensors"
    received = loop.run_until_complete(load(fleet, EngineLayout(2, 1), path, "sums"))[0]
    assert received == {name: tensor_checksum(tensor) for name, tensor in load_file(path).items()}


def test_a_seeded_sample_is_the_same_alone_and_in_company(fleet, loop, tiny_model):
    layout = EngineLayout(1, 1)

    def sampled(name, seed, prompt=(3, 4, 5)):
        return Request(name, prompt, 16, ignore_eos=True, seed=seed)

    async def body():
        await load(fleet, layout, tiny_model / "model.safetensors", "seeds")
        alone = await decode(fleet, layout, "seeds", [sampled("alone", 7)])
        company = [sampled(f"other-{i}", 100 + i, (9, 8, 7, 6)) for i in range(6)]
        together = await decode(fleet, layout, "seeds", [*company, sampled("among", 7), sampled("unlike", 8)])
        return alone["alone"].tokens, together["among"].tokens, together["unlike"].tokens

    alone, among, unlike = loop.run_until_complete(body())
    assert alone == among != unlike


def test_an_aborted_request_stops_decoding_and_tells_nothing_more(fleet, loop, tiny_model):
    layout = EngineLayout(1, 1)

    async def body():
        await load(fleet, layout, tiny_model / "model.safetensors", "abort")
        engine = fleet.engines(layout)[0]
        heard = []
        fleet.listen(lambda news: heard.extend(events_in(news)))
        await engine.submit([Request("gone", (3, 4), 240, ignore_eos=True)], "abort")
        await engine.abort(["gone"])
        # Weights may only change while nothing decodes, so a load right after shows that the abort was complete.
        await load(fleet, layout, tiny_model / "model.safetensors", "after")
        await asyncio.sleep(0.3)
        return heard

    assert loop.run_until_complete(body()) == []


def test_requests_beyond_the_rounds_limit_wait_in_their_order(fleet, loop, tiny_model):
    layout, names = EngineLayout(1, 1), [f"turn-{i}" for i in range(6)]

    async def body(at_once):
        await load(fleet, layout, tiny_model / "model.safetensors", f"turns {at_once}")
        heard = []
        fleet.listen(lambda news: heard.extend(e for e in events_in(news) if e.name == "finished"))
        engine = fleet.engines(layout)[0]
        # The fourth waits for its turn when it is aborted, and takes nobody's.
        requests = [greedy(name, tokens=96) for name in names]
        await engine.submit(requests, f"turns {at_once}", at_once)
        await engine.abort(names[3:4])
        while len(heard) < 5:
            await asyncio.sleep(0.02)
        return {event.request_id: event.decode_s for event in heard}

    one, many = (loop.run_until_complete(body(at_once)) for at_once in (1, None))
    assert list(one) == [*names[:3], *names[4:]]
    # Seconds since the submission: one after another the last takes as long as all five, together as long as the first.
    assert one[names[5]] > 3 * one[names[0]]
    assert many[names[5]] < 2 * many[names[0]]


def runner(fleet, rewards=None, **options):
    return RoundRunner(fleet, rewards or InstantRewards(), PROMPTS | LONG_PROMPTS, str, temperature=1.0, **options)


def test_a_round_gives_its_engines_the_limit_of_sequences_at_once(fleet, loop, tiny_model, monkeypatch):
    given = []
    submit = type(fleet.all_engines()[0]).submit

    def recorded(self, requests, version, max_num_seqs=None):
        given.append((self.name, max_num_seqs))
        return submit(self, requests, version, max_num_seqs)

    monkeypatch.setattr(type(fleet.all_engines()[0]), "submit", recorded)
    path = tiny_model / "model.safetensors"

    async def body():
        await load(fleet, EngineLayout(1, 2), path, "at once")
        machine = RaceRound(list(PROMPTS)[:2], 2, 2, 2, 8)
        return await runner(fleet).run(
            machine, EngineLayout(1, 2), "at once", by_path(path), "at once", RoundOptions(max_num_seqs=3)
        )

    loop.run_until_complete(body())
    assert {most for _, most in given} == {3} and len({name for name, _ in given}) == 2


def run_round(fleet, loop, tiny_model, machine, layout, tag, **options):
    path = tiny_model / "model.safetensors"

    async def body():
        await load(fleet, layout, path, tag)
        return await runner(fleet, **options).run(machine, layout, tag, by_path(path), tag)

    return loop.run_until_complete(body())


@pytest.mark.parametrize("layout", [EngineLayout(1, 2), EngineLayout(2, 1)])
def test_a_race_round_on_real_engines_trains_its_groups_and_conserves_everything(fleet, loop, tiny_model, layout):
    machine = RaceRound(list(PROMPTS)[:5], 3, 2, 3, max_tokens=60)
    result = run_round(fleet, loop, tiny_model, machine, layout, f"race-{layout.tp}")
    outcome = machine.outcome()
    assert len(outcome.trained) == 3 and len(outcome.prompts[Fate.DEFERRED]) == 2
    for group in outcome.trained:
        for key, tokens in zip(group.keys, group.tokens, strict=True):
            sample = result.samples[key]
            assert len(sample.tokens) == len(sample.logprobs) == tokens
            assert sample.version_start == sample.version_end == f"race-{layout.tp}"


@pytest.mark.parametrize(
    "sharing", [None, RoundPrefix(block_tokens=32, tokens_per_sample=8)], ids=["spread", "together"]
)
def test_engines_cache_and_place_samples_as_the_planner_says(fleet, loop, tiny_model, sharing):
    layout, path, tag = EngineLayout(1, 2), tiny_model / "model.safetensors", f"cached-{sharing is None}"
    machine = RaceRound(list(LONG_PROMPTS), len(LONG_PROMPTS), 4, 4, max_tokens=8)

    async def body():
        await load(fleet, layout, path, tag)
        return await runner(fleet).run(machine, layout, tag, by_path(path), tag, RoundOptions(sharing=sharing))

    result = loop.run_until_complete(body())
    engines = fleet.engines(layout)
    block, capacity = engines[0].facts.kv_block_tokens, engines[0].facts.kv_capacity_tokens
    assert block == BLOCK_TOKENS["cpu"] == 32

    submitted = {}

    def observe(t_s, what, draw, sample, engine):
        if what == "finished":
            submitted[SampleKey(draw, sample)] = engines[engine].name

    times = simulate_round(
        RaceRound(list(LONG_PROMPTS), len(LONG_PROMPTS), 4, 4, max_tokens=8),
        RoundLengths(
            lambda key, prompt: len(result.samples[key].tokens),
            lambda prompt: len(LONG_PROMPTS[prompt].tokens),
            lambda key, prompt: 0.0,
            8,
        ),
        DecodeCost(
            EngineLayout(1, 2), 1e-3, 0.0, 0.0, 0.0, 1e-5, capacity, 64, 0.0, 1, block_tokens=block, sharing=sharing
        ),
        RewardCost(4, 0.0, 0.0),
        64,
        observe,
    )
    assert {key: sample.engine for key, sample in result.samples.items()} == submitted
    # On each engine the first sample of a prompt prefills for all: 12 samples of long prompts, spread 6, together 3.
    hits = [sample.cached_tokens for sample in result.samples.values()]
    assert sum(hits) == times.cached_tokens == 32 * (12 - (6 if sharing is None else 3))
    assert set(hits) == {0, 32}


def test_a_prompt_stays_cached_until_new_weights_come(fleet, loop, tiny_model):
    layout, path, prompt = EngineLayout(2, 1), tiny_model / "model.safetensors", LONG_PROMPTS["long0"].tokens

    async def body():
        found = []
        for version in ("first", "second"):
            await load(fleet, layout, path, version)
            for nth in range(2):
                name = f"{version}-{nth}"
                found.append((await decode(fleet, layout, version, [greedy(name, prompt, 4)]))[name].cached_tokens)
        return found

    assert loop.run_until_complete(body()) == [0, 32, 0, 32]


def test_exact_rounds_on_real_engines_split_draws_at_the_cutoff(fleet, loop, tiny_model):
    short = ExactShortRound(list(PROMPTS)[:6], 3, 2, cutoff_tokens=12, max_tokens=100)
    result = run_round(fleet, loop, tiny_model, short, EngineLayout(1, 2), "exact-short")
    outcome = short.outcome()
    assert all(max(group.tokens) <= 12 for group in outcome.trained)
    assert all(len(s.tokens) <= 12 for s in result.samples.values())

    long = ExactQueueRound(["p1", "p2"], 2, 2, 12, 100, copies=(2, 2), until_long=(True, True))
    run_round(fleet, loop, tiny_model, long, EngineLayout(1, 1), "exact-long")
    assert [group.prompt for group in long.outcome().trained] == ["p1", "p2"]
    assert all(max(group.tokens) >= 12 for group in long.outcome().trained)


def test_an_engine_killed_in_mid_round_loses_nothing_and_comes_back(fleet, loop, tiny_model):
    layout = EngineLayout(1, 2)
    path = tiny_model / "model.safetensors"
    victim = fleet.engines(layout)[1]
    before = victim.facts.pid
    machine = RaceRound(list(PROMPTS), 8, 2, 2, max_tokens=200)

    async def body():
        await load(fleet, layout, path, "kill")
        task = asyncio.create_task(runner(fleet, ignore_eos=True).run(machine, layout, "kill", by_path(path), "kill"))
        await asyncio.sleep(0.15)
        os.kill(before, signal.SIGKILL)
        result = await task
        await fleet.some_ready([victim])
        return result

    result = loop.run_until_complete(body())
    assert len(machine.outcome().trained) == 8
    assert len(result.restarts) == 1 and victim.name in result.restarts[0]
    assert any(sample.key.sample >= 2 for sample in result.samples.values()), "lost samples were issued again"
    assert victim.alive and victim.facts.pid != before
    tokens = {key: len(sample.tokens) for key, sample in result.samples.items() if sample.finished_s is not None}
    assert set(tokens.values()) == {200}


async def until_gone(processes, seconds=15.0):
    """Wait until none of these processes runs any more."""
    deadline = asyncio.get_running_loop().time() + seconds
    while left := [p for p in processes if runs(p)]:
        assert asyncio.get_running_loop().time() < deadline, f"{left} still run"
        await asyncio.sleep(0.05)


def cores():
    """The vLLM cores of this test's engines, those that are only starting included."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = process.parent()  # None once the parent has ended
            actor = " ".join(parent.cmdline()) if parent else ""
            tracker = any("resource_tracker" in part for part in process.cmdline())
            if actor.startswith("ray::RolloutEngine") and process.name() not in ("sh", "dash") and not tracker:
                found.append(process)
    return found


def test_a_stopped_engine_is_replaced_and_none_of_its_processes_lingers(fleet, loop, tiny_model, monkeypatch):
    monkeypatch.setattr(fleet.supervisor.patience, "stall_s", 8.0)
    layout = EngineLayout(1, 2)
    path = tiny_model / "model.safetensors"
    victim = fleet.engines(layout)[0]
    actor = psutil.Process(victim.facts.pid)
    old = [actor, *actor.children(recursive=True)]
    assert len(old) >= 4, "actor, guard, core and rank"
    machine = RaceRound(list(PROMPTS)[:4], 4, 2, 2, max_tokens=200)

    async def body():
        await load(fleet, layout, path, "stall")
        task = asyncio.create_task(runner(fleet, ignore_eos=True).run(machine, layout, "stall", by_path(path), "stall"))
        await asyncio.sleep(0.1)
        actor.suspend()
        result = await task
        await until_gone(old)
        await fleet.some_ready([victim])
        return result

    result = loop.run_until_complete(body())
    assert len(machine.outcome().trained) == 4
    assert [reason.split(" for")[0] for reason in result.restarts] == [f"{victim.name}: no sign of life"]


def test_an_engine_of_one_rank_decodes_in_one_process_on_its_core(fleet):
    for engine in fleet.engines(EngineLayout(1, 2)):
        core = psutil.Process(engine.facts.cores[0])
        assert [child.name() for child in core.children() if child.name().startswith("VLLM")] == []
        assert core.cpu_affinity() == list(engine.config.cores)
        threads = [path.read_text().strip() for path in Path(f"/proc/{core.pid}/task").glob("*/comm")]
        assert threads.count("gloo_tcp_loop") == 1


def test_death_of_an_idle_core_and_of_its_starting_successor_are_noticed(fleet, loop, tiny_model):
    path = tiny_model / "model.safetensors"
    layout = EngineLayout(1, 1)
    victim = fleet.engines(layout)[0]
    actor, before = psutil.Process(victim.facts.pid), fleet.supervisor.failures(victim.name)
    old, others = [actor, *actor.children(recursive=True)], {core.pid for core in cores()}

    async def body():
        os.kill(victim.facts.cores[0], signal.SIGKILL)
        began = asyncio.get_running_loop().time()
        while victim.alive:
            await asyncio.sleep(0.05)
        noticed_s = asyncio.get_running_loop().time() - began
        while not (starting := [core for core in cores() if core.pid not in others]):
            await asyncio.sleep(0.05)
        starting[0].kill()
        await fleet.some_ready([victim])
        await until_gone([*starting, *old])
        await load(fleet, layout, path, "after-core")
        return noticed_s, (await decode(fleet, layout, "after-core", [greedy("after-core")]))["after-core"]

    noticed_s, event = loop.run_until_complete(body())
    assert noticed_s < fleet.supervisor.patience.stall_s, "by its death, not by its silence"
    assert len(event.tokens) == 24
    assert fleet.supervisor.failures(victim.name) == before + 2, "the death, and a start"
