"""How early, and how often for nothing, the bound machine raises alarms in simulated groups.

    python -m benchmarks.bound_alarms [--draws N] [--seed N] [--json]

The groups are those of plans/examples/groups.yaml, whose phases spread; each draw shuffles the jobs' iterations. Jobs
that keep their bounds run for 100 iterations. Then, after 20 or 60 iterations, the phases of each group's longest job
take 1.2 or 1.4 times as long, and what is counted is the jobs whose mean slowdown comes above the bound within 300 more
iterations: how many of them were in alarm before, and since how many iterations.

JSON: {"kept": {"jobs": N, "alarmed": share, "in_alarm": share of iterations, "broken": share}, "drift": [{"factor": F,
"after": N, "broken": N, "told": N, "lead_p50": iterations, "lead_p5": iterations}]}. `kept.broken`: jobs whose mean was
above the bound once, after half a stretch at the earliest, although the long run keeps it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

import rlplan
from rlplan.planner.groups.inputs.group_model import Group, GroupJob, Jobs, PhaseWay
from rlplan.planner.groups.inputs.running_plan import running_state
from rlplan.planner.groups.inputs.workload_jobs import Problem, problem_of
from rlplan.planner.groups.simulate.permit_simulator import seats_of
from rlplan.plans.schema.groups_plan import load_groups_plan
from rlplan.plans.schema.workload import load_workload
from rlplan.rounds.compiled.compiled_permits import PERMIT_RULES, SeatArrays, empty_state
from rlplan.rounds.compiled.permit_kernel import completions
from rlplan.rounds.permits.bound_machine import Alarm, BoundMachine, Broken, SlowdownBound
from rlplan.rounds.permits.slowdown import WARM

from .entry import run

EXAMPLE = Path(rlplan.__file__).parent / "plans" / "examples" / "groups.yaml"
DRIFTS = ((1.2, 20), (1.2, 60), (1.4, 20), (1.4, 60))
Series = NDArray[np.float64]


@dataclass
class Groups:
    """The groups of the example, and the draws of their jobs' iterations."""

    problem: Problem
    groups: list[Group]
    rng: np.random.Generator

    def series(self, group: Group, jobs: Jobs, iterations: int) -> dict[str, Series]:
        """Seconds of at least so many iterations of each job, in a new order of their draws."""
        seats = SeatArrays(*(field[0] for field in seats_of([group], jobs, self.problem.rules)))
        count = len(group.pins)
        for row in range(count):
            seats.draws_s[row] = seats.draws_s[row][self.rng.permutation(seats.draws_s.shape[1])]
        ends, done = np.zeros((count, 8 * iterations)), np.zeros(count, np.int64)
        rule = PERMIT_RULES[self.problem.rules.permit_rule]
        completions(seats, empty_state(count, seats.units.shape[-1]), rule, 0.0, iterations + 5, ends, done)
        return {
            pin.job: np.diff(row[: min(number, len(row))])[4:]
            for pin, row, number in zip(group.pins, ends, done, strict=True)
        }

    def longest(self, group: Group) -> str:
        """The job of a group whose iteration takes longest."""
        return max(group.pins, key=lambda pin: self.problem.jobs[pin.job].solo_s).job


def slower(job: GroupJob, factor: float) -> GroupJob:
    """The job with phases that take `factor` times as long."""

    def ways(given: tuple[PhaseWay, ...]) -> tuple[PhaseWay, ...]:
        return tuple(replace(way, mean_s=way.mean_s * factor) for way in given)

    return replace(job, rollout=ways(job.rollout), train=ways(job.train))


@dataclass
class Watched:
    """A job that ran under the machine: whether it was told of, and its state after each iteration."""

    alarmed: bool
    broken: bool
    states: list[str]


def watched(job: GroupJob, seconds: Series, stretch: int) -> Watched:
    """Feed the machine with a job's iterations."""
    machine, now_s = BoundMachine({job.name: SlowdownBound(job.solo_s, job.slo)}, stretch), 0.0
    for _ in range(WARM):
        machine.ended(job.name, 1, now_s)
    found = Watched(False, False, [])
    for each in seconds:
        now_s += float(each)
        for event in machine.ended(job.name, 1, now_s):
            found.alarmed |= isinstance(event, Alarm)
            found.broken |= isinstance(event, Broken)
        found.states.append(machine.figures(job.name).state)
    return found


def measure_kept(groups: Groups, draws: int) -> dict[str, Any]:
    """Alarms of jobs that keep their bounds."""
    stretch = groups.problem.rules.stretch
    runs = [
        watched(groups.problem.jobs[name], seconds[:100], stretch)
        for _ in range(draws)
        for group in groups.groups
        for name, seconds in groups.series(group, groups.problem.jobs, 100).items()
    ]
    return {
        "jobs": len(runs),
        "alarmed": round(float(np.mean([each.alarmed for each in runs])), 3),
        "in_alarm": round(float(np.mean([state == "alarm" for each in runs for state in each.states])), 3),
        "broken": round(float(np.mean([each.broken for each in runs])), 3),
    }


def measure_drift(groups: Groups, draws: int, factor: float, after: int) -> dict[str, Any]:
    """Alarms of jobs that come to break their bounds as the longest job of their group grows."""
    jobs, leads, broken = groups.problem.jobs, [], 0
    for _ in range(draws):
        for group in groups.groups:
            longest = groups.longest(group)
            before = groups.series(group, jobs, after)
            later = groups.series(group, {**jobs, longest: slower(jobs[longest], factor)}, 300)
            for name, seconds in before.items():
                job, whole = jobs[name], np.concatenate([seconds[:after], later[name][:300]])
                mean = np.cumsum(whole) / np.arange(1, len(whole) + 1) / job.solo_s
                above = np.flatnonzero(mean[after:] > job.slo)
                if not len(above) or mean[after - 1] > job.slo:
                    continue
                broken += 1
                states = watched(job, whole[: after + above[0]], groups.problem.rules.stretch).states[after:]
                lead = next((n for n, state in enumerate(reversed(states)) if state != "alarm"), len(states))
                leads += [lead] if lead else []
    quantiles = np.quantile(leads, [0.5, 0.05]) if leads else (0.0, 0.0)
    return {
        "factor": factor, "after": after, "broken": broken, "told": len(leads),
        "lead_p50": round(float(quantiles[0]), 1), "lead_p5": round(float(quantiles[1]), 1),
    }  # fmt: skip


def measure(draws: int, seed: int) -> dict[str, Any]:
    """The JSON result (see the module's docstring)."""
    plan = load_groups_plan(EXAMPLE)
    path = EXAMPLE.parent / plan.inputs.workload.path
    workload, cluster = load_workload(path)
    problem = problem_of(workload, path, cluster)
    state = running_state(plan, EXAMPLE, problem.jobs, problem.node_types)
    groups = Groups(problem, list(state.groups.values()), np.random.default_rng(seed))
    kept = measure_kept(groups, draws)
    return {"kept": kept, "drift": [measure_drift(groups, draws, factor, after) for factor, after in DRIFTS]}


@click.command()
@click.option("--draws", type=click.IntRange(1, 10_000), default=40, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON line.")
def main(draws: int, seed: int, as_json: bool) -> None:
    """How early alarms come, and how often for nothing."""
    result = measure(draws, seed)
    if as_json:
        click.echo(json.dumps(result))
        return
    kept = result["kept"]
    click.echo(
        f"{kept['jobs']} jobs that keep their bounds, 100 iterations: {kept['alarmed']:.1%} had an alarm, "
        f"{kept['in_alarm']:.1%} of the time; {kept['broken']:.1%} were above the bound once"
    )
    for row in result["drift"]:
        click.echo(
            f"longest job {row['factor']}x after {row['after']:2d}: {row['told']} of {row['broken']} that broke were "
            f"told before; iterations before: p50 {row['lead_p50']:.0f}, p5 {row['lead_p5']:.0f}"
        )


if __name__ == "__main__":
    run(main)
