"""Whether a plan still fits what it was solved from and where it is to run.

A plan is a file that people edit and that outlives its inputs. `check_plan` is asked before anything starts, and by
`--dry-run`; what it lets through, the executor may assert.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .cluster import Cluster, load_cluster
from .groups_plan import GroupsPlan
from .job import Job, JobPaths, job_paths, load_job, model_heads, tp_divides
from .levers import RewardJudge
from .origin import InputFile
from .plan import Plan, RoundRollout, RoundTrain, load_plan
from .yaml_doc import Loc
from .yaml_io import error_at, sha256_file


@dataclass(frozen=True)
class CheckedPlan:
    """A plan that holds, with what it was solved from.

    Attributes:
        plan, cluster, job: the documents.
        job_path: where job.yaml is.
        profile_path, lengths_path: where the profile and its trace are.
        paths: the job's model and data.
    """

    plan: Plan
    cluster: Cluster
    job: Job
    job_path: Path
    profile_path: Path
    lengths_path: Path
    paths: JobPaths


def open_plan(plan_path: str | Path) -> CheckedPlan:
    """Read a plan and all that it names, and check it whole: what a command does with a plan before it starts anything.

    The digests come first, so that a changed job is called stale and not judged. A model that is no local folder is not
    looked up, and its heads are not checked. Raises InputError.
    """
    plan = load_plan(plan_path)
    check_digests(plan, plan_path)
    job_path = input_path(plan.inputs.job, plan_path)
    cluster = load_cluster(input_path(plan.inputs.cluster, plan_path))
    job = load_job(job_path)
    paths = job_paths(job, job_path)
    heads = model_heads(paths.model_folder) if paths.model_folder else None
    check_plan(plan, plan_path, cluster, job, heads)
    return CheckedPlan(
        plan=plan,
        cluster=cluster,
        job=job,
        job_path=job_path,
        profile_path=input_path(plan.inputs.profile, plan_path),
        lengths_path=input_path(plan.inputs.lengths, plan_path),
        paths=paths,
    )


def changed_inputs(plan: GroupsPlan, plan_path: str | Path) -> list[str]:
    """Paths, as the plan has them, of input files that are missing or no longer the same."""
    inputs = plan.inputs
    files = [inputs.workload, inputs.cluster, *inputs.sources.values()]
    paths = [(file, input_path(file, plan_path)) for file in files]
    return [file.path for file, path in paths if not path.is_file() or sha256_file(path) != file.sha256]


def check_plan(plan: Plan, plan_path: str | Path, cluster: Cluster, job: Job, heads: tuple[int, int] | None) -> None:
    """Raise InputError, with the plan's line, for the first thing in `plan` that does not hold.

    In this order: an input file is missing or has changed; name, P or n differ from the job's; the cutoff is not below
    the job's cap; and for each kind of round: its TP does not divide the heads, its pool does not exist, its engines do
    not fit the pool, its micro-batch does not hold the longest sequence, its trainers do not fit the pool.

    Args:
        plan: from `load_plan`, hence consistent in itself.
        plan_path: its file; input paths are relative to its folder.
        cluster, job: as loaded from the files that the plan names.
        heads: (attention heads, key-value heads) as from `job.model_heads`; None when unknown, and not checked then.
    """
    check_digests(plan, plan_path)
    for loc, fault in faults(plan, cluster, job, heads):
        raise error_at(plan_path, loc, f"{'.'.join(str(part) for part in loc)}: {fault}")


def input_path(file: InputFile, plan_path: str | Path) -> Path:
    """Where an input of the plan at `plan_path` is."""
    return Path(plan_path).parent / file.path


def check_digests(plan: Plan, plan_path: str | Path) -> None:
    """Raise InputError when a file that the plan was solved from is missing or is no longer the same."""
    inputs = plan.inputs
    for name, file in (
        ("cluster", inputs.cluster),
        ("job", inputs.job),
        ("profile", inputs.profile),
        ("lengths", inputs.lengths),
    ):
        path = input_path(file, plan_path)
        if not path.is_file():
            raise error_at(
                plan_path,
                ("inputs", name, "path"),
                f"inputs.{name}.path: no such file: '{file.path}'; paths are relative to the plan, put the file back "
                "or solve again",
            )
        actual = sha256_file(path)
        if actual != file.sha256:
            raise error_at(
                plan_path,
                ("inputs", name, "sha256"),
                f"inputs.{name}: '{file.path}' has changed since the plan was solved (sha256 {actual[:12]}…, the plan "
                f"has {file.sha256[:12]}…); run `rlplan solve` again or restore the file",
            )


def faults(plan: Plan, cluster: Cluster, job: Job, heads: tuple[int, int] | None) -> Iterator[tuple[Loc, str]]:
    """Where `plan` does not fit `cluster` and `job`: (location in the plan, what and remedy). Reads no file."""
    planned = plan.job
    if planned.name != job.name:
        yield ("job", "name"), f"the job is called '{job.name}', not '{planned.name}'; solve again for this job"
    for key, ours, theirs in (
        ("prompts_per_step", planned.issue.prompts_per_step, job.rollout.prompts_per_step),
        ("samples_per_prompt", planned.issue.samples_per_prompt, job.rollout.samples_per_prompt),
    ):
        if ours != theirs:
            yield (
                ("job", "issue", key),
                f"is {ours} but the job has {theirs}; write {theirs} or solve again",
            )
    short, long = planned.rounds.short, planned.rounds.long
    cap = job.rollout.max_response_tokens
    if short.cutoff_tokens is not None and short.cutoff_tokens >= cap:
        yield (
            ("job", "rounds", "short", "cutoff_tokens"),
            f"is {short.cutoff_tokens}, but a response ends at {cap} tokens anyway (max_response_tokens); "
            f"write less than {cap}",
        )
    kinds = [("short", short.rollout, short.train)] + ([("long", long.rollout, long.train)] if long else [])
    for kind, rollout, train in kinds:
        at: Loc = ("job", "rounds", kind)
        yield from _rollout_faults((*at, "rollout"), rollout, cluster, heads)
        yield from _train_faults((*at, "train"), train, rollout, cluster, job)
        if planned.reward.judge is not None:
            yield from _judge_faults(planned.reward.judge, kind, rollout, cluster)


def _rollout_faults(
    at: Loc, rollout: RoundRollout, cluster: Cluster, heads: tuple[int, int] | None
) -> Iterator[tuple[Loc, str]]:
    if heads is not None and not tp_divides(rollout.tp, heads):
        attention, kv = heads
        if attention % rollout.tp:
            good = [d for d in range(1, attention + 1) if attention % d == 0]
            yield (
                (*at, "tp"),
                f"{rollout.tp} does not divide the model's {attention} attention heads; "
                f"write one of {', '.join(map(str, good))}",
            )
        else:
            yield (
                (*at, "tp"),
                f"{rollout.tp} neither divides the model's {kv} key-value heads nor is divided by them; write another",
            )
    if rollout.pool not in cluster.pools:
        pools = ", ".join(cluster.pools)
        yield (*at, "pool"), f"cluster '{cluster.name}' has no pool '{rollout.pool}'; its pools are {pools}"
        return
    pool = cluster.pools[rollout.pool]
    unit = "cores" if pool.accelerators.kind == "cpu" else "accelerators"
    fit = pool.engines_of(rollout.tp)
    if fit == 0:
        yield (
            (*at, "tp"),
            f"an engine of tp {rollout.tp} needs {rollout.tp} {unit} in one node, pool '{rollout.pool}' has "
            f"{pool.accelerators.per_node}; write at most {pool.accelerators.per_node}",
        )
    elif rollout.engines > fit:
        yield (
            (*at, "engines"),
            f"{rollout.engines} engines of tp {rollout.tp} need {rollout.engines * rollout.tp} {unit}, pool "
            f"'{rollout.pool}' has {pool.accelerators_total} in {pool.nodes} node(s); write at most {fit}",
        )


def _judge_faults(judge: RewardJudge, kind: str, rollout: RoundRollout, cluster: Cluster) -> Iterator[tuple[Loc, str]]:
    """A judge of its own needs accelerators that no engine has; one beside the engines, accelerators that they have."""
    pool = cluster.pools.get(rollout.pool)
    if pool is None:
        return
    decoding, judging = rollout.engines * rollout.tp, judge.instances * judge.tp
    room = decoding if judge.place == "beside" else pool.accelerators_total - decoding
    if judging > room:
        has = f"a {kind} round's engines have {room}"
        if judge.place == "own":
            has = f"a {kind} round's engines leave {room} of pool '{rollout.pool}' free"
        remedy = (
            f"write at most {room // judge.tp}" if room >= judge.tp else "take fewer engines, or write place: beside"
        )
        yield (
            ("job", "reward", "judge", "instances"),
            f"{judge.instances} judge(s) of tp {judge.tp} need {judging} accelerators, {has}; {remedy}",
        )


def _train_faults(
    at: Loc, train: RoundTrain, rollout: RoundRollout, cluster: Cluster, job: Job
) -> Iterator[tuple[Loc, str]]:
    longest = job.rollout.longest_tokens
    if train.micro_batch_tokens < longest:
        yield (
            (*at, "micro_batch_tokens"),
            f"is {train.micro_batch_tokens}, but a sequence may have {longest} tokens (max_prompt_tokens + "
            f"max_response_tokens) and is never split; write at least {longest}",
        )
    pool = cluster.pools.get(rollout.pool)
    if pool is not None and train.accelerators > pool.accelerators_total:
        unit = "cores" if pool.accelerators.kind == "cpu" else "accelerators"
        each = train.accelerators // train.dp
        yield (
            (*at, "dp"),
            f"{train.dp} trainers need {train.accelerators} {unit}, pool '{rollout.pool}' has "
            f"{pool.accelerators_total}; write at most {pool.accelerators_total // each}",
        )
