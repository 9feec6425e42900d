"""What `benchmarks/layout_runs` calls the same training, on traces and weights written here; its runs take minutes."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

pytest.importorskip("vllm")

import torch

from benchmarks.layout_runs import Kill, compare_samples, compare_weights, lost_steps, ranks_of, wrong
from rlplan.executor.trainer.trainer_group import TrainerGroup
from rlplan.plans.yaml.errors import InputError
from rlplan.traces.run_log import RunLog

SAME = {"same_prompts": True, "lost_steps": 0, "weights_relative_difference": 1e-4}


def log_of(*steps):
    """A trace whose steps trained samples of (prompt, place, tokens)."""
    rows = [
        [{"prompt": p, "sample": s, "tokens": t, "reward": 1.0, "fate": "trained"} for p, s, t in step]
        for step in steps
    ]
    return RunLog(
        steps=[{"step": number} for number in range(1, len(steps) + 1)], samples=dict(enumerate(rows, start=1))
    )


def test_a_layout_is_its_keys_with_numbers_and_anything_else_is_refused():
    assert ranks_of("dp 2 tp 2") == {"dp": 2, "tp": 2, "sp": 1, "micro_batch_tokens": 1024}
    for text in ("", "dp", "dp two", "dp 0", "pp 2", "dp 2 dp 4", "dp 2 tp"):
        with pytest.raises(InputError, match="write dp, tp, sp, micro_batch_tokens, each"):
            ranks_of(text)


def test_samples_part_at_the_first_step_that_trained_another_length():
    one = log_of([("a", 0, 5), ("a", 1, 6)], [("b", 0, 7), ("b", 1, 8)])
    longer = log_of([("a", 0, 5), ("a", 1, 6)], [("b", 0, 7), ("b", 1, 9)])
    elsewhere = log_of([("a", 0, 5), ("a", 1, 6)], [("c", 0, 7), ("b", 1, 8)])
    assert compare_samples(one, one, 2) == {"same_prompts": True, "same_samples_share": 1.0, "parted_at_step": None}
    assert compare_samples(one, longer, 2) == {"same_prompts": True, "same_samples_share": 0.75, "parted_at_step": 2}
    assert compare_samples(one, elsewhere, 2)["same_prompts"] is False


def test_the_difference_of_weights_is_a_share_of_their_way():
    start, end, ours = ({"w": torch.tensor(values)} for values in ([0.0, 0.0], [3.0, 4.0], [3.0, 4.5]))
    found = compare_weights(start, end, ours)
    assert found == pytest.approx({"weights_max_difference": 0.5, "weights_relative_difference": 0.1})


def test_a_step_that_is_missing_or_there_twice_is_lost():
    log = RunLog(steps=[{"step": 1}, {"step": 3}, {"step": 3}])
    assert lost_steps(log, 3) == 2


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
    killed = SAME | {"restarts": 1}
    assert wrong({"layouts": {"dp 1": SAME, "tp 2": SAME}, "killed": killed}) == []
    (complaint,) = wrong({"layouts": {"dp 1": SAME, "tp 2": SAME}, "killed": killed | fault})
    assert text in complaint


def test_a_rank_is_killed_in_the_middle_of_the_chosen_update_of_the_chosen_trainer_only(monkeypatch):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:

        async def step(group, groups, update=None):
            await asyncio.sleep(0.2)
            return {"alive": float(process.poll() is None)}

        async def pids(group):
            return [2**30, process.pid]  # no process has the first id

        monkeypatch.setattr(TrainerGroup, "step", step)
        monkeypatch.setattr(TrainerGroup, "pids", pids)
        chosen, other = (TrainerGroup.__new__(TrainerGroup) for _ in range(2))
        chosen.name, other.name = "trainer a", "trainer b"
        kill = Kill("a", update=2)

        async def body():
            with kill.armed():
                return [await group.step([]) for group in (chosen, other, other, chosen)]

        assert [metrics["alive"] for metrics in asyncio.run(body())] == [1.0, 1.0, 1.0, 0.0]
    assert kill.struck and TrainerGroup.step is step
