"""`python -m benchmarks.faults`"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console

from ..entry import as_json_option, run, tell
from ..example_plans import write_plan
from .campaign import campaign
from .driver import Driver, run_without_faults
from .verdict import compare, wrong

console = Console(stderr=True)


@click.command()
@click.option("--faults", "count", type=click.IntRange(min=1), default=100, show_default=True, help="How many.")
@click.option("--steps", type=click.IntRange(min=4), default=45, show_default=True, help="Optimizer steps of each run.")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the faults: which, when, on which process."
)
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the two runs in this folder, which must be new.")
@as_json_option
def main(count: int, steps: int, seed: int, keep: Path | None, as_json: bool) -> None:
    """Strike a run of the demo's job with random faults; exit code 1 if it trains other samples than without them."""
    with ExitStack() as stack:
        home = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlplan-faults-")))
        console.print("writing the demo's example")
        plan = write_plan(home / "example")
        console.print(f"a run of {steps} steps without faults")
        reference_s = run_without_faults(plan, home / "alone", steps)
        console.print(f"the same with {count} faults")
        with Driver(plan, home / "faults", steps) as driver:
            done = campaign(driver, count, seed, console.print)
        verdict = compare(home / "alone", home / "faults", done) | {"seconds_without_faults": round(reference_s, 1)}
    tell(verdict, as_json)
    if complaints := wrong(verdict, count):
        console.print("not recovered from: " + "; ".join(complaints))
        raise SystemExit(1)


if __name__ == "__main__":
    run(main)
