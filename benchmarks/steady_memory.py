"""Memory of each process of a run over hundreds of steps of the demo's job: whether it stays where it is.

    python -m benchmarks.steady_memory [--steps 500] [--json] [--keep DIR]

Once a second the resident memory of the driver, each trainer rank, engine, core and reward worker is read, of each step
the last reading is kept; `bytes_by_tenth` has the median of each tenth of the steps. `growth` is the median of the last
fifth of the steps less that of the middle fifth (in the first 200 steps each engine's core compiles products for new
numbers of tokens, of which it keeps as many as executor/engines/vllm_options.py says); `flat` says whether all kinds of
process were there all the time, and none grew by more than 2 % and 8 MiB.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from pathlib import Path

import click
import psutil
from rich.console import Console

from .entry import as_json_option, run, tell
from .example_plans import write_plan
from .faults.driver import START_DEADLINE_S, Driver

console = Console(stderr=True)
LOOK_S = 1.0
SPARE_SHARE, SPARE_BYTES = 0.02, 8 * 2**20
KINDS = {"ray::TrainerRank": "trainer rank", "ray::RolloutEngine": "engine", "VLLM::EngineCor": "engine core",
         "ray::RewardWorker": "reward worker"}  # fmt: skip


def kind_of(command: str) -> str | None:
    """What a process of a run is, by its command line; None for Ray's own and for what lives a moment."""
    return next((kind for begin, kind in KINDS.items() if command.startswith(begin)), None)


def median_bytes(by_step: dict[int, int], begin: float, end: float) -> int:
    """Median of the bytes from step `begin` up to step `end`, which is not of them; 0 where nothing was read."""
    return round(statistics.median([size for step, size in by_step.items() if begin <= step < end] or [0]))


def measured(plan: Path, out: Path, steps: int) -> dict[str, dict[int, int]]:
    """Resident bytes of each process by step. Raises RuntimeError if the run makes no steps."""
    seen: dict[str, dict[int, int]] = defaultdict(dict)
    with Driver(plan, out, steps) as driver:
        moved, last = time.monotonic(), 0
        while not driver.done():
            driver.ensure()
            processes = {"driver": driver.pid}
            for process in driver.processes():
                if (kind := kind_of(process.command)) is not None:
                    processes[f"{kind} {process.pid}"] = process.pid
            step = driver.step()
            for name, pid in processes.items():
                with suppress(psutil.Error):
                    seen[name][step] = psutil.Process(pid).memory_info().rss
            if step > last:
                moved, last = time.monotonic(), step
            elif time.monotonic() - moved > START_DEADLINE_S:
                raise RuntimeError(f"no step for {START_DEADLINE_S:g} s; the end of its log:\n{driver.end_of_log()}")
            time.sleep(LOOK_S)
    return seen


@click.command()
@click.option("--steps", type=click.IntRange(min=20), default=500, show_default=True, help="Optimizer steps.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the run in this folder, which must be new.")
@as_json_option
def main(steps: int, keep: Path | None, as_json: bool) -> None:
    """Run the demo's job for many steps; exit code 1 if a process grows."""
    with ExitStack() as stack:
        home = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlplan-memory-")))
        console.print("writing the demo's example")
        plan = write_plan(home / "example")
        console.print(f"a run of {steps} steps")
        seen = measured(plan, home / "run", steps)
    rows = {}
    for name, by_step in seen.items():
        if min(by_step) < steps / 5 and max(by_step) >= 4 * steps / 5:  # not one that was started in place of another
            before = median_bytes(by_step, 0.4 * steps, 0.6 * steps)
            grown = median_bytes(by_step, 0.8 * steps, steps + 1) - before
            flat = before > 0 and grown <= max(SPARE_SHARE * before, SPARE_BYTES)
            by_tenth = [median_bytes(by_step, n * steps / 10, (n + 1) * steps / 10) for n in range(10)]
            rows[name] = {"bytes": before, "growth": grown, "flat": flat, "bytes_by_tenth": by_tenth}
    kinds = {name.rpartition(" ")[0] or name for name in rows}
    flat = {"driver", *KINDS.values()} <= kinds and all(row["flat"] for row in rows.values())
    tell({"steps": steps, "processes": rows, "flat": flat}, as_json)
    if not flat:
        raise SystemExit(1)


if __name__ == "__main__":
    run(main)
