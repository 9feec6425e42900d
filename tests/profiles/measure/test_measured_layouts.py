"""Which engine sets and which layouts of trainers are measured, and what the profile says of these."""

import pytest

from rlplan.executor.trainer.samples import TrainSample
from rlplan.plans.facts.model_shape import ModelShape
from rlplan.plans.schema.cluster import Pool
from rlplan.plans.schema.sections.layouts import UpdateLayout
from rlplan.profiles.measure.measure_updates import UPDATES, scaled, step_groups
from rlplan.profiles.measure.measured_layouts import layouts_to_measure, updates_to_measure
from rlplan.profiles.phase_schema import Train


def shape(heads: int, kv_heads: int) -> ModelShape:
    return ModelShape("qwen2", heads, kv_heads, vocab=None, intermediate=None, experts=0)


def pool(per_node: int, nodes: int = 1, kind: str = "cuda") -> Pool:
    return Pool.model_validate(
        {
            "nodes": nodes,
            "accelerators": {"kind": kind, "name": "gpu", "per_node": per_node, "memory_bytes": 10**10},
            "cores": 16,
            "host_memory_bytes": 10**11,
            "usd_per_node_hour": 1.0,
        }
    )


def test_one_engine_and_as_many_as_fit_for_each_size() -> None:
    assert layouts_to_measure([1, 2, 4], pool(4), shape(8, 8)) == [(1, 1), (1, 4), (2, 1), (2, 2), (4, 1)]
    assert layouts_to_measure([8], pool(8, nodes=2), None) == [(8, 1), (8, 2)]


def test_sizes_that_do_not_divide_the_heads_or_do_not_fit_a_node_are_left_out() -> None:
    assert layouts_to_measure([1, 2, 3, 4, 8], pool(4), shape(12, 2)) == [(1, 1), (1, 4), (2, 1), (2, 2), (4, 1)]
    assert layouts_to_measure([1, 3], pool(4), shape(12, 2)) == [(1, 1), (1, 4)]


def test_nothing_that_fits_is_an_error_that_names_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"\[2\].*4 accelerators.*3 attention and 3 KV heads"):
        layouts_to_measure([2], pool(4), shape(3, 3))


def test_two_cpu_ranks_are_measured_in_each_layout_that_shares_out_the_heads() -> None:
    found = updates_to_measure(pool(2, kind="cpu"), shape(14, 2), 4096)
    assert [(u.dp, u.tp, u.sp, u.accelerators, u.micro_batch_tokens) for u in found] == [
        (2, 1, 1, 2, 4096), (1, 2, 1, 2, 4096), (1, 1, 2, 2, 4096),
    ]  # fmt: skip
    assert [u.dp for u in updates_to_measure(pool(2, kind="cpu"), shape(14, 1), 4096)] == [2]
    assert [u.dp for u in updates_to_measure(pool(2, kind="cpu"), None, 4096)] == [2]
    assert not updates_to_measure(pool(1, kind="cpu"), shape(14, 2), 4096)
    assert not updates_to_measure(pool(8), shape(14, 2), 4096)


def group(prompt: str) -> list[TrainSample]:
    return [TrainSample(prompt, sample, [1], [2], [-1.0], 0.0, False) for sample in range(2)]


def test_steps_are_whole_and_of_different_prompts() -> None:
    steps = step_groups([group(f"p{number % 5}") for number in range(40)], 4)
    assert len(steps) == 1 + UPDATES
    for step in steps:
        assert len({samples[0].prompt_id for samples in step}) == len(step) == 4
    few = step_groups([group("a"), group("b"), group("a")], 4)
    assert [[samples[0].prompt_id for samples in step] for step in few] == [["a", "b"]]


def test_an_entry_of_a_layout_is_one_ranks_times_the_ratio_of_seconds_and_less_sure_the_more_they_differ() -> None:
    fit = Train(
        dp=1, micro_batch_tokens=4096, step_s=1.0, step_s_per_token=1e-3, step_s_per_token_squared=1e-7, error=0.03
    )
    layout = UpdateLayout(dp=1, sp=2, micro_batch_tokens=4096, recompute="full")
    steady, unsteady = scaled(fit, layout, [0.6, 0.6, 0.6]), scaled(fit, layout, [0.5, 0.6, 0.7])
    assert steady.layout == layout
    assert (steady.step_s, steady.step_s_per_token) == pytest.approx((0.6, 6e-4))
    assert steady.error == pytest.approx(0.03) and unsteady.error > 0.1
