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
from rlplan.planner.simulate.reference_engine import Engine, Sample
from rlplan.planner.simulate.reference_round import Lengths, simulate_round
from rlplan.planner.simulate.round_arrays import RoundTimes
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.rounds.balance import Balancer, PrefixSharing
from rlplan.rounds.machines.events import Abort, Finished, Issue, ReachedCutoff, SampleKey, Scored
from rlplan.rounds.machines.exact_long import ExactLongRound
from rlplan.rounds.machines.exact_short import ExactShortRound
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.machines.race import RaceRound
from rlplan.rounds.machines.round import Round

CAP = 60


def cost(engines: int = 1, capacity: int = 10**6, **changes: Any) -> DecodeCost:
    fields = {
        "a": Fraction(7),
        "b": Fraction(3, 5),
        "c": Fraction(1, 11),
        "prefill_s": Fraction(2),
        "prefill_s_per_token": Fraction(1, 7),
        "finish_s": Fraction(3, 19),
    }
    return DecodeCost(
        key=EngineLayout(1, engines),
        kv_capacity_tokens=capacity,
        max_sequences=64,
        sync_s=0,
        host_bytes=1,
        **{**fields, **changes},
    )


def table(lengths: dict[str, list[int]], prompt_tokens: int = 5) -> Lengths:
    """The n-th draw of a prompt takes the n-th part of its list; lists are repeated."""

    def natural(key: SampleKey, prompt: str) -> int:
        own = lengths[prompt]
        return own[(7 * key.draw + key.sample) % len(own)]

    return Lengths(natural, lambda prompt: prompt_tokens, lambda key, prompt: 0.0, CAP)


FAST_REWARD = RewardCost(workers=500, per_sample_s=Fraction(0), delay_s=Fraction(13, 17))


def sync_round(prompts: list[str], samples: int) -> RaceRound:
    return RaceRound(prompts, len(prompts), samples, samples, CAP)


def test_two_samples_on_one_engine_take_what_pen_and_paper_say() -> None:
    # Prefill of both: 2 x (2 + 5/7). Three steps with two samples that hold 10, 12, 14 tokens; then the one of 3 tokens
    # is gone with its 8, and two steps with one sample that holds 8 and 9.
    times = simulate_round(sync_round(["p"], 2), table({"p": [3, 5]}), cost(), FAST_REWARD, 8)
    prefill = 2 * (2 + Fraction(5, 7))
    together = 3 * (7 + 2 * Fraction(3, 5)) + Fraction(10 + 12 + 14, 11)
    alone = Fraction(3, 19) + 2 * (7 + Fraction(3, 5)) + Fraction(8 + 9, 11)
    assert times == RoundTimes(
        end_s=prefill + together + alone + Fraction(3, 19) + Fraction(13, 17),
        decode_end_s=prefill + together + alone + Fraction(3, 19),
        decoded_tokens=8,
        preemptions=0,
    )
    assert times.reward_exposed_s == Fraction(13, 17)


def test_a_full_engine_lets_the_next_sample_in_when_one_ends() -> None:
    # One at a time: 4 samples of 6 tokens are 4 times one sample.
    machine, lengths = sync_round(["p"], 4), table({"p": [6]})
    one = simulate_round(sync_round(["p"], 1), lengths, cost(), FAST_REWARD, 1)
    assert simulate_round(machine, lengths, cost(), FAST_REWARD, 1).decode_end_s == 4 * one.decode_end_s


def test_a_sample_that_does_not_fit_into_the_kv_cache_waits() -> None:
    # 5 + 6 tokens each; room for 13 admits one at a time, and nobody has to be preempted.
    lengths = table({"p": [6]})
    tight = simulate_round(sync_round(["p"], 3), lengths, cost(capacity=11), FAST_REWARD, 8)
    single = simulate_round(sync_round(["p"], 3), lengths, cost(), FAST_REWARD, 1)
    assert tight == single


def test_a_full_kv_cache_preempts_the_youngest_and_every_token_still_comes() -> None:
    # Both start (5 + 5 <= 40), together they would need 90.
    times = simulate_round(sync_round(["p"], 2), table({"p": [40]}), cost(capacity=50), FAST_REWARD, 8)
    roomy = simulate_round(sync_round(["p"], 2), table({"p": [40]}), cost(), FAST_REWARD, 8)
    assert times.preemptions == 1
    assert times.decoded_tokens == roomy.decoded_tokens == 80
    assert times.decode_end_s > roomy.decode_end_s


def test_rewards_queue_before_their_workers() -> None:
    # 6 samples end at once; one worker takes 3 s each.
    slow = RewardCost(workers=1, per_sample_s=Fraction(3), delay_s=Fraction(1))
    times = simulate_round(sync_round(["p"], 6), table({"p": [4]}), cost(finish_s=Fraction(0)), slow, 8)
    assert times.reward_exposed_s == 6 * 3 + 1
    two = RewardCost(workers=2, per_sample_s=Fraction(3), delay_s=Fraction(1))
    assert (
        simulate_round(sync_round(["p"], 6), table({"p": [4]}), cost(finish_s=Fraction(0)), two, 8).reward_exposed_s
        == 3 * 3 + 1
    )


def test_rewards_after_the_rollout_wait_for_its_last_token_and_those_beside_it_do_not() -> None:
    lengths = table({"p": [4, 30]})
    slow = RewardCost(workers=1, per_sample_s=Fraction(5), delay_s=Fraction(1))
    beside = simulate_round(sync_round(["p"], 2), lengths, cost(), slow, 8)
    after = simulate_round(sync_round(["p"], 2), lengths, cost(), dataclasses.replace(slow, after_rollout=True), 8)
    assert after.decode_end_s == beside.decode_end_s
    assert (beside.reward_exposed_s, after.reward_exposed_s) == (5 + 1, 2 * 5 + 1)


def test_a_sample_takes_a_reward_worker_its_own_seconds_where_they_differ() -> None:
    def exposed(seconds: Fraction) -> Fraction:
        lengths = dataclasses.replace(table({"p": [4]}), reward_s=lambda key, prompt, tokens: seconds)
        reward = RewardCost(workers=1, per_sample_s=9, delay_s=Fraction(2))
        return simulate_round(sync_round(["p"], 1), lengths, cost(), reward, 8).reward_exposed_s

    assert [exposed(Fraction(seconds)) for seconds in (1, 30)] == [3, 32]


# -- prompts that samples share ----------------------------------------------------------------------------------------


def test_the_samples_of_a_prompt_on_one_engine_prefill_its_whole_blocks_once() -> None:
    # Of 5 prompt tokens 4 are whole blocks of 2; the last token is every sample's own.
    alone = simulate_round(sync_round(["p"], 3), table({"p": [6]}), cost(block_tokens=16), FAST_REWARD, 8)
    shared = simulate_round(sync_round(["p"], 3), table({"p": [6]}), cost(block_tokens=2), FAST_REWARD, 8)
    assert alone.end_s - shared.end_s == 2 * 4 * Fraction(1, 7)
    squared = cost(block_tokens=2, prefill_s_per_token_squared=Fraction(1, 3))
    more = simulate_round(sync_round(["p"], 3), table({"p": [6]}), squared, FAST_REWARD, 8)
    assert more.end_s - shared.end_s == (5**2 + 2 * (5**2 - 4**2)) * Fraction(1, 3)


def test_other_engines_do_not_have_the_prompt_and_other_prompts_share_nothing() -> None:
    lengths = table({"p": [6], "q": [6]})
    prices = {block: cost(2, block_tokens=block) for block in (2, 16)}
    one_each = [simulate_round(sync_round(["p"], 2), lengths, prices[block], FAST_REWARD, 8) for block in (2, 16)]
    assert one_each[0] == one_each[1]
    prices = {block: cost(1, block_tokens=block) for block in (2, 16)}
    two_prompts = [simulate_round(sync_round(["p", "q"], 1), lengths, prices[b], FAST_REWARD, 8) for b in (2, 16)]
    assert two_prompts[0] == two_prompts[1]


def test_shared_blocks_take_their_memory_once() -> None:
    # Each sample comes to 45 tokens; two share 4 of them: 86 hold both, 85 do not.
    def preempted(capacity: int, block: int) -> int:
        priced = cost(capacity=capacity, block_tokens=block)
        return simulate_round(sync_round(["p"], 2), table({"p": [40]}), priced, FAST_REWARD, 8).preemptions

    assert [preempted(85, 2), preempted(86, 2), preempted(89, 16), preempted(90, 16)] == [1, 0, 1, 0]
    told: list[int] = []

    def observe(t_s: float, what: str, a: int, b: int, c: int) -> None:
        told.extend([c] if what == "held" else [])

    simulate_round(sync_round(["p"], 2), table({"p": [40]}), cost(block_tokens=2), FAST_REWARD, 8, observe)
    assert told == [86]


def test_a_prompt_that_nobody_uses_is_cached_until_its_space_is_taken() -> None:
    # One at a time: p, then q of as many tokens as told, then p again. With 100 tokens of space, p leaves 100 free, its
    # own 4 the last of them, and q fills what it has.
    def saved(q_tokens: int) -> Fraction:
        ended = []
        for block in (16, 2):
            engine = Engine(cost(capacity=100, block_tokens=block), 1)
            for number, (prompt, tokens) in enumerate([("p", 6), ("q", q_tokens), ("p", 6)]):
                engine.waiting.append(Sample(SampleKey(number, 0), 0, prompt, 5, tokens, False, 0))
            engine.admit()
            while engine.running:
                engine.take_event()
                engine.admit()
            ended.append(engine.now)
        return ended[0] - ended[1]

    assert [saved(tokens) for tokens in (91, 92)] == [4 * Fraction(1, 7), 0]


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["race", "short", "long"]), engines=st.integers(2, 3), each=st.integers(1, 4), data=st.data()
)
def test_samples_go_to_the_same_engines_whatever_they_all_weigh(kind: str, engines: int, each: int, data) -> None:
    lengths = table({f"p{i}": data.draw(st.lists(st.integers(1, CAP), min_size=8, max_size=8)) for i in range(4)})
    priced = cost(engines, block_tokens=1, sharing=PrefixSharing(1, each)), FAST_REWARD, 6
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
        if not self.running and not self.waiting:
            self.boundary = None
            return
        prefill, self.held_up = max(Fraction(0), self.held_up - (now - self.ended)), Fraction(0)
        while self.waiting and len(self.running) < self.limit:
            sample = self.waiting.pop(0)
            shared = (sample["prompt"] - 1) // self.cost.block_tokens * self.cost.block_tokens
            again = sample["prompt"] - (shared if sample["name"] in self.prefilled else 0)
            prefill += self.cost.prefill_s + self.cost.prefill_s_per_token * again
            self.prefilled.add(sample["name"])
            self.running.append(sample)
        if not self.running:
            self.boundary = None
            return
        held = sum(s["prompt"] + s["have"] for s in self.running)
        self.boundary = now + prefill + self.cost.a + self.cost.b * len(self.running) + self.cost.c * held


def naive(machine: Round, lengths: Lengths, cost: DecodeCost, delay: Fraction, limit: int) -> Fraction:
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


def build(kind: str, prompts: int, samples: int, cutoff_tokens: int, copies: int) -> Round:
    names = [f"p{i}" for i in range(prompts)]
    if kind == "race":
        return RaceRound(names, max(1, prompts - 1), max(1, samples - 1), samples, CAP)
    if kind == "short":
        return ExactShortRound(names, max(1, prompts - 1), samples, cutoff_tokens, CAP)
    if kind == "long":
        return ExactLongRound(names, samples, cutoff_tokens, copies, CAP)
    return RaceRound(names, prompts, samples, samples, CAP)


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(["sync", "race", "short", "long"]),
    prompts=st.integers(1, 5),
    samples=st.integers(1, 4),
    cutoff_tokens=st.integers(1, 40),
    copies=st.integers(1, 3),
    engines=st.integers(1, 3),
    limit=st.integers(1, 12),
    block=st.sampled_from([2, 16]),  # of prompts of 5 tokens: 4 are shared, or none
    data=st.data(),
)
def test_closed_forms_agree_exactly_with_a_loop_over_every_step(
    kind: str, prompts: int, samples: int, cutoff_tokens: int, copies: int, engines: int, limit: int, block: int, data
) -> None:
    lists = st.lists(st.integers(1, CAP), min_size=8, max_size=8)
    lengths = table({f"p{i}": data.draw(lists) for i in range(prompts)})
    fast, slow = (
        build(kind, prompts, samples, cutoff_tokens, copies),
        build(kind, prompts, samples, cutoff_tokens, copies),
    )
    priced = cost(engines, block_tokens=block)
    times = simulate_round(fast, lengths, priced, FAST_REWARD, limit)
    assert times.end_s == naive(slow, lengths, priced, FAST_REWARD.delay_s, limit)
    assert fast.outcome() == slow.outcome()
    fast.check_invariants()


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["sync", "race", "short", "long"]),
    capacity=st.integers(CAP + 5, 260),
    seed=st.integers(0, 10**6),
)
def test_rounds_conserve_samples_under_memory_pressure(kind: str, capacity: int, seed: int) -> None:
    lists = {f"p{i}": [1 + (seed * (i + 3) + 37 * j * j) % CAP for j in range(11)] for i in range(5)}
    machine = build(kind, 5, 4, 20, 2)
    times = simulate_round(machine, table(lists), cost(2, capacity), FAST_REWARD, 6)
    outcome = machine.outcome()
    assert outcome.check() == []
    trained = sum(sum(g.tokens) for g in outcome.trained)
    assert trained <= times.decoded_tokens
    assert 0 <= times.decode_end_s <= times.end_s
    again = build(kind, 5, 4, 20, 2)
    assert simulate_round(again, table(lists), cost(2, capacity), FAST_REWARD, 6) == times


def test_waiting_for_nobody_is_an_error_and_no_endless_loop() -> None:
    class Deaf(RaceRound):
        def handle(self, event):
            return []

    with pytest.raises(AssertionError, match="waits for nothing"):
        simulate_round(Deaf(["p"], 1, 2, 2, CAP), table({"p": [3]}), cost(), FAST_REWARD, 4)


def test_a_race_frees_the_engine_of_the_losers() -> None:
    lengths = table({"p": [3, 4], "q": [5, 6], "r": [CAP, CAP]})
    machine = RaceRound(["p", "q", "r"], 2, 2, 2, CAP)
    times = simulate_round(machine, lengths, cost(), FAST_REWARD, 99)
    assert machine.outcome().prompts[Fate.DEFERRED] == ("r",)
    assert times.decoded_tokens < CAP
    # The losers decode until the reward of the last winner is there, so nothing of it is exposed.
    assert times.reward_exposed_s == 0
