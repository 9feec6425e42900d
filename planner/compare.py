"""One job solved over several clusters and values: which machines, how many nodes, which P and n.

Each point is solved as `rlplan solve` would solve it, on its own; nothing is written. A point that has no plan is a
point with a reason. Where a point has other GPUs or another model than the profile, and the profile was not measured,
the one that ships of those takes its place, and the point says so. A measured profile prices no other machine and no
other model.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ..plans.facts.compared_plans import ComparedPoint, setting_text
from ..plans.schema.base import whole
from ..plans.schema.cluster import Cluster
from ..plans.schema.job import Job
from ..plans.schema.plan import Inputs
from ..plans.yaml.errors import ErrorCollector, Infeasible, InputError, joined
from ..plans.yaml.yaml_doc import Loc
from ..profiles.hardware import gpu_of
from ..profiles.length_trace import LengthTrace
from ..profiles.library import library_profile, nearest_shipped, shipped_model
from ..profiles.library.fitness import SECTIONS, differences, machine_of, other_model, unfit
from ..profiles.library.scaled_profile import policy_shape, priced_as
from ..profiles.profile_schema import Profile
from .choose.candidate_search import Progress
from .choose.candidates.solve_options import SolveOptions
from .solve import solve
from .what_if import assign, assignment, validated

OPTION, EXAMPLE = "--vary", "cluster.pools.main.nodes=1,2,4"
MAX_POINTS = 256
"""Points of one comparison; each is a whole solve."""


@dataclass(frozen=True)
class Point:
    """A point of the comparison, to be solved: its documents, and the values by which it differs from the others.

    `base`: the job as its file has it, which the profile is of.
    """

    values: dict[str, Any]
    cluster: Cluster
    job: Job
    profile: Profile
    base: Job


def points_of(clusters: Sequence[tuple[str, Cluster]], job: Job, profile: Profile, vary: Sequence[str]) -> list[Point]:
    """All points: every cluster, by name, with every choice of the varied values, the last one varying fastest.

    `vary`: assignments `PATH=VALUE,VALUE,…`; a path begins with `cluster`, `job` or `profile`. Raises InputError for a
    value that could not stand in its document, all of them together, for a path that is varied twice, and for more than
    MAX_POINTS points.
    """
    faults = ErrorCollector()
    axes = [axis for text in vary if (axis := faults.try_read(partial(_axis, text)))]
    faults.raise_any()
    paths = [".".join(path) for path, _, _ in axes]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise InputError(f"{OPTION}: {twice} is varied twice; name all of its values once")
    count = len(clusters)
    for _, values, _ in axes:
        count *= len(values)
    if count > MAX_POINTS:
        raise InputError(f"{OPTION}: these are {count} points, and each is a solve; ask for at most {MAX_POINTS}")
    points = []
    for name, cluster in clusters:
        for choice in itertools.product(*(range(len(values)) for _, values, _ in axes)):
            chosen = [(path, values[index], text) for (path, values, text), index in zip(axes, choice, strict=True)]
            here: dict[str, Any] = {"cluster": name} if len(clusters) > 1 else {}
            here |= {".".join(path): value for path, value, _ in chosen}
            point = faults.try_read(lambda: _changed(here, cluster, job, profile, chosen))  # noqa: B023 (called at once)
            points += [] if point is None else [point]
    if faults.errors:
        # A value that is wrong is so at each point that has it, and is told once.
        raise joined(list({str(each): each for fault in faults.errors for each in fault.each()}.values()))
    return points


def _axis(text: str) -> tuple[list[str], list[Any], str]:
    path, equals, values = text.partition("=")
    # One list, so that commas part values as YAML does: `[[1, 2], [4]]` varies a key whose values are lists.
    path_parts, listed = assignment(f"{path}=[{values}]" if equals else text, OPTION, EXAMPLE)
    if not isinstance(listed, list) or not listed:
        raise InputError(f"{OPTION} {text}: write the values after the '=', as in {EXAMPLE}")
    if any(value in listed[:index] for index, value in enumerate(listed)):
        raise InputError(f"{OPTION} {text}: a value is named twice; name each once")
    return path_parts, listed, text


def _changed(
    here: dict[str, Any], cluster: Cluster, job: Job, profile: Profile, chosen: Sequence[tuple[list[str], Any, str]]
) -> Point:
    """The documents with the chosen values in them."""
    documents: dict[str, BaseModel] = {"cluster": cluster, "job": job, "profile": profile}
    values = {name: whole(document) for name, document in documents.items()}
    touched: dict[Loc, str] = {}
    for path, value, text in chosen:
        touched[assign(values, path, value, text, OPTION)] = f"{'.'.join(path)}={setting_text(value)}"
    models: dict[str, type[BaseModel]] = {"cluster": Cluster, "job": Job, "profile": Profile}
    faults, changed = ErrorCollector(), {}
    for name in documents:
        if any(loc[0] == name for loc in touched):
            read = partial(validated, values[name], models[name], name, touched, OPTION)
            changed[name] = faults.try_read(read)
    faults.raise_any()
    made: dict[str, Any] = {**documents, **changed}
    return Point(here, made["cluster"], made["job"], made["profile"], job)


def compare(
    points: Sequence[Point],
    trace: LengthTrace,
    inputs: Inputs,
    options: SolveOptions,
    progress: Progress = lambda text, share: None,
    folder: Path | None = None,
) -> Iterator[ComparedPoint]:
    """Each point solved, in order.

    `inputs`: stands in the plans, which are not written. `options`: of each solve; `prompts` None: as many as
    `job.data.prompts` says at each point. `progress`: called with a text and the share that is done. The same arguments
    give the same points. `options.model` and `folder`: of the model of the job as its file has it, the
    latter if it is on this machine.
    """
    for index, point in enumerate(points):

        def of_point(text: str, share: float, index: int = index) -> None:
            progress(f"point {index + 1} of {len(points)}: {text}", (index + share) / len(points))

        yield _solved(point, trace, inputs, options, of_point, folder)


def _solved(
    point: Point,
    trace: LengthTrace,
    inputs: Inputs,
    options: SolveOptions,
    progress: Progress,
    folder: Path | None,
) -> ComparedPoint:
    """The point's plan, or the reason why it has none, with the warnings of its solve as notes."""
    job = point.job
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            varied = any(path.startswith("profile.") for path in point.values)
            profile, profile_notes = _profile_of_point(point.profile, point.base, job, point.cluster, varied, folder)
            notes += profile_notes
            prompts = job.data.trained_prompts if options.prompts is None else options.prompts
            if prompts is not None and prompts < job.rollout.prompts_per_step:
                needed = job.rollout.prompts_per_step
                raise InputError(f"the data has {prompts} prompts, and a step trains {needed} different ones")
            model = options.model if job.model.path == point.base.model.path else None
            of_point = replace(options, prompts=prompts, model=model)
            plan = solve(point.cluster, job, profile, trace, inputs, of_point, progress).plan
        except (Infeasible, InputError) as error:
            return ComparedPoint(point.values, None, reason=str(error), notes=tuple(notes))
    notes += [str(warning.message) for warning in caught]
    return ComparedPoint(point.values, plan, notes=tuple(dict.fromkeys(notes)))


_PRICED_BY = (("model", "path"), ("model", "dtype"), ("reward", "kind"), ("reward", "function"))
"""Keys of the job without whose own value a measured profile says nothing."""
_NOT_MEASURED = (("reward", "adaptive_timeout"), ("reward", "memory_bytes"), ("data", "prompts"))
"""Keys that no digest of a profile covers (profiles/library/fitness.py)."""


def _profile_of_point(
    profile: Profile, base: Job, job: Job, cluster: Cluster, varied: bool, folder: Path | None
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
    if shipped_model(model) is None and (shape := policy_shape(model, folder)) is not None:
        model = nearest_shipped(shape, gpu.name) or model
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
