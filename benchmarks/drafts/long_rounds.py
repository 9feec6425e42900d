"""Seconds of long rounds over three epochs, with drafts of each kind and without, on engines that take turns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .drafting_engine import Decoded, DraftingEngine

Prompts = Mapping[str, tuple[int, ...]]
EPOCHS = 3


def parts(prompts: Prompts, size: int) -> Iterator[Prompts]:
    """The prompts in rounds of `size`."""
    names = list(prompts)
    for begin in range(0, len(names), size):
        yield {name: prompts[name] for name in names[begin : begin + size]}


async def epochs(
    engines: Sequence[DraftingEngine], prompts: Prompts, size: int, samples: int, most_tokens: int, up_to: int
) -> dict[str, Any]:
    """By method and epoch ("1", "2", ...): `seconds` of all rounds, and over those the seconds without drafts, `ratio`,
    and the least of a round, `worst_round`; and of ours `accepted`, tokens of drafts that a sample gets a step,
    `by_source`, and `same`, the share of samples whose tokens are those without drafts.

    Engines take turns round by round, in an order that turns, too. All draw with the same seeds.
    """
    seconds = {engine.method: {str(epoch + 1): 0.0 for epoch in range(EPOCHS)} for engine in engines}
    drafted: dict[str, dict[str, Any]] = {}
    worst = {engine.method: {str(epoch + 1): math.inf for epoch in range(EPOCHS)} for engine in engines}
    turn = 0
    for epoch in range(EPOCHS):
        for part in parts(prompts, size):
            rounds = {}
            for engine in [*engines[turn % len(engines) :], *engines[: turn % len(engines)]]:
                seed = 1_000_003 * (turn + 1)
                done = await engine.decode(
                    part, samples, most_tokens, epoch=epoch, up_to_sequences=up_to, seed=seed
                )  # fmt: skip
                rounds[engine.method] = done
            number = str(epoch + 1)
            for method, done in rounds.items():
                seconds[method][number] += done.seconds
                if "none" in rounds:
                    worst[method][number] = min(worst[method][number], rounds["none"].seconds / done.seconds)
                if done.report is not None:
                    total = {"steps": 0, "accepted": 0, "by_source": {}, "samples": 0, "same": 0}
                    _add(drafted.setdefault(number, total), done, rounds.get("none"))
            turn += 1
    plain = seconds.get("none", {})
    return {
        method: {
            number: {
                "seconds": round(took, 2),
                "ratio": round(plain[number] / took, 3) if plain else None,
                "worst_round": round(worst[method][number], 3) if plain else None,
            }
            | (_figures(drafted[number]) if method == "history" else {})
            for number, took in by_epoch.items()
        }
        for method, by_epoch in seconds.items()
    }


def _add(total: dict[str, Any], done: Decoded, plain: Decoded | None) -> None:
    assert done.report is not None
    if plain is not None:
        total["samples"] += len(done.samples)
        total["same"] += sum(a.tokens == b.tokens for a, b in zip(done.samples, plain.samples, strict=True))
    total["steps"] += done.report.sequence_steps
    total["accepted"] += sum(done.report.accepted_at)
    for source, tokens in done.report.by_source.items():
        total["by_source"][source] = total["by_source"].get(source, 0) + tokens


def _figures(total: Mapping[str, Any]) -> dict[str, Any]:
    steps = total["steps"]
    return {
        "accepted": round(total["accepted"] / steps, 3) if steps else 0.0,
        "by_source": total["by_source"],
        "same": round(total["same"] / total["samples"], 4) if total["samples"] else None,
    }
