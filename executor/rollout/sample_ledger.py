"""Where each sample of a round decodes: which engine, under which request id, with which seed.

Invariants:
- a sample decodes on at most one engine at a time, and keeps its tokens where it moves to another, be it that it waits
  for that one;
- each attempt has a request id of its own, and the id of an attempt that ended, was aborted or was lost is unknown
  here, so that late messages about it vanish;
- a sample whose two weight versions are not the round's never reaches the machine: the run stops.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ...plans.yaml.errors import RunFailed
from ...rounds.balance import Balancer, PrefixSharing
from ...rounds.machines.events import Issue, SampleKey
from ...rounds.seeds import RoundSeeds, SeedLedger
from ..engines.messages import EngineEvent, Request
from .prompts import PromptText
from .round_samples import Progress, RolloutSample


class SampleLedger:
    """The samples of one round.

    Args:
        engines: names of the round's engines; elsewhere an engine is its index here.
        prompts: by id.
        tag: makes request ids unique over the engines' lives.
        seeds: of the samples; without them engines draw from generators of their own.
        sharing: keeps a prompt's samples on one engine; without it they are spread.
    """

    def __init__(
        self,
        engines: Sequence[str],
        prompts: Mapping[str, PromptText],
        tag: str,
        seeds: RoundSeeds | None,
        sharing: PrefixSharing | None,
        *,
        temperature: float,
        ignore_eos: bool,
    ) -> None:
        self.samples: dict[SampleKey, RolloutSample] = {}
        self.progress = Progress()
        self.last_decode_s = 0.0
        self._engines = list(engines)
        self._prompts = prompts
        self._tag = tag
        self._seeds = None if seeds is None else SeedLedger(seeds)
        self._balancer = Balancer(len(engines), sharing)
        self._temperature, self._ignore_eos = temperature, ignore_eos
        self._decoding: dict[str, SampleKey] = {}
        self._resting: dict[SampleKey, None] = {}  # released by an engine, and on no other yet
        self._issues: dict[SampleKey, Issue] = {}
        self._began = time.perf_counter()

    def now_s(self) -> float:
        """Seconds since the round began."""
        return time.perf_counter() - self._began

    def request_id(self, key: SampleKey) -> str:
        """The id of the sample's latest attempt."""
        return f"{self._tag}/{key.draw}.{key.sample}.{self.samples[key].attempt}"

    def key_of(self, request_id: str) -> SampleKey | None:
        """The sample that decodes under an id; None if no sample does any more."""
        return self._decoding.get(request_id)

    def decoding(self) -> list[SampleKey]:
        """The samples that decode, or wait to go on."""
        return [*self._decoding.values(), *self._resting]

    def has_running(self, engine: int) -> bool:
        """Whether samples decode on an engine."""
        return bool(self._balancer.running(engine))

    def running(self, engines: set[int]) -> dict[int, int]:
        """By engine, of `engines`: how many samples decode on it."""
        return {engine: len(self._balancer.running(engine)) for engine in engines}

    def requests_on(self, engine: int) -> list[str]:
        """Ids of the requests that decode on an engine."""
        return [self.request_id(key) for key in self._balancer.running(engine) if isinstance(key, SampleKey)]

    def issue(self, issue: Issue, alive: set[int]) -> tuple[int, Request]:
        """The engine, among those `alive`, on which a sample is to decode from its start, and the request."""
        self._issues[issue.key] = issue
        prompt = self._prompts[issue.prompt]
        before = self.samples.get(issue.key)
        engine = self._balancer.assign(issue.key, float(issue.max_tokens), alive, issue.prompt, len(prompt.tokens))
        self.samples[issue.key] = RolloutSample(
            key=issue.key,
            prompt=issue.prompt,
            issued_s=self.now_s(),
            prompt_tokens=prompt.tokens,
            engine=self._engines[engine],
            attempt=0 if before is None else before.attempt + 1,
        )
        request_id = self.request_id(issue.key)
        self._decoding[request_id] = issue.key
        self.progress.issued += 1
        self.progress.decoding += 1
        return engine, Request(
            request_id=request_id,
            prompt_tokens=prompt.tokens,
            max_tokens=issue.max_tokens,
            cutoff_tokens=issue.cutoff_tokens,
            temperature=self._temperature,
            ignore_eos=self._ignore_eos,
            seed=None if self._seeds is None else self._seeds.issue(issue),
            prompt_id=issue.prompt,
        )

    def release(self, event: EngineEvent, version: str) -> None:
        """A sample was released: it is on no engine until it is to `go_on`. Raises RunFailed unless weights `version`
        decoded what it has."""
        self._resting[self._decoded(event, version)] = None

    def go_on(self, key: SampleKey, alive: set[int]) -> tuple[int, Request]:
        """The engine, among those `alive`, on which a sample that was released goes on, and the request.

        Its tokens are kept and prefilled again.
        """
        del self._resting[key]
        sample, issue = self.samples[key], self._issues[key]
        sample.attempt += 1
        sample.moves += 1
        kept = len(sample.tokens)
        engine = self._balancer.assign(
            key, float(issue.max_tokens), alive, issue.prompt, len(self._prompts[issue.prompt].tokens)
        )
        sample.engine = self._engines[engine]
        request_id = self.request_id(key)
        self._decoding[request_id] = key
        cutoff = None if issue.cutoff_tokens is None or issue.cutoff_tokens <= kept else issue.cutoff_tokens - kept
        return engine, Request(
            request_id=request_id,
            prompt_tokens=(*sample.prompt_tokens, *sample.tokens),
            max_tokens=issue.max_tokens - kept,
            cutoff_tokens=cutoff,
            temperature=self._temperature,
            ignore_eos=self._ignore_eos,
            seed=None if self._seeds is None else self._seeds.seed(key),
            drawn_tokens=kept,
            prompt_id=issue.prompt,
        )

    def _decoded(self, event: EngineEvent, version: str) -> SampleKey:
        """Add what an engine decoded to its sample, which decodes there no more. Raises RunFailed unless weights
        `version` decoded all of it."""
        for decoded_by in (event.version_start, event.version_end):
            if decoded_by != version:
                raise RunFailed(f"{event.request_id} was decoded by weights {decoded_by!r}, not {version!r}")
        key = self._decoding.pop(event.request_id)
        self._balancer.release(key)
        sample = self.samples[key]
        sample.cached_tokens = sample.cached_tokens if sample.moves else event.cached_tokens
        sample.version_start = sample.version_start or event.version_start
        sample.version_end = event.version_end
        sample.tokens, sample.logprobs = sample.tokens + event.tokens, sample.logprobs + event.logprobs
        return key

    def finish(self, event: EngineEvent, version: str) -> None:
        """Note what a sample decoded. Raises RunFailed unless weights `version` decoded all of it."""
        sample = self.samples[self._decoded(event, version)]
        sample.truncated = event.truncated
        sample.finished_s = self.last_decode_s = self.now_s()
        self.progress.finished += 1
        self.progress.decoding -= 1

    def lose(self, engine: int) -> list[SampleKey]:
        """The samples that decoded on an engine that is gone; they decode no more."""
        lost = [key for key in self._balancer.running(engine) if isinstance(key, SampleKey)]
        self._balancer.forget(engine)
        for key in lost:
            self._balancer.release(key)
            self._decoding.pop(self.request_id(key), None)
            self.progress.decoding -= 1
            if self._seeds is not None:
                self._seeds.lose(key)
        return lost

    def drop(self, key: SampleKey) -> None:
        """A sample that was released decodes nowhere; it is lost."""
        self._decoding.pop(self.request_id(key), None)
        self._balancer.release(key)
        self.progress.decoding -= 1
        if self._seeds is not None:
            self._seeds.lose(key)

    def abort(self, key: SampleKey) -> tuple[int, str] | None:
        """Give up an issued sample; the engine and request to stop if it decodes."""
        sample, request_id = self.samples[key], self.request_id(key)
        sample.aborted = True
        decodes = self._decoding.pop(request_id, None) is not None
        if not decodes and key not in self._resting:
            return None
        self.progress.aborted += 1
        self.progress.decoding -= 1
        if not decodes:
            del self._resting[key]
            return None
        self._balancer.release(key)
        return self._engines.index(sample.engine), request_id
