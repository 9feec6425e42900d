"""What the phases of a step cost, read from a profile. Everything here is closed form in counts of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..profiles.schema import Profile, Reward, Rollout, Train


@dataclass(frozen=True, slots=True, order=True)
class LayoutKey:
    """Names a layout: accelerators per engine, and engines at once."""

    tp: int
    engines: int

    def __str__(self) -> str:
        return f"{self.engines} x tp {self.tp}"


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """Generation in one layout. A decode step of B sequences that hold K tokens of KV takes a + b B + c K seconds.

    Attributes:
        a, b, c: seconds, seconds per sequence, seconds per KV token.
        prefill_s, prefill_s_per_token: seconds to admit a request, and more per token to prefill.
        kv_capacity_tokens: KV tokens that one engine holds at most.
        max_sequences: the most sequences on one engine that were measured; plans do not go beyond.
        sync_s: weight sync to all engines.
        host_bytes: host memory of the layout's engines while another layout's engines are in use.
        round_s: seconds that a round takes before anything is decoded.
        finish_s: seconds by which a sample that ends holds its engine up (its way through queues and reward workers).
    """

    key: LayoutKey
    a: float
    b: float
    c: float
    prefill_s: float
    prefill_s_per_token: float
    kv_capacity_tokens: int
    max_sequences: int
    sync_s: float
    host_bytes: int
    round_s: float = 0
    finish_s: float = 0

    def base_s(self, sequences: int) -> float:
        """Seconds of a step of so many sequences without their KV."""
        return self.a + self.b * sequences

    def steps_s(self, steps: int, sequences: int, kv_tokens: float) -> float:
        """Seconds of `steps` decode steps from `kv_tokens` on, during which nobody joins or leaves.

        Each step adds one KV token per sequence: sum over k < steps of a + b B + c (K + k B).
        """
        grown = steps * kv_tokens + sequences * (steps * (steps - 1) // 2)
        return steps * self.base_s(sequences) + self.c * grown


# A vLLM process on a host (interpreter, torch, kernels) beside weights and KV. An engine has one per rank, one for its
# core and one for the actor around it.
HOST_PROCESS_BYTES = 1_000_000_000


def decode_cost(profile: Profile, rollout: Rollout) -> DecodeCost:
    """Costs of one entry of `profile.rollout`, scaled to what whole rounds of its layout took.

    Where no round of that layout was checked, the means over other layouts stand in (1 and 0 without any).
    """
    own = [c for c in profile.checks if (c.tp, c.engines) == (rollout.tp, rollout.engines)]
    known = own or profile.checks
    factor = sum(c.factor for c in known) / len(known) if known else 1.0
    overhead_s = sum(c.overhead_s for c in known) / len(known) if known else 0.0
    per_sample_s = sum(c.overhead_s_per_sample for c in known) / len(known) if known else 0.0
    processes = rollout.engines * (rollout.tp + 2) * HOST_PROCESS_BYTES
    # An idle CUDA engine sleeps with its KV freed and its weights dropped; on a CPU both stay in host memory.
    resident = 0
    if profile.machine.kind == "cpu":
        kv = rollout.kv_capacity_tokens * rollout.kv_bytes_per_token
        resident = rollout.engines * (kv + 4 * profile.model_parameters)
    return DecodeCost(
        key=LayoutKey(rollout.tp, rollout.engines),
        a=factor * rollout.step_s,
        b=factor * rollout.step_s_per_sequence,
        c=factor * rollout.step_s_per_kv_token,
        prefill_s=factor * rollout.prefill_s,
        prefill_s_per_token=factor * rollout.prefill_s_per_token,
        kv_capacity_tokens=rollout.kv_capacity_tokens,
        max_sequences=max((p.sequences for p in rollout.points), default=1),
        sync_s=rollout.sync.p50,
        host_bytes=processes + resident,
        round_s=overhead_s,
        # Fitted over all engines' samples; here each engine pays for its own.
        finish_s=rollout.engines * per_sample_s,
    )


@dataclass(frozen=True, slots=True)
class TrainCost:
    """One update: seconds, per token (prompts included), per sum over samples of squared tokens."""

    dp: int
    micro_batch_tokens: int
    step_s: float
    per_token_s: float
    per_token_squared_s: float
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    recompute: Literal["none", "selective", "full"] = "none"
    offload: bool = False

    @property
    def accelerators(self) -> int:
        """Accelerators of all replicas together."""
        return self.dp * self.tp * self.pp * self.cp

    def update_s(self, tokens: float, squared_tokens: float) -> float:
        """Seconds of an update on samples with these sums."""
        return self.step_s + self.per_token_s * tokens + self.per_token_squared_s * squared_tokens


def train_cost(train: Train) -> TrainCost:
    """Costs of one entry of `profile.train`."""
    return TrainCost(
        dp=train.dp,
        micro_batch_tokens=train.micro_batch_tokens,
        step_s=train.step_s,
        per_token_s=train.step_s_per_token,
        per_token_squared_s=train.step_s_per_token_squared,
    )


@dataclass(frozen=True, slots=True)
class RewardCost:
    """Scoring: a queue before `workers`, each busy `per_sample_s` a sample; `delay_s` later the result is known."""

    workers: int
    per_sample_s: float
    delay_s: float


def reward_cost(reward: Reward, workers: int) -> RewardCost:
    """Costs of scoring with `workers` workers."""
    return RewardCost(workers, reward.per_sample_s, max(0.0, reward.latency.p50 - reward.per_sample_s))
