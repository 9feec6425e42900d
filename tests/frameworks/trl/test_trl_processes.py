"""A plan's rounds in a GRPOTrainer of two processes, on a CPU: both follow one round, and train what one would."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .tiny_trainer import N, P, trainer_of, write_model, write_plan

SCRIPT = """
import json, os, sys
import torch
from tests.frameworks.trl.test_trl_processes import noted_run

model, plan, out = sys.argv[1:]
options = {"per_device_train_batch_size": 2}
result = noted_run(model, plan, f"{out}/{os.environ['RANK']}", **options)
with open(f"{out}/{os.environ['RANK']}.json", "w") as file:
    json.dump(result, file)
"""


def noted_run(model, plan, folder, **options):
    """Six steps: rows and tokens of each, what waits in the end, and the sum of each weight."""
    from rlplan.frameworks.trl.trl_rollout import plan_trainer

    trainer = trainer_of(model, folder, max_steps=6, save_strategy="no", **options)
    planned = plan_trainer(trainer, plan)
    rounds, rollout = [], trainer.rollout_func

    def noted(prompts, trainer):
        output = rollout(prompts, trainer)
        rounds.append([[prompt, ids] for prompt, ids in zip(prompts, output["completion_ids"], strict=True)])
        return output

    trainer.rollout_func = noted
    trainer.train()
    weights = {name: float(weight.double().sum()) for name, weight in trainer.model.named_parameters()}
    return {"rounds": rounds, "waiting": list(planned.schedule.deferred), "weights": weights}


@pytest.mark.engine
def test_two_processes_train_what_one_does(tmp_path):
    model, plan = write_model(tmp_path / "model"), write_plan(tmp_path)
    script = tmp_path / "two.py"
    script.write_text(SCRIPT, encoding="utf-8")
    root = Path(__file__).parents[3]
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launch, str(script), model, str(plan), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    both = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    alone = noted_run(model, plan, tmp_path / "alone")
    assert [len(part) for run in both for part in run["rounds"]] == [P * N // 2] * 12
    joined = [first + second for first, second in zip(*(run["rounds"] for run in both), strict=True)]
    assert joined == alone["rounds"]
    assert both[0]["waiting"] == both[1]["waiting"] == alone["waiting"]
    assert both[0]["weights"] == both[1]["weights"] == pytest.approx(alone["weights"], rel=1e-3, abs=1e-3)
