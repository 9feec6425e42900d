"""Are responses with drafts those of the policy? Greedy ones token by token, sampled ones by tests that were fixed
before: at the 1 % level, on what follows a token of each kind, on lengths, and on rewards."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from rlplan.executor.example import task

from .drafting_engine import DraftingEngine, Sample
from .long_rounds import Prompts, parts
from .two_samples import chi_square_p, length_classes, transitions

GREEDY_TOKENS = 128
"""Of a greedy response at most: one that never finds a key would repeat itself up to the cap."""

SAMPLED_TOKENS = 128
SAMPLED_PROMPTS, SAMPLES_EACH = 500, 40
LEVEL = 0.01
ROUND = 64


async def identical(plain: DraftingEngine, drafting: DraftingEngine, prompts: Prompts) -> dict[str, Any]:
    """Greedy responses to all prompts, without drafts, and twice with drafts: the second time from the first."""
    differ = accepted = 0
    for epoch, part in itertools.product(range(2), parts(prompts, ROUND)):
        one, two = [
            await engine.decode(part, 1, GREEDY_TOKENS, epoch=epoch, temperature=0.0) for engine in (plain, drafting)
        ]
        differ += sum(a.tokens != b.tokens for a, b in zip(one.samples, two.samples, strict=True))
        accepted += 0 if two.report is None else sum(two.report.accepted_at)
    return {"responses": 2 * len(prompts), "different": differ, "accepted": accepted}


async def sampled(
    plain: DraftingEngine, drafting: DraftingEngine, prompts: Prompts, reward: Callable[[Sample], float]
) -> dict[str, Any]:
    """20,000 responses of each engine to the same prompts, and the p-values of the tests."""
    chosen = dict(itertools.islice(prompts.items(), SAMPLED_PROMPTS))
    drawn: dict[str, list[Sample]] = {plain.method: [], drafting.method: []}
    accepted = 0
    for number, part in enumerate(parts(chosen, 4)):
        for engine in (plain, drafting):
            seed = 10**9 * (engine is drafting) + 1000 * number
            done = await engine.decode(part, SAMPLES_EACH, SAMPLED_TOKENS, epoch=number, up_to_sequences=256, seed=seed)
            drawn[engine.method] += done.samples
            accepted += 0 if done.report is None else sum(done.report.accepted_at)
    one, two = drawn.values()
    kinds = _kinds()
    p_values = {
        "next_token": chi_square_p(*(transitions((each.tokens for each in arm), kinds) for arm in (one, two))),
        "length": chi_square_p(*(length_classes(len(each.tokens) for each in arm) for arm in (one, two))),
        "reward": chi_square_p(*(Counter(reward(each) for each in arm) for arm in (one, two))),
    }
    return {
        "samples": [len(one), len(two)],
        "accepted": accepted,
        "p_values": {name: round(value, 4) for name, value in p_values.items()},
    }


def _kinds() -> Mapping[int, str]:
    """The kinds of tokens of the demo's task."""
    symbols = {task.TOKEN[word]: "symbol" for word in task.SYMBOL_WORDS}
    values = {task.TOKEN[word]: "value" for word in task.VALUE_WORDS}
    return {**symbols, **values, task.TOKEN[task.MISS]: "miss", task.TOKEN[task.HIT]: "hit"}
