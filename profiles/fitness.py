"""Whether a profile is of the job and of the machines that it is to price: what `solve` refuses and `check` reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from ..plans.check.solved_rules import days_since
from ..plans.schema.cluster import Pool
from ..plans.schema.job import Job, JobPaths
from .architecture import architecture_of
from .profile_schema import Profile
from .profile_subject import subject_digest
from .same_machine import differences, machine_of

MODEL_SIZE_TOLERANCE = 0.15
"""Models of one size class are priced alike within a profile's own error."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a profile does not fit.

    Attributes:
        rule: its name in the catalogue of `rlplan check`.
        what, remedy: what is wrong and what to do.
        forcible: whether `rlplan solve --force` uses the profile all the same.
    """

    rule: str
    what: str
    remedy: str
    forcible: bool = True


def unfit(profile: Profile, job: Job, paths: JobPaths | None, pools: Sequence[Pool]) -> Iterator[Unfit]:
    """Why `profile` is not of `job`, or of none of `pools`.

    `paths`: the job's files, which a measured profile's digest covers; None where they are not at hand, and then it is
    not compared. Raises InputError when one of them cannot be read.
    """
    measured = profile.provenance == "measured"
    if measured and profile.job != job.name:
        what = f"is a profile of job {profile.job!r}, not {job.name!r}"
        yield Unfit("profile-of-other-job", what, "run rlplan profile", forcible=False)
    unlike = [differences(profile, machine_of(pool)) for pool in pools]
    if unlike and all(unlike):
        what = f"was measured on another machine ({'; '.join(unlike[0])})"
        yield Unfit("profile-of-other-machine", what, "run rlplan profile on this cluster")
    if not measured:
        yield from _model(profile, job)
    elif paths is not None and paths.data is not None and subject_digest(job, paths) != profile.measured:
        yield Unfit(
            "profile-of-earlier-job",
            "was measured before the job's model, data, reward or rollout section (or the data file, or the model's "
            "config.json) changed",
            "run rlplan profile",
        )


def _model(profile: Profile, job: Job) -> Iterator[Unfit]:
    """A derived profile is of a model by name; the job's must not plainly be another one."""
    law = profile.train_law
    if law is None:
        return
    named, own = architecture_of(job.model.path), architecture_of(law.model)
    if named is None or own is None:
        return
    if abs(named.parameters / own.parameters - 1) > MODEL_SIZE_TOLERANCE:
        yield Unfit(
            "profile-of-other-model",
            f"is of {law.model} ({own.parameters / 1e9:.1f}B parameters), the job trains {job.model.path} "
            f"({named.parameters / 1e9:.1f}B)",
            "take the profile of that model",
        )


def age_days(profile: Profile, now: datetime) -> float | None:
    """Days since the profile was measured, negative of a date that is to come; None where it does not say."""
    return None if profile.volatile is None else days_since(profile.volatile.measured_at, now)
