"""What a round in progress is given: the weights that it decodes by, and the messages that drive it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ...rounds.machines.events import Failed, Scored
from ..engines.engine_handle import EngineHandle, EngineNews
from .changes.engine_change import Held
from .changes.unit_change import UnitsChanged

GiveWeights = Callable[[EngineHandle, str], Awaitable[None]]
"""Gives weights of that version to an engine. Raises ActorFailed if the engine is gone, or RunFailed."""


class Weights(NamedTuple):
    """The weights that decode a round: their version, and what gives them to an engine that comes back in the round."""

    version: str
    give: GiveWeights


Message = EngineNews | Scored | Failed | Held | UnitsChanged
Inbox = asyncio.Queue[Message]
