"""Benchmarks of trainers and runs: what they compare and complain of, on traces and weights written here; no times."""

import asyncio
import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("vllm")
pytest.importorskip("accelerate")
pytest.importorskip("trl")

import torch

from rlplan.benchmarks import trainer_speed, trl_peer
from rlplan.benchmarks.accelerate_peer import padded_batches, padding_share
from rlplan.benchmarks.faults.campaign import INJECTORS, draw
from rlplan.benchmarks.faults.verdict import off_policy, trained
from rlplan.benchmarks.faults.verdict import wrong as wrong_faults
from rlplan.benchmarks.layout_runs import Kill, compare_samples, compare_weights, lost_steps, ranks_of, wrong
from rlplan.benchmarks.streaming import gradient_max_diff
from rlplan.executor.trainer.trainer_group import TrainerGroup
from rlplan.plans.yaml.errors import InputError

from ..traces.events import log_of, run_of, sample, step
from ..traces.test_report import EXAMPLE

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
    assert 0 < gradient_max_diff() < 1e-6, "streamed gradients are those of the whole step"


def test_the_first_step_of_either_side_is_left_out():
    groups = trainer_speed.batch(1, 50)
    tokens = sum(s.tokens for s in groups[0])
    found = trainer_speed.report(trainer_speed.Measured([90.0, 1.0, 3.0], [900.0, 5.0, 5.0], 1e-7, 0.1), groups)
    speeds = {"rlplan": pytest.approx(2 * tokens / 4), "accelerate": pytest.approx(2 * tokens / 10)}
    assert found["tokens_per_s"] == speeds
    assert found["ratio"] == pytest.approx(2.5) and found["steps"] == 2 and 0 < found["padding_share"] < 0.5
    done = CliRunner().invoke(trainer_speed.main, ["--steps", "1"])
    assert done.exit_code == 2 and "--steps" in done.output


def test_the_peers_ratio_is_of_samples_per_second_without_first_steps():
    def ours(number, seconds):
        return step(number, total_s=seconds, trained_samples=8, trained_tokens=400, deferred=0, reward_mean=0.5)

    peer = [{"seconds": s, "samples": 8, "mean_tokens": 60.0, "reward_mean": 0.25} for s in (900.0, 6.0, 10.0)]
    found = trl_peer.result(run_of(EXAMPLE, ours(1, 100.0), ours(2, 1.0), ours(3, 3.0)), peer)
    assert found["samples_per_s"] == {"rlplan": pytest.approx(16 / 4.0), "trl": pytest.approx(16 / 16.0)}
    assert found["ratio"] == pytest.approx(4.0) and found["steps"] == 2
    assert found["mean_tokens"] == {"rlplan": 50.0, "trl": 60.0}


def test_bad_arguments_of_the_peer_are_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["trl_peer", "--steps", "1"])
    with pytest.raises(SystemExit) as ended:
        trl_peer.main()
    assert ended.value.code == 2 and "at least 2" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["trl_peer", "--example", "/nowhere"])
    assert trl_peer.main() == 2


# -- layouts ---------------------------------------------------------------------------------------------------------

SAME = {"same_prompts": True, "lost_steps": 0, "weights_relative_difference": 1e-4}


def log(*steps):
    """A trace whose steps trained samples of (prompt, place, tokens)."""
    events = []
    for number, samples in enumerate(steps, 1):
        events += [sample(number, prompt=p, sample=s, tokens=t, reward=1.0) for p, s, t in samples]
        events.append(step(number))
    return log_of(*events)


def test_a_layout_is_its_keys_with_numbers():
    assert ranks_of("dp 2 tp 2") == {"dp": 2, "tp": 2, "sp": 1, "micro_batch_tokens": 1024}
    for text in ("", "dp", "dp two", "dp 0", "pp 2", "dp 2 dp 4", "dp 2 tp"):
        with pytest.raises(InputError, match="write dp, tp, sp, micro_batch_tokens, each"):
            ranks_of(text)


def test_samples_part_at_the_first_step_that_trained_another_length():
    one = log([("a", 0, 5), ("a", 1, 6)], [("b", 0, 7), ("b", 1, 8)])
    longer = log([("a", 0, 5), ("a", 1, 6)], [("b", 0, 7), ("b", 1, 9)])
    elsewhere = log([("a", 0, 5), ("a", 1, 6)], [("c", 0, 7), ("b", 1, 8)])
    assert compare_samples(one, one, 2) == {"same_prompts": True, "same_samples_share": 1.0, "parted_at_step": None}
    assert compare_samples(one, longer, 2) == {"same_prompts": True, "same_samples_share": 0.75, "parted_at_step": 2}
    assert compare_samples(one, elsewhere, 2)["same_prompts"] is False
    assert lost_steps(log_of(step(1), step(3), step(3)), 3) == 2, "missing or there twice"


def test_the_difference_of_weights_is_a_share_of_their_way():
    start, end, ours = ({"w": torch.tensor(values)} for values in ([0.0, 0.0], [3.0, 4.0], [3.0, 4.5]))
    found = compare_weights(start, end, ours)
    assert found == pytest.approx({"weights_max_difference": 0.5, "weights_relative_difference": 0.1})


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"same_prompts": False}, "other prompts"),
        ({"lost_steps": 1}, "lost or repeated steps"),
        ({"weights_relative_difference": 0.5}, "differ by 0.5"),
        ({"weights_relative_difference": float("nan")}, "differ by nan"),
        ({"restarts": 0}, "0 restarts"),
    ],
)
def test_a_run_that_trained_something_else_is_complained_about(fault, text):
    killed, layouts = SAME | {"restarts": 1}, {"dp 1": SAME, "tp 2": SAME}
    assert wrong({"layouts": layouts, "killed": killed}) == []
    (complaint,) = wrong({"layouts": layouts, "killed": killed | fault})
    assert text in complaint


def test_a_rank_is_killed_in_the_chosen_update_of_its_trainer_only(monkeypatch):
    with subprocess.Popen(["/bin/sleep", "60"]) as process:

        async def step(group, groups, update=None):
            if (group.name, next(updates[group.name])) == ("trainer a", 2):
                while process.poll() is None:  # it is killed meanwhile
                    await asyncio.sleep(0.005)
            else:
                await asyncio.sleep(0.05)
            return {"alive": float(process.poll() is None)}

        async def pids(group):
            return [2**30, process.pid]  # no process has the first id

        monkeypatch.setattr(TrainerGroup, "step", step)
        monkeypatch.setattr(TrainerGroup, "pids", pids)
        chosen, other = (TrainerGroup.__new__(TrainerGroup) for _ in range(2))
        chosen.name, other.name = "trainer a", "trainer b"
        updates = {group.name: iter((1, 2, 3)) for group in (chosen, other)}
        kill = Kill("a", update=2)

        async def body():
            with kill.armed():
                return [await group.step([]) for group in (chosen, other, other, chosen)]

        assert [metrics["alive"] for metrics in asyncio.run(body())] == [1.0, 1.0, 1.0, 0.0]
    assert kill.struck and TrainerGroup.step is step


# -- faults ----------------------------------------------------------------------------------------------------------

SOUND = dict.fromkeys(
    ("lost", "double", "off_policy", "unrecovered", "left_processes", "weights_max_difference"), 0
) | {"faults": 40}  # fmt: skip


def test_all_kinds_of_fault_come_and_as_many_as_asked_for():
    drawn = draw(40, random.Random(1))
    assert len(drawn) == 40 and set(drawn) == set(INJECTORS)


@pytest.mark.parametrize("name", [name for name in SOUND if name != "faults"])
def test_a_run_that_lost_repeated_or_left_anything_did_not_recover(name):
    assert wrong_faults(SOUND, 40) == []
    (word,) = wrong_faults(SOUND | {name: 1}, 40)
    assert name in word
    assert wrong_faults(SOUND | {"faults": 39}, 40) == ["39 of 40 faults struck"]


def test_samples_are_counted_by_prompt_and_place_and_by_version():
    old, new = ["run:0", "run:0"], ["run:0", "run:1"]
    rows = [("a", old, "trained"), ("a", new, "trained"), ("b", old, "deferred")]
    samples = [sample(1, prompt=prompt, version=version, fate=fate) for prompt, version, fate in rows]
    found = log_of(*samples, step(1, on_policy_violations=0))
    assert trained(found) == Counter({("a", 0, 0): 1, ("a", 0, 1): 1}) and off_policy(found) == 1
