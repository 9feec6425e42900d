"""The least seconds of a step, calculated by hand from a plan that ships and from public facts."""

import dataclasses
from pathlib import Path

import pytest
import yaml

import rlplan
from rlplan.plans.schema.predicted import PredictedPhases
from rlplan.profiles.laws.hardware_peaks import Peaks, PolicyWork, RoundWork, round_limit, step_limit

EXAMPLES = Path(rlplan.__file__).parent / "plans" / "examples"

PARAMETERS = 64 * (5120 * 128 * (2 * 40 + 2 * 8) + 3 * 5120 * 27648) + 2 * 152064 * 5120
"""Of Qwen2.5-32B by its config.json: 64 layers, 40 heads and 8 of keys and values of 128, width 5120 and 27648."""


def test_the_32b_examples_limit_is_what_a_hand_calculation_gives():
    """8 engines of TP 8 and 64 ranks on H100s: 3.35 TB/s and 989 TFLOP/s of dense bf16 by NVIDIA's data sheet."""
    predicted = yaml.safe_load((EXAMPLES / "math-32b.yaml").read_text())["predicted"]
    limit, kv_bytes = predicted["limit"], 2 * 64 * 8 * 128 * 2
    rollout_s = train_s = 0.0
    for kind in ("short", "long"):
        share, work = predicted["rounds"][kind]["share"], limit[kind]
        weights_s = work["decode_steps"] * 2 * PARAMETERS / (8 * 3.35e12)
        kv_s = work["read_kv_tokens"] * kv_bytes / (64 * 3.35e12)
        attention = 6 * 64 * 40 * 128 * work["trained_squares"]
        update_s = (6 * PARAMETERS * work["trained_tokens"] + attention) / (64 * 989e12)
        assert work["rollout_s"] == pytest.approx(weights_s + kv_s, rel=0.01)
        assert work["train_s"] == pytest.approx(update_s, rel=0.01)
        rollout_s += share * (weights_s + kv_s)
        train_s += share * update_s
    assert limit["step_s"] == pytest.approx(rollout_s + train_s, rel=0.01)
    assert limit["ratio"] == pytest.approx((rollout_s + train_s) / predicted["step_s"]["mean"], rel=0.01)
    phases = {phase: value["ratio"] for phase, value in limit["phases"].items()}
    seconds = predicted["phases_s"]
    assert phases == pytest.approx(
        {
            "rollout": rollout_s / seconds["rollout"],
            "train": train_s / seconds["train"],
            "reward_exposed": 0,
            "sync": 0,
        },
        rel=0.01,
    )
    assert 0 < limit["ratio"] < 1


WORK, PEAKS = PolicyWork(parameters=1000, attention_width=10, weight_bytes=2), Peaks(flops=1e6, bytes_per_s=1e5)
ROUND = RoundWork(
    share=1.0, tp=2, engine_accelerators=4, trainers=3, decode_steps=50, read_kv_tokens=2e4, trained_tokens=500,
    trained_squares=2e4,
)  # fmt: skip


def limit_of(*rounds):
    phases = PredictedPhases(rollout=4.0, reward_exposed=1.0, train=2.0, sync=0.0)
    return step_limit(WORK, PEAKS, 8, rounds, phases, 7.0)


def test_seconds_follow_the_formulas_and_shares_of_rounds():
    limit = limit_of(ROUND)
    assert limit.short.rollout_s == pytest.approx((50 * 1000 * 2 / 2 + 2e4 * 8 / 4) / 1e5)
    assert limit.short.train_s == pytest.approx((6 * 1000 * 500 + 6 * 10 * 2e4) / (3 * 1e6))
    assert limit.step_s == pytest.approx(limit.short.rollout_s + limit.short.train_s)
    assert limit.phases.sync.ratio == limit.phases.reward_exposed.ratio == 0, "neither of them has to be waited for"
    shorter = dataclasses.replace(ROUND, share=0.75)
    longer = dataclasses.replace(ROUND, share=0.25, decode_steps=150)
    both = limit_of(shorter, longer)
    assert both.phases.rollout.limit_s == pytest.approx(limit.short.rollout_s + 0.25 * 100 * 1000 * 2 / 2 / 1e5)


def test_a_step_of_more_sequences_reads_more_experts():
    """Of 8 experts a token visits 2 and leaves 3/4: two sequences read 1000 + 3000 x 1/4, one 1000."""
    work = dataclasses.replace(WORK, all_parameters=4000, expert_share=2 / 8)
    limit = round_limit(work, PEAKS, 8, dataclasses.replace(ROUND, steps_of={1: 0.5, 2: 0.5}))
    assert limit.step_parameters == (1000 + 1750) / 2
    assert limit.rollout_s == pytest.approx((50 * 1375 * 2 / 2 + 2e4 * 8 / 4) / 1e5)
    assert limit_of(ROUND).short.step_parameters is None, "a dense model's steps read all"


def test_training_beside_decoding_counts_what_is_beyond_it():
    beside = limit_of(dataclasses.replace(ROUND, streams=True, update_s=7.0))
    assert beside.step_s == pytest.approx(4.2e6 / 3e6), "the longer of both"
    assert beside.short.train_s == beside.phases.train.limit_s == pytest.approx(4.2e6 / 3e6), "of the whole update"
    assert beside.phases.train.ratio == pytest.approx(1.4 / 7.0), "over all of its seconds, not over what is exposed"
    short = limit_of(dataclasses.replace(ROUND, streams=True, trained_tokens=100))
    assert short.short.train_s > 0 and short.step_s == short.short.rollout_s
