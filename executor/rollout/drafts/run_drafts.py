"""The drafts of a run: what it remembers of its prompts' responses, from round to round and in its checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ....plans.schema.levers import RoundDrafts
from ....plans.yaml.errors import InputError
from ....rounds.schedule import Schedule
from ...drafts.history_store import HISTORY, HistoryStore, read_history
from ...engines.fleet import Fleet
from .drafted_round import DraftedRound

UPCOMING = 4096
"""Prompts of rounds to come that may be decoded ahead: more than any tail has places for."""


class RunDrafts:
    """Drafts of the rounds of one run.

    Args:
        planned: of each kind of round; None: it has none.
        fleet: the engines, which may draft in rounds of other runs, too.
        schedule: knows which epoch has issued a prompt.

    `store` is what is remembered; None: nothing, since none of the run's rounds drafts.
    """

    def __init__(self, planned: Iterable[RoundDrafts | None], fleet: Fleet, schedule: Schedule) -> None:
        self.store = HistoryStore() if any(planned) else None
        self._fleet, self._schedule = fleet, schedule

    def next_round(self, planned: RoundDrafts | None) -> DraftedRound | None:
        """The drafts of the next round; None: its engines draft in no run."""
        if not self._fleet.draft_tokens:
            return None
        schedule = self._schedule
        return DraftedRound(
            planned, self.store, schedule.epoch_of, schedule.round_number, schedule.upcoming(UPCOMING)
        )  # fmt: skip

    def files(self) -> dict[str, bytes]:
        """By name, files for a checkpoint."""
        return {} if self.store is None else {HISTORY: self.store.packed()}

    def load(self, checkpoint: Path, prompts: Iterable[str]) -> str | None:
        """Continue with what a checkpoint of this or of another run remembers; returns why it is lost, if it is."""
        if self.store is None:
            return None
        data, fault = read_history(checkpoint / HISTORY)
        return self.store.restore(data, prompts) if data is not None else fault

    def inherit(self, checkpoint: Path, prompts: Iterable[str]) -> None:
        """Begin with what a checkpoint of another run remembers. Raises InputError if that is nothing of `prompts`."""
        fault = self.load(checkpoint, prompts)
        if fault is not None:
            raise InputError(f"cannot be read: {fault}", str(checkpoint / HISTORY))
        if self.store is None:
            return
        self.store.count_as_earlier()
        if not len(self.store):
            raise InputError(
                "remembers none of this job's prompts; give a run of the same data", str(checkpoint / HISTORY)
            )
