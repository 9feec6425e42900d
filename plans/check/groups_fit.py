"""Whether a plan of groups fits its cluster and its workload, and agrees with itself. Reads no file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..facts.node_price import usd_per_node_hour
from ..schema.cluster import Cluster
from ..schema.groups_plan import GroupsPlan
from ..schema.sections.planned_group import GroupMember, PlannedGroup, Span
from ..schema.workload import OtherWay, Phase, Workload
from ..yaml.yaml_doc import Loc
from .finding import Fault
from .prediction_rules import AGAIN, CLOSE, close

INSTANT_S = 1e-6
"""Seconds for which two spans may overlap: their ends have six digits."""


def of_itself(plan: GroupsPlan) -> Iterator[Fault]:
    """Bounds that break, paces beyond bounds, timelines that cannot be, a gap that is not of its bound."""
    for key, group in plan.groups.items():
        if len(group.jobs) > plan.rules.group_cap:
            what = f"has {len(group.jobs)} jobs, and rules.group_cap is {plan.rules.group_cap}"
            yield Fault("group-too-large", ("groups", key, "jobs"), what, "solve again, or raise the cap")
        for name, member in group.jobs.items():
            # Alone on its reference a job keeps its bound, whatever its luck.
            judged = len(group.jobs) > 1 and plan.rules.quantile >= 0.95
            yield from _member(("groups", key, "jobs", name), member, judged)
        yield from _timeline(("groups", key, "timeline"), group)
    yield from _gap(plan)


def _member(at: Loc, member: GroupMember, judged: bool) -> Iterator[Fault]:
    slow = member.slowdown
    if not slow.keeps or (judged and slow.p95 > slow.slo * (1 + CLOSE)):
        yield Fault(
            "bound-broken",
            (*at, "slowdown", "p95" if slow.keeps else "keeps"),
            f"its slowdown is {slow.mean:.4g} (p95 {slow.p95:.4g}), and its bound {slow.slo:.4g}",
            "raise its slo, give it another way to run, or add nodes, and solve again",
        )
    longest = slow.slo * slow.alone_s
    if member.pace_s > longest * (1 + CLOSE):
        what = f"is {member.pace_s:.6g} s, and its bound allows {slow.slo:.4g} times {slow.alone_s:.6g} s"
        yield Fault("pace-beyond-bound", (*at, "pace_s"), what, AGAIN)


def _timeline(at: Loc, group: PlannedGroup) -> Iterator[Fault]:
    timeline = group.timeline
    until = timeline.span_s * (1 + CLOSE)
    if timeline.span_s > timeline.period_s * (1 + CLOSE):
        what = f"shows {timeline.span_s:.6g} s of a period of {timeline.period_s:.6g} s"
        yield Fault("timeline-contradiction", (*at, "span_s"), what, AGAIN)
    for index, span in enumerate(timeline.spans):
        here: Loc = (*at, "spans", index)
        if span.end_s < span.begin_s or span.end_s > until:
            what = f"runs from {span.begin_s:.6g} to {span.end_s:.6g} s of a timeline of {timeline.span_s:.6g} s"
            yield Fault("timeline-contradiction", here, what, AGAIN)
        member = group.jobs[span.job]
        own = member.rollout.units if span.phase == "rollout" else member.train.units
        strange = sorted(set(span.units) - set(own))
        if strange:
            what = f"'{span.job}' holds unit {strange[0]} in its {span.phase}, which is pinned to {list(own)}"
            yield Fault("timeline-contradiction", (*here, "units"), what, AGAIN)
    yield from _held_twice(at, list(timeline.spans))


def _held_twice(at: Loc, spans: list[Span]) -> Iterator[Fault]:
    """Units that a job takes before another one gives them back."""
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
            unit, other = clash
            yield Fault(
                "units-held-twice",
                (*at, "spans", index, "units"),
                f"'{span.job}' takes unit {unit} at {span.begin_s:.6g} s, and '{other.job}' holds it until "
                f"{other.end_s:.6g} s",
                AGAIN,
            )


def _instant(seconds: float) -> float:
    return max(INSTANT_S, 1e-5 * seconds)


def _gap(plan: GroupsPlan) -> Iterator[Fault]:
    solver = plan.solver
    bound, reached = solver.bound_usd_per_hour, plan.predicted.plan.usd_per_hour
    if plan.rules.objective == "usd_per_unit":
        bound, reached = solver.bound_usd_per_unit, plan.predicted.plan.usd_per_unit
    if solver.gap is None or bound is None or reached <= 0:
        return
    gap = 1 - bound / reached
    if abs(gap - solver.gap) > CLOSE:
        what = f"is {solver.gap:.6g}, and {reached:.6g} reached over a bound of {bound:.6g} make it {gap:.6g}"
        yield Fault("gap-contradicts-bound", ("solver", "gap"), what, AGAIN)


def against_cluster(plan: GroupsPlan, cluster: Cluster) -> Iterator[Fault]:
    """Nodes that the cluster does not have, or has otherwise, and prices that are not theirs."""
    taken: Counter[str] = Counter()
    for key, group in plan.groups.items():
        price, known = 0.0, True
        for index, node in enumerate(group.nodes):
            at: Loc = ("groups", key, "nodes", index)
            pool = cluster.pools.get(node.pool)
            if pool is None:
                known = False
                what = f"cluster '{cluster.name}' has no pool '{node.pool}'"
                yield Fault("unknown-pool", (*at, "pool"), what, f"its pools are {', '.join(cluster.pools)}")
                continue
            taken[node.pool] += 1
            price += usd_per_node_hour(pool)
            if node.slots != pool.slots:
                what = f"is {node.slots}, and a node of pool '{node.pool}' has {pool.slots}"
                yield Fault("node-unlike-pool", (*at, "slots"), what, "solve again")
            if not close(node.host_memory_bytes, pool.host_memory_bytes):
                what = f"is {node.host_memory_bytes}, and a node of pool '{node.pool}' has {pool.host_memory_bytes}"
                yield Fault("node-unlike-pool", (*at, "host_memory_bytes"), what, "solve again")
            if node.resident_bytes > pool.host_memory_bytes * (1 + CLOSE):
                what = f"{node.resident_bytes:.6g} bytes of state, and a node of the pool has {pool.host_memory_bytes}"
                yield Fault("state-beyond-memory", (*at, "resident_bytes"), what, "solve again, or add host memory")
        if known and not close(group.usd_per_hour, price):
            what = f"is {group.usd_per_hour:.6g}, and its nodes cost {price:.6g}"
            yield Fault("price-does-not-add-up", ("groups", key, "usd_per_hour"), what, AGAIN)
    for name, count in sorted(taken.items()):
        if count > cluster.pools[name].nodes:
            what = f"the groups take {count} nodes of pool '{name}', which has {cluster.pools[name].nodes}"
            yield Fault("too-many-nodes", ("groups",), what, "solve again, or enlarge the pool")


def against_workload(plan: GroupsPlan, workload: Workload) -> Iterator[Fault]:
    """Jobs, bounds, rules and ways that are no longer the workload's."""
    # Which objective is minimised may be chosen on the command line.
    ours, theirs = plan.rules.model_dump(exclude={"objective"}), workload.rules.model_dump(exclude={"objective"})
    for name in ours:
        if ours[name] != theirs[name]:
            what = f"is {ours[name]}, and the workload has {theirs[name]}"
            yield Fault("rules-changed", ("rules", name), what, "solve again")
    placed = {name for group in plan.groups.values() for name in group.jobs}
    for name in sorted(set(workload.jobs) - placed):
        what = f"job '{name}' of the workload has no place"
        yield Fault("job-missing", ("groups",), what, "solve again, with --from this plan to keep the others in place")
    for key, group in plan.groups.items():
        for name, member in group.jobs.items():
            at: Loc = ("groups", key, "jobs", name)
            job = workload.jobs.get(name)
            if job is None:
                yield Fault("job-unknown", at, "the workload has no such job", "solve again, with --from this plan")
                continue
            if not close(member.slowdown.slo, job.slo):
                what = f"is {member.slowdown.slo:.6g}, and the workload has {job.slo:.6g}"
                yield Fault("bound-changed", (*at, "slowdown", "slo"), what, "solve again")
            for phase, pinned, stated in (
                ("rollout", member.rollout, job.phases.rollout),
                ("train", member.train, job.phases.train),
            ):
                yield from _way((*at, phase), name, group, pinned.pool, pinned.units, pinned.way, stated)


def _way(
    at: Loc, name: str, group: PlannedGroup, pool: str, units: tuple[int, ...], way: int, stated: Phase
) -> Iterator[Fault]:
    ways: list[Phase | OtherWay] = [stated, *stated.ways]
    if way >= len(ways):
        what = f"is {way}, and '{name}' has {len(ways)} way(s) to run this phase, counted from 0"
        yield Fault("way-changed", (*at, "way"), what, "solve again")
        return
    chosen = ways[way]
    if chosen.pool != pool:
        what = f"is '{pool}', and way {way} of '{name}' is on pool '{chosen.pool}'"
        yield Fault("way-changed", (*at, "pool"), what, "solve again")
        return
    node_of = [index for index, node in enumerate(group.nodes) for _ in range(node.slots)]
    slots = group.nodes[node_of[units[0]]].slots
    wanted = chosen.nodes * ((chosen.slots or slots) if isinstance(chosen, OtherWay) else slots)
    nodes = len({node_of[unit] for unit in units})
    if len(set(units)) != wanted or nodes != chosen.nodes:
        what = f"it holds {len(set(units))} unit(s) of {nodes} node(s), and way {way} takes {wanted} of {chosen.nodes}"
        yield Fault("way-changed", (*at, "units"), what, "solve again")
