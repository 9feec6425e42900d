"""The runs of a folder: each with the plan that it was started with, and what its trace tells."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..plans.files.run_folder import must_be_run_folder
from ..plans.schema.plan import Plan, load_plan
from ..plans.yaml.errors import InputError
from ..plans.yaml.input_files import must_be_readable
from .run_log import PLAN_COPY, TRACE, read_run
from .trace import TraceError


@dataclass
class RunTrace:
    """A run as its trace tells it; steps that a resume went back over are not in it."""

    name: str
    plan: Plan
    steps: list[dict[str, Any]]
    trained: dict[str, list[int]] = field(default_factory=dict)  # prompt -> trained lengths, tokens
    long_trained: dict[str, list[int]] = field(default_factory=dict)  # the part of it that long rounds trained
    restarts: int = 0
    resumes: int = 0
    samples: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # step -> samples that ended
    events: list[dict[str, Any]] = field(default_factory=list)  # what is neither step nor sample, in order
    written_s: float | None = None  # when the trace was last written, seconds since 1970


def load_runs(folder: Path) -> list[RunTrace]:
    """The run in `folder`, or those in its sub-folders. Raises InputError if there is none or one is damaged."""
    found, refused = readable_runs(folder)
    if refused:
        raise next(iter(refused.values()))
    return found


def readable_runs(folder: Path) -> tuple[list[RunTrace], dict[str, InputError]]:
    """The runs in `folder`, and by the names of those that cannot be read why. Raises InputError if none can be."""
    must_be_run_folder(folder)
    homes = [folder] if (folder / TRACE).exists() else sorted(p.parent for p in folder.glob(f"*/{TRACE}"))
    if not homes:
        raise InputError("holds no run (no trace.jsonl); give the --out of rlplan execute", str(folder))
    found: list[RunTrace] = []
    refused: dict[str, InputError] = {}
    for home in homes:
        try:
            found.append(_load(home))
        except InputError as error:
            refused[home.resolve().name] = error
    if not found:
        raise next(iter(refused.values()))
    return found, refused


def run_files(folder: Path) -> list[Path]:
    """What a report of `folder` is read from; not all of it need be there."""
    return [path for name in (TRACE, PLAN_COPY) for path in (folder / name, *sorted(folder.glob(f"*/{name}")))]


def _load(home: Path) -> RunTrace:
    plan = _plan(home / PLAN_COPY)
    must_be_readable(home / TRACE)
    try:
        written_s = (home / TRACE).stat().st_mtime
        log = read_run(home / TRACE)
    except TraceError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", str(home / TRACE)) from error
    kinds = {step["step"]: step["kind"] for step in log.steps}
    # A step is written after its samples: those of one that did not come to its end were not trained.
    samples = {number: rows for number, rows in log.samples.items() if number in kinds}
    run = RunTrace(
        home.resolve().name, plan, log.steps, restarts=log.restarts, resumes=log.resumes, samples=samples,
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
        # It could be read when the run began, by the rlplan of then.
        cause = "a run's copy of its plan that cannot be read is of another version of rlplan, or was edited"
        raise InputError(f"{error.message}; {cause}; solve again to run it again", error.path, error.line) from error
