"""A case: the published GPUs of one model size, and the seconds of the phases that are not simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from rlplan.plans.schema.base import Count, Name, NonNegative, Positive, Strict
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import load

from .published_figures import Figures


class PlainPhases(Strict):
    """Seconds of a step of the plain synchronous system."""

    rollout_s: Positive
    """Decoding; the speed of the engines is calibrated on it."""

    reward_s: NonNegative
    """Rewards, scored after the rollout."""

    train_s: NonNegative
    """The update."""

    sync_s: NonNegative = 0.0
    """Weight transfer to the engines, where no other phase contains it."""


class RoundPhases(Strict):
    """Seconds of a RollPacker round besides its rollout."""

    sync_s: NonNegative
    """Weight transfer to the engines."""

    reward_s: NonNegative
    """Waiting for rewards after the last token."""

    train_s: NonNegative
    """The part of the update that is not hidden under the rollout."""


class RacePhases(Strict):
    """RollPacker's rounds; missing kinds are taken from the figures file."""

    short: RoundPhases | None = None
    """Short rounds."""

    long: RoundPhases | None = None
    """Long rounds."""

    other_s: NonNegative = 0.0
    """Seconds of a step beside its published phases."""

    long_train_unhidden_s: NonNegative | None = None
    """The whole update of a long round; null: as long as the plain system's."""


class Published(Strict):
    """Mean seconds of a step, to compare with; null: from the figures file."""

    verl: Positive | None = None
    """The plain synchronous system."""

    rollpacker: Positive | None = None
    """RollPacker over its cycle."""


class Case(Strict):
    """The document."""

    model: Name
    """As in the shipped profiles, say Qwen2.5-14B."""

    gpu: Name = "H800"
    """As in the shipped profiles."""

    gpus: Count
    """In all; eight to a node."""

    rollout_tp: Count
    """Accelerators per engine."""

    cap_tokens: Count
    """Cap on a response."""

    prompts_per_step: Count = 128
    """P."""

    samples_per_prompt: Annotated[int, Field(ge=2)] = 8
    """n."""

    prompts_factor: Annotated[float, Field(ge=1)] = 1.25
    """Over-issue of prompts at RollPacker's operating point."""

    samples_factor: Annotated[float, Field(ge=1)] = 1.25
    """Over-issue of samples there."""

    plain: PlainPhases
    """The plain synchronous system (veRL)."""

    race: RacePhases = RacePhases()
    """RollPacker's phases besides the rollout."""

    published_step_s: Published = Published()
    """To compare with."""

    sources: dict[str, str] = Field(default={})
    """Where the numbers come from."""

    @property
    def engines(self) -> int:
        """Engines of the rollout."""
        return self.gpus // self.rollout_tp


def read_case(path: Path) -> Case:
    """Read a case. Raises InputError."""
    if not path.is_file():
        raise InputError(
            "no such file; give the published phases with --phases (14B.yaml here is an example)", str(path)
        )
    case = load(path, Case)
    if case.gpus % case.rollout_tp:
        raise InputError(f"rollout_tp {case.rollout_tp} does not divide {case.gpus} GPUs", str(path))
    return case


def round_phases(case: Case, figures: Figures, model: str, round_kind: str) -> RoundPhases:
    """Phases of a kind of round: the case's, else the figures'. Raises InputError if neither has them."""
    phases = case.race.short if round_kind == "short" else case.race.long
    if phases is not None:
        return phases
    published = figures.phases_s(model).get(round_kind)
    if published is None:
        raise InputError(
            f"has no phases of RollPacker's {round_kind} rounds for {model}; give race.{round_kind} in --phases",
            str(figures.path),
        )
    return RoundPhases(sync_s=published["sync"], reward_s=published["reward"], train_s=published["train"])
