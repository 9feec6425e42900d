"""What a group's runs took beside the same jobs alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rlplan.planner.groups.simulate.first_steps import (
    common_span,
    first_slowdowns,
    step_ends,
    step_seconds,
    steps_within,
)
from rlplan.plans.schema.groups_plan import load_groups_plan
from rlplan.traces.groups.group_turns import GroupTurns, read_seat, turns_of
from rlplan.traces.run_log import TRACE, RunLog, read_run

from .alone_run import WARM, AloneRun
from .core_speed import CoreSpeed


def compare(
    groups: Path, alone: Mapping[str, AloneRun], out: Path, cores: Sequence[CoreSpeed], core_interference: float
) -> dict[str, Any]:
    """The figures of one group that was executed into `out`; runs alone by name of the job, all of as many steps.

    Seconds alone are those on cores as fast as they were while the group ran. Cores that both compute slow each other
    by `core_interference`, and a job alone does not suffer that: for it, cores count as faster by that share.
    """
    logs = {name: read_run(out / name / TRACE) for name in alone}
    turns = turns_of(out)
    ends = _ends_s(turns)
    begin_s, end_s = common_span(ends)
    common = steps_within(ends, (begin_s, end_s))
    spans = {name: step_seconds(each, common[name]) for name, each in ends.items()}
    speeds = [core.speed(turns.began_s + begin_s, turns.began_s + end_s) * (1.0 + core_interference) for core in cores]
    steps = {name: run.seconds(speeds) for name, run in alone.items()}
    alone_s = {name: mean(map(sum, each[WARM:])) for name, each in steps.items()}
    wall_s = {name: mean(step.total_s for step in run.log.steps[WARM:]) for name, run in alone.items()}
    plan = load_groups_plan(groups)
    counts = {name: len(each) for name, each in steps.items()}
    seats = [read_seat(seat) for seat in turns.seats]
    replayed = step_ends(turns.rule, seats, steps, counts, plan.rules.interference)
    predicted = {name: step_seconds(each, common[name]) / alone_s[name] for name, each in replayed.items()}
    [group] = plan.groups.values()
    planned_s = {name: member.slowdown.alone_s for name, member in group.jobs.items()}
    planned = first_slowdowns(turns.rule, seats, planned_s, counts, plan.rules.interference)
    assert planned is not None, "jobs end enough steps"
    slowdowns = {name: spans[name] / alone_s[name] for name in spans}
    return {
        # Of each job as many steps as fit into the time, in parts too.
        "throughput_ratio": round(sum(alone_s[name] / spans[name] for name in spans), 3),
        "by_the_clock": round(sum(wall_s[name] / spans[name] for name in spans), 3),
        "slowdowns": {name: round(value, 3) for name, value in slowdowns.items()},
        "bounds": {name: group.jobs[name].slowdown.slo for name in spans},
        "bounds_kept": all(slowdowns[name] <= group.jobs[name].slowdown.slo for name in spans),
        "predicted": {name: round(value, 3) for name, value in predicted.items()},
        "prediction_error": round(_error(predicted, slowdowns), 4),
        "planned": {name: round(planned[name], 3) for name in spans},
        "plan_error": round(_error(planned, slowdowns), 4),
        "planned_long_run": {name: round(group.jobs[name].slowdown.mean, 3) for name in spans},
        "same_samples": round(_same({name: run.log for name, run in alone.items()}, logs), 4),
        "alone_s": {name: round(value, 3) for name, value in alone_s.items()},
        "alone_wall_s": {name: round(value, 3) for name, value in wall_s.items()},
    }


def _ends_s(turns: GroupTurns) -> dict[str, list[float]]:
    """By job, the seconds since the group began in which its steps ended: with the ends of their trainings."""
    ends: dict[str, list[float]] = {}
    for turn in turns.turns:
        if turn.phase == "train" and turn.ended:
            ends.setdefault(turn.job, []).append(turn.end_s)
    return ends


def _error(predicted: Mapping[str, float], measured: Mapping[str, float]) -> float:
    """Largest relative error of a job."""
    return max(abs(predicted[name] / value - 1) for name, value in measured.items())


def _same(alone: Mapping[str, RunLog], together: Mapping[str, RunLog]) -> float:
    wanted, found = (sum((_samples(name, log) for name, log in logs.items()), Counter()) for logs in (alone, together))
    return (wanted & found).total() / wanted.total()


def _samples(name: str, log: RunLog) -> Counter[tuple[Any, ...]]:
    return Counter(
        (name, number, row.prompt, row.sample, row.tokens, row.reward)
        for number, rows in log.samples.items()
        for row in rows
        if row.fate == "trained"
    )
