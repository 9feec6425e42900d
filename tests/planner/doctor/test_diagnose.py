"""What the doctor finds, and that each remedy it names mends what it is named for."""

from dataclasses import replace

import pytest

from rlplan.planner.doctor.diagnose import as_dict, diagnose, judge
from rlplan.planner.doctor.setup_memory import first_overflow, known_gpu, known_model, setup_uses
from rlplan.planner.doctor.setup_rules import trained_length_ratio
from rlplan.plans.facts.trainer_setup import LeftAside, TrainerSetup
from rlplan.plans.yaml.errors import InputError

from .test_setup_memory import FSDP, MEGATRON


def rules(setup: TrainerSetup) -> set[str]:
    return {finding.rule for finding in judge(setup)[2]}


@pytest.mark.parametrize(
    "setup",
    [
        MEGATRON,
        replace(FSDP, model="Qwen2.5-32B", rollout_tp=4),
        replace(FSDP, recompute="none", max_response_tokens=16384),
        replace(FSDP, weights_at="device", optimizer_at="device", memory_share=0.95),
        replace(FSDP, backend="ddp", zero=0, framework="trl", engine_sleeps=False, micro_batch_tokens=None),
    ],
)
def test_each_remedy_alone_makes_the_setup_fit(setup):
    _, uses, findings = judge(setup)
    assert first_overflow(uses) is not None
    remedies = [changes for finding in findings for changes in finding.remedies]
    assert remedies
    for changes in remedies:
        changed = replace(setup, **changes)
        assert first_overflow(setup_uses(changed, known_model(changed), known_gpu(changed))) is None, changes


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"backend": "megatron", "tp": 3}, "layout"),
        ({"rollout_tp": 3}, "layout"),
        ({"ep": 2}, "layout"),
        ({"mini_batch_samples": 100}, "batch"),
        ({"mini_batch_samples": 64}, "off-policy"),
        ({"steps_ahead": 1}, "off-policy"),
        ({"micro_batch_tokens": 1000}, "micro-batch"),
        ({"issued_prompts": 96}, "over-sampling"),
        ({"engine_sleeps": False, "memory_share": 0.3}, "awake-engine"),
        ({"engine": "transformers"}, "no-engine"),
        ({"left_aside": (LeftAside("rollout.over_sample_rate", "0.1", "nothing reads it", "dead"),)}, "dead-key"),
        ({"max_num_seqs": 1024, "prompts": 1024, "max_response_tokens": 15000, "memory_share": 0.3}, "kv-cache"),
    ],
)
def test_a_clash_is_found_by_its_rule(settings, rule):
    assert rule not in rules(FSDP)
    assert rule in rules(replace(FSDP, **settings))


def test_a_layout_that_nobody_said_is_the_smallest_with_room():
    setup = replace(MEGATRON, tp=1, ep=1, rollout_tp=1, defaulted=("tp", "pp", "ep", "cp", "rollout_tp"))
    taken, uses, findings = judge(replace(setup, host_bytes=None))
    assert first_overflow(uses) is None and taken.ep > 1
    assert "layout-taken" in {finding.rule for finding in findings}


def test_the_first_to_end_are_shorter_the_more_are_issued():
    ratios = [trained_length_ratio(issued, 64, 8) for issued in (64, 80, 128)]
    assert ratios[0] == pytest.approx(1.0) and ratios[0] > ratios[1] > ratios[2] > 0.3


def test_a_setup_that_fits_has_warnings_seconds_and_better_placements():
    diagnosis = diagnose(replace(FSDP, rollout_tp=4))
    assert diagnosis.fits and diagnosis.first is None and diagnosis.exit_code == 0
    assert all(finding.warning for finding in diagnosis.findings)
    data = as_dict(diagnosis)
    assert data["first"] is None and data["step_s"] > 0 and sum(data["phases_s"].values()) > 0
    assert diagnosis.placements and diagnosis.seconds is not None
    for placed in diagnosis.placements:
        assert placed.step_s < diagnosis.seconds.step_s or placed.gpu_seconds < 8 * diagnosis.seconds.step_s


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"gpu": None}, "does not say which GPUs"), ({"gpu": "Z9"}, "no data sheet"), ({"model": "my-own"}, "my-own")],
)
def test_what_is_not_known_is_said_in_one_line(settings, said):
    with pytest.raises(InputError, match=said):
        diagnose(replace(FSDP, **settings))
