"""The samples of a round as they were generated and scored, and what training and timeouts take from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from ...rounds.machines.events import SampleKey
from ...rounds.machines.outcome import Fate, Outcome
from ...rounds.machines.round import Round
from ...rounds.timeouts import RewardExecution
from ..trainer.samples import TrainSample
from .reward_sum import PartScore


@dataclass(slots=True)
class RolloutSample:
    """One sample of a round. Lengths in tokens, times in seconds since the round began."""

    key: SampleKey
    prompt: str
    issued_s: float
    prompt_tokens: tuple[int, ...] = ()
    cached_tokens: int = 0  # of the prompt, found in the engine's cache
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    truncated: bool = False
    version_start: str = ""
    version_end: str = ""
    finished_s: float | None = None
    reward: float | None = None
    reward_s: float = 0.0
    reward_deadline_s: float | None = None
    reward_outcome: str = ""
    reward_detail: str = ""
    reward_parts: Mapping[str, PartScore] = field(default_factory=dict)
    engine: str = ""
    attempt: int = 0
    moves: int = 0  # to other engines, tokens kept
    aborted: bool = False


@dataclass(slots=True)
class RolloutResult:
    """A finished round: seconds to the last useful token, then to the last useful reward; every sample; one line for
    each engine that was replaced."""

    rollout_s: float
    reward_exposed_s: float
    samples: dict[SampleKey, RolloutSample]
    restarts: list[str]

    @property
    def moved(self) -> int:
        """Samples that went on on another engine, tokens kept."""
        return sum(sample.moves > 0 for sample in self.samples.values())


@dataclass(slots=True)
class Progress:
    """For the live view: counts of samples of the round in progress."""

    issued: int = 0
    decoding: int = 0
    finished: int = 0
    scored: int = 0
    aborted: int = 0


def train_groups(
    outcome: Outcome, samples: Mapping[SampleKey, RolloutSample], without: Collection[int] = ()
) -> list[list[TrainSample]]:
    """The groups that a round trains, sorted as the outcome has them; `without`: draws that are left out."""
    groups = [group for group in outcome.trained if group.keys[0].draw not in without]
    return [train_group(group.prompt, dict(zip(group.keys, group.rewards, strict=True)), samples) for group in groups]


def train_group(
    prompt: str, rewards: Mapping[SampleKey, float], samples: Mapping[SampleKey, RolloutSample]
) -> list[TrainSample]:
    """A group of a round as the trainer takes it; `rewards`: of its samples, in order."""
    asked = np.array(samples[next(iter(rewards))].prompt_tokens, dtype=np.int32)  # one for all of them
    return [
        TrainSample(
            prompt_id=prompt,
            sample=key.sample,
            prompt_tokens=asked,
            response_tokens=np.array(samples[key].tokens, dtype=np.int32),
            logprobs=np.array(samples[key].logprobs, dtype=np.float32),
            reward=reward,
            # A cut at L* never gets here: only long draws reach the job's cap.
            truncated=samples[key].truncated,
        )
        for key, reward in rewards.items()
    ]


def reward_executions(round_: Round, samples: Mapping[SampleKey, RolloutSample]) -> dict[str, list[RewardExecution]]:
    """By part of the reward, its executions in a finished round, for `PoolTimeouts.end_round`.

    An answer is correct to a part if the part's own value, before its weight, is above 0.
    """
    executions: dict[str, list[RewardExecution]] = {}
    for draw in round_.draws:
        if draw.fate in (Fate.TRAINED, Fate.FILTERED):
            for number in round_.trained_samples(draw):
                for name, part in samples[SampleKey(draw.number, number)].reward_parts.items():
                    timed_out = part.outcome == "policy_timeout"
                    execution = RewardExecution(draw.prompt, part.seconds, part.value > 0, timed_out)
                    executions.setdefault(name, []).append(execution)
    return executions
