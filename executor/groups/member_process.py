"""The process of one job of a co-execution group: it executes the job's own plan, in the turns that the group gives.

    python -m rlplan.executor.groups.member_process FILE

FILE is JSON that the group's driver wrote (MemberTask). The process prints a JSON line for each thing that a person who
watches is told (`{"tell": "phase" | "note" | "round" | "step", …}`), and ends with the exit code of `rlplan execute`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...plans.yaml.errors import InputError, RunFailed
from ...traces.trace_events import Step
from ..execute import execute
from ..prepare import Options, prepare
from ..rollout.round_samples import Progress
from .member_task import BAD_INPUT, DONE, FAILED, STOPPED, Member, MemberTask

PR_SET_PDEATHSIG = 1  # linux/prctl.h


class ToldByLines:
    """A `turns.Watcher` that prints a JSON line each."""

    def phase(self, text: str) -> None:
        """Something slow begins."""
        _tell("phase", text=text)

    def round_begins(self, name: str, round_kind: str, step: int, progress: Callable[[], Progress]) -> None:
        """A round begins."""
        _tell("round", kind=round_kind, step=step)

    def step_done(self, name: str, record: Step) -> None:
        """A step ended."""
        _tell("step", step=record.step, kind=record.kind, total_s=record.total_s, rollout_s=record.rollout_s,
              train_s=record.train_s, reward_mean=record.reward_mean)  # fmt: skip

    def note(self, text: str) -> None:
        """A line for the person who watches."""
        _tell("note", text=text)


def _tell(what: str, **fields: Any) -> None:
    print(json.dumps({"tell": what, **fields}), flush=True)


def _end_with(driver: int) -> None:
    """Have the kernel end this process when its driver is gone: its nodes may be given to others then."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != driver:  # it was gone before
        os.kill(os.getpid(), signal.SIGKILL)


def main(path: str) -> int:
    """Execute the task in a file; returns the exit code."""
    task = MemberTask.read(Path(path))
    _end_with(task.driver)
    try:
        executions = prepare([Path(task.plan)], Path(task.out), bool(task.options["resume"]))
        finished = execute(executions, Options(**task.options), ToldByLines(), Member.of(task))
    except InputError as error:
        _tell("failed", text=str(error))
        return BAD_INPUT
    except RunFailed as error:
        _tell("failed", text=str(error))
        return FAILED
    return DONE if finished else STOPPED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
