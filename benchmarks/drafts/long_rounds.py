"""Seconds of long rounds over three epochs, with drafts of each kind and without, on engines that take turns."""

from __future__ import annotations

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
    """By method and epoch ("1", "2", ...): `seconds` of all rounds, and over those the seconds without drafts,
    `ratio`; and of ours `accepted`, tokens of drafts that a sample gets a step, and `by_source`.

    Engines take turns round by round, in an order that turns, too. Each draws its own samples.
    """
    seconds = {engine.method: {str(epoch + 1): 0.0 for epoch in range(EPOCHS)} for engine in engines}
    drafted: dict[str, dict[str, Any]] = {}
    turn = 0
    for epoch in range(EPOCHS):
        for part in parts(prompts, size):
            for engine in [*engines[turn % len(engines) :], *engines[: turn % len(engines)]]:
                seed = 1_000_003 * (turn + 1)
                done = await engine.decode(
                    part, samples, most_tokens, epoch=epoch, up_to_sequences=up_to, seed=seed
                )  # fmt: skip
                seconds[engine.method][str(epoch + 1)] += done.seconds
                if done.report is not None:
                    _add(drafted.setdefault(str(epoch + 1), {"steps": 0, "accepted": 0, "by_source": {}}), done)
            turn += 1
    plain = seconds.get("none", {})
    return {
        method: {
            number: {"seconds": round(took, 2), "ratio": round(plain[number] / took, 3) if plain else None}
            | (_figures(drafted[number]) if method == "history" else {})
            for number, took in by_epoch.items()
        }
        for method, by_epoch in seconds.items()
    }


def _add(total: dict[str, Any], done: Decoded) -> None:
    assert done.report is not None
    total["steps"] += done.report.sequence_steps
    total["accepted"] += sum(done.report.accepted_at)
    for source, tokens in done.report.by_source.items():
        total["by_source"][source] = total["by_source"].get(source, 0) + tokens


def _figures(total: Mapping[str, Any]) -> dict[str, Any]:
    steps = total["steps"]
    return {"accepted": round(total["accepted"] / steps, 3) if steps else 0.0, "by_source": total["by_source"]}
