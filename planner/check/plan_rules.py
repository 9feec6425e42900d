"""All faults of a plan of one job. Reads its inputs."""

from __future__ import annotations

import os
from pathlib import Path

from ...plans.check.finding import Fault
from ...plans.check.input_rules import input_path, stale_inputs
from ...plans.check.plan_fit import misfits
from ...plans.check.policy_rules import breaches, unknown_pools
from ...plans.check.prediction_rules import bias_over_budget, gap_of, lengths_of, prices_of, thin_trace
from ...plans.check.resource_rules import not_in_search, over_issue_beyond, overdrawn, pools_too_large
from ...plans.check.solved_rules import edited, other_version, predictions_edited, undated
from ...plans.schema.cluster import Cluster
from ...plans.schema.job import Job, JobPaths, job_paths, missing_files, model_heads
from ...plans.schema.plan import Plan
from ...plans.schema.sections.origin import InputFile, LengthsInput
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_doc import Loc
from ...profiles.architecture import architecture_of
from ...profiles.fitness import unfit
from ...profiles.profile_schema import Profile
from ..costs.memory_bars import WEIGHT_BYTES
from ..costs.round_costs import nodes_of
from ..lengths.table_lengths import changed_table
from .accelerator_rules import unlike_names_at
from .check_options import Asked, M, age_faults, age_said, opened, trace_faults
from .document_rules import few_prompts
from .memory_rules import bars, bars_as_they_are, priced
from .reward_rules import deadline_faults, reward_faults


def faults(plan: Plan, path: str, asked: Asked) -> tuple[list[Fault], str]:
    """(faults, a line on what was checked)."""
    found: list[Fault] = [*stale_inputs(plan, path), *edited(plan), *other_version(plan), *predictions_edited(plan)]
    found += [*bias_over_budget(plan), *gap_of(plan), *thin_trace(plan)]
    found += undated(plan, asked.now)
    found += bars(plan)

    inputs = plan.inputs
    job, cluster, profile = documents(plan, path, found)
    found += _lengths(inputs.lengths, path)
    found += reward_faults(plan, profile, job)
    paths, heads = _files(plan, path, job, found)
    if job is not None and paths is not None:
        found += few_prompts(job, paths.data, ("inputs", "job"), plan.job)
    if cluster is not None:
        found += unlike_names_at(("inputs", "cluster"), cluster)
        found += _too_large(plan, cluster)
        found += prices_of(plan, cluster, _nodes(plan, cluster, job, profile))
    if job is not None:
        found += lengths_of(plan, job)
    found += physics(plan, cluster, job, profile, heads)
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


def _too_large(plan: Plan, cluster: Cluster) -> list[Fault]:
    """The plan's pool, if it has become larger than one job is planned on."""
    name = plan.job.rounds.short.rollout.pool
    large = [fault for fault in pools_too_large(cluster) if fault.loc[1] == name]
    return [Fault(fault.rule, ("inputs", "cluster"), f"{fault.key}: {fault.what}", fault.remedy) for fault in large]


def _lengths(given: LengthsInput, path: str) -> list[Fault]:
    """A length trace that cannot be read, or a table that is no longer what the plan was solved from."""
    at: Loc = ("inputs", "lengths")
    if given.file is not None:
        return trace_faults(input_path(given.file, path), given.file.path, at)
    changed = changed_table(given)
    return [] if changed is None else [Fault("input-changed", at, changed, "solve again")]


def documents(plan: Plan, path: str, found: list[Fault]) -> tuple[Job | None, Cluster | None, Profile | None]:
    """(job, cluster, profile) of the plan at `path` as they are now, None for what is not there or is no such document;
    the latter is a fault, which is added to `found`."""

    def read(name: str, file: InputFile, model: type[M]) -> M | None:
        return opened(input_path(file, path), file.path, model, ("inputs", name), found)

    inputs = plan.inputs
    cluster, job = read("cluster", inputs.cluster, Cluster), read("job", inputs.job, Job)
    return job, cluster, read("profile", inputs.profile, Profile)


def physics(
    plan: Plan, cluster: Cluster | None, job: Job | None, profile: Profile | None, heads: tuple[int, int] | None
) -> list[Fault]:
    """Whether what a plan decides can be: that it fits its job and its cluster, has costs, and that memory holds it.
    Reads no file.

    `heads`: (attention, key-value) heads of the job's model as its folder has them; None without a folder.
    """
    found: list[Fault] = []
    if job is None:
        return found
    if cluster is not None:
        found += misfits(plan, cluster, job, heads or _known_heads(job))
        found += overdrawn(plan, cluster, job, heads)
    found += not_in_search(plan, job)
    found += over_issue_beyond(plan, job)
    if plan.job.reward.judge is None:
        found += deadline_faults(("job", "reward", "deadline_s"), plan.job.reward.deadline_s, job.reward.kind, profile)
    if profile is not None:
        pool = cluster.pools.get(plan.job.rounds.short.rollout.pool) if cluster is not None else None
        found += priced(plan, job, profile, pool)
    return found


def _nodes(plan: Plan, cluster: Cluster, job: Job | None, profile: Profile | None) -> int | None:
    """Nodes that the plan takes of its pool, host memory counted; None where that is not known."""
    pool = cluster.pools.get(plan.job.rounds.short.rollout.pool)
    if pool is None or job is None or profile is None:
        return None
    try:
        return nodes_of(plan.job, profile, pool, WEIGHT_BYTES[job.model.dtype])
    except InputError:
        return None  # a layout without costs is a finding of its own


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
    """Of a model on the hub whose shape is in the table; its trainers' layouts are memory_rules.py's to look at."""
    shape = architecture_of(job.model.path)
    return None if shape is None or shape.guessed else (shape.heads, shape.kv_heads)


def _missing(plan: Plan, path: str, job: Job, asked: Asked) -> list[Fault]:
    assert asked.policy is not None, "it asks for the files"
    place = asked.policy.place("require_job_files")
    return [
        Fault("policy-job-files", ("inputs", "job"), f"{'.'.join(loc)}: {text}; {place} has require_job_files: true")
        for loc, text in missing_files(job, input_path(plan.inputs.job, path), to_train=True)
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
    return found
