"""A plan's rounds on the vLLM that a GRPOTrainer starts in its process, on a CPU. In a process of its own: vLLM joins
the process to a group of one rank.

vLLM's CPU linears repack their weights when they are loaded, and TRL's way to bring new ones (`load_weights`) fails on
them. So weights come here by vLLM's own `reload_weights`; everything else is TRL's.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .tiny_trainer import CAP, N, P, write_model, write_plan

SCRIPT = """
import json, sys
from tests.frameworks.trl.tiny_trainer import trainer_of
from rlplan.frameworks.trl.trl_rollout import plan_trainer

model, plan, out = sys.argv[1:]
trainer = trainer_of(model, out, max_steps=6, save_strategy="no", use_vllm=True, vllm_max_model_length=64)
vllm = trainer.vllm_generation
runner = vllm.llm.llm_engine.model_executor.driver_worker.model_runner

def sync_weights():
    runner.reload_weights(weights_iterator=iter([(n, w.detach()) for n, w in trainer.model.named_parameters()]))
    vllm.llm.reset_prefix_cache()

vllm.sync_weights = sync_weights
planned = plan_trainer(trainer, plan)
lengths, rollout = [], trainer.rollout_func

def noted(prompts, trainer):
    output = rollout(prompts, trainer)
    lengths.append([len(ids) for ids in output["completion_ids"]])
    assert [len(logprobs) for logprobs in output["logprobs"]] == lengths[-1]
    return output

trainer.rollout_func = noted
trainer.train()
unfinished = vllm.llm.llm_engine.has_unfinished_requests()
history = [entry for entry in trainer.state.log_history if "rounds/long" in entry]
print("RESULT" + json.dumps({"lengths": lengths, "history": history, "unfinished": unfinished}))
"""


@pytest.mark.engine
def test_rounds_run_on_the_vllm_of_the_trainer(tmp_path):
    model, plan = write_model(tmp_path / "model", hidden=128), write_plan(tmp_path, cutoff=5)
    root = Path(__file__).parents[3]
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    command = [sys.executable, "-c", SCRIPT, model, str(plan), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500, check=False)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT")] or [done.stderr[-3000:]]
    result = json.loads(line.removeprefix("RESULT"))
    kinds = [entry["rounds/long"] for entry in result["history"]]
    assert len(kinds) == 6 and set(kinds) == {0.0, 1.0} and result["unfinished"] is False
    for kind, lengths in zip(kinds, result["lengths"], strict=True):
        assert len(lengths) == P * N
        assert 5 < max(lengths) <= CAP if kind else max(lengths) <= 5
    # Between two implementations, of which the engine's computes in bfloat16.
    assert max(entry["sampling/sampling_logp_difference/max"] for entry in result["history"]) < 0.02
