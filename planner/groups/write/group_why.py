"""Why a group is as it is: what it saves, what binds, what else could be done and what that would cost, and what
another permit policy would do to its jobs. Text, by key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ..inputs.group_model import Group, GroupJob, NodeKind, Rules, Slowdown
from ..place.assemble import alone, resident
from ..place.greedy import placements
from ..place.placing import State, node_of_units, without_idle_nodes
from ..simulate.bound_slowdown import judged, keeping
from ..simulate.permit_seats import bound
from ..simulate.slowdowns import slowdowns
from ..simulate.steady_state import Steady


def explain(
    key: str,
    state: State,
    got: Mapping[str, Slowdown],
    settled: Steady,
    kinds: Mapping[str, NodeKind],
    rules: Rules,
) -> dict[str, str]:
    """Text by key for group `key` of `state`, whose slowdowns are `got` and whose turns are `settled`."""
    group = state.groups[key]
    why = {"cost": _cost(group, state.jobs, kinds)}
    if len(group.pins) > 1:
        why["slack"] = _slack(group, state.jobs, got, rules)
        why["pace"] = _pace(group, settled, kinds)
        why["next_best"] = _without_one(group, state.jobs, kinds)
        why["policy"] = _policy(group, state.jobs, got, rules)
    else:
        joining = _joining(key, state, kinds, rules)
        if joining:
            why["next_best"] = joining
    return why


def _cost(group: Group, jobs: Mapping[str, GroupJob], kinds: Mapping[str, NodeKind]) -> str:
    ours = group.usd_per_hour(kinds)
    own = sum(jobs[pin.job].solo_usd_per_hour(kinds) for pin in group.pins)
    names = ", ".join(pin.job for pin in group.pins)
    if len(group.pins) == 1:
        return f"{names} has these nodes to itself: {ours:.2f} USD an hour"
    ratio = f", {own / ours:.2f} times as much" if ours else ""
    return f"{names} share nodes for {ours:.2f} USD an hour; each alone they take {own:.2f}{ratio}"


def _slack(group: Group, jobs: Mapping[str, GroupJob], got: Mapping[str, Slowdown], rules: Rules) -> str:
    """The job that is nearest to its bound."""
    at = judged(group, jobs, got, rules)
    tightest = min(group.pins, key=lambda pin: (bound(jobs[pin.job], rules) - at[pin.job], pin.job)).job
    limit, slo = bound(jobs[tightest], rules), jobs[tightest].slo
    kept = f", of which the margin keeps {slo - limit:.3f}" if limit < slo else ""
    return f"{tightest} is nearest to its bound: {at[tightest]:.3f} (p{100 * rules.quantile:g}) of {slo:.3f}{kept}"


def _pace(group: Group, settled: Steady, kinds: Mapping[str, NodeKind]) -> str:
    """The cycle of turns that sets the pace, and the busiest node."""
    busy = [0.0] * len(group.nodes)
    for unit, node in enumerate(node_of_units(group, kinds)):
        busy[node] += settled.busy[unit] / kinds[group.nodes[node]].slots
    most = max(range(len(busy)), key=lambda at: (busy[at], -at))
    chain = settled.chain
    held = "" if chain.limits else "; in the rest jobs are held back so that others keep their bounds"
    return (
        f"critical cycle: {chain}, {min(1.0, chain.seconds / settled.period_s):.0%} of the time{held}; "
        f"{group.nodes[most]} {most} is the busiest node, {min(1.0, busy[most]):.0%}"
    )


def _without_one(group: Group, jobs: Mapping[str, GroupJob], kinds: Mapping[str, NodeKind]) -> str:
    """The cheapest group that is left when one job goes onto nodes of its own."""
    ours = group.usd_per_hour(kinds)
    options = []
    for pin in group.pins:
        rest = without_idle_nodes(Group(group.nodes, tuple(p for p in group.pins if p is not pin)), kinds)
        own = alone(jobs[pin.job], kinds).usd_per_hour(kinds)
        options.append((rest.usd_per_hour(kinds) + own - ours, pin.job))
    more, name = min(options)
    return f"{name} on nodes of its own instead: {more:+.2f} USD an hour"


def _policy(group: Group, jobs: Mapping[str, GroupJob], got: Mapping[str, Slowdown], rules: Rules) -> str:
    """What the other policies would do to the job that they would hurt most, or that they would keep all bounds too."""
    parts = []
    here = judged(group, jobs, got, rules)
    for policy in ("round_robin", "first_come", "multi_rate"):
        if policy == rules.policy:
            continue
        theirs = replace(rules, policy=policy)
        slow = slowdowns(group, jobs, theirs)
        there = judged(group, jobs, slow, theirs)
        if all(keeping(group, jobs, slow, theirs).values()):
            apart = max(there, key=lambda name: (abs(there[name] - here[name]), name))
            how = " and slows every job the same"
            if abs(there[apart] - here[apart]) >= 0.005:
                how = f"; {apart} differs most, {there[apart]:.2f}x there and {here[apart]:.2f}x here"
            parts.append(f"{policy} also keeps all bounds here{how}; {rules.policy} is the workload's choice")
            continue
        worst = max(there, key=lambda name: (there[name] / bound(jobs[name], rules), name))
        parts.append(
            f"{policy} slows {worst} {there[worst]:.2f}x, which breaks its bound of {bound(jobs[worst], rules):.2f} "
            f"(here {here[worst]:.2f}x)"
        )
    return f"{rules.policy}: " + "; ".join(parts)


def _joining(key: str, state: State, kinds: Mapping[str, NodeKind], rules: Rules) -> str | None:
    """Why a job that is alone does not join another group: the attempt that comes nearest to what is allowed."""
    name = state.groups[key].pins[0].job
    job, own = state.jobs[name], state.groups[key].usd_per_hour(kinds)
    nearest: tuple[float, str] | None = None
    for other, group in sorted(state.groups.items()):
        if other == key or len(group.pins) >= rules.group_cap:
            continue
        for added, candidate in placements(group, job, kinds):
            if added >= own or not resident(candidate, state.jobs, kinds):
                continue
            got = slowdowns(candidate, state.jobs, rules)
            slow = judged(candidate, state.jobs, got, rules)
            over = {name: slow[name] / bound(state.jobs[name], rules) for name in slow}
            worst = max(over, key=lambda member: (over[member], member))
            text = (
                f"{name} in {other} would cost {added:.2f} USD an hour instead of {own:.2f}, and slow {worst} "
                f"{slow[worst]:.2f}x of at most {bound(state.jobs[worst], rules):.2f}x"
            )
            nearest = min(nearest or (math.inf, ""), (over[worst], text))
    return nearest[1] if nearest else None
