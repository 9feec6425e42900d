"""The lines of `execute` on a co-execution group: each job's steps, and its slowdown beside its bound."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from ...plans.schema.groups_plan import GroupMember


class GroupView:
    """Implements `executor.groups.job_process.GroupWatcher`.

    A job's slowdown is the mean seconds between ends of its steps over those that the plan has for it alone.
    """

    def __init__(self, steps: int, *, quiet: bool = False) -> None:
        self._jobs: dict[str, GroupMember] = {}
        self._steps = steps
        self._console = Console(stderr=quiet)
        self._first_end: dict[str, tuple[float, int]] = {}

    def phase(self, text: str) -> None:
        """Something slow begins."""
        self.note(text)

    def jobs(self, planned: Mapping[str, GroupMember]) -> None:
        """Jobs that run from now on, as their plan has them; a slowdown is measured anew in another place."""
        for name, member in planned.items():
            if self._jobs.get(name) != member:
                self._first_end.pop(name, None)
            self._jobs[name] = member

    def told(self, job: str, what: dict[str, Any]) -> None:
        """What a job's process told."""
        match what["tell"]:
            case "step":
                self._step(job, what)
            case "phase" | "note" | "failed":
                self.note(f"{job}: {what['text']}")

    def _step(self, job: str, what: dict[str, Any]) -> None:
        now, step = time.monotonic(), int(what["step"])
        first_s, first = self._first_end.setdefault(job, (now, step))
        planned = self._jobs[job].slowdown
        text, steps = "", max(step, self._steps)  # what a run owes is trained after its steps
        if step > first:
            slowdown = (now - first_s) / (step - first) / planned.alone_s
            text = f"  {slowdown:.2f}x alone (at most {planned.slo:.2f})"
        self.note(
            f"{job} {step}/{steps} {what['kind']:5} {what['total_s']:6.2f} s  rollout {what['rollout_s']:.2f}  "
            f"train {what['train_s']:.2f}  reward {what['reward_mean']:.3f}{text}"
        )

    def note(self, text: str) -> None:
        """A line for the person who watches."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
