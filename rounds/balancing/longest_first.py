"""Placement by history: samples start by expected length, longest first, on the engine that would end them soonest.

A long sample that starts late is decoded alone at the end of its round, although other samples could have run beside
it. So of the waiting samples the one with the largest expected length starts first, on the engine that would end its
work soonest with it (balance_spec.py), and only while that engine has room: a slot of those that it decodes at a time,
and memory. The other samples wait here and not in an engine, so that the next slot goes to the sample that is expected
to be longest then.

Invariants:
- a sample waits, or is on one engine, until it ended or was removed;
- waiting samples start in this order: the first sample of each prompt without an estimate (a probe), then by estimate,
  descending, then in the order of issue; if the first of them has no room, none starts;
- engines that are full or not alive get no samples; an engine without a sample has room for any;
- the same calls give the same answers: no clock, no randomness, ties to the lowest number.

Which samples a round issues, and which of them are trained, is not decided here. In `sync`, `exact` and `predict` it
does not depend on the placement: every sample that is trained runs to its end, whenever it starts.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from typing import NamedTuple

from ..machines.events import SampleKey
from .balance_spec import BalanceSpec, Load, Longest, Work, WorkShare, share
from .length_estimates import NOTHING, Expected, LengthEstimates, Recorded
from .placement import ToPlace

ROOM = 0.5
"""Share of a sample's expected tokens for which memory is reserved when it starts: what it holds on average over its
life. If more is needed at once, the engine preempts the sample that came last, a short one."""

Rank = tuple[float, SampleKey]


class Balance(NamedTuple):
    """The plan's numbers for a round, and the recorded lengths of its prompts."""

    spec: BalanceSpec
    recorded: Recorded = NOTHING


class LongestFirst:
    """The placement of one round by history; see the protocol in placement.py.

    Args:
        engines: number of engines.
        balance: the plan's numbers, and the lengths that are known when the round begins.
        at_once: number of samples that an engine decodes at a time.
    """

    def __init__(self, engines: int, balance: Balance, at_once: int) -> None:
        if engines < 1 or at_once < 1:
            raise ValueError("at least one engine is needed, and one sample at a time")
        self._spec, self._at_once = balance.spec, at_once
        self._estimates = LengthEstimates(balance.recorded.expected)
        self._longest = Longest(balance.recorded.spread)
        self._engines = [_Engine(self._longest) for _ in range(engines)]
        self._samples: dict[SampleKey, ToPlace] = {}
        self._where: dict[SampleKey, int] = {}  # of those that are on an engine
        self._of_prompt: dict[str, dict[SampleKey, None]] = {}
        # Waiting samples; of a sample that is in it twice only the entry of its present rank counts.
        self._heap: list[Rank] = []
        self._ranks: dict[SampleKey, Rank] = {}
        self._probed: set[str] = set()

    # -- samples -------------------------------------------------------------------------------------------------------

    def add(self, sample: ToPlace) -> None:
        """A sample waits for an engine from now on; it is new, or was released by the engine that it was on."""
        key, prompt = sample.key, sample.prompt
        assert key not in self._ranks, f"{key} waits already"
        self._take_out(key)
        self._samples[key] = sample
        self._of_prompt.setdefault(prompt, {})[key] = None
        self._rank(key, probe=prompt not in self._probed and not self._estimates.knows(prompt))
        self._probed.add(prompt)

    def _rank(self, key: SampleKey, *, probe: bool = False) -> None:
        sample = self._samples[key]
        first = -float("inf") if probe else -self._left(sample).median
        self._ranks[key] = (first, key)
        heapq.heappush(self._heap, self._ranks[key])

    def place(self, alive: Collection[int]) -> list[tuple[SampleKey, int]]:
        """The samples that start now, in order, each with its engine."""
        placed = []
        candidates = sorted(alive)
        while self._heap:
            rank = self._heap[0]
            if self._ranks.get(rank[1]) != rank:  # it started, was removed, or has another rank
                heapq.heappop(self._heap)
                continue
            engine = self._best(self._samples[rank[1]], candidates)
            if engine is None:
                break
            heapq.heappop(self._heap)
            placed.append((rank[1], self._start(rank[1], engine)))
        return placed

    def _best(self, sample: ToPlace, candidates: list[int]) -> int | None:
        """The engine with room that would end soonest with the sample."""
        more, room = self._share(sample), self._room(sample)
        best, best_s = None, float("inf")
        for number in candidates:
            engine = self._engines[number]
            if engine.shares and (
                len(engine.shares) >= self._at_once or engine.room + room > self._spec.kv_capacity_tokens
            ):
                continue
            end_s = self._spec.end_s(engine.work_with(more), self._at_once)
            if end_s < best_s:
                best, best_s = number, end_s
        return best

    def _start(self, key: SampleKey, number: int) -> int:
        del self._ranks[key]
        self._where[key] = number
        self._take_in(key, number)
        return number

    def _take_in(self, key: SampleKey, number: int) -> None:
        sample = self._samples[key]
        self._engines[number].add(key, self._share(sample), self._room(sample))

    def _share(self, sample: ToPlace) -> WorkShare:
        return share(sample.prompt_tokens + sample.kept, *self._left(sample))

    def _left(self, sample: ToPlace) -> Expected:
        """The expected remaining tokens of a sample that starts."""
        if sample.kept:
            return self._estimates.left(sample.prompt, sample.limit, sample.kept)
        return self._estimates.of(sample.prompt, sample.limit)

    def _room(self, sample: ToPlace) -> float:
        return sample.prompt_tokens + max(float(sample.kept), ROOM * self._estimates.room(sample.prompt, sample.limit))

    def ended(self, key: SampleKey, tokens: int) -> None:
        """The sample ended with so many tokens; its siblings are expected to be as long at least."""
        prompt = self._samples[key].prompt
        self.remove(key)
        if self._estimates.ended(prompt, tokens):
            self._reprice(prompt)

    def _reprice(self, prompt: str) -> None:
        """The prompt's estimate has changed."""
        for key in self._of_prompt.get(prompt, ()):
            if key in self._ranks:
                self._rank(key)
            else:
                engine = self._engines[self._where[key]]
                engine.drop(key)
                self._take_in(key, self._where[key])

    def remove(self, key: SampleKey) -> None:
        """The sample was aborted or lost. Unknown keys are ignored."""
        self._take_out(key)

    def _take_out(self, key: SampleKey) -> None:
        sample = self._samples.pop(key, None)
        if sample is None:
            return
        del self._of_prompt[sample.prompt][key]
        if self._ranks.pop(key, None) is None:
            self._engines[self._where.pop(key)].drop(key)

    def forget(self, engine: int) -> None:
        """The engine died; its samples are added again."""

    def running(self, engine: int) -> list[SampleKey]:
        """The samples on an engine, in the order in which they were placed."""
        return list(self._engines[engine].shares)

    def check_invariants(self) -> None:
        """Assert what must hold between any two calls."""
        assert set(self._ranks).isdisjoint(self._where), "a sample that runs waits"
        assert set(self._ranks) | set(self._where) == set(self._samples), "a sample is nowhere"
        for number, engine in enumerate(self._engines):
            assert set(engine.shares) == {key for key, where in self._where.items() if where == number}
            assert len(engine.shares) <= self._at_once, "an engine has more samples than it decodes at a time"


class _Engine:
    """The samples of one engine, with their shares of its work and the memory that is reserved for them."""

    def __init__(self, longest: Longest) -> None:
        self.shares: dict[SampleKey, WorkShare] = {}
        self.room = 0.0
        self._rooms: dict[SampleKey, float] = {}
        self._longest = longest
        self._load: Load | None = Load(longest)  # None: to be summed anew

    def add(self, key: SampleKey, of_sample: WorkShare, room: float) -> None:
        self.shares[key], self._rooms[key] = of_sample, room
        self.room += room
        if self._load is not None:
            self._load.add(of_sample)

    def drop(self, key: SampleKey) -> None:
        del self.shares[key], self._rooms[key]
        # Summed anew, not subtracted, so that no rounding is left over.
        self.room = sum(self._rooms.values())
        self._load = None

    def work_with(self, one_more: WorkShare) -> Work:
        if self._load is None:
            self._load = Load(self._longest, self.shares.values())
        return self._load.work_with(one_more)
