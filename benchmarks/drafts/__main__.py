"""What do drafts from history save, on the demo's policy as it is, and are they exact?

    python -m benchmarks.drafts [--parts epochs,short,second,exact,stock] [--suffix-folder FOLDER] [--json]

All parts are real: vLLM engines on one core that take turns round by round. All draw with the same seeds, except for
`p_values`.

- `epochs`: long rounds (8 prompts that have one key, 4 samples each, so that most are long: what one of the demo's two
  engines decodes of a round), three epochs of 64 prompts: seconds without drafts over those with (`ratio`), by epoch;
  `worst_round`: the least ratio of a round; `accepted`: tokens of drafts that a sample gets a step; `by_source`: of
  these, where they came from; `same`: the share of samples whose tokens are those without drafts. The policy does not
  change between epochs.
- `short`: the same for rounds of the demo's data as they come, of which most are short.
- `second_example`: the same for a policy with long answers (long_example.py says how it is made).
- `stock_suffix`, `ngram`: vLLM's own methods in the same rounds as `epochs`, ratio by epoch. Their verification on CPUs
  is mended as ours is. The package of the first is installed into a folder of its own.
- `identical`: whether greedy responses to all of the demo's prompts are the same tokens with drafts as without;
  `greedy` counts them.
- `p_values`: of 20,000 samples with drafts against as many without: what follows a token of each kind, lengths, rewards
  (chi-square; equal at the 1 % level if all are above 0.01, which was fixed before).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rlplan.executor.example.write import write_example
from rlplan.executor.processes.actors import start_ray
from rlplan.executor.rewards.keyhunt import score

from ..entry import as_json_option, run, tell
from . import long_example
from .drafting_engine import LEVEL, REQUIREMENT, DraftingEngine, Prompts, Sample, epochs, identical, install, sampled

PARTS = ("epochs", "short", "second", "exact", "stock")
LONG_KEYS, LONG_PROMPTS, ROUND, SAMPLES = 1, 64, 8, 4
MOST_TOKENS, LONGEST = 1024, 1120
SECOND_ROUND = 16
UP_TO = 64
"""Batches up to which drafts are tried; what pays is up to the engine's account."""


def read_prompts(folder: Path) -> tuple[Prompts, dict[str, str]]:
    """Prompts of an example by id, as tokens and as texts."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    rows = [json.loads(line) for line in (folder / "data.jsonl").read_text(encoding="utf-8").splitlines()]
    texts = {row["id"]: row["prompt"] for row in rows}
    return {name: tuple(tokenizer(text)["input_ids"]) for name, text in texts.items()}, texts


async def demo(folder: Path, parts: Sequence[str], suffix_folder: str | None) -> dict[str, Any]:
    """The parts that the demo's policy is asked for."""
    prompts, texts = read_prompts(folder)
    long = {name: tokens for name, tokens in prompts.items() if len(texts[name].split()) == 2 * LONG_KEYS + 2}
    long = dict(list(long.items())[:LONG_PROMPTS])
    stock = ["ngram", *(["suffix"] if suffix_folder else [])] if "stock" in parts else []
    methods = ["none", "history", *stock]
    engines = [DraftingEngine(method, folder / "model", LONGEST, 64, suffix_folder) for method in methods]
    result: dict[str, Any] = {}
    try:
        await asyncio.gather(*(engine.start() for engine in engines))
        plain, drafting = engines[:2]
        if "epochs" in parts or stock:
            by_method = await epochs(engines, long, ROUND, SAMPLES, MOST_TOKENS, UP_TO)
            result["epochs"], result["plain"] = by_method["history"], by_method["none"]
            result |= {"stock_suffix": by_method.get("suffix"), "ngram": by_method.get("ngram")}
        if "short" in parts:
            some = dict(list(prompts.items())[: 8 * ROUND])
            result["short"] = (await epochs([plain, drafting], some, ROUND, SAMPLES, MOST_TOKENS, UP_TO))["history"]
        if "exact" in parts:
            result["greedy"] = await identical(plain, drafting, prompts)
            result["identical"] = result["greedy"]["different"] == 0

            def reward(sample: Sample) -> float:
                return score(texts[sample.prompt], _text(folder, sample.tokens))

            result["sampled"] = await sampled(plain, drafting, prompts, reward)
            result["p_values"] = result["sampled"].pop("p_values")
            result["same_distribution"] = min(result["p_values"].values()) > LEVEL
    finally:
        for engine in engines:
            await engine.close()
    return result


_WORDS: dict[int, str] = {}


def _text(folder: Path, tokens: Sequence[int]) -> str:
    # The embedding has a row more than there are words, which the policy draws now and then.
    if not _WORDS:
        vocabulary = json.loads((folder / "model" / "tokenizer.json").read_text())["model"]["vocab"]
        _WORDS.update({token: word for word, token in vocabulary.items()})
    return " ".join(_WORDS.get(token, "") for token in tokens)


async def second(folder: Path) -> dict[str, Any]:
    """Three epochs of the second example, a round each."""
    prompts, _ = read_prompts(folder)
    engines = [
        DraftingEngine(method, folder / "model", long_example.MOST_TOKENS + 16, 64) for method in ("none", "history")
    ]
    try:
        await asyncio.gather(*(engine.start() for engine in engines))
        return (await epochs(engines, prompts, SECOND_ROUND, 1, long_example.MOST_TOKENS, UP_TO))["history"]
    finally:
        for engine in engines:
            await engine.close()


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--parts", default=",".join(PARTS), show_default=True, help="Which, with commas between.")
@click.option(
    "--suffix-folder", type=click.Path(path_type=Path), help="Folder with the package of vLLM's suffix method."
)
@as_json_option
def main(parts: str, suffix_folder: Path | None, as_json: bool) -> None:
    """Measure and print."""
    chosen = parts.split(",")
    if unknown := sorted({*chosen} - {*PARTS}):
        raise click.BadParameter(f"{', '.join(unknown)}: not one of {', '.join(PARTS)}", param_hint="--parts")
    with tempfile.TemporaryDirectory(prefix="dr") as folder:
        result = measure(Path(folder), chosen, suffix_folder)
    tell(result, as_json)


def measure(folder: Path, parts: Sequence[str], suffix_folder: Path | None) -> Mapping[str, Any]:
    """All figures; examples and packages are made below `folder`."""
    why = None
    if "stock" in parts and suffix_folder is None:
        suffix_folder = folder / "suffix"
        click.echo(f"installing {REQUIREMENT}", err=True)
        why = install(suffix_folder)
    write_example(folder / "demo")
    start_ray()
    click.echo("the demo's policy", err=True)
    result = asyncio.run(demo(folder / "demo", parts, None if why or suffix_folder is None else str(suffix_folder)))
    if why is not None:
        result["stock_suffix"] = {"not_measured": why}
    if "second" in parts:
        click.echo("a policy with long answers", err=True)
        command = [sys.executable, "-m", "benchmarks.drafts.long_example", str(folder / "long")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        result["second_example"] = asyncio.run(second(folder / "long"))
    return result


if __name__ == "__main__":
    run(main)
