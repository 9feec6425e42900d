"""One job solved over several clusters and values: which machines, how many nodes, which P and n.

Each point is solved as `rlplan solve` would solve it, on its own; nothing is written. A point that has no plan is a
point with a reason. Where a point has other GPUs or another model than the profile, and the profile was not measured,
the one that ships of those takes its place (point_profile.py).
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel

from ..plans.facts.compared_plans import ComparedPoint, shown
from ..plans.schema.base import Mode
from ..plans.schema.cluster import Cluster
from ..plans.schema.job import Job
from ..plans.schema.sections.origin import Inputs
from ..plans.yaml.errors import Faults, Infeasible, InputError, joined
from ..plans.yaml.yaml_doc import Loc
from ..profiles.length_trace import LengthTrace
from ..profiles.profile_schema import Profile
from .assignments import assign, assignment, validated, whole
from .choose.candidate_search import Progress
from .choose.cycle_cost import Objective
from .point_profile import profile_of_point
from .solve import solve

OPTION, EXAMPLE = "--vary", "cluster.pools.main.nodes=1,2,4"
MAX_POINTS = 256
"""Points of one comparison; each is a whole solve."""


@dataclass(frozen=True)
class Asked:
    """A point that is to be solved: its documents, and by what values it differs from the others.

    `base`: the job as its file has it, which the profile is of.
    """

    values: dict[str, Any]
    cluster: Cluster
    job: Job
    profile: Profile
    base: Job


@dataclass(frozen=True)
class Wanted:
    """What `solve` is asked for beside the documents; as its arguments.

    Attributes:
        prompts: how many the job's data holds; None: as many as `job.data.prompts` says at each point.
    """

    mode: Mode | None = None
    bias_budget: float | None = None
    objective: Objective = "seconds"
    seed: int = 0
    prompts: int | None = None


def points_of(clusters: Sequence[tuple[str, Cluster]], job: Job, profile: Profile, vary: Sequence[str]) -> list[Asked]:
    """All points: every cluster, by name, with every choice of the varied values, the last one varying fastest.

    `vary`: assignments `PATH=VALUE,VALUE,…`; a path begins with `cluster`, `job` or `profile`. Raises InputError for a
    value that could not stand in its document, all of them together, for a path that is varied twice, and for more than
    MAX_POINTS points.
    """
    faults = Faults()
    axes = [axis for text in vary if (axis := faults.of(partial(_axis, text)))]
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
    found = []
    for name, cluster in clusters:
        for choice in itertools.product(*(range(len(values)) for _, values, _ in axes)):
            chosen = [(path, values[at], text) for (path, values, text), at in zip(axes, choice, strict=True)]
            here: dict[str, Any] = {"cluster": name} if len(clusters) > 1 else {}
            here |= {".".join(path): value for path, value, _ in chosen}
            point = faults.of(lambda: _changed(here, cluster, job, profile, chosen))  # noqa: B023 (called at once)
            found += [] if point is None else [point]
    if faults.found:
        # A value that is wrong is so at each point that has it, and is told once.
        raise joined(list({str(one): one for fault in faults.found for one in fault.each()}.values()))
    return found


def _axis(text: str) -> tuple[list[str], list[Any], str]:
    path, equals, values = text.partition("=")
    # One list, so that commas part values as YAML does: `[[1, 2], [4]]` varies a key whose values are lists.
    listed, found = assignment(f"{path}=[{values}]" if equals else text, OPTION, EXAMPLE)
    if not isinstance(found, list) or not found:
        raise InputError(f"{OPTION} {text}: write the values after the '=', as in {EXAMPLE}")
    if any(value in found[:index] for index, value in enumerate(found)):
        raise InputError(f"{OPTION} {text}: a value is named twice; name each once")
    return listed, found, text


def _changed(
    here: dict[str, Any], cluster: Cluster, job: Job, profile: Profile, chosen: Sequence[tuple[list[str], Any, str]]
) -> Asked:
    """The documents with the chosen values in them."""
    documents: dict[str, BaseModel] = {"cluster": cluster, "job": job, "profile": profile}
    values = {name: whole(document) for name, document in documents.items()}
    touched: dict[Loc, str] = {}
    for path, value, text in chosen:
        touched[assign(values, path, value, text, OPTION)] = f"{'.'.join(path)}={shown(value)}"
    models: dict[str, type[BaseModel]] = {"cluster": Cluster, "job": Job, "profile": Profile}
    faults, changed = Faults(), {}
    for name in documents:
        if any(loc[0] == name for loc in touched):
            read = partial(validated, values[name], models[name], name, touched, OPTION)
            changed[name] = faults.of(read)
    faults.raise_any()
    made: dict[str, Any] = {**documents, **changed}
    return Asked(here, made["cluster"], made["job"], made["profile"], job)


def compare(
    points: Sequence[Asked],
    trace: LengthTrace,
    inputs: Inputs,
    wanted: Wanted,
    progress: Progress = lambda text, share: None,
) -> Iterator[ComparedPoint]:
    """Each point solved, in order.

    `inputs`: stands in the plans, which nobody writes. `progress`: called with a text and the share that is done. The
    same arguments give the same points.
    """
    for index, asked in enumerate(points):

        def part(text: str, share: float, index: int = index) -> None:
            progress(f"point {index + 1} of {len(points)}: {text}", (index + share) / len(points))

        yield _solved(asked, trace, inputs, wanted, part)


def _solved(asked: Asked, trace: LengthTrace, inputs: Inputs, wanted: Wanted, progress: Progress) -> ComparedPoint:
    job = asked.job
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            varied = any(path.startswith("profile.") for path in asked.values)
            profile, said = profile_of_point(asked.profile, asked.base, job, asked.cluster, varied)
            notes += said
            prompts = job.data.prompts if wanted.prompts is None else wanted.prompts
            if prompts is not None and prompts < job.rollout.prompts_per_step:
                needed = job.rollout.prompts_per_step
                raise InputError(f"the data has {prompts} prompts, and a step trains {needed} different ones")
            plan = solve(
                asked.cluster,
                job,
                profile,
                trace,
                inputs,
                mode=wanted.mode,
                bias_budget=wanted.bias_budget,
                objective=wanted.objective,
                seed=wanted.seed,
                progress=progress,
                prompts=prompts,
            )
        except (Infeasible, InputError) as error:
            return ComparedPoint(asked.values, None, reason=str(error), notes=tuple(notes))
    notes += [str(warning.message) for warning in caught]
    return ComparedPoint(asked.values, plan, notes=tuple(dict.fromkeys(notes)))
