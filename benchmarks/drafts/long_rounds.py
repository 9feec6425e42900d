"""Seconds of long rounds over three epochs, with drafts of each kind and without, on engines that take turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
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

    One of the engines is without drafts (`none`). Engines take turns round by round, in an order that turns, too. All
    draw with the same seeds.
    """
    done: dict[str, dict[str, list[Decoded]]] = {engine.method: {} for engine in engines}
    turn = 0
    for epoch in range(EPOCHS):
        for part in parts(prompts, size):
            for engine in [*engines[turn % len(engines) :], *engines[: turn % len(engines)]]:
                seed = 1_000_003 * (turn + 1)
                decoded = await engine.decode(
                    part, samples, most_tokens, epoch=epoch, up_to_sequences=up_to, seed=seed
                )  # fmt: skip
                done[engine.method].setdefault(str(epoch + 1), []).append(decoded)
            turn += 1
    plain = done["none"]
    return {
        method: {number: _figures(rounds, plain[number]) for number, rounds in by_epoch.items()}
        for method, by_epoch in done.items()
    }


def _figures(rounds: Sequence[Decoded], plain: Sequence[Decoded]) -> dict[str, Any]:
    """The figures of an epoch's rounds, beside the same rounds without drafts."""
    took, without = (sum(decoded.seconds for decoded in each) for each in (rounds, plain))
    pairs = list(zip(rounds, plain, strict=True))
    figures: dict[str, Any] = {
        "seconds": round(took, 2),
        "ratio": round(without / took, 3),
        "worst_round": round(min(other.seconds / one.seconds for one, other in pairs), 3),
    }
    reports = [decoded.report for decoded in rounds if decoded.report is not None]
    if not reports:
        return figures
    steps = sum(report.sequence_steps for report in reports)
    accepted = sum(sum(report.accepted_at) for report in reports)
    same = [a.tokens == b.tokens for one, other in pairs for a, b in zip(one.samples, other.samples, strict=True)]
    return figures | {
        "accepted": round(accepted / steps, 3) if steps else 0.0,
        "by_source": dict(sum((Counter(report.by_source) for report in reports), Counter())),
        "same": round(mean(same), 4),
    }
