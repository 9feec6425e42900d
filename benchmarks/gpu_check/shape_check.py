"""All parts of the GPU check for one shape, one after the other: write, profile, solve, execute, report."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .check_result import run_figures, trace_lines
from .command_parts import Part, run_part
from .memory_watch import MemoryWatch, turn_figures
from .shapes import Shape

ROOT = Path(__file__).resolve().parents[2]
MODES = ("sync", "exact", "race")
RLPLAN = (sys.executable, "-m", "rlplan.cli.main")
LEAST_S = 60.0
"""Seconds that a part has even if the minutes are over; what was begun is not worth less than that."""


@dataclass(slots=True)
class ShapeCheck:
    """The check of one shape in `folder`.

    Attributes:
        shape: what is checked.
        device: `cuda` or `cpu`.
        steps: optimizer steps of each plan.
        folder: where job, plans and runs go; new.
        ends_s: `time.monotonic()` at which the minutes are over.
        free_bytes: tells the free memory of the GPUs; None: there are none.
        notify: takes a line for each part that begins.
        parts: what became of each part, by name, in the order in which they ran.
    """

    shape: Shape
    device: str
    steps: int
    folder: Path
    ends_s: float
    free_bytes: Callable[[], int] | None
    notify: Callable[[str], None]
    parts: dict[str, Part] = field(default_factory=dict)

    def run(self, profiles: Path) -> dict[str, Any]:
        """Run all parts; the measured profile is copied into the folder `profiles`. Returns what is reported."""
        job = self.folder / "job"
        result: dict[str, Any] = {}
        policy = (sys.executable, "-m", "benchmarks.gpu_check.random_policy")
        if self._part("write", *policy, job, "--shape", self.shape.name, "--device", self.device):
            result["model"] = json.loads(self.parts["write"].output.splitlines()[-1])
            profiled = self._part("profile", *RLPLAN, "profile", job, "--trace-rounds", 2, "--json")
            if profiled:
                result["measured"] = json.loads(self.parts["profile"].output.splitlines()[-1])
                result["profile"] = str(keep_profile(job, profiles, self.shape.architecture.name))
                result |= self._plans_and_runs(job)
        return {"parts": {name: part.data() for name, part in self.parts.items()}} | result

    def _plans_and_runs(self, job: Path) -> dict[str, Any]:
        """Solve the plans, and execute those that could be solved; they take turns on the same engines."""
        plans = [
            job / f"{mode}.yaml"
            for mode in MODES
            if self._part(f"solve {mode}", *RLPLAN, "solve", job, "--mode", mode, "-o", job / f"{mode}.yaml", "--json")
        ]
        result: dict[str, Any] = {"plans": {plan.stem: _summary(self.parts[f"solve {plan.stem}"]) for plan in plans}}
        out = self.folder / "run"
        if not plans:
            return result
        with MemoryWatch(out, self.free_bytes) as watch:
            self._part("execute", *RLPLAN, "execute", *plans, "--steps", self.steps, "--out", out, "--json")
        if not self._part("report", *RLPLAN, "report", out, "--json"):
            return result
        # A run of one plan has its trace in `out` itself, one of several a folder for each.
        traces = {
            plan.stem if len(plans) > 1 else name: trace_lines(path)
            for plan in plans
            if (path := (out / plan.stem if len(plans) > 1 else out) / "trace.jsonl").is_file()
            for name in (path.parent.name,)
        }
        report = json.loads(self.parts["report"].output)
        return result | {"runs": run_figures(report, traces), "turns": turn_figures(traces, watch.samples)}

    def _part(self, name: str, *command: Any) -> bool:
        """Run a part; whether it ended well."""
        self.notify(f"{self.shape.name}: {name}")
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ)
        if self.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        left_s = max(self.ends_s - time.monotonic(), LEAST_S)
        log = self.folder / f"{name.replace(' ', '-')}.log"
        part = run_part([str(word) for word in command], left_s, log, environment, ROOT)
        self.parts[name] = part
        if not part.ok:
            self.notify(f"{self.shape.name}: {name} failed: {part.error}")
        return part.ok


def _summary(part: Part) -> Any:
    """What `rlplan solve --json` says of its plan."""
    return json.loads(part.output.splitlines()[-1])


def keep_profile(job: Path, profiles: Path, model: str) -> Path:
    """Copy the measured profile and its length trace into `profiles`, named as profiles/library/ names them; returns
    the profile's path. The profile names its trace, so the trace keeps its name, in a folder of the profile's own."""
    from rlplan.plans.schema.cluster import load_cluster
    from rlplan.profiles.hardware import gpu_of

    accelerator = load_cluster(job / "cluster.yaml").pools["main"].accelerators
    gpu = gpu_of(accelerator.name) if accelerator.kind == "cuda" else None
    where = gpu.name if gpu is not None else "-".join(accelerator.name.split())
    target = profiles / f"{where}.{model}".lower().replace("/", "-")
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy2(job / "profile.lengths.jsonl", target)
    return Path(shutil.copy2(job / "profile.yaml", target / f"{target.name}.yaml"))
