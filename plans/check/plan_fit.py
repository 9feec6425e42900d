"""Whether a job's plan fits its cluster and its job, so that a run can start. Reads no file.

The executor checks these rules before it starts anything (plans/check/plan_check.py) and prints the faults in this
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..facts.executable import unsupported
from ..facts.model_shape import ModelShape, tp_sizes, undivided
from ..phrases.numbers import count
from ..schema.cluster import Cluster
from ..schema.job import Job
from ..schema.levers import RewardJudge, UpdateLayout
from ..schema.plan import Plan
from ..schema.planned_job import PlacementSpec, PlannedJob
from ..schema.planned_rounds import RoundRollout
from ..yaml.yaml_doc import Loc
from .finding import Fault


def misfits(plan: Plan, cluster: Cluster, job: Job, model: ModelShape | None) -> Iterator[Fault]:
    """Faults of a plan that does not fit its cluster and job; `model`: the shape of the job's model, None: unknown."""
    planned = plan.job
    if planned.name != job.name:
        message = f"the job is called '{job.name}', not '{planned.name}'"
        yield Fault("wrong-job", ("job", "name"), message, "solve again for this job")
    for key, planned_value, job_value in (
        ("prompts_per_step", planned.issue.prompts_per_step, job.rollout.prompts_per_step),
        ("samples_per_prompt", planned.issue.samples_per_prompt, job.rollout.samples_per_prompt),
    ):
        if planned_value != job_value:
            message = f"is {planned_value} but the job has {job_value}"
            yield Fault("wrong-step-size", ("job", "issue", key), message, f"write {job_value} or solve again")
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
    if step == (job.rollout.prompts_per_step, job.rollout.samples_per_prompt):  # else the step size is the fault
        yield from _loss(planned, job)
    yield from _placement(planned, cluster)
    kinds = [("short", short.rollout, short.train)] + ([("long", long.rollout, long.train)] if long else [])
    for kind, rollout, train in kinds:
        location: Loc = ("job", "rounds", kind)
        yield from _rollout((*location, "rollout"), rollout, cluster, model)
        yield from _train((*location, "train"), train, rollout, cluster, job, planned.placement)
        if planned.reward.judge is not None:
            yield from _judge(planned.reward.judge, kind, rollout, cluster)
    yield from _rewards(planned, job)


def executor_faults(plan: Plan, model: ModelShape | None, cluster: Cluster | None) -> list[Fault]:
    """The decisions that `rlplan execute` cannot run; `model`: the shape of the job's model, None: unknown. `cluster`:
    None: not read."""
    pool = None if cluster is None else cluster.pools.get(plan.job.rounds.short.rollout.pool)
    return [
        Fault("not-executable", *fault)
        for fault in unsupported(plan, model, None if pool is None else pool.accelerators.kind)
    ]


def _rewards(planned: PlannedJob, job: Job) -> Iterator[Fault]:
    """Faults of a plan whose pools of reward workers are not those of the parts of the job's reward."""
    names = [part.label for part in job.reward.pooled]
    further = names[1:]
    if (planned.reward.workers > 0) != bool(names):
        message = f"is {planned.reward.workers}, and " + (
            f"the job's reward has the part '{names[0]}'" if names else "no part of the job's reward needs workers"
        )
        yield Fault("rewards-differ", ("job", "reward", "workers"), message, "solve again for this job")
    if planned.reward.judge is None and job.reward.judge is not None:
        message = "has no judge, and a part of the job's reward is of kind judge"
        yield Fault("rewards-differ", ("job", "reward"), message, "solve again for this job")
    if planned.reward.judge is not None and job.reward.judge is None:
        message = "is there, and no part of the job's reward is of kind judge"
        yield Fault("rewards-differ", ("job", "reward", "judge"), message, "remove the key, or solve again")
    if list(planned.reward.further) != further:
        message = (
            f"has {_names(planned.reward.further)}, and the further parts of the job's reward with workers are "
            f"{_names(further)}"
        )
        yield Fault("rewards-differ", ("job", "reward", "further"), message, "solve again for this job")


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _loss(planned: PlannedJob, job: Job) -> Iterator[Fault]:
    """Faults of loss divisors that no synchronous step of this job can have."""
    samples, tokens, size = planned.loss.samples, planned.loss.tokens, job.rollout.samples_per_step
    masked, cap = job.algorithm.mask_truncated, job.rollout.max_response_tokens
    if samples > size or (samples < size and not masked):
        rule = "at most" if masked else "exactly"
        message = f"is {samples:g}, but a synchronous step has {rule} {size} samples in the loss"
        yield Fault("loss-divisor", ("job", "loss", "samples"), message, f"write {size} or solve again")
    # Tokens are whole numbers, so rounding may add or remove one.
    if not samples - 1 <= tokens <= samples * cap + 1:
        yield Fault(
            "loss-divisor",
            ("job", "loss", "tokens"),
            f"is {tokens:g}, but {samples:g} samples of 1 to {cap} tokens have {samples:g} to {samples * cap:g}",
            "solve again",
        )


def heads_fault(location: Loc, tp: int, model: ModelShape, per_node: int) -> Fault | None:
    """The fault of a tensor-parallel size at `location` that does not divide the heads, with those within a node that
    do; None if it divides them."""
    message = undivided(tp, model)
    if message is None:
        return None
    return Fault("heads-not-divided", (*location, "tp"), message, one_of(tp_sizes(model, per_node)))


def one_of(sizes: Sequence[int]) -> str:
    """The remedy that names the sizes which can be written."""
    return f"write {'one of ' if len(sizes) > 1 else ''}{', '.join(map(str, sizes))}"


def _rollout(location: Loc, rollout: RoundRollout, cluster: Cluster, model: ModelShape | None) -> Iterator[Fault]:
    per_node = max(pool.accelerators.per_node for pool in cluster.pools.values())
    if rollout.pool in cluster.pools:
        per_node = cluster.pools[rollout.pool].accelerators.per_node
    fault = heads_fault(location, rollout.tp, model, per_node) if model is not None else None
    if fault is not None:
        yield fault
    if rollout.pool not in cluster.pools:
        message = f"cluster '{cluster.name}' has no pool '{rollout.pool}'"
        yield Fault("unknown-pool", (*location, "pool"), message, f"its pools are {', '.join(cluster.pools)}")
        return
    pool = cluster.pools[rollout.pool]
    unit = "cores" if pool.accelerators.kind == "cpu" else "accelerators"
    most_engines = pool.engines_of(rollout.tp)
    if most_engines == 0:
        yield Fault(
            "engine-wider-than-node",
            (*location, "tp"),
            f"an engine of tp {rollout.tp} needs {rollout.tp} {unit} in one node, pool '{rollout.pool}' has "
            f"{pool.accelerators.per_node}",
            f"write at most {pool.accelerators.per_node}",
        )
    elif rollout.engines > most_engines:
        yield Fault(
            "too-many-engines",
            (*location, "engines"),
            f"{count(rollout.engines, 'engine')} of tp {rollout.tp} need {rollout.engines * rollout.tp} {unit}, pool "
            f"'{rollout.pool}' has {pool.accelerators_total} in {count(pool.nodes, 'node')}",
            f"write at most {most_engines}",
        )


def _judge(judge: RewardJudge, kind: str, rollout: RoundRollout, cluster: Cluster) -> Iterator[Fault]:
    """Faults of a judge model without room: a judge of its own needs accelerators without an engine, and a judge
    beside the engines needs the engines' accelerators."""
    pool = cluster.pools.get(rollout.pool)
    if pool is None:
        return
    decoding, judging = rollout.engines * rollout.tp, judge.instances * judge.tp
    room = decoding if judge.place == "beside" else pool.accelerators_total - decoding
    if judging > room:
        room_text = f"a {kind} round's engines have {room}"
        if judge.place == "own":
            room_text = f"a {kind} round's engines leave {room} of pool '{rollout.pool}' free"
        yield Fault(
            "judge-without-room",
            ("job", "reward", "judge", "instances"),
            f"{count(judge.instances, 'judge')} of tp {judge.tp} {_need(judge.instances)} "
            f"{count(judging, 'accelerator')}, {room_text}",
            f"write at most {room // judge.tp}" if room >= judge.tp else "take fewer engines, or write place: beside",
        )


def _placement(planned: PlannedJob, cluster: Cluster) -> Iterator[Fault]:
    """Faults of the pool that trainers have to themselves."""
    if planned.placement is None:
        return
    for rule, message, remedy in pool_faults(cluster, planned.placement.train_pool, planned.rounds.short.rollout.pool):
        yield Fault(rule, ("job", "placement", "train_pool"), message, remedy)


def pool_faults(cluster: Cluster, name: str, engines: str) -> Iterator[tuple[str, str, str]]:
    """(rule, message, remedy) of each fault of pool `name` as the one that trainers have to themselves, beside engines
    on pool `engines`."""
    pool, others = cluster.pools.get(name), cluster.pools.get(engines)
    if pool is None:
        message = f"cluster '{cluster.name}' has no pool '{name}'"
        yield "unknown-pool", message, f"its pools are {', '.join(cluster.pools)}"
    elif name == engines:
        message = f"is {name}, which is the engines' pool"
        yield "same-pool", message, "name another pool, or remove placement: they then take turns"
    elif others is not None and pool.accelerators.kind != others.accelerators.kind:
        message = (
            f"pool '{name}' is of kind {pool.accelerators.kind}, and the engines' pool is of kind "
            f"{others.accelerators.kind}"
        )
        yield "pools-of-two-kinds", message, "name a pool of the same kind"


def _train(
    location: Loc,
    train: UpdateLayout,
    rollout: RoundRollout,
    cluster: Cluster,
    job: Job,
    placement: PlacementSpec | None = None,
) -> Iterator[Fault]:
    longest = job.rollout.longest_tokens
    if train.micro_batch_tokens < longest:
        yield Fault(
            "micro-batch-too-small",
            (*location, "micro_batch_tokens"),
            f"is {train.micro_batch_tokens}, but a sequence may have {longest} tokens (max_prompt_tokens + "
            "max_response_tokens) and is never split",
            f"write at least {longest}",
        )
    name = rollout.pool if placement is None else placement.train_pool
    pool = cluster.pools.get(name)
    if pool is not None and train.accelerators > pool.accelerators_total:
        unit = "cores" if pool.accelerators.kind == "cpu" else "accelerators"
        per_trainer = train.accelerators // train.dp
        remedy = f"write at most {pool.accelerators_total // per_trainer}"
        if per_trainer > pool.accelerators_total:
            remedy = f"one trainer alone takes {per_trainer} (tp x pp x cp x sp): shard it less, or take a larger pool"
        yield Fault(
            "too-many-trainers",
            (*location, "dp"),
            f"{count(train.dp, 'trainer')} {_need(train.dp)} {train.accelerators} {unit}, pool "
            f"'{name}' has "
            f"{pool.accelerators_total}",
            remedy,
        )


def _need(number: int) -> str:
    return "needs" if number == 1 else "need"
