"""Deadlines of reward executions, learnt by prompt: beyond the deadline, the response gets reward 0.

A fixed deadline has to suit the slowest tests of the data set, so every response that hangs costs all of it (5% of the
executions sat at a limit of 30 s where most took half a second; RollPacker, arXiv 2509.21009). Here a prompt's *anchor*
is the slowest correct execution of its tests so far, and later executions get `anchor_factor` times that, within
bounds. As published the anchor is per test case; here it is per prompt, whose tests are run as one.

What it costs: a correct answer that is slower than `anchor_factor` times all earlier correct ones is killed and judged
wrong, and since it is killed it never raises the anchor. Slow correct programs are so discouraged more than under the
fixed deadline, which already judges those beyond `max_s` wrong. How many they are cannot be known, since none is
awaited to its end, but it is bounded from above: `Counts.cut` counts the executions that a deadline below `max_s`
ended.

Invariants:
- min_s <= deadline <= max_s; it is max_s for a prompt that has no anchor, and never falls as an anchor rises;
- an anchor is the time of a correct execution, and never falls: a prompt's deadline falls once, from max_s, when it has
  its first correct execution, and then only rises;
- deadlines change between rounds only, and do not depend on the order in which a round's executions ended, so that the
  same executions give the same deadlines whoever finished first;
- a run that was resumed from `state` gives the deadlines that the uninterrupted one would have given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class TimeoutSpec:
    """Deadlines of reward executions as a plan has them, in seconds.

    Attributes:
        max_s: the deadline without an anchor, and the longest there is.
        min_s: the shortest; None: as `max_s`, so all deadlines are the same.
        anchor_factor: deadline over anchor, at least 1: what was right once stays in time.
    """

    max_s: float
    min_s: float | None = None
    anchor_factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.floor_s <= self.max_s < math.inf or not 1 <= self.anchor_factor < math.inf:
            raise ValueError("a timeout needs 0 < min_s <= max_s and an anchor_factor of at least 1, all finite")

    @property
    def floor_s(self) -> float:
        """The shortest deadline, seconds."""
        return self.max_s if self.min_s is None else self.min_s

    @property
    def adapts(self) -> bool:
        """Whether deadlines can differ at all."""
        return self.floor_s < self.max_s

    def deadline_s(self, anchor_s: float | None) -> float:
        """clamp(anchor_factor * anchor, min_s, max_s), or max_s without an anchor (RollPacker)."""
        if anchor_s is None:
            return self.max_s
        return min(max(self.anchor_factor * anchor_s, self.floor_s), self.max_s)


class RewardExecution(NamedTuple):
    """How scoring one sample of `prompt` went; `seconds` of wall time."""

    prompt: str
    seconds: float
    correct: bool
    timed_out: bool


@dataclass(slots=True)
class Counts:
    """Counts of reward executions since the run began.

    Attributes:
        executions: all.
        correct: of them.
        stretched: correct ones that took longer than every correct one of their prompt in earlier rounds: only the
            factor, or the floor, let them live. Where this is a large share of `correct`, the factor is too tight.
        timeouts: ended by their deadline.
        cut: of them, those whose deadline was below max_s: at most so many correct answers were judged wrong that the
            fixed deadline would have judged right.
    """

    executions: int = 0
    correct: int = 0
    stretched: int = 0
    timeouts: int = 0
    cut: int = 0


class Timeouts:
    """The deadlines of one pool: ask `deadline_s` while a round runs, tell `end_round` what its executions took."""

    def __init__(self, spec: TimeoutSpec) -> None:
        self.spec = spec
        self.counts = Counts()
        self._anchors: dict[str, float] = {}

    def anchor_s(self, prompt: str) -> float | None:
        """Seconds of the prompt's slowest correct execution in earlier rounds; None if it has none."""
        return self._anchors.get(prompt)

    def deadline_s(self, prompt: str) -> float:
        """Seconds that an execution for this prompt may take in this round."""
        return self.spec.deadline_s(self._anchors.get(prompt))

    def end_round(self, executions: Iterable[RewardExecution]) -> None:
        """A round is over: learn from its executions, which ran under the deadlines of before this call.

        Give it the executions of trained or filtered groups, which do not depend on the order of finishing.
        """
        slowest: dict[str, float] = {}
        for execution in executions:
            assert 0 <= execution.seconds < math.inf, f"{execution} has no time that could be learnt from"
            anchor = self._anchors.get(execution.prompt)
            self.counts.executions += 1
            self.counts.timeouts += execution.timed_out
            self.counts.cut += execution.timed_out and self.deadline_s(execution.prompt) < self.spec.max_s
            if execution.correct and not execution.timed_out:
                self.counts.correct += 1
                self.counts.stretched += anchor is not None and execution.seconds > anchor
                slowest[execution.prompt] = max(slowest.get(execution.prompt, 0.0), execution.seconds)
        if self.spec.adapts:
            for prompt, seconds in slowest.items():
                self._anchors[prompt] = max(seconds, self._anchors.get(prompt, 0.0))
        self.check_invariants()

    def check_invariants(self) -> None:
        """Assert what must hold between any two rounds."""
        counts = self.counts
        assert counts.cut <= counts.timeouts <= counts.executions - counts.correct
        assert counts.stretched <= counts.correct
        assert self.spec.adapts or not self._anchors, "a fixed deadline has no anchors"

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs, as JSON-ready data. Call it between rounds."""
        return {"anchors": dict(sorted(self._anchors.items())), "counts": asdict(self.counts)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state()`, of deadlines that adapted or not."""
        anchors = state["anchors"] if self.spec.adapts else {}
        self._anchors = {str(prompt): float(seconds) for prompt, seconds in anchors.items()}
        self.counts = Counts(**state["counts"])
        self.check_invariants()


class PoolTimeouts:
    """The deadlines of a run whose reward has several pools of workers: each pool learns from its own executions.

    A pool goes by the name of its part of the reward; the first of `specs` is that of older checkpoints.
    """

    def __init__(self, specs: Mapping[str, TimeoutSpec]) -> None:
        self.pools = {name: Timeouts(spec) for name, spec in specs.items()}

    @property
    def counts(self) -> Counts:
        """Counts over all pools; an execution is one sample in one pool."""
        total = Counts()
        for pool in self.pools.values():
            total = Counts(*(a + b for a, b in zip(astuple(total), astuple(pool.counts), strict=True)))
        return total

    def deadlines_s(self, prompt: str) -> dict[str, float]:
        """By pool: seconds that an execution for this prompt may take in this round."""
        return {name: pool.deadline_s(prompt) for name, pool in self.pools.items()}

    def end_round(self, executions: Mapping[str, Iterable[RewardExecution]]) -> None:
        """A round is over: each pool learns from its executions, of which it may have none."""
        for name, pool in self.pools.items():
            pool.end_round(executions.get(name, ()))

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs, as JSON-ready data: the first pool's state, and those of the others."""
        first, *others = [pool.state() for pool in self.pools.values()] or [Timeouts(TimeoutSpec(1.0)).state()]
        further = dict(zip(list(self.pools)[1:], others, strict=True))
        return {**first, "further": further} if further else first

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state()`. A pool that it does not know begins without anchors."""
        further = state.get("further", {})
        for number, (name, pool) in enumerate(self.pools.items()):
            if number == 0:
                pool.restore({key: state[key] for key in ("anchors", "counts")})
            elif name in further:
                pool.restore(further[name])
