"""The simulator against arithmetic by hand and against a loop that takes every decode step one by one."""

import dataclasses
import heapq
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.costs.decode_costs import DecodeCost
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.simulate.reference_engine import Engine, EngineSample
from rlplan.planner.simulate.reference_round import RoundLengths, simulate_round
from rlplan.planner.simulate.round_arrays import RoundTimes
from rlplan.plans.schema.levers import EngineLayout, RoundPrefix
from rlplan.rounds.balancing.placement import Balancer
from rlplan.rounds.machines.events import Abort, Finished, Issue, ReachedCutoff, SampleKey, Scored
from rlplan.rounds.machines.exact import ExactQueueRound, ExactShortRound
from rlplan.rounds.machines.race import RaceRound
from rlplan.rounds.machines.round import Round

CAP = 60
PREFILL_S, TOKEN_S, FINISH_S = Fraction(2), Fraction(1, 7), Fraction(3, 19)


def cost(engines: int = 1, capacity: int = 10**6, **changes: Any) -> DecodeCost:
    fields = {"prefill_s": PREFILL_S, "prefill_s_per_token": TOKEN_S, "finish_s": FINISH_S, "max_sequences": 64}
    line = {"a": Fraction(7), "b": Fraction(3, 5), "c": Fraction(1, 11)}
    layout = {"key": EngineLayout(1, engines), "kv_capacity_tokens": capacity, "sync_s": 0, "host_bytes": 1}
    return DecodeCost(**{**fields, **line, **layout, **changes})


def table(prompt_tokens: int = 5, **lengths: list[int]) -> RoundLengths:
    """The n-th draw of a prompt takes the n-th part of its list; lists are repeated."""

    def natural(key: SampleKey, prompt: str) -> int:
        own = lengths[prompt]
        return own[(7 * key.draw + key.sample) % len(own)]

    return RoundLengths(natural, lambda prompt: prompt_tokens, lambda key, prompt: 0.0, CAP)


DELAY_S = Fraction(13, 17)
FAST_REWARD = RewardCost(workers=500, per_sample_s=Fraction(0), delay_s=DELAY_S)


def play(
    samples: int,
    lengths: RoundLengths,
    priced: DecodeCost | None = None,
    reward: RewardCost = FAST_REWARD,
    at_once: int = 8,
    prompts: str = "p",
) -> RoundTimes:
    """A plain round of so many samples of each prompt."""
    machine = RaceRound([*prompts], len(prompts), samples, samples, CAP)
    return simulate_round(machine, lengths, priced or cost(), reward, at_once)


def test_two_samples_on_one_engine_take_what_pen_and_paper_say() -> None:
    # Prefill of both: 2 x (2 + 5/7). Three steps with two samples that hold 10, 12, 14 tokens; then the one of 3 tokens
    # is gone with its 8, and two steps with one sample that holds 8 and 9.
    times = play(2, table(p=[3, 5]))
    prefill = 2 * (2 + Fraction(5, 7))
    together = 3 * (7 + 2 * Fraction(3, 5)) + Fraction(10 + 12 + 14, 11)
    alone = FINISH_S + 2 * (7 + Fraction(3, 5)) + Fraction(8 + 9, 11)
    decode_end_s = prefill + together + alone + FINISH_S
    assert times == RoundTimes(decode_end_s + DELAY_S, decode_end_s, decoded_tokens=8, preemptions=0)
    assert times.reward_exposed_s == DELAY_S


def test_a_full_engine_lets_the_next_sample_in_when_one_ends() -> None:
    # One at a time: samples of 6 tokens take as many times one sample.
    lengths = table(p=[6])
    assert play(4, lengths, at_once=1).decode_end_s == 4 * play(1, lengths, at_once=1).decode_end_s
    # 5 + 6 tokens each; room for 11 admits one at a time, and nobody has to be preempted.
    assert play(3, lengths, cost(capacity=11)) == play(3, lengths, at_once=1)


def test_a_full_kv_cache_preempts_the_youngest_and_every_token_comes() -> None:
    # Both start (5 + 5 <= 40), together they would need 90.
    times, roomy = play(2, table(p=[40]), cost(capacity=50)), play(2, table(p=[40]))
    assert times.preemptions == 1
    assert times.decoded_tokens == roomy.decoded_tokens == 80
    assert times.decode_end_s > roomy.decode_end_s


def exposed(samples: int, lengths: RoundLengths, reward: RewardCost, finish_s: Fraction = FINISH_S) -> Any:
    return play(samples, lengths, cost(finish_s=finish_s), reward).reward_exposed_s


def test_rewards_queue_before_their_workers() -> None:
    # 6 samples end at once; a worker takes 3 s each.
    for workers, queue_s in ((1, 6 * 3), (2, 3 * 3)):
        slow = RewardCost(workers, per_sample_s=Fraction(3), delay_s=Fraction(1))
        assert exposed(6, table(p=[4]), slow, Fraction(0)) == queue_s + 1
    # Of samples that take seconds of their own.
    slow = RewardCost(workers=1, per_sample_s=9, delay_s=Fraction(2))
    for seconds in (1, 30):
        own = dataclasses.replace(table(p=[4]), reward_s=lambda key, prompt, tokens, s=seconds: Fraction(s))
        assert exposed(1, own, slow) == seconds + 2


def test_rewards_after_the_rollout_wait_for_its_last_token() -> None:
    slow = RewardCost(workers=1, per_sample_s=Fraction(5), delay_s=Fraction(1))
    beside, after = (
        play(2, table(p=[4, 30]), reward=dataclasses.replace(slow, after_rollout=late)) for late in (False, True)
    )
    assert after.decode_end_s == beside.decode_end_s
    assert (beside.reward_exposed_s, after.reward_exposed_s) == (5 + 1, 2 * 5 + 1)


# -- prompts that samples share ----------------------------------------------------------------------------------------


def test_shared_blocks_take_their_memory_once() -> None:
    # Each sample comes to 45 tokens; two share 4 of them: 86 hold both, 85 do not.
    rounds = [
        play(2, table(p=[40]), cost(1, most, block_tokens=b)) for most, b in ((85, 2), (86, 2), (89, 16), (90, 16))
    ]
    assert [times.preemptions for times in rounds] == [1, 0, 1, 0]
    told: list[int] = []

    def observe(t_s: float, what: str, a: int, b: int, c: int) -> None:
        told.extend([c] if what == "held" else [])

    machine = RaceRound(["p"], 1, 2, 2, CAP)
    simulate_round(machine, table(p=[40]), cost(block_tokens=2), FAST_REWARD, 8, observe)
    assert told == [86]


def test_a_prompt_that_nobody_uses_is_cached_until_its_space_is_taken() -> None:
    # One at a time: p, then q of as many tokens as told, then p again. With 100 tokens of space, p leaves 100 free, its
    # own 4 the last of them, and q fills what it has.
    def end_s(block: int, q_tokens: int) -> Fraction:
        engine = Engine(cost(capacity=100, block_tokens=block), 1)
        for number, (prompt, tokens) in enumerate([("p", 6), ("q", q_tokens), ("p", 6)]):
            engine.waiting.append(EngineSample(Issue(SampleKey(number, 0), prompt, tokens), 5, tokens, False))
        engine.admit()
        while engine.running:
            engine.take_event()
            engine.admit()
        return engine.now

    assert [end_s(16, tokens) - end_s(2, tokens) for tokens in (91, 92)] == [4 * TOKEN_S, 0]


def build(kind: str, prompts: int, samples: int, cutoff_tokens: int, copies: int) -> Round:
    names = [f"p{i}" for i in range(prompts)]
    if kind == "race":
        return RaceRound(names, max(1, prompts - 1), max(1, samples - 1), samples, CAP)
    if kind == "short":
        return ExactShortRound(names, max(1, prompts - 1), samples, cutoff_tokens, CAP)
    if kind == "long":
        return ExactQueueRound(
            names, prompts, samples, cutoff_tokens, CAP, copies=[copies] * prompts, until_long=[True] * prompts
        )
    return RaceRound(names, prompts, samples, samples, CAP)


def some_lengths(data: st.DataObject, prompts: int) -> RoundLengths:
    lists = st.lists(st.integers(1, CAP), min_size=8, max_size=8)
    return table(**{f"p{i}": data.draw(lists) for i in range(prompts)})


@settings(max_examples=20)
@given(st.sampled_from(["race", "short", "long"]), st.integers(2, 3), st.integers(1, 4), st.data())
def test_samples_go_to_the_same_engines_whatever_they_all_weigh(kind: str, engines: int, each: int, data) -> None:
    lengths = some_lengths(data, 4)
    priced = cost(engines, block_tokens=1, sharing=RoundPrefix(block_tokens=1, tokens_per_sample=each)), FAST_REWARD, 6
    weighed = [dataclasses.replace(lengths, expected_tokens=tokens) for tokens in (1.0, 13.7, 4096.0)]
    first, *others = [simulate_round(build(kind, 4, 4, 20, 2), drawn, *priced) for drawn in weighed]
    assert others == [first, first]


# -- every step one by one ---------------------------------------------------------------------------------------------


class NaiveEngine:
    def __init__(self, cost: DecodeCost, limit: int) -> None:
        self.cost, self.limit = cost, limit
        self.running: list[dict] = []
        self.waiting: list[dict] = []
        self.held_up = Fraction(0)  # by samples that ended
        self.ended = Fraction(0)  # when the last of them did
        self.boundary: Fraction | None = None  # end of the step under way
        self.prefilled: set[str] = set()  # prompts; there is no KV limit, so nothing is evicted

    def begin_step(self, now: Fraction) -> None:
        self.boundary = None
        if not self.running and not self.waiting:
            return
        prefill, self.held_up = max(Fraction(0), self.held_up - (now - self.ended)), Fraction(0)
        while self.waiting and len(self.running) < self.limit:
            sample = self.waiting.pop(0)
            shared = (sample["prompt"] - 1) // self.cost.block_tokens * self.cost.block_tokens
            again = sample["prompt"] - (shared if sample["name"] in self.prefilled else 0)
            squares = sample["prompt"] ** 2 - (sample["prompt"] - again) ** 2
            prefill += self.cost.prefill_s + self.cost.prefill_s_per_token * again
            prefill += self.cost.prefill_s_per_token_squared * squares
            self.prefilled.add(sample["name"])
            self.running.append(sample)
        held = sum(s["prompt"] + s["have"] for s in self.running)
        self.boundary = now + prefill + self.cost.a + self.cost.b * len(self.running) + self.cost.c * held


def naive(machine: Round, lengths: RoundLengths, cost: DecodeCost, delay: Fraction, limit: int) -> Fraction:
    """End of the round; no KV limit, no reward queue. What comes in during a step joins at its end."""
    engines = [NaiveEngine(cost, limit) for _ in range(cost.key.engines)]
    balancer = Balancer(len(engines))
    where: dict[SampleKey, int] = {}
    rewards: list[tuple[Fraction, int, SampleKey]] = []

    def apply(actions: list, now: Fraction) -> None:
        for action in actions:
            if isinstance(action, Issue):
                e = where[action.key] = balancer.assign(action.key, 1.0)
                limit_tokens = min(action.max_tokens, CAP)
                length = lengths.natural(action.key, action.prompt)
                engines[e].waiting.append(
                    {
                        "key": action.key,
                        "name": action.prompt,
                        "prompt": lengths.prompt_tokens(action.prompt),
                        "have": 0,
                        "tokens": min(length, limit_tokens),
                        "cut": length > limit_tokens or length >= CAP,
                        "watch": action.cutoff_tokens,
                    }
                )
            elif isinstance(action, Abort):
                engine = engines[where[action.key]]
                if any(s["key"] == action.key for s in [*engine.running, *engine.waiting]):
                    engine.running = [s for s in engine.running if s["key"] != action.key]
                    engine.waiting = [s for s in engine.waiting if s["key"] != action.key]
                    balancer.release(action.key)
            else:
                told = now + engines[where[action.key]].held_up
                heapq.heappush(rewards, (told + delay, len(where) + len(rewards), action.key))

    now = Fraction(0)
    apply(machine.start(), now)
    while not machine.done:
        boundaries = [e.boundary for e in engines if e.boundary is not None]
        if min([*boundaries, *(r[0] for r in rewards[:1])], default=None) != now:
            # The clock moves on: who stands at a boundary begins a step, with all that came in at this instant.
            for engine in engines:
                if engine.boundary is None:
                    engine.begin_step(now)
            boundaries = [e.boundary for e in engines if e.boundary is not None]
        if rewards and (not boundaries or rewards[0][0] <= min(boundaries)):
            now, _, key = heapq.heappop(rewards)
            apply(machine.handle(Scored(key, 0.0)), now)
            continue
        now = min(boundaries)
        engine = next(e for e in engines if e.boundary == now)
        for sample in engine.running:
            sample["have"] += 1
        for sample in list(engine.running):
            if sample not in engine.running:
                continue  # aborted by an event at this very boundary
            if sample["have"] == sample["tokens"]:
                engine.running.remove(sample)
                engine.held_up += cost.finish_s
                engine.ended = now
                balancer.release(sample["key"])
                apply(machine.handle(Finished(sample["key"], sample["tokens"], sample["cut"])), now)
            elif sample["have"] == sample["watch"]:
                apply(machine.handle(ReachedCutoff(sample["key"])), now)
        engine.boundary = None
    return now


SQUARED = {"prefill_s_per_token_squared": Fraction(1, 3)}
kinds = st.sampled_from(["sync", "race", "short", "long"])


@settings(max_examples=80)
@given(
    rounds=st.tuples(kinds, st.integers(1, 5), st.integers(1, 4), st.integers(1, 40), st.integers(1, 3)),
    engines=st.integers(1, 3),
    limit=st.integers(1, 12),
    block=st.sampled_from([2, 16]),  # of prompts of 5 tokens: 4 are shared, or none
    data=st.data(),
)
def test_closed_forms_agree_exactly_with_a_loop_over_every_step(rounds, engines, limit, block, data) -> None:
    lengths = some_lengths(data, rounds[1])
    fast, slow, priced = build(*rounds), build(*rounds), cost(engines, block_tokens=block, **SQUARED)
    times = simulate_round(fast, lengths, priced, FAST_REWARD, limit)
    assert times.end_s == naive(slow, lengths, priced, DELAY_S, limit)
    assert fast.outcome() == slow.outcome()
    fast.check_invariants()


@settings(max_examples=40)
@given(kinds, st.integers(CAP + 5, 260), st.integers(0, 10**6))
def test_rounds_conserve_samples_under_memory_pressure(kind: str, capacity: int, seed: int) -> None:
    lengths = table(**{f"p{i}": [1 + (seed * (i + 3) + 37 * j * j) % CAP for j in range(11)] for i in range(5)})
    machine, again = build(kind, 5, 4, 20, 2), build(kind, 5, 4, 20, 2)
    times = simulate_round(machine, lengths, cost(2, capacity), FAST_REWARD, 6)
    outcome = machine.outcome()
    assert outcome.check() == []
    assert sum(sum(g.tokens) for g in outcome.trained) <= times.decoded_tokens
    assert 0 <= times.decode_end_s <= times.end_s
    assert simulate_round(again, lengths, cost(2, capacity), FAST_REWARD, 6) == times


def test_waiting_for_nobody_is_an_error_and_no_endless_loop() -> None:
    class Deaf(RaceRound):
        def handle(self, event):
            return []

    with pytest.raises(AssertionError, match="waits for nothing"):
        simulate_round(Deaf(["p"], 1, 2, 2, CAP), table(p=[3]), cost(), FAST_REWARD, 4)
