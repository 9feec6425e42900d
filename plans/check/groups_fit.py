"""Whether a plan of groups fits its cluster and its workload, and agrees with itself. Reads no file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..facts.node_price import usd_per_node_hour
from ..phrases.numbers import count
from ..schema.cluster import Cluster
from ..schema.groups_plan import GroupMember, GroupsPlan, PlannedGroup, Span
from ..schema.workload import OtherWay, Phase, Workload
from ..yaml.yaml_doc import Loc
from .finding import Fault
from .prediction_rules import AGAIN, CLOSE, close

INSTANT_S = 1e-6
"""Seconds that two spans may overlap because of rounding: their ends are written with six digits."""


def self_contradictions(plan: GroupsPlan) -> Iterator[Fault]:
    """Faults within the plan: broken bounds, paces beyond bounds, impossible timelines, a gap that contradicts the
    solver's bound."""
    for key, group in plan.groups.items():
        if len(group.jobs) > plan.rules.group_cap:
            message = f"has {count(len(group.jobs), 'job')}, and rules.group_cap is {plan.rules.group_cap}"
            yield Fault("group-too-large", ("groups", key, "jobs"), message, "solve again, or raise the cap")
        for name, member in group.jobs.items():
            # A job that is alone in its group always keeps its bound, whatever its p95.
            p95_counts = len(group.jobs) > 1 and plan.rules.quantile >= 0.95
            yield from _member(("groups", key, "jobs", name), member, p95_counts)
        yield from _timeline(("groups", key, "timeline"), group)
    yield from _gap(plan)


def _member(location: Loc, member: GroupMember, p95_counts: bool) -> Iterator[Fault]:
    slowdown = member.slowdown
    if not slowdown.keeps or (p95_counts and slowdown.p95 > slowdown.slo * (1 + CLOSE)):
        yield Fault(
            "bound-broken",
            (*location, "slowdown", "p95" if slowdown.keeps else "keeps"),
            f"its slowdown is {slowdown.mean:.4g} (p95 {slowdown.p95:.4g}), and its bound {slowdown.slo:.4g}",
            "raise its slo, give it another way to run, or add nodes, and solve again",
        )
    longest = slowdown.slo * slowdown.alone_s
    if member.pace_s > longest * (1 + CLOSE):
        message = f"is {member.pace_s:.6g} s, and its bound allows {slowdown.slo:.4g} times {slowdown.alone_s:.6g} s"
        yield Fault("pace-beyond-bound", (*location, "pace_s"), message, AGAIN)


def _timeline(location: Loc, group: PlannedGroup) -> Iterator[Fault]:
    timeline = group.timeline
    until = timeline.span_s * (1 + CLOSE)
    if timeline.span_s > timeline.period_s * (1 + CLOSE):
        message = f"shows {timeline.span_s:.6g} s of a period of {timeline.period_s:.6g} s"
        yield Fault("timeline-contradiction", (*location, "span_s"), message, AGAIN)
    for index, span in enumerate(timeline.spans):
        span_location: Loc = (*location, "spans", index)
        if span.end_s < span.begin_s or span.end_s > until:
            message = f"runs from {span.begin_s:.6g} to {span.end_s:.6g} s of a timeline of {timeline.span_s:.6g} s"
            yield Fault("timeline-contradiction", span_location, message, AGAIN)
        member = group.jobs[span.job]
        pinned_units = member.rollout.units if span.phase == "rollout" else member.train.units
        wrong_units = sorted(set(span.units) - set(pinned_units))
        if wrong_units:
            message = (
                f"'{span.job}' holds unit {wrong_units[0]} in its {span.phase}, which is pinned to {list(pinned_units)}"
            )
            yield Fault("timeline-contradiction", (*span_location, "units"), message, AGAIN)
    yield from _held_twice(location, list(timeline.spans))


def _held_twice(location: Loc, spans: list[Span]) -> Iterator[Fault]:
    """Units that a job takes before another job has released them."""
    holder: dict[int, tuple[int, Span]] = {}
    for index, span in sorted(enumerate(spans), key=lambda item: (item[1].begin_s, item[1].end_s, item[0])):
        clash = None
        for unit in span.units:
            before = holder.get(unit)
            if before is not None and span.begin_s < before[1].end_s - _instant(before[1].end_s):
                clash = clash or (unit, before[1])
            if before is None or before[1].end_s < span.end_s:
                holder[unit] = (index, span)
        if clash is not None:
            unit, earlier = clash
            yield Fault(
                "units-held-twice",
                (*location, "spans", index, "units"),
                f"'{span.job}' takes unit {unit} at {span.begin_s:.6g} s, and '{earlier.job}' holds it until "
                f"{earlier.end_s:.6g} s",
                AGAIN,
            )


def _instant(seconds: float) -> float:
    """Seconds that two spans may overlap at `seconds` of the timeline because of rounding."""
    return max(INSTANT_S, 1e-5 * seconds)


def _gap(plan: GroupsPlan) -> Iterator[Fault]:
    solver = plan.solver
    bound, value = solver.bound_usd_per_hour, plan.predicted.plan.usd_per_hour
    if plan.rules.objective == "usd_per_unit":
        bound, value = solver.bound_usd_per_unit, plan.predicted.plan.usd_per_unit
    if solver.gap is None or bound is None or value <= 0:
        return
    gap = 1 - bound / value
    if abs(gap - solver.gap) > CLOSE:
        message = f"is {solver.gap:.6g}, and {value:.6g} reached over a bound of {bound:.6g} make it {gap:.6g}"
        yield Fault("gap-contradicts-bound", ("solver", "gap"), message, AGAIN)


def against_cluster(plan: GroupsPlan, cluster: Cluster) -> Iterator[Fault]:
    """Faults of nodes that the cluster does not have, and of groups whose price is not that of their nodes."""
    nodes_taken: Counter[str] = Counter()
    for key, group in plan.groups.items():
        price, pools_known = 0.0, True
        for index, node in enumerate(group.nodes):
            location: Loc = ("groups", key, "nodes", index)
            pool = cluster.pools.get(node.pool)
            if pool is None:
                pools_known = False
                message = f"cluster '{cluster.name}' has no pool '{node.pool}'"
                yield Fault("unknown-pool", (*location, "pool"), message, f"its pools are {', '.join(cluster.pools)}")
                continue
            nodes_taken[node.pool] += 1
            price += usd_per_node_hour(pool)
            if node.slots != pool.slots:
                message = f"is {node.slots}, and a node of pool '{node.pool}' has {pool.slots}"
                yield Fault("node-unlike-pool", (*location, "slots"), message, "solve again")
            if not close(node.host_memory_bytes, pool.host_memory_bytes):
                message = f"is {node.host_memory_bytes}, and a node of pool '{node.pool}' has {pool.host_memory_bytes}"
                yield Fault("node-unlike-pool", (*location, "host_memory_bytes"), message, "solve again")
            if node.resident_bytes > pool.host_memory_bytes * (1 + CLOSE):
                message = (
                    f"{node.resident_bytes:.6g} bytes of state, and a node of the pool has {pool.host_memory_bytes}"
                )
                yield Fault(
                    "state-beyond-memory", (*location, "resident_bytes"), message, "solve again, or add host memory"
                )
        if pools_known and not close(group.usd_per_hour, price):
            message = f"is {group.usd_per_hour:.6g}, and its nodes cost {price:.6g}"
            yield Fault("price-does-not-add-up", ("groups", key, "usd_per_hour"), message, AGAIN)
    for name, taken in sorted(nodes_taken.items()):
        if taken > cluster.pools[name].nodes:
            message = f"the groups take {count(taken, 'node')} of pool '{name}', which has {cluster.pools[name].nodes}"
            yield Fault("too-many-nodes", ("groups",), message, "solve again, or enlarge the pool")


def against_workload(plan: GroupsPlan, workload: Workload) -> Iterator[Fault]:
    """Faults of jobs, bounds, rules and ways of the plan that differ from the workload."""
    # The objective is left out: the command line may choose another one.
    plan_rules, workload_rules = (
        plan.rules.model_dump(exclude={"objective"}),
        workload.rules.model_dump(exclude={"objective"}),
    )
    for name in plan_rules:
        if plan_rules[name] != workload_rules[name]:
            message = f"is {plan_rules[name]}, and the workload has {workload_rules[name]}"
            yield Fault("rules-changed", ("rules", name), message, "solve again")
    placed = {name for group in plan.groups.values() for name in group.jobs}
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
            if not close(member.slowdown.slo, job.slo):
                message = f"is {member.slowdown.slo:.6g}, and the workload has {job.slo:.6g}"
                yield Fault("bound-changed", (*location, "slowdown", "slo"), message, "solve again")
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
