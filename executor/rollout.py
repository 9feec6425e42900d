"""Runs one round for real: turns the machine's actions into engine and reward calls, and what happens into events.

Every decision (whom to issue, when to stop, whom to abort, what is deferred) is the machine's; this file only carries
messages. Invariants:
- a sample decodes on at most one engine at a time; a message about an earlier attempt is dropped;
- a sample whose two weight versions are not the round's never reaches the machine: the run stops (invariant 1);
- when `run` returns, nothing of the round decodes and no reward of it is pending;
- a wait without any event for `stall_s` names the silent engines and workers; silent engines are replaced once per
  stall, and their samples are drawn again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from ..plans.errors import RunFailed
from ..rounds.balance import Balancer, PrefixSharing
from ..rounds.events import Abort, Action, Event, Failed, Finished, Issue, Lost, ReachedCutoff, SampleKey, Score, Scored
from ..rounds.outcome import Fate, Outcome
from ..rounds.round import Round
from ..rounds.seeds import RoundSeeds, SeedLedger
from ..rounds.timeouts import Execution
from .engine import EngineEvent, Request
from .fleet import EngineDied, EngineHandle, Fleet, Layout
from .samples import TrainSample

# So many samples that cannot be scored, and none that can, are the reward function's fault and not theirs.
HOPELESS_FAILURES = 16


@dataclass(slots=True)
class Generated:
    """One sample of a round, as it was generated. Lengths in tokens, times in seconds since the round began."""

    key: SampleKey
    prompt: str
    issued_s: float
    prompt_tokens: tuple[int, ...] = ()
    cached_tokens: int = 0  # of the prompt, found in the engine's cache
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    truncated: bool = False
    version_start: str = ""
    version_end: str = ""
    finished_s: float | None = None
    reward: float | None = None
    reward_s: float = 0.0
    reward_deadline_s: float | None = None
    reward_outcome: str = ""
    engine: str = ""
    attempt: int = 0
    aborted: bool = False


def train_groups(outcome: Outcome, samples: Mapping[SampleKey, Generated]) -> list[list[TrainSample]]:
    """The groups that a round trains, sorted as the outcome has them."""
    return [
        [
            TrainSample(
                prompt_id=group.prompt,
                sample=key.sample,
                prompt_tokens=list(samples[key].prompt_tokens),
                response_tokens=samples[key].tokens,
                logprobs=samples[key].logprobs,
                reward=reward,
                # A cut at L* never gets here: only long draws reach the job's cap.
                truncated=samples[key].truncated,
            )
            for key, reward in zip(group.keys, group.rewards, strict=True)
        ]
        for group in outcome.trained
    ]


def executions(round_: Round, samples: Mapping[SampleKey, Generated]) -> list[Execution]:
    """What the rewards of a finished round took, for `Timeouts.end_round`; a reward above 0 is a correct answer."""
    found: list[Execution] = []
    for draw in round_.draws:
        if draw.fate in (Fate.TRAINED, Fate.FILTERED):
            for number in round_.trained_samples(draw):
                sample = samples[SampleKey(draw.number, number)]
                correct = sample.reward is not None and sample.reward > 0
                found.append(
                    Execution(draw.prompt, sample.reward_s, correct, sample.reward_outcome == "policy_timeout")
                )
    return found


@dataclass(slots=True)
class RolloutResult:
    """What a round took: seconds to the last useful token, then to the last useful reward, and every sample."""

    rollout_s: float
    reward_exposed_s: float
    samples: dict[SampleKey, Generated]
    restarts: list[str]


@dataclass(slots=True)
class Progress:
    """For the live view: counts of the round in progress."""

    issued: int = 0
    decoding: int = 0
    finished: int = 0
    scored: int = 0
    aborted: int = 0


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt as the engines (token ids) and the reward function (text, answer) need it."""

    prompt: str
    text: str
    tokens: tuple[int, ...]
    answer: Any


class RoundRunner:
    """Drives rounds of one job on a fleet. Reused for all rounds; `run` is not reentrant."""

    def __init__(
        self,
        fleet: Fleet,
        rewards: Any,
        prompts: dict[str, PromptText],
        decode_text: Callable[[list[int]], str],
        *,
        temperature: float,
        stall_s: float = 120.0,
        ignore_eos: bool = False,
    ) -> None:
        self._fleet = fleet
        self._rewards = rewards
        self._prompts = prompts
        self._decode_text = decode_text
        self._temperature = temperature
        self._stall_s = stall_s
        self._ignore_eos = ignore_eos
        self.progress = Progress()

    async def run(
        self,
        round_: Round,
        layout: Layout,
        version: str,
        weights_path: str,
        tag: str,
        seeds: RoundSeeds | None = None,
        deadline_s: Callable[[str], float] | None = None,
        sharing: PrefixSharing | None = None,
    ) -> RolloutResult:
        """Run `round_` to its end on engines that already hold `version`; `tag` makes request ids unique.

        Without `seeds` the engines draw from generators of their own. `deadline_s` gives the seconds that scoring a
        sample of a prompt may take; without it, the reward workers' own. `sharing` keeps a prompt's samples together;
        without it they are spread.
        Raises RunFailed when an infrastructure fault outlasts its retries or an invariant does not hold.
        """
        engines = self._fleet.engines(layout)
        state = _RoundInProgress(self, round_, engines, version, weights_path, tag, seeds, deadline_s, sharing)
        self._fleet.listen(state.on_engine_events, state.on_death)
        try:
            return await state.drive()
        finally:
            await state.stop()
            self._fleet.listen(lambda engine, events: None, lambda death: None)


class _RoundInProgress:
    def __init__(
        self,
        runner: RoundRunner,
        round_: Round,
        engines: list[EngineHandle],
        version: str,
        weights_path: str,
        tag: str,
        seeds: RoundSeeds | None,
        deadline_s: Callable[[str], float] | None,
        sharing: PrefixSharing | None,
    ) -> None:
        self._r = runner
        self._deadline_s = deadline_s
        self._seeds = None if seeds is None else SeedLedger(seeds)
        self._round = round_
        self._engines = engines
        self._version = version
        self._weights = weights_path
        self._tag = tag
        self._balancer = Balancer(len(engines), sharing)
        self._samples: dict[SampleKey, Generated] = {}
        self._by_request: dict[str, SampleKey] = {}
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._repairs: list[asyncio.Task[None]] = []
        self._waiting: list[Issue] = []  # issues that found no engine alive
        self._restarts: list[str] = []
        self._began = time.perf_counter()
        self._last_decode_s = 0.0
        self._failed = 0  # samples whose reward failed for good
        runner.progress = Progress()

    # -- messages in ---------------------------------------------------------------------------------------------------

    def on_engine_events(self, engine: EngineHandle, events: list[EngineEvent]) -> None:
        self._inbox.put_nowait((engine, events))

    def on_death(self, death: EngineDied) -> None:
        self._inbox.put_nowait(death)

    def _now(self) -> float:
        return time.perf_counter() - self._began

    async def drive(self) -> RolloutResult:
        await self._apply(self._round.start())
        while not self._round.done:
            items = [await self._next_item()]
            while not self._inbox.empty():
                items.append(self._inbox.get_nowait())
            actions: list[Action] = []
            for item in items:
                for event in self._translate(item):
                    actions.extend(self._round.handle(event))
            await self._apply(actions)
        ended = self._now()
        rollout_s = self._last_decode_s or ended
        return RolloutResult(rollout_s, max(ended - rollout_s, 0.0), self._samples, self._restarts)

    async def _next_item(self) -> Any:
        while True:
            try:
                return await asyncio.wait_for(self._inbox.get(), self._r._stall_s)
            except TimeoutError:
                self._on_silence()

    def _on_silence(self) -> None:
        """Kill engines that say nothing. Raises RunFailed if there is nobody left to wait for."""
        # Engines that decode are heard of every few seconds, so these do not.
        silent = [e for i, e in enumerate(self._engines) if e.alive and self._balancer.running(i)]
        pending = [s.key for s in self._samples.values() if s.finished_s is not None and s.reward is None]
        running = [len(self._balancer.running(self._engines.index(e))) for e in silent]
        names = ", ".join(f"{e.name} ({n} samples)" for e, n in zip(silent, running, strict=True)) or "none"
        what = f"no event for {self._r._stall_s:.0f} s; waiting for engines: {names}; rewards: {len(pending)}"
        # Reward workers and starting engines have deadlines of their own.
        if not silent and not pending and all(repair.done() for repair in self._repairs):
            raise RunFailed(what)
        for engine in silent:
            engine.kill(what)

    def _translate(self, item: Any) -> list[Event]:
        """A message as machine events; stale ones vanish here."""
        if isinstance(item, EngineDied):
            return self._lose(item)
        if isinstance(item, tuple) and isinstance(item[0], EngineHandle):
            events: list[Event] = []
            for message in item[1]:
                key = self._by_request.get(message.request_id)
                if key is None:
                    continue
                if message.kind == "cutoff":
                    events.append(ReachedCutoff(key))
                else:
                    events.append(self._finish(key, message))
            return events
        if isinstance(item, Exception):
            raise item
        assert isinstance(item, Scored | Failed), f"unknown message {item!r}"
        return [item]

    def _finish(self, key: SampleKey, message: EngineEvent) -> Event:
        sample = self._samples[key]
        for version in (message.version_start, message.version_end):
            if version != self._version:
                raise RunFailed(f"{message.request_id} was decoded by weights {version!r}, not {self._version!r}")
        del self._by_request[message.request_id]
        self._balancer.release(key)
        sample.tokens, sample.logprobs = message.tokens, message.logprobs
        sample.truncated = message.truncated
        sample.cached_tokens = message.cached_tokens
        sample.version_start, sample.version_end = message.version_start, message.version_end
        sample.finished_s = self._last_decode_s = self._now()
        self._r.progress.finished += 1
        self._r.progress.decoding -= 1
        return Finished(key, len(message.tokens), message.truncated)

    def _lose(self, death: EngineDied) -> list[Event]:
        """The samples of a dead engine are lost; a replacement starts beside the round."""
        if death.engine not in self._engines:
            return []
        index = self._engines.index(death.engine)
        lost = [key for key in self._balancer.running(index) if isinstance(key, SampleKey)]
        self._balancer.forget(index)
        for key in lost:
            self._balancer.release(key)
            self._by_request.pop(self._request_id(self._samples[key]), None)
            self._r.progress.decoding -= 1
            if self._seeds is not None:
                self._seeds.lose(key)
        self._restarts.append(f"{death.engine.name}: {death.reason} ({len(lost)} samples lost)")
        self._repairs.append(asyncio.create_task(self._repair(death.engine)))
        return [Lost(key) for key in lost]

    async def _repair(self, engine: EngineHandle) -> None:
        try:
            await engine.replace()
            await engine.load(self._weights, self._version, checksums=False)
            waiting, self._waiting = self._waiting, []
            await self._issue(waiting)
        except (RunFailed, ray.exceptions.RayError) as error:
            engine.alive = False
            self._inbox.put_nowait(RunFailed(str(error)))

    # -- actions out ---------------------------------------------------------------------------------------------------

    async def _apply(self, actions: list[Action]) -> None:
        """Carry out actions; what was issued and aborted in one breath never reaches an engine."""
        dropped = {a.key for a in actions if isinstance(a, Abort)}
        aborts: dict[int, list[str]] = {}
        for action in actions:
            if isinstance(action, Abort):
                self._abort(action.key, aborts)
        await self._issue([a for a in actions if isinstance(a, Issue) and a.key not in dropped])
        for action in actions:
            if isinstance(action, Score) and action.key not in dropped:
                self._score(action.key)
        for index, request_ids in aborts.items():
            if self._engines[index].alive:
                await self._engines[index].abort(request_ids)

    def _abort(self, key: SampleKey, aborts: dict[int, list[str]]) -> None:
        sample = self._samples.get(key)
        self._waiting = [issue for issue in self._waiting if issue.key != key]
        if sample is None:
            return
        sample.aborted = True
        request_id = self._request_id(sample)
        if self._by_request.pop(request_id, None) is not None:
            engine = next(i for i, e in enumerate(self._engines) if e.name == sample.engine)
            aborts.setdefault(engine, []).append(request_id)
            self._balancer.release(key)
            self._r.progress.aborted += 1
            self._r.progress.decoding -= 1
        self._r._rewards.cancel(request_id)

    async def _issue(self, issues: list[Issue]) -> None:
        alive = {i for i, e in enumerate(self._engines) if e.alive and e.version == self._version}
        if issues and not alive:
            self._waiting.extend(issues)
            return
        batches: dict[int, list[Request]] = {}
        for issue in issues:
            prompt = self._r._prompts[issue.prompt]
            old = self._samples.get(issue.key)
            index = self._balancer.assign(issue.key, float(issue.max_tokens), alive, issue.prompt, len(prompt.tokens))
            sample = Generated(
                key=issue.key,
                prompt=issue.prompt,
                issued_s=self._now(),
                prompt_tokens=prompt.tokens,
                engine=self._engines[index].name,
                attempt=0 if old is None else old.attempt + 1,
            )
            self._samples[issue.key] = sample
            request_id = self._request_id(sample)
            self._by_request[request_id] = issue.key
            batches.setdefault(index, []).append(
                Request(
                    request_id=request_id,
                    prompt_tokens=prompt.tokens,
                    max_tokens=issue.max_tokens,
                    watch_tokens=issue.watch_tokens,
                    temperature=self._r._temperature,
                    ignore_eos=self._r._ignore_eos,
                    seed=None if self._seeds is None else self._seeds.issue(issue),
                )
            )
            self._r.progress.issued += 1
            self._r.progress.decoding += 1
        for index, requests in batches.items():
            try:
                await self._engines[index].submit(requests, self._version)
            except ray.exceptions.ActorDiedError:
                # The pump tells of the death; the samples are lost and issued again then.
                continue

    def _request_id(self, sample: Generated) -> str:
        return f"{self._tag}/{sample.key.draw}.{sample.key.sample}.{sample.attempt}"

    def _score(self, key: SampleKey) -> None:
        sample = self._samples[key]
        prompt = self._r._prompts[sample.prompt]
        request_id = self._request_id(sample)
        text = self._r._decode_text(sample.tokens)
        sample.reward_deadline_s = None if self._deadline_s is None else self._deadline_s(sample.prompt)
        future = self._r._rewards.score(request_id, prompt.text, text, prompt.answer, sample.reward_deadline_s)

        def scored(done: asyncio.Future[Any]) -> None:
            if done.cancelled() or sample.aborted:
                return
            error = done.exception()
            if error is not None:
                # Not this sample's fault but the pool's: dropping samples one by one would only hide it.
                self._inbox.put_nowait(RunFailed(f"reward workers: {error}"))
                return
            result = done.result()
            sample.reward_s, sample.reward_outcome = result.seconds, result.outcome
            if result.outcome == "infra_failed":
                self._failed += 1
                if self._failed >= HOPELESS_FAILURES and not self._r.progress.scored:
                    what = f"none of the round's first {self._failed} samples could be scored: {result.detail}"
                    self._inbox.put_nowait(RunFailed(what))
                    return
                self._inbox.put_nowait(Failed(key, result.detail))
                return
            sample.reward = float(result.reward)
            self._r.progress.scored += 1
            self._inbox.put_nowait(Scored(key, sample.reward))

        future.add_done_callback(scored)

    async def stop(self) -> None:
        """Leave nothing behind: whatever of the round still runs is stopped, and repairs are finished."""
        running: dict[int, list[str]] = {}
        for request_id, key in list(self._by_request.items()):
            self._abort(key, running)
            assert request_id not in self._by_request
        for index, request_ids in running.items():
            if self._engines[index].alive:
                await self._engines[index].abort(request_ids)
        await asyncio.gather(*self._repairs)
