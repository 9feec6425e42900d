"""What carries a new plan out asks of the groups that run (group_run.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ..live_group import LiveGroup
from ..prepare_group import PreparedGroup


class RunningGroups(Protocol):
    """The groups and jobs that move."""

    groups: dict[str, LiveGroup]

    def group_of(self, job: str) -> str | None:
        """The group in which a job's process runs."""

    def ended(self) -> set[str]:
        """Jobs that ran and have ended for good."""

    def stop_job(self, job: str, at_once: bool) -> None:
        """Ask a job to stop, with a checkpoint."""

    def give_up(self, job: str, reason: str) -> None:
        """A job that was on its way has failed for good."""

    async def start_job(self, planned: PreparedGroup, job: str) -> int:
        """Start a job in a group of the plan, its run in the group's folder; returns how often it has arrived there
        before. Raises InputError if the nodes or their memory do not suffice, RunFailed."""

    async def settle(self, plan: Path | None, groups: dict[str, PreparedGroup]) -> None:
        """All moves to a plan are made: the jobs' seconds and bounds are those of the plan, empty groups end, spare
        nodes go back. `plan`: None if it is the one that the driver was started with."""

    def keep_nodes(self) -> None:
        """Moves begin: nodes that are given back may be needed."""

    def note(self, text: str) -> None:
        """A line for the person who watches."""
