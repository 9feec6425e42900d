"""The peer's side of `trl_peer`: TRL's GRPOTrainer on the CPU, one step for each line on standard input.

It answers `@ready` once, then for each line `@` and a JSON object: a step's seconds, samples, mean_tokens, reward_mean.
Settings are TRL's own where the job does not say otherwise; those that differ from TRL's defaults say why.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# No look-ups: the model is a folder. To be set before transformers is imported.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TOKENIZERS_PARALLELISM": "false",
}

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from rlplan.executor.rewards.functions import ScorerConfig, resolve
from rlplan.plans.files.prompt_rows import data_file, read_prompts
from rlplan.plans.schema.job import Job, job_paths, load_job
from rlplan.rounds.machines.events import Finished, Scored
from rlplan.rounds.round_spec import RoundSpec
from rlplan.rounds.schedule import Schedule

LOSS_TYPES = {"token-mean": "dapo", "seq-mean-token-mean": "grpo", "seq-mean-token-sum-norm": "dr_grpo"}


def prompts_in_order(job: Job, ids: list[str], steps: int) -> list[str]:
    """The prompts that a plain synchronous run of the job trains in its first `steps` steps."""
    rollout = job.rollout
    spec = RoundSpec(
        mode="sync",
        prompts_per_step=rollout.prompts_per_step,
        samples_per_prompt=rollout.samples_per_prompt,
        max_tokens=rollout.max_response_tokens,
        short_prompts=rollout.prompts_per_step,
        short_samples=rollout.samples_per_prompt,
    )
    schedule = Schedule(spec, ids, job.data.seed)
    order: list[str] = []
    for _ in range(steps):
        machine = schedule.begin()
        order += machine.taken
        issued = [action.key for action in machine.start()]
        for key in issued:
            machine.handle(Finished(key, 1, False))
            machine.handle(Scored(key, 0.0))
        schedule.end(machine)
    return order


class Lockstep(TrainerCallback):  # type: ignore[misc]
    """Waits for a line before each step, and prints the step's seconds, samples, lengths and rewards."""

    def __init__(self) -> None:
        self._began = 0.0
        self.lengths: list[int] = []
        self.rewards: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not sys.stdin.readline():
            raise SystemExit(0)
        self.lengths, self.rewards = [], []
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        seconds = time.perf_counter() - self._began
        count = len(self.lengths)
        answer = {
            "seconds": seconds,
            "samples": count,
            "mean_tokens": sum(self.lengths) / count,
            "reward_mean": sum(self.rewards) / count,
        }
        print("@" + json.dumps(answer), flush=True)


def main() -> None:
    """Train until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    job = load_job(options.job)
    paths, data = job_paths(job, options.job), data_file(job, options.job)
    rows = {row.id: row for row in read_prompts(data, job.reward)}
    order = prompts_in_order(job, list(rows), options.steps)
    scorer = resolve(ScorerConfig(job.reward.kind, job.reward.function, job.reward.deadline_s, str(data.parent)))
    lockstep = Lockstep()

    def reward(
        prompts: list[str], completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any
    ) -> list[float]:
        rewards = [
            float(scorer.call(prompt, completion, json.loads(truth)))
            for prompt, completion, truth in zip(prompts, completions, answer, strict=True)
        ]
        lockstep.lengths += [len(ids) for ids in completion_ids]
        lockstep.rewards += rewards
        return rewards

    rollout, algorithm = job.rollout, job.algorithm
    batch = rollout.samples_per_step
    config = GRPOConfig(
        output_dir=options.out,
        # TRL turns bf16 on by itself; on a CPU it is slower than float32 and changes the numbers.
        use_cpu=True,
        bf16=False,
        use_vllm=False,
        gradient_checkpointing=False,  # memory is not short here, and it costs a second forward
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        max_steps=options.steps,
        # One generation and one update a step: strictly on-policy, as rlplan is.
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_iterations=1,
        num_generations=rollout.samples_per_prompt,
        max_completion_length=rollout.max_response_tokens,
        temperature=rollout.temperature,
        beta=0.0,  # no reference model, as rlplan has none
        loss_type=LOSS_TYPES[algorithm.loss_aggregation],
        scale_rewards="group" if algorithm.name == "grpo" else "none",
        epsilon=algorithm.clip_low,
        epsilon_high=algorithm.clip_high,
        mask_truncated_completions=algorithm.mask_truncated,
        learning_rate=algorithm.learning_rate,
        lr_scheduler_type="constant",
        adam_beta1=algorithm.betas[0],
        adam_beta2=algorithm.betas[1],
        weight_decay=algorithm.weight_decay,
        max_grad_norm=algorithm.max_grad_norm,
        shuffle_dataset=False,
        dataloader_num_workers=0,
        seed=algorithm.seed,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(paths.model, dtype=getattr(torch, job.model.dtype)),
        processing_class=AutoTokenizer.from_pretrained(paths.model, padding_side="left"),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict(
            {
                "prompt": [rows[name].prompt for name in order],
                "answer": [json.dumps(rows[name].answer) for name in order],
            }
        ),
        callbacks=[lockstep],
    )
    trainer.remove_callback(PrinterCallback)
    print("@ready", flush=True)
    trainer.train()


if __name__ == "__main__":
    main()
