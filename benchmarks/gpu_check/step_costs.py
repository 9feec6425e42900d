"""The part of the GPU check for what a decode step costs beside the GPU: vLLM's own Python, by function.

    python -m benchmarks.gpu_check.step_costs MODEL --device cuda --sequences 256

On an H200 a step of vLLM 0.24 alone took 2.5 ms with 32 sequences of a model of 0.5B parameters, and 46 to 61 us more
for each further sequence, tens of times what reading their KV takes. To see what these are, vLLM decodes here within
one process, by each of its model runners (`VLLM_USE_V2_MODEL_RUNNER`), with log-probs and without: `us_per_sequence`,
microseconds of a step by sequence, and `functions`, those of the functions that took most of it themselves, under
Python's profiler (which makes them slower). Prints JSON lines, fragments of the check's result.
"""

from __future__ import annotations

import cProfile
import dataclasses
import os
import pstats
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from rlplan.executor.engines.vllm_options import engine_arguments, environment

from ..entry import run
from .decode_part import TOKENS, Batch, engine_config
from .plans_part import tell

RUNNERS = {"cuda": ("0", "1"), "cpu": ("0",)}
FUNCTIONS = 12


def functions_of(profiler: cProfile.Profile, steps: int, sequences: int) -> dict[str, float]:
    """Microseconds of a step by sequence of the functions that took most, without what they call."""
    found: dict[Any, Any] = vars(pstats.Stats(profiler))["stats"]
    most = sorted(((row[2], key) for key, row in found.items()), reverse=True)[:FUNCTIONS]
    return {f"{Path(file).name}:{name}": round(1e6 * own_s / steps / sequences, 2) for own_s, (file, _, name) in most}


def measure(model: Path, device: str, sequences: int, runner: str) -> None:
    """Decode with one model runner in this process."""
    config, vocabulary = engine_config(model, device, sequences, 0)
    os.environ |= environment(dataclasses.replace(config, gpus=()))
    os.environ |= {"VLLM_USE_V2_MODEL_RUNNER": runner, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    from vllm import LLM, SamplingParams

    arguments = engine_arguments(config)
    del arguments["worker_extension_cls"]
    engine = LLM(**arguments)
    _, short, long = TOKENS[device]

    def seconds(tokens: int, logprobs: int | None, seed: int) -> float:
        batch = Batch(sequences, tokens, seed)
        prompts: Any = [{"prompt_token_ids": each} for each in batch.prompts(device, vocabulary)]
        parameters = SamplingParams(
            max_tokens=tokens, logprobs=logprobs, flat_logprobs=True, detokenize=False, ignore_eos=True
        )
        began = time.perf_counter()
        engine.generate(prompts, parameters, use_tqdm=False)
        return time.perf_counter() - began

    for name, logprobs in (("logprobs", 0), ("none", None)):
        turns = [(seconds(short, logprobs, turn), seconds(long, logprobs, turn)) for turn in range(2)]
        step_s = (min(turn[1] for turn in turns) - min(turn[0] for turn in turns)) / (long - short)
        profiler = cProfile.Profile()
        profiler.runcall(seconds, long, logprobs, 2)
        figures = {
            "us_per_sequence": round(1e6 * step_s / sequences, 2),
            "functions": functions_of(profiler, long, sequences),
        }
        tell(steps={f"runner {runner}": {name: figures}})


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--device", type=click.Choice(["cuda", "cpu"]), required=True)
@click.option("--sequences", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--runner", help="Measure this one in this process.")
def main(model: Path, device: str, sequences: int, runner: str | None) -> None:
    """Measure a step by each model runner, in a process each; exit code 1 if one of them failed."""
    if runner is not None:
        measure(model, device, sequences, runner)
        return
    own = [sys.executable, "-m", "benchmarks.gpu_check.step_costs", str(model), "--device", device]
    words = [*own, "--sequences", str(sequences), "--runner"]
    if any([subprocess.run([*words, each], check=False).returncode for each in RUNNERS[device]]):
        raise SystemExit(1)


if __name__ == "__main__":
    run(main)
