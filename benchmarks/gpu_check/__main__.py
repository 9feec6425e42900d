"""The command of the GPU check; see the package."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from rlplan.plans.schema.job import load_job
from rlplan.plans.yaml.errors import InputError, RunFailed

from ..entry import run
from .command_parts import Parts
from .figures import Section, Told, run_sections
from .group_check import check_group
from .plans_part import MODES, execute, profile, solve, stand_in
from .random_policy import SHAPES

TRAINER = ("attention", "update")
NAMES = (*TRAINER, "decode", "execute", "profile", "groups")
SIZES = {"cuda": "1,32,256,1024", "cpu": "1,4"}
DEFAULT_SHAPES = {"cuda": "0.5b,1.5b", "cpu": "tiny"}
LEAST_S = {
    "cuda": {"trainer": 40.0, "decode": 90.0, "execute": 100.0, "profile": 150.0, "groups": 100.0},
    "cpu": dict.fromkeys(("trainer", "decode", "execute", "profile", "groups"), 20.0),
}
"""By kind of device: seconds without which a part is not begun; for a GPU from what starts of engines have taken."""
MOST_S = {"trainer": 180.0, "decode": 240.0}
"""Of parts that others should not wait for longer."""


class Cut(BaseException):
    """The check was asked to end."""


def cut(number: int, _frame: object) -> None:
    """Handle a signal by ending what runs."""
    raise Cut(signal.Signals(number).name)


def some_of(text: str, known: Any, option: str) -> list[str]:
    """The words of a list with commas. Raises InputError for one that is not known, and for none."""
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    if not words or set(words) - set(known):
        raise InputError(f"{option} {text!r}: write some of {', '.join(known)}, with commas between them")
    return words


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(min=10), default=480.0, show_default=True, help="No part lasts longer."
)
@click.option("--shapes", help="Shapes to update: tiny, 0.5b, 1.5b; the first is decoded and run. Default: by device.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=4, show_default=True, help="Optimizer steps of each plan.")
@click.option("--parts", "named", default=",".join(NAMES), show_default=True, help="Which parts, in this order.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="New folder for jobs, runs and profiles. Default: a temporary one."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line.")
def main(
    seconds: float, shapes: str | None, device: str, steps: int, named: str, out: Path | None, as_json: bool
) -> None:
    """Measure and train models of random weights on this machine; exit code 1 if a part failed or was cut."""
    began_s = time.monotonic()
    names = some_of(shapes or DEFAULT_SHAPES[device], SHAPES, "--shapes")
    wanted = some_of(named, NAMES, "--parts")
    out = out or Path(tempfile.mkdtemp(prefix="rlplan-gpu-check-"))
    if out.exists() and any(out.iterdir()):
        raise InputError("is not empty; name a new folder with --out, nothing was written", str(out))
    out.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    told = Told(out / "lines.jsonl", click.echo, began_s)
    parts = Parts(device, out, began_s + seconds, told.tell)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, cut)
    plans = ThreadPoolExecutor(1)
    try:
        check(parts, wanted, names, steps, plans)
    except Cut as error:
        told.tell({"cut": f"{error} after {time.monotonic() - began_s:.0f} s"})
    finally:
        plans.shutdown(wait=False, cancel_futures=True)
    result = told.result | {"seconds": round(time.monotonic() - began_s, 1), "out": str(out)}
    click.echo(json.dumps(result) if as_json else json.dumps(result, indent=1))
    if "failed" in result or "cut" in result:
        raise SystemExit(1)


def check(parts: Parts, wanted: list[str], shapes: list[str], steps: int, plans: ThreadPoolExecutor) -> None:
    """Run the wanted parts, in order of worth. Plans are made beside the parts that come first."""
    out, device = parts.folder, parts.device
    job = out / "job"
    if device == "cuda" and "decode" in wanted:  # the first import reads gigabytes from the disk, and touches no GPU
        subprocess.Popen([sys.executable, "-c", "import vllm"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def make_plans() -> bool:
        while not (job / "job.yaml").is_file():
            if parts.left_s < 0 or "trainer" in parts.done:
                return False
            time.sleep(0.2)
        stand_in(job, SHAPES[shapes[0]], load_job(job / "job.yaml").search.micro_batch_tokens or ())
        return solve(parts, job, MODES)

    planned = plans.submit(make_plans) if "execute" in wanted else None

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

    def run_plans() -> None:
        if planned is None or not planned.result(max(parts.left_s, 0.0)):
            raise RunFailed("there are no plans to run")
        execute(parts, job, steps, out / "run")

    least_s = LEAST_S[device]
    sections = [
        Section("trainer", least_s["trainer"], trainer),
        Section("decode", least_s["decode"], decode),
        Section("execute", least_s["execute"], run_plans),
        Section("profile", least_s["profile"], lambda: profile(parts, job)),
        Section("groups", least_s["groups"], lambda: check_group(parts, out / "groups", steps)),
    ]
    run_sections(sections, ["trainer", *wanted], lambda: parts.left_s, parts.tell)


if __name__ == "__main__":
    run(main)
