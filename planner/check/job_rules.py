"""Rules of a job. Reads the files that the job names, and the profile and cluster in its folder, as `solve` does by
default."""

from __future__ import annotations

import os
from pathlib import Path

from ...plans.check.any_document import read_document
from ...plans.check.finding import DataRow, Fault
from ...plans.check.plan_fit import one_of
from ...plans.facts.model_shape import model_of_job, tp_sizes, undivided
from ...plans.files.prompt_rows import MOST_FAULTS, held_out_ids, other_count
from ...plans.phrases.numbers import count
from ...plans.schema.cluster import Cluster
from ...plans.schema.job import Job, RowSets, job_paths, missing_files
from ...plans.schema.planned_job import PlannedJob
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_doc import Loc
from ...profiles.document_models import ALL_MODELS
from ...profiles.library.fitness import placement_unfit
from ...profiles.profile_schema import Profile
from ...rounds.round_spec import prompts_wanted
from .check_options import CheckOptions, DataReader, M
from .reward_rules import crowded_workers, failed_audit, function_unfit, judge_faults, short_deadlines


def job_faults(job: Job, path: str, options: CheckOptions) -> list[Fault]:
    """Faults of a job: files that are not there, TP sizes none of which divides the model's heads, and a deadline or
    workers that the profile and the cluster beside the job do not allow."""
    faults = _beside(job, path)
    missing = list(missing_files(job, path))
    if missing:
        return [*faults, *(Fault.of("input-missing", location, text) for location, text in missing)]
    paths = job_paths(job, path)
    faults += [
        *few_prompts(job, paths.data, ("data", "sets" if job.data.sets else "path"), options.data),
        *judge_faults(job, path),
    ]
    try:
        named = model_of_job(job, path)
    except InputError as error:
        return [*faults, Fault("input-unreadable", ("model", "path"), error.message)]
    beside = neighbour(path, "profile.yaml", Profile)
    if named.unsure and (beside is None or beside.provenance != "measured"):
        faults.append(Fault.of("model-guessed", ("model", "path"), named.unsure))
    model = named.shape
    undividing = [] if model is None else [text for tp in job.search.tp if (text := undivided(tp, model)) is not None]
    if model is None or len(undividing) < len(job.search.tp):
        return faults
    cluster = neighbour(path, "cluster.yaml", Cluster)
    most = max(pool.accelerators.per_node for pool in cluster.pools.values()) if cluster is not None else 1024
    remedy = one_of(tp_sizes(model, most))
    return [*faults, Fault("heads-not-divided", ("search", "tp"), ", ".join(undividing), remedy)]


def _beside(job: Job, path: str) -> list[Fault]:
    """Faults of the reward deadline and of the number of reward workers, by the profile and the cluster beside the job;
    without such a profile, by the reward seconds that ship."""
    profile, cluster = neighbour(path, "profile.yaml", Profile), neighbour(path, "cluster.yaml", Cluster)
    if profile is not None and profile.provenance == "measured" and profile.job != job.name:
        profile = None
    faults = [Fault.of("deadline-too-short", location, text) for location, text in short_deadlines(job, profile)]
    faults += [*_placement(job, cluster, profile), *function_unfit(job, path)]
    faults += failed_audit(None if profile is None else profile.reward_audit, ("reward",))
    pools = sorted(cluster.pools.items()) if cluster is not None else []
    crowded = [crowded_workers(job, name, pool) for name, pool in pools]
    if crowded and all(crowded) and crowded[0] is not None:
        faults.append(Fault.of("too-many-reward-workers", *crowded[0]))
    return faults


def _placement(job: Job, cluster: Cluster | None, profile: Profile | None) -> list[Fault]:
    """The fault of the pool that the job gives its trainers alone, by the cluster and the profile beside the job."""
    if job.placement is None or cluster is None:
        return []
    why = placement_unfit(cluster, job.placement.train_pool, profile)
    return [] if why is None else [Fault(why.rule, ("placement", "train_pool"), why.message, why.remedy)]


def neighbour(path: str, name: str, model: type[M]) -> M | None:
    """The document called `name` in the folder of `path`; None if there is none of that model."""
    file = Path(path).with_name(name)
    if not os.path.isfile(file):  # noqa: PTH113 (pathlib raises for what can be no path)
        return None
    read = read_document(str(file), ALL_MODELS)
    return read.value if isinstance(read.value, model) else None


def few_prompts(
    job: Job, data: Path | RowSets | None, location: Loc, reader: DataReader, plan: PlannedJob | None = None
) -> list[Fault]:
    """Faults of data that cannot be read, by their rows, or holds fewer prompts than a step trains, or than a plan's
    rounds want at a time; of a job also that its number of prompts is not what `data.prompts` says.

    `data`: None where the file is not here; then `data.prompts` of the job counts.
    """
    named = f"'{job.data.name}'" if data is not None else "data.prompts: the data"
    rows, trained = job.data.prompts, job.data.trained_prompts
    if data is not None:
        try:
            found = reader.read(data, job.reward)
        except InputError as error:
            return [_data_fault(job, location, each.line, each.message) for each in error.each()]
        if found.faults:
            return [
                _data_fault(
                    job, location, fault.line, fault.text, DataRow(str(fault.path or data), fault.line, fault.id)
                )
                for fault in found.faults
            ]
        rows = len(found.ids)
        trained = rows - len(held_out_ids(job.data, found.ids))
    if rows is None or trained is None:
        return []
    needed, few = job.rollout.prompts_per_step, count(trained, "prompt")
    few += "" if job.data.held_out is None else " beside those of data.held_out"
    if trained < needed:
        message = f"{named} has {few}, and a step trains {needed} different ones"
        return [Fault("too-few-prompts", location, message, "add rows, or lower rollout.prompts_per_step")]
    if plan is None:
        if job.data.prompts in (None, rows):
            return []
        return [Fault.of("prompts-miscounted", ("data", "prompts"), other_count(job, rows))]
    short, long, target = plan.rounds.short, plan.rounds.long, plan.issue.prompts_per_step
    queue = None if long is None or long.queue is None else long.issue.prompts
    wanted = prompts_wanted(plan.bias.mode, target, short.issue.prompts, short.long_share or 0.0, queue=queue)
    if trained >= wanted:
        return []
    message = f"{named} has {few}; a round's and those that wait for another are up to {wanted}"
    return [Fault("too-few-prompts", ("job", "rounds", "short", "issue", "prompts"), message, "solve again")]


def _data_fault(job: Job, location: Loc, line: int | None, text: str, row: DataRow | None = None) -> Fault:
    """The fault of a data file, at `location` of the job or of the plan that names it."""
    named = job.data.name if row is None or job.data.path else row.file
    place = named if line is None else f"{named}:{line}"
    message, _, remedy = text.partition("; ")
    return Fault("input-unreadable", location, f"{place}: {message}", remedy, row)


def data_notes(job: Job, path: str, reader: DataReader) -> list[str]:
    """Notes on the job's data: how many of its rows have faults, where they are very many, and how many answers could
    not be read as the reward will, for want of math-verify."""
    try:
        data = job_paths(job, path).data
        found = None if data is None else reader.read(data, job.reward)
    except InputError:
        return []
    if found is None:
        return []
    rows = count(len(found.ids) + len(found.faults), "row")
    many = [f"{len(found.faults)} of {rows} of the data have faults"] if len(found.faults) > MOST_FAULTS else []
    unread = (
        f"{found.unjudged} of {rows} have answers that only math-verify reads, and it is not installed here; to check "
        "them as well: pip install math-verify"
    )
    return [*many, *([unread] if found.unjudged else [])]
