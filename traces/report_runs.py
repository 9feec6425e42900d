"""Reads the runs of a folder: each run's plan, and the steps, samples and events of its trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..plans.files.run_folder import must_be_run_folder
from ..plans.schema.plan import Plan, load_plan
from ..plans.yaml.errors import InputError
from ..plans.yaml.input_files import must_be_readable
from .cycle_means import CycleMeans, means_by_plan
from .run_log import PLAN_COPY, TRACE, read_run
from .trace import TraceError


@dataclass
class RunTrace:
    """One run, read from its folder; steps that were done again after a resume are in it once."""

    name: str
    plan: Plan
    steps: list[dict[str, Any]]
    trained: dict[str, list[int]] = field(default_factory=dict)  # prompt -> trained lengths, tokens
    long_trained: dict[str, list[int]] = field(default_factory=dict)  # the same, of long rounds only
    restarts: int = 0
    resumes: int = 0
    samples: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # step -> samples that ended
    events: list[dict[str, Any]] = field(default_factory=list)  # all other events, in order
    written_s: float | None = None  # when the trace was last written, seconds since 1970

    @property
    def means(self) -> CycleMeans:
        """Means over the cycle; only for a run with at least one step."""
        return means_by_plan(self.steps, self.plan)


def load_runs(folder: Path) -> list[RunTrace]:
    """The run in `folder`, or the runs in its sub-folders. Raises InputError if there is none or one is damaged."""
    runs, refused = readable_runs(folder)
    if refused:
        raise next(iter(refused.values()))
    return runs


def readable_runs(folder: Path) -> tuple[list[RunTrace], dict[str, InputError]]:
    """The runs in `folder`, and the error of each run that cannot be read, by its name.

    Raises InputError if no run can be read.
    """
    must_be_run_folder(folder)
    run_folders = [folder] if (folder / TRACE).exists() else sorted(p.parent for p in folder.glob(f"*/{TRACE}"))
    if not run_folders:
        raise InputError("holds no run (no trace.jsonl); give the --out of rlplan execute", str(folder))
    runs: list[RunTrace] = []
    refused: dict[str, InputError] = {}
    for run_folder in run_folders:
        try:
            runs.append(_load(run_folder))
        except InputError as error:
            refused[run_folder.resolve().name] = error
    if not runs:
        raise next(iter(refused.values()))
    return runs, refused


def run_files(folder: Path) -> list[Path]:
    """Files that a report of `folder` reads; some of them may be missing."""
    return [path for name in (TRACE, PLAN_COPY) for path in (folder / name, *sorted(folder.glob(f"*/{name}")))]


def _load(folder: Path) -> RunTrace:
    plan, trace = _plan(folder / PLAN_COPY), folder / TRACE
    must_be_readable(trace)
    try:
        written_s = trace.stat().st_mtime
        log = read_run(trace)
    except TraceError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", str(trace)) from error
    kinds = {step["step"]: step["kind"] for step in log.steps}
    # A step is written after its samples. Samples of a step that did not end were not trained.
    samples = {number: rows for number, rows in log.samples.items() if number in kinds}
    run = RunTrace(
        folder.resolve().name, plan, log.steps, restarts=log.restarts, resumes=log.resumes, samples=samples,
        events=log.events, written_s=written_s,
    )  # fmt: skip
    for number, rows in samples.items():
        for row in rows:
            if row["fate"] != "trained":
                continue
            run.trained.setdefault(row["prompt"], []).append(row["tokens"])
            if kinds[number] == "long":
                run.long_trained.setdefault(row["prompt"], []).append(row["tokens"])
    return run


def _plan(path: Path) -> Plan:
    try:
        return load_plan(path)
    except InputError as error:
        if not path.is_file():
            raise
        # The version of rlplan that started the run could read this plan.
        cause = "a run's copy of its plan that cannot be read is of another version of rlplan, or was edited"
        raise InputError(f"{error.message}; {cause}; solve again to run it again", error.path, error.line) from error
