"""Does a model that `rlplan export-model` wrote load in transformers and in vLLM, and is it the one that was trained?

    python -m benchmarks.exported_model JOB RUN MODEL [--json]

RUN's trainer is started again, as one rank on a CPU, and loads the latest checkpoint, which MODEL was written from.
vLLM and transformers load MODEL alone, as anybody would. vLLM samples responses to prompts of JOB's data; the log-probs
of their tokens may differ by LIMIT at most, between each of the two and the trainer. `make demo` calls it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from rlplan.executor.trainer.train_samples import TrainSample
from rlplan.plans.schema.job import load_job
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.errors import InputError, RunFailed
from rlplan.traces.run_log import PLAN_COPY

from .entry import as_json_option, run, tell

LIMIT = 1e-4
"""In nats; float32 on both sides, with other orders of summation."""

PROMPTS, SAMPLES, TOKENS = 8, 3, 256


def sampled(model: Path, prompts: Sequence[Sequence[int]]) -> list[list[tuple[list[int], list[float]]]]:
    """Responses of vLLM to each prompt: their tokens and log-probs."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # no process of its own for so little
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM, SamplingParams

    length = max(map(len, prompts)) + TOKENS
    engine = LLM(
        model=str(model), dtype="float32", enforce_eager=True, max_model_len=length, max_num_seqs=PROMPTS * SAMPLES,
        kv_cache_memory_bytes=250_000_000, generation_config="vllm", logprobs_mode="processed_logprobs", seed=0,
    )  # fmt: skip
    how = SamplingParams(n=SAMPLES, temperature=1.0, max_tokens=TOKENS, logprobs=0)
    outputs = engine.generate([{"prompt_token_ids": list(each)} for each in prompts], how, use_tqdm=False)
    return [
        [
            (
                list(each.token_ids),
                [row[token].logprob for token, row in zip(each.token_ids, each.logprobs, strict=True)],
            )
            for each in output.outputs
        ]
        for output in outputs
    ]


def of_transformers(model: Path, groups: Sequence[Sequence[TrainSample]]) -> list[list[TrainSample]]:
    """The groups with the log-probs of transformers' own forward pass."""
    import torch
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def logprobs(sample: TrainSample) -> list[float]:
        prompt, response = torch.tensor(sample.prompt_tokens).long(), torch.tensor(sample.response_tokens).long()
        with torch.no_grad():
            logits = policy(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
        chosen: list[float] = torch.log_softmax(logits, -1).gather(1, response[:, None])[:, 0].tolist()
        return chosen

    return [[replace(sample, logprobs=logprobs(sample)) for sample in group] for group in groups]


def differences(job_path: Path, run_dir: Path, model: Path) -> dict[str, Any]:
    """`vllm` and `transformers`: the largest difference of a log-prob from the trainer's, nats; `tokens`, `step`.

    Raises InputError if a file cannot be read, or the run has no checkpoint.
    """
    from transformers import AutoTokenizer

    from rlplan.executor.configuration import trainer_config
    from rlplan.executor.records.checkpoints import checkpoints
    from rlplan.executor.trainer.trainer_rank import Trainer

    job, plan, found = load_job(job_path), load_plan(run_dir / PLAN_COPY), checkpoints(run_dir)
    if not found:
        raise InputError("has no checkpoint", str(run_dir))
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    with (job_path.parent / job.data.path).open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in islice(file, PROMPTS)]
    prompts = [tokenizer(row["prompt"], add_special_tokens=False).input_ids for row in rows]
    # vLLM in a process of its own: it and a trainer each want torch's default process group.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        said = apart.submit(sampled, model, prompts).result()
    groups = [
        [
            TrainSample(f"p{number}", sample, prompt, tokens, logprobs, float(sample), False)
            for sample, (tokens, logprobs) in enumerate(responses)
        ]
        for number, (prompt, responses) in enumerate(zip(prompts, said, strict=True))
    ]
    config = trainer_config(
        job, str(job_path.parent / job.model.path), plan.job.rounds.short.train, "cpu", plan.job.loss
    )
    trainer = Trainer(
        replace(config, ranks=1, tp=1, sp=1, state_copies=1, samples_per_prompt=SAMPLES, logprob_limits=None)
    )
    figures: dict[str, Any] = {"step": int(found[-1].name.rpartition("-")[2])}
    for name, sides in (("vllm", groups), ("transformers", of_transformers(model, groups))):
        trainer.load(found[-1] / "trainer")  # a step compares, and then changes the weights
        figures[name] = float(trainer.step(sides)["logprob_max_abs_diff"])
    trainer.close()
    return figures | {"tokens": sum(len(tokens) for responses in said for tokens, _ in responses)}


@click.command()
@click.argument("job", type=click.Path(exists=True, path_type=Path))
@click.argument("run_dir", metavar="RUN", type=click.Path(exists=True, path_type=Path))
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@as_json_option
def main(job: Path, run_dir: Path, model: Path, as_json: bool) -> None:
    """Compare the exported MODEL in vLLM and in transformers with RUN's trainer at its latest checkpoint."""
    found = differences(job, run_dir, model)
    tell(
        found, as_json,
        f"{model} loads in vLLM and transformers, and is the model of step {found['step']}: log-probs of "
        f"{found['tokens']:,} tokens differ from the trainer's by at most {found['vllm']:.1e} and "
        f"{found['transformers']:.1e}",
    )  # fmt: skip
    if not max(found["vllm"], found["transformers"]) <= LIMIT:
        raise RunFailed(f"{model} is not the trained model: log-probs differ by more than {LIMIT:g}")


if __name__ == "__main__":
    run(main)
