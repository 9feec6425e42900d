"""What the ways have in common on which weights go from a trainer to engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from .slots.slot_choice import SlotsName

if TYPE_CHECKING:
    from ..engines.engine_handle import EngineHandle

WayName = Literal["broadcast", "file"]

DEFAULT_WAY: WayName = "broadcast"
"""What is used unless a configuration says otherwise; where it cannot be, `file` is."""


class Sent(NamedTuple):
    """What became of weights that were sent.

    Attributes:
        nbytes: of the weights, which each node with engines received once.
        expected: the trainer's checksum of each tensor; {} if none were asked for.
        received: for each engine that has the weights now, by name, the checksums of what it received.
        slots: where they lay for engines to load them (slots/slot_choice.py); "" if they came by file.
        reason: why not in better slots; None if there are none.
    """

    nbytes: int
    expected: dict[str, str]
    received: dict[str, dict[str, str]]
    slots: SlotsName | Literal[""] = ""
    reason: str | None = None


class WayClosed(Exception):
    """This way cannot take these weights; `lasting`: no others of this trainer either."""

    def __init__(self, reason: str, *, lasting: bool) -> None:
        super().__init__(reason)
        self.reason, self.lasting = reason, lasting


class Way(Protocol):
    """A way on which weights travel."""

    async def send(self, engines: Sequence[EngineHandle], version: str, checked: bool) -> Sent:
        """Send the trainer's weights as `version` to engines, all at once.

        An engine that dies is left out; the fleet replaces it. Raises WayClosed, TrainerDied, and RunFailed if an
        engine was sent another version.
        """

    async def send_again(self, engines: Sequence[EngineHandle], version: str) -> None:
        """Send the weights that were sent last, as `version`, to engines that came later. Raises as `send`, and
        ActorFailed if one of them died; the others have them then."""

    async def close(self) -> None:
        """End what is left of earlier transfers."""
