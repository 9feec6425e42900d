"""Kills of a group's processes while it runs, and whether anything was lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlplan.plans.yaml.errors import RunFailed
from rlplan.traces.run_log import TRACE, read_run

from ..faults.driver import MARK, Process, marked_processes
from ..faults.verdict import off_policy, trained

EVERY_S = 4.0, 12.0
"""Least and most seconds between two kills."""

STALL_S = 20
RUN_S = 3600.0
VICTIMS = {
    "job driver": "member_process",
    "engine": "ray::RolloutEngine",
    "engine core": "VLLM::EngineCor",
    "trainer rank": "ray::Trainer",
    "permit actor": "ray::PermitActor",
}
"""Kinds of processes, and what their command lines hold."""


def under_kills(plan: Path, alone: Mapping[str, Path], out: Path, steps: int, kills: int) -> dict[str, Any]:
    """Execute a plan of groups for as many steps as its jobs ran alone, kill its processes, and compare.

    A run that ends before there were so many kills is executed anew in a new folder. Raises RunFailed if a run does not
    end.
    """
    rng, killed, lost, double, violations, runs = random.Random(0), Counter[str](), 0, 0, 0, 0
    while killed.total() < kills:
        runs += 1
        folder = out / str(runs)
        killed += _killed_run(plan, folder, steps, kills - killed.total(), rng)
        for name, reference in alone.items():
            log, wanted = read_run(folder / "g1" / name / TRACE), trained(read_run(reference / TRACE))
            actual = trained(log)
            lost += (wanted - actual).total()
            double += (actual - wanted).total()
            violations += off_policy(log)
    return {
        "kills": killed.total(), "killed": dict(killed), "lost": lost, "double": double, "off_policy": violations,
        "runs_under_kills": runs,
    }  # fmt: skip


def _killed_run(plan: Path, out: Path, steps: int, most: int, rng: random.Random) -> Counter[str]:
    out.parent.mkdir(parents=True, exist_ok=True)
    token, killed, log = uuid.uuid4().hex, Counter[str](), out.parent / f"{out.name}.log"
    command = [sys.executable, "-m", "rlplan.cli.main", "execute", str(plan), "--steps", str(steps), "--out", str(out)]
    command += ["--checkpoint-every", "1", "--stall-timeout", str(STALL_S), "--restarts-per-hour", "100"]
    with log.open("w") as file:
        # On a Ray of its own, whose processes inherit the mark.
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {MARK: token}
        driver = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    began = time.monotonic()
    try:
        while driver.poll() is None:
            if time.monotonic() - began > RUN_S:
                raise RunFailed(f"a group under kills did not end within {RUN_S:.0f} s; see {log}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(rng.uniform(*EVERY_S))
            # Nothing is lost before the first step, and a start that is killed shows little.
            if killed.total() < most and "/" in log.read_text() and (kind := _kill_one(token, rng)) is not None:
                killed[kind] += 1
        if driver.returncode:
            raise RunFailed(f"a group under kills ended with exit code {driver.returncode}; see {log}")
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait()
    return killed


def _kill_one(token: str, rng: random.Random) -> str | None:
    """Kill a random process of a random kind; returns the kind, None if there was none."""
    kind = rng.choice(sorted(VICTIMS))
    able = [process for process in marked_processes(token) if VICTIMS[kind] in process.command]
    if not able:
        return None
    chosen: Process = rng.choice(able)
    with contextlib.suppress(ProcessLookupError):
        os.kill(chosen.pid, signal.SIGKILL)
    return kind
