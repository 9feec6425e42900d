"""Runs that go on, read while their traces grow: what `rlplan watch` shows.

Invariants: a line of a trace is read once; a run that cannot be read, or no longer, is told of and stops no other; what
`report` gives of a run is what `rlplan report` gives of its folder at that moment.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..plans.diff.change import plain
from ..plans.schema.plan import Plan
from ..plans.yaml.errors import InputError
from .report import left_s, report_of
from .report_state import is_quiet, run_state
from .run_log import PLAN_COPY, TRACE, Run, TraceTail, driver_runs, load_plan_copy, must_be_run_folder, run_folders
from .trace import TraceError


@dataclass
class _Watched:
    """A run of a folder that was given."""

    folder: Path
    home: Path
    plan: Plan
    tail: TraceTail
    written_s: float = 0.0
    driven: bool = True

    @property
    def run(self) -> Run:
        """The run as it was read last."""
        return Run(self.home, self.plan, self.tail.log, self.written_s, self.driven)

    def look(self) -> bool:
        """Read on; returns whether there are news. Raises TraceError, OSError, InputError."""
        self.written_s = (self.home / TRACE).stat().st_mtime
        plans = len(self.tail.log.plan_changes)
        news = self.tail.more()
        if len(self.tail.log.plan_changes) != plans:
            self.plan = load_plan_copy(self.home / PLAN_COPY)
        return news


class WatchedRuns:
    """The runs in `folders`, each the folder of a run or of several.

    `version` grows with each look that found news. Methods can be called from several threads. Raises InputError if a
    folder holds no run that can be read and no driver is about to begin one there.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = list(dict.fromkeys(folders))
        self._watched: dict[Path, _Watched] = {}
        self._refused: dict[Path, InputError] = {}
        self._lock = threading.RLock()
        self.version = 0
        for folder in self._folders:
            must_be_run_folder(folder)
            if not driver_runs(folder):
                run_folders(folder)
        self.look()
        if self._refused and not self._watched:
            raise next(iter(self._refused.values()))

    def look(self) -> list[str]:
        """Read what the traces have got since the last look; names of the runs with news."""
        with self._lock:
            fresh = self._find()
            for watched in list(self._watched.values()):
                try:
                    if watched.look() | self._died(watched):
                        fresh.append(watched.home)
                except FileNotFoundError:
                    self._watched.pop(watched.home)  # it is begun anew, or was removed
                    fresh.append(watched.home)
                except InputError as error:
                    self._refuse(watched.home, error)
                    fresh.append(watched.home)
                except (TraceError, OSError) as error:
                    text = str(error) if isinstance(error, TraceError) else f"cannot be read: {error.strerror}"
                    self._refuse(watched.home, InputError(text, str(watched.home / TRACE)))
                    fresh.append(watched.home)
            self.version += bool(fresh)
            names = self._names()
            return [names[home] for home in dict.fromkeys(fresh) if home in self._watched]

    def _find(self) -> list[Path]:
        """Take up the runs that have begun in the folders; what is new of them, or cannot be read."""
        fresh = []
        for folder in self._folders:
            try:
                homes = run_folders(folder)
            except InputError:
                continue  # it has not begun yet
            for home in homes:
                if home in self._watched or home in self._refused:
                    continue
                fresh.append(home)
                try:
                    plan = load_plan_copy(home / PLAN_COPY)
                except InputError as error:
                    self._refuse(home, error)
                else:
                    self._watched[home] = _Watched(folder, home, plan, TraceTail(home / TRACE))
        return fresh

    def _refuse(self, home: Path, error: InputError) -> None:
        self._watched.pop(home, None)
        self._refused[home] = error

    def _died(self, watched: _Watched) -> bool:
        """Note whether the run's driver is gone; returns whether that is news."""
        quiet = is_quiet(_state(watched.run))
        was, watched.driven = watched.driven, not quiet or driver_runs(watched.home) or driver_runs(watched.folder)
        return was != watched.driven

    def _names(self) -> dict[Path, str]:
        """By folder of a run its name; of several runs of one name with the folder above."""
        count = Counter(home.resolve().name for home in (*self._watched, *self._refused))
        places = {home: home.resolve() for home in (*self._watched, *self._refused)}
        return {h: p.name if count[p.name] == 1 else f"{p.parent.name}/{p.name}" for h, p in places.items()}

    @property
    def ended(self) -> bool:
        """Whether all runs have ended or died; False while one has not begun."""
        with self._lock:
            open_runs = [w for w in self._watched.values() if _state(w.run)["state"] == "running"]
            begun = {watched.folder for watched in self._watched.values()} | {
                folder for folder in self._folders for home in self._refused if folder in (home, home.parent)
            }
            return not open_runs and len(begun) == len(self._folders)

    def runs(self) -> dict[str, Run]:
        """The runs as they are now, by name."""
        with self._lock:
            names = self._names()
            return {names[home]: watched.run for home, watched in self._watched.items()}

    def standing(self, name: str) -> dict[str, Any]:
        """How a run stands: `run`, `step`, `of`, `state`, `state_text`, `step_s` (mean), `step_s_predicted`, `left_s`
        and the last step's `reward_mean`; None for what is not known."""
        with self._lock:
            names = self._names()
            watched = next(watched for home, watched in self._watched.items() if names[home] == name)
            run, state = watched.run, _state(watched.run)
            steps = run.log.steps
            found: dict[str, Any] = plain({
                "run": name,
                "step": steps[-1].step if steps else 0,
                "of": state["steps_wanted"],
                "state": state["state"],
                "state_text": state["state_text"],
                "step_s": run.means.seconds("total_s") if steps else None,
                "step_s_predicted": run.plan.predicted.step_s.mean,
                "left_s": left_s(run),
                "reward_mean": steps[-1].reward_mean if steps else None,
            })  # fmt: skip
            return found

    def report(self) -> dict[str, Any]:
        """What `rlplan report --json` prints of each folder, all runs in one: `runs` by name, and `unreadable`."""
        with self._lock:
            names = self._names()
            found: dict[str, Any] = {
                "runs": {},
                "unreadable": {names[home]: str(error) for home, error in self._refused.items()},
            }
            for folder in self._folders:
                watched = {w.home.resolve().name: w for w in self._watched.values() if w.folder == folder}
                details = report_of([each.run for each in watched.values()], {})["runs"]
                found["runs"] |= {names[watched[name].home]: detail for name, detail in details.items()}
            whole: dict[str, Any] = plain(found)
            return whole


def _state(run: Run) -> dict[str, Any]:
    return run_state(run.log.events, run.log.steps, run.written_s, time.time(), run.driven)
