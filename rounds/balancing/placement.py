"""What a round asks when samples are to start: which of those that wait start now, and on which engine.

Two ways answer: `ByLoad` has each start at once on the least loaded engine (rounds/balance.py), `LongestFirst`
(longest_first.py) starts the longest expected ones first, where they would end soonest, and keeps others back while
engines are full.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from ..balance import Balancer, PrefixSharing
from ..machines.events import SampleKey


@dataclass(frozen=True, slots=True)
class ToPlace:
    """A sample that waits for an engine.

    Attributes:
        key: of the sample.
        prompt: its prompt.
        prompt_tokens: tokens of that.
        limit: tokens that its issue allows.
        kept: tokens that it has already, of those; it was decoded elsewhere.
    """

    key: SampleKey
    prompt: str
    prompt_tokens: int
    limit: int
    kept: int = 0


class SamplePlacement(Protocol):
    """Where the samples of one round decode. A sample waits, or is on one engine, until it is removed."""

    def add(self, sample: ToPlace) -> None:
        """A sample waits for an engine from now on; it is new, or was released by the engine that it was on."""

    def place(self, alive: Collection[int]) -> list[tuple[SampleKey, int]]:
        """The samples that start now, in order, each with its engine, one of those `alive`."""

    def ended(self, key: SampleKey, tokens: int) -> None:
        """The sample ended with so many tokens."""

    def remove(self, key: SampleKey) -> None:
        """The sample was aborted or lost. Unknown keys are ignored: an abort may race an end."""

    def forget(self, engine: int) -> None:
        """The engine died, and what it held of prompts with it."""

    def running(self, engine: int) -> list[SampleKey]:
        """The samples on an engine, in the order in which they were placed."""


class ByLoad:
    """Each sample starts at once, on the least loaded engine or one that holds its prompt; all weigh the same."""

    def __init__(self, engines: int, sharing: PrefixSharing | None = None) -> None:
        self._balancer = Balancer(engines, sharing)
        self._waiting: dict[SampleKey, ToPlace] = {}

    def add(self, sample: ToPlace) -> None:
        """A sample waits for an engine from now on; it is new, or was released."""
        self._balancer.release(sample.key)
        self._waiting[sample.key] = sample

    def place(self, alive: Collection[int]) -> list[tuple[SampleKey, int]]:
        """All that wait, in order; none while no engine is alive."""
        if not alive:
            return []
        placed = [
            (key, self._balancer.assign(key, float(s.limit), set(alive), s.prompt, s.prompt_tokens))
            for key, s in self._waiting.items()
        ]
        self._waiting = {}
        return placed

    def ended(self, key: SampleKey, tokens: int) -> None:
        """The sample ended with so many tokens."""
        self._balancer.release(key)

    def remove(self, key: SampleKey) -> None:
        """The sample was aborted or lost."""
        self._waiting.pop(key, None)
        self._balancer.release(key)

    def forget(self, engine: int) -> None:
        """The engine died, and the prompts that it held with it."""
        self._balancer.forget(engine)

    def running(self, engine: int) -> list[SampleKey]:
        """The samples on an engine, in the order in which they were placed."""
        return [key for key in self._balancer.running(engine) if isinstance(key, SampleKey)]
