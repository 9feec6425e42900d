"""Seconds of scoring by kind of reward, where none were measured: the tables that ship, and the profiles that take
them.

A shipped (derived) profile knows nothing of a job's rewards: it holds one assumed number for all. In its place a job
takes the table of its own kind (library/rewards/KIND.yaml). A profile whose reward somebody measured, imported or wrote
by hand is left as it is. What was taken stands in the plan's inputs, and its error in the plan's.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from ..plans.schema.base import cross_error, is_none, is_zero
from ..plans.yaml.yaml_io import WRITTEN_DIGITS, load, read_text
from .length_tables import text_sha256
from .phase_schema import MOST_EXECUTIONS, Ascending, Evidence, ProfileModel, Reward, RewardExecutions, Spread
from .profile_schema import Profile

FOLDER = Path(__file__).parent / "library" / "rewards"
"""Where the tables are that ship."""

HANGS_S = 3600.0
"""Seconds that stand for an execution that would never end: the longest deadline that a job may have."""

ASSUMED = "assumed:"
"""What a profile's source begins with if what it says was not measured."""

_SOURCE = "reward-table"


class RewardError(ProfileModel):
    """How far another job of the same kind may be off: one standard deviation each."""

    scale: Annotated[float, Field(ge=0, le=5)]
    """Of the logarithm of all seconds together."""

    hanging: Annotated[float, Field(ge=0, le=5)] = 0.0
    """Of the logarithm of the share that hangs."""


class RewardTable(ProfileModel):
    """Seconds of a reward worker for one sample: one number, or a distribution of right and of wrong answers."""

    kind: Annotated[str, Field(pattern=r"^(code|math|function|format)$")]
    """The job's reward.kind."""

    per_sample_s: Annotated[float | None, Field(ge=0, exclude_if=is_none)] = None
    """Seconds of every sample; null: they differ."""

    right_s: Annotated[Ascending | None, Field(exclude_if=is_none)] = None
    """Equally likely seconds of a right answer, ascending."""

    wrong_s: Annotated[Ascending | None, Field(exclude_if=is_none)] = None
    """Equally likely seconds of a wrong answer that ends, ascending."""

    hanging: Annotated[float, Field(ge=0, le=1, exclude_if=is_zero)] = 0.0
    """Share of the wrong answers that run until the deadline."""

    correct: Annotated[float | None, Field(ge=0, le=1, exclude_if=is_none)] = None
    """Share of right answers to solved prompts."""

    unsolved: Annotated[float | None, Field(ge=0, le=1, exclude_if=is_none)] = None
    """Share of prompts without a right answer."""

    error: RewardError
    """How far another job of the same kind may be off."""

    error_source: Annotated[str, Field(min_length=1)]
    """Where that comes from."""

    source: Annotated[str, Field(min_length=1)]
    """Publication or repository, licence and number of executions."""

    note: str = ""
    """What a reader must know before using it."""

    @model_validator(mode="after")
    def _is_one_of_both(self) -> RewardTable:
        values = (self.right_s, self.wrong_s, self.correct, self.unsolved)
        given = sum(part is not None for part in values)
        if given != (len(values) if self.per_sample_s is None else 0):
            raise cross_error("needs either per_sample_s, or right_s, wrong_s, correct and unsolved", "per_sample_s")
        return self

    def executions(self, scale: float = 1.0, hanging: float = 1.0) -> RewardExecutions | None:
        """The distribution with all seconds times `scale` and the share that hangs times `hanging`; None: one number
        says it all."""
        if self.right_s is None or self.wrong_s is None or self.correct is None or self.unsolved is None:
            return None
        stuck = min(MOST_EXECUTIONS - 1, round(MOST_EXECUTIONS * self.hanging * hanging))
        ending = MOST_EXECUTIONS - stuck
        places = [(i + 0.5) / ending * len(self.wrong_s) for i in range(ending)]
        ended = [scale * self.wrong_s[min(len(self.wrong_s) - 1, int(place))] for place in places]
        return RewardExecutions(
            correct_s=tuple(scale * seconds for seconds in self.right_s),
            wrong_s=(*ended, *[HANGS_S] * stuck),
            correct=self.correct,
            unsolved=self.unsolved,
        )

    def reward(self, workers: int, scale: float = 1.0, hanging: float = 1.0) -> Reward:
        """The `reward` section of a profile by this table, with the factors of `executions`."""
        distribution = self.executions(scale, hanging)
        if distribution is None:
            assert self.per_sample_s is not None, "the table has one of the two"
            mean_s = p50_s = p95_s = scale * self.per_sample_s
        else:
            ordered = sorted([*(distribution.correct_s or ()), *(s for s in distribution.wrong_s if s < HANGS_S)])
            mean_s, p50_s = math.fsum(ordered) / len(ordered), ordered[len(ordered) // 2]
            p95_s = ordered[int(0.95 * len(ordered))]
        return Reward(
            workers=workers,
            latency=Spread(p50=p50_s, p95=p95_s, repeats=0),
            per_sample_s=float(f"{mean_s:.{WRITTEN_DIGITS}g}"),  # as a file has it, so that it is known again
            executions=distribution,
            # How far it may be off stands in the plan as an error of its own.
            evidence={"per_sample_s": Evidence(source=_SOURCE, error=0.0)},
        )


def reward_kinds() -> list[str]:
    """Kinds of reward that a table ships for, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def reward_table(kind: str) -> RewardTable:
    """The table of a kind of reward."""
    return load(FOLDER / f"{kind}.yaml", RewardTable)


def reward_sha256(kind: str) -> str:
    """SHA-256 of that table's text."""
    return text_sha256(read_text(FOLDER / f"{kind}.yaml"))


def reward_assumed(profile: Profile) -> bool:
    """Whether the profile's reward seconds are an assumption that was not replaced: its own, or a table's."""
    reward = profile.reward
    cited = reward.evidence.get("per_sample_s")
    if profile.provenance == "measured" or cited is None:
        return False
    if cited.source == _SOURCE:
        return any(reward == reward_table(kind).reward(reward.workers) for kind in reward_kinds())
    return reward.executions is None and profile.sources.get(cited.source, "").startswith(ASSUMED)


def with_reward_times(profile: Profile, kind: str) -> tuple[Profile, RewardTable | None]:
    """(the profile with the seconds of its job's kind of reward, the table that they are from); (the profile itself,
    None) where its own are more than an assumption."""
    if kind not in reward_kinds() or not reward_assumed(profile):
        return profile, None
    table = reward_table(kind)
    sources = {**profile.sources, _SOURCE: f"rewards of kind {kind}: {table.source}"}
    reward = table.reward(profile.reward.workers)
    return profile.model_copy(update={"reward": reward, "sources": sources}), table
