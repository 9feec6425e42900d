"""Turns on devices of a run whose engines and trainer share none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ...rounds.device_ledger import DeviceLedgers
from .device_turns import DeviceTurns


def no_turns() -> DeviceTurns:
    """Turns of a run whose engines and trainer share nothing: none is ever taken."""
    fleet: Any = SimpleNamespace(all_engines=list)
    return DeviceTurns(DeviceLedgers([]), fleet, {})
