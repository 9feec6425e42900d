"""Whether a job's plan fits its cluster and its job: what nothing can be started without. Reads no file.

The executor asks the same rules before it starts anything (plans/check/plan_check.py), so their order is that of its
messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..schema.cluster import Cluster
from ..schema.job import Job, tp_divides
from ..schema.plan import Plan
from ..schema.sections.layouts import UpdateLayout
from ..schema.sections.levers import RewardJudge
from ..schema.sections.planned_job import PlannedJob
from ..schema.sections.planned_rounds import RoundRollout
from ..yaml.yaml_doc import Loc
from .finding import Fault


def misfits(plan: Plan, cluster: Cluster, job: Job, heads: tuple[int, int] | None) -> Iterator[Fault]:
    """Where `plan` does not fit `cluster` and `job`; `heads`: (attention, key-value) heads, None if unknown."""
    planned = plan.job
    if planned.name != job.name:
        what = f"the job is called '{job.name}', not '{planned.name}'"
        yield Fault("wrong-job", ("job", "name"), what, "solve again for this job")
    for key, ours, theirs in (
        ("prompts_per_step", planned.issue.prompts_per_step, job.rollout.prompts_per_step),
        ("samples_per_prompt", planned.issue.samples_per_prompt, job.rollout.samples_per_prompt),
    ):
        if ours != theirs:
            what = f"is {ours} but the job has {theirs}"
            yield Fault("wrong-step-size", ("job", "issue", key), what, f"write {theirs} or solve again")
    short, long = planned.rounds.short, planned.rounds.long
    cap = job.rollout.max_response_tokens
    if short.cutoff_tokens is not None and short.cutoff_tokens >= cap:
        yield Fault(
            "cutoff-beyond-cap",
            ("job", "rounds", "short", "cutoff_tokens"),
            f"is {short.cutoff_tokens}, but a response ends at {cap} tokens anyway (max_response_tokens)",
            f"write less than {cap}",
        )
    step = (planned.issue.prompts_per_step, planned.issue.samples_per_prompt)
    if step == (job.rollout.prompts_per_step, job.rollout.samples_per_prompt):  # else that is the fault
        yield from _loss(planned, job)
    kinds = [("short", short.rollout, short.train)] + ([("long", long.rollout, long.train)] if long else [])
    for kind, rollout, train in kinds:
        at: Loc = ("job", "rounds", kind)
        yield from _rollout((*at, "rollout"), rollout, cluster, heads)
        yield from _train((*at, "train"), train, rollout, cluster, job)
        if planned.reward.judge is not None:
            yield from _judge(planned.reward.judge, kind, rollout, cluster)


def _loss(planned: PlannedJob, job: Job) -> Iterator[Fault]:
    """Divisors of the loss that no synchronous step of this job can have."""
    samples, tokens, size = planned.loss.samples, planned.loss.tokens, job.rollout.samples_per_step
    masked, cap = job.algorithm.mask_truncated, job.rollout.max_response_tokens
    if samples > size or (samples < size and not masked):
        rule = "at most" if masked else "exactly"
        what = f"is {samples:g}, but a synchronous step has {rule} {size} samples in the loss"
        yield Fault("loss-divisor", ("job", "loss", "samples"), what, f"write {size} or solve again")
    # Tokens are whole, so they may be off by half of one.
    if not samples - 1 <= tokens <= samples * cap + 1:
        yield Fault(
            "loss-divisor",
            ("job", "loss", "tokens"),
            f"is {tokens:g}, but {samples:g} samples of 1 to {cap} tokens have {samples:g} to {samples * cap:g}",
            "solve again",
        )


def heads_fault(at: Loc, tp: int, heads: tuple[int, int]) -> Fault | None:
    """A tensor-parallel size that does not divide the heads."""
    attention, kv = heads
    if tp_divides(tp, heads):
        return None
    if attention % tp:
        good = [d for d in range(1, min(attention, 1024) + 1) if attention % d == 0]
        what = f"{tp} does not divide the model's {attention} attention heads"
        return Fault("heads-not-divided", (*at, "tp"), what, f"write one of {', '.join(map(str, good))}")
    what = f"{tp} neither divides the model's {kv} key-value heads nor is divided by them"
    return Fault("heads-not-divided", (*at, "tp"), what, "write another")


def _rollout(at: Loc, rollout: RoundRollout, cluster: Cluster, heads: tuple[int, int] | None) -> Iterator[Fault]:
    fault = heads_fault(at, rollout.tp, heads) if heads is not None else None
    if fault is not None:
        yield fault
    if rollout.pool not in cluster.pools:
        what = f"cluster '{cluster.name}' has no pool '{rollout.pool}'"
        yield Fault("unknown-pool", (*at, "pool"), what, f"its pools are {', '.join(cluster.pools)}")
        return
    pool = cluster.pools[rollout.pool]
    unit = "cores" if pool.accelerators.kind == "cpu" else "accelerators"
    fit = pool.engines_of(rollout.tp)
    if fit == 0:
        yield Fault(
            "engine-wider-than-node",
            (*at, "tp"),
            f"an engine of tp {rollout.tp} needs {rollout.tp} {unit} in one node, pool '{rollout.pool}' has "
            f"{pool.accelerators.per_node}",
            f"write at most {pool.accelerators.per_node}",
        )
    elif rollout.engines > fit:
        yield Fault(
            "too-many-engines",
            (*at, "engines"),
            f"{rollout.engines} engines of tp {rollout.tp} need {rollout.engines * rollout.tp} {unit}, pool "
            f"'{rollout.pool}' has {pool.accelerators_total} in {pool.nodes} node(s)",
            f"write at most {fit}",
        )


def _judge(judge: RewardJudge, kind: str, rollout: RoundRollout, cluster: Cluster) -> Iterator[Fault]:
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
        yield Fault(
            "judge-without-room",
            ("job", "reward", "judge", "instances"),
            f"{judge.instances} judge(s) of tp {judge.tp} need {judging} accelerators, {has}",
            f"write at most {room // judge.tp}" if room >= judge.tp else "take fewer engines, or write place: beside",
        )


def _narrower(each: int) -> str:
    return f"one trainer alone takes {each} (tp x pp x cp): shard it less, or take a larger pool"


def _train(at: Loc, train: UpdateLayout, rollout: RoundRollout, cluster: Cluster, job: Job) -> Iterator[Fault]:
    longest = job.rollout.longest_tokens
    if train.micro_batch_tokens < longest:
        yield Fault(
            "micro-batch-too-small",
            (*at, "micro_batch_tokens"),
            f"is {train.micro_batch_tokens}, but a sequence may have {longest} tokens (max_prompt_tokens + "
            "max_response_tokens) and is never split",
            f"write at least {longest}",
        )
    pool = cluster.pools.get(rollout.pool)
    if pool is not None and train.accelerators > pool.accelerators_total:
        unit = "cores" if pool.accelerators.kind == "cpu" else "accelerators"
        each = train.accelerators // train.dp
        yield Fault(
            "too-many-trainers",
            (*at, "dp"),
            f"{train.dp} trainers need {train.accelerators} {unit}, pool '{rollout.pool}' has "
            f"{pool.accelerators_total}",
            f"write at most {pool.accelerators_total // each}" if each <= pool.accelerators_total else _narrower(each),
        )
