"""The part of plan.yaml that says where the plan comes from: its input files, the solver, and the solve itself."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from .base import Count, Mode, NonNegative, Strict, cross_error, is_none


def _relative(value: str) -> str:
    if not value or PurePosixPath(value).is_absolute() or "\\" in value:
        raise cross_error(
            "must be a path with '/' relative to the plan's folder, so that the plan reads the same anywhere"
        )
    return value


RelativePath = Annotated[str, AfterValidator(_relative)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class InputFile(Strict):
    """A file that the plan was solved from."""

    path: RelativePath
    """Path relative to the plan's folder."""

    sha256: Sha256
    """SHA-256 of the file's bytes, 64 lower-case hexadecimal digits."""


Provenance = Literal["measured", "derived", "estimated"]


class ProfileFile(InputFile):
    """The profile that the plan was solved from."""

    provenance: Provenance
    """Whether its costs were measured on hardware, derived from other measurements, or estimated."""


class Inputs(Strict):
    """The files that the plan was solved from; when one changes, the plan is stale."""

    cluster: InputFile
    """cluster.yaml."""

    job: InputFile
    """job.yaml."""

    profile: ProfileFile
    """profile.yaml."""

    lengths: InputFile
    """The length trace beside the profile."""


class Solver(Strict):
    """How the plan was found."""

    name: Annotated[str, Field(min_length=1)]
    """Solver and version."""

    status: Literal["optimal", "feasible"]
    """`optimal`: no candidate is better by more than `gap`; `feasible`: a limit ended the search."""

    gap: NonNegative
    """Relative distance between `reached` and `bound`."""

    bound: NonNegative
    """Proven lower bound of the objective, in its unit."""

    reached: NonNegative
    """The proven best objective on the rounds that the choice was made on, which flatter it; `predicted` is of other
    rounds."""

    given_up: Annotated[NonNegative | None, Field(exclude_if=is_none)] = None
    """Share by which the plan costs more than `reached` on these rounds, for being simpler to run; no more than the
    error of the costs (`job.why.ties`). Null: the plan is the proven best."""

    objective: Literal["seconds_per_sample", "usd_per_sample"]
    """What was minimised."""

    forced_mode: Annotated[Mode | None, Field(exclude_if=is_none)] = None
    """The mode that was forced, which a re-solve of this plan keeps; null: the solver was free to choose."""

    forced_budget: Annotated[float | None, Field(ge=0, lt=1, exclude_if=is_none)] = None
    """The bias budget that was given with the forced mode, which a re-solve keeps; null: none was, so no plan was
    refused for its bias."""

    candidates: Count
    """Number of simulated candidates that the choice was made from."""


class Volatile(Strict):
    """Facts about the solve itself that differ from run to run; no digest covers them."""

    solved_at: str
    """When, ISO 8601 in UTC."""

    solve_s: NonNegative
    """Seconds that it took."""

    rlplan: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+\S*$")]
    """Version of rlplan that solved it."""
