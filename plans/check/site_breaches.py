"""Whether a plan keeps the site rules. A finding names the plan's line, and the rule's file, line and value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..facts.plan_text import assumed_notes
from ..phrases.numbers import count
from ..schema.cluster import Cluster
from ..schema.groups_plan import GroupsPlan
from ..schema.job import Job
from ..schema.plan import Plan
from ..schema.predicted import MemoryBar
from ..schema.site_rules import SiteRules, SiteRulesFile
from ..yaml.yaml_doc import Loc
from .finding import Fault

_Limit = tuple[str, Loc, float, str, str]
"""Rule, location in the plan, value, the key of the site rules that limits it, and the value's unit in the message."""


class _FaultBuilder:
    """Builds the faults of a plan that breaks the site rules."""

    def __init__(self, file: SiteRulesFile) -> None:
        self.file, self.rules = file, file.rules

    def fault(self, rule: str, location: Loc, message: str, key: str, remedy: str = "") -> Fault:
        """The fault of a value that `key` of the site rules does not allow; the message ends with that key."""
        value = getattr(self.rules, key)
        shown = f"[{', '.join(value)}]" if isinstance(value, tuple) else str(value).lower()
        if isinstance(value, (float, int)) and not isinstance(value, bool):
            shown = f"{value:.6g}"
        setting = key if isinstance(value, dict) else f"{key}: {shown}"
        return Fault(rule, location, f"{message}; {self.file.place(key)} has {setting}", remedy)

    def above(self, limits: list[_Limit]) -> Iterator[Fault]:
        """Faults of values above their limits."""
        for rule, location, value, key, unit in limits:
            limit = getattr(self.rules, key)
            if limit is not None and value > limit * (1 + 1e-9):
                yield self.fault(rule, location, f"is {value:.6g}{unit}", key)


def plan_breaches(plan: Plan, file: SiteRulesFile, job: Job | None) -> Iterator[Fault]:
    """Faults of a job's plan that breaks the site rules; `job`: None if it could not be read."""
    builder, site_rules, predicted = _FaultBuilder(file), file.rules, plan.predicted
    hour, samples = predicted.usd_per_hour, predicted.usd_per_1k_samples
    limits: list[_Limit] = [
        ("policy-usd-per-hour", ("predicted", "usd_per_hour"), hour, "max_usd_per_hour", " USD"),
        ("policy-usd-per-samples", ("predicted", "usd_per_1k_samples"), samples, "max_usd_per_1k_samples", " USD"),
        ("policy-step-p95", ("predicted", "step_s", "p95"), predicted.step_s.p95, "max_step_p95_s", " s"),
        ("policy-bias", ("job", "bias", "budget"), plan.job.bias.budget, "max_bias", ""),
        ("policy-gap", ("solver", "gap"), plan.solver.gap, "max_gap", ""),
        ("policy-error", ("predicted", "error"), predicted.error.total, "max_error", ""),
    ]
    yield from builder.above(limits)
    deviation = abs(1 - predicted.length_ratio)
    if site_rules.max_bias is not None and deviation > site_rules.max_bias + 1e-9:
        message = f"is {predicted.length_ratio:.6g}, {deviation:.4g} from 1"
        yield builder.fault("policy-bias", ("predicted", "length_ratio"), message, "max_bias")
    share = predicted.cut_share
    if site_rules.max_cut_share is not None and (share is None or share > site_rules.max_cut_share + 1e-9):
        if share is None:
            yield builder.fault("policy-cut", ("predicted",), "has no `cut`", "max_cut_share", "solve again")
        else:
            yield builder.fault("policy-cut", ("predicted", "cut", "share"), f"is {share:.4g}", "max_cut_share")
    if plan.job.bias.mode in site_rules.forbidden_modes:
        yield builder.fault("policy-mode", ("job", "bias", "mode"), f"is {plan.job.bias.mode}", "forbidden_modes")
    if site_rules.require_slo and job is not None:
        yield from _slo(builder, job)
    if site_rules.require_sandbox and job is not None:
        for part in job.reward.parts:
            if part.sandbox == "optional":
                message = f"the job's {'.'.join(map(str, job.reward.key_of(part)))}.sandbox is optional"
                remedy = "remove it, and run reward workers where user namespaces or Landlock are to be had"
                yield builder.fault("policy-sandbox", ("inputs", "job"), message, "require_sandbox", remedy)
    provenance = plan.inputs.profile.provenance
    if site_rules.allowed_provenance is not None and provenance not in site_rules.allowed_provenance:
        location: Loc = ("inputs", "profile", "provenance")
        yield builder.fault("policy-provenance", location, f"is {provenance}", "allowed_provenance")
    if site_rules.refuse_assumed:
        for note in assumed_notes(plan.inputs):
            name, _, message = note.partition("-assumed: ")
            yield builder.fault("policy-assumed", ("inputs", name), message.partition("; ")[0], "refuse_assumed")
    of_trainers = predicted.train_nodes or 0
    taken = Counter({plan.job.rounds.short.rollout.pool: predicted.nodes - of_trainers})
    if plan.job.placement is not None:
        taken[plan.job.placement.train_pool] += of_trainers
    yield from _nodes(builder, ("predicted", "nodes"), taken)
    for location, bar in memory_bars(plan):
        yield from _headroom(builder, location, bar.headroom)


def memory_bars(plan: Plan) -> list[tuple[Loc, MemoryBar]]:
    """Every memory bar that a plan predicts, with its location in the plan."""
    *of_rounds, (_, _, host) = plan.predicted.memory_bars
    bars = [(("predicted", "rounds", str(kind), "memory", place), bar) for place, kind, bar in of_rounds]
    return [(("predicted", "host_memory"), host), *bars]


def group_breaches(plan: GroupsPlan, file: SiteRulesFile) -> Iterator[Fault]:
    """Faults of a plan of groups that breaks the site rules."""
    builder, site_rules, predicted = _FaultBuilder(file), file.rules, plan.predicted.plan
    price: Loc = ("predicted", "plan", "usd_per_hour")
    limits: list[_Limit] = [("policy-usd-per-hour", price, predicted.usd_per_hour, "max_usd_per_hour", " USD")]
    if plan.solver.gap is not None:
        limits.append(("policy-gap", ("solver", "gap"), plan.solver.gap, "max_gap", ""))
    elif site_rules.max_gap is not None:
        yield builder.fault("policy-gap", ("solver", "gap"), "is null: nothing was proven", "max_gap")
    for key, name, member in plan.members:
        location: Loc = ("groups", key, "jobs", name, "slowdown", "p95")
        limits.append(("policy-slowdown", location, member.slowdown.p95, "max_slowdown", "x"))
    yield from builder.above(limits)
    if site_rules.min_slo_attained is not None and predicted.slo_attained < site_rules.min_slo_attained - 1e-9:
        location = ("predicted", "plan", "slo_attained")
        yield builder.fault("policy-bounds-kept", location, f"is {predicted.slo_attained:.6g}", "min_slo_attained")
    yield from _nodes(
        builder, ("groups",), Counter(node.pool for group in plan.groups.values() for node in group.nodes)
    )
    for key, group in plan.groups.items():
        for index, node in enumerate(group.nodes):
            free_share = 1 - node.resident_bytes / node.host_memory_bytes
            yield from _headroom(builder, ("groups", key, "nodes", index, "resident_bytes"), free_share)


def _slo(builder: _FaultBuilder, job: Job) -> Iterator[Fault]:
    location: Loc = ("inputs", "job")
    limit, maximum = job.slo.step_p95_s, builder.rules.max_step_p95_s
    if limit is None:
        message = f"job '{job.name}' declares no slo.step_p95_s"
        yield builder.fault(
            "policy-slo-required", location, message, "require_slo", "declare it in the job and solve again"
        )
    elif maximum is not None and limit > maximum * (1 + 1e-9):
        message = f"job '{job.name}' declares a slo.step_p95_s of {limit:.6g} s"
        yield builder.fault(
            "policy-slo-required", location, message, "max_step_p95_s", "lower it in the job and solve again"
        )


def _nodes(builder: _FaultBuilder, location: Loc, taken: dict[str, int]) -> Iterator[Fault]:
    for pool, maximum in builder.rules.max_nodes.items():
        if taken.get(pool, 0) > maximum:
            message = f"takes {count(taken[pool], 'node')} of pool '{pool}', at most {maximum} are allowed"
            yield builder.fault("policy-nodes", location, message, "max_nodes")


def unknown_pools(file: SiteRulesFile, cluster: Cluster | None, location: Loc) -> Iterator[Fault]:
    """The fault of a `max_nodes` that names no pool of the cluster. One file may hold the rules of several clusters:
    a name without a pool is no fault if another name has one."""
    limits = file.rules.max_nodes
    if cluster is None or not limits or any(pool in cluster.pools for pool in limits):
        return
    message = f"cluster '{cluster.name}' has none of the pools {', '.join(limits)}, so that nothing limits its nodes"
    remedy = f"its pools are {', '.join(cluster.pools)}"
    yield Fault("policy-unknown-pool", location, f"{message}; {file.place('max_nodes')} has max_nodes", remedy)


def _headroom(builder: _FaultBuilder, location: Loc, free_share: float) -> Iterator[Fault]:
    minimum = builder.rules.min_headroom
    if minimum is not None and free_share < minimum - 1e-9:
        yield builder.fault("policy-memory-headroom", location, f"leaves {free_share:.1%} free", "min_headroom")


def waived(rule: str, site_rules: SiteRules | None) -> bool:
    """Whether the site rules allow what `rule` finds."""
    if site_rules is None:
        return False
    return {
        "decisions-edited": site_rules.allow_edited,
        "other-version": site_rules.allow_other_versions,
        # Site rules with a least share of kept bounds allow that the other bounds are broken.
        "bound-broken": site_rules.min_slo_attained is not None,
    }.get(rule, False)
