"""The samples of a round as they were generated and scored, and what training and timeouts take from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...rounds.machines.events import SampleKey
from ...rounds.machines.outcome import Fate, Outcome
from ...rounds.machines.round import Round
from ...rounds.timeouts import Execution
from ..trainer.samples import TrainSample


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
    engine: str = ""
    attempt: int = 0
    aborted: bool = False


@dataclass(slots=True)
class RolloutResult:
    """A finished round: seconds to the last useful token, then to the last useful reward; every sample; one line for
    each engine that was replaced."""

    rollout_s: float
    reward_exposed_s: float
    samples: dict[SampleKey, RolloutSample]
    restarts: list[str]


@dataclass(slots=True)
class Progress:
    """For the live view: counts of samples of the round in progress."""

    issued: int = 0
    decoding: int = 0
    finished: int = 0
    scored: int = 0
    aborted: int = 0


def train_groups(outcome: Outcome, samples: Mapping[SampleKey, RolloutSample]) -> list[list[TrainSample]]:
    """The groups that a round trains, sorted as the outcome has them."""
    return [
        [
            TrainSample(
                prompt_id=group.prompt,
                sample=key.sample,
                prompt_tokens=list(samples[key].prompt_tokens),
                response_tokens=samples[key].tokens,
                logprobs=samples[key].logprobs,
                reward=reward,
                # A cut at L* never gets here: only long draws reach the job's cap.
                truncated=samples[key].truncated,
            )
            for key, reward in zip(group.keys, group.rewards, strict=True)
        ]
        for group in outcome.trained
    ]


def reward_executions(round_: Round, samples: Mapping[SampleKey, RolloutSample]) -> list[Execution]:
    """Seconds of the rewards of a finished round, for `Timeouts.end_round`; a reward above 0 is a correct answer."""
    executions: list[Execution] = []
    for draw in round_.draws:
        if draw.fate in (Fate.TRAINED, Fate.FILTERED):
            for number in round_.trained_samples(draw):
                sample = samples[SampleKey(draw.number, number)]
                correct = sample.reward is not None and sample.reward > 0
                timed_out = sample.reward_outcome == "policy_timeout"
                executions.append(Execution(draw.prompt, sample.reward_s, correct, timed_out))
    return executions
