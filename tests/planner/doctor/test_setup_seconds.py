"""Seconds of another trainer's step: what they grow with, what frameworks do otherwise, and what is refused."""

import math
from dataclasses import replace

import pytest

from rlplan.planner.doctor.setup_memory import known_model
from rlplan.planner.doctor.setup_seconds import FITTED, NONE, Overheads, SetupSeconds, StepFacts, setup_seconds
from rlplan.plans.facts.trainer_setup import TrainerSetup
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.hardware import GPUS

SETUP = TrainerSetup(
    framework="verl", model="Qwen/Qwen2.5-7B", nodes=1, gpus_per_node=8, gpu="H100", train_gpus=8, rollout_gpus=8,
    prompts=32, samples=4, micro_batch_tokens=8192, max_prompt_tokens=512, max_response_tokens=2048,
    mean_response_tokens=600.0, mean_prompt_tokens=128,
)  # fmt: skip


def priced(facts: StepFacts | None = None, overheads: Overheads = NONE, **changes: object) -> SetupSeconds:
    return setup_seconds(replace(SETUP, **changes), facts, overheads)


def test_a_step_is_the_sum_of_its_phases() -> None:
    seconds = priced(reference=True)
    assert list(seconds.phases_s) == ["generation", "old_logprobs", "reference", "update", "sync", "offload"]
    assert seconds.step_s == pytest.approx(sum(seconds.phases_s.values()))
    assert 0 < seconds.error < 1


def test_lengths_have_the_mean_of_the_setup() -> None:
    assert priced().mean_tokens == pytest.approx(600, rel=0.01)
    assert priced(mean_response_tokens=5000.0).mean_tokens == 2048


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-7B", "Qwen/Qwen3-30B-A3B"])
def test_no_phase_beats_the_data_sheet(model: str) -> None:
    seconds = priced(model=model, reference=True, rollout_tp=2)
    assert set(seconds.limits_s) == {"generation", "old_logprobs", "reference", "update"}
    for name, limit_s in seconds.limits_s.items():
        assert 0 < limit_s < seconds.phases_s[name]


def test_update_limit_is_three_passes_of_useful_operations() -> None:
    seconds = priced(mean_prompt_tokens=100, max_response_tokens=500, mean_response_tokens=500.0)
    tokens = SETUP.prompts * SETUP.samples * 600
    products_s = 3 * 2 * 7.07e9 * tokens / (8 * 989e12)  # the embedding is looked up
    assert products_s < seconds.limits_s["update"] < 1.05 * products_s
    assert seconds.limits_s["old_logprobs"] == pytest.approx(seconds.limits_s["update"] / 3)


def test_more_samples_longer_ones_and_fewer_gpus_take_longer() -> None:
    usual = priced()
    for changed in (
        priced(samples=16), priced(mean_response_tokens=1200.0), priced(train_gpus=4, rollout_gpus=4),
    ):  # fmt: skip
        for name in ("generation", "update"):
            assert changed.phases_s[name] > usual.phases_s[name]


def test_padded_samples_take_a_trainer_longer_than_packed_ones() -> None:
    packed = priced(micro_batch_tokens=None, micro_batch_samples=8)
    padded = priced(packed=False, micro_batch_tokens=None, micro_batch_samples=8)
    assert padded.phases_s["update"] > 1.2 * packed.phases_s["update"]
    assert padded.limits_s["update"] == packed.limits_s["update"]


def test_recomputation_and_host_optimizer_cost_the_update_alone() -> None:
    usual, again, on_host = priced(), priced(recompute="full"), priced(optimizer_at="host")
    assert again.phases_s["update"] > 1.1 * usual.phases_s["update"]
    assert on_host.phases_s["update"] - usual.phases_s["update"] == pytest.approx(0.45 * 7.6, rel=0.4)
    for seconds in (again, on_host):
        assert seconds.phases_s["generation"] == usual.phases_s["generation"]
        assert seconds.phases_s["old_logprobs"] == pytest.approx(usual.phases_s["old_logprobs"])


def test_adapters_spare_gradients_of_weights_and_the_optimizer() -> None:
    usual, adapters = priced(), priced(lora_rank=16)
    assert 0.5 < adapters.phases_s["update"] / usual.phases_s["update"] < 0.8
    assert adapters.phases_s["generation"] == usual.phases_s["generation"]
    assert priced(lora_rank=16, optimizer_at="host").phases_s["update"] == adapters.phases_s["update"]


def test_weights_cross_between_pools_in_buckets_or_one_by_one() -> None:
    apart = {"colocated": False, "nodes": 2}
    in_buckets, one_by_one = priced(**apart), priced(**apart, framework="trl")
    assert in_buckets.phases_s["sync"] == pytest.approx(0.5 + 2 * 7.6e9 / 8.25e9, rel=0.02)
    assert one_by_one.phases_s["sync"] > 1.5 * in_buckets.phases_s["sync"]


def test_a_larger_share_of_memory_decodes_long_samples_faster() -> None:
    shares = [priced(memory_share=share, samples=64, mean_response_tokens=1500.0) for share in (0.3, 0.9)]
    assert shares[0].phases_s["generation"] > 1.1 * shares[1].phases_s["generation"]


def test_each_optimizer_step_costs_its_own() -> None:
    assert priced(mini_batch_samples=16).phases_s["update"] > priced().phases_s["update"] + 7 * 0.02


def test_weights_that_stay_gathered_cost_micro_batches_less() -> None:
    small = {"micro_batch_tokens": None, "micro_batch_samples": 1}
    assert priced(zero=2, **small).phases_s["update"] < priced(zero=3, **small).phases_s["update"]


def test_states_that_move_cost_both_ways_over_the_host_link() -> None:
    stays, moves = priced(), priced(weights_at="between", optimizer_at="between")
    moved_s = 2 * (4 + 8) * 7.6e9 / 8 / GPUS["H100"].host_copy_bytes_per_s
    assert moves.phases_s["offload"] - stays.phases_s["offload"] == pytest.approx(moved_s, rel=0.02)


def test_old_logprobs_are_left_out_where_the_framework_does() -> None:
    assert "old_logprobs" not in priced(framework="trl").phases_s
    assert "old_logprobs" not in priced(StepFacts(old_logprobs=False)).phases_s
    assert "old_logprobs" in priced(StepFacts(old_logprobs=True), framework="trl").phases_s


def test_generation_that_runs_ahead_hides_behind_the_trainer() -> None:
    apart = {"colocated": False, "train_gpus": 8, "rollout_gpus": 8, "nodes": 2}
    one_by_one, ahead = priced(**apart), priced(**apart, steps_ahead=1)
    assert "offload" not in ahead.phases_s
    sync_s = ahead.phases_s["sync"]
    longer_s = max(ahead.phases_s["generation"], ahead.phases_s["update"] + ahead.phases_s["old_logprobs"])
    assert ahead.step_s == pytest.approx(longer_s + sync_s)
    assert one_by_one.step_s == pytest.approx(sum(one_by_one.phases_s.values()))
    side_by_side = priced(**apart, steps_ahead=1, partial_rollout=True)
    assert side_by_side.phases_s["generation"] < ahead.phases_s["generation"]


def test_overheads_are_factors_of_the_phases_they_name() -> None:
    laws = priced(reference=True)
    ours = priced(overheads=Overheads(1.5, 7.0, 2.0, 3.0, 1e9), reference=True)
    ratios = {name: ours.phases_s[name] / laws.phases_s[name] for name in ("generation", "old_logprobs", "update")}
    assert ratios == pytest.approx({"generation": 1.5, "old_logprobs": 6.0, "update": 2.0})
    assert ours.phases_s["sync"] - laws.phases_s["sync"] == pytest.approx(2 * 7.6e9 / 1e9, rel=0.02)
    megatron = {"backend": "megatron", "zero": 1}
    assert priced(overheads=Overheads(megatron=7.0), **megatron).phases_s["update"] == pytest.approx(
        7 * priced(**megatron).phases_s["update"]
    )


def test_fitted_overheads_are_what_is_asked_for() -> None:
    assert setup_seconds(SETUP) == setup_seconds(SETUP, overheads=FITTED)


def test_an_engine_that_schedules_nothing_ahead_is_slower() -> None:
    after = priced(StepFacts(host_overlaps=False), samples=32)
    assert after.phases_s["generation"] > priced(samples=32).phases_s["generation"]


def test_what_is_assumed_is_said_and_stated_in_the_error() -> None:
    said = setup_seconds(replace(SETUP, mean_response_tokens=None, mean_prompt_tokens=None), overheads=NONE)
    assert any("prompts of 128 tokens" in note for note in said.notes)
    assert any("lengths as in the table math-16k" in note for note in said.notes)
    other = priced(model="Qwen/Qwen3-4B", gpu="A100-40GB")
    assert other.error > priced().error
    assert any("no profile of A100-40GB ships" in note for note in other.notes)
    assert any("scaled to Qwen3-4B" in note for note in other.notes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"gpu": None}, "none is named"), ({"gpu": "TPUv5"}, "TPUv5"), ({"model": "nobody/unheard-of"}, "unheard-of")],
)
def test_without_a_data_sheet_there_is_no_price(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        priced(**changes)


def test_seconds_are_finite_for_a_model_over_several_ranks() -> None:
    seconds = priced(
        model="Qwen/Qwen3-235B-A22B", nodes=8, train_gpus=64, rollout_gpus=64, backend="megatron", zero=1, tp=4, pp=4,
        ep=4, rollout_tp=16,
    )  # fmt: skip
    assert all(math.isfinite(each) and each > 0 for each in seconds.phases_s.values())
    assert any("an engine spans nodes" in note for note in seconds.notes)


def test_a_stated_shape_prices_memory_and_seconds_whatever_the_name() -> None:
    shape = known_model(SETUP)
    assert priced(model="nobody/unheard-of", shape=shape).phases_s == priced().phases_s
