"""The plan document of groups: nodes with their memory, pins, slowdowns, timelines, cost figures, reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from ...plans.facts.digest import groups_decisions, groups_predictions
from ...plans.schema.groups_plan import (
    CostFigures,
    DeclinedMoves,
    GroupMember,
    GroupNode,
    GroupsInputs,
    GroupsPlan,
    GroupsPredicted,
    GroupsSolver,
    GroupTimeline,
    MemberPoint,
    Move,
    PinnedPhase,
    PlannedGroup,
    PlannedSlowdown,
    Span,
)
from ...plans.schema.plan import InputFile, Volatile
from ...plans.schema.workload import Workload
from ...plans.yaml.yaml_io import sha256_file
from .choose.group_nodes import placed_in_turn, resident_bytes, solo_group
from .choose.placers import Algorithm1, SoloD
from .group_why import explain
from .inputs.group_model import Group, GroupJob, GroupsState, Jobs, NodeTypes, PhaseOption, Pin, Slowdown, excess
from .inputs.workload_jobs import Problem
from .simulate.permit_simulator import pace_s, units_kept
from .simulate.slowdowns import bounds_kept, slowdowns, training_per_hour
from .simulate.steady_state import SteadyState, start_s, steady_state

ITERATIONS = 2
"""Most iterations of the slowest job that are shown; a period may have many more."""


def timeline_of(state: SteadyState) -> GroupTimeline:
    """Phases from the beginning of a period, in the order in which they begin, cut at the end of the shown part."""
    shown_s = state.period_s * min(1.0, ITERATIONS / min(state.iterations.values()))
    spans: dict[tuple[float, float, str, str], Span] = {}
    for held in state.held:
        if held.start_s >= shown_s:
            continue
        # A phase on several nodes is one span.
        key = (held.start_s, held.end_s, held.job, held.phase)
        units = (*(spans[key].units if key in spans else ()), *held.units)
        spans[key] = Span(
            job=held.job,
            phase=held.phase,
            units=tuple(sorted(units)),
            begin_s=held.start_s,
            end_s=min(held.end_s, shown_s),
        )
    return GroupTimeline(period_s=state.period_s, repeats=state.repeats, span_s=shown_s, spans=tuple(spans.values()))


def chrome_trace(plan: GroupsPlan) -> dict[str, Any]:
    """The trace that ui.perfetto.dev opens: a process for each group, a thread for each slot of its nodes.

    Format as in planner/simulate/run_timeline.py.
    """
    named: list[dict[str, Any]] = []
    spans: list[dict[str, Any]] = []
    for pid, (key, group) in enumerate(plan.groups.items(), 1):
        named.append({"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": f"group {key}"}})
        unit = 0
        for index, node in enumerate(group.nodes):
            for slot in range(node.slots):
                name = f"{node.pool} {index}" + (f" slot {slot}" if node.slots > 1 else "")
                named.append({"ph": "M", "pid": pid, "tid": unit, "name": "thread_name", "args": {"name": name}})
                unit += 1
        for span in group.timeline.spans:
            spans += [
                {
                    "ph": "X",
                    "pid": pid,
                    "tid": unit,
                    "name": f"{span.job} {span.phase}",
                    "cat": span.phase,
                    "ts": round(1e6 * span.begin_s, 3),
                    "dur": round(1e6 * (span.end_s - span.begin_s), 3),
                }
                for unit in span.units
            ]
    spans.sort(key=lambda event: (event["ts"], event["pid"], event["tid"]))
    return {"traceEvents": named + spans, "displayTimeUnit": "ms"}


def write_plan(
    problem: Problem,
    workload: Workload,
    state: GroupsState,
    solver: GroupsSolver,
    moves: Sequence[Move],
    declined: DeclinedMoves | None,
    inputs: GroupsInputs,
    volatile: Volatile,
) -> GroupsPlan:
    """The plan document of `state`, which places every job of the problem."""
    slow = {key: slowdowns(group, state.jobs, problem.rules) for key, group in state.groups.items()}
    solo_d = placed_in_turn(SoloD(problem.node_types), problem.jobs)
    algorithm_1 = placed_in_turn(Algorithm1(problem.node_types, problem.rules), problem.jobs)
    keys = sorted(state.groups, key=lambda key: int(key[1:]))
    groups = {key: _group(key, state, slow[key], problem) for key in keys}
    predicted = GroupsPredicted(
        plan=cost_figures(state, problem, slow),
        solo_d=cost_figures(solo_d, problem),
        algorithm_1=cost_figures(algorithm_1, problem),
    )
    return GroupsPlan(
        rlplan_groups=1,
        inputs=_with_points(inputs, groups, problem),
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


def _with_points(inputs: GroupsInputs, groups: Mapping[str, PlannedGroup], problem: Problem) -> GroupsInputs:
    """The inputs with the plans of the chosen points as the sources of their jobs; all of a job's are in one folder."""
    sources = dict(inputs.sources)
    for name, member in (item for group in groups.values() for item in group.jobs.items()):
        if member.point is not None:
            file = problem.points[name][member.point.name]
            beside = PurePosixPath(sources[name].path).parent / file.name
            sources[name] = InputFile(path=str(beside), sha256=sha256_file(file))
    return inputs.model_copy(update={"sources": sources})


def cost_figures(
    state: GroupsState, problem: Problem, by_group: Mapping[str, Mapping[str, Slowdown]] | None = None
) -> CostFigures:
    """Price of a state per hour and per unit of training, which is what one USD buys if each job has its own nodes.

    `by_group`: slowdowns by group and job, simulated here if not given.
    """
    slow: dict[str, Slowdown] = {}
    for key, group in state.groups.items():
        slow |= by_group[key] if by_group is not None else slowdowns(group, state.jobs, problem.rules)
    kept = [
        keeps
        for group in state.groups.values()
        for keeps in bounds_kept(group, state.jobs, slow, problem.rules).values()
    ]
    price = state.usd_per_hour(problem.node_types)
    units = training_per_hour(slow, state.jobs, problem.node_types)
    return CostFigures(
        usd_per_hour=price,
        usd_per_unit=price / units if units else 0.0,
        slo_attained=sum(kept) / len(kept),
        fits=not excess(state.groups.values(), problem.node_types),
    )


def _group(key: str, state: GroupsState, slow: Mapping[str, Slowdown], problem: Problem) -> PlannedGroup:
    group, node_types, rules = state.groups[key], problem.node_types, problem.rules
    kept = bounds_kept(group, state.jobs, slow, rules)
    steady = steady_state(group, state.jobs, rules, {pool: node_type.slots for pool, node_type in node_types.items()})
    return PlannedGroup(
        nodes=_nodes(group, state.jobs, node_types, steady),
        jobs={pin.job: _member(group, pin, state.jobs, slow[pin.job], kept[pin.job], problem) for pin in group.pins},
        usd_per_hour=group.usd_per_hour(node_types),
        timeline=timeline_of(steady),
        why=explain(key, state, slow, steady, node_types, rules),
    )


def _member(group: Group, pin: Pin, jobs: Jobs, slow: Slowdown, keeps: bool, problem: Problem) -> GroupMember:
    job, rules = jobs[pin.job], problem.rules
    tail_share = job.tail_at(pin.rollout)
    tail_units = units_kept(pin, rules) if tail_share else 0
    return GroupMember(
        rollout=_phase(job.rollout, pin.rollout, pin.rollout_units),
        train=_phase(job.train, pin.train, pin.train_units),
        pace_s=pace_s(group, job, jobs, rules),
        tail_from=1 - tail_share if tail_units else None,
        tail_units=tail_units or None,
        tail_finished=job.tail_finished if tail_units else None,
        slowdown=PlannedSlowdown(
            mean=slow.mean, p50=slow.p50, p95=slow.p95, slo=job.slo, keeps=keeps, alone_s=job.solo_s
        ),
        point=_point(job, pin, problem.node_types) if job.points else None,
        cold_s=start_s(pin.job, group, jobs, problem.node_types, rules),
    )


def _point(job: GroupJob, pin: Pin, node_types: NodeTypes) -> MemberPoint:
    def price(option: int) -> float:
        return solo_group(job, node_types, (option, option)).usd_per_hour(node_types)

    rollout, train, point = job.rollout[pin.rollout], job.train[pin.train], job.points[pin.rollout]
    return MemberPoint(
        name=point.name,
        nodes=(rollout.nodes, train.nodes),
        reward_cores=point.reward_cores,
        step_s=rollout.mean_s + train.mean_s,
        usd_per_hour=price(pin.rollout),
        alone=job.points[0].name,
        alone_usd_per_hour=price(0),
    )


def _phase(options: tuple[PhaseOption, ...], index: int, units: tuple[int, ...]) -> PinnedPhase:
    option = options[index]
    return PinnedPhase(
        pool=option.pool, units=units, way=index, mean_s=option.mean_s, switch_s=option.warm_s, resume_s=option.resume_s
    )


def _nodes(group: Group, jobs: Jobs, node_types: NodeTypes, steady: SteadyState) -> tuple[GroupNode, ...]:
    nodes, first = [], 0
    for pool, used in zip(group.nodes, resident_bytes(group, jobs, node_types), strict=True):
        slots = node_types[pool].slots
        busy = sum(steady.busy[first : first + slots]) / slots
        first += slots
        nodes.append(
            GroupNode(
                pool=pool,
                slots=slots,
                resident_bytes=used,
                host_memory_bytes=round(node_types[pool].host_memory_bytes),
                busy=min(1.0, busy),
            )
        )
    return tuple(nodes)
