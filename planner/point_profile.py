"""The profile that prices a point of a comparison: the job's own, or the one that ships of other GPUs or another model.

A measured profile prices no other machine and no other model. A derived profile is replaced by the shipped profile of
the point's GPUs and model, and the point says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..plans.schema.cluster import Cluster
from ..plans.schema.job import Job
from ..plans.yaml.errors import InputError
from ..profiles.fitness import SECTIONS, differences, machine_of, other_model, unfit
from ..profiles.hardware import gpu_of
from ..profiles.library import library_profile, shipped_model
from ..profiles.profile_schema import Profile
from ..profiles.scaled_profile import priced_as

_PRICED_BY = (("model", "path"), ("model", "dtype"), ("reward", "kind"), ("reward", "function"))
"""Keys of the job without whose own value a measured profile says nothing."""
_NOT_MEASURED = (("reward", "adaptive_timeout"), ("reward", "memory_bytes"), ("data", "prompts"))
"""Keys that no digest of a profile covers (profiles/fitness.py)."""


def profile_of_point(
    profile: Profile, base: Job, job: Job, cluster: Cluster, varied: bool, folder: Path | None = None
) -> tuple[Profile, tuple[str, ...]]:
    """(the profile to price `job` on `cluster` with, notes on it).

    `base`: the job as its file has it, which `profile` fits. `varied`: whether values of the profile are the point's
    own. `folder`: of the model of `base`, if it is on this machine. Raises InputError if no profile is of the point's
    model and machines.
    """
    pools = [pool for _, pool in sorted(cluster.pools.items())]
    unlike = [differences(profile, machine_of(pool)) for pool in pools]
    other_machine = all(unlike)
    if profile.provenance == "measured":
        if other_machine:
            raise InputError(f"the profile is of another machine ({'; '.join(unlike[0])}); name one of it")
        for fault in unfit(profile, job, None, []):
            raise InputError(f"the profile {fault.message}; {fault.remedy}")
        return profile, _measured_otherwise(base, job)
    train_law = profile.train_law
    # A model that the user varies is priced by its own profile where one ships, also if another is near in size.
    renamed = job.model.path != base.model.path
    folder = None if renamed else folder
    shipped_name, unfit_model = shipped_model(job.model.path), other_model(profile, job, folder)
    better = (
        train_law is not None
        and renamed
        and shipped_name is not None
        and shipped_name != shipped_model(train_law.model)
    )
    if not other_machine and unfit_model is None and not better:
        return _of_model(profile, job, folder)
    alike = next((pool for pool, differs in zip(pools, unlike, strict=True) if not differs), pools[0])
    gpu = gpu_of(alike.accelerators.name)
    if train_law is None or gpu is None:
        if unfit_model is not None and not other_machine:
            raise InputError(f"the profile {unfit_model.message}; {unfit_model.remedy}")
        raise InputError(f"the profile is of another machine ({'; '.join(unlike[0])}); name one of it")
    if varied:
        raise InputError(
            "a value of the profile is varied, and this point takes another profile; vary the profile alone, on its "
            "own GPUs and model"
        )
    model = job.model.path if unfit_model is not None or better else train_law.model
    shipped = library_profile(gpu.name, model)
    of_model = f"{model} on " if model != train_law.model else ""
    notes = [f"costs of {of_model}{gpu.name} by the profile that ships ({shipped.job})"]
    if of_model:
        notes.append("response lengths are one and the same trace, whatever the model")
    priced, more = _of_model(shipped, job, folder)
    return priced, (*notes, *more)


def _of_model(profile: Profile, job: Job, folder: Path | None) -> tuple[Profile, tuple[str, ...]]:
    """(the profile as it prices the job's model, a note if it is of another one, or if that cannot be told)."""
    priced = priced_as(profile, job, folder)
    return priced, (priced.scaled,) if priced.scaled else ()


def _measured_otherwise(base: Job, job: Job) -> tuple[str, ...]:
    """Notes on a point of other values than were measured. Raises InputError where the profile says nothing of it."""
    for section, key in _PRICED_BY:
        here, there = getattr(getattr(job, section), key), getattr(getattr(base, section), key)
        if here != there:
            raise InputError(
                f"the profile was measured with {section}.{key} {there}, and this point has {here}; run rlplan profile "
                "for that"
            )
    changed = [".".join(path) for path in _keys(base) if _at(base, path) != _at(job, path)]
    if not changed:
        return ()
    return (
        f"the profile was measured with another {', '.join(changed)}; rlplan solve asks to run rlplan profile again",
    )


def _keys(job: Job) -> list[tuple[str, str]]:
    """Keys of the job that a measured profile depends on."""
    named = [(section, key) for section in SECTIONS for key in type(getattr(job, section)).model_fields]
    return [path for path in named if path not in _NOT_MEASURED]


def _at(job: Job, path: tuple[str, str]) -> Any:
    return getattr(getattr(job, path[0]), path[1])
