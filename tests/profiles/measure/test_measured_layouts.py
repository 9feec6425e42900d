"""Which engine sets, decode steps and layouts of trainers are measured, and what the profile says of these."""

import pytest

from rlplan.executor.trainer.samples import TrainSample
from rlplan.plans.facts.model_shape import ModelShape
from rlplan.plans.schema.cluster import Pool
from rlplan.plans.schema.sections.layouts import EngineLayout, UpdateLayout
from rlplan.profiles.architecture import Architecture, architecture_of
from rlplan.profiles.laws.rank_memory import rank_peak_bytes
from rlplan.profiles.measure.decoding.measure_rollout import CACHE_SHARE, LONG_TOKENS, Decoded, decode_grid
from rlplan.profiles.measure.measure_updates import UPDATES, scaled, step_groups
from rlplan.profiles.measure.measured_layouts import first_update, layouts_to_measure, share_of_step, updates_to_measure
from rlplan.profiles.phase_schema import Train


def shape(heads: int, kv_heads: int) -> ModelShape:
    return ModelShape("qwen2", heads, kv_heads, vocab=None, intermediate=None, experts=0)


def architecture(name: str) -> Architecture:
    found = architecture_of(name)
    assert found is not None
    return found


def pool(per_node: int, nodes: int = 1, kind: str = "cuda", memory_bytes: int = 10**10) -> Pool:
    return Pool.model_validate(
        {
            "nodes": nodes,
            "accelerators": {"kind": kind, "name": "gpu", "per_node": per_node, "memory_bytes": memory_bytes},
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


def test_gpus_are_measured_with_all_ranks_data_parallel_first_then_shared_over_tensors_and_sequences() -> None:
    found = updates_to_measure(pool(8, nodes=2), shape(64, 8), 4096)
    assert [(u.dp, u.tp, u.sp) for u in found] == [
        (16, 1, 1), (8, 1, 1), (8, 2, 1), (4, 4, 1), (2, 8, 1), (4, 2, 1), (2, 4, 1), (1, 8, 1), (8, 1, 2), (4, 1, 2),
    ]  # fmt: skip
    assert [(u.dp, u.tp) for u in updates_to_measure(pool(4), shape(14, 2), 4096)][:2] == [(4, 1), (2, 2)]
    assert not updates_to_measure(pool(1), shape(14, 2), 4096)


def test_a_trainer_on_gpus_saves_only_as_much_memory_as_it_must() -> None:
    small, large = architecture("Qwen2.5-0.5B"), architecture("Qwen2.5-7B")
    h100 = pool(8, memory_bytes=80 * 10**9)
    heads = shape(28, 4)
    of_small = first_update(h100, heads, small, "bfloat16", [4096])
    assert of_small is not None and (of_small.dp, of_small.recompute, of_small.offload) == (1, "none", False)
    of_large = first_update(h100, heads, large, "bfloat16", [4096, 16384])
    assert of_large is not None and (of_large.dp, of_large.micro_batch_tokens) == (2, 16384) and of_large.offload
    alone = first_update(pool(1, memory_bytes=80 * 10**9), heads, large, "bfloat16", [4096, 16384])
    assert alone is not None and (alone.dp, alone.micro_batch_tokens) == (1, 4096) and alone.offload
    for update in updates_to_measure(h100, heads, 16384, large, "bfloat16"):
        assert rank_peak_bytes(large, update, "bfloat16") <= 0.95 * 80e9
    assert first_update(pool(1, memory_bytes=20 * 10**9), heads, large, "bfloat16", [4096]) is None


def test_engines_whose_weights_leave_no_room_on_their_gpus_are_left_out() -> None:
    h100 = pool(8, memory_bytes=80 * 10**9)
    assert layouts_to_measure([1, 2, 4], h100, shape(40, 8), 69e9) == [(2, 1), (2, 4), (4, 1), (4, 2)]
    assert layouts_to_measure([1, 4], h100, shape(40, 8), 144e9) == [(4, 1), (4, 2)]
    with pytest.raises(ValueError, match="holds its weights"):
        layouts_to_measure([1], h100, shape(40, 8), 144e9)
    assert layouts_to_measure([1], pool(2, kind="cpu"), shape(4, 4), 1e15) == [(1, 1), (1, 2)], "cores bound nothing"


def test_on_gpus_one_engine_is_given_the_share_of_one_of_many_and_on_cpus_a_whole_step() -> None:
    layouts = [EngineLayout(2, 1), EngineLayout(2, 8), EngineLayout(4, 1), EngineLayout(4, 4)]
    shares = [share_of_step(layout, layouts, pool(8, nodes=2)) for layout in layouts]
    assert shares == [1 / 8, 1, 1 / 4, 1]
    assert share_of_step(layouts[0], layouts, pool(8, kind="cpu")) == 1


def test_decode_steps_are_measured_up_to_the_longest_context_of_a_plain_round() -> None:
    grid = decode_grid(Decoded(64, 96, 1120), 1, 10**6, 128)
    assert {point.sequences for point in grid if point.context_tokens == 16} == {1, 8, 32, 128}
    longest = [point for point in grid if point.context_tokens > 16]
    assert [(point.sequences, point.context_tokens) for point in longest] == [(16, 1025), (64, 1025)]
    assert 1025 + LONG_TOKENS <= 1120 < 1025 + LONG_TOKENS + 128, "one token beyond whole blocks of the cache"
    on_gpu = [point for point in decode_grid(Decoded(512, 1024, 17408), 8, 10**6, 16) if point.context_tokens > 16]
    assert max(point.context_tokens for point in on_gpu) + LONG_TOKENS > 17408 - 16


def test_no_point_of_the_grid_overfills_the_engines_cache() -> None:
    for capacity in (2_000, 30_000, 500_000):
        for point in decode_grid(Decoded(512, 1024, 17408), 2, capacity, 16):
            alone = point.sequences == 1
            assert (
                alone
                or point.context_tokens == 16
                or (point.sequences * (point.context_tokens + LONG_TOKENS) <= CACHE_SHARE * capacity)
            )


def test_the_least_of_a_grid_tells_all_three_terms_of_a_step() -> None:
    least = [point for point in decode_grid(Decoded(64, 96, 1120), 2, 10**6, 128) if point.least]
    assert len({point.sequences for point in least}) >= 3 and len({point.context_tokens for point in least}) == 2


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
