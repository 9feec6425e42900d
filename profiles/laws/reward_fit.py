"""The distribution of scoring seconds, from samples that were scored under the longest deadline."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..phase_schema import MOST_EXECUTIONS, RewardExecutions

SCATTER_FROM_S = 0.5
"""Right answers of fewer seconds are not asked how they differ: starting a process differs as much."""

MOST_SCATTER = 1e6
"""Most that right answers of a prompt are said to differ, as the profile's schema has it."""


class ScoredSample(NamedTuple):
    """A sample, its reward (above 0: a right answer) and the seconds that this took a worker. None: not known."""

    prompt: str | None
    reward: float | None
    seconds: float


def fit_executions(samples: Iterable[ScoredSample]) -> RewardExecutions | None:
    """The executions of planner/costs/reward_costs.py; None if no answer was right, or none was wrong.

    A prompt counts as unsolved if none of its samples was right; the fewer samples it had, the more such there are. Of
    a solved prompt the slowest right answer counts, as it does for its deadline. If a sample's prompt is not known, it
    is not known how many are unsolved either.
    """
    by_prompt: dict[str | int, list[ScoredSample]] = defaultdict(list)
    for place, sample in enumerate(samples):
        by_prompt[place if sample.prompt is None else sample.prompt].append(sample)
    right = {prompt: [s.seconds for s in group if is_right(s)] for prompt, group in by_prompt.items()}
    wrong_s = [s.seconds for group in by_prompt.values() for s in group if not is_right(s)]
    solved = [prompt for prompt, seconds in right.items() if seconds]
    if not solved or not wrong_s:
        return None
    grouped = all(isinstance(prompt, str) for prompt in by_prompt)
    answers = sum(len(by_prompt[prompt]) for prompt in (solved if grouped else by_prompt))
    return RewardExecutions(
        correct_s=equally_likely([max(right[prompt]) for prompt in solved]),
        wrong_s=equally_likely(wrong_s),
        correct=sum(len(right[prompt]) for prompt in solved) / answers,
        unsolved=1.0 - len(solved) / len(by_prompt) if grouped else None,
        scatter=max(
            (
                min(MOST_SCATTER, max(times) / max(min(times), 1e-3))
                for times in right.values()
                if len(times) > 1 and _slow(times)
            ),
            default=None,
        ),
    )


def is_right(sample: ScoredSample) -> bool:
    """Whether a sample is known to be a right answer."""
    return sample.reward is not None and sample.reward > 0


def _slow(seconds: Sequence[float]) -> bool:
    return max(seconds) >= SCATTER_FROM_S


def equally_likely(values: Sequence[float]) -> tuple[float, ...]:
    """Up to `MOST_EXECUTIONS` ascending values that stand for all: means of equal shares of the sorted ones.

    A mean lies between the least and the largest value of its share, which rounding may leave by the last bit: so equal
    values have an equal mean, and means ascend.
    """
    ranked, count = sorted(values), min(MOST_EXECUTIONS, len(values))
    cuts = [round(i * len(ranked) / count) for i in range(count + 1)]
    return tuple(
        min(max(math.fsum(ranked[a:b]) / (b - a), ranked[a]), ranked[b - 1]) for a, b in itertools.pairwise(cuts)
    )
