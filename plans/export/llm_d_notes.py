"""What of a plan llm-d's RL time-slicing does not carry out as planned, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator

from ..phrases.numbers import count, seconds
from ..phrases.sentences import listed
from ..schema.groups_plan import GroupsPlan
from .llm_d_export import Locks
from .llm_d_labels import LONGEST_WAIT_S
from .node_locks import NodeLock, pinned_phases


def llm_d_notes(plan: GroupsPlan, locks: Locks) -> Iterator[str]:
    """Yield the differences between the plan and what llm-d does with its export; the planned slowdowns hold without
    them only."""
    if plan.rules.policy != "first_come":
        yield (
            f"the plan's permit rule is {plan.rules.policy}, and llm-d gives a lock to the first job that asks; with "
            "rules: {policy: first_come} in the workload, solve plans for that"
        )
    shared = [group for group in plan.groups.values() if len(group.jobs) > 1]
    if tails := [name for group in shared for name in group.jobs if group.jobs[name].tail_from is not None]:
        yield f"llm-d moves no tail to fewer nodes, as the plan does of {listed(sorted(tails))}"
    paused = {name for group in shared for name, _, pinned in pinned_phases(group) if pinned.resume_s is not None}
    if paused:
        yield f"llm-d pauses no turn, and the plan may pause {listed(sorted(paused))} for more urgent jobs"
    wide = [lock.name for of_group in locks.values() for lock in of_group if len(lock.nodes) > 1]
    if wide:
        yield f"several nodes in {listed(wide)}: llm-d's roadmap names multi-host time-slicing as still to come"
    for key, of_group in locks.items():
        for lock in of_group:
            yield from _lock_notes(plan, key, lock)


def _lock_notes(plan: GroupsPlan, key: str, lock: NodeLock) -> Iterator[str]:
    group = plan.groups[key]
    turns = [
        (name, set(pinned.units), pinned.mean_s)
        for name, phase, pinned in pinned_phases(group)
        if name in lock.jobs_of(phase)
    ]
    apart = [
        (one, other)
        for place, (one, units, _) in enumerate(turns)
        for other, others_units, _ in turns[place + 1 :]
        if one != other and not units & others_units
    ]
    if apart:
        one, other = apart[0]
        yield (
            f"{lock.name}: the plan lets {one} and {other} run at once on parts of its {count(len(lock.nodes), 'node')}"
            ", and with one lock they take turns"
        )
    both = sorted(set(lock.rollouts) & set(lock.trains))
    if both:
        yield (
            f"{lock.name}: {listed(both)} would take one lock for rollout and training, which llm-d's integration into "
            "slime refuses"
        )
    waits = {name: sum(mean_s for other, _, mean_s in turns if other != name) for name in lock.jobs}
    longest = max(waits, key=lambda name: (waits[name], name))
    if waits[longest] > LONGEST_WAIT_S:
        yield (
            f"{lock.name}: {longest} may wait {seconds(waits[longest])} for the others' turns, and llm-d's integration "
            f"into slime gives up after {LONGEST_WAIT_S:.0f} s; raise timeout_sec of its acquire"
        )
