"""The first hour of a new user: three jobs planned as the README says, and N mistakes.

    python -m benchmarks.first_hour [--mistakes N] [--seed N] [--skip-way] [--json]

    {"minutes_of_commands": …, "commands": …, "mistakes": …, "tracebacks": 0, "endless": 0, "solved_but_checked_bad": 0,
     "wrong_exit_codes": 0, "not_one_line": 0, "written": 0, "too_much_memory": 0, "taken_silently": 0, …}

`minutes_of_commands`: time of all commands for the three jobs, one after the other, compiling the simulator included.
A mistake is right if its command ends within 10 s of a core (60 s in all) and 1 GB with a documented exit code and,
where it refuses, one line on standard error and nothing written. `taken_silently`: certain mistakes that
no command refused. `solved_but_checked_bad`: plans that `solve` wrote and `check` rejects, of the jobs and of the
mistakes. `not_executable`: plans of the three jobs that `execute --dry-run` cannot run yet. Exit
code 1 if any count is not 0.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..entry import run
from .all_mistakes import mistakes
from .newcomer_commands import walk
from .sample_folder import build
from .trial import Outcome, attempt

FAULTS = {
    "traceback": "tracebacks", "endless": "endless", "checked bad": "solved_but_checked_bad",
    "exit code": "wrong_exit_codes", "not one line": "not_one_line", "written": "written", "memory": "too_much_memory",
    "taken": "taken_silently", "killed": "killed",
}  # fmt: skip
"""Faults of an answer to a mistake, each with the JSON key that counts it."""


def make(count: int, seed: int, notify: Callable[[str], None]) -> list[Outcome]:
    """Make `count` mistakes, one after the other; their outcomes."""
    outcomes: list[Outcome] = []
    if not count:
        return outcomes
    with tempfile.TemporaryDirectory(prefix="rlplan-first-hour-") as folder:
        ground = Path(folder) / "ground"
        build(ground)
        for number, mistake in enumerate(mistakes(count, seed), 1):
            outcome = attempt(mistake, ground, Path(folder) / "here")
            outcomes.append(outcome)
            if outcome.faults:
                command = " ".join(outcome.mistake.command)
                notify(
                    f"{number}: {', '.join(outcome.faults)}: {mistake.name}: rlplan {command[:150]}: {outcome.output}"
                )
    return outcomes


def counts(outcomes: list[Outcome]) -> dict[str, Any]:
    """Counts of mistakes, of refusals and of each fault."""
    faults = Counter(fault for outcome in outcomes for fault in outcome.faults)
    worst = max(outcomes, key=lambda outcome: outcome.seconds, default=None)
    return {
        "mistakes": len(outcomes),
        "refused": sum(outcome.refused for outcome in outcomes),
        **{key: faults[fault] for fault, key in FAULTS.items()},
        "longest_s": round(worst.seconds, 2) if worst else 0.0,
        "longest": worst.mistake.name if worst else "",
        "peak_bytes": max((outcome.peak_bytes for outcome in outcomes), default=0),
    }


@click.command()
@click.option(
    "--mistakes", "count", type=click.IntRange(min=0), default=500, show_default=True, help="Number of mistakes."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the mistakes.")
@click.option("--skip-way", is_flag=True, help="Only mistakes, without the commands for the three jobs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def main(count: int, seed: int, skip_way: bool, as_json: bool) -> None:
    """The commands of a new user's first hour, and mistakes; exit code 1 if any answer has a fault."""

    def notify(text: str) -> None:
        click.echo(text, err=True)

    way: dict[str, Any] = {}
    if not skip_way:
        with tempfile.TemporaryDirectory(prefix="rlplan-way-") as folder:
            way = walk(Path(folder), notify)
    answers = counts(make(count, seed, notify))
    totals = {key: way.get(key, 0) + answers.get(key, 0) for key in ("tracebacks", "endless", "solved_but_checked_bad")}
    result = {**way, **answers, **totals}
    click.echo(json.dumps(result) if as_json else "\n".join(f"{key:24} {value}" for key, value in result.items()))
    if any(result[key] for key in FAULTS.values()) or way.get("failed"):
        raise SystemExit(1)


if __name__ == "__main__":
    run(main)
