"""What a file is held against beside itself, and the files that it names, read as they are now."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from ...plans.checks.documents import MODELS, read_document
from ...plans.checks.finding import Fault
from ...plans.policy import PolicyFile
from ...plans.yaml_doc import Loc
from ...plans.yaml_io import document_name
from ...profiles.fitness import age_days
from ...profiles.schema import Profile

M = TypeVar("M", bound=BaseModel)

ALL_MODELS: Mapping[str, type[BaseModel]] = {**MODELS, "rlplan_profile": Profile}
"""Models of all documents by mark."""


@dataclass(frozen=True)
class Asked:
    """What a file is held against beside itself.

    Attributes:
        now: the time that ages are counted to.
        policy: None without one.
        age_option: days, from the command line; goes before the policy's.
    """

    now: datetime
    policy: PolicyFile | None
    age_option: float | None

    @property
    def max_age_days(self) -> float | None:
        """Days that a profile may be old; None: any number."""
        if self.age_option is not None:
            return self.age_option
        return self.policy.policy.max_profile_age_days if self.policy else None

    @property
    def age_source(self) -> str:
        """Where that number comes from."""
        if self.age_option is not None or self.policy is None:
            return "--max-age-days"
        return f"{self.policy.place('max_profile_age_days')} (max_profile_age_days)"


def opened(path: Path, named: str, model: type[M], at: Loc, faults: list[Fault]) -> M | None:
    """The document at `path` (in the file at `at`, called `named` there); None, with a fault in `faults`, if it is no
    such document, and without one if it is not there: missing inputs are found by their digests."""
    if not os.path.isfile(path):  # noqa: PTH113 (pathlib raises for what can be no path)
        return None
    read = read_document(str(path), ALL_MODELS)
    if isinstance(read.value, model):
        return read.value
    wanted = document_name(model)
    if read.value is not None and read.mark is not None:
        why = f"is a {document_name(ALL_MODELS[read.mark])}, not a {wanted}"
    else:
        first = read.findings[0]
        why = f"is no {wanted} any more: {f'line {first.line}: ' if first.line else ''}[{first.rule}] {first.text}"
    faults.append(Fault("input-unreadable", at, f"'{named}' {why}"))
    return None


def age_faults(profile: Profile, at: Loc, asked: Asked) -> list[Fault]:
    """A profile that is older than is allowed, or that a policy limits and that does not say its age."""
    most = asked.max_age_days
    if most is None:
        return []
    days = age_days(profile, asked.now)
    remedy = "measure again: rlplan profile"
    if days is None:
        # The option is for profiles that have a date; a team that writes a limit down wants none without.
        if asked.policy is None or asked.policy.policy.max_profile_age_days is None:
            return []
        what = f"the {profile.provenance} profile has no date of measurement; {asked.age_source} allows {most:g} days"
        return [Fault("profile-undated", at, what, remedy)]
    if days <= most:
        return []
    what = f"the profile was measured {days:.0f} days ago; {asked.age_source} allows {most:g}"
    return [Fault("profile-old", at, what, remedy)]


def age_said(profile: Profile, asked: Asked) -> str:
    """How old a profile is, in words."""
    days = age_days(profile, asked.now)
    if days is None:
        return f"{profile.provenance} profile without a date"
    return f"profile measured {max(0.0, days):.0f} days ago"
