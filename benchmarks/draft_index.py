"""How large and how fast is the index that drafts come from?

    python -m benchmarks.draft_index [--tokens 1000000,10000000,100000000] [--json]

Responses are random walks over a vocabulary of 50,000 tokens, of 2,000 tokens each, 16 to a prompt, of which half
repeat parts of each other, as responses to one prompt do. All prompts are in memory at once. By the number of tokens:
`build_s`, seconds to order all suffixes on one core; `bytes_per_token`; `proposal_us`, mean microseconds to draft 4
tokens for a context of a prompt that is drawn at random, and `proposal_warm_us` for one prompt again and again.

    {"sizes": {"1000000": {"build_s": …, "bytes_per_token": …, "proposal_us": …, "proposal_warm_us": …}, …}}
"""

from __future__ import annotations

import json
import time
from typing import Any

import click
import numpy as np

from rlplan.executor.drafts.draft_chain import ChainRoom, draft_chain
from rlplan.executor.drafts.draft_messages import Tokens
from rlplan.executor.drafts.prompt_index import EMPTY, SuffixText, suffix_text
from rlplan.rounds.drafts.acceptance import CONTEXT, AcceptanceTable

from .entry import run

VOCABULARY, RESPONSE, SAMPLES = 50_000, 2_000, 16
PROPOSALS, DRAFT = 20_000, 4


def responses(rng: np.random.Generator) -> list[Tokens]:
    """The responses to one prompt: half of each is a part of the first one."""
    first = rng.integers(0, VOCABULARY, RESPONSE, dtype=np.int32)
    texts = [first]
    for _ in range(SAMPLES - 1):
        begin = int(rng.integers(0, RESPONSE // 2))
        own = rng.integers(0, VOCABULARY, RESPONSE // 2, dtype=np.int32)
        texts.append(np.concatenate((own, first[begin : begin + RESPONSE // 2])))
    return texts


def measure(tokens: int) -> dict[str, float]:
    """The figures of an index of so many tokens."""
    rng = np.random.default_rng(0)
    prompts = max(1, tokens // (RESPONSE * SAMPLES))
    indexes: list[SuffixText] = []
    build_s = 0.0
    for _ in range(prompts):
        texts = responses(rng)
        began = time.perf_counter()
        indexes.append(suffix_text(texts, [1.0] * SAMPLES))
        build_s += time.perf_counter() - began
    held = sum(index.nbytes for index in indexes)
    count = sum(len(index) for index in indexes)
    return {
        "build_s": round(build_s, 2),
        "bytes_per_token": round(held / count, 2),
        "proposal_us": round(_proposal_us(indexes, rng), 2),
        "proposal_warm_us": round(_proposal_us(indexes[:1], rng), 2),
    }


def _proposal_us(indexes: list[SuffixText], rng: np.random.Generator) -> float:
    table, room = AcceptanceTable(), ChainRoom.of(DRAFT)
    context = np.empty(CONTEXT + DRAFT, np.int32)
    seconds = 0.0
    draft_chain(EMPTY, EMPTY, context, CONTEXT, table.rates, DRAFT, 0.02, room)  # compiles, or reads what was compiled
    for number in rng.integers(0, len(indexes), PROPOSALS).tolist():
        index = indexes[number]
        begin = int(rng.integers(0, len(index) - CONTEXT))
        context[:CONTEXT] = index.tokens[begin : begin + CONTEXT]
        began = time.perf_counter()
        draft_chain(index, EMPTY, context, CONTEXT, table.rates, DRAFT, 0.02, room)
        seconds += time.perf_counter() - began
    return 1e6 * seconds / PROPOSALS


def _sizes(_context: Any, _option: Any, value: str) -> list[int]:
    try:
        return [int(size) for size in value.split(",")]
    except ValueError:
        raise click.BadParameter(f"{value}: write whole numbers with commas between") from None


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--tokens", default="1000000,10000000,100000000", show_default=True, callback=_sizes)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def main(tokens: list[int], as_json: bool) -> None:
    """Measure and print."""
    sizes = {str(size): measure(size) for size in tokens}
    if as_json:
        click.echo(json.dumps({"sizes": sizes}))
        return
    for size, figures in sizes.items():
        click.echo(f"{int(size):,} tokens: {figures['build_s']} s, {figures['bytes_per_token']} bytes a token, "
                   f"{figures['proposal_us']} us a proposal ({figures['proposal_warm_us']} warm)")  # fmt: skip


if __name__ == "__main__":
    run(main)
