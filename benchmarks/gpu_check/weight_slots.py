"""The step of the GPU check for weights in slots on GPUs: transfers between plain processes, before any shape."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .command_parts import Part, run_part

DEADLINE_S = 120.0
"""Of each kind of slots; those that hang do so for a minute before they say why."""

COMMAND = (sys.executable, "-m", "benchmarks.weight_parties.on_devices", "--json")
KINDS = ("host", "ipc", "nccl")


def try_slots(device: str, wanted: str | None, folder: Path, cwd: Path) -> dict[str, Any]:
    """Transfers through all slots, or those that are wanted, with logs in `folder`: of each its figures, or why it was
    not tried, or the error."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for kind in KINDS if wanted is None else (wanted,):
        command = [*COMMAND, "--device", device, "--slots", kind]
        part = run_part(command, DEADLINE_S, folder / f"weights-{kind}.log", dict(os.environ), cwd)
        found[kind] = figures_of(part, kind)
    return found


def figures_of(part: Part, kind: str) -> dict[str, Any]:
    """What a part said of a kind of slots; it exits with 1 if that failed."""
    lines = [line for line in part.output.splitlines() if line.startswith("{")]
    return dict(json.loads(lines[-1])["slots"][kind]) if lines else {"error": part.error}


def failed_slots(slots: Mapping[str, Any]) -> list[str]:
    """Slots through which weights did not come, or came otherwise than they were sent."""
    return [f"weights by {name}" for name, found in slots.items() if "error" in found or found.get("mismatches")]


def untried_slots(kind: str, slots: Mapping[str, Any], used: Iterable[str]) -> dict[str, str]:
    """Slots on GPUs that the check has not tried, or with no engine of vLLM, with the reason. `used`: by runs."""
    untried = {}
    for name in KINDS[1:]:
        if kind == "cpu":
            untried[name] = "needs GPUs; its parties ran with gloo and host memory in their place"
        elif name not in slots:
            untried[name] = "other slots were asked for"
        elif "untried" in slots[name]:
            untried[name] = slots[name]["untried"]
        elif name not in used:
            untried[f"{name} with engines"] = "no run had devices laid out for it; plain processes tried it"
    return untried


def runs_with_others(wanted: str | None, shapes: Mapping[str, Any]) -> list[str]:
    """Runs whose weights were broadcast through other slots than were wanted."""
    return [
        f"{shape} {run}: weights by {', '.join(others)}, not {wanted}"
        for shape, found in shapes.items()
        for run, figures in found.get("runs", {}).items()
        if wanted is not None and (others := sorted(set(figures.get("weights", {}).get("slots", {})) - {wanted}))
    ]
