"""Transfers between parties of one session, in whatever places they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from .party_process import Party, all_of

DEADLINE_S = 60.0
"""Longest wait of a party for one bucket."""


class Transfers:
    """Parties of one session: `ranks`, `receivers` of nodes, `readers`; subclasses start them and have them join.

    `tensors`: of the model.
    """

    def __init__(self, tensors: int) -> None:
        self.tensors, self._turn = tensors, 0
        self._parties: list[Party] = []
        self.ranks: list[Party] = []
        self.receivers: list[Party] = []
        self.readers: list[Party] = []

    def party(self, role: str, where: str, within: Sequence[str] = ()) -> Party:
        """Start a party; it is ended by `close`."""
        party = Party(role, f"{role} on {where}", within)
        self._parties.append(party)
        return party

    def send(self) -> tuple[float, int]:
        """One transfer of new weights; returns its seconds, and how many tensors came out other than they were."""
        turn = self._turn
        self._turn += 1
        all_of([(party, ("hold", self.tensors, turn)) for party in self.ranks])
        began = time.perf_counter()
        calls: list[tuple[Party, tuple[Any, ...]]] = [(party, ("read", turn)) for party in self.readers]
        calls += [(party, ("receive", turn)) for party in self.receivers]
        calls += [(party, ("publish", turn)) for party in self.ranks]
        counts = all_of(calls)[: len(self.readers)]
        seconds = time.perf_counter() - began
        wrong = all_of([(party, ("mismatches", turn)) for party in self.readers])
        return seconds, sum(wrong) + sum(count != self.tensors for count in counts)

    def close(self) -> None:
        """End all parties."""
        for party in self._parties:
            party.end()
