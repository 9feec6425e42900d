"""Whose turns on devices are told, and what they took."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class TurnsOf(Protocol):
    """The run whose turns are taken; they are told in its trace."""

    name: str
    step_number: int

    def event(self, event: str, /, **fields: Any) -> None:
        """Write an event to the trace."""


class TurnsTook(NamedTuple):
    """Seconds of turns: of engines that sleep and wake, and of trainers whose states come and leave."""

    engines_s: float = 0.0
    trainers_s: float = 0.0
