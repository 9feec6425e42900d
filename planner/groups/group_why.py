"""The reasons that a plan states for a group (its `why`): cost, bottleneck, next best, permit rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...plans.phrases.numbers import usd
from ...plans.phrases.sentences import PHASE_NAMES, listed
from .choose.group_columns import extensions, job_placements
from .choose.group_nodes import resident, solo_group
from .choose.placers import packings
from .inputs.group_model import (
    Group,
    GroupsState,
    Jobs,
    NodeTypes,
    Rules,
    Slowdown,
    node_of_units,
    slowdown_bound,
    without_idle_nodes,
)
from .simulate.slowdowns import bound_slowdowns, bounds_kept, feasible, slowdowns
from .simulate.steady_state import SteadyState


def explain(
    key: str, state: GroupsState, slow: Mapping[str, Slowdown], steady: SteadyState, node_types: NodeTypes, rules: Rules
) -> dict[str, str]:
    """Text by key for group `key` of `state`, with its slowdowns and its steady state."""
    group = state.groups[key]
    why = {"cost": _cost(group, state.jobs, node_types)}
    if len(group.pins) > 1:
        why["pace"] = _pace(group, steady, node_types)
        why["next_best"] = _without_one(group, state.jobs, node_types)
        why["policy"] = _permit_rule(group, state.jobs, slow, rules)
        if any(state.jobs[pin.job].points for pin in group.pins):
            why["points"] = "; ".join(_points(group, state.jobs, node_types, rules))
    else:
        joining = _joining(key, state, node_types, rules)
        if joining:
            why["next_best"] = joining
    return why


def _cost(group: Group, jobs: Jobs, node_types: NodeTypes) -> str:
    ours = group.usd_per_hour(node_types)
    solo_usd = sum(jobs[pin.job].solo_usd_per_hour(node_types) for pin in group.pins)
    names = listed(pin.job for pin in group.pins)
    if len(group.pins) == 1:
        return f"{names} has these nodes to itself: {usd(ours)} USD an hour"
    ratio = f", {solo_usd / ours:.2f} times as much" if ours else ""
    return (
        f"{names} share nodes for {usd(ours)} USD an hour; on nodes of their own they cost {usd(solo_usd)} USD{ratio}"
    )


def _pace(group: Group, steady: SteadyState, node_types: NodeTypes) -> str:
    """What sets the pace: the critical cycle of phases, with the nodes that all of them need; and the busiest node."""
    node_of, chain = node_of_units(group, node_types), steady.chain
    pins = {pin.job: pin for pin in group.pins}

    def named(node: int) -> str:
        return f"{group.nodes[node]} {node}"

    texts = []
    for phase in dict.fromkeys(phase for _, phase in chain.phases):
        jobs = sorted({job for job, each in chain.phases if each == phase})
        units = [pins[job].rollout_units if phase == "rollout" else pins[job].train_units for job in jobs]
        held = [{node_of[unit] for unit in each} for each in units]
        nodes = sorted(set.intersection(*held) or set.union(*held))
        texts.append(f"{PHASE_NAMES[phase]} of {listed(jobs)} on {listed(map(named, nodes))}")
    held_back = (
        ""
        if chain.limits
        else (
            f", {min(1.0, chain.seconds / steady.period_s):.0%} of the time; in the rest jobs wait so that others keep "
            "their bounds"
        )
    )
    busy = [0.0] * len(group.nodes)
    for unit, node in enumerate(node_of):
        busy[node] += steady.busy[unit] / node_types[group.nodes[node]].slots
    most = max(range(len(busy)), key=lambda node: (busy[node], -node))
    return (
        f"bottleneck: {', then '.join(texts)}{held_back}; busiest node: {named(most)}, {min(1.0, busy[most]):.0%} of "
        "the time"
    )


def _without_one(group: Group, jobs: Jobs, node_types: NodeTypes) -> str:
    """The cheapest alternative with one job of the group on nodes of its own."""
    ours = group.usd_per_hour(node_types)
    options = []
    for pin in group.pins:
        rest = without_idle_nodes(Group(group.nodes, tuple(p for p in group.pins if p is not pin)), node_types)
        solo_usd = solo_group(jobs[pin.job], node_types).usd_per_hour(node_types)
        options.append((rest.usd_per_hour(node_types) + solo_usd - ours, pin.job))
    more, name = min(options)
    return f"{name} on nodes of its own: {usd(abs(more))} USD an hour {'less' if more < 0 else 'more'}"


def _points(group: Group, jobs: Jobs, node_types: NodeTypes, rules: Rules) -> Iterator[str]:
    """For each job with points: the point that it runs by, its cost alone, and the cost of the group if the job ran by
    the point that it would run by alone."""
    ours = group.usd_per_hour(node_types)
    for pin in group.pins:
        job = jobs[pin.job]
        if not job.points:
            continue
        here, alone = job.points[pin.rollout], job.points[0]
        alone_usd = job.solo_usd_per_hour(node_types)
        of_alone = f"{job.solo_s:.4g} s an iteration, {usd(alone_usd)} USD an hour alone"
        if pin.rollout == 0:
            yield f"{job.name} runs by {here.name}, as it would alone ({of_alone})"
            continue
        own_usd = solo_group(job, node_types, (pin.rollout, pin.train)).usd_per_hour(node_types)
        own_s = job.rollout[pin.rollout].mean_s + job.train[pin.train].mean_s
        text = (
            f"{job.name} runs by {here.name} ({own_s:.4g} s, {usd(own_usd)} USD alone) and not by {alone.name} "
            f"({of_alone})"
        )
        only = job.at_reference()
        with_it = {**jobs, job.name: only}
        rest = without_idle_nodes(Group(group.nodes, tuple(p for p in group.pins if p is not pin)), node_types)
        prices = sorted(
            candidate.usd_per_hour(node_types)
            for placement in job_placements(only, node_types, rules)
            for _, candidate in extensions(rest, placement, with_it, node_types, rules)
            if feasible(candidate, with_it, rules)
        )
        more = prices[0] - ours if prices else 0.0
        would = f"cost {usd(abs(more))} USD an hour {'more' if more > 0 else 'less'}"
        if abs(more) < 0.005:
            would = "cost as much" if prices else "break a bound"
        yield f"{text}: beside these jobs that would {would}"


def _permit_rule(group: Group, jobs: Jobs, slow: Mapping[str, Slowdown], rules: Rules) -> str:
    """For each other permit rule: the job that it would hurt most, or that it would keep all bounds too."""
    texts = []
    here = bound_slowdowns(group, jobs, slow, rules)
    for rule in ("round_robin", "first_come", "multi_rate"):
        if rule == rules.permit_rule:
            continue
        other_rules = replace(rules, permit_rule=rule)
        other_slow = slowdowns(group, jobs, other_rules)
        there = bound_slowdowns(group, jobs, other_slow, other_rules)
        if all(bounds_kept(group, jobs, other_slow, other_rules).values()):
            apart = max(there, key=lambda name: (abs(there[name] - here[name]), name))
            how = "with the same slowdowns"
            if abs(there[apart] - here[apart]) >= 0.005:
                how = f"and changes the slowdown of {apart} most, to {there[apart]:.2f}x from {here[apart]:.2f}x"
            texts.append(f"{rule} would keep all bounds, too, {how}")
            continue
        worst = max(there, key=lambda name: (there[name] / slowdown_bound(jobs[name], rules), name))
        texts.append(
            f"{rule} would slow {worst} to {there[worst]:.2f}x, above its limit of "
            f"{slowdown_bound(jobs[worst], rules):.2f}x ({here[worst]:.2f}x with {rules.permit_rule})"
        )
    return f"{rules.permit_rule}, as the workload says; " + "; ".join(texts)


def _joining(key: str, state: GroupsState, node_types: NodeTypes, rules: Rules) -> str | None:
    """Why a solo job does not join another group: the attempt that comes nearest to its bounds."""
    name = state.groups[key].pins[0].job
    job, own_usd = state.jobs[name], state.groups[key].usd_per_hour(node_types)
    attempts: list[tuple[float, str]] = []
    for other_key, group in sorted(state.groups.items()):
        if other_key == key or len(group.pins) >= rules.group_cap:
            continue
        for added, candidate in packings(group, job, node_types):
            if added >= own_usd or not resident(candidate, state.jobs, node_types):
                continue
            slow = bound_slowdowns(candidate, state.jobs, slowdowns(candidate, state.jobs, rules), rules)
            over = {member: slow[member] / slowdown_bound(state.jobs[member], rules) for member in slow}
            worst = max(over, key=lambda member: (over[member], member))
            text = (
                f"{name} in {other_key}: {usd(added)} USD an hour instead of {usd(own_usd)}, but it slows {worst} to "
                f"{slow[worst]:.2f}x, and its limit is {slowdown_bound(state.jobs[worst], rules):.2f}x"
            )
            attempts.append((over[worst], text))
    return min(attempts)[1] if attempts else None
