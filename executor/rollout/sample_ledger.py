"""Where each sample of a round decodes: which engine, under which request id, with which seed.

Invariants:
- a sample waits, or decodes on one engine, until it ended, was aborted or was lost; where it moves to another engine it
  keeps its tokens, be it that it waits for that one;
- each attempt has a request id of its own, and the id of an attempt that ended, was aborted or was lost is unknown
  here, so that late messages about it vanish;
- a sample whose two weight versions are not the round's never reaches the machine: the run stops.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from ...plans.yaml.errors import RunFailed
from ...rounds.balancing.placement import SamplePlacement, ToPlace
from ...rounds.machines.events import Issue, SampleKey
from ...rounds.seeds import RoundSeeds, SeedLedger
from ..engines.messages import NO_RULES, EngineEvent, Request, SamplingRules
from ..trainer.train_samples import Ints
from .prompts import PromptText
from .round_samples import Progress, RolloutSample


class SampleLedger:
    """The samples of one round.

    Args:
        engines: names of the round's engines; elsewhere an engine is its index here.
        prompts: by id.
        tag: makes request ids unique over the engines' lives.
        seeds: of the samples; without them engines draw from generators of their own.
        placement: decides which samples start, and on which engine.
    """

    def __init__(
        self,
        engines: Sequence[str],
        prompts: Mapping[str, PromptText],
        tag: str,
        seeds: RoundSeeds | None,
        placement: SamplePlacement,
        *,
        temperature: float,
        ignore_eos: bool,
        rules: SamplingRules = NO_RULES,
    ) -> None:
        self.samples: dict[SampleKey, RolloutSample] = {}
        self.progress = Progress()
        self.last_decode_s = 0.0
        self._engines = list(engines)
        self.prompts, self.tag, self.temperature, self.rules = prompts, tag, temperature, rules
        self._seeds = None if seeds is None else SeedLedger(seeds)
        self._placement = placement
        self._ignore_eos = ignore_eos
        self._decoding: dict[str, SampleKey] = {}
        self._waiting: dict[SampleKey, None] = {}  # not on an engine yet, or released by one and on no other
        self._issues: dict[SampleKey, Issue] = {}
        self._asked: dict[str, Ints] = {}  # tokens of prompts, one array for all samples of one
        self._began = time.perf_counter()
        self._stands_at: float | None = None

    def now_s(self) -> float:
        """Seconds since the round began, without those in which it stood (`stand`)."""
        return (time.perf_counter() if self._stands_at is None else self._stands_at) - self._began

    def stand(self) -> None:
        """The round is paused, and nothing of it decodes: its seconds stand until it goes on."""
        if self._stands_at is None:
            self._stands_at = time.perf_counter()

    def go_on(self) -> float:
        """The round goes on; returns the seconds for which it stood, 0 if it did not."""
        if self._stands_at is None:
            return 0.0
        stood_s, self._stands_at = time.perf_counter() - self._stands_at, None
        self._began += stood_s
        return stood_s

    def request_id(self, key: SampleKey) -> str:
        """The id of the sample's latest attempt."""
        return f"{self.tag}/{key.draw}.{key.sample}.{self.samples[key].attempt}"

    def key_of(self, request_id: str) -> SampleKey | None:
        """The sample that decodes under an id; None if no sample does any more."""
        return self._decoding.get(request_id)

    def decoding(self) -> list[SampleKey]:
        """The samples that decode, or wait to."""
        return [*self._decoding.values(), *self._waiting]

    def has_running(self, engine: int) -> bool:
        """Whether samples decode on an engine."""
        return bool(self._placement.running(engine))

    def running(self, engines: set[int]) -> dict[int, int]:
        """By engine, of `engines`: how many samples decode on it."""
        return {engine: len(self._placement.running(engine)) for engine in engines}

    def running_tokens(self, held: Mapping[str, int]) -> list[int]:
        """Of tokens that requests hold, by id: those of requests that have not ended meanwhile."""
        return [tokens for name, tokens in held.items() if name in self._decoding]

    def requests_on(self, engine: int) -> list[str]:
        """Ids of the requests that decode on an engine."""
        return [self.request_id(key) for key in self._placement.running(engine)]

    def issue(self, issue: Issue) -> None:
        """A sample waits for an engine on which it is to decode from its start."""
        key = issue.key
        self._issues[key] = issue
        if issue.prompt not in self._asked:
            self._asked[issue.prompt] = np.array(self.prompts[issue.prompt].tokens, np.int32)
        before = self.samples.get(key)
        self.samples[key] = RolloutSample(
            prompt_id=issue.prompt,
            sample=key.sample,
            prompt_tokens=self._asked[issue.prompt],
            draw=key.draw,
            issued_s=self.now_s(),
            attempt=0 if before is None else before.attempt + 1,
        )
        if self._seeds is not None:
            self._seeds.issue(issue)
        self._wait(key)
        self.progress.issued += 1
        self.progress.decoding += 1

    def _wait(self, key: SampleKey) -> None:
        sample, issue = self.samples[key], self._issues[key]
        self._waiting[key] = None
        self._placement.add(
            ToPlace(key, issue.prompt, len(sample.prompt_tokens), issue.max_tokens, kept=len(sample.response_tokens))
        )

    def start(self, alive: set[int]) -> list[tuple[int, Request]]:
        """The samples that start or go on now: the engine of each, among those `alive`, and the request.

        The tokens of one that was released are kept and prefilled again.
        """
        return [(engine, self._request(key, engine)) for key, engine in self._placement.place(alive)]

    def _request(self, key: SampleKey, engine: int) -> Request:
        del self._waiting[key]
        sample, issue = self.samples[key], self._issues[key]
        if sample.engine:
            sample.attempt += 1
            sample.moves += 1
        kept = len(sample.response_tokens)
        sample.engine = self._engines[engine]
        request_id = self.request_id(key)
        self._decoding[request_id] = key
        cutoff = None if issue.cutoff_tokens is None or issue.cutoff_tokens <= kept else issue.cutoff_tokens - kept
        return Request(
            request_id=request_id,
            prompt_tokens=(*self.prompts[issue.prompt].tokens, *sample.response_tokens.tolist()),
            max_tokens=issue.max_tokens - kept,
            cutoff_tokens=cutoff,
            temperature=self.temperature,
            ignore_eos=self._ignore_eos,
            seed=None if self._seeds is None else self._seeds.seed(key),
            drawn_tokens=kept,
            prompt_id=issue.prompt,
            rules=self.rules,
        )

    def release(self, event: EngineEvent, version: str) -> None:
        """A sample was released: it waits until it goes on. Raises RunFailed unless weights `version` decoded what it
        has."""
        self._wait(self._decoded(event, version))

    def _decoded(self, event: EngineEvent, version: str) -> SampleKey:
        """Add what an engine decoded to its sample, which decodes there no more. Raises RunFailed unless weights
        `version` decoded all of it."""
        for decoded_by in (event.version_start, event.version_end):
            if decoded_by != version:
                raise RunFailed(f"{event.request_id} was decoded by weights {decoded_by!r}, not {version!r}")
        key = self._decoding.pop(event.request_id)
        sample = self.samples[key]
        sample.cached_tokens = sample.cached_tokens if sample.moves else event.cached_tokens
        sample.version_start = sample.version_start or event.version_start
        sample.version_end = event.version_end
        sample.response_tokens = np.append(sample.response_tokens, np.array(event.tokens, np.int32))
        sample.logprobs = np.append(sample.logprobs, np.array(event.logprobs, np.float32))
        return key

    def finish(self, event: EngineEvent, version: str) -> None:
        """Note what a sample decoded. Raises RunFailed unless weights `version` decoded all of it."""
        key = self._decoded(event, version)
        sample = self.samples[key]
        self._placement.ended(key, len(sample.response_tokens))
        sample.truncated = event.truncated
        sample.finished_s = self.last_decode_s = self.now_s()
        self.progress.finished += 1
        self.progress.decoding -= 1

    def lose(self, engine: int) -> list[SampleKey]:
        """The samples that decoded on an engine that is gone; they decode no more."""
        lost = self._placement.running(engine)
        self._placement.forget(engine)
        for key in lost:
            self._placement.remove(key)
            self._decoding.pop(self.request_id(key), None)
            self.progress.decoding -= 1
            if self._seeds is not None:
                self._seeds.lose(key)
        return lost

    def drop(self, key: SampleKey) -> None:
        """A sample that was released decodes nowhere; it is lost."""
        self._decoding.pop(self.request_id(key), None)
        self._placement.remove(key)
        self.progress.decoding -= 1
        if self._seeds is not None:
            self._seeds.lose(key)

    def abort(self, key: SampleKey) -> tuple[int, str] | None:
        """Give up an issued sample; the engine and request to stop if it decodes."""
        sample, request_id = self.samples[key], self.request_id(key)
        sample.aborted = True
        decodes = self._decoding.pop(request_id, None) is not None
        if not decodes and key not in self._waiting:
            return None
        self.progress.aborted += 1
        self.progress.decoding -= 1
        self._placement.remove(key)
        if not decodes:
            del self._waiting[key]
            return None
        return self._engines.index(sample.engine), request_id
