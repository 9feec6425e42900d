"""The command of the GPU check; see the package."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import click

from rlplan.plans.yaml.errors import InputError, RunFailed

from ..entry import as_json_option, run, tell
from .plans_part import MODES, Parts, Told, execute, plan_group, profile, run_group, run_parts, solve
from .random_policy import SHAPES

TRAINER = ("attention", "update")
NAMES = (*TRAINER, "decode", "execute", "profile", "groups", "steps")
SIZES = {"cuda": "1,32,256,1024", "cpu": "1,4"}
STEP_SEQUENCES = {"cuda": 256, "cpu": 4}
DEFAULT_SHAPES = {"cuda": ("0.5b", "1.5b"), "cpu": ("tiny",)}
LEAST_S = {"trainer": 40.0, "decode": 90.0, "execute": 100.0, "profile": 150.0, "groups": 100.0, "steps": 80.0}
"""Seconds without which a part is not begun, from what starts of engines have taken on GPUs."""
CPU_LEAST_S = 20.0
MOST_S = {"trainer": 240.0, "decode": 240.0}
"""Of parts that others should not wait for longer."""


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(min=10), default=480.0, show_default=True, help="No part lasts longer."
)
@click.option("--shape", "shapes", type=click.Choice(list(SHAPES)), multiple=True, help="Of models; the first is run.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=4, show_default=True, help="Optimizer steps of each plan.")
@click.option("--part", "wanted", type=click.Choice(NAMES), multiple=True, default=NAMES, help="Default: all.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="New folder for jobs, runs and profiles. Default: a temporary one."
)
@as_json_option
def main(
    seconds: float,
    shapes: Sequence[str],
    device: str,
    steps: int,
    wanted: Sequence[str],
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure and train models of random weights on this machine; exit code 1 if a part failed or was cut."""
    began_s = time.monotonic()
    out = out or Path(tempfile.mkdtemp(prefix="rlplan-gpu-check-"))
    if out.exists() and any(out.iterdir()):
        raise InputError("is not empty; name a new folder with --out, nothing was written", str(out))
    out.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    told = Told(out / "lines.jsonl", click.echo, began_s)
    parts = Parts(device, out, began_s + seconds, told.tell)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    plans = ThreadPoolExecutor(1)
    try:
        check(parts, wanted, shapes or DEFAULT_SHAPES[device], steps, plans)
    except KeyboardInterrupt:
        parts.ends_s = time.monotonic()  # also of what runs in the other thread
        told.tell({"cut": f"after {parts.ends_s - began_s:.0f} s"})
    finally:
        plans.shutdown(wait=False, cancel_futures=True)
    result = told.result | {"seconds": round(time.monotonic() - began_s, 1), "out": str(out)}
    tell(result, as_json, json.dumps(result, indent=1))
    if "failed" in result or "cut" in result:
        raise SystemExit(1)


def check(parts: Parts, wanted: Sequence[str], shapes: Sequence[str], steps: int, plans: ThreadPoolExecutor) -> None:
    """Run the wanted parts, in order of worth. Plans are made beside the parts that come first."""
    out, device = parts.folder, parts.device
    job, groups = out / "job", out / "groups"
    if device == "cuda" and "decode" in wanted:  # the first import reads gigabytes from the disk, and touches no GPU
        subprocess.Popen([sys.executable, "-c", "import vllm"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def planned(name: str, folder: Path, plan: Callable[[], bool]) -> Future[bool] | None:
        """Have plans made as soon as there is a job in a folder, one after the other, beside what runs on the GPU."""

        def when_written() -> bool:
            while not (folder / "job.yaml").is_file():
                if parts.left_s < 0 or "trainer" in parts.outputs:
                    return False
                time.sleep(0.2)
            return plan()

        return plans.submit(when_written) if name in wanted else None

    def must_have(made: Future[bool] | None) -> None:
        if made is None or not made.result(max(parts.left_s, 0.0)):
            raise RunFailed("there are no plans to run")

    solved = planned("execute", job, lambda: solve(parts, job, SHAPES[shapes[0]], MODES))
    together = planned("groups", groups / "one", lambda: plan_group(parts, groups))

    def trainer() -> None:
        command = (sys.executable, "-m", "benchmarks.gpu_check.trainer_part", out, "--device", device)
        figures = ",".join(name for name in TRAINER if name in wanted)
        options = ("--shapes", ",".join(shapes), "--figures", figures)
        parts.run("trainer", *command, *options, most_s=MOST_S["trainer"], fragments=True)
        if not (job / "job.yaml").is_file():
            raise RunFailed("no job was written, so nothing else can run")

    def decode() -> None:
        command = (sys.executable, "-m", "benchmarks.gpu_check.decode_part", job / "model", "--device", device)
        parts.run("decode", *command, "--sizes", SIZES[device], most_s=MOST_S["decode"], fragments=True)

    def steps_alone() -> None:
        command = (sys.executable, "-m", "benchmarks.gpu_check.step_costs", job / "model", "--device", device)
        parts.run("steps", *command, "--sequences", STEP_SEQUENCES[device], fragments=True)

    def run_plans() -> None:
        must_have(solved)
        execute(parts, job, steps, out / "run")

    def run_both() -> None:
        must_have(together)
        run_group(parts, groups, steps)

    works: dict[str, Callable[[], object]] = {
        "trainer": trainer,
        "decode": decode,
        "execute": run_plans,
        "profile": lambda: profile(parts, job),
        "groups": run_both,
        "steps": steps_alone,
    }
    least_s = LEAST_S if device == "cuda" else dict.fromkeys(works, CPU_LEAST_S)
    chosen = {name: work for name, work in works.items() if name in ("trainer", *wanted)}
    run_parts(chosen, least_s, lambda: parts.left_s, parts.tell)


if __name__ == "__main__":
    run(main)
