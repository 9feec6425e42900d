"""Training samples: finished, scored responses in complete groups, and the share of them that each replica trains.

Shares are made where the groups are, at the driver or in a trainer of one process: a function of the set of samples and
of the plan's constants, so it does not matter who makes them. What travels to a rank is its replica's share alone, in
arrays: 4 bytes for a token, 4 for a log-probability.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .advantages import group_advantages, token_weights
from .packing import pack
from .trainer_config import TrainerConfig

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class TrainSample:
    """One response with its reward. What is given as lists is made arrays.

    Attributes:
        prompt_id: the prompt; samples of one prompt form a group.
        sample: number of the sample within its group.
        prompt_tokens: token ids of the prompt, at least one.
        response_tokens: token ids of the response, the end-of-sequence token included if one was sampled.
        logprobs: the engine's log-probability of each response token at the sampling temperature.
        reward: finite.
        truncated: the response was cut at the cap on tokens and did not end by itself.
    """

    prompt_id: str
    sample: int
    prompt_tokens: Ints
    response_tokens: Ints
    logprobs: Floats
    reward: float
    truncated: bool

    def __post_init__(self) -> None:
        for name, kind in (("prompt_tokens", np.int32), ("response_tokens", np.int32), ("logprobs", np.float32)):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=kind))

    @property
    def tokens(self) -> int:
        """Length of prompt and response."""
        return len(self.prompt_tokens) + len(self.response_tokens)


Groups = Sequence[Sequence[TrainSample]]


class MicroBatch(NamedTuple):
    """Samples that are trained in one forward, perhaps none: their values one after another.

    Attributes:
        tokens: [T], prompt and response of each.
        prompt_lengths, response_lengths: [n], of each; together T.
        logprobs: [R] by the engine, of all response tokens.
        advantages: [n], of each.
        weights: [n], of each of a sample's response tokens in the loss.
    """

    tokens: Ints
    prompt_lengths: Ints
    response_lengths: Ints
    logprobs: Floats
    advantages: Floats
    weights: Floats

    def sequences(self) -> list[tuple[Ints, Ints]]:
        """(prompt, response) of each sample."""
        lengths = np.stack([self.prompt_lengths, self.response_lengths], axis=1).ravel()
        parts = np.split(self.tokens, lengths.cumsum()[:-1]) if len(lengths) else []
        return list(zip(parts[::2], parts[1::2], strict=True))


class Share(NamedTuple):
    """What one replica trains of some groups of a step, and what is known of these groups as a whole.

    Attributes:
        watched: micro-batches without a gradient, which cost a forward: their samples have no advantage (all rewards of
            the group are equal) or no weight (truncated, and masked); they are looked at for the metrics.
        learning: micro-batches with one. Of both there are equally many on every replica.
        prompts: of all groups.
        samples, tokens: of all groups.
        rewards: their sum over all groups.
    """

    watched: list[MicroBatch]
    learning: list[MicroBatch]
    prompts: list[str]
    samples: int
    tokens: int
    rewards: float


def shares(
    groups: Groups, config: TrainerConfig, budget: int, pairs: float, replicas: Collection[int] | None = None
) -> list[Share]:
    """Each replica's share of complete groups, which come in any order.

    Args:
        budget: tokens of a micro-batch.
        pairs: costs of a pair of tokens (`packing.pair_share`).
        replicas: those that share the groups, by number; None: all. The others' micro-batches are empty.
    """
    samples, advantages, weights = weighed_samples(groups, config)
    takers = sorted(range(config.dp) if replicas is None else replicas)

    def dealt(chosen: list[int]) -> list[list[MicroBatch]]:
        packed = pack([samples[i].tokens for i in chosen], budget, len(takers), pairs)
        found = [[NOTHING] * len(packed[0]) for _ in range(config.dp)]
        for taker, batches in zip(takers, packed, strict=True):
            for number, places in enumerate(batches):
                batch = [chosen[place] for place in places]
                found[taker][number] = _micro_batch(
                    [samples[i] for i in batch], [advantages[i] for i in batch], [weights[i] for i in batch]
                )
        return found

    learns = [advantages[i] != 0.0 and weights[i] != 0.0 for i in range(len(samples))]
    parts = zip(*(dealt([i for i in range(len(samples)) if learns[i] is kind]) for kind in (False, True)), strict=True)
    prompts = list(dict.fromkeys(sample.prompt_id for sample in samples))
    tokens, rewards = sum(sample.tokens for sample in samples), sum(sample.reward for sample in samples)
    return [Share(watched, learning, prompts, len(samples), tokens, rewards) for watched, learning in parts]


def weighed_samples(groups: Groups, config: TrainerConfig) -> tuple[list[TrainSample], list[float], list[float]]:
    """All samples in their canonical order, with advantage and token weight of each."""
    algorithm, samples, advantages = config.algorithm, list[TrainSample](), list[float]()
    for group in sorted_groups(groups, config.samples_per_prompt):
        samples.extend(group)
        advantages.extend(group_advantages(algorithm.name, [s.reward for s in group]))
    in_loss = [not (s.truncated and algorithm.mask_truncated) for s in samples]
    lengths = [len(s.response_tokens) for s in samples]
    return samples, advantages, token_weights(algorithm.loss_aggregation, lengths, in_loss, config.divisors)


def _micro_batch(samples: list[TrainSample], advantages: list[float], weights: list[float]) -> MicroBatch:
    tokens = [part for s in samples for part in (s.prompt_tokens, s.response_tokens)]
    return MicroBatch(
        np.concatenate([np.zeros(0, np.int32), *tokens]),
        np.array([len(s.prompt_tokens) for s in samples], dtype=np.int32),
        np.array([len(s.response_tokens) for s in samples], dtype=np.int32),
        np.concatenate([np.zeros(0, np.float32), *(s.logprobs for s in samples)]),
        np.array(advantages, dtype=np.float32),
        np.array(weights, dtype=np.float32),
    )


NOTHING = _micro_batch([], [], [])


def sorted_groups(groups: Groups, samples_per_prompt: int) -> list[list[TrainSample]]:
    """The groups by prompt id, each by sample number: the order in which the update sees them.

    Completion order ends here; everything after it is a function of the set of samples.
    Asserts that every group is complete (`samples_per_prompt` different samples of one prompt), that no prompt comes
    twice, and that each response token has a log-probability.
    """
    result = sorted((sorted(group, key=lambda s: s.sample) for group in groups), key=lambda group: group[0].prompt_id)
    prompts = [group[0].prompt_id for group in result]
    assert len(set(prompts)) == len(prompts), f"a prompt comes twice in one step: {prompts}"
    for group in result:
        name = group[0].prompt_id
        assert {s.prompt_id for s in group} == {name}, f"the group of {name} holds samples of other prompts"
        assert len({s.sample for s in group}) == len(group) == samples_per_prompt, (
            f"the group of {name} has samples {[s.sample for s in group]}, not {samples_per_prompt} different ones"
        )
        for s in group:
            assert len(s.prompt_tokens), f"{name}/{s.sample} has no prompt"
            assert len(s.logprobs) == len(s.response_tokens), (
                f"{name}/{s.sample}: {len(s.response_tokens)} tokens, {len(s.logprobs)} log-probabilities"
            )
            assert math.isfinite(s.reward), f"{name}/{s.sample} has reward {s.reward}"
    return result
