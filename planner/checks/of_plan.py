"""All faults of a plan of one job. Reads its inputs."""

from __future__ import annotations

import os
from pathlib import Path

from ...plans.checks.finding import Fault
from ...plans.checks.fit import misfits
from ...plans.checks.inputs import input_path, stale_inputs
from ...plans.checks.policy_rules import breaches, unknown_pools
from ...plans.checks.predictions import baseline_of, contradictions, lengths_of, prices_of, thin_trace
from ...plans.checks.resources import not_in_search, overdrawn
from ...plans.checks.solved import edited, other_version, undated
from ...plans.cluster import Cluster
from ...plans.errors import InputError
from ...plans.job import Job, JobPaths, job_paths, missing_files, model_heads
from ...plans.origin import InputFile
from ...plans.plan import Plan
from ...plans.yaml_doc import Loc
from ...profiles.architecture import architecture_of
from ...profiles.fitness import unfit
from ...profiles.schema import Profile
from .asked import Asked, M, age_faults, age_said, opened, trace_faults
from .memory import bars, bars_as_they_are, priced
from .of_rest import few_prompts


def faults(plan: Plan, path: str, asked: Asked) -> tuple[list[Fault], str]:
    """(faults, a line on what was checked)."""
    found: list[Fault] = [
        *stale_inputs(plan, path),
        *edited(plan),
        *other_version(plan),
        *contradictions(plan),
        *thin_trace(plan),
    ]
    found += undated(plan, asked.now)
    found += bars(plan)

    def read(name: str, file: InputFile, model: type[M]) -> M | None:
        return opened(input_path(file, path), file.path, model, ("inputs", name), found)

    inputs = plan.inputs
    cluster, job = read("cluster", inputs.cluster, Cluster), read("job", inputs.job, Job)
    profile = read("profile", inputs.profile, Profile)
    found += trace_faults(input_path(inputs.lengths, path), inputs.lengths.path, ("inputs", "lengths"))
    paths, heads = _files(plan, path, job, found)
    if job is not None and paths is not None:
        found += few_prompts(job, paths.data, ("inputs", "job"), plan.job)
    if cluster is not None:
        found += prices_of(plan, cluster)
        if job is not None:
            found += misfits(plan, cluster, job, heads or _known_heads(job))
            found += overdrawn(plan, cluster, job, heads)
    if job is not None:
        found += [*baseline_of(plan, job), *lengths_of(plan, job), *not_in_search(plan, job)]
    if profile is not None:
        found += _profile(plan, profile, cluster, job, paths, asked)
    pool = cluster.pools.get(plan.job.rounds.short.rollout.pool) if cluster is not None else None
    found += bars_as_they_are(plan, profile, pool)
    if asked.policy is not None:
        found += breaches(plan, asked.policy, job)
        found += unknown_pools(asked.policy, cluster, ("inputs", "cluster"))
        if asked.policy.policy.require_job_files and job is not None:
            found += _missing(plan, path, job, asked)
    age = age_said(profile, asked) if profile is not None else "no profile"
    return found, f"{plan.job.bias.mode} plan of {plan.job.name}; {age}"


def _files(
    plan: Plan, path: str, job: Job | None, found: list[Fault]
) -> tuple[JobPaths | None, tuple[int, int] | None]:
    """The job's files and its model's heads, as far as they are here: a plan is reviewed where its data need not be."""
    if job is None:
        return None, None
    job_path = input_path(plan.inputs.job, path)
    if any(missing_files(job, job_path)):
        folder = job_path.parent / job.model.path
        return None, _heads(folder, found) if os.path.isdir(folder) else None  # noqa: PTH112
    paths = job_paths(job, job_path)
    return paths, _heads(paths.model_folder, found) if paths.model_folder else None


def _heads(folder: Path, found: list[Fault]) -> tuple[int, int] | None:
    at: Loc = ("inputs", "job")
    try:
        return model_heads(folder)
    except InputError as error:
        found.append(Fault("input-unreadable", at, f"the job's model folder: {error.message}"))
        return None


def _known_heads(job: Job) -> tuple[int, int] | None:
    """Of a model on the hub whose shape is in the table; its trainers' layouts are memory.py's to look at."""
    shape = architecture_of(job.model.path)
    return None if shape is None or shape.guessed else (shape.heads, shape.kv_heads)


def _missing(plan: Plan, path: str, job: Job, asked: Asked) -> list[Fault]:
    assert asked.policy is not None, "it asks for the files"
    place = asked.policy.place("require_job_files")
    return [
        Fault("policy-job-files", ("inputs", "job"), f"{'.'.join(loc)}: {text}; {place} has require_job_files: true")
        for loc, text in missing_files(job, input_path(plan.inputs.job, path))
    ]


def _profile(
    plan: Plan, profile: Profile, cluster: Cluster | None, job: Job | None, paths: JobPaths | None, asked: Asked
) -> list[Fault]:
    at: Loc = ("inputs", "profile")
    found = age_faults(profile, at, asked)
    stated = plan.inputs.profile.provenance
    if stated != profile.provenance:
        what = f"is {stated}, and the profile itself says {profile.provenance}"
        found.append(Fault("provenance-differs", (*at, "provenance"), what, f"write {profile.provenance}"))
    if job is None:
        return found
    pool = cluster.pools.get(plan.job.rounds.short.rollout.pool) if cluster is not None else None
    found += [Fault(why.rule, at, why.what, why.remedy) for why in unfit(profile, job, paths, [pool] if pool else [])]
    found += priced(plan, job, profile, pool)
    return found
