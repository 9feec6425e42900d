"""Which prompts a round gets, which kind of round comes next, and what is deferred: the state between rounds.

Invariants:
- over an epoch each prompt is trained or filtered exactly once, deferred ones included (those that the infrastructure
  failed on are reported, not repeated); an epoch ends with the deferred queue empty;
- the deferred queue is first in, first out; a long round comes when it holds P prompts, when its oldest prompt has
  waited `MAX_WAIT_ROUNDS`, or when the epoch has no fresh prompt left, so no prompt waits without bound;
- the order of an epoch depends on (seed, epoch) only, and in `predict` on lengths of earlier epochs; `state()` holds
  all that a resumed run needs.

In `predict` the queue is filled from the feed and not from rounds: what the history expects to be long waits there for
a long round, nothing else does, and no round cuts or defers anything. An epoch without any history (the first) has
short rounds only, which are plain synchronous ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .exact import ExactLongRound, ExactShortRound
from .outcome import Fate, Outcome
from .predict import LengthHistory
from .race import RaceRound
from .round import Round

Mode = Literal["sync", "race", "defer", "exact", "predict"]

# A queue that fills slowly must not hold a prompt for ever: after this many rounds a smaller long round is run. With
# the usual one long round in 3 to 20 it never triggers; it bounds the staleness of what a prompt's history says.
MAX_WAIT_ROUNDS = 64


@dataclass(frozen=True, slots=True)
class RoundSpec:
    """How rounds of a job are issued; `short_*` include over-issue.

    The cutoff and copies are for `exact` only. `long_share` is for `predict` only: the share of the prompts, those with
    the longest history, that get long rounds.
    """

    mode: Mode
    prompts_per_step: int
    samples_per_prompt: int
    max_tokens: int
    short_prompts: int
    short_samples: int
    cutoff_tokens: int | None = None
    copies: int = 1
    dynamic_sampling: bool = False
    long_share: float = 0.0

    def __post_init__(self) -> None:
        if self.short_prompts < self.prompts_per_step or self.short_samples < self.samples_per_prompt:
            raise ValueError("a round cannot issue fewer prompts or samples than it trains")
        if self.mode == "exact" and self.cutoff_tokens is None:
            raise ValueError("mode exact needs a cutoff")
        if self.mode in ("sync", "defer", "exact", "predict") and self.short_samples != self.samples_per_prompt:
            raise ValueError(f"mode {self.mode} issues exactly n samples per prompt")
        if self.mode in ("sync", "predict") and self.short_prompts != self.prompts_per_step:
            raise ValueError(f"mode {self.mode} issues exactly P prompts")
        if self.mode == "predict" and not 0.0 < self.long_share < 1.0:
            raise ValueError("mode predict needs a share of prompts, between 0 and 1, that get long rounds")


class Schedule:
    """Hands out rounds one after another: `begin()`, drive the round, `end(round)`; repeat."""

    def __init__(self, spec: RoundSpec, prompts: Sequence[str], seed: int) -> None:
        if len(set(prompts)) != len(prompts) or not prompts:
            raise ValueError("prompt ids must be unique and there must be at least one")
        self.spec = spec
        self.epoch = 0
        self.round_number = 0
        self._prompts = sorted(prompts)
        self._seed = seed
        self._fresh: list[str] = []  # next prompt last, so that taking is a pop
        self._deferred: list[tuple[str, int]] = []  # (prompt, round in which it was deferred)
        self._settled: set[str] = set()  # trained, filtered or failed in this epoch
        self._history = LengthHistory()  # used in `predict` only
        self._expected_long: frozenset[str] = frozenset()  # by the history as it was when the epoch began
        self._shuffle()

    def _shuffle(self) -> None:
        self._fresh = list(self._prompts)
        random.Random(f"{self._seed}:{self.epoch}").shuffle(self._fresh)
        self._settled = set()
        if self.spec.mode == "predict":
            # Never all of them, so an epoch can begin with a short round, as in every mode.
            self._expected_long = self._history.expected_long(self._prompts, self.spec.long_share)

    def _take(self, count: int) -> list[str]:
        """Up to `count` fresh prompts; those expected to be long go to the queue instead."""
        taken: list[str] = []
        while self._fresh and len(taken) < count:
            prompt = self._fresh.pop()
            if prompt in self._expected_long:
                self._deferred.append((prompt, self.round_number))
            else:
                taken.append(prompt)
        return taken

    @property
    def deferred(self) -> tuple[str, ...]:
        """Prompts that wait for a long round, oldest first."""
        return tuple(prompt for prompt, _ in self._deferred)

    def next_kind(self) -> Literal["short", "long"]:
        """The kind of the next round."""
        if not self._deferred:
            return "short"
        waited = self.round_number - self._deferred[0][1]
        full = len(self._deferred) >= self.spec.prompts_per_step
        return "long" if full or not self._fresh or waited >= MAX_WAIT_ROUNDS else "short"

    def begin(self) -> Round:
        """Make the next round; its prompts leave the feed or the queue until `end` puts back what was not settled."""
        spec = self.spec
        target, size, cap = spec.prompts_per_step, spec.samples_per_prompt, spec.max_tokens
        dynamic = spec.dynamic_sampling
        if self.next_kind() == "long":
            prompts = [prompt for prompt, _ in self._deferred[:target]]
            del self._deferred[:target]
            if spec.mode == "exact":
                assert spec.cutoff_tokens is not None
                return ExactLongRound(prompts, size, spec.cutoff_tokens, spec.copies, cap, dynamic_sampling=dynamic)
            return RaceRound(prompts, target, size, size, cap, dynamic_sampling=dynamic, kind="long")
        prompts = self._take(spec.short_prompts)
        if spec.mode == "exact":
            assert spec.cutoff_tokens is not None
            return ExactShortRound(
                prompts, target, size, spec.cutoff_tokens, cap, dynamic_sampling=dynamic, take=self._take
            )
        return RaceRound(
            prompts, target, size, spec.short_samples, cap, dynamic_sampling=dynamic, take=self._take, kind="short"
        )

    def end(self, finished: Round) -> Outcome:
        """Close a round: defer, put back, and begin the next epoch if this one is used up.

        Raises AssertionError if a conservation law is broken.
        """
        outcome = finished.outcome()
        settled = [p for fate in (Fate.TRAINED, Fate.FILTERED, Fate.FAILED) for p in outcome.prompts[fate]]
        again = self._settled.intersection(settled)
        assert not again, f"trained twice in one epoch: {sorted(again)[:5]}"
        self._settled.update(settled)
        self._deferred.extend((prompt, self.round_number) for prompt in outcome.prompts[Fate.DEFERRED])
        # Returned prompts keep their place at the head of the feed.
        self._fresh.extend(reversed(outcome.prompts[Fate.RETURNED]))
        self.round_number += 1
        if self.spec.mode == "predict":
            self._learn(finished)
            # Sees to it that a short round, if one comes next, finds prompts for it at the head of the feed.
            self._fresh.extend(reversed(self._take(self.spec.prompts_per_step)))
        self.check_invariants()
        if not self._fresh and not self._deferred:
            self.epoch += 1
            self._shuffle()
        return outcome

    def _learn(self, finished: Round) -> None:
        """Record the groups that ran to their end. The next epoch uses it; this one is sorted already."""
        for draw in finished.draws:
            if draw.fate in (Fate.TRAINED, Fate.FILTERED):
                self._history.record(draw.prompt, [draw.tokens[s] for s in finished.trained_samples(draw)])

    def check_invariants(self) -> None:
        """Assert, between rounds, that each prompt of the epoch is in exactly one place."""
        places = [*self._fresh, *self.deferred, *sorted(self._settled)]
        assert len(places) == len(self._prompts) and set(places) == set(self._prompts), (
            "between rounds each prompt is fresh, deferred or settled, exactly once"
        )

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs, as JSON-ready data. Call it between rounds."""
        state: dict[str, Any] = {
            "epoch": self.epoch,
            "round_number": self.round_number,
            "fresh": list(self._fresh),
            "deferred": [[prompt, since] for prompt, since in self._deferred],
            "settled": sorted(self._settled),
        }
        if self.spec.mode == "predict":
            state |= {"history": self._history.state(), "expected_long": sorted(self._expected_long)}
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state()`, of any mode. Raises ValueError if it belongs to another set of prompts."""
        known = set(self._prompts)
        places = [*state["fresh"], *(p for p, _ in state["deferred"]), *state["settled"]]
        if set(places) != known or len(places) != len(known):
            raise ValueError("the checkpoint belongs to another data set: its prompts are not the job's")
        self.epoch = int(state["epoch"])
        self.round_number = int(state["round_number"])
        self._fresh = list(state["fresh"])
        self._deferred = [(str(prompt), int(since)) for prompt, since in state["deferred"]]
        self._settled = set(state["settled"])
        # A run that was planned in another mode until now has no history: its epoch goes on as one without.
        self._history.restore(state.get("history", {}))
        self._expected_long = frozenset(state.get("expected_long", ()))
