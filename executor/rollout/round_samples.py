"""The samples of a round as they were generated and scored, and what training and timeouts take from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ...rounds.machines.events import SampleKey
from ...rounds.machines.outcome import Fate, Outcome
from ...rounds.machines.round import Round
from ...rounds.timeouts import RewardExecution
from ..trainer.train_samples import TrainSample
from .reward_sum import PartScore


@dataclass(slots=True, eq=False, kw_only=True)
class RolloutSample(TrainSample):
    """One sample of a round, from its issue until it is trained or dropped: with each part of its response that an
    engine tells, and with its reward, it becomes what a trainer takes. Times in seconds since the round began."""

    draw: int
    issued_s: float = 0.0
    cached_tokens: int = 0  # of the prompt, found in the engine's cache
    version_start: str = ""
    version_end: str = ""
    finished_s: float | None = None
    reward_s: float = 0.0
    reward_deadline_s: float | None = None
    reward_outcome: str = ""
    reward_detail: str = ""
    reward_parts: Mapping[str, PartScore] = field(default_factory=dict)
    engine: str = ""
    attempt: int = 0
    moves: int = 0  # to other engines, tokens kept
    aborted: bool = False

    @property
    def key(self) -> SampleKey:
        """Its name in the round."""
        return SampleKey(self.draw, self.sample)


@dataclass(slots=True)
class RolloutResult:
    """A finished round: seconds to the last useful token, then to the last useful reward; every sample; one line for
    each engine that was replaced; by vLLM's reason, how many samples it gave up."""

    rollout_s: float
    reward_exposed_s: float
    samples: dict[SampleKey, RolloutSample]
    restarts: list[str]
    lost: Mapping[str, int] = field(default_factory=dict)

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
) -> list[list[RolloutSample]]:
    """The groups that a round trains, sorted as the outcome has them; `without`: draws that are left out.

    A sample that was cut at L* is in none of them: only long draws reach the job's cap.
    """
    groups = [group for group in outcome.trained if group.keys[0].draw not in without]
    return [[samples[key] for key in group.keys] for group in groups]


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
