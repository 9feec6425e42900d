"""From groups to the plan document: nodes with their memory, pins, slowdowns, timelines, costs, why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....plans.facts.digest import groups_decisions, groups_predictions
from ....plans.schema.groups_plan import (
    CostFigures,
    DeclinedMoves,
    GroupsInputs,
    GroupsPlan,
    GroupsPredicted,
    GroupsSolver,
    Move,
)
from ....plans.schema.sections.origin import Volatile
from ....plans.schema.sections.planned_group import GroupMember, GroupNode, PinnedPhase, PlannedGroup, PlannedSlowdown
from ....plans.schema.workload import Workload
from ..inputs.capacity import excess
from ..inputs.group_model import Group, GroupJob, NodeKind, Pin, Rules, Slowdown, Way
from ..inputs.workload_jobs import Problem
from ..place.assemble import resident_bytes
from ..place.greedy import Algorithm1
from ..place.placing import Placer, State
from ..place.published_placements import SoloD
from ..simulate.bound_slowdown import keeping
from ..simulate.permit_seats import kept, pace_s
from ..simulate.shown_timeline import timeline_of
from ..simulate.slowdowns import slowdowns, units_per_hour
from ..simulate.steady_state import Steady, steady
from .group_why import explain


def write_plan(
    problem: Problem,
    workload: Workload,
    state: State,
    solver: GroupsSolver,
    moves: Sequence[Move],
    declined: DeclinedMoves | None,
    inputs: GroupsInputs,
    volatile: Volatile,
) -> GroupsPlan:
    """The document of `state`, which places every job of the problem."""
    got = {key: slowdowns(group, state.jobs, problem.rules) for key, group in state.groups.items()}
    greedy = placed_in_turn(Algorithm1(problem.kinds, problem.rules), problem.jobs)
    groups = {key: _group(key, state, got[key], problem) for key in sorted(state.groups, key=lambda key: int(key[1:]))}
    predicted = GroupsPredicted(
        plan=figures(state, problem, got),
        solo_d=figures(placed_in_turn(SoloD(problem.kinds), problem.jobs), problem),
        algorithm_1=figures(greedy, problem),
    )
    return GroupsPlan(
        rlplan_groups=1,
        inputs=inputs,
        solver=solver,
        decisions_sha256=groups_decisions(groups),
        rules=workload.rules,
        groups=groups,
        moves=tuple(moves),
        declined=declined,
        predicted=predicted,
        predicted_sha256=groups_predictions(predicted, groups),
        volatile=volatile,
    )


def placed_in_turn(placer: Placer, jobs: Mapping[str, GroupJob]) -> State:
    """All jobs, placed one after the other by name."""
    state = State()
    for name in sorted(jobs):
        state = placer.arrive(state, jobs[name])
    return state


def figures(state: State, problem: Problem, got: Mapping[str, Mapping[str, Slowdown]] | None = None) -> CostFigures:
    """What a placement costs per hour, and per unit of training: what one USD buys if each job has its own nodes."""
    slow: dict[str, Slowdown] = {}
    for key, group in state.groups.items():
        slow |= got[key] if got is not None else slowdowns(group, state.jobs, problem.rules)
    held = [
        keeps for group in state.groups.values() for keeps in keeping(group, state.jobs, slow, problem.rules).values()
    ]
    price = state.usd_per_hour(problem.kinds)
    units = units_per_hour(slow, state.jobs, problem.kinds)
    return CostFigures(
        usd_per_hour=price,
        usd_per_unit=price / units if units else 0.0,
        slo_attained=sum(held) / len(held),
        fits=not excess(state.groups.values(), problem.kinds),
    )


def _group(key: str, state: State, got: Mapping[str, Slowdown], problem: Problem) -> PlannedGroup:
    group, kinds = state.groups[key], problem.kinds
    held = keeping(group, state.jobs, got, problem.rules)
    settled = steady(group, state.jobs, problem.rules, {pool: kind.slots for pool, kind in kinds.items()})
    return PlannedGroup(
        nodes=_nodes(group, state.jobs, kinds, settled),
        jobs={
            pin.job: _member(group, pin, state.jobs, got[pin.job], held[pin.job], problem.rules) for pin in group.pins
        },
        usd_per_hour=group.usd_per_hour(kinds),
        timeline=timeline_of(settled),
        why=explain(key, state, got, settled, kinds, problem.rules),
    )


def _member(
    group: Group, pin: Pin, jobs: Mapping[str, GroupJob], got: Slowdown, keeps: bool, rules: Rules
) -> GroupMember:
    job = jobs[pin.job]
    tail_units = kept(pin, rules) if job.tail_share else 0
    return GroupMember(
        rollout=_phase(job.rollout, pin.rollout, pin.rollout_units),
        train=_phase(job.train, pin.train, pin.train_units),
        pace_s=pace_s(group, job, jobs, rules),
        tail_from=1 - job.tail_share if tail_units else None,
        tail_units=tail_units or None,
        slowdown=PlannedSlowdown(mean=got.mean, p50=got.p50, p95=got.p95, slo=job.slo, keeps=keeps, alone_s=job.solo_s),
    )


def _phase(ways: tuple[Way, ...], way: int, units: tuple[int, ...]) -> PinnedPhase:
    found = ways[way]
    return PinnedPhase(
        pool=found.pool,
        units=units,
        way=way,
        mean_s=found.mean_s,
        switch_s=found.warm_s,
        resume_s=found.resume_s,
    )


def _nodes(
    group: Group, jobs: Mapping[str, GroupJob], kinds: Mapping[str, NodeKind], steady_state: Steady
) -> tuple[GroupNode, ...]:
    held = resident_bytes(group, jobs, kinds)
    nodes, first = [], 0
    for pool, used in zip(group.nodes, held, strict=True):
        slots = kinds[pool].slots
        busy = sum(steady_state.busy[first : first + slots]) / slots
        first += slots
        nodes.append(
            GroupNode(
                pool=pool,
                slots=slots,
                resident_bytes=used,
                host_memory_bytes=round(kinds[pool].host_memory_bytes),
                busy=min(1.0, busy),
            )
        )
    return tuple(nodes)
