"""Benchmarks of trainers and runs: what they compare and complain of, on traces and weights written here; no times."""

import random
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("accelerate")


from rlplan.benchmarks import trainer_speed
from rlplan.benchmarks.accelerate_peer import padded_batches, padding_share
from rlplan.benchmarks.faults.campaign import draw
from rlplan.benchmarks.faults.injectors import INJECTORS
from rlplan.benchmarks.faults.verdict import off_policy, trained, wrong

from ..traces.events import log_of, sample, step

# -- the trainer's speed ---------------------------------------------------------------------------------------------


def test_padded_micro_batches_hold_each_sample_once_and_keep_the_budget():
    lengths = trainer_speed.response_lengths(64)
    batches = padded_batches(lengths, 4096)
    assert sorted(i for rows in batches for i in rows) == list(range(64))
    assert all(len(rows) * max(lengths[i] for i in rows) <= 4096 for rows in batches)
    assert padded_batches([5, 30, 20, 6], 20) == [[1], [2], [3, 0]]  # longer than the budget: alone
    assert padding_share([4, 2, 2], 8) == pytest.approx(1 - 8 / 10)  # 4 4 | 2
    assert padding_share([3, 3], 6) == 0.0


def test_responses_have_a_median_of_200_tokens_and_a_tail_to_1500():
    groups = trainer_speed.batch(8, 50)
    lengths = [len(s.response_tokens) for group in groups for s in group]
    assert np.median(lengths) == pytest.approx(200, rel=0.03) and max(lengths) == 1500
    again = [s.response_tokens for group in trainer_speed.batch(8, 50) for s in group]
    assert all(map(np.array_equal, again, (s.response_tokens for group in groups for s in group)))


def test_trainer_and_peer_compute_the_same_gradients():
    small = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    measured = trainer_speed.measure(trainer_speed.MODEL | small, trainer_speed.batch(2, 64), 2)
    assert measured.gradient_max > 1e-3 and measured.gradient_max_diff < 1e-5
    assert len(measured.rlplan_s) == len(measured.accelerate_s) == 2


def test_the_first_step_of_either_side_is_left_out():
    groups = trainer_speed.batch(1, 50)
    tokens = sum(s.tokens for s in groups[0])
    found = trainer_speed.report(trainer_speed.Measured([90.0, 1.0, 3.0], [900.0, 5.0, 5.0], 1e-7, 0.1), groups)
    speeds = {"rlplan": pytest.approx(2 * tokens / 4), "accelerate": pytest.approx(2 * tokens / 10)}
    assert found["tokens_per_s"] == speeds
    assert found["ratio"] == pytest.approx(2.5) and found["steps"] == 2 and 0 < found["padding_share"] < 0.5
    done = CliRunner().invoke(trainer_speed.main, ["--steps", "1"])
    assert done.exit_code == 2 and "--steps" in done.output


# -- faults ----------------------------------------------------------------------------------------------------------

SOUND = dict.fromkeys(
    ("lost", "double", "off_policy", "unrecovered", "left_processes", "different"), 0
) | {"faults": 40, "weights_beyond": 0.0009}  # fmt: skip


def test_all_kinds_of_fault_come_and_as_many_as_asked_for():
    drawn = draw(100, random.Random(1))
    assert len(drawn) == 100 and set(drawn) == set(INJECTORS)


@pytest.mark.parametrize("name", [name for name in SOUND if name not in ("faults", "weights_beyond")])
def test_a_run_that_lost_repeated_or_left_anything_did_not_recover(name):
    assert wrong(SOUND, 40) == []
    (word,) = wrong(SOUND | {name: 1}, 40)
    assert name in word
    assert wrong(SOUND | {"faults": 39}, 40) == ["39 of 40 faults struck"]
    assert wrong(SOUND | {"weights_beyond": 0.02}, 40) == [
        "2.00% of the weights differ by more than 1e-06, which is no rounding"
    ]


def test_samples_are_counted_by_prompt_and_place_and_by_version():
    old, new = ["run:0", "run:0"], ["run:0", "run:1"]
    rows = [("a", old, "trained"), ("a", new, "trained"), ("b", old, "deferred")]
    samples = [sample(1, prompt=prompt, version=version, fate=fate) for prompt, version, fate in rows]
    found = log_of(*samples, step(1, on_policy_violations=0))
    assert trained(found) == Counter({("a", 0, 0): 1, ("a", 0, 1): 1}) and off_policy(found) == 1
