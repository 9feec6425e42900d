"""What is measured in the minutes of a profile: layouts of engines and trainers, and who is left out."""

import pytest

from rlplan.plans.facts.model_names import architecture_of
from rlplan.plans.facts.model_shape import ModelShape
from rlplan.plans.schema.levers import EngineLayout
from rlplan.profiles.laws.rank_memory import rank_peak_bytes
from rlplan.profiles.measure.measure_judge import Burst, fit_judge
from rlplan.profiles.measure.measured_layouts import (
    first_update,
    layout_name,
    layouts_to_measure,
    share_of_step,
    updates_to_measure,
)

from .fakes import budget, pool


def test_each_part_has_an_equal_share_of_the_time_left():
    time, clock, _ = budget(10)
    time.begin(3)
    assert time.allows(200, "a") and not time.allows(201, "b")
    clock.now += 60  # it took less than its share
    time.begin(2)
    assert time.allows(269, "c") and not time.allows(271, "d")
    clock.now += 300  # and this one more
    time.begin(1)
    assert time.allows(239, "e") and not time.allows(241, "f")
    clock.now += 400
    time.begin(4)
    assert not time.allows(0.1, "g"), "after the end no part has time"
    assert (time.elapsed_s, time.left_s) == (760, -160)


def test_progress_says_what_is_measured_and_the_minutes_left():
    time, clock, lines = budget(2)
    for seconds, text in ((0, "decode"), (61, "rounds"), (59, "rounds")):
        clock.now += seconds
        time.tell(text)
    assert lines == ["decode (2 min left)", "rounds (1 min left)", "rounds (no time left)"]


def test_one_line_says_once_what_was_left_out():
    time, clock, _ = budget(1)
    assert time.outcome is None
    clock.now += 61
    for what in ("rounds", "rounds", "updates"):
        assert not time.allows(1, what)
    assert time.outcome == "left out, since --minutes 1 were over: rounds; updates"


def test_too_few_minutes_are_told_with_those_that_are_needed():
    time, clock, _ = budget(0.5)
    clock.now += 200
    time.lacks(150)
    time.lacks(10)
    assert time.outcome.endswith("over: nothing; the least that a plan needs takes about 6 minutes here")
    time.leave_out("1 engine, TP 2")
    assert "were over: 1 engine, TP 2; the least" in time.outcome


def shape(heads, kv_heads):
    return ModelShape("qwen2", heads, kv_heads, vocab=None, intermediate=None, experts=0)


H100 = pool(8, memory_bytes=80 * 10**9)


@pytest.mark.parametrize(
    ("sizes", "of", "model", "weights", "found"),
    [
        ([1, 2, 4], pool(4), shape(8, 8), 0, [(1, 1), (1, 4), (2, 1), (2, 2), (4, 1)]),
        ([8], pool(8, nodes=2), None, 0, [(8, 1), (8, 2)]),
        ([1, 2, 3, 4, 8], pool(4), shape(12, 2), 0, [(1, 1), (1, 4), (2, 1), (2, 2), (4, 1)]),  # not divided, too many
        ([1, 2, 4], H100, shape(40, 8), 69e9, [(2, 1), (2, 4), (4, 1), (4, 2)]),  # no room for weights
        ([1, 4], H100, shape(40, 8), 144e9, [(4, 1), (4, 2)]),
        ([1], pool(2, kind="cpu"), shape(4, 4), 1e15, [(1, 1), (1, 2)]),  # cores bound nothing
    ],
)
def test_of_each_size_one_engine_and_as_many_as_fit(sizes, of, model, weights, found):
    assert layouts_to_measure(sizes, of, model, weights) == found


def test_sizes_of_which_none_fits_are_refused_with_the_numbers():
    with pytest.raises(ValueError, match=r"\[2\].*4 accelerators.*3 attention and 3 KV heads$"):
        layouts_to_measure([2], pool(4), shape(3, 3))
    with pytest.raises(ValueError, match="holds its weights"):
        layouts_to_measure([1], H100, shape(40, 8), 144e9)


def test_progress_names_engines_by_number_and_size():
    assert [layout_name(EngineLayout(2, count)) for count in (1, 3)] == ["1 engine, TP 2", "3 engines, TP 2"]


def test_two_cpu_ranks_are_measured_in_each_layout_that_can_be():
    found = updates_to_measure(pool(2, kind="cpu"), shape(14, 2), 4096)
    assert [(u.dp, u.tp, u.sp) for u in found] == [(2, 1, 1), (1, 2, 1), (1, 1, 2)]
    assert {u.micro_batch_tokens for u in found} == {4096}
    for of, model, dp in ((2, shape(14, 1), [2]), (2, None, [2]), (1, shape(14, 2), [])):
        assert [u.dp for u in updates_to_measure(pool(of, kind="cpu"), model, 4096)] == dp


def test_gpus_are_measured_data_parallel_first_then_shared_out():
    found = updates_to_measure(pool(8, nodes=2), shape(64, 8), 4096)
    assert [(u.dp, u.tp, u.sp) for u in found if u.state_copies == 1] == [
        (16, 1, 1), (8, 1, 1), (8, 2, 1), (4, 4, 1), (2, 8, 1), (4, 2, 1), (2, 4, 1), (1, 8, 1), (8, 1, 2), (4, 1, 2),
    ]  # fmt: skip
    assert [(u.dp, u.shard_ranks) for u in found[:3]] == [(16, 16), (8, 8), (16, 8)], "one copy of the states, and two"
    assert [(u.dp, u.tp) for u in updates_to_measure(pool(4), shape(14, 2), 4096)][:2] == [(4, 1), (2, 2)]
    assert not updates_to_measure(pool(1), shape(14, 2), 4096)


@pytest.mark.parametrize(
    ("gpus", "memory_gb", "model", "budgets", "dp", "tokens", "recompute", "offload"),
    [
        (8, 80, "Qwen2.5-0.5B", [4096], 1, 4096, "none", False),
        (8, 80, "Qwen2.5-7B", [4096, 16384], 2, 16384, "full", True),
        (1, 80, "Qwen2.5-7B", [4096, 16384], 1, 4096, "full", True),
        (1, 20, "Qwen2.5-7B", [4096], None, None, None, None),
    ],
)
def test_a_trainer_saves_only_as_much_memory_as_it_must(
    gpus, memory_gb, model, budgets, dp, tokens, recompute, offload
):
    first = first_update(
        pool(gpus, memory_bytes=memory_gb * 10**9), shape(28, 4), architecture_of(model), "bfloat16", budgets
    )
    assert (
        first is None
        if dp is None
        else ((first.dp, first.micro_batch_tokens, first.recompute, first.offload) == (dp, tokens, recompute, offload))
    )


def test_every_layout_that_is_measured_fits_into_memory():
    large = architecture_of("Qwen2.5-7B")
    for update in updates_to_measure(H100, shape(28, 4), 16384, large, "bfloat16"):
        assert rank_peak_bytes(large, update, "bfloat16") <= 0.95 * 80e9


def test_one_engine_on_gpus_is_given_the_share_of_one_of_many():
    layouts = [EngineLayout(2, 1), EngineLayout(2, 8), EngineLayout(4, 1), EngineLayout(4, 4)]
    shares = [share_of_step(layout, layouts, pool(8, nodes=2)) for layout in layouts]
    assert shares == [1 / 8, 1, 1 / 4, 1]
    assert share_of_step(layouts[0], layouts, pool(8, kind="cpu")) == 1


@pytest.mark.parametrize(
    ("short", "long", "per_sample_s", "per_token_s"),
    [
        (Burst(10, 100, 3.0), Burst(5, 500, 3.5), 0.2, 1e-3),
        (Burst(10, 100, 3.0), Burst(5, 500, 1.0), 4.0 / 15, 0.0),  # longer ones are no slower
        (Burst(10, 460, 3.0), Burst(5, 500, 3.5), 6.5 / 15, 0.0),  # of nearly the same length
        (Burst(10, 100, 0.1), Burst(5, 500, 5.0), 0.0, 5.1 / 3500),  # more than in proportion
    ],
)
def test_a_judge_takes_a_line_over_tokens(short, long, per_sample_s, per_token_s):
    assert fit_judge(short, long) == pytest.approx((per_sample_s, per_token_s))
