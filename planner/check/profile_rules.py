"""Rules of a profile: its age, and the length trace beside it, which must be there, unchanged and readable."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path

from ...plans.check.finding import Fault
from ...plans.check.solved_rules import CLOCKS_DAYS
from ...plans.phrases.numbers import count
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_doc import Loc
from ...plans.yaml.yaml_io import sha256_file
from ...profiles.laws.suspicions import suspicions
from ...profiles.length_trace import LengthTrace, read_lengths
from ...profiles.library.fitness import age_days
from ...profiles.profile_schema import Profile
from .check_options import CheckOptions
from .reward_rules import failed_audit


def profile_faults(profile: Profile, path: str, options: CheckOptions) -> list[Fault]:
    """Faults of a profile: its age, a length trace that is missing, changed or unreadable, and costs that cannot be."""
    faults = age_faults(profile, ("volatile", "measured_at"), options)
    faults += failed_audit(profile.reward_audit, ("reward_audit",))
    if profile.lengths is None:
        return faults + suspicions(profile)
    trace = Path(path).parent / profile.lengths.path
    if not os.path.isfile(trace):  # noqa: PTH113 (pathlib raises for what can be no path)
        message = f"no such file: '{profile.lengths.path}'"
        remedy = "it stands beside the profile; rlplan profile measures both"
        return [*faults, Fault("input-missing", ("lengths", "path"), message, remedy), *suspicions(profile)]
    try:
        changed = sha256_file(trace) != profile.lengths.sha256
    except InputError as error:
        return [*faults, Fault("input-unreadable", ("lengths", "path"), error.message)]
    if changed:
        message = f"'{profile.lengths.path}' is not the length trace that was measured (digest differs)"
        faults.append(Fault("input-changed", ("lengths", "sha256"), message, "restore the file, or profile again"))
    unread = trace_faults(trace, profile.lengths.path, ("lengths", "path"))
    return [*faults, *unread, *suspicions(profile, 0.0 if unread else _read(trace).tokens_by_token)]


def profile_summary(profile: Profile, options: CheckOptions) -> str:
    """The line on what was checked, for a profile without faults."""
    return f"profile {profile.job}; {age_text(profile, options)}"


def trace_faults(path: Path, named: str, location: Loc) -> list[Fault]:
    """The fault of a length trace that cannot be read, all of it; the rule on digests finds one that is missing."""
    if not os.path.isfile(path):  # noqa: PTH113 (pathlib raises for what can be no path)
        return []
    try:
        _read(path)
    except InputError as error:
        message, _, remedy = error.message.partition("; ")
        line = f"line {error.line}: " if error.line else ""
        return [Fault("input-unreadable", location, f"'{named}' is no length trace: {line}{message}", remedy)]
    return []


def _read(path: Path) -> LengthTrace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # readers skip a torn last line
        return read_lengths(path)


def age_faults(profile: Profile, location: Loc, options: CheckOptions) -> list[Fault]:
    """The fault of a profile that is older than allowed, or that has no date though an age is required."""
    most = options.max_age_days
    if most is None:
        return []
    days, remedy = age_days(profile, options.now), "measure again: rlplan profile"
    allowed = f"{options.age_source} allows {_days(most)}"
    if days is None or days < -CLOCKS_DAYS:
        return [Fault("profile-undated", location, f"{_undated(profile)}; {allowed}", remedy)]
    if days <= most:
        return []
    # Rounded up, in tenths: of 30 days and an hour "30 days, allows 30" would explain nothing.
    message = f"the profile was measured {_days(math.ceil(days * 10) / 10)} ago; {allowed}"
    return [Fault("profile-old", location, message, remedy)]


def age_text(profile: Profile, options: CheckOptions) -> str:
    """Text on how old a profile is."""
    days = age_days(profile, options.now)
    if days is None or days < -CLOCKS_DAYS:
        return _undated(profile).removeprefix("the ")
    return f"profile measured {count(max(0, round(days)), 'day')} ago"


def _days(days: float) -> str:
    return f"{days:g} day{'s' * (days != 1)}"


def _undated(profile: Profile) -> str:
    if profile.volatile is None:
        return f"the {profile.provenance} profile has no date of measurement"
    return f"the profile's date of measurement, '{profile.volatile.measured_at[:40]}', is no past ISO 8601 time"
