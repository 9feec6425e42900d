"""Bytes of a set-up: sums that a reader can redo, and what each setting changes."""

from dataclasses import replace

import pytest

from rlplan.planner.doctor.host_memory import rounded_up
from rlplan.planner.doctor.rank_states import rank_share
from rlplan.planner.doctor.setup_memory import (
    capacity_bytes,
    engine_step_bytes,
    first_overflow,
    known_model,
    micro_batch_tokens,
    setup_uses,
)
from rlplan.plans.facts.public_models import Architecture
from rlplan.plans.facts.trainer_setup import TrainerSetup
from rlplan.profiles.hardware import GPUS

MEGATRON = TrainerSetup(
    framework="slime", model="Qwen3-30B-A3B", nodes=1, gpus_per_node=8, gpu="H100", host_bytes=1.0818e12,
    train_gpus=8, rollout_gpus=8, backend="megatron", tp=4, ep=8, micro_batch_tokens=20480, recompute="full",
    optimizer_at="host", weights_at="between", reference=True, reference_at="host", prompts=32, samples=8,
    max_response_tokens=8192, engine="sglang", rollout_tp=8, memory_share=0.7,
)  # fmt: skip
FSDP = TrainerSetup(
    framework="verl", model="Qwen2.5-7B", nodes=1, gpus_per_node=8, gpu="H100", train_gpus=8, rollout_gpus=8,
    micro_batch_tokens=16384, recompute="full", memory_share=0.5, prompts=64, samples=8, max_response_tokens=4096,
)  # fmt: skip


def uses(setup: TrainerSetup):
    return setup_uses(setup, known_model(setup), GPUS[setup.gpu])


def use(setup: TrainerSetup, phase: str, where: str, step: int):
    return next(each for each in uses(setup) if (each.phase, each.where, each.step) == (phase, where, step))


def test_experts_and_layers_are_shared_out_by_their_own_ranks():
    model = known_model(MEGATRON)
    share = rank_share(MEGATRON, model)
    assert share.experts == model.expert_parameters / 8
    assert share.dense == pytest.approx((model.parameters - model.expert_parameters) / 4)
    assert (share.dense_shards, share.expert_shards) == (2, 1)


def test_eight_trainers_on_a_host_hold_what_slime_reported():
    trainers = ("moments", "copies of weights", "optimizer's weights", "gradients", "trainer processes")
    held = use(MEGATRON, "train", "host", 2).holds
    assert sum(held[name].bytes for name in trainers) / 8 / 2**30 == pytest.approx(102.3, rel=0.05)
    first = first_overflow(uses(MEGATRON))
    assert first is not None and (first.phase, first.where, first.step) == ("train", "host", 2)


def test_moments_come_with_the_first_update():
    setup = replace(FSDP, train_gpus=2, rollout_gpus=2, gpus_per_node=2)
    before, after = (use(setup, "train", "device", step) for step in (1, 2))
    assert after.holds["optimizer"].bytes == pytest.approx(8 * known_model(setup).parameters / 2)
    assert before.holds["optimizer"].bytes == 0


def test_what_each_setting_moves_off_a_gpu():
    resident = use(FSDP, "rollout", "device", 2).needed_bytes
    between = use(replace(FSDP, weights_at="between", optimizer_at="between"), "rollout", "device", 2).needed_bytes
    parameters = known_model(FSDP).parameters
    assert resident - between == pytest.approx((4 + 8) * parameters / 8)
    awake, asleep = (use(replace(FSDP, engine_sleeps=sleeps), "train", "device", 2) for sleeps in (False, True))
    assert awake.needed_bytes - asleep.needed_bytes > 0.4 * capacity_bytes(GPUS["H100"])


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({"micro_batch_tokens": 16384}, 16384),
        ({"micro_batch_tokens": 1024}, 5120),
        ({"micro_batch_tokens": None, "micro_batch_samples": 4}, 6485),
        ({"micro_batch_tokens": None, "micro_batch_samples": 4, "packed": False}, 20480),
        ({"micro_batch_tokens": 16384, "mini_batch_samples": 64, "mean_response_tokens": 556}, 6496),
        ({"micro_batch_tokens": 4096, "cp": 2}, 8192),
    ],
)
def test_tokens_of_the_fullest_micro_batch(settings, tokens):
    assert micro_batch_tokens(replace(FSDP, **settings)) == tokens


def test_what_a_selective_recomputation_leaves_out():
    setup = replace(MEGATRON, recompute="selective", host_bytes=None)
    kept = use(replace(setup, recompute="none"), "train", "device", 1).needed_bytes
    assert use(setup, "train", "device", 1).needed_bytes == kept  # attention alone: flash attention keeps no scores
    act, whole = (use(replace(setup, recompute_modules=(name,)), "train", "device", 1).needed_bytes
                  for name in ("moe_act", "moe"))  # fmt: skip
    full = use(replace(setup, recompute="full"), "train", "device", 1).needed_bytes
    assert full < whole < act < kept


def test_an_engine_keeps_room_for_its_largest_step():
    setups = (replace(FSDP, max_batched_tokens=tokens) for tokens in (1024, 8192))
    few, many = (engine_step_bytes(setup, known_model(FSDP)) for setup in setups)
    assert many - few == pytest.approx(7168 * 6 * (3584 + 18944 / FSDP.rollout_tp))
    # Llama-3-8B with 8,192 tokens: vLLM measured 1.26 GiB of activations.
    llama = replace(FSDP, model="Llama-3.1-8B", rollout_tp=1)
    assert engine_step_bytes(llama, known_model(llama)) - 0.5e9 == pytest.approx(1.26 * 2**30, rel=0.2)


def test_page_locked_blocks_are_powers_of_two():
    square = Architecture("square", 2, 1024, 8, 8, 128, 4096, 4096, tied=True)
    setup = replace(FSDP, backend="megatron", tp=1)
    # Queries, keys and values of 3 x 2^20 take 2^22 values; the other matrices are powers of two.
    layer = 3 * 2**20 + 2**20 + 2 * 2**22 + 2**22
    taken = 2**22 + 2**20 + 2 * 2**22 + 2**22
    assert rounded_up(setup, square, 4.0) == pytest.approx((2 * taken + 2**22) / (2 * layer + 2**22))


def test_an_engine_that_cannot_hold_its_weights_fails_at_the_start():
    setup = replace(FSDP, model="Qwen2.5-32B", rollout_tp=2, memory_share=0.3)
    first = first_overflow(uses(setup))
    assert first is not None and (first.phase, first.where) == ("init", "device")


def test_trainers_that_pad_are_counted_as_they_are_priced():
    many = replace(FSDP, micro_batch_tokens=None, micro_batch_samples=4)
    assert [replace(many, framework=name).pads for name in ("verl", "trl", "openrlhf")] == [False, True, True]
    assert micro_batch_tokens(replace(many, framework="trl")) == 4 * (1024 + 4096)
    assert micro_batch_tokens(replace(many, framework="trl", packed=True)) == micro_batch_tokens(many)
