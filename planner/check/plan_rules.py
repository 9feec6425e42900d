"""Rules of a plan of one job. Reads its inputs."""

from __future__ import annotations

from ...plans.check.finding import Fault
from ...plans.check.plan_fit import misfits, not_in_search, over_issue_beyond, pools_too_large, resource_faults
from ...plans.check.prediction_rules import (
    bias_over_budget,
    forgetful_moments,
    gap_faults,
    length_faults,
    price_faults,
    slow_decode_steps,
    thin_trace,
)
from ...plans.check.site_breaches import plan_breaches, unknown_pools
from ...plans.check.solved_rules import (
    decisions_edited,
    input_path,
    other_version,
    predictions_edited,
    solved_at_unlikely,
    stale_inputs,
)
from ...plans.facts.model_shape import UNKNOWN, NamedModel, model_of_job
from ...plans.schema.cluster import Cluster
from ...plans.schema.job import Job, JobPaths, job_paths, missing_files, model_folder
from ...plans.schema.plan import InputFile, LengthsInput, Plan
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_doc import Loc
from ...profiles.laws.suspicions import suspicions
from ...profiles.library.fitness import other_accelerator, unfit
from ...profiles.library.scaled_profile import priced_as
from ...profiles.profile_schema import Profile
from ..costs.job_pools import NodesTaken, pools_of_plan
from ..costs.memory_table import JobMemory
from ..costs.round_costs import nodes_of
from ..lengths.table_lengths import changed_table
from .accelerator_rules import unlike_names_at
from .check_options import CheckOptions, M, opened
from .job_rules import few_prompts
from .memory_rules import bars, bars_as_they_are, priced
from .profile_rules import age_faults, age_text, trace_faults
from .reward_rules import failed_audit, function_unfit, judge_faults, plan_deadlines, reward_faults


def plan_faults(plan: Plan, path: str, options: CheckOptions) -> tuple[list[Fault], str]:
    """(faults of a plan of one job, a line on what was checked)."""
    faults: list[Fault] = [
        *stale_inputs(plan, path),
        *decisions_edited(plan),
        *other_version(plan),
        *predictions_edited(plan),
    ]
    faults += [*bias_over_budget(plan), *gap_faults(plan), *thin_trace(plan), *slow_decode_steps(plan)]
    faults += solved_at_unlikely(plan, options.now)
    faults += bars(plan)

    inputs = plan.inputs
    job, cluster, profile = documents(plan, path, faults)
    faults += _lengths(inputs.lengths, path)
    faults += failed_audit(inputs.profile.reward_audit, ("inputs", "profile", "reward_audit"))
    faults += reward_faults(plan, profile, job)
    paths, model = _files(plan, path, job, faults)
    if job is not None and paths is not None:
        faults += few_prompts(job, paths.data, ("inputs", "job"), options.data, plan.job)
        faults += judge_faults(job, input_path(inputs.job, path), ("inputs", "job"))
        faults += function_unfit(job, input_path(inputs.job, path), ("inputs", "job"))
    if cluster is not None:
        faults += unlike_names_at(("inputs", "cluster"), cluster, profile)
        faults += _too_large(plan, cluster)
        faults += price_faults(plan, cluster, _nodes(plan, cluster, job, profile))
    if job is not None:
        faults += [*length_faults(plan, job), *forgetful_moments(plan, job)]
    faults += physics(plan, cluster, job, profile, model)
    if model.unsure and profile is not None and profile.provenance != "measured":
        faults.append(Fault.of("model-guessed", ("inputs", "job"), model.unsure))
    if profile is not None:
        faults += _profile(plan, profile, cluster, job, paths, options)
    faults += bars_as_they_are(plan, profile, pools_of_plan(plan.job, cluster))
    if options.site_rules is not None:
        faults += plan_breaches(plan, options.site_rules, job)
        faults += unknown_pools(options.site_rules, cluster, ("inputs", "cluster"))
        if options.site_rules.rules.require_job_files and job is not None:
            faults += _missing(plan, path, job, options)
    age = age_text(profile, options) if profile is not None else "no profile"
    return faults, f"{plan.job.bias.mode} plan of {plan.job.name}; {age}"


def _too_large(plan: Plan, cluster: Cluster) -> list[Fault]:
    """The faults of pools of the plan that have become larger than one job is planned on."""
    named = plan.job.placement
    names = {plan.job.rounds.short.rollout.pool, *([] if named is None else [named.train_pool])}
    large = [fault for fault in pools_too_large(cluster) if fault.location[1] in names]
    return [Fault(fault.rule, ("inputs", "cluster"), f"{fault.key}: {fault.message}", fault.remedy) for fault in large]


def _lengths(given: LengthsInput, path: str) -> list[Fault]:
    """The fault of a length trace that cannot be read, or of a table that has changed since the plan was solved."""
    location: Loc = ("inputs", "lengths")
    if given.file is not None:
        return trace_faults(input_path(given.file, path), given.file.path, location)
    changed = changed_table(given)
    return [] if changed is None else [Fault("input-changed", location, changed, "solve again")]


def documents(plan: Plan, path: str, faults: list[Fault]) -> tuple[Job | None, Cluster | None, Profile | None]:
    """(job, cluster, profile as it prices the job's model) of the plan at `path` as they are now; None for one that is
    missing or is no such document, and then the latter is added to `faults`."""

    def read(name: str, file: InputFile, model: type[M]) -> M | None:
        return opened(input_path(file, path), file.path, model, ("inputs", name), faults)

    inputs = plan.inputs
    cluster, job = read("cluster", inputs.cluster, Cluster), read("job", inputs.job, Job)
    profile = read("profile", inputs.profile, Profile)
    if job is not None and profile is not None:
        profile = priced_as(profile, job, model_folder(job, input_path(inputs.job, path)))
    return job, cluster, profile


def suspicions_of(plan: Plan, profile: Profile) -> list[Fault]:
    """Faults of the profile of a plan, at their keys in the profile, by the samples that the plan trains."""
    limit = plan.predicted.limit
    return suspicions(profile, 0.0 if limit is None else limit.tokens_by_token)


def physics(
    plan: Plan, cluster: Cluster | None, job: Job | None, profile: Profile | None, model: NamedModel = UNKNOWN
) -> list[Fault]:
    """Faults of a plan's decisions: they must fit the job and the cluster, have costs, and fit into memory. Reads no
    file.

    `model`: what is known of the job's model.
    """
    faults: list[Fault] = []
    if job is None:
        return faults
    if cluster is not None:
        faults += misfits(plan, cluster, job, model.shape)
        faults += resource_faults(plan, cluster, job, model.shape)
    faults += not_in_search(plan, job)
    faults += over_issue_beyond(plan, job)
    faults += plan_deadlines(plan, job, profile)
    if profile is not None:
        faults += priced(plan, job, profile, pools_of_plan(plan.job, cluster), model.architecture)
    return faults


def _nodes(plan: Plan, cluster: Cluster, job: Job | None, profile: Profile | None) -> NodesTaken | None:
    """Nodes that the plan takes of its pools, host memory counted; None where its costs are not known."""
    pools = pools_of_plan(plan.job, cluster)
    if pools is None or job is None or profile is None:
        return None
    try:
        return nodes_of(plan.job, JobMemory(profile, pools, job.model.dtype))
    except InputError:
        return None  # a layout without costs is a finding of its own


def _files(plan: Plan, path: str, job: Job | None, faults: list[Fault]) -> tuple[JobPaths | None, NamedModel]:
    """(the job's files, None where they are not on this machine, what is known of its model): a plan is
    reviewed without its data."""
    if job is None:
        return None, UNKNOWN
    job_path = input_path(plan.inputs.job, path)
    paths = None if any(missing_files(job, job_path)) else job_paths(job, job_path)
    try:
        return paths, model_of_job(job, job_path)
    except InputError as error:
        message = f"the job's model folder: {error.message}"
        faults.append(Fault("input-unreadable", ("inputs", "job"), message))
        return paths, UNKNOWN


def _missing(plan: Plan, path: str, job: Job, options: CheckOptions) -> list[Fault]:
    assert options.site_rules is not None, "it asks for the files"
    place = options.site_rules.place("require_job_files")
    return [
        Fault(
            "policy-job-files",
            ("inputs", "job"),
            f"{'.'.join(map(str, location))}: {text}; {place} has require_job_files: true",
        )
        for location, text in missing_files(job, input_path(plan.inputs.job, path), to_train=True)
    ]


def _profile(
    plan: Plan,
    profile: Profile,
    cluster: Cluster | None,
    job: Job | None,
    paths: JobPaths | None,
    options: CheckOptions,
) -> list[Fault]:
    location: Loc = ("inputs", "profile")
    faults = age_faults(profile, location, options)
    stated = plan.inputs.profile.provenance
    if stated != profile.provenance:
        message = f"is {stated}, and the profile itself says {profile.provenance}"
        faults.append(Fault("provenance-differs", (*location, "provenance"), message, f"write {profile.provenance}"))
    for fault in suspicions_of(plan, profile):
        message = fault.message if fault.rule == "profile-scaled" else f"{fault.key}: {fault.message}"
        faults.append(Fault(fault.rule, location, message, fault.remedy))
    if job is None:
        return faults
    pools, named = {} if cluster is None else cluster.pools, plan.job.placement
    pool = pools.get(plan.job.rounds.short.rollout.pool)
    faults += [
        Fault(why.rule, location, why.message, why.remedy) for why in unfit(profile, job, paths, [pool] if pool else [])
    ]
    if named is not None and named.train_pool in pools:
        unlike = other_accelerator(profile, pools[named.train_pool], named.train_pool)
        if unlike is not None and (pool is None or pool.accelerators.kind == pools[named.train_pool].accelerators.kind):
            faults.append(Fault.of("profile-of-other-machine", ("job", "placement", "train_pool"), unlike))
    return faults
