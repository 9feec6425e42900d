"""Training samples: finished, scored responses in complete groups, and the share of them that each replica trains.

Shares are made where the groups are, at the driver or in a trainer of one process: a function of the set of samples and
of the plan's constants, so it does not matter who makes them. What travels to a rank is its replica's share alone, in
arrays: 4 bytes for a token, 4 for a log-probability.

An advantage says how much better a response was than the others to its prompt. All are zero for a group whose rewards
are all equal, exactly and not to rounding: such a group says nothing about which response to prefer. All sum to zero
within a group.

Packing decides which sequences share a micro-batch, and on which replica. Tokens bound memory, operations take time: a
long sequence's attention makes it cost more than its tokens. So tokens limit a micro-batch, and micro-batches are
balanced by operations. Invariants of `pack`:
- each sequence is in exactly one micro-batch of one replica;
- a micro-batch has at most `budget` tokens, unless it is a single sequence that is longer than that;
- all replicas have the same number of micro-batches (FSDP's collectives are entered by all or none), some perhaps
  empty;
- the result is a function of the lengths in their given order: no randomness, no hash order.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...plans.schema.algorithm import Algorithm
from .trainer_config import Divisors, TrainerConfig

STD_EPSILON = 1e-4  # added to the standard deviation, as TRL does: near-equal rewards must not become huge advantages


def grpo(rewards: Sequence[float]) -> list[float]:
    """(r - mean) / (std + 1e-4) with the sample standard deviation (n - 1), as in TRL and verl. arXiv 2402.03300."""
    centred = dr_grpo(rewards)
    std = math.sqrt(math.fsum(c * c for c in centred) / (len(rewards) - 1))
    return [c / (std + STD_EPSILON) for c in centred]


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """r - mean: no division by the spread, which favours prompts that are too easy or too hard. arXiv 2503.20783."""
    mean = math.fsum(rewards) / len(rewards)
    return [r - mean for r in rewards]


def rloo(rewards: Sequence[float]) -> list[float]:
    """r - mean of the other rewards (leave one out), an unbiased baseline. arXiv 2402.14740."""
    total, others = math.fsum(rewards), len(rewards) - 1
    return [r - (total - r) / others for r in rewards]


ADVANTAGES: dict[str, Callable[[Sequence[float]], list[float]]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "gspo": grpo,
    "cispo": grpo,
    # Here to a factor, which is known when the whole step is: `step_factor`.
    "reinforce_plus_plus_baseline": dr_grpo,
}


def group_advantages(algorithm: str, rewards: Sequence[float]) -> list[float]:
    """Advantages of one complete group, in the order of `rewards` (at least two, finite).

    Truncated samples belong to the group and count in its statistics, whether or not they are in the loss.
    Raises ValueError for an unknown algorithm.
    """
    if algorithm not in ADVANTAGES:
        raise ValueError(f"unknown algorithm {algorithm!r}; known are {', '.join(ADVANTAGES)}")
    assert len(rewards) >= 2, "a group of one has nothing to compare with"
    assert all(math.isfinite(r) for r in rewards), f"rewards must be finite: {rewards}"
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)  # the formulas would leave rounding errors, which grpo scales up
    return ADVANTAGES[algorithm](rewards)


def step_factor(algorithm: Algorithm, divisors: Divisors, samples: int, squares: float, tokens: int) -> float:
    """What the gradients of a whole step are multiplied by, where the algorithm divides by what the step itself has.

    Such a divisor is one number for the step, known when all of its groups are, which may come one after another; the
    clipped loss is homogeneous in its advantages, so that dividing at the end is the same as dividing before.

    `reinforce_plus_plus_baseline`: 1 / (std + 1e-4) of the step's advantages r - mean over the group, from their sum of
    `squares`: their mean is 0, so that subtracting it does nothing (arXiv 2501.03262, section 3; a response has one
    advantage here, where verl and OpenRLHF count it once for each of its tokens). `step-token-mean`: T of `divisors`,
    by which token weights were divided, over the step's own `tokens` in the loss. Else 1.
    """
    factor = 1.0
    if algorithm.name == "reinforce_plus_plus_baseline":
        factor /= math.sqrt(squares / (samples - 1)) + STD_EPSILON
    if algorithm.loss_aggregation == "step-token-mean":
        factor *= divisors.tokens / max(tokens, 1)
    return factor


AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "step-token-mean")


def token_weights(aggregation: str, lengths: Sequence[int], in_loss: Sequence[bool], divisors: Divisors) -> list[float]:
    """Weight of each token of each response of a step.

    With N samples in the loss of a synchronous step and their T tokens, as the plan states them (`divisors`):
    `token-mean` (DAPO): 1/T, long responses count more; `seq-mean-token-mean` (GRPO): 1/(N * own length);
    `seq-mean-token-sum-norm` (Dr. GRPO): 1/(N * max_response_tokens); `step-token-mean`: as `token-mean`, until
    `step_factor` is known.
    So a response's weights depend on that response alone. Those that are not in the loss (`mask_truncated`), and empty
    ones, have weight 0. Raises ValueError for an unknown aggregation, or a divisor that is not positive.
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"unknown loss_aggregation {aggregation!r}; known are {', '.join(AGGREGATIONS)}")
    if not all(divisor > 0 for divisor in divisors):
        raise ValueError(f"the loss cannot be divided by {divisors}")
    counted = [length if included else 0 for length, included in zip(lengths, in_loss, strict=True)]
    if aggregation in ("token-mean", "step-token-mean"):
        return [1.0 / divisors.tokens if length else 0.0 for length in counted]
    if aggregation == "seq-mean-token-mean":
        return [1.0 / (divisors.samples * length) if length else 0.0 for length in counted]
    return [1.0 / (divisors.samples * divisors.max_response_tokens) if length else 0.0 for length in counted]


def pair_share(config: Any) -> float:
    """Operations of a pair of tokens over those of a token, in a transformer of this Hugging Face `config`.

    A token takes 2 operations a parameter of the layers; a sequence of L tokens has L^2 / 2 causal pairs, each of 4
    operations per head and head dimension in each layer (Kaplan et al., arXiv 2001.08361, table 1).
    """
    heads, hidden = config.num_attention_heads, config.hidden_size
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    key_values = getattr(config, "num_key_value_heads", None) or heads
    experts = getattr(config, "num_experts_per_tok", None)
    width = experts * config.moe_intermediate_size if experts else config.intermediate_size
    layer = hidden * head_dim * (2 * heads + 2 * key_values) + 3 * hidden * width
    return float(2 * heads * head_dim / (2 * layer))


def pack(lengths: Sequence[int], budget: int, replicas: int = 1, pairs: float = 0.0) -> list[list[list[int]]]:
    """Indices of `lengths` by replica and micro-batch; `lengths` and `budget` in tokens.

    A sequence of L tokens costs L + pairs L^2 (`pair_share`). Each goes, the costliest first, to the micro-batch of
    least cost that has room (LPT, which without the token limit is within 4/3 of the best balance); the number of
    micro-batches is the smallest for which all fit and which all replicas can share evenly. Micro-batches of like cost
    run side by side, so that replicas wait for each other least.
    """
    assert budget > 0 and replicas > 0 and all(length > 0 for length in lengths)
    longest_first = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    costs = [length + pairs * length * length for length in lengths]
    oversized: list[list[int]] = [[i] for i in longest_first if lengths[i] > budget]
    rest = longest_first[len(oversized) :]
    count = -(-sum(lengths[i] for i in rest) // budget)
    while True:  # ends at the latest when every sequence has a micro-batch of its own
        count += -(count + len(oversized)) % replicas
        shared = _balanced(lengths, costs, rest, count, budget)
        if shared is not None:
            break
        count += 1
    batches = sorted(oversized + shared, key=lambda batch: (-sum(costs[i] for i in batch), batch))
    # Dealt back and forth (0 1 1 0 0 1 ...), so that no replica always gets the larger one of a pair.
    dealt: list[list[list[int]]] = [[] for _ in range(replicas)]
    for start in range(0, len(batches), replicas):
        row = batches[start : start + replicas]
        for replica, batch in enumerate(row if (start // replicas) % 2 == 0 else reversed(row)):
            dealt[replica].append(sorted(batch))
    return dealt


def _balanced(
    lengths: Sequence[int], costs: Sequence[float], longest_first: Sequence[int], count: int, budget: int
) -> list[list[int]] | None:
    """The sequences in `count` micro-batches of at most `budget` tokens; None if this way finds no room for one."""
    batches: list[list[int]] = [[] for _ in range(count)]
    tokens = [0] * count
    heap = [(0.0, number) for number in range(count)]
    for i in longest_first:
        full = []
        while heap and tokens[heap[0][1]] + lengths[i] > budget:
            full.append(heapq.heappop(heap))
        if not heap:
            return None
        cost, number = heapq.heappop(heap)
        batches[number].append(i)
        tokens[number] += lengths[i]
        for entry in [*full, (cost + costs[i], number)]:
            heapq.heappush(heap, entry)
    return batches


Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@dataclass(slots=True, eq=False)
class TrainSample:
    """One response, as a trainer takes it. What is given as lists is made arrays.

    Attributes:
        prompt_id: the prompt; samples of one prompt form a group.
        sample: number of the sample within its group.
        prompt_tokens: token ids of the prompt, at least one.
        response_tokens: token ids of the response, the end-of-sequence token included if one was sampled.
        logprobs: the engine's log-probability of each response token at the sampling temperature.
        reward: finite; None until it is scored.
        truncated: the response was cut at the cap on tokens and did not end by itself.
    """

    prompt_id: str
    sample: int
    prompt_tokens: Ints
    response_tokens: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    logprobs: Floats = field(default_factory=lambda: np.empty(0, np.float32))
    reward: float | None = None
    truncated: bool = False

    def __post_init__(self) -> None:
        for name, kind in (("prompt_tokens", np.int32), ("response_tokens", np.int32), ("logprobs", np.float32)):
            setattr(self, name, np.asarray(getattr(self, name), dtype=kind))

    @property
    def tokens(self) -> int:
        """Length of prompt and response."""
        return len(self.prompt_tokens) + len(self.response_tokens)

    @property
    def known_reward(self) -> float:
        """The reward of a sample that is trained."""
        assert self.reward is not None, f"{self.prompt_id}/{self.sample} is not scored"
        return self.reward


Groups = Sequence[Sequence[TrainSample]]


class MicroBatch(NamedTuple):
    """Samples that are trained in one forward, perhaps none: their values one after another.

    Attributes:
        tokens: [T], prompt and response of each.
        prompt_lengths, response_lengths: [n], of each; together T.
        logprobs: [R] by the engine, of all response tokens.
        advantages: [n], of each.
        weights: [n], of each of a sample's response tokens in the loss.
        places: [n], of each among the samples of the share (`ReplicaShare.all_rewards`).
    """

    tokens: Ints
    prompt_lengths: Ints
    response_lengths: Ints
    logprobs: Floats
    advantages: Floats
    weights: Floats
    places: Ints

    def sequences(self) -> list[tuple[Ints, Ints]]:
        """(prompt, response) of each sample."""
        lengths = np.stack([self.prompt_lengths, self.response_lengths], axis=1).ravel()
        parts = np.split(self.tokens, lengths.cumsum()[:-1]) if len(lengths) else []
        return list(zip(parts[::2], parts[1::2], strict=True))


class ReplicaShare(NamedTuple):
    """What one replica trains of some groups of a step, and what is known of these groups as a whole.

    Attributes:
        watched: micro-batches without a gradient, which cost a forward: their samples have no advantage (all rewards of
            the group are equal; with an entropy bonus or a KL these learn) or no weight (truncated, and masked); they
            are looked at for the metrics.
        learning: micro-batches with one. Of both there are equally many on every replica.
        prompts: of all groups.
        samples, tokens: of all groups.
        rewards: their sum over all groups.
        squares: sum over all groups of the squared advantages.
        tokens_in_loss: response tokens of all groups that have a weight.
        all_rewards: of all samples in their canonical order, group after group.
    """

    watched: list[MicroBatch]
    learning: list[MicroBatch]
    prompts: list[str]
    samples: int
    tokens: int
    rewards: float
    squares: float = 0.0
    tokens_in_loss: int = 0
    all_rewards: Sequence[float] = ()

    def less_kl(self, kl: Sequence[float], config: TrainerConfig) -> ReplicaShare:
        """The share with the advantages that rewards less `kl`, of all samples in their canonical order, have.
        `rewards` stays the sum of what was scored."""
        lowered = [reward - penalty for reward, penalty in zip(self.all_rewards, kl, strict=True)]
        advantages, n = list[float](), config.samples_per_prompt
        for first in range(0, len(lowered), n):
            advantages.extend(group_advantages(config.algorithm.name, lowered[first : first + n]))
        of = np.array(advantages, dtype=np.float32)

        def anew(batches: list[MicroBatch]) -> list[MicroBatch]:
            return [batch._replace(advantages=of[batch.places]) for batch in batches]

        squares = math.fsum(advantage * advantage for advantage in advantages)
        return self._replace(watched=anew(self.watched), learning=anew(self.learning), squares=squares)


def shares(
    groups: Groups, config: TrainerConfig, budget: int, pairs: float, replicas: Collection[int] | None = None
) -> list[ReplicaShare]:
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
                    [samples[i] for i in batch], [advantages[i] for i in batch], [weights[i] for i in batch], batch
                )
        return found

    # With a KL in the reward no two rewards of a group need be equal in the end.
    all_learn = config.algorithm.entropy_bonus > 0 or config.algorithm.kl is not None
    learns = [weights[i] != 0.0 and (all_learn or advantages[i] != 0.0) for i in range(len(samples))]
    parts = zip(*(dealt([i for i in range(len(samples)) if learns[i] is kind]) for kind in (False, True)), strict=True)
    prompts = list(dict.fromkeys(sample.prompt_id for sample in samples))
    all_rewards = [sample.known_reward for sample in samples]
    tokens, rewards = sum(sample.tokens for sample in samples), sum(all_rewards)
    squares = math.fsum(advantage * advantage for advantage in advantages)
    in_loss = sum(len(sample.response_tokens) for sample, weight in zip(samples, weights, strict=True) if weight)
    of_all = (prompts, len(samples), tokens, rewards, squares, in_loss, all_rewards)
    return [ReplicaShare(watched, learning, *of_all) for watched, learning in parts]


def weighed_samples(groups: Groups, config: TrainerConfig) -> tuple[list[TrainSample], list[float], list[float]]:
    """All samples in their canonical order, with advantage and token weight of each."""
    algorithm, samples, advantages = config.algorithm, list[TrainSample](), list[float]()
    for group in sorted_groups(groups, config.samples_per_prompt):
        samples.extend(group)
        advantages.extend(group_advantages(algorithm.name, [s.known_reward for s in group]))
    in_loss = [not (s.truncated and algorithm.mask_truncated) for s in samples]
    lengths = [len(s.response_tokens) for s in samples]
    return samples, advantages, token_weights(algorithm.loss_aggregation, lengths, in_loss, config.divisors)


def _micro_batch(
    samples: list[TrainSample], advantages: list[float], weights: list[float], places: list[int]
) -> MicroBatch:
    tokens = [part for s in samples for part in (s.prompt_tokens, s.response_tokens)]
    return MicroBatch(
        np.concatenate([np.zeros(0, np.int32), *tokens]),
        np.array([len(s.prompt_tokens) for s in samples], dtype=np.int32),
        np.array([len(s.response_tokens) for s in samples], dtype=np.int32),
        np.concatenate([np.zeros(0, np.float32), *(s.logprobs for s in samples)]),
        np.array(advantages, dtype=np.float32),
        np.array(weights, dtype=np.float32),
        np.array(places, dtype=np.int32),
    )


NOTHING = _micro_batch([], [], [], [])


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
            assert math.isfinite(s.known_reward), f"{name}/{s.sample} has reward {s.reward}"
    return result
