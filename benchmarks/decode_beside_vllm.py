"""Does an engine of ours decode as fast as vLLM alone, and what do seeds cost? The same requests, one after the other:

    python -m benchmarks.decode_beside_vllm [--model FOLDER] [--sequences 1,32] [--tokens 128] [--repeats 5] [--json]

`vllm` is `vllm.LLM.generate` by the same options, without seeds, by the model runner that vLLM takes by itself; `ours`
an engine as `execute` has it, Ray and events included; `seeded` the same engine with a seed for each request. All hold
the weights at a time and take turns; the least of the repeats counts, in seconds a step (prefill included). `of_vllm`
is vLLM's step over ours: 1 as fast.

    {"1": {"vllm": …, "ours": …, "seeded": …, "of_vllm": …, "seeded_of_vllm": …}, "32": …}
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rlplan.executor.actors import ACTOR_OPTIONS, start_ray
from rlplan.executor.engines.engine_handle import EngineEvents, EngineHandle
from rlplan.executor.engines.messages import EngineConfig, Request
from rlplan.executor.engines.vllm_options import engine_arguments, environment, sampling_parameters
from rlplan.executor.supervision import Supervisor

from .entry import run

PROMPT_TOKENS = 16
KV_BYTES = {"cpu": 200_000_000, "cuda": 8 * 2**30}
WEIGHTS = "as they are"


class PlainVllm:
    """vLLM's own way to decode a list of requests, in an actor of its own."""

    def __init__(self, config: EngineConfig) -> None:
        from vllm import LLM

        self._llm = LLM(**engine_arguments(config))

    def decode(self, requests: Sequence[Request]) -> float:
        """Seconds that it takes."""
        from vllm.sampling_params import RequestOutputKind

        prompts: list[Any] = [{"prompt_token_ids": list(request.prompt_tokens)} for request in requests]
        parameters = [sampling_parameters(request) for request in requests]
        for each in parameters:
            each.output_kind = RequestOutputKind.FINAL_ONLY
        began = time.perf_counter()
        done = self._llm.generate(prompts, parameters, use_tqdm=False)
        seconds = time.perf_counter() - began
        assert [len(each.outputs[0].token_ids) for each in done] == [request.max_tokens for request in requests]
        return seconds


def requests(count: int, tokens: int, vocabulary: int, tag: str, seeded: bool) -> list[Request]:
    """As many requests with prompts of their own, each of which decodes so many tokens."""
    prompts = [tuple(3 + (7 * i + j) % (vocabulary - 3) for j in range(PROMPT_TOKENS)) for i in range(count)]
    return [
        Request(f"{tag}/{i}", prompt, tokens, ignore_eos=True, seed=i if seeded else None)
        for i, prompt in enumerate(prompts)
    ]


async def beside_vllm(
    model: Path, device: str, dtype: str, vocabulary: int, sequences: Sequence[int], tokens: int, repeats: int
) -> dict[str, dict[str, float]]:
    """By number of sequences: seconds a step of vLLM alone, of ours, and of ours with seeds, and how they compare.

    `model`: a folder in Hugging Face form, with `model.safetensors`. Ray runs.
    """
    import ray

    config = EngineConfig(
        "ours", str(model), dtype, 1, PROMPT_TOKENS + tokens, max(sequences), device, KV_BYTES[device],
        cores=(min(os.sched_getaffinity(0)),), fixed_cache=True,
    )  # fmt: skip
    news: asyncio.Queue[Any] = asyncio.Queue()
    ours = EngineHandle(config, news.put_nowait, Supervisor())
    env = {name: value for name, value in environment(config).items() if name != "VLLM_USE_V2_MODEL_RUNNER"}
    options = ACTOR_OPTIONS | {"runtime_env": {"env_vars": env}}
    remote: Any = ray.remote(PlainVllm)
    plain = remote.options(**options).remote(config.renamed("vllm"))

    async def by_vllm(asked: list[Request]) -> float:
        return float(await plain.decode.remote(asked))

    async def by_ours(asked: list[Request]) -> float:
        began, left = time.perf_counter(), len(asked)
        await ours.submit(asked, WEIGHTS)
        while left:
            told = await news.get()
            assert isinstance(told, EngineEvents), told
            left -= sum(event.name == "finished" for event in told.events)
        return time.perf_counter() - began

    ways = {"vllm": (by_vllm, False), "ours": (by_ours, False), "seeded": (by_ours, True)}
    found: dict[str, dict[str, float]] = {}
    try:
        await ours.start()
        await ours.load(str(model / "model.safetensors"), WEIGHTS, False)
        for count in sequences:
            took: dict[str, list[float]] = {way: [] for way in ways}
            for turn in range(repeats + 1):  # the first one warms up
                for way, (decode, seeded) in ways.items():
                    asked = requests(count, tokens, vocabulary, f"{count}.{turn}.{way}", seeded)
                    took[way].append(await decode(asked) / tokens)
            best = {way: min(each[1:]) for way, each in took.items()}
            found[str(count)] = best | {
                "of_vllm": best["vllm"] / best["ours"], "seeded_of_vllm": best["vllm"] / best["seeded"],
            }  # fmt: skip
    finally:
        await ours.close()
        ray.kill(plain)
    return found


def made_model(folder: Path, longest: int) -> Path:
    """A tiny model with random weights."""
    import torch

    from .gpu_check.random_policy import make_model, save_tokenizer
    from .gpu_check.shapes import TINY

    make_model(TINY, "cpu", torch.float32, longest).save_pretrained(folder)
    save_tokenizer(folder, TINY.vocab)
    return folder


@click.command()
@click.option("--model", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Else a tiny one is made.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--dtype", default="float32", show_default=True)
@click.option("--sequences", default="1,32", show_default=True, help="That decode at once.")
@click.option("--tokens", type=click.IntRange(min=2), default=128, show_default=True, help="Of each of them.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON line.")
def main(model: Path | None, device: str, dtype: str, sequences: str, tokens: int, repeats: int, as_json: bool) -> None:
    """Decode the same requests by vLLM alone and by an engine of ours."""
    counts = [int(count) for count in sequences.split(",")]
    start_ray()
    with tempfile.TemporaryDirectory() as folder:
        model = model or made_model(Path(folder), PROMPT_TOKENS + tokens)
        vocabulary = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        found = asyncio.run(beside_vllm(model, device, dtype, vocabulary, counts, tokens, repeats))
    if as_json:
        click.echo(json.dumps(found))
        return
    for count, one in found.items():
        click.echo(
            f"{count} at once: a step of vLLM alone {1e3 * one['vllm']:.2f} ms, ours {1e3 * one['ours']:.2f} ms "
            f"({one['of_vllm']:.2f} of vLLM's speed), with seeds {1e3 * one['seeded']:.2f} ms "
            f"({one['seeded_of_vllm']:.2f})"
        )


if __name__ == "__main__":
    run(main)
