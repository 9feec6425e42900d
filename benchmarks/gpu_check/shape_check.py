"""All parts of the GPU check for one shape, one after the other: write, profile, solve, execute, report."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlplan.plans.yaml.errors import InputError

from .check_result import run_figures, trace_lines
from .command_parts import RLPLAN, Part, Parts
from .memory_watch import MemoryWatch, turn_figures
from .shapes import Shape
from .stand_in import guessed_lengths, write_stand_in

MODES = ("sync", "exact", "race")
HOST_SHARE = 0.7
"""Of the host's memory that trainers which wait may fill; the rest is for engines, Ray and what else runs."""
DISK_SHARE = 0.5
"""Of the free space on the disk that checkpoints may fill; one is written before the one before it is removed."""

PROFILE_SHARE = 0.5
"""Of a shape's minutes for what refines its profile, starts included; the least is measured however long it takes."""


@dataclass(slots=True)
class ShapeCheck:
    """The check of one shape.

    Attributes:
        shape: what is checked.
        parts: runs its parts; job, plans and runs go to their folder, which is new.
        steps: optimizer steps of each plan.
        free_bytes: tells the free memory of the GPUs; None: there are none.
    """

    shape: Shape
    parts: Parts
    steps: int
    free_bytes: Callable[[], int] | None

    def run(self, profiles: Path) -> dict[str, Any]:
        """Run all parts; the measured profile is copied into the folder `profiles`. Returns what is reported."""
        job = self.parts.folder / "job"
        result: dict[str, Any] = {}
        policy = (sys.executable, "-m", "benchmarks.gpu_check.random_policy")
        if self.parts.run("write", *policy, job, "--shape", self.shape.name, "--device", self.parts.device):
            result["model"] = json.loads(self.parts.done["write"].output.splitlines()[-1])
            minutes = PROFILE_SHARE * self.shape.minutes
            profiled = self.parts.run(
                "profile", *RLPLAN, "profile", job, "--trace-rounds", 2, "--minutes", f"{minutes:g}", "--json"
            )
            if profiled:
                result["measured"] = json.loads(self.parts.done["profile"].output.splitlines()[-1])
                result["profile"] = str(keep_profile(job, profiles, self.shape.architecture.name))
                result |= self._plans_and_runs(job)
            elif self.parts.device == "cuda":
                try:
                    path = write_stand_in(job, self.shape)
                except InputError as error:
                    return self._reported(result | {"stand_in": str(error)})
                lengths = guessed_lengths(self.parts.device)
                result |= {"stand_in": str(path)} | self._plans_and_runs(job, "--profile", path, "--lengths", lengths)
        return self._reported(result)

    def _reported(self, result: dict[str, Any]) -> dict[str, Any]:
        """A result with what became of the parts."""
        return {"parts": self.parts.data()} | result

    def _plans_and_runs(self, job: Path, *more: Any) -> dict[str, Any]:
        """Solve the plans, with `more` options, and execute those that could be solved; they take turns on the same
        engines."""
        plans = [
            job / f"{mode}.yaml"
            for mode in MODES
            if self.parts.run(
                f"solve {mode}", *RLPLAN, "solve", job, *more, "--mode", mode, "-o", job / f"{mode}.yaml", "--json"
            )
        ]
        result: dict[str, Any] = {
            "plans": {plan.stem: _summary(self.parts.done[f"solve {plan.stem}"]) for plan in plans}
        }
        out = self.parts.folder / "run"
        if not plans:
            return result
        with MemoryWatch(out, self.free_bytes) as watch:
            room = min(HOST_SHARE * host_memory_bytes(), DISK_SHARE * shutil.disk_usage(self.parts.folder).free)
            for batch in batches(plans, self.shape, room):
                # A run of one plan has its trace in --out itself, one of several a folder for each under it.
                alone = len(batch) == 1
                self.parts.run(
                    f"execute {batch[0].stem}" if alone else "execute", *RLPLAN, "execute", *batch,
                    "--steps", self.steps, "--out", out / batch[0].stem if alone else out, "--json",
                )  # fmt: skip
                for saved in out.glob("*/checkpoints"):  # nobody resumes these runs, and the disk is soon full
                    shutil.rmtree(saved)
        if not self.parts.run("report", *RLPLAN, "report", out, "--json"):
            return result
        traces = {plan.stem: trace_lines(path) for plan in plans if (path := out / plan.stem / "trace.jsonl").is_file()}
        report = json.loads(self.parts.done["report"].output)
        return result | {"runs": run_figures(report, traces), "turns": turn_figures(traces, watch.samples)}


def host_memory_bytes() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def batches(plans: Sequence[Path], shape: Shape, room_bytes: float) -> list[list[Path]]:
    """Which plans are executed at once: all, or each by itself where the states of all trainers are more than
    `room_bytes`: they wait in host memory while engines or other trainers have the GPU, and each writes a checkpoint
    at the end."""
    if len(plans) * shape.state_bytes <= room_bytes:
        return [list(plans)]
    return [[plan] for plan in plans]


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
