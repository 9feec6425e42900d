"""What an engine has before it, and when it would end."""

import math
import random

import pytest

from rlplan.rounds.balancing.balance_spec import Load, Longest, share
from tests.rounds.driver import round_balance

SPEC = round_balance(0.01, 1e-3, 1e-7, 100_000)


def load_of(*tokens, prompt=0, spread=0.0):
    return Load(Longest(spread), [share(prompt, float(each), float(each)) for each in tokens])


def test_an_engine_that_runs_all_at_once_takes_the_sum_of_steps():
    lengths, prompt = [30, 50, 200], 12
    expected = 0.0
    for step in range(max(lengths)):
        running = [length for length in lengths if length > step]
        expected += SPEC.step_s + SPEC.step_s_per_sequence * len(running)
        expected += SPEC.step_s_per_kv_token * sum(prompt + step + 0.5 for _ in running)
    load = load_of(*lengths, prompt=prompt)
    assert SPEC.end_s(load.work(), at_once=3) == pytest.approx(expected)
    assert load_of(30, 50, prompt=prompt).work_with(share(prompt, 200.0, 200.0)) == load.work()


def test_few_at_a_time_or_little_memory_take_more_steps():
    work = load_of(*[100] * 6, prompt=1).work()
    few = SPEC.end_s(work, at_once=2) - SPEC.end_s(work, at_once=6)
    assert few == pytest.approx((300 - 100) * SPEC.step_s)
    small = round_balance(0.01, 1e-3, 1e-7, 102)
    assert small.end_s(work, 6) - SPEC.end_s(work, 6) == pytest.approx((300 - 100) * SPEC.step_s)


def test_the_longest_of_alike_samples_grows_with_their_spread():
    rng, spread, count = random.Random(1), 0.6, 64
    drawn = [max(math.exp(rng.gauss(0, spread)) for _ in range(count)) for _ in range(400)]
    assert load_of(*[100] * count, spread=spread).work().longest == pytest.approx(100 * sorted(drawn)[200], rel=0.1)


def test_where_nothing_spreads_the_longest_is_the_largest():
    load = load_of(5, 70, 30)
    assert load.work().longest == 70.0
    assert load.work_with(share(0, 90.0, 90.0)).longest == 90.0
    assert load_of(5, 70, 70, spread=Longest.EXPONENT / Longest.HARD).work().longest == 70.0
    assert load_of(spread=0.5).work() == (0.0, 0.0, 0.0)
