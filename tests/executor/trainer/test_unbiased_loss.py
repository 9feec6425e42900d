"""What tail batching leaves of the gradient: rounds by the real schedule and machines, losses by the real weights.

The toy policy chooses between a short and a long answer by its first token, with one logit for each class of prompts;
long answers are mostly right. The gradient of the expected reward is known, and so is that of each aggregation's loss.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")

from rlplan.executor.trainer.advantages import group_advantages
from rlplan.executor.trainer.losses import AGGREGATIONS, token_weights
from rlplan.executor.trainer.trainer_config import Divisors
from rlplan.rounds.machines.outcome import TrainedGroup
from rlplan.rounds.round_spec import RoundSpec
from rlplan.rounds.schedule import Schedule

from ...rounds.driver import Sample, prompt_ids, steps

P, N, PROMPTS, CAP, CUTOFF = 6, 4, 26, 300, 60
LONG = {0: 0.08, 1: 0.35}  # probability of a long answer by class of prompt
SHORT_TOKENS, LONG_TOKENS = range(5, 41), range(150, 251)
RIGHT = {False: 0.3, True: 0.9}
CLASS = {prompt: number % 2 for number, prompt in enumerate(prompt_ids(PROMPTS))}

MEAN_TOKENS = {c: p * np.mean(LONG_TOKENS) + (1 - p) * np.mean(SHORT_TOKENS) for c, p in LONG.items()}
DIVISORS = Divisors(float(P * N), P * N * float(np.mean(list(MEAN_TOKENS.values()))), CAP)


def spec(mode: str) -> RoundSpec:
    return RoundSpec(
        mode=mode,  # type: ignore[arg-type]
        prompts_per_step=P,
        samples_per_prompt=N,
        max_tokens=CAP,
        short_prompts=P if mode in ("sync", "predict") else P + 3,
        short_samples=N + 2 if mode == "race" else N,
        cutoff_tokens=CUTOFF if mode == "exact" else None,
        copies=2 if mode == "exact" else 1,
        long_share=0.3 if mode == "predict" else 0.0,
    )


class Trained(NamedTuple):
    """A step: the kind of round, its groups, and those of them that the epochs in question issued."""

    kind: str
    groups: tuple[TrainedGroup, ...]
    counted: tuple[TrainedGroup, ...]


def trained(mode: str, epochs: int, seed: int = 1) -> list[Trained]:
    """Steps until each prompt of so many epochs is trained: a later one's fill the last rounds."""
    dice = random.Random(seed)
    drawn: dict[Sample, int] = {}

    def length(sample: Sample) -> int:
        if sample not in drawn:
            long = dice.random() < LONG[CLASS[sample.prompt]]
            drawn[sample] = dice.choice(LONG_TOKENS if long else SHORT_TOKENS)
        return drawn[sample]

    def reward(sample: Sample) -> float:
        return float(dice.random() < RIGHT[length(sample) > CUTOFF])

    found: list[Trained] = []
    for step in steps(Schedule(spec(mode), prompt_ids(PROMPTS), seed), length, reward, checked=False):
        groups = step.outcome.trained
        counted = tuple(group for group in groups if step.epochs[group.prompt] < epochs)
        found.append(Trained(step.run.machine.kind, groups, counted))
        if sum(len(each.counted) for each in found) == epochs * PROMPTS:
            return found
        assert len(found) < 3 * epochs * PROMPTS / P + 100, "a prompt waits without bound"
    raise AssertionError("a schedule has no end")


def known(aggregation: str, probability: float) -> float:
    """Expected gradient of one group's loss by the logit, with advantages r - mean: (n - 1)/n of n covariances."""

    def shape(lengths: range) -> float:
        per_token = {
            "token-mean": lambda t: 1 / DIVISORS.tokens,
            "seq-mean-token-mean": lambda t: 1 / (DIVISORS.samples * t),
            "seq-mean-token-sum-norm": lambda t: 1 / (DIVISORS.samples * CAP),
        }[aggregation]
        return float(np.mean([per_token(t) for t in lengths]))

    short, long = shape(SHORT_TOKENS), shape(LONG_TOKENS)
    p = probability
    mean_reward = p * RIGHT[True] + (1 - p) * RIGHT[False]
    both = p * (1 - p) * (RIGHT[True] * long - RIGHT[False] * short)
    return (N - 1) * (both - mean_reward * p * (1 - p) * (long - short))


@pytest.mark.parametrize("mode", ["exact", "defer", "race", "predict"])
def test_a_token_weighs_in_short_long_and_partial_rounds_what_it_weighs_in_synchronous_steps(mode: str) -> None:
    rounds = {way: trained(way, epochs=6) for way in (mode, "sync")}
    assert {each.kind for each in rounds[mode]} == {"short", "long"}
    for aggregation in AGGREGATIONS:
        found: dict[object, list[float]] = defaultdict(list)
        for way, steps_of in rounds.items():
            for kind, groups, _ in steps_of:
                lengths = [t for group in groups for t in group.tokens]
                weights = token_weights(aggregation, lengths, [True] * len(lengths), DIVISORS)
                # What a token is to weigh by its response's own length is taken out; the rest must be one number.
                own = [t if aggregation == "seq-mean-token-mean" else 1.0 for t in lengths]
                relative = [w * o for w, o in zip(weights, own, strict=True)]
                found["sync" if way == "sync" else kind, len(groups) < P] += relative
        means = [float(np.mean(values)) for values in found.values() if values]
        assert len(means) >= 3
        assert means == pytest.approx([means[0]] * len(means), rel=1e-12)


@pytest.mark.parametrize("mode", ["sync", "exact"])
def test_the_updates_of_a_cycle_sum_up_to_the_known_gradient_in_every_aggregation(mode: str) -> None:
    rounds = trained(mode, epochs=160)
    for aggregation in AGGREGATIONS:
        gradients: dict[int, list[float]] = {0: [], 1: []}
        own_counts: dict[int, list[float]] = {0: [], 1: []}
        for _, groups, counted in rounds:
            of_step = sum(sum(group.tokens) for group in groups)
            for group in counted:
                weights = token_weights(aggregation, group.tokens, [True] * N, DIVISORS)
                advantages = group_advantages("dr_grpo", group.rewards)
                number = CLASS[group.prompt]
                score = [float(t > CUTOFF) - LONG[number] for t in group.tokens]
                first = [a * s for a, s in zip(advantages, score, strict=True)]
                gradients[number].append(sum(w * f for w, f in zip(weights, first, strict=True)))
                own_counts[number].append(sum(first) / of_step)
        for number, probability in LONG.items():
            values, expected = np.array(gradients[number]), known(aggregation, probability)
            error = values.std() / np.sqrt(len(values))
            assert abs(values.mean() - expected) < 4 * error < 0.4 * abs(expected)
        if aggregation == "token-mean":
            # The test can tell: divided by each step's own tokens, exact is another gradient.
            shares = [np.mean(own_counts[c]) / known(aggregation, p) for c, p in LONG.items()]
            assert (min(shares) < 0.85) == (mode == "exact"), shares
