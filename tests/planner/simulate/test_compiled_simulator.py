"""The compiled simulator against the reference: the same rounds, bit for bit."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import caching

from rlplan.planner.costs.decode_costs import ChangeCost, DecodeCost, PlannedDrafts
from rlplan.planner.costs.reward_costs import NO_TIMEOUT, ExecutionTimes, RewardCost
from rlplan.planner.simulate.one_round import simulate_one_round
from rlplan.planner.simulate.round_arrays import RanOut, RoundDraws, SimulatedRound
from rlplan.plans.schema.levers import EngineLayout, RoundHandOver, RoundPrefix, RoundTail
from rlplan.profiles.draft_schema import DraftLaw
from rlplan.rounds.compiled import kernel_state as state
from rlplan.rounds.compiled.numba_options import entry
from rlplan.rounds.machines.exact import MAX_DRAWS
from rlplan.rounds.round_spec import RoundKind
from rlplan.rounds.timeouts import TimeoutSpec

CAP = 60


def unwatched(*event: Any) -> None:
    """Makes the machines simulate a round."""


def assert_same(round_kind: RoundKind, round_draws: RoundDraws, *costs_: Any) -> SimulatedRound:
    reference = simulate_one_round(round_kind, round_draws, *costs_, observe=unwatched)
    compiled = simulate_one_round(round_kind, round_draws, *costs_)
    assert compiled.times == reference.times
    assert np.array_equal(compiled.ready_s, reference.ready_s, equal_nan=True)
    for field in ("row", "prompt", "fate", "kept", "exhausted"):
        assert getattr(compiled, field).tolist() == getattr(reference, field).tolist(), field
    return compiled


def make_luck(round_kind: RoundKind, prompts: int, ends: float, expected_tokens: float, seed: int) -> RoundDraws:
    """Lengths that end with probability `ends` at each token, many of them equal, so that many events are at once."""
    rng = np.random.default_rng(seed)
    each = MAX_DRAWS if round_kind.redraws else 1
    shape = (prompts * each, round_kind.samples)
    return RoundDraws(
        lengths=np.minimum(rng.geometric(ends, size=shape), CAP).astype(np.int32),
        prompt_tokens=rng.integers(1, 9, size=prompts).astype(np.int32),
        cap_tokens=CAP,
        expected_tokens=expected_tokens,
        rewards=rng.integers(0, 2, size=shape).astype(float),
        reward_draws=rng.random(size=shape),
        prompt_draws=rng.random(size=prompts),
        offset=np.arange(prompts + 1) * each if round_kind.redraws else None,
    )


@st.composite
def rounds(draw) -> tuple[RoundKind, RoundDraws]:
    exact, kind = draw(st.booleans()), draw(st.sampled_from(["short", "long"]))
    prompts, group = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    round_kind = RoundKind(
        name=kind,
        prompts=prompts,
        target=draw(st.integers(1, prompts)),
        group_size=group,
        samples=group + (0 if exact else draw(st.integers(0, 2))),
        max_tokens=CAP,
        cutoff_tokens=draw(st.integers(1, CAP - 1)) if exact else None,
        copies=tuple(draw(st.lists(st.integers(1, 3), min_size=prompts, max_size=prompts))),
        until_long=tuple(draw(st.lists(st.booleans(), min_size=prompts, max_size=prompts))),
        dynamic_sampling=draw(st.booleans()),
    )
    fresh = draw(st.integers(0, 5)) if kind == "short" else 0
    ends, expected_tokens = draw(st.sampled_from([0.02, 0.05, 0.3])), draw(st.sampled_from([1.0, 17.3]))
    return round_kind, make_luck(round_kind, prompts + fresh, ends, expected_tokens, draw(st.integers(0, 10**6)))


@st.composite
def costs(draw, engines: int = 1) -> DecodeCost:
    unit = draw(st.sampled_from([1.0, 0.137]))  # whole numbers make events of several engines simultaneous
    plain = DecodeCost(
        key=EngineLayout(1, draw(st.integers(engines, 4))),
        a=7 * unit,
        b=draw(st.sampled_from([0.0, 0.6])) * unit,
        c=draw(st.sampled_from([0.0, 0.09])) * unit,
        prefill_s=draw(st.sampled_from([0.0, 2.0])) * unit,
        prefill_s_per_token=unit / 7,
        kv_capacity_tokens=draw(st.sampled_from([CAP + 9, 160, 10**6])),
        max_sequences=64,
        sync_s=0.0,
        host_bytes=1,
        round_s=draw(st.sampled_from([0.0, 3.0])) * unit,
        finish_s=draw(st.sampled_from([0.0, 0.16])) * unit,
        prefill_s_per_token_squared=draw(st.sampled_from([0.0, 0.011])) * unit,
        curve=draw(st.sampled_from([(), ((1, 7.5 * unit), (2, 9.0 * unit), (6, 9.5 * unit))])),
        # Prompts have up to 8 tokens: blocks of 3 share some of them, of 16 none.
        block_tokens=draw(st.sampled_from([1, 3, 16])),
        sharing=draw(
            st.none()
            | st.builds(
                RoundPrefix, block_tokens=st.sampled_from([1, 3]), tokens_per_sample=st.sampled_from([1, 5, 40])
            )
        ),
    )
    if not draw(st.booleans()):
        return plain
    law = DraftLaw((1.0, 0.9, 0.5), (0.7, 0.5, 0.1), ((1, 1.2), (4, 0.6)), 0.2, 0.01)
    return dataclasses.replace(plain, drafts=PlannedDrafts(3, draw(st.integers(1, 4)), law, law))


executions = st.builds(
    ExecutionTimes,
    correct_s=st.sampled_from([(0.3,), (0.1, 1.7, 9.0)]),
    wrong_s=st.sampled_from([(0.4,), (0.2, 0.3, 30.0)]),
    correct=st.sampled_from([0.0, 0.31, 1.0]),
    unsolved=st.sampled_from([0.0, 0.47, 1.0]),
)
timeouts = st.sampled_from([NO_TIMEOUT, TimeoutSpec(9.7), TimeoutSpec(9.7, 0.35, 1.5), TimeoutSpec(20.0, 2.0, 1.0)])
rewards = st.builds(
    RewardCost,
    workers=st.integers(1, 5),
    per_sample_s=st.sampled_from([0.0, 1.0, 11.3]),
    delay_s=st.floats(0, 30),
    executions=st.none() | executions,
    timeout=timeouts,
    after_rollout=st.booleans(),
    per_token_s=st.sampled_from([0.0, 0.37]),
)


tails = st.none() | st.tuples(st.integers(1, 3), st.sampled_from([0.0, 4.0, 31.7]))
change_rules = st.tuples(st.floats(0.05, 0.99), st.integers(0, 30), tails, st.integers(1, 3), st.booleans())


@pytest.mark.parametrize("examples", [100, pytest.param(800, marks=pytest.mark.search)])
def test_the_compiled_simulator_repeats_the_reference(examples: int) -> None:
    repeats(examples)


def repeats(examples: int) -> None:
    """Simulate so many rounds of any kind by the kernel and by the machines."""

    @settings(max_examples=examples)
    @given(rounds(), costs(engines=2), costs(), rewards, st.integers(1, 12), st.none() | change_rules)
    def simulated_alike(drawn, decode, later, reward, limit, rules) -> None:
        if rules is None:
            assert_same(*drawn, decode, reward, limit)
            return
        share, growth, tail, freed, same = rules
        later = dataclasses.replace(later, block_tokens=decode.block_tokens)
        if tail is None:
            spec = RoundHandOver(engines=min(freed, decode.key.engines - 1), at_finished=share, growth_tokens=growth)
            change = ChangeCost(spec, decode if same else later)
        else:
            engines, takes_s = tail
            change = ChangeCost(
                RoundTail(engines=engines, tp=2, at_finished=share, growth_tokens=growth), later, takes_s
            )
        assert_same(*drawn, decode, reward, limit, change)

    simulated_alike()


@pytest.mark.parametrize(
    "round_kind",
    [
        RoundKind("short", 30, 24, 4, 5, CAP),
        RoundKind("short", 30, 24, 4, 4, CAP, cutoff_tokens=25),
        RoundKind("long", 30, 30, 4, 4, CAP, cutoff_tokens=25, copies=(2,) * 30, until_long=(True,) * 30),
        RoundKind(
            "long", 30, 12, 4, 4, CAP, cutoff_tokens=25, copies=(1, 1, 3) * 10, until_long=(False, False, True) * 10
        ),
    ],
)
@pytest.mark.parametrize("sharing", [None, RoundPrefix(block_tokens=3, tokens_per_sample=2)])
def test_a_large_round_under_memory_pressure_is_the_same_too(round_kind: RoundKind, sharing) -> None:
    round_draws = make_luck(round_kind, 48 if round_kind.name == "short" else 30, 0.07, 13.7, 3)
    decode = DecodeCost(EngineLayout(1, 3), 0.7, 0.013, 0.00171, 0.1, 0.013, 220, 99, 0.0, 1, 0.3, 0.017)
    decode = dataclasses.replace(decode, block_tokens=3 if sharing else 16, sharing=sharing)
    assert assert_same(round_kind, round_draws, decode, RewardCost(2, 0.013, 0.41), 64).times.preemptions > 10


@pytest.mark.parametrize("observe", [None, unwatched])
def test_a_round_that_wants_more_rows_than_it_was_given_says_so(observe: Any) -> None:
    decode = DecodeCost(EngineLayout(1, 1), 1.0, 0.0, 0.0, 0.0, 0.0, 10**6, 99, 0.0, 1)
    costs_ = (decode, RewardCost(1, 0.0, 0.0), 9)
    lengths, ones = np.array([[5, 5], [40, 5]], dtype=np.int32), np.ones(2, dtype=np.int32)
    short = RoundKind("short", 2, 2, 2, 2, CAP, cutoff_tokens=10)
    with pytest.raises(RanOut):
        simulate_one_round(short, RoundDraws(lengths, ones, CAP, 1.0, more=True), *costs_, observe=observe)
    ended = simulate_one_round(short, RoundDraws(lengths, ones, CAP, 1.0), *costs_, observe=observe)
    assert ended.fate.tolist() == [state.TRAINED, state.DEFERRED]
    long = RoundKind("long", 2, 2, 2, 2, CAP, cutoff_tokens=10, copies=(1, 1), until_long=(True, True))
    with pytest.raises(RanOut):
        simulate_one_round(
            long, RoundDraws(lengths, ones, CAP, 1.0, offset=np.array([0, 1, 2])), *costs_, observe=observe
        )


def test_the_compiled_simulator_works_where_no_cache_is_writable(monkeypatch) -> None:
    def refuse(self) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(caching._CacheLocator, "ensure_cache_path", refuse)
    assert entry(lambda x: x + 1)(1) == 2
