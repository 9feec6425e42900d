"""Whether a plan fits its inputs: a job's plan its cluster and its job, a plan of groups its cluster and its workload.
Reads no file. Figures are written with six digits, so two figures that should be equal agree to `CLOSE`.

Of a job's plan, the executor checks the rules of `misfits` before it starts anything (plans/check/plan_check.py) and
prints the faults in this order. A run can start without the rules on host cores, model splits and limits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ..facts.executable import unsupported
from ..facts.model_shape import ModelShape, tp_sizes, undivided
from ..phrases.numbers import count
from ..schema.base import MOST_ACCELERATORS
from ..schema.cluster import Cluster, Pool
from ..schema.groups_plan import GroupsPlan, PlannedGroup
from ..schema.job import Job
from ..schema.levers import RewardJudge, UpdateLayout
from ..schema.plan import Plan
from ..schema.planned_job import PlacementSpec, PlannedJob
from ..schema.planned_rounds import RoundRollout
from ..schema.workload import OtherWay, Phase, Workload
from ..yaml.yaml_doc import Loc
from .finding import Fault

AGAIN = "solve again; do not edit the figures"

CLOSE = 1e-3
"""Relative difference of figures that count as equal: too small to matter to a reviewer, and far above rounding."""

SLACK = 1e-4
"""Relative difference that rounding explains: figures in a plan have six digits."""


def close(value: float, expected: float) -> bool:
    """Whether two figures are equal but for rounding."""
    return math.isclose(value, expected, rel_tol=CLOSE, abs_tol=1e-9)


def differs(
    rule: str, location: Loc, stated: float, expected: float, beside: str, remedy: str = "solve again", unit: str = ""
) -> Iterator[Fault]:
    """The fault of a figure that the plan states, where that is not close to the one which other documents or figures
    of the plan give; `beside`: what gives it, as the message tells it before that one."""
    if not close(stated, expected):
        old, new = (f"{value}" if isinstance(value, int) else f"{value:.6g}" for value in (stated, expected))
        yield Fault(rule, location, f"is {old}{unit}, and {beside} {new}{unit}", remedy)


def _unknown_pool(cluster: Cluster, name: str, location: Loc) -> Fault:
    message = f"cluster '{cluster.name}' has no pool '{name}'"
    return Fault("unknown-pool", location, message, f"its pools are {', '.join(cluster.pools)}")


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
    short = planned.rounds.short
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
    if job.algorithm.whole_step is not None and planned.bias.mode != "sync":
        message = (
            f"is {planned.bias.mode}, and the job's algorithm has {job.algorithm.whole_step}, which divides by what a "
            "step itself has: a token would weigh differently in short and in long rounds"
        )
        yield Fault("divided-by-step", ("job", "bias", "mode"), message, "solve again, which then takes mode sync")
    yield from _reference(planned, job)
    if planned.placement is not None:
        yield from pool_faults(cluster, planned.placement.train_pool, short.rollout.pool)
    for name, kind in planned.rounds.kinds:
        location: Loc = ("job", "rounds", name)
        yield from _rollout((*location, "rollout"), kind.rollout, cluster, model)
        yield from _train((*location, "train"), kind.train, kind.rollout, cluster, job, planned.placement)
        if planned.reward.judge is not None:
            yield from _judge(planned.reward.judge, name, kind.rollout, cluster)
    yield from _rewards(planned, job)


def _reference(planned: PlannedJob, job: Job) -> Iterator[Fault]:
    """Faults of a plan whose reference is not where the job's KL wants it, or that has one for no KL."""
    kl = job.algorithm.kl
    wanted = "none" if kl is None else kl.placement
    for name, kind in planned.rounds.kinds:
        place = kind.train.reference
        if place == wanted or (wanted == "auto" and place != "none"):
            continue
        of_job = "the job has no algorithm.kl" if kl is None else f"the job's algorithm.kl has placement {wanted}"
        remedy = "device or host, or solve again" if wanted == "auto" else f"{wanted}, or solve again"
        location = ("job", "rounds", name, "train", "reference")
        yield Fault("reference-differs", location, f"is {place}, and {of_job}", f"write {remedy}")


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
        yield _unknown_pool(cluster, rollout.pool, (*location, "pool"))
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


def pool_faults(cluster: Cluster, name: str, engines: str) -> Iterator[Fault]:
    """Faults of pool `name` as the one that trainers have to themselves, beside engines on pool `engines`."""
    pool, others = cluster.pools.get(name), cluster.pools.get(engines)
    location: Loc = ("job", "placement", "train_pool")
    if pool is None:
        yield _unknown_pool(cluster, name, location)
    elif name == engines:
        message = f"is {name}, which is the engines' pool"
        yield Fault("same-pool", location, message, "name another pool, or remove placement: they then take turns")
    elif others is not None and pool.accelerators.kind != others.accelerators.kind:
        message = (
            f"pool '{name}' is of kind {pool.accelerators.kind}, and the engines' pool is of kind "
            f"{others.accelerators.kind}"
        )
        yield Fault("pools-of-two-kinds", location, message, "name a pool of the same kind")


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


def not_in_search(plan: Plan, job: Job) -> Iterator[Fault]:
    """Faults of an engine size or a cutoff that the job's search does not allow; `solve` would not choose it."""
    rounds = plan.job.rounds
    for name, kind in rounds.kinds:
        if kind.rollout.tp not in job.search.tp:
            message = f"is {kind.rollout.tp}, and the job's search.tp is {list(job.search.tp)}"
            location: Loc = ("job", "rounds", name, "rollout", "tp")
            yield Fault("not-in-search", location, message, "add it there, or solve again")
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
    per_node = max(each.accelerators.per_node for each in cluster.pools.values())
    for name, kind in rounds.kinds:
        if model is None:
            break
        location: Loc = ("job", "rounds", name, "train")
        fault = heads_fault(location, kind.train.tp, model, per_node) or _unshared_heads(location, kind.train, model)
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


def against_cluster(plan: GroupsPlan, cluster: Cluster) -> Iterator[Fault]:
    """Faults of groups on nodes that the cluster does not have, or with a price that is not that of their nodes."""
    nodes_taken: Counter[str] = Counter()
    for key, group in plan.groups.items():
        price, pools_known = 0.0, True
        for index, node in enumerate(group.nodes):
            location: Loc = ("groups", key, "nodes", index)
            pool = cluster.pools.get(node.pool)
            if pool is None:
                pools_known = False
                yield _unknown_pool(cluster, node.pool, (*location, "pool"))
                continue
            nodes_taken[node.pool] += 1
            price += pool.node_price
            for size in ("slots", "host_memory_bytes"):
                stated, there = getattr(node, size), getattr(pool, size)
                beside = f"a node of pool '{node.pool}' has"
                yield from differs("node-unlike-pool", (*location, size), stated, there, beside)
            if node.resident_bytes > pool.host_memory_bytes * (1 + CLOSE):
                message = (
                    f"{node.resident_bytes:.6g} bytes of state, and a node of the pool has {pool.host_memory_bytes}"
                )
                yield Fault(
                    "state-beyond-memory", (*location, "resident_bytes"), message, "solve again, or add host memory"
                )
        if pools_known:
            at = ("groups", key, "usd_per_hour")
            yield from differs("price-does-not-add-up", at, group.usd_per_hour, price, "its nodes cost", AGAIN)
    for name, taken in sorted(nodes_taken.items()):
        if taken > cluster.pools[name].nodes:
            message = f"the groups take {count(taken, 'node')} of pool '{name}', which has {cluster.pools[name].nodes}"
            yield Fault("too-many-nodes", ("groups",), message, "solve again, or enlarge the pool")


def against_workload(plan: GroupsPlan, workload: Workload) -> Iterator[Fault]:
    """Faults of jobs, bounds, rules and ways of a plan of groups that differ from the workload."""
    # The objective is left out: the command line may choose another one.
    plan_rules, workload_rules = (
        plan.rules.model_dump(exclude={"objective"}),
        workload.rules.model_dump(exclude={"objective"}),
    )
    for name in plan_rules:
        if plan_rules[name] != workload_rules[name]:
            message = f"is {plan_rules[name]}, and the workload has {workload_rules[name]}"
            yield Fault("rules-changed", ("rules", name), message, "solve again")
    placed = {name for _, name, _ in plan.members}
    for name in sorted(set(workload.jobs) - placed):
        message = f"job '{name}' of the workload is in no group"
        yield Fault(
            "job-missing", ("groups",), message, "solve again, with --from this plan to keep the others in place"
        )
    for key, group in plan.groups.items():
        for name, member in group.jobs.items():
            location: Loc = ("groups", key, "jobs", name)
            job = workload.jobs.get(name)
            if job is None:
                yield Fault(
                    "job-unknown", location, "the workload has no such job", "solve again, with --from this plan"
                )
                continue
            at = (*location, "slowdown", "slo")
            yield from differs("bound-changed", at, member.slowdown.slo, job.slo, "the workload has")
            if job.phases is None:
                continue
            for phase, pinned, stated in (
                ("rollout", member.rollout, job.phases.rollout),
                ("train", member.train, job.phases.train),
            ):
                yield from _way((*location, phase), name, group, pinned.pool, pinned.units, pinned.way, stated)


def _way(
    location: Loc, name: str, group: PlannedGroup, pool: str, units: tuple[int, ...], way: int, stated: Phase
) -> Iterator[Fault]:
    ways: list[Phase | OtherWay] = [stated, *stated.ways]
    if way >= len(ways):
        message = f"is {way}, and '{name}' has {count(len(ways), 'way')} to run this phase, counted from 0"
        yield Fault("way-changed", (*location, "way"), message, "solve again")
        return
    chosen = ways[way]
    if chosen.pool != pool:
        message = f"is '{pool}', and way {way} of '{name}' is on pool '{chosen.pool}'"
        yield Fault("way-changed", (*location, "pool"), message, "solve again")
        return
    node_of = [index for index, node in enumerate(group.nodes) for _ in range(node.slots)]
    slots = group.nodes[node_of[units[0]]].slots
    units_wanted = chosen.nodes * ((chosen.slots or slots) if isinstance(chosen, OtherWay) else slots)
    nodes = len({node_of[unit] for unit in units})
    if len(set(units)) != units_wanted or nodes != chosen.nodes:
        taken = f"{count(len(set(units)), 'unit')} of {count(nodes, 'node')}"
        message = f"it holds {taken}, and way {way} takes {units_wanted} of {chosen.nodes}"
        yield Fault("way-changed", (*location, "units"), message, "solve again")
