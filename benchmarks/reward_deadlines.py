"""The reward phase with adaptive deadlines against the same with one deadline for all, in real sandboxes.

    python -m benchmarks.reward_deadlines [--prompts 32] [--unsolved 0.1] [--rounds 2] [--trace FILE] [--json]

A round is so many prompts with 8 samples each, all of which wait for WORKERS reward workers at once. Its programs take
as long as code of KodCode does (profiles/library/rewards/code.yaml): a prompt's right answers take its own seconds,
wrong ones seconds of their own, and 5 % of all samples never end. Of the prompts a share `--unsolved` is never answered
right, so that their deadlines never adapt: the more there are, the less adaptive deadlines save. Programs sleep for as
long, so that more of them than cores may run, and whatever else runs on the machine counts little. Their seconds are
times SCALE, deadlines with them. The first round, in which no deadline has adapted, is the same for both and not in
`speedup`; the following ones are run under both in turns.

The adaptive deadlines are those that `solve` plans for `deadline_s: 30, shortest_deadline_s: 2`. `judged_wrong` counts
right answers that a deadline ended, of `right` that were run. `trace` is about the right answers of a trace (`--trace`,
a CSV with a column `exec_s`; else those that ship). Those that take half of the shortest deadline or longer are run
here, once to learn their anchors and `REPEATS` times under them; faster ones would have to take twice their seconds.
`worst_scatter` is the most that any program's slowest run took over its fastest.

    {"speedup": …, "fixed_s": …, "adaptive_s": …, "samples": …, "hanging": …, "right": …, "judged_wrong": 0,
     "deadlines": {"min_s": …, "anchor_factor": …, "max_s": …}, "scale": …, "unsolved": …,
     "trace": {"prompts": …, "slow": …, "runs": …, "worst_scatter": …, "judged_wrong": 0}}
"""

from __future__ import annotations

import asyncio
import csv
import gzip
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import ray

from rlplan.executor.processes.actors import start_ray
from rlplan.executor.rewards.functions import ScorerConfig
from rlplan.executor.rewards.pool import RewardPool
from rlplan.planner.choose.rewards.reward_choices import safe_timeout
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.reward_tables import HANGS_S, reward_table
from rlplan.rounds.timeouts import RewardExecution, Timeouts, TimeoutSpec

from .entry import run
from .layout_runs import console

SCALE, WORKERS = 1 / 2, 4
HANGING = 0.05
SANDBOX_S = 0.27
"""Seconds of the sandbox in those that ship for code (library/rewards/code.yaml): here the sandbox is a real one."""

LONGEST_S, SHORTEST_S = 30.0, 2.0
SAMPLES_PER_PROMPT = 8
REPEATS = 2

PROGRAM = """```python
import time
def answer():
    time.sleep({seconds:.5f})
    return {right}
```"""
TESTS = "assert answer()"


@dataclass(frozen=True)
class Sample:
    """A sample to score; `seconds`: nominal, after scaling; infinite for one that hangs."""

    prompt: str
    seconds: float
    right: bool

    @property
    def response(self) -> str:
        """A program that takes the seconds and answers right or wrong."""
        return PROGRAM.format(seconds=min(self.seconds, HANGS_S), right=self.right)


@dataclass(frozen=True)
class Phase:
    """A round's reward phase: its seconds, and each sample's execution with its nominal seconds."""

    seconds: float
    executions: tuple[tuple[Sample, RewardExecution], ...]

    def judged_wrong(self) -> int:
        """Right answers that a deadline ended."""
        return sum(sample.right and not execution.correct for sample, execution in self.executions)


def mix(prompts: int, right_s: Sequence[float], unsolved: float, seed: int) -> list[Sample]:
    """The samples of a round, in random order; of solved prompts as many are right as in the table that ships."""
    table = reward_table("code")
    assert table.wrong_s is not None and table.correct is not None, "code that ships has a distribution"
    wrong_s = [max(0.0, seconds - SANDBOX_S) for seconds in table.wrong_s]
    hanging = HANGING / (1.0 - (1.0 - unsolved) * table.correct)  # of the wrong ones
    samples = []
    own = random.Random("prompts")  # a prompt's tests take the same in every round
    drawn = random.Random(seed)
    for prompt in range(prompts):
        solved, seconds = own.random() >= unsolved, own.choice(right_s)
        for _ in range(SAMPLES_PER_PROMPT):
            right = solved and drawn.random() < table.correct
            hangs = not right and drawn.random() < hanging
            took_s = float("inf") if hangs else SCALE * (seconds if right else drawn.choice(wrong_s))
            samples.append(Sample(f"prompt-{prompt}", took_s, right))
    drawn.shuffle(samples)
    return samples


async def phase(pool: RewardPool, samples: Sequence[Sample], timeouts: Timeouts, name: str) -> Phase:
    """Score a round's samples, all waiting at once, under the deadlines as they are now."""
    began = time.monotonic()
    asked = [
        pool.score(f"{name}/{number}", sample.prompt, sample.response, TESTS, timeouts.deadline_s(sample.prompt))
        for number, sample in enumerate(samples)
    ]
    results = await asyncio.gather(*asked)
    seconds = time.monotonic() - began
    return Phase(
        seconds,
        tuple(
            (sample, RewardExecution(sample.prompt, done.seconds, done.reward > 0, done.outcome == "policy_timeout"))
            for sample, done in zip(samples, results, strict=True)
        ),
    )


def learn(timeouts: Timeouts, done: Phase) -> None:
    """Tell the deadlines what a round's executions took."""
    timeouts.end_round(execution for _, execution in done.executions)


async def measure(
    prompts: int, rounds: int, right_s: Sequence[float], unsolved: float, adaptive: TimeoutSpec
) -> tuple[dict[str, list[Phase]], dict[str, float]]:
    """(the phases of the rounds after the first, under fixed and under adaptive deadlines; the replayed trace)."""
    pool = RewardPool(ScorerConfig("code", None, adaptive.max_s), WORKERS)
    fixed, learnt = Timeouts(TimeoutSpec(adaptive.max_s)), Timeouts(adaptive)
    phases: dict[str, list[Phase]] = {"fixed": [], "adaptive": []}
    await pool.start()
    try:
        console.print("first round: deadlines have not adapted")
        first = await phase(pool, mix(prompts, right_s, unsolved, 0), fixed, "first")
        learn(fixed, first)
        learn(learnt, first)
        for number in range(1, rounds + 1):
            samples = mix(prompts, right_s, unsolved, number)
            for name, timeouts in (("fixed", fixed), ("adaptive", learnt))[:: 1 if number % 2 else -1]:
                done = await phase(pool, samples, timeouts, f"{name}-{number}")
                learn(timeouts, done)
                phases[name].append(done)
                console.print(f"round {number}, {name} deadlines: {done.seconds:.1f} s")
        console.print("slow right answers of the trace")
        return phases, await replay(pool, right_s, adaptive)
    finally:
        await pool.close()


async def replay(pool: RewardPool, right_s: Sequence[float], adaptive: TimeoutSpec) -> dict[str, float]:
    """Run the slow right answers of a trace under the deadlines that their own runs teach."""
    slow = [
        Sample(f"trace-{number}", SCALE * seconds, True)
        for number, seconds in enumerate(right_s)
        if SCALE * seconds >= 0.5 * adaptive.floor_s
    ]
    timeouts, took = Timeouts(adaptive), defaultdict(list)
    judged_wrong = 0
    for number in range(1 + REPEATS):
        done = await phase(pool, slow, timeouts, f"trace-{number}")
        learn(timeouts, done)
        judged_wrong += done.judged_wrong()
        for sample, execution in done.executions:
            took[sample.prompt].append(execution.seconds)
    scatter = max((max(seconds) / min(seconds) for seconds in took.values()), default=1.0)
    return {
        "prompts": len(right_s),
        "slow": len(slow),
        "runs": REPEATS * len(slow),
        "worst_scatter": round(scatter, 3),
        "judged_wrong": judged_wrong,
    }


def read_trace(path: Path) -> list[float]:
    """The seconds of a trace's right answers. Raises InputError."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    rows = list(csv.DictReader(text.splitlines()))
    try:
        return [float(row["exec_s"]) for row in rows]
    except (KeyError, ValueError) as error:
        raise InputError(f"needs a column exec_s with seconds: {error}", str(path)) from None


@click.command()
@click.option("--prompts", type=click.IntRange(min=1), default=32, show_default=True, help="Prompts of a round.")
@click.option("--rounds", type=click.IntRange(min=1), default=2, show_default=True, help="Rounds under both.")
@click.option("--unsolved", type=click.FloatRange(0, 1), default=0.1, show_default=True, help="Share of prompts.")
@click.option("--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="CSV of right answers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def main(prompts: int, rounds: int, unsolved: float, trace: Path | None, as_json: bool) -> None:
    """Measure the reward phase under both kinds of deadline; exit code 1 below 1.6x, or if a right answer is lost."""
    table = reward_table("code")
    assert table.right_s is not None, "code that ships has a distribution"
    shipped_s = [max(0.0, seconds - SANDBOX_S) for seconds in table.right_s]
    right_s = shipped_s if trace is None else read_trace(trace)
    planned = safe_timeout(SHORTEST_S, LONGEST_S, table.reward(1))
    assert planned is not None, "these bounds leave something to save"
    start_ray()
    try:
        spec = TimeoutSpec(SCALE * LONGEST_S, SCALE * planned.min_s, planned.anchor_factor)
        phases, trace_figures = asyncio.run(measure(prompts, rounds, right_s, unsolved, spec))
    finally:
        ray.shutdown()
    fixed_s, adaptive_s = (statistics.fmean(done.seconds for done in phases[name]) for name in ("fixed", "adaptive"))
    run_samples = [sample for done in phases["adaptive"] for sample, _ in done.executions]
    document: dict[str, Any] = {
        "speedup": round(fixed_s / adaptive_s, 3),
        "fixed_s": round(fixed_s, 2),
        "adaptive_s": round(adaptive_s, 2),
        "samples": len(run_samples),
        "hanging": round(sum(sample.seconds == float("inf") for sample in run_samples) / len(run_samples), 4),
        "right": sum(sample.right for sample in run_samples),
        "judged_wrong": sum(done.judged_wrong() for done in phases["adaptive"]),
        "fixed_judged_wrong": sum(done.judged_wrong() for done in phases["fixed"]),
        "deadlines": {"min_s": planned.min_s, "anchor_factor": planned.anchor_factor, "max_s": LONGEST_S},
        "scale": SCALE,
        "unsolved": unsolved,
        "trace": trace_figures,
    }
    if as_json:
        click.echo(json.dumps(document))
    else:
        for key, value in document.items():
            click.echo(f"{key:20} {value}")
    if document["speedup"] < 1.6 or document["judged_wrong"] or document["trace"]["judged_wrong"]:
        raise SystemExit(1)


if __name__ == "__main__":
    run(main)
