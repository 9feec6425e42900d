"""Reads a run's folder: its plan, and from its trace the steps, the samples of each step, and all other events.

Invariants of a `RunLog`: steps are in order and each number is there once. After a resume, or after the trainer was
restarted, steps are done again; then only the later step and its samples are there. A step is written after its
samples; those of a step that did not end were not trained, and are left out.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..plans.schema.plan import Plan, load_plan
from ..plans.yaml.errors import InputError
from ..plans.yaml.input_files import must_be_readable
from ..plans.yaml.yaml_io import document_kind, kind_of_mark
from .cycle_means import CycleMeans, means_by_plan
from .sample_columns import Samples
from .trace import TraceError, not_an_event, trace_lines
from .trace_events import TYPES, Balanced, DamagedEvent, Drafts, Sample, StepEvent, Streamed, Tail, as_type, decoded

TRACE = "trace.jsonl"
PLAN_COPY = "plan.yaml"
"""Files of a run's folder: its trace, and a copy of the plan in force."""

LOCK = ".lock"
"""The file whose lock the driver of a run, or of groups, holds (executor/records/execution_folder.py)."""

_GIVE = "give the --out of rlplan execute"


@dataclass
class RunLog:
    """The events of a run's trace.

    Attributes:
        steps: the `step` events.
        samples: the samples of each step; one that was aborted while it decoded has no event.
        streamed, tails, balanced, drafts: by step the event of that name; of a step that was redone the last one.
        events: all events but steps and samples as JSON objects, in order: starts, resumes, ends, restarts, failures.
        first_steps: numbers of the first step after the start and after each resume, when engines are not warm.
        restarts: number of replaced engines and trainers.
        resumes: number of resumes.
        plan_from: the plan in force holds for the steps after this one; those that trained what an earlier plan owed
            are not among them.
        last_t_s: time of the last event, in seconds since the run's first start; None if there is no event.
    """

    steps: list[StepEvent] = field(default_factory=list)
    samples: dict[int, Samples] = field(default_factory=dict)
    streamed: dict[int, Streamed] = field(default_factory=dict)
    tails: dict[int, Tail] = field(default_factory=dict)
    balanced: dict[int, Balanced] = field(default_factory=dict)
    drafts: dict[int, Drafts] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    first_steps: set[int] = field(default_factory=set)
    restarts: int = 0
    resumes: int = 0
    plan_from: int = 0
    last_t_s: float | None = None

    @property
    def started(self) -> dict[str, Any]:
        """The `run` event; empty if the trace has none."""
        return next((event for event in reversed(self.events) if event["event"] == "run"), {})

    @property
    def in_force(self) -> list[StepEvent]:
        """The steps that the plan in force has taken; before its first one, all steps."""
        return [step for step in self.steps if step.step > self.plan_from] or self.steps

    @property
    def plan_changes(self) -> list[dict[str, Any]]:
        """The `plan` events: from which step on which plan is in force. Steps that were done again after it were done
        by it, too."""
        return [event for event in self.events if event["event"] == "plan"]

    @property
    def plan_named(self) -> Any:
        """Path of the file of the plan in force, relative to the run's folder; None where the trace does not say it."""
        return (self.plan_changes[-1] if self.plan_changes else self.started).get("plan")

    @property
    def _start(self) -> dict[str, Any]:
        """The last start or resume; empty if the trace has none."""
        return next((event for event in reversed(self.events) if event["event"] in ("run", "resume")), {})

    @property
    def drains(self) -> bool:
        """Whether long rounds train what is deferred once the run has its steps; older traces do not say, and did."""
        return self._start.get("drains") is not False

    @property
    def ended_s(self) -> list[float]:
        """When the run was last started, and when each step since then ended, as times of the trace; empty if the trace
        does not say when it was started."""
        start = self._start
        begun = start.get("step") or 0
        return [float(start["t_s"]), *(float(s.t_s) for s in self.steps if s.step > begun)] if start else []

    @property
    def cold_s(self) -> float | None:
        """Mean seconds from the start of a process until it was ready for its first round; None in older traces."""
        seconds = [float(event["process_s"]) for event in self.events if "process_s" in event]
        return fmean(seconds) if seconds else None

    def back_to(self, step: int) -> None:
        """Forget the steps after `step`, which a resume does again."""
        self.resumes += 1
        self.plan_from = min(self.plan_from, step)
        for event in self.plan_changes:
            event["step"] = min(event["step"], step)
        self.steps = [each for each in self.steps if each.step <= step]
        self.samples = {number: rows for number, rows in self.samples.items() if number <= step}


class _Reading:
    """Reads a trace line by line into `log`: of the samples that were read, those of one step are objects at a time."""

    def __init__(self, path: Path) -> None:
        self._path, self.log, self._cold = path, RunLog(), True
        self._owes = False  # whether steps train what an earlier plan deferred
        self._rows: dict[int, list[Sample]] = {}  # of steps that have not ended
        self._by_name: dict[str, dict[int, Any]] = {
            "streamed": self.log.streamed, "tail": self.log.tails, "balanced": self.log.balanced,
            "drafts": self.log.drafts,
        }  # fmt: skip

    def line(self, number: int, line: bytes) -> None:
        """Read the next line. Raises TraceError for a damaged one, or an event that lacks what it should have."""
        try:
            self._event(line)
        except DamagedEvent as error:
            raise TraceError(self._path, None, f"{error}; the trace is damaged or of another version") from error
        except (ValueError, RecursionError) as error:
            raise not_an_event(self._path, number, error) from error

    def _event(self, line: bytes) -> None:
        log = self.log
        head, event = decoded(line)
        log.last_t_s = float(head.t_s)
        if isinstance(event, Sample):
            self._rows.setdefault(event.step, []).append(event)
        elif isinstance(event, StepEvent):
            log.steps.append(event)
            log.restarts += len(event.restarts)
            if event.step in self._rows:
                log.samples[event.step] = Samples(self._rows.pop(event.step))
            if self._cold:
                log.first_steps.add(event.step)
                self._cold = False
            if self._owes:
                log.plan_from, self._owes = event.step, event.deferred > 0
        else:
            log.events.append(event)
            typed: Any = as_type(event, TYPES[head.event]) if head.event in TYPES else None
            if head.event in self._by_name:
                self._by_name[head.event][typed.step] = typed
            elif head.event == "restart":
                log.restarts += 1
            elif head.event == "resume":
                log.back_to(typed.step)
                self._rows, self._cold, self._owes = {}, True, typed.owed > 0
            elif head.event == "plan":
                log.plan_from, self._owes = typed.step, typed.owed > 0


def read_run(path: Path) -> RunLog:
    """Read a run's trace file.

    Raises TraceError for a damaged line or an event that lacks what it should have, FileNotFoundError if it is absent.
    """
    reading = _Reading(path)
    for number, line in trace_lines(path):
        reading.line(number, line)
    return reading.log


class TraceTail:
    """Reads a trace while the run writes it.

    Invariants: `log` is what `read_run` gives of the same whole lines; half a line is read once its end is there; no
    line is read twice, unless the file no longer holds the line that was read last (a run that was begun anew, a write
    that the disk refused and the run took back): then it is read from its start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self._reading, self._offset, self._last, self._lines = _Reading(self._path), 0, b"", 0

    @property
    def log(self) -> RunLog:
        """The events so far."""
        return self._reading.log

    def more(self) -> bool:
        """Read what was written since the last call; returns whether that was any. Raises TraceError, or OSError if
        the file cannot be read."""
        begun = self._offset
        with self._path.open("rb") as file:
            if self._offset:
                file.seek(self._offset - len(self._last))
                if file.read(len(self._last)) != self._last:
                    self._begin()
                    file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._reading.line(self._lines + 1, line)
                self._lines, self._offset, self._last = self._lines + 1, self._offset + len(line), line
        return self._offset != begun


@dataclass
class Run:
    """One run, read from its folder; steps that were done again after a resume are in it once.

    `written_s`: when the trace was last written, in seconds since 1970. `driven`: whether a process runs it, where
    somebody looked.
    """

    home: Path
    plan: Plan
    log: RunLog
    written_s: float | None = None
    driven: bool | None = None

    @property
    def name(self) -> str:
        """Its folder's name."""
        return self.home.resolve().name

    @property
    def means(self) -> CycleMeans:
        """Means over the cycle, of the plan in force; only for a run with at least one step."""
        return means_by_plan(self.log.in_force, self.plan)

    @cached_property
    def trained(self) -> dict[str, tuple[int, int]]:
        """(tokens, samples) that were trained of each prompt."""
        return self._trained(("short", "long"))

    @cached_property
    def long_trained(self) -> dict[str, tuple[int, int]]:
        """The same of long rounds alone."""
        return self._trained(("long",))

    def _trained(self, kinds: tuple[str, ...]) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for step in self.log.steps:
            if step.kind in kinds and (rows := self.log.samples.get(step.step)) is not None:
                for prompt, (tokens, samples) in rows.by_prompt(rows.trained).items():
                    before = found.get(prompt, (0, 0))
                    found[prompt] = before[0] + tokens, before[1] + samples
        return found

    @cached_property
    def trained_tokens(self) -> NDArray[Any]:
        """The lengths of all trained samples, sorted."""
        rows = [rows["tokens"][rows.trained] for rows in self.log.samples.values()]
        return np.sort(np.concatenate(rows)) if rows else np.array([])


def load_run(folder: Path) -> Run:
    """The run in `folder`. Raises InputError if its plan or its trace cannot be read."""
    trace = folder / TRACE
    plan = load_plan_copy(folder / PLAN_COPY)
    must_be_readable(trace)
    try:
        return Run(folder, plan, read_run(trace), trace.stat().st_mtime)
    except TraceError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", str(trace)) from error


def driver_runs(out: Path) -> bool:
    """Whether a driver holds the folder's lock."""
    try:
        with (out / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def must_be_run_folder(path: Path) -> None:
    """Raise InputError unless `path` is a folder; for a file, the message names its kind. The folder's content is not
    checked."""
    if os.path.isdir(path):  # noqa: PTH112 (pathlib raises for what can be no path)
        return
    if not os.path.exists(path):  # noqa: PTH110
        raise InputError(f"no such run folder; {_GIVE}", str(path))
    try:
        mark = document_kind(path)
    except InputError:
        mark = None  # not a text file
    kind = kind_of_mark(mark) if mark else ""
    if kind == "plan":
        raise InputError(f"is a plan, and the folder of a run is needed; execute the plan, then {_GIVE}", str(path))
    article = f"a {kind} document" if kind else "a file"
    raise InputError(f"is {article}, and the folder of a run is needed; {_GIVE}", str(path))


def run_folders(path: Path) -> list[Path]:
    """The folder at `path` if it is of one run, else those of the runs in it, by name. Raises InputError if it holds
    none."""
    must_be_run_folder(path)
    folders = [path] if (path / TRACE).exists() else sorted(trace.parent for trace in path.glob(f"*/{TRACE}"))
    if not folders:
        raise InputError(f"holds no run (no {TRACE}); give the --out of rlplan execute", str(path))
    return folders


def readable_runs(folder: Path) -> tuple[list[Run], dict[str, InputError]]:
    """The runs in `folder`, and the error of each run that cannot be read, by its name.

    Raises InputError if no run can be read.
    """
    runs: list[Run] = []
    refused: dict[str, InputError] = {}
    for run_folder in run_folders(folder):
        try:
            runs.append(load_run(run_folder))
        except InputError as error:
            refused[run_folder.resolve().name] = error
    if not runs:
        raise next(iter(refused.values()))
    return runs, refused


def run_files(folder: Path) -> list[Path]:
    """Files that a report of `folder` reads; some of them may be missing."""
    return [path for name in (TRACE, PLAN_COPY) for path in (folder / name, *sorted(folder.glob(f"*/{name}")))]


def load_plan_copy(path: Path) -> Plan:
    """The plan that a run was started with. Raises InputError."""
    try:
        return load_plan(path)
    except InputError as error:
        if not path.is_file():
            raise
        # The version of rlplan that started the run could read this plan.
        cause = "a run's copy of its plan that cannot be read is of another version of rlplan, or was edited"
        raise InputError(f"{error.message}; {cause}; solve again to run it again", error.path, error.line) from error
