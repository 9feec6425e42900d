"""Jobs that join and leave a group that runs, by `solve --from` and `apply`, which are killed in mid-move.

`short` and `middle` run as one. Then `middle` leaves and `brief` joins; the process of `apply` is killed meanwhile, and
started again. Then `brief` leaves and `middle` joins again; the driver of the groups is killed meanwhile, and `execute
--resume` makes the moves that are left. `short` runs all the time.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlplan.plans.yaml.errors import RunFailed
from rlplan.traces.groups.group_turns import GROUPS_COPY
from rlplan.traces.groups.groups_folder import MOVES, moves_of
from rlplan.traces.run_log import TRACE, read_run
from rlplan.traces.trace import read_trace

from ..faults.verdict import trained
from .jobs import Load, write_workload

WAIT_S = 900.0
LOOK_S = 0.2
ENDLESS = 1000
"""Steps of each job; the run is stopped when it has shown what it should."""

RLPLAN = (sys.executable, "-m", "rlplan.cli.main")


def measure_moves(
    folder: Path, loads: Mapping[str, Load], runs: Mapping[str, Path], steps: int, interference: float
) -> dict[str, Any]:
    """The figures; `runs`: of each job alone, `steps` steps. Raises RunFailed if something does not end.

    `moves`: of each job that joined, the seconds of its outage beside the predicted ones (`price_s`), and of each that
    left, those in which it came to the end of its step (`drain_s`); `move_error`: the largest relative error of an
    outage that was not interrupted. `kills`: of `apply` and of the driver. `lost`: trained samples of the runs alone
    that are missing in the jobs that were there at both ends.
    """
    folder.mkdir(parents=True)
    first = _solve(folder, loads, runs, interference, ("short", "middle"), None)
    out = folder / "runs"
    with _driver(folder, first, out) as driver:
        for name in ("short", "middle"):
            _wait(f"{name} has no second step", driver, lambda name=name: _steps(out / "g1" / name) >= 2)
        plan = _solve(folder, loads, runs, interference, ("short", "brief"), out / GROUPS_COPY)
        apply = subprocess.Popen([*RLPLAN, "apply", str(plan), "--out", str(out)], stderr=subprocess.DEVNULL)
        _wait("no job was started by apply", driver, lambda: "enter" in _move_events(out))
        apply.kill()  # in mid-move
        apply.wait()
        undisturbed = _applied(plan, out)
        _wait("brief makes no step", driver, lambda: _steps(out / "g1" / "brief") >= 2)
        back = _solve(folder, loads, runs, interference, ("short", "middle"), out / GROUPS_COPY)
        apply = subprocess.Popen([*RLPLAN, "apply", str(back), "--out", str(out)], stderr=subprocess.DEVNULL)
        _wait("middle was not started by apply", driver, lambda: _move_events(out).count("enter") >= 2)
        driver.kill()  # in mid-move
        apply.wait(WAIT_S)
    with _driver(folder, back, out, "--resume") as driver:
        _wait("moves are left", driver, lambda: (moves_of(out) or {})["state"] == "applied")
        for name in ("short", "middle"):
            _wait(f"{name} is not done", driver, lambda name=name: _steps(out / "g1" / name) >= steps)
    moves = undisturbed["moves"] + (moves_of(out) or {})["moves"]
    [joined] = [move for move in undisturbed["moves"] if move["to_group"] is not None]
    lost = sum((trained(read_run(runs[name] / TRACE)) - trained(read_run(out / "g1" / name / TRACE))).total()
               for name in ("short", "middle"))  # fmt: skip
    keys = ("job", "from_group", "to_group", "price_s", "outage_s", "drain_s")
    return {
        "moves": [{key: move[key] for key in keys if key in move} for move in moves],
        "move_error": round(abs(joined["price_s"] / joined["outage_s"] - 1), 4),
        "kills": {"apply": 1, "groups' driver": 1},
        "lost": lost,
    }


def _solve(
    folder: Path,
    loads: Mapping[str, Load],
    runs: Mapping[str, Path],
    interference: float,
    names: Sequence[str],
    previous: Path | None,
) -> Path:
    """Solve the workload of these jobs, from the plan that runs if there is one; returns the plan."""
    count = len(list(folder.glob("plan-*.yaml")))
    workload = write_workload(folder.parent, {name: loads[name] for name in names}, runs, interference)
    named = workload.rename(folder.parent / f"moves-{count}.yaml")
    plan = folder / f"plan-{count}.yaml"
    command = [*RLPLAN, "solve", str(named), "-o", str(plan), *(("--from", str(previous)) if previous else ())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    if done.returncode:
        raise RunFailed(f"a workload could not be solved:\n{done.stderr}")
    return plan


@contextlib.contextmanager
def _driver(folder: Path, plan: Path, out: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver of the groups; at the end it is asked to stop, and killed if it does not."""
    command = [*RLPLAN, "execute", str(plan), "--steps", str(ENDLESS), "--out", str(out), "--checkpoint-every", "1"]
    with (folder / "driver.log").open("a") as log:
        driver = subprocess.Popen([*command, *more], stdout=log, stderr=log)
    try:
        yield driver
        driver.terminate()
        driver.wait(WAIT_S)
    finally:
        driver.kill()
        driver.wait()


def _applied(plan: Path, out: Path) -> dict[str, Any]:
    """Apply a plan, and return its moves."""
    done = subprocess.run(
        [*RLPLAN, "apply", str(plan), "--out", str(out), "--json"],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RunFailed(f"rlplan apply ended with exit code {done.returncode}:\n{done.stderr}")
    moves: dict[str, Any] = json.loads(done.stdout)
    return moves


def _wait(what: str, driver: subprocess.Popen[bytes], until: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not until():
        if driver.poll() is not None or time.monotonic() > deadline:
            raise RunFailed(f"{what} although the driver {'ended' if driver.poll() is not None else 'runs'}")
        time.sleep(LOOK_S)


def _steps(run: Path) -> int:
    return len(read_run(run / TRACE).steps) if (run / TRACE).is_file() else 0


def _move_events(out: Path) -> list[str]:
    return [event["event"] for event in read_trace(out / MOVES)] if (out / MOVES).is_file() else []
