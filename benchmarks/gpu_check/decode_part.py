"""The part of the GPU check for decoding: an engine of the executor beside `vllm.LLM` alone, on the same requests.

    python -m benchmarks.gpu_check.decode_part MODEL --device cuda --sizes 1,32,256,1024

Both start at once, in processes of their own, each with a KV cache of the size that the requests need; then they decode
in turns, while the other one waits. Prompts are random, responses of a forced length, sampled at temperature 1 without
seeds (`seeded`: by the engine again, each with a seed), with the log-probability of each token, which training needs.
vLLM alone has its own defaults and takes a batch by one call of `generate`; requests to the engine travel through Ray
and come back as events, as in a run.

Of each number of sequences: `of_vllm` and `seeded_of_vllm`, tokens/s of the engine over those of vLLM alone, prefill
and delivery included, the faster of two turns each; `step_s`, `seeded_step_s` and `vllm_step_s`, seconds of a decode
step, from the difference of a long and a short decode of the same prompts. `s_per_sequence`: by how much a step grows
for each further sequence between these numbers: the slope of the laws that ship (profiles/library/). Prints JSON lines,
fragments of the check's result.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from rlplan.executor.engines.engine_handle import EngineEvents, EngineHandle, EngineNews
from rlplan.executor.engines.messages import EngineConfig, Request
from rlplan.executor.engines.vllm_options import FIXED_CACHE_SHARE, engine_arguments, environment
from rlplan.executor.processes.actors import start_ray, within
from rlplan.executor.processes.supervision import Supervisor
from rlplan.plans.facts.model_shape import architecture_from_config
from rlplan.plans.yaml.errors import RunFailed

from ..entry import run
from .plans_part import tell

TURNS = 2
BATCH_S, START_S = 120.0, 400.0
LEAST_KV_BYTES, KV_MARGIN = 2**28, 1.5
TOKENS = {"cuda": (32, 8, 136), "cpu": (8, 2, 18)}
"""Of a prompt, of a short and of a long response."""
PREFIX = {"ours": "", "seeded": "seeded_", "vllm": "vllm_"}
"""Of a side's figures."""


class Batch(NamedTuple):
    """So many sequences of so many tokens each; those of one seed have the same random prompts."""

    sequences: int
    tokens: int
    seed: int

    def prompts(self, device: str, vocabulary: int) -> list[list[int]]:
        rng = random.Random(self.seed)
        return [rng.choices(range(5, vocabulary), k=TOKENS[device][0]) for _ in range(self.sequences)]


Side = Callable[[Batch], Awaitable[float]]
"""Decodes a batch; returns its seconds."""


def engine_config(model: Path, device: str, most: int, number: int) -> tuple[EngineConfig, int]:
    """An engine for `most` sequences, with a KV cache for them, and the size of the vocabulary; on a CPU the engine has
    core `number`."""
    shape = architecture_from_config(json.loads((model / "config.json").read_text(encoding="utf-8")))
    longest, dtype = sum(TOKENS[device]), "bfloat16" if device == "cuda" else "float32"
    kv_bytes = KV_MARGIN * most * longest * shape.kv_values_per_token * (2 if device == "cuda" else 4)
    cores = sorted(os.sched_getaffinity(0)) if device == "cpu" else []
    config = EngineConfig(
        "engine", str(model), dtype, 1, longest, most, device, max(LEAST_KV_BYTES, int(kv_bytes)),
        cores=(cores[number % len(cores)],) if cores else (), memory_share=FIXED_CACHE_SHARE,
    )  # fmt: skip
    return config, shape.vocab


async def start_engine(config: EngineConfig, vocabulary: int) -> dict[str, Side]:
    """Start the executor's engine behind Ray: one side without seeds, one with them."""
    news: asyncio.Queue[EngineNews] = asyncio.Queue()
    handle, serial = EngineHandle(config, news.put_nowait, Supervisor()), itertools.count()
    start_ray()
    await handle.start()

    async def seconds(seeded: bool, batch: Batch) -> float:
        requests = [
            Request(f"check-{number}", tuple(prompt), batch.tokens, ignore_eos=True, seed=number if seeded else None)
            for prompt, number in zip(batch.prompts(config.device, vocabulary), serial, strict=False)
        ]
        began, missing = time.perf_counter(), len(requests)
        await handle.submit(requests, handle.version)
        while missing:
            heard = await within(BATCH_S, news.get(), "the engine")
            if not isinstance(heard, EngineEvents):
                raise RunFailed(f"the engine is gone: {getattr(heard, 'reason', heard)}")
            missing -= sum(event.name == "finished" for event in heard.events)
        return time.perf_counter() - began

    return {"ours": partial(seconds, False), "seeded": partial(seconds, True)}


async def start_alone(command: list[str], environ: Mapping[str, str]) -> dict[str, Side]:
    """Start vLLM alone, in a process that answers batches with seconds (`serve_alone`)."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=dict(environ))
    assert process.stdin is not None and process.stdout is not None
    ask, answers = process.stdin, process.stdout

    async def answer(deadline_s: float) -> float:
        line = await within(deadline_s, answers.readline(), "vLLM alone")
        if not line:
            raise RunFailed("vLLM alone has ended; the log says why")
        return float(json.loads(line))

    async def seconds(batch: Batch) -> float:
        ask.write((json.dumps(batch) + "\n").encode())
        return await answer(BATCH_S)

    await answer(START_S)
    return {"vllm": seconds}


def serve_alone(config: EngineConfig, vocabulary: int) -> None:
    """Start `vllm.LLM`; write the seconds of that, and of each batch that comes on standard input, until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is no answer
    from vllm import LLM, SamplingParams

    began = time.perf_counter()
    arguments: dict[str, Any] = {
        "model": config.model_path, "dtype": config.dtype, "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs, "kv_cache_memory_bytes": config.kv_memory_bytes,
        "gpu_memory_utilization": FIXED_CACHE_SHARE, "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
    } if config.device == "cuda" else engine_arguments(config)  # fmt: skip
    engine = LLM(**arguments)
    print(time.perf_counter() - began, file=answers, flush=True)
    for line in sys.stdin:
        batch = Batch(*json.loads(line))
        prompts: Any = [{"prompt_token_ids": each} for each in batch.prompts(config.device, vocabulary)]
        parameters = SamplingParams(max_tokens=batch.tokens, logprobs=0, detokenize=False, ignore_eos=True)
        began = time.perf_counter()
        outputs = engine.generate(prompts, parameters, use_tqdm=False)
        print(time.perf_counter() - began, file=answers, flush=True)
        assert all(len(output.outputs[0].token_ids) == batch.tokens for output in outputs)


async def measured(sides: Mapping[str, Side], sequences: int, short: int, long: int) -> dict[str, float]:
    """What is told of one number of sequences; sides: `ours` and `seeded`, and `vllm`, which may lack. `short`
    and `long`: tokens of a response."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for turn in range(TURNS):
        for name in sides if turn % 2 == 0 else reversed(list(sides)):
            short_s = await sides[name](Batch(sequences, short, turn))
            taken[name].append((short_s, await sides[name](Batch(sequences, long, turn))))
    figures: dict[str, float] = {}
    for name, turns in taken.items():
        short_s, long_s = map(min, zip(*turns, strict=True))
        figures[f"{PREFIX[name]}tokens_per_s"] = sequences * long / long_s
        figures[f"{PREFIX[name]}step_s"] = (long_s - short_s) / (long - short)
    for prefix in (PREFIX[name] for name in taken if name != "vllm" and "vllm" in taken):
        figures[f"{prefix}of_vllm"] = round(figures[f"{prefix}tokens_per_s"] / figures["vllm_tokens_per_s"], 4)
    return figures


def slopes(steps: Mapping[int, float]) -> dict[str, float]:
    """Seconds that a sequence adds to a step between each two neighbouring numbers of sequences."""
    pairs = itertools.pairwise(sorted(steps))
    return {f"{few}-{many}": (steps[many] - steps[few]) / (many - few) for few, many in pairs}


async def compare(starts: Mapping[str, Awaitable[dict[str, Side]]], sizes: list[int], device: str) -> bool:
    """Start both sides at once and tell the figures of all sizes; whether both sides could be measured."""
    began = time.perf_counter()
    started = await asyncio.gather(*starts.values(), return_exceptions=True)
    tell(decode={"start_s": round(time.perf_counter() - began, 1)})
    sides: dict[str, Side] = {}
    for name, side in zip(starts, started, strict=True):
        if isinstance(side, BaseException):
            tell(failed={f"decode by {name}": f"{type(side).__name__}: {side}"})
        else:
            sides |= side
    found: dict[int, dict[str, float]] = {}
    for sequences in sizes if sides else ():
        found[sequences] = await measured(sides, sequences, *TOKENS[device][1:])
        tell(decode={str(sequences): found[sequences]})
    steps = {side: {count: figures[f"{PREFIX[side]}step_s"] for count, figures in found.items()} for side in sides}
    tell(decode={"s_per_sequence": {side: slopes(by_count) for side, by_count in steps.items()}})
    return set(sides) == set(PREFIX)


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--device", type=click.Choice(["cuda", "cpu"]), required=True)
@click.option("--sizes", default="1,32,256,1024", show_default=True)
@click.option("--alone", is_flag=True, help="Be the process of vLLM alone.")
def main(model: Path, device: str, sizes: str, alone: bool) -> None:
    """Compare decoding; exit code 1 if one side could not be measured."""
    numbers = [int(size) for size in sizes.split(",")]
    config, vocabulary = engine_config(model, device, max(numbers), int(alone))
    if alone:
        serve_alone(config, vocabulary)
        return
    peer = [sys.executable, "-m", "benchmarks.gpu_check.decode_part", str(model), "--device", device, "--sizes", sizes]
    own = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    if device == "cuda":
        own["VLLM_USE_FLASHINFER_SAMPLER"] = "0"  # which pack.py leaves out
    else:
        own = environment(engine_config(model, device, 1, 1)[0])
    starts = {
        "vllm": start_alone([*peer, "--alone"], {**os.environ, **own}),
        "ours": start_engine(config, vocabulary),  # second: a start of Ray holds this process up for seconds
    }
    done = False
    try:
        done = asyncio.run(compare(starts, numbers, device))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        tell(failed={"decode": f"{type(error).__name__}: {error}"})
    # Engines take ten seconds to close in order; what is left of them ends with the part (plans_part.py).
    os._exit(0 if done else 1)


if __name__ == "__main__":
    run(main)
