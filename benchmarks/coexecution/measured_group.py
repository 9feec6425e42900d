"""What a group's runs took beside the same jobs alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rlplan.planner.groups.simulate.permit_simulator import TrueTurns, simulate_turns
from rlplan.plans.schema.groups_plan import load_groups_plan
from rlplan.rounds.permits.permit_events import Seat
from rlplan.rounds.permits.permit_machine import PermitMachine
from rlplan.traces.groups.group_turns import TURNS
from rlplan.traces.run_log import TRACE, RunLog, read_run
from rlplan.traces.trace import read_trace

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
    began_s, ends = _ends_s(out / TURNS)
    begin_s, end_s = max(each[WARM - 1] for each in ends.values()), min(each[-1] for each in ends.values())
    within = {name: [n for n, t in enumerate(each) if begin_s <= t <= end_s] for name, each in ends.items()}
    spans = {name: _span_s(each, within[name]) for name, each in ends.items()}
    speeds = [core.speed(began_s + begin_s, began_s + end_s) * (1.0 + core_interference) for core in cores]
    steps = {name: run.seconds(speeds) for name, run in alone.items()}
    alone_s = {name: mean(map(sum, each[WARM:])) for name, each in steps.items()}
    wall_s = {name: mean(step["total_s"] for step in run.log.steps[WARM:]) for name, run in alone.items()}
    plan = load_groups_plan(groups)
    replayed = _replayed_ends_s(out / TURNS, steps, plan.rules.interference)
    predicted = {name: _span_s(each, within[name]) / alone_s[name] for name, each in replayed.items()}
    [planned] = plan.groups.values()
    slowdowns = {name: spans[name] / alone_s[name] for name in spans}
    return {
        # Of each job as many steps as fit into the time, in parts too.
        "throughput_ratio": round(sum(alone_s[name] / spans[name] for name in spans), 3),
        "by_the_clock": round(sum(wall_s[name] / spans[name] for name in spans), 3),
        "slowdowns": {name: round(value, 3) for name, value in slowdowns.items()},
        "bounds": {name: planned.jobs[name].slowdown.slo for name in spans},
        "bounds_kept": all(slowdowns[name] <= planned.jobs[name].slowdown.slo for name in spans),
        "predicted": {name: round(value, 3) for name, value in predicted.items()},
        "planned": {name: round(planned.jobs[name].slowdown.mean, 3) for name in spans},
        "prediction_error": round(max(abs(predicted[n] / slowdowns[n] - 1) for n in spans), 4),
        "same_samples": round(_same({name: run.log for name, run in alone.items()}, logs), 4),
        "alone_s": {name: round(value, 3) for name, value in alone_s.items()},
        "alone_wall_s": {name: round(value, 3) for name, value in wall_s.items()},
    }


def _ends_s(journal: Path) -> tuple[float, dict[str, list[float]]]:
    """The Unix second in which the group began, and by job the seconds since then in which its steps ended: every
    second of its turns is the training of a step."""
    header, *events = read_trace(journal)
    ends: dict[str, list[float]] = {}
    for event in events:
        if event["event"] == "done":
            ends.setdefault(event["job"], []).append(float(event["t_s"]))
    return float(header["began_s"]), {job: each[1::2] for job, each in ends.items()}


def _span_s(ends_s: Sequence[float], steps: Sequence[int]) -> float:
    """Mean seconds between the ends of these steps, which follow each other."""
    return (ends_s[steps[-1]] - ends_s[steps[0]]) / (len(steps) - 1)


def _replayed_ends_s(
    journal: Path, steps: Mapping[str, Sequence[tuple[float, float]]], interference: float
) -> dict[str, list[float]]:
    """By job, when its steps would end if their rollouts and trainings took these seconds, by the permit simulator, on
    nodes that slow each other by `interference`."""
    header = next(iter(read_trace(journal)))
    seats = [Seat(**{key: _tuples(value) for key, value in seat.items()}) for seat in header["seats"]]
    truths = [TrueTurns(tuple(steps[seat.job])) for seat in seats]
    ends: dict[str, list[float]] = {seat.job: [] for seat in seats}
    for span in simulate_turns(PermitMachine(header["rule"]), seats, truths, interference):
        if span.phase == "train" and span.ends_phase:
            ends[span.job].append(span.end_s)
        if all(len(each) >= len(steps[job]) for job, each in ends.items()):
            return ends
    raise AssertionError("turns never end")


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _same(alone: Mapping[str, RunLog], together: Mapping[str, RunLog]) -> float:
    wanted, found = (sum((_samples(name, log) for name, log in logs.items()), Counter()) for logs in (alone, together))
    return (wanted & found).total() / wanted.total()


def _samples(name: str, log: RunLog) -> Counter[tuple[Any, ...]]:
    return Counter(
        (name, number, row["prompt"], row["sample"], row["tokens"], row["reward"])
        for number, rows in log.samples.items()
        for row in rows
        if row["fate"] == "trained"
    )
