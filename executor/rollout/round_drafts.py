"""Drafts of a run's rounds: what engines are given before they decode a prompt, what is remembered of each round and in
checkpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...plans.schema.levers import RoundDrafts
from ...plans.yaml.errors import InputError
from ...rounds.drafts.run_ahead import RunAhead
from ...rounds.schedule import Schedule
from ..drafts.draft_messages import NO_TOKENS, DraftReport, PromptHistory, Tokens, summed
from ..drafts.history_store import HISTORY, HistoryStore, read_history
from ..engines.engine_handle import EngineHandle
from ..engines.fleet import Fleet
from ..engines.messages import Request
from ..memory.device_turns import TurnsOf
from ..processes.actors import UnawaitedCalls
from ..processes.faults import ActorFailed
from .round_lever import OpenRound, RoundLever, SamplesAhead


class DraftedRound(RoundLever):
    """The drafts of one round.

    Args:
        drafts: as the plan has them for this kind of round; None: none.
        store: what the run remembers; None: nothing, since none of its rounds drafts.
        epoch_of: the epoch that issued a prompt of the round.
        number: of the round.
        upcoming: prompts of rounds to come, the next first, each with its epoch.
        kind: of the round.
    """

    def __init__(
        self,
        drafts: RoundDrafts | None,
        store: HistoryStore | None,
        epoch_of: Callable[[str], int],
        number: int,
        upcoming: Sequence[tuple[str, int]] = (),
        kind: str = "short",
    ) -> None:
        self._drafts, self._store, self._issued_in, self._number = drafts, store, epoch_of, number
        self._upcoming, self._kind = dict(upcoming), kind
        self._report: DraftReport | None = None
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

    def begin(self, opened: OpenRound) -> None:
        """Engines are prepared; samples are decoded ahead unless engines stop in mid-round: nobody would move them."""
        opened.prepare = self.prepare
        if opened.change is None and self._drafts is not None and self._drafts.run_ahead:
            known = self._store or HistoryStore()
            new = [prompt for prompt, epoch in self._upcoming.items() if known.of(prompt, epoch) is None]
            rule = RunAhead(new, self._drafts.run_ahead)
            opened.ahead = self._ahead = SamplesAhead(rule, opened.ledger, opened.machine.max_tokens)

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

    async def end(self, opened: OpenRound) -> None:
        """Remember what the round wrote, and what drafts gave; an engine that is gone tells nothing."""
        if self._store is None:
            return
        ledger, engines = opened.ledger, opened.engines
        samples = [(ledger.request_id(key), sample) for key, sample in ledger.samples.items()]
        ahead = {} if self._ahead is None else self._ahead.prompt_of
        unfinished = [*(name for name, sample in samples if sample.finished_s is None), *ahead]
        asked = [engine for engine in engines if engine.alive and self._lives.get(engine.name) == engine.lives]
        report = summed(filter(None, await asyncio.gather(*(_report(engine, unfinished) for engine in asked))))
        written: dict[str, list[tuple[Tokens, float | None]]] = {}
        for name, sample in samples:
            finished = sample.finished_s is not None
            tokens = sample.response_tokens if finished else report.unfinished.get(name, sample.response_tokens)
            written.setdefault(sample.prompt_id, []).append((tokens, sample.reward if finished else None))
        for prompt, responses in sorted(written.items()):
            self._store.record(prompt, self._epoch_of(prompt), self._number, responses)
        for name, prompt in ahead.items():
            tokens = report.unfinished.get(name, NO_TOKENS)
            self.ahead_tokens += len(tokens)
            self._store.record(prompt, self._upcoming[prompt], self._number, [(tokens, None)], ahead=True)
        self._report = report if self._drafts is not None else None

    def report(self, run: TurnsOf, moved: int) -> None:
        """What drafts gave, in a round with drafts."""
        if self._report is not None:
            run.event("drafts", step=run.step_number + 1, kind=self._kind, **self.fields(self._report))

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


UPCOMING = 4096
"""Prompts of rounds to come that may be decoded ahead: more than any tail has places for."""


class RunDrafts:
    """Drafts of the rounds of one run.

    Args:
        planned: of each kind of round; None: it has none.
        fleet: the engines, which may draft in rounds of other runs, too.
        schedule: knows which epoch has issued a prompt.
        store: what rounds by an earlier plan of the run remembered; None: nothing.

    `store` is what is remembered; None: nothing, since none of the run's rounds drafts.
    """

    def __init__(
        self, planned: Iterable[RoundDrafts | None], fleet: Fleet, schedule: Schedule, store: HistoryStore | None = None
    ) -> None:
        self.store = (store or HistoryStore()) if any(planned) else None
        self._fleet, self._schedule = fleet, schedule

    def next_round(self, planned: RoundDrafts | None, kind: str) -> DraftedRound | None:
        """The drafts of the next round; None: its engines draft in no run."""
        if not self._fleet.draft_tokens:
            return None
        schedule = self._schedule
        return DraftedRound(
            planned, self.store, schedule.epoch_of, schedule.round_number, schedule.upcoming(UPCOMING), kind
        )

    def files(self) -> dict[str, bytes]:
        """By name, files for a checkpoint."""
        return {} if self.store is None else {HISTORY: self.store.packed()}

    def load(self, checkpoint: Path, prompts: Iterable[str]) -> str | None:
        """Continue with what a checkpoint of this or of another run remembers; returns why it is lost, if it is."""
        if self.store is None:
            return None
        data, fault = read_history(checkpoint / HISTORY)
        return self.store.restore(data, prompts) if data is not None else fault

    def inherit(self, checkpoint: Path, prompts: Iterable[str]) -> None:
        """Begin with what a checkpoint of another run remembers. Raises InputError if that is nothing of `prompts`."""
        fault = self.load(checkpoint, prompts)
        if fault is not None:
            raise InputError(f"cannot be read: {fault}", str(checkpoint / HISTORY))
        if self.store is None:
            return
        self.store.count_as_earlier()
        if not len(self.store):
            raise InputError(
                "remembers none of this job's prompts; give a run of the same data", str(checkpoint / HISTORY)
            )
