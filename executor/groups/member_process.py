"""The process of one job of a co-execution group: it executes the job's own plan, with the permits of the group.

    python -m rlplan.executor.groups.member_process FILE

FILE is JSON that the group's driver wrote (MemberTask). The process prints its progress as JSON lines, which the driver
shows (`{"tell": "phase" | "note" | "round" | "step", …}`), and ends with an exit code of `rlplan execute`.
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

from ...plans.schema.plan import Plan
from ...plans.yaml.errors import InputError, RunFailed
from ...traces.run_log import PLAN_COPY
from ...traces.trace_events import Step
from ..execute import execute
from ..prepare import Execution, Options, prepare
from ..records.plan_changes import plan_change
from ..rollout.round_samples import Progress
from .member_task import BAD_INPUT, DONE, FAILED, STOPPED, MemberTask

PR_SET_PDEATHSIG = 1  # linux/prctl.h


class LinePrinter:
    """A `turns.Watcher` that prints a JSON line for each call."""

    def phase(self, text: str) -> None:
        """Something slow begins."""
        _print("phase", text=text)

    def round_begins(self, name: str, round_kind: str, step: int, progress: Callable[[], Progress]) -> None:
        """A round begins."""
        _print("round", kind=round_kind, step=step)

    def step_done(self, name: str, record: Step) -> None:
        """A step ended."""
        _print("step", step=record.step, kind=record.kind, total_s=record.total_s, rollout_s=record.rollout_s,
              train_s=record.train_s, reward_mean=record.reward_mean)  # fmt: skip

    def note(self, text: str) -> None:
        """A line for the person who watches."""
        _print("note", text=text)

    def plan_changed(self, name: str, plan: Plan) -> None:
        """A member's plan is its group's matter."""
        _print("note", text=f"{name} goes on by another plan")


def _must_be_as_planned(execution: Execution, resume: bool) -> None:
    """Raise InputError for a plan that was edited since the job was started: its group was planned by the old one."""
    if resume and plan_change(execution.run_dir, execution.text, execution.plan) is not None:
        raise InputError(
            f"goes by another plan than {execution.plan_path} is now (a copy is {PLAN_COPY} in the run's folder); put "
            "that back",
            str(execution.run_dir),
        )


def _print(what: str, **fields: Any) -> None:
    print(json.dumps({"tell": what, **fields}), flush=True)


def _end_with(driver: int) -> None:
    """Have the kernel end this process when its driver is gone: then other jobs may get its nodes."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != driver:  # it was gone before
        os.kill(os.getpid(), signal.SIGKILL)


def main(path: str) -> int:
    """Execute the task in a file; returns the exit code."""
    task = MemberTask.read(Path(path))
    _end_with(task.driver)
    try:
        executions = prepare([Path(task.plan)], Path(task.out), bool(task.options["resume"]))
        _must_be_as_planned(executions[0], bool(task.options["resume"]))
        finished = execute(executions, Options(**task.options), LinePrinter(), task)
    except InputError as error:
        _print("failed", text=str(error))
        return BAD_INPUT
    except RunFailed as error:
        _print("failed", text=str(error))
        return FAILED
    return DONE if finished else STOPPED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
