"""The parts of the memory table (memory_table.py): bars, and the engines of a layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...plans.schema.levers import EngineLayout
from ...profiles.phase_schema import Rollout

Place = Literal["device", "host"]
Phase = Literal["rollout", "train", "sync"]
PHASES: tuple[Phase, ...] = ("rollout", "train", "sync")
Side = Literal["both", "engines", "trainers"]
"""Who is on a place: both take turns on it, or it is of a pool that one of them has to itself."""

WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Of an engine's parameter, by the job's dtype."""


@dataclass(frozen=True)
class Engines:
    """The engines of a layout, priced by `entry` of the profile; `kv_tokens`: that each has room for, where a plan says
    it (None: all that the entry's has)."""

    entry: Rollout
    layout: EngineLayout
    kv_tokens: int | None = None

    @property
    def kv_bytes(self) -> float:
        """Bytes of an engine's KV cache, of all its ranks together."""
        most = self.entry.kv_capacity_tokens
        return min(most, most if self.kv_tokens is None else self.kv_tokens) * self.entry.kv_bytes_per_token


@dataclass(frozen=True)
class Bar:
    """The bytes that a device, or the host of a node, holds in one phase of a kind of round; of all places the fullest.

    Attributes:
        kind: which of the table's kinds of round: 0 short, 1 long, 2 the tail of long rounds on engines of its own.
        kept: bytes throughout the phase, by what holds them.
        moments: bytes on top of it at one moment each, by the moment's name and by what holds them.
        capacity_bytes: that there are.
        complete: whether `kept` and `moments` hold all bytes; if not, they are a lower bound.
        side: who is on the place.
    """

    place: Place
    phase: Phase
    kind: int
    kept: Mapping[str, float]
    moments: Mapping[str, Mapping[str, float]]
    capacity_bytes: float
    complete: bool = True
    side: Side = "both"

    @property
    def holds_bytes(self) -> dict[str, float]:
        """Bytes by holder at the moment at which most memory is held; holders of nothing are left out."""
        worst = max(self.moments.values(), key=lambda held: sum(held.values()), default={})
        names = {**self.kept, **worst}
        return {n: size for n in names if (size := self.kept.get(n, 0.0) + worst.get(n, 0.0)) > 0}

    @property
    def needed_bytes(self) -> float:
        """Total bytes at the moment at which most memory is held."""
        return sum(self.holds_bytes.values())

    @property
    def fits(self) -> bool:
        """Whether the capacity suffices, up to rounding of sums of floats."""
        return self.needed_bytes <= self.capacity_bytes * (1 + 1e-9)


def largest(holds_bytes: Mapping[str, float]) -> str:
    """The three largest holders of memory as text: `optimizer 262 GB, parameters 131 GB`."""
    names = sorted(holds_bytes, key=lambda name: -holds_bytes[name])[:3]
    return ", ".join(f"{name.replace('_', ' ')} {gb(holds_bytes[name])}" for name in names)


def gb(size_bytes: float) -> str:
    """Bytes in GB; small sizes in MB, so that none is told as 0, and large ones in TB."""
    unit, of = next(((unit, of) for unit, of in (("TB", 1e12), ("GB", 1e9)) if size_bytes >= of), ("MB", 1e6))
    return f"{size_bytes / of:.4g} {unit}"
