"""Whether a plan keeps a policy. A finding names the plan's line and the policy's file, line and value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..phrases.caveats import assumed_notes
from ..schema.cluster import Cluster
from ..schema.groups_plan import GroupsPlan
from ..schema.job import Job
from ..schema.plan import Plan
from ..schema.policy import Policy, PolicyFile
from ..schema.predicted import MemoryBar
from ..yaml.yaml_doc import Loc
from .finding import Fault
from .prediction_rules import kinds_of

_Limit = tuple[str, Loc, float, float | None, str]
"""Rule, place in the plan, value, the policy's limit (None for none), and the value's unit as it is shown."""

_KEY_OF = {
    "policy-usd-per-hour": "max_usd_per_hour",
    "policy-usd-per-samples": "max_usd_per_1k_samples",
    "policy-step-p95": "max_step_p95_s",
    "policy-bias": "max_bias",
    "policy-gap": "max_gap",
    "policy-error": "max_error",
    "policy-slowdown": "max_slowdown",
}
"""The policy's key that is such a rule's limit."""


class _Held:
    """A policy and its words."""

    def __init__(self, file: PolicyFile) -> None:
        self.file, self.policy = file, file.policy

    def fault(self, rule: str, loc: Loc, what: str, key: str, remedy: str = "") -> Fault:
        value = getattr(self.policy, key)
        shown = f"[{', '.join(value)}]" if isinstance(value, tuple) else str(value).lower()
        if isinstance(value, (float, int)) and not isinstance(value, bool):
            shown = f"{value:.6g}"
        said = key if isinstance(value, dict) else f"{key}: {shown}"
        return Fault(rule, loc, f"{what}; {self.file.place(key)} has {said}", remedy)

    def above(self, limits: list[_Limit]) -> Iterator[Fault]:
        """Values above their limits."""
        for rule, loc, value, limit, unit in limits:
            if limit is not None and value > limit * (1 + 1e-9):
                yield self.fault(rule, loc, f"is {value:.6g}{unit}", _KEY_OF[rule])


def breaches(plan: Plan, file: PolicyFile, job: Job | None) -> Iterator[Fault]:
    """What of a job's plan its policy does not allow; `job`: None where it could not be read."""
    held, policy, predicted = _Held(file), file.policy, plan.predicted
    per_1k, p95 = predicted.usd_per_1k_samples, predicted.step_s.p95
    limits: list[_Limit] = [
        ("policy-usd-per-hour", ("predicted", "usd_per_hour"), predicted.usd_per_hour, policy.max_usd_per_hour, " USD"),
        ("policy-usd-per-samples", ("predicted", "usd_per_1k_samples"), per_1k, policy.max_usd_per_1k_samples, " USD"),
        ("policy-step-p95", ("predicted", "step_s", "p95"), p95, policy.max_step_p95_s, " s"),
        ("policy-bias", ("job", "bias", "budget"), plan.job.bias.budget, policy.max_bias, ""),
        ("policy-gap", ("solver", "gap"), plan.solver.gap, policy.max_gap, ""),
        ("policy-error", ("predicted", "error"), predicted.error.total, policy.max_error, ""),
    ]
    yield from held.above(limits)
    off = abs(1 - predicted.length_ratio)
    if policy.max_bias is not None and off > policy.max_bias + 1e-9:
        what = f"is {predicted.length_ratio:.6g}, off by {off:.4g}"
        yield held.fault("policy-bias", ("predicted", "length_ratio"), what, "max_bias")
    if plan.job.bias.mode in policy.forbidden_modes:
        yield held.fault("policy-mode", ("job", "bias", "mode"), f"is {plan.job.bias.mode}", "forbidden_modes")
    if policy.require_slo and job is not None:
        yield from _slo(held, job)
    provenance = plan.inputs.profile.provenance
    if policy.allowed_provenance is not None and provenance not in policy.allowed_provenance:
        at: Loc = ("inputs", "profile", "provenance")
        yield held.fault("policy-provenance", at, f"is {provenance}", "allowed_provenance")
    if policy.refuse_assumed:
        for note in assumed_notes(plan.inputs):
            name, _, what = note.partition("-assumed: ")
            yield held.fault("policy-assumed", ("inputs", name), what.partition("; ")[0], "refuse_assumed")
    yield from _nodes(held, ("predicted", "nodes"), {plan.job.rounds.short.rollout.pool: predicted.nodes})
    for loc, bar in memory_bars(plan):
        yield from _headroom(held, loc, bar.headroom)


def memory_bars(plan: Plan) -> list[tuple[Loc, MemoryBar]]:
    """Every memory that a plan predicts, with its place."""
    found: list[tuple[Loc, MemoryBar]] = [(("predicted", "host_memory"), plan.predicted.host_memory)]
    for at, kind in kinds_of(plan):
        found.append(((*at, "memory", "kv"), kind.memory.kv))
        if kind.memory.train is not None:
            found.append(((*at, "memory", "train"), kind.memory.train))
    return found


def group_breaches(plan: GroupsPlan, file: PolicyFile) -> Iterator[Fault]:
    """What of a plan of groups its policy does not allow."""
    held, policy, whole = _Held(file), file.policy, plan.predicted.plan
    price: Loc = ("predicted", "plan", "usd_per_hour")
    limits: list[_Limit] = [("policy-usd-per-hour", price, whole.usd_per_hour, policy.max_usd_per_hour, " USD")]
    if plan.solver.gap is not None:
        limits.append(("policy-gap", ("solver", "gap"), plan.solver.gap, policy.max_gap, ""))
    elif policy.max_gap is not None:
        yield held.fault("policy-gap", ("solver", "gap"), "is null: nothing was proven", "max_gap")
    for key, group in plan.groups.items():
        for name, member in group.jobs.items():
            at: Loc = ("groups", key, "jobs", name, "slowdown", "p95")
            limits.append(("policy-slowdown", at, member.slowdown.p95, policy.max_slowdown, "x"))
    yield from held.above(limits)
    if policy.min_slo_attained is not None and whole.slo_attained < policy.min_slo_attained - 1e-9:
        at = ("predicted", "plan", "slo_attained")
        yield held.fault("policy-bounds-kept", at, f"is {whole.slo_attained:.6g}", "min_slo_attained")
    yield from _nodes(held, ("groups",), Counter(node.pool for group in plan.groups.values() for node in group.nodes))
    for key, group in plan.groups.items():
        for index, node in enumerate(group.nodes):
            room = 1 - node.resident_bytes / node.host_memory_bytes
            yield from _headroom(held, ("groups", key, "nodes", index, "resident_bytes"), room)


def _slo(held: _Held, job: Job) -> Iterator[Fault]:
    at: Loc = ("inputs", "job")
    limit, most = job.slo.step_p95_s, held.policy.max_step_p95_s
    if limit is None:
        what = f"job '{job.name}' declares no slo.step_p95_s"
        yield held.fault("policy-slo-required", at, what, "require_slo", "declare it in the job and solve again")
    elif most is not None and limit > most * (1 + 1e-9):
        what = f"job '{job.name}' declares a slo.step_p95_s of {limit:.6g} s"
        yield held.fault("policy-slo-required", at, what, "max_step_p95_s", "lower it in the job and solve again")


def _nodes(held: _Held, loc: Loc, taken: dict[str, int]) -> Iterator[Fault]:
    for pool, most in held.policy.max_nodes.items():
        if taken.get(pool, 0) > most:
            what = f"takes {taken[pool]} nodes of pool '{pool}', at most {most} are allowed"
            yield held.fault("policy-nodes", loc, what, "max_nodes")


def unknown_pools(file: PolicyFile, cluster: Cluster | None, at: Loc) -> Iterator[Fault]:
    """Names in `max_nodes` that are nearly those of the cluster's pools: one policy may hold for several clusters, so a
    name is wrong only where none of the names in it is a pool's."""
    named = file.policy.max_nodes
    if cluster is None or not named or any(pool in cluster.pools for pool in named):
        return
    what = f"cluster '{cluster.name}' has none of the pools {', '.join(named)}, so that nothing limits its nodes"
    remedy = f"its pools are {', '.join(cluster.pools)}"
    yield Fault("policy-unknown-pool", at, f"{what}; {file.place('max_nodes')} has max_nodes", remedy)


def _headroom(held: _Held, loc: Loc, room: float) -> Iterator[Fault]:
    least = held.policy.min_headroom
    if least is not None and room < least - 1e-9:
        yield held.fault("policy-memory-headroom", loc, f"leaves {room:.1%} free", "min_headroom")


def waived(rule: str, policy: Policy | None) -> bool:
    """Whether the policy allows what `rule` finds."""
    if policy is None:
        return False
    return {
        "decisions-edited": policy.allow_edited,
        "other-version": policy.allow_other_versions,
        # A policy that says how many bounds are to hold has said that not all must.
        "bound-broken": policy.min_slo_attained is not None,
    }.get(rule, False)
