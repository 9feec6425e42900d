"""The commands of a new user, each run in a process of its own as in a shell, with their seconds and failures."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .newcomer_jobs import JOBS, Newcomer, write_job

LIMIT_S = 600.0
"""Seconds that a command may take; the first one compiles the simulator."""


def commands(folder: Path, job: Newcomer) -> list[tuple[str, ...]]:
    """Command lines from `rlplan init` to a plan that was checked, shown, diffed, simulated and compared.

    First the documents that `rlplan init` writes are planned as they are, then the job's own documents in `folder`.
    """
    home, plan, plain = str(folder), str(folder / "plan.yaml"), str(folder / "sync.yaml")
    trace = ("--trace", f"{home}/lengths.jsonl")
    mine = f"{home}/skeleton"
    fewer = f"cluster.pools.h100.nodes={job.nodes // 2},{job.nodes}"
    return [
        ("init", mine, "--gpus", f"{job.nodes}x8xH100", "--model", job.shipped, "--reward", job.reward),
        ("profile", mine, "--shipped", job.shipped),
        ("solve", mine, "--lengths", f"{job.reward}-16k"),
        ("check", f"{mine}/plan.yaml"),
        ("profile", home, "--shipped", job.shipped),
        ("check", f"{home}/cluster.yaml", f"{home}/job.yaml", f"{home}/profile.yaml"),
        ("solve", home, *trace, "--mode", "sync", "-o", plain),
        ("solve", home, *trace),
        ("check", plan, plain),
        ("show", plan, "--html", f"{home}/plan.html"),
        ("diff", plain, plan),
        ("simulate", plan, "--steps", "20"),
        ("compare", f"{home}/job.yaml", *trace, "--vary", fewer, "--html", f"{home}/compare.html"),
        ("execute", plan, "--dry-run", "--out", f"{home}/run"),
    ]


def walk(home: Path, notify: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Run the commands for all three jobs below `home`; counts, seconds, and a line for each failure."""
    seconds: dict[str, float] = {}
    count, tracebacks, endless = 0, 0, 0
    bad: list[str] = []
    not_executable: list[str] = []
    failed: list[str] = []
    for job in JOBS:
        folder = home / job.name
        write_job(folder, job)
        for arguments in commands(folder, job):
            began = time.perf_counter()
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "rlplan.cli.main", *arguments],
                    capture_output=True, text=True, check=False, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                endless += 1
                failed.append(f"{job.name}: {arguments[0]} took more than {LIMIT_S:g} s")
                break
            took = time.perf_counter() - began
            count += 1
            seconds[f"{job.name} {arguments[0]}"] = round(seconds.get(f"{job.name} {arguments[0]}", 0.0) + took, 2)
            notify(f"{job.name}: {arguments[0]} {took:.1f} s, exit {done.returncode}")
            tracebacks += "Traceback (most recent call last)" in done.stderr
            if done.returncode:
                output = (done.stderr or done.stdout).strip().splitlines()
                line = f"{job.name}: {arguments[0]}: {output[-1] if output else 'no output'}".replace(str(home), "")
                # A plan that the executor cannot run yet may be sound all the same.
                failures = bad if arguments[0] == "check" else not_executable if arguments[0] == "execute" else failed
                failures.append(line)
    return {
        "minutes_of_commands": round(sum(seconds.values()) / 60, 2),
        "commands": count,
        "seconds": seconds,
        "tracebacks": tracebacks,
        "endless": endless,
        "solved_but_checked_bad": len(bad),
        "checked_bad": bad,
        "not_executable": not_executable,
        "failed": failed,
    }
