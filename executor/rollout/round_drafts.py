"""Drafts of a run's rounds: what engines are given before they decode a prompt, what is remembered of each round and in
checkpoints, and samples that are decoded ahead.

Samples ahead decode in a round's tail, as drafts for rounds to come (rounds/drafts/run_ahead.py). They are no samples
of the round: its machine and its ledger know nothing of them, nothing of them is scored or trained, and the round's end
stops those that still decode.
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
from ..drafts.draft_messages import DraftReport, PromptHistory, summed
from ..drafts.history_store import HISTORY, HistoryStore, read_history
from ..engines.engine_handle import EngineHandle
from ..engines.fleet import Fleet
from ..engines.messages import Request
from ..processes.actors import UnawaitedCalls
from ..processes.faults import ActorFailed
from .prompts import PromptText
from .round_samples import RolloutSample


class SamplesAhead:
    """The samples ahead of one round.

    Args:
        rule: decides.
        prompts: by id.
        tag: makes request ids unique over the engines' lives.
        most_tokens: of a response.
    """

    def __init__(
        self, rule: RunAhead, prompts: Mapping[str, PromptText], tag: str, most_tokens: int, temperature: float
    ) -> None:
        self._rule, self._prompts, self._tag = rule, prompts, tag
        self._most_tokens, self._temperature = most_tokens, temperature
        self._decoding: dict[str, int] = {}
        self.prompt_of: dict[str, str] = {}
        """By id of a request: its prompt."""

    def fill(self, running: Mapping[int, int], finished: int) -> list[tuple[int, Request]]:
        """By engine, samples of the round that decode on it, and whether any has `finished`; returns what is to begin,
        each with its engine."""
        if finished:
            self._rule.sample_finished()
        begun = []
        for engine, prompt in self._rule.fill(running):
            name = f"{self._tag}/ahead.{len(self.prompt_of)}"
            self.prompt_of[name], self._decoding[name] = prompt, engine
            tokens = self._prompts[prompt].tokens
            begun.append(
                (engine, Request(name, tokens, self._most_tokens, temperature=self._temperature, prompt_id=prompt))
            )
        return begun

    def heard(self, request_id: str) -> None:
        """A request has ended; ids that are none of these are ignored."""
        engine = self._decoding.pop(request_id, None)
        if engine is not None:
            self._rule.ended(engine)

    def lose(self, engine: int) -> None:
        """An engine is gone, and what it decoded ahead with it."""
        for name in [name for name, place in self._decoding.items() if place == engine]:
            self.heard(name)

    def stop(self) -> dict[int, list[str]]:
        """The requests to abort at the round's end, by engine."""
        aborts: dict[int, list[str]] = {}
        for name, engine in self._decoding.items():
            aborts.setdefault(engine, []).append(name)
        self._decoding.clear()
        return aborts


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


UPCOMING = 4096
"""Prompts of rounds to come that may be decoded ahead: more than any tail has places for."""


class RunDrafts:
    """Drafts of the rounds of one run.

    Args:
        planned: of each kind of round; None: it has none.
        fleet: the engines, which may draft in rounds of other runs, too.
        schedule: knows which epoch has issued a prompt.

    `store` is what is remembered; None: nothing, since none of the run's rounds drafts.
    """

    def __init__(self, planned: Iterable[RoundDrafts | None], fleet: Fleet, schedule: Schedule) -> None:
        self.store = HistoryStore() if any(planned) else None
        self._fleet, self._schedule = fleet, schedule

    def next_round(self, planned: RoundDrafts | None) -> DraftedRound | None:
        """The drafts of the next round; None: its engines draft in no run."""
        if not self._fleet.draft_tokens:
            return None
        schedule = self._schedule
        return DraftedRound(
            planned, self.store, schedule.epoch_of, schedule.round_number, schedule.upcoming(UPCOMING)
        )  # fmt: skip

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
