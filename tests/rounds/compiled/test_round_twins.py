"""The compiled round repeats the machines, the engines and the balancer, bit for bit (here without its compiler)."""

import random

import numpy as np
import pytest

from rlplan.planner.costs.decode_costs import ChangeCost, DecodeCost
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.simulate.one_round import simulate_one_round
from rlplan.planner.simulate.round_arrays import RanOut, RoundDraws
from rlplan.plans.schema.levers import EngineLayout, RoundHandOver, RoundPrefix, RoundTail
from rlplan.rounds.compiled import round_kernel
from rlplan.rounds.machines.exact import MAX_DRAWS
from rlplan.rounds.round_spec import RoundKind

from .plain import load, objects, on_objects

CAP = 60
plain = load("round_kernel", "kernel_state", "compiled_engines")


@pytest.fixture(autouse=True)
def plainly(monkeypatch):
    monkeypatch.setattr(round_kernel, "simulate", lambda *world: on_objects(plain.round_kernel.simulate, *world))


def case(seed):
    """A round of any kind, what it draws, and what engines and rewards cost: many events are at once."""
    dice = random.Random(seed)
    pick, exact, long = dice.choice, seed % 3 > 0, seed % 3 == 2
    prompts, group, fresh = dice.randint(1, 6), dice.randint(1, 4), 0 if long else dice.randint(0, 5)
    _, copies = dice.randint(1, 3), tuple(random.Random(-seed).choices(range(1, 4), k=prompts))
    until_long = tuple(random.Random(-seed).choices([True, False], k=prompts))
    kind = RoundKind(
        name="long" if long else "short",
        prompts=prompts,
        target=dice.randint(1, prompts),
        group_size=group,
        samples=group + (0 if exact else dice.randint(0, 2)),
        max_tokens=CAP,
        cutoff_tokens=dice.randint(1, 20) if exact else None,
        copies=copies,
        until_long=until_long,
        dynamic_sampling=pick([False, True]),
    )
    each = MAX_DRAWS if kind.redraws else 1
    rng, shape = np.random.default_rng(seed), ((prompts + fresh) * each, kind.samples)
    drawn = RoundDraws(
        lengths=np.minimum(rng.geometric(pick([0.02, 0.05, 0.3]), size=shape), CAP).astype(np.int32),
        prompt_tokens=rng.integers(1, 9, size=prompts + fresh).astype(np.int32),
        cap_tokens=CAP,
        expected_tokens=pick([1.0, 17.3]),
        rewards=rng.integers(0, 2, size=shape).astype(float),
        reward_draws=rng.random(size=shape),
        prompt_draws=rng.random(size=prompts + fresh),
        offset=np.arange(prompts + fresh + 1) * each if kind.redraws else None,
    )
    unit, engines = pick([1.0, 0.137]), dice.randint(1, 4)  # whole seconds make events of engines simultaneous
    block, share = (
        pick([1, 3, 16]),
        pick(
            [None, RoundPrefix(block_tokens=1, tokens_per_sample=5), RoundPrefix(block_tokens=3, tokens_per_sample=1)]
        ),
    )

    def decode(count):
        return DecodeCost(
            EngineLayout(1, count), 7 * unit, pick([0.0, 0.6]) * unit, pick([0.0, 0.09]) * unit,
            pick([0.0, 2.0]) * unit, unit / 7, pick([CAP + 9, 160, 10**6]), 64, 0.0, 1, round_s=pick([0.0, 3.0]) * unit,
            finish_s=pick([0.0, 0.16]) * unit, prefill_s_per_token_squared=pick([0.0, 0.011]) * unit,
            block_tokens=block, sharing=share,
        )  # fmt: skip

    change, costs = None, decode(engines)
    if engines > 1 and dice.random() < 0.6:
        after, growth = decode(1), dice.randint(0, 30)
        if pick([True, False]):
            change = ChangeCost(
                RoundHandOver(
                    engines=dice.randint(1, engines - 1), at_finished=dice.uniform(0.05, 1), growth_tokens=growth
                ),
                after,
            )
        else:
            change = ChangeCost(
                RoundTail(engines=dice.randint(1, 3), tp=2, at_finished=dice.uniform(0.05, 1), growth_tokens=growth),
                after,
                pick([0.0, 31.7]),
            )
    reward = RewardCost(
        dice.randint(1, 5), pick([0.0, 1.0, 11.3]), dice.uniform(0, 30), after_rollout=pick([True, False])
    )
    return kind, drawn, costs, reward, dice.randint(1, 12), change


def same(seed):
    args = case(seed)
    reference, twin = (simulate_one_round(*args, reference=reference) for reference in (True, False))
    assert twin.times == reference.times
    assert np.array_equal(twin.ready_s, reference.ready_s, equal_nan=True)
    for field in ("row", "prompt", "fate", "kept", "exhausted"):
        assert getattr(twin, field).tolist() == getattr(reference, field).tolist(), field
    return twin


@pytest.mark.parametrize(
    "seeds", [range(90), pytest.param(range(90, 3000), marks=pytest.mark.search)], ids=["few", "many"]
)
def test_the_twin_gives_the_machines_times_and_fates(seeds):
    for seed in seeds:
        same(seed)


def test_large_rounds_under_memory_pressure_are_the_same():
    preempted = 0
    for kind in (
        RoundKind("short", 12, 9, 4, 5, CAP),
        RoundKind("long", 9, 9, 3, 3, CAP, cutoff_tokens=25, copies=(2,) * 9, until_long=(True,) * 9),
    ):
        rng, each = np.random.default_rng(3), MAX_DRAWS if kind.redraws else 1
        count, shape = kind.prompts, (kind.prompts * each, kind.samples)
        drawn = RoundDraws(
            lengths=np.minimum(rng.geometric(0.05, size=shape), CAP).astype(np.int32),
            prompt_tokens=rng.integers(1, 9, size=count).astype(np.int32), cap_tokens=CAP, expected_tokens=13.7,
            rewards=rng.integers(0, 2, size=shape).astype(float),
            offset=np.arange(count + 1) * each if kind.redraws else None,
        )  # fmt: skip
        costs = DecodeCost(EngineLayout(1, 2), 0.7, 0.013, 0.00171, 0.1, 0.013, 220, 99, 0.0, 1, 0.3, 0.017)
        found = [
            simulate_one_round(kind, drawn, costs, RewardCost(2, 0.013, 0.41), 64, reference=reference)
            for reference in (True, False)
        ]
        assert found[0].times == found[1].times and found[0].fate.tolist() == found[1].fate.tolist()
        preempted += found[1].times.preemptions
    assert preempted > 10


@pytest.mark.parametrize("reference", [False, True])
def test_a_round_that_wants_more_rows_than_it_has_says_so(reference):
    decode, reward = DecodeCost(EngineLayout(1, 1), 1.0, 0.0, 0.0, 0.0, 0.0, 10**6, 99, 0.0, 1), RewardCost(1, 0.0, 0.0)
    lengths, ones = np.array([[5, 5], [40, 5]], dtype=np.int32), np.ones(2, dtype=np.int32)
    short = RoundKind("short", 2, 2, 2, 2, CAP, cutoff_tokens=10)
    long = RoundKind("long", 2, 2, 2, 2, CAP, cutoff_tokens=10, copies=(1, 1), until_long=(True, True))
    with pytest.raises(RanOut):
        simulate_one_round(
            short, RoundDraws(lengths, ones, CAP, 1.0, more=True), decode, reward, 9, reference=reference
        )
    with pytest.raises(RanOut):
        given = RoundDraws(lengths, ones, CAP, 1.0, offset=np.array([0, 1, 2]))
        simulate_one_round(long, given, decode, reward, 9, reference=reference)


def test_tournaments_have_the_first_and_the_least_loaded_engine():
    names, dice = plain.compiled_engines, random.Random(5)
    for engines in (1, 2, 3, 5, 8):
        records = objects(np.zeros(engines, dtype=plain.kernel_state.ENGINE))
        first, least = names.tournament(engines), names.tournament(engines, (engines + 1) // 2)
        playing = set(range((engines + 1) // 2))
        for _ in range(200):
            e = dice.randrange(engines)
            if dice.random() < 0.2:
                (names.leave_out if e in playing and len(playing) > 1 else names.bring_in)(records, least, e)
                playing = playing - {e} if e in playing and len(playing) > 1 else playing | {e}
            records[e].upcoming, records[e].load = dice.randint(0, 5), dice.randint(0, 5)
            names.note_upcoming(records, first, e)
            if e in playing:
                names.note_load(records, least, e)
            assert first[1] == min(range(engines), key=lambda k: (records[k].upcoming, k))
            assert least[1] == min(playing, key=lambda k: (records[k].load, k))
