"""What a file is held against beside itself, and the files that it names, read as they are now."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from ...plans.check.any_document import read_document
from ...plans.check.finding import Fault
from ...plans.check.solved_rules import CLOCKS_DAYS
from ...plans.schema.policy import PolicyFile
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_doc import Loc
from ...plans.yaml.yaml_io import document_name
from ...profiles.document_models import ALL_MODELS
from ...profiles.fitness import age_days
from ...profiles.length_trace import read_lengths
from ...profiles.profile_schema import Profile

M = TypeVar("M", bound=BaseModel)


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
        why = f"is of kind {document_name(ALL_MODELS[read.mark])}, not {wanted}"
    else:
        first = read.findings[0]
        why = f"is no {wanted} any more: {f'line {first.line}: ' if first.line else ''}[{first.rule}] {first.text}"
    faults.append(Fault("input-unreadable", at, f"'{named}' {why}"))
    return None


def trace_faults(path: Path, named: str, at: Loc) -> list[Fault]:
    """A length trace that cannot be read; one that is not there is found by its digest. Reads it whole."""
    if not os.path.isfile(path):  # noqa: PTH113 (pathlib raises for what can be no path)
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a torn last line is skipped by whoever reads it
            read_lengths(path)
    except InputError as error:
        what, _, remedy = error.message.partition("; ")
        line = f"line {error.line}: " if error.line else ""
        return [Fault("input-unreadable", at, f"'{named}' is no length trace: {line}{what}", remedy)]
    return []


def age_faults(profile: Profile, at: Loc, asked: Asked) -> list[Fault]:
    """A profile that is older than is allowed, or that does not say its age where an age is asked for."""
    most = asked.max_age_days
    if most is None:
        return []
    days, remedy = age_days(profile, asked.now), "measure again: rlplan profile"
    allowed = f"{asked.age_source} allows {most:g} day{'s' * (most != 1)}"
    if days is None or days < -CLOCKS_DAYS:
        return [Fault("profile-undated", at, f"{_undated(profile)}; {allowed}", remedy)]
    if days <= most:
        return []
    # Rounded up, in tenths: of 30 days and an hour "30 days, allows 30" would explain nothing.
    what = f"the profile was measured {math.ceil(days * 10) / 10:g} days ago; {allowed}"
    return [Fault("profile-old", at, what, remedy)]


def age_said(profile: Profile, asked: Asked) -> str:
    """How old a profile is, in words."""
    days = age_days(profile, asked.now)
    if days is None or days < -CLOCKS_DAYS:
        return _undated(profile).removeprefix("the ")
    return f"profile measured {max(0.0, days):.0f} days ago"


def _undated(profile: Profile) -> str:
    if profile.volatile is None:
        return f"the {profile.provenance} profile has no date of measurement"
    return f"the profile's date of measurement, '{profile.volatile.measured_at[:40]}', is no past ISO 8601 time"
