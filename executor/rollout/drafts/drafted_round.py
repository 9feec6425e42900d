"""Drafts of one round: what its engines are given before they decode a prompt, and what is remembered of the round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ....plans.schema.levers import RoundDrafts
from ....rounds.drafts.run_ahead import RunAhead
from ...actors import UnawaitedCalls
from ...drafts.draft_messages import DraftReport, PromptHistory, summed
from ...drafts.history_store import HistoryStore
from ...engines.engine_handle import EngineHandle
from ...engines.messages import Request
from ...faults import ActorFailed
from ..prompts import PromptText
from ..round_samples import RolloutSample
from .samples_ahead import SamplesAhead


class DraftedRound:
    """The drafts of one round.

    Args:
        drafts: as the plan has them for this kind of round; None: none.
        store: what the run remembers; None: nothing, since none of its rounds drafts.
        epoch_of: the epoch that issued a prompt of the round.
        number: of the round.
        upcoming: prompts of rounds to come, the next first, each with its epoch.
    """

    def __init__(
        self,
        drafts: RoundDrafts | None,
        store: HistoryStore | None,
        epoch_of: Callable[[str], int],
        number: int,
        upcoming: Sequence[tuple[str, int]] = (),
    ) -> None:
        self._drafts, self._store, self._issued_in, self._number = drafts, store, epoch_of, number
        self._upcoming = dict(upcoming)
        self._ahead: SamplesAhead | None = None
        self._lives: dict[str, int] = {}
        self._given: dict[str, set[str]] = {}
        self.ahead_tokens = 0
        """Tokens that were decoded ahead."""

    def prepare(self, engine: EngineHandle, requests: Iterable[Request], calls: UnawaitedCalls, failed: Any) -> None:
        """Call an engine with all that it must know of the prompts of `requests` before it decodes these."""
        if self._lives.get(engine.name) != engine.lives:  # it is new to the round, or new in its place
            self._lives[engine.name], self._given[engine.name] = engine.lives, set()
            calls.begin(engine.begin_drafts(*self._settings()), failed)
        if self._drafts is None:
            return
        given = self._given[engine.name]
        new = sorted({request.prompt_id for request in requests} - given)
        given.update(new)
        histories = [history for prompt in new if (history := self._history(prompt)) is not None]
        if histories:
            calls.begin(engine.remember(histories), failed)

    def samples_ahead(
        self, prompts: Mapping[str, PromptText], tag: str, most_tokens: int, temperature: float
    ) -> SamplesAhead | None:
        """What is to be decoded ahead in the round, as SamplesAhead takes it; None: nothing."""
        if self._drafts is None or not self._drafts.run_ahead:
            return None
        known = self._store or HistoryStore()
        new = [prompt for prompt, epoch in self._upcoming.items() if known.of(prompt, epoch) is None]
        self._ahead = SamplesAhead(RunAhead(new, self._drafts.run_ahead), prompts, tag, most_tokens, temperature)
        return self._ahead

    def _epoch_of(self, prompt: str) -> int:
        """The epoch of a prompt of the round, or of one that is decoded ahead."""
        ahead = self._upcoming.get(prompt)
        return self._issued_in(prompt) if ahead is None else ahead

    def _settings(self) -> tuple[int, int]:
        """Tokens that are drafted, and up to how many samples; of a round without drafts whose responses are to be
        remembered the engines note what they write."""
        if self._drafts is not None:
            return self._drafts.tokens, self._drafts.up_to_sequences
        return (0, 0) if self._store is None else (1, 0)

    def _history(self, prompt: str) -> PromptHistory | None:
        return None if self._store is None else self._store.of(prompt, self._epoch_of(prompt))

    async def end(
        self, engines: Sequence[EngineHandle], samples: Iterable[tuple[str, RolloutSample]]
    ) -> DraftReport | None:
        """Remember what the round wrote; returns what drafts gave, None of a round without.

        `samples`: by id of their latest request. An engine that is gone tells nothing.
        """
        if self._store is None:
            return None
        samples = list(samples)
        ahead = {} if self._ahead is None else self._ahead.prompt_of
        unfinished = [*(name for name, sample in samples if sample.finished_s is None), *ahead]
        asked = [engine for engine in engines if engine.alive and self._lives.get(engine.name) == engine.lives]
        report = summed(filter(None, await asyncio.gather(*(_report(engine, unfinished) for engine in asked))))
        texts: dict[str, Sequence[int]] = {name: tokens.tolist() for name, tokens in report.unfinished.items()}
        written: dict[str, list[tuple[Sequence[int], float | None]]] = {}
        for name, sample in samples:
            finished = sample.finished_s is not None
            tokens = sample.tokens if finished else texts.get(name, sample.tokens)
            written.setdefault(sample.prompt, []).append((tokens, sample.reward if finished else None))
        for prompt, responses in sorted(written.items()):
            self._store.record(prompt, self._epoch_of(prompt), self._number, responses)
        for name, prompt in ahead.items():
            tokens = texts.get(name, ())
            self.ahead_tokens += len(tokens)
            self._store.record(prompt, self._upcoming[prompt], self._number, [(tokens, None)], ahead=True)
        return report if self._drafts is not None else None

    def fields(self, report: DraftReport) -> Mapping[str, Any]:
        """Fields of the trace's event `drafts`."""
        epochs = [self._epoch_of(prompt) for given in self._given.values() for prompt in given - {*self._upcoming}]
        return {
            "epoch": 1 + min(epochs, default=0),
            "steps": report.steps,
            "sequence_steps": report.sequence_steps,
            "drafted_at": report.drafted_at,
            "accepted_at": report.accepted_at,
            "by_source": dict(sorted(report.by_source.items())),
            "batches": {
                str(size): {"plain_s": round(one.plain_s, 6), "drafted_s": round(one.drafted_s, 6),
                            "emitted": round(one.emitted, 4), "verified": one.verified,
                            "saved_s": round(one.saved_s, 4), "sequence_steps": one.sequence_steps,
                            "drafted_steps": one.drafted_steps, "drafted": one.drafted, "accepted": one.accepted}
                for size, one in sorted(report.batches.items())
            },
            "ahead": [0 if self._ahead is None else len(self._ahead.prompt_of), self.ahead_tokens],
            "index_bytes": report.index_bytes,
            "history_bytes": 0 if self._store is None else self._store.nbytes,
        }  # fmt: skip


async def _report(engine: EngineHandle, unfinished: list[str]) -> DraftReport | None:
    try:
        return await engine.take_drafts(unfinished)
    except ActorFailed:
        return None
