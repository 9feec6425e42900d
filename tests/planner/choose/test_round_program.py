"""The integer program against trying everything, its limits, its ties, and what it says when nothing is left."""

import dataclasses
import itertools
import math
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rlplan.planner.choose.candidates.round_kinds import DeferralRule, LongKey, ShortKey, column_name
from rlplan.planner.choose.cycle_cost import Column, Cycle, all_cycles
from rlplan.planner.choose.plan_limits import Limits, TrainPool
from rlplan.planner.choose.round_program import solve_program
from rlplan.planner.costs.job_pools import HostShare
from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.yaml.errors import Infeasible

A, B = EngineLayout(1, 2), EngineLayout(2, 1)
SYNC, FREE, TIGHT = (
    DeferralRule("sync", 16, 8, None),
    DeferralRule("race", 20, 10, None),
    DeferralRule("exact", 0, 0, 100),
)
NEEDS_LONG = {FREE, TIGHT}
STATES, MORE_STATES = HostShare(4, ((10**9, 0.0), (10**9, 5 * 10**8))), HostShare(2, ((3 * 10**9, 0.0),))
P, N = 16, 8


def column(key: ShortKey | LongKey, seconds: list[float], **changes) -> Column:
    fields = {
        "name": column_name(key),
        "key": key,
        "step_s": tuple(seconds),
        "groups": float(P),
        "moved": float(P) if isinstance(key, LongKey) else 4.0,
        "excess_tokens": 0.0,
        "excess_error": 0.0,
        "slow": tuple(0.0 for _ in seconds),
        "rounds": 9,
    }
    return Column(**{**fields, **changes})


def limits(**changes) -> Limits:
    fields = {
        "group_size": N,
        "mean_tokens": 50.0,
        "bias_budget": math.inf,
        "slo": False,
        "host_memory_bytes": 20 * 10**9,
        "host_bytes": {A: 8 * 10**9, B: 9 * 10**9},
    }
    return Limits(**{**fields, **changes})


@st.composite
def instances(draw):
    seconds = st.lists(st.floats(1.0, 9.0), min_size=2, max_size=2)
    share = st.floats(0.0, 0.12)

    def drawn(key: ShortKey | LongKey, more_s: float, **changes) -> Column:
        if key.deferral == FREE:
            changes |= {"excess_tokens": draw(st.floats(-3000, 0)), "excess_error": draw(st.floats(0, 200))}
        return column(key, [s + more_s for s in draw(seconds)], slow=(draw(share), draw(share)), **changes)

    shorts, longs = [], []
    for law in (SYNC, FREE, TIGHT):
        for layout, issue in itertools.product((A, B), range(draw(st.integers(0, 2)))):
            key = ShortKey(law.mode, 16 + 4 * issue, 10 if law == FREE else 8, law.cutoff_tokens, layout)
            if key.deferral == law:
                shorts.append(drawn(key, 0.0, moved=draw(st.floats(0.5, 12.0)) if law in NEEDS_LONG else 0.0))
        if law in NEEDS_LONG:
            for layout, copies in itertools.product((A, B), range(1, 1 + draw(st.integers(1, 2)))):
                # Rounds of a queue train fewer than P now and then, and take as many as they train.
                longs.append(drawn(LongKey(law, copies, layout), 4.0, moved=draw(st.floats(12.0, 16.0))))
    assume(shorts)
    bounds = limits(
        host_memory_bytes=draw(st.sampled_from([20, 10, 8])) * 10**9,
        bias_budget=draw(st.sampled_from([math.inf, 0.3, 0.0])),
        slo=draw(st.booleans()),
        within_s=draw(st.sampled_from([None, 5.0])),
        sharding=draw(st.sampled_from([(0, 0), (0, 1)])),
        reshard_s=draw(st.sampled_from([0.0, 0.7])),
        layout_switch_s=draw(st.sampled_from([0.0, 1.1])),
        objective=draw(st.sampled_from(["seconds", "usd"])),
        nodes={A: 2, B: 1},
        train_nodes=draw(st.sampled_from([(1, 1), (1, 2)])),
        usd_per_node_s=0.002,
        train_host=draw(st.sampled_from([(), (STATES, STATES), (STATES, MORE_STATES)])),
        train_pool=draw(st.sampled_from([None, TrainPool(6 * 10**9, 3, 0.001), TrainPool(3 * 10**9, 4, 0.006)])),
        pool_nodes=2,
    )
    return shorts, longs, bounds


def finds_the_best(instance) -> None:
    """What trying everything finds."""
    shorts, longs, bounds = instance
    cycles = all_cycles(shorts, longs, NEEDS_LONG, bounds, every_train=True)
    costs = [cycle.cost(bounds) for cycle in cycles if not cycle.violations(bounds)]
    if not costs:
        with pytest.raises(Infeasible):
            solve_program(shorts, longs, NEEDS_LONG, bounds, P)
        return
    solution = solve_program(shorts, longs, NEEDS_LONG, bounds, P)
    assert solution.objective == pytest.approx(min(costs), rel=1e-5)
    assert solution.cycle.violations(bounds) == []
    assert solution.optimal and solution.gap <= 1e-6
    assert solution.bound == pytest.approx(solution.objective, rel=1e-5)


@settings(max_examples=40, deadline=None)
@given(instance=instances())
def test_the_program_finds_what_trying_everything_finds(instance) -> None:
    finds_the_best(instance)


@pytest.mark.search
@settings(max_examples=1000, deadline=None)
@given(instance=instances())
def test_the_program_finds_the_best_of_many_more(instance) -> None:
    finds_the_best(instance)


def test_rates_balance_the_queue_and_train_one_sample() -> None:
    short = column(ShortKey("exact", 20, 8, 100, A), [1.0], moved=6.0)
    long = column(LongKey(TIGHT, 1, A), [5.0])
    cycle = Cycle(short, long, 0, 0)
    u, v = cycle.rates(N)
    assert 6.0 * u == pytest.approx(P * v)
    assert N * P * (u + v) == pytest.approx(1.0)
    # 16 short rounds put off 96 prompts, which are 6 long rounds: 16 x 1 s + 6 x 5 s for 22 x 128 samples.
    assert cycle.seconds_per_sample(N) == pytest.approx((16 * 1.0 + 6 * 5.0) / (22 * 128))
    assert cycle.long_share() == pytest.approx(6 / 22)


def best(shorts: list[Column], longs: list[Column], **changes) -> Cycle:
    return solve_program(shorts, longs, NEEDS_LONG, limits(**changes), P).cycle


EXACT = ShortKey("exact", 20, 8, 100, A)


def test_memory_for_two_engine_sets_couples_the_layouts() -> None:
    shorts = [column(EXACT, [1.0]), column(EXACT._replace(layout=B), [2.0])]
    longs = [column(LongKey(TIGHT, 1, A), [9.0]), column(LongKey(TIGHT, 1, B), [5.0])]
    # A set of A takes 8 GB, one of B takes 9 GB.
    both, one = (best(shorts, longs, host_memory_bytes=size * 10**9) for size in (17, 16))
    assert (both.short.layout, both.long.layout) == (A, B)
    assert one.short.layout == one.long.layout


def test_each_kind_of_round_has_its_own_update_unless_resharding_costs_more() -> None:
    short, long = column(EXACT, [1.0, 1.4]), column(LongKey(TIGHT, 1, A), [9.0, 5.0])

    def trains(**changes) -> tuple[int, int]:
        cycle = best([short], [long], **changes)
        return cycle.train, cycle.long_train

    assert trains() == (0, 1)
    assert trains(sharding=(0, 0), reshard_s=9.0) == (0, 1)
    # There and back costs 1.6 s a long round, one update for both 4 x 0.4 s: just cheaper; then just dearer.
    assert trains(sharding=(0, 1), reshard_s=0.79) == (0, 1)
    assert trains(sharding=(0, 1), reshard_s=0.81) == (1, 1)


def test_changing_engines_is_paid_for_by_the_long_round() -> None:
    longs = [column(LongKey(TIGHT, 1, A), [9.0]), column(LongKey(TIGHT, 1, B), [5.0])]
    cheap, dear = (best([column(EXACT, [1.0])], longs, layout_switch_s=switch_s) for switch_s in (1.9, 2.1))
    assert cheap.long.layout == B and cheap.switch_s == pytest.approx(3.8)
    assert dear.long.layout == A


def test_for_usd_a_slower_plan_on_fewer_nodes_wins() -> None:
    wide = column(ShortKey("sync", 16, 8, None, A), [4.0], moved=0.0)
    narrow = column(ShortKey("sync", 16, 8, None, B), [7.0], moved=0.0)

    fast, cheap = (
        solve_program([wide, narrow], [], set(), limits(objective=each, nodes={A: 2, B: 1}, usd_per_node_s=0.01), P)
        for each in ("seconds", "usd")
    )
    assert fast.cycle.short.layout == A
    assert cheap.cycle.short.layout == B
    assert cheap.objective == pytest.approx(7.0 / 128 * 0.01)
    assert cheap.gap == 0 and cheap.bound == pytest.approx(cheap.objective)


def test_usd_within_pays_for_nodes_that_the_step_needs() -> None:
    wide = column(ShortKey("sync", 16, 8, None, A), [4.0], moved=0.0)
    narrow = column(ShortKey("sync", 16, 8, None, B), [7.0], moved=0.0)
    dollars = limits(objective="usd", nodes={A: 2, B: 1}, usd_per_node_s=0.01, pool_nodes=2)

    def within(seconds: float | None) -> Cycle:
        return solve_program([wide, narrow], [], set(), dataclasses.replace(dollars, within_s=seconds), P).cycle

    assert [within(seconds).short.layout for seconds in (None, 7.0, 6.9, 4.0)] == [B, B, A, A]
    with pytest.raises(Infeasible, match="usd-within"):
        within(3.9)


def test_a_gap_counts_columns_that_the_choice_was_not_made_from() -> None:
    slow, fast = (column(ShortKey("sync", issued, 8, None, A), [issued / 4], moved=0.0) for issued in (16, 12))
    chosen, wider = (solve_program(columns, [], set(), limits(), P) for columns in ([slow], [slow, fast]))
    assert chosen.gap == 0 and chosen.among(chosen).gap == 0
    assert chosen.among(wider).gap == pytest.approx(0.25) and chosen.among(wider).cycle is chosen.cycle


def test_a_biased_mode_has_to_fit_the_budget_noise_included() -> None:
    key = ShortKey("race", 20, 10, None, A)
    race = column(key, [1.0], excess_tokens=-0.1 * 50 * 128, excess_error=0.01 * 50 * 128)
    long = column(LongKey(FREE, 1, A), [1.5])
    sync = column(ShortKey("sync", 16, 8, None, A), [3.0], moved=0.0)

    # 4 short rounds a long one: a ratio of 0.92, with 1.645 x 0.008 against it.
    chosen = [best([race, sync], [long], bias_budget=budget).short.deferral.mode for budget in (0.095, 0.09, 0.0)]
    assert chosen == ["race", "sync", "sync"]


def test_an_slo_keeps_slow_steps_to_one_in_twenty() -> None:
    exact, long = column(EXACT, [1.0]), column(LongKey(TIGHT, 1, A), [5.0], slow=(1.0,))
    sync = column(ShortKey("sync", 16, 8, None, A), [3.0], moved=0.0, slow=(0.05,))
    free, bound = (best([exact, sync], [long], slo=slo) for slo in (False, True))
    assert free.short.deferral.mode == "exact" and free.long_share() == pytest.approx(0.2)
    assert bound.short.deferral.mode == "sync"


def test_ties_go_to_the_first_by_name_whatever_the_order_of_columns() -> None:
    shorts = [column(ShortKey("exact", p, 8, 100, layout), [2.0, 2.0]) for p in (20, 24, 28) for layout in (A, B)]
    longs = [column(LongKey(TIGHT, c, layout), [5.0, 5.0]) for c in (1, 2) for layout in (A, B)]
    chosen = set()
    for order in (1, -1):
        cycle = solve_program(shorts[::order], longs[::order], NEEDS_LONG, limits(), P).cycle
        chosen.add((cycle.short.name, cycle.long.name, cycle.train, cycle.long_train))
    assert chosen == {(shorts[0].name, longs[0].name, 0, 0)}


def test_infeasibility_names_the_limit_that_binds() -> None:
    race = column(ShortKey("race", 20, 10, None, A), [1.0], excess_tokens=-3000.0, slow=(0.5,))
    long = column(LongKey(FREE, 1, A), [1.5])
    for words, changes in (
        ("bias budget", {"bias_budget": 0.1}),
        (r"slo\.step_p95_s", {"slo": True}),
        ("memory", {"host_memory_bytes": 10**9}),
        ("at once", {"slo": True, "bias_budget": 0.1}),
    ):
        with pytest.raises(Infeasible, match=words):
            best([race], [long], **changes)


@pytest.mark.parametrize("dynamic", [True, False])
def test_dynamic_sampling_is_blamed_for_empty_rounds_only_where_it_is_on(dynamic) -> None:
    empty = column(ShortKey("sync", SYNC.prompts, SYNC.samples, None, A), [1.0], groups=0.0)
    with pytest.raises(Infeasible) as error:
        solve_program([empty], [], NEEDS_LONG, limits(), P, dynamic_sampling=dynamic)
    assert ("algorithm.dynamic_sampling" in str(error.value)) is dynamic


def test_bias_is_the_weighted_excess_over_the_mean() -> None:
    short = column(ShortKey("race", 20, 10, None, A), [1.0], excess_tokens=-640.0)
    long = column(LongKey(FREE, 1, A), [5.0], excess_tokens=-1280.0)
    # Per cycle of 4 short rounds and a long one: 4 x -640 - 1280 tokens over 5 x 128 samples of mean 50.
    expected = 1 + (4 * -640 - 1280) / (5 * 128) / 50
    assert Cycle(short, long, 0, 0).length_ratio(limits()) == pytest.approx(expected)


def test_a_node_limit_leaves_a_feasible_choice_with_an_honest_gap() -> None:
    rng = random.Random(4)
    shorts, longs = [], []
    for number, layout in itertools.product(range(12), (A, B)):
        law = DeferralRule("exact", 0, 0, 100 + number)
        key = ShortKey("exact", 20, 8, law.cutoff_tokens, layout)
        shorts.append(column(key, [rng.uniform(1, 2), rng.uniform(1, 2)], moved=rng.uniform(1, 9), slow=(0.04, 0.02)))
        longs.append(column(LongKey(law, 1, layout), [rng.uniform(4, 9), rng.uniform(4, 9)], slow=(0.3, 0.1)))
    needs = {c.deferral for c in shorts}
    bounds = limits(slo=True, sharding=(0, 1), reshard_s=0.3, layout_switch_s=0.2)
    cut, again = (solve_program(shorts, longs, needs, bounds, P, max_nodes=0) for _ in range(2))
    full = solve_program(shorts, longs, needs, bounds, P)
    assert cut == again
    assert full.optimal and full.gap == 0
    assert (full.method, cut.method) == ("integer program", "enumeration")
    assert not cut.optimal and cut.cycle.violations(bounds) == []
    assert cut.bound <= full.objective <= cut.objective * (1 + 1e-9)
    assert cut.gap == pytest.approx(1 - cut.bound / cut.objective)
