"""The reasons that a plan states for a group (its `why`): cost, tightest bound, critical cycle, next best, permit
rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..inputs.group_model import (
    Group,
    Jobs,
    NodeTypes,
    Rules,
    Slowdown,
    node_of_units,
    slowdown_bound,
    without_idle_nodes,
)
from ..inputs.groups_state import GroupsState
from ..place.group_nodes import resident, solo_group
from ..place.published_placers import packings
from ..simulate.slowdowns import bound_slowdowns, bounds_kept, slowdowns
from ..simulate.steady_state import SteadyState


def explain(
    key: str, state: GroupsState, slow: Mapping[str, Slowdown], steady: SteadyState, node_types: NodeTypes, rules: Rules
) -> dict[str, str]:
    """Text by key for group `key` of `state`, with its slowdowns and its steady state."""
    group = state.groups[key]
    why = {"cost": _cost(group, state.jobs, node_types)}
    if len(group.pins) > 1:
        why["slack"] = _slack(group, state.jobs, slow, rules)
        why["pace"] = _pace(group, steady, node_types)
        why["next_best"] = _without_one(group, state.jobs, node_types)
        why["policy"] = _permit_rule(group, state.jobs, slow, rules)
    else:
        joining = _joining(key, state, node_types, rules)
        if joining:
            why["next_best"] = joining
    return why


def _cost(group: Group, jobs: Jobs, node_types: NodeTypes) -> str:
    ours = group.usd_per_hour(node_types)
    solo_usd = sum(jobs[pin.job].solo_usd_per_hour(node_types) for pin in group.pins)
    names = ", ".join(pin.job for pin in group.pins)
    if len(group.pins) == 1:
        return f"{names} has these nodes to itself: {ours:.2f} USD an hour"
    ratio = f", {solo_usd / ours:.2f} times as much" if ours else ""
    return f"{names} share nodes for {ours:.2f} USD an hour; each alone they take {solo_usd:.2f}{ratio}"


def _slack(group: Group, jobs: Jobs, slow: Mapping[str, Slowdown], rules: Rules) -> str:
    """The job that is nearest to its bound."""
    at_bound = bound_slowdowns(group, jobs, slow, rules)
    bounds = {name: slowdown_bound(jobs[name], rules) for name in at_bound}
    tightest = min(bounds, key=lambda name: (bounds[name] - at_bound[name], name))
    limit, slo = bounds[tightest], jobs[tightest].slo
    kept = f", of which the margin keeps {slo - limit:.3f}" if limit < slo else ""
    return (
        f"{tightest} is nearest to its bound: {at_bound[tightest]:.3f} (p{100 * rules.quantile:g}) of {slo:.3f}{kept}"
    )


def _pace(group: Group, steady: SteadyState, node_types: NodeTypes) -> str:
    """The critical cycle of turns that sets the pace, and the busiest node."""
    busy = [0.0] * len(group.nodes)
    for unit, node in enumerate(node_of_units(group, node_types)):
        busy[node] += steady.busy[unit] / node_types[group.nodes[node]].slots
    most = max(range(len(busy)), key=lambda node: (busy[node], -node))
    chain = steady.chain
    held = "" if chain.limits else "; in the rest jobs are held back so that others keep their bounds"
    return (
        f"critical cycle: {chain}, {min(1.0, chain.seconds / steady.period_s):.0%} of the time{held}; "
        f"{group.nodes[most]} {most} is the busiest node, {min(1.0, busy[most]):.0%}"
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
    return f"{name} on nodes of its own instead: {more:+.2f} USD an hour"


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
            how = " and slows every job the same"
            if abs(there[apart] - here[apart]) >= 0.005:
                how = f"; {apart} differs most, {there[apart]:.2f}x there and {here[apart]:.2f}x here"
            texts.append(f"{rule} also keeps all bounds here{how}; {rules.permit_rule} is the workload's choice")
            continue
        worst = max(there, key=lambda name: (there[name] / slowdown_bound(jobs[name], rules), name))
        texts.append(
            f"{rule} slows {worst} {there[worst]:.2f}x, which breaks its bound of "
            f"{slowdown_bound(jobs[worst], rules):.2f} (here {here[worst]:.2f}x)"
        )
    return f"{rules.permit_rule}: " + "; ".join(texts)


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
                f"{name} in {other_key} would cost {added:.2f} USD an hour instead of {own_usd:.2f}, and slow {worst} "
                f"{slow[worst]:.2f}x of at most {slowdown_bound(state.jobs[worst], rules):.2f}x"
            )
            attempts.append((over[worst], text))
    return min(attempts)[1] if attempts else None
