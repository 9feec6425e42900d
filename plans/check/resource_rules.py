"""Rules on host cores, model splits and limits of a plan; a run can start without them. Reads no file."""

from __future__ import annotations

from collections.abc import Iterator

from ..facts.model_shape import ModelShape
from ..phrases.numbers import count
from ..schema.base import MOST_ACCELERATORS
from ..schema.cluster import Cluster, Pool
from ..schema.job import Job
from ..schema.levers import UpdateLayout
from ..schema.plan import Plan
from ..yaml.yaml_doc import Loc
from .finding import Fault
from .plan_fit import heads_fault, one_of

SLACK = 1e-4
"""Relative difference that rounding explains: figures in a plan have six digits."""


def _trainers(plan: Plan) -> list[tuple[Loc, UpdateLayout]]:
    """The trainers of each kind of round, with their locations in the plan."""
    rounds = plan.job.rounds
    trainers: list[tuple[Loc, UpdateLayout]] = [(("job", "rounds", "short", "train"), rounds.short.train)]
    if rounds.long is not None:
        trainers.append((("job", "rounds", "long", "train"), rounds.long.train))
    return trainers


def not_in_search(plan: Plan, job: Job) -> Iterator[Fault]:
    """Faults of an engine size or a cutoff that the job's search does not allow; `solve` would not choose it."""
    rounds = plan.job.rounds
    kinds = {"short": rounds.short.rollout} | ({"long": rounds.long.rollout} if rounds.long else {})
    for kind, rollout in kinds.items():
        if rollout.tp not in job.search.tp:
            message = f"is {rollout.tp}, and the job's search.tp is {list(job.search.tp)}"
            yield Fault(
                "not-in-search", ("job", "rounds", kind, "rollout", "tp"), message, "add it there, or solve again"
            )
    cutoff_tokens, bounds = rounds.short.cutoff_tokens, job.search.cutoff_tokens
    if cutoff_tokens is not None and bounds is not None and not bounds.holds(cutoff_tokens):
        most = "" if bounds.max is None else f" to {bounds.max}"
        message = f"is {cutoff_tokens}, and the job's search.cutoff_tokens is {bounds.min}{most}"
        yield Fault("not-in-search", ("job", "rounds", "short", "cutoff_tokens"), message, "widen it, or solve again")


def over_issue_beyond(plan: Plan, job: Job) -> Iterator[Fault]:
    """Faults of rounds that issue more samples per trained sample than the job's search.max_over_issue allows."""
    limit, step = job.search.max_over_issue, plan.job.issue
    rounds = plan.job.rounds
    issue = rounds.short.issue
    ratio = issue.prompts * issue.samples / (step.prompts_per_step * step.samples_per_prompt)
    remedy = "raise it there if that is meant, or solve again"
    if ratio > limit * (1 + SLACK):
        yield Fault(
            "over-issue-beyond-search",
            ("job", "rounds", "short", "issue"),
            f"{issue.prompts} x {issue.samples} samples are {ratio:.3g} times what is trained, and the job's "
            f"search.max_over_issue is {limit:g}",
            remedy,
        )
    if rounds.long is not None and rounds.long.issue.copies > limit * (1 + SLACK):
        yield Fault(
            "over-issue-beyond-search",
            ("job", "rounds", "long", "issue", "copies"),
            f"{rounds.long.issue.copies} copies of a group at once, and the job's search.max_over_issue is {limit:g}",
            remedy,
        )


def too_many_workers(workers: int, name: str, pool: Pool) -> str | None:
    """Message and remedy if the pool called `name` has fewer host cores than reward workers; None if it has enough."""
    cores = pool.nodes * pool.cores
    if workers <= cores:
        return None
    return f"{workers} reward workers, and pool '{name}' has {count(cores, 'host core')}; write at most {cores}"


def too_many_accelerators(pool: Pool) -> str | None:
    """Message and remedy if a pool has more accelerators than rlplan simulates; None if it has not."""
    if pool.accelerators_total <= MOST_ACCELERATORS:
        return None
    most = MOST_ACCELERATORS // pool.accelerators.per_node
    message = f"a pool of {pool.accelerators_total:,} accelerators is not simulated, one of {MOST_ACCELERATORS:,} is"
    return f"{message}; write at most {most} nodes for this job"


def pools_too_large(cluster: Cluster) -> Iterator[Fault]:
    """Faults of pools with more accelerators than rlplan simulates."""
    for name, pool in sorted(cluster.pools.items()):
        text = too_many_accelerators(pool)
        if text is not None:
            yield Fault.of("pool-too-large", ("pools", name, "nodes"), text)


def _unshared_heads(location: Loc, train: UpdateLayout, model: ModelShape) -> Fault | None:
    """The fault of sequence-parallel ranks of the trainers at `location` that do not share the heads evenly."""

    def shared(sp: int) -> bool:
        return sp == 1 or not (model.heads % (train.tp * sp) or model.kv_heads % (train.tp * sp))

    if shared(train.sp):
        return None
    message = (
        f"tp x sp {train.tp * train.sp} does not divide the model's {model.heads} attention and {model.kv_heads} "
        "key-value heads, which sequence-parallel ranks share out"
    )
    sizes = [sp for sp in range(1, model.kv_heads + 1) if shared(sp)]
    return Fault("heads-not-divided", (*location, "sp"), message, one_of(sizes))


def resource_faults(plan: Plan, cluster: Cluster, job: Job, model: ModelShape | None) -> Iterator[Fault]:
    """Faults of too many reward workers, kinds of round on two pools, trainers that split the model's heads unevenly,
    and a predicted p95 above the job's limit."""
    rounds = plan.job.rounds
    pool = cluster.pools.get(rounds.short.rollout.pool)
    if pool is not None:
        text = too_many_workers(plan.job.reward.all_workers, rounds.short.rollout.pool, pool)
        if text is not None:
            yield Fault.of("too-many-reward-workers", ("job", "reward", "workers"), text)
    if rounds.long is not None and rounds.long.rollout.pool != rounds.short.rollout.pool:
        yield Fault(
            "pools-differ",
            ("job", "rounds", "long", "rollout", "pool"),
            f"long rounds run on pool '{rounds.long.rollout.pool}' and short ones on '{rounds.short.rollout.pool}'; "
            "both kinds take turns on the nodes of one",
            "name the same pool in both",
        )
    for location, train in _trainers(plan):
        if model is None:
            break
        per_node = max(each.accelerators.per_node for each in cluster.pools.values())
        fault = heads_fault(location, train.tp, model, per_node) or _unshared_heads(location, train, model)
        if fault is not None:
            yield fault
    limit = job.slo.step_p95_s
    if limit is not None and plan.predicted.step_s.p95 > limit * (1 + SLACK):
        yield Fault(
            "slo-missed",
            ("predicted", "step_s", "p95"),
            f"95% of the steps are predicted to stay below {plan.predicted.step_s.p95:.6g} s, and the job's "
            f"slo.step_p95_s is {limit:.6g}",
            "solve again, or raise the limit in the job",
        )
