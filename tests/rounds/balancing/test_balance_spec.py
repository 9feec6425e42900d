"""What an engine has before it, and when it would end."""

from __future__ import annotations

import math
import random

import pytest

from rlplan.rounds.balancing.balance_spec import BalanceSpec, Load, Longest, share

SPEC = BalanceSpec(0.01, 1e-3, 1e-7, 100_000, 0.05, 1e-5)


def test_an_engine_whose_samples_all_run_at_once_ends_after_the_sum_of_its_steps() -> None:
    lengths, prompt = [30, 50, 200], 12
    expected = 0.0
    for step in range(max(lengths)):
        running = [length for length in lengths if length > step]
        expected += SPEC.step_s + SPEC.step_s_per_sequence * len(running)
        expected += SPEC.step_s_per_kv_token * sum(prompt + step + 0.5 for _ in running)
    load = Load(Longest(0.0), [share(prompt, float(length), float(length)) for length in lengths])
    assert SPEC.end_s(load.work(), at_once=3) == pytest.approx(expected)


def test_an_engine_that_decodes_few_at_a_time_takes_the_steps_of_its_tokens() -> None:
    load = Load(Longest(0.0), [share(1, 100.0, 100.0) for _ in range(6)])
    few = SPEC.end_s(load.work(), at_once=2) - SPEC.end_s(load.work(), at_once=6)
    assert few == pytest.approx((300 - 100) * SPEC.step_s)


def test_the_longest_of_alike_samples_is_as_much_longer_as_their_logs_spread() -> None:
    rng, spread, count = random.Random(1), 0.6, 64
    drawn = [max(math.exp(rng.gauss(0, spread)) for _ in range(count)) for _ in range(400)]
    load = Load(Longest(spread), [share(0, 100.0, 100.0) for _ in range(count)])
    assert load.work().longest == pytest.approx(100 * sorted(drawn)[200], rel=0.1)


def test_where_nothing_spreads_the_longest_is_the_largest() -> None:
    load = Load(Longest(0.0), [share(0, tokens, tokens) for tokens in (5.0, 70.0, 30.0)])
    assert load.work().longest == 70.0
    assert load.work_with(share(0, 90.0, 90.0)).longest == 90.0
