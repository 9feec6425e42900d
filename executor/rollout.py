"""Runs one round for real: turns the machine's actions into engine and reward calls, and what happens into events.

Every decision (whom to issue, when to stop, whom to abort, what is deferred) is the machine's; this file only carries
messages. Invariants:
- a sample decodes on at most one engine at a time; a message about an earlier attempt is dropped;
- a sample whose two weight versions are not the round's never reaches the machine: the run stops (invariant 1);
- when `run` returns, nothing of the round decodes and no reward of it is pending; one that is cancelled has sent its
  aborts, and waits `LEAVE_S` at most for an engine that hangs: what was trained must be saved soon;
- only `drive` decides, and what it decides for an engine is sent in that order, engine by engine: an abort never
  overtakes its submit, and an engine that hangs holds up no other;
- the samples of an engine that is gone (dead, silent, or alive without decoding) are drawn again. Its replacement is
  the fleet's matter and goes on beside the round, which it joins when it is up; the round's end does not wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..plans.schema.sections.layouts import EngineLayout
from ..plans.yaml.errors import RunFailed
from ..rounds.balance import Balancer, PrefixSharing
from ..rounds.machines.events import (
    Abort,
    Action,
    Event,
    Failed,
    Finished,
    Issue,
    Lost,
    ReachedCutoff,
    SampleKey,
    Score,
    Scored,
)
from ..rounds.machines.outcome import Fate, Outcome
from ..rounds.machines.round import Round
from ..rounds.seeds import RoundSeeds, SeedLedger
from ..rounds.timeouts import Execution
from .engines.engine import EngineEvent, Request
from .engines.engine_handle import EngineDied, EngineHandle
from .engines.fleet import Fleet
from .faults import Fault, classify, failure
from .scoring_health import ScoringHealth
from .supervision import LOOK_S, spawn
from .trainer.samples import TrainSample

LEAVE_S = 2.0  # in which engines may answer the aborts of a round that is left


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
    reward_detail: str = ""
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
        self._health = ScoringHealth(len(prompts))
        self.progress = Progress()

    async def run(
        self,
        round_: Round,
        layout: EngineLayout,
        version: str,
        weights_path: str,
        tag: str,
        seeds: RoundSeeds | None = None,
        deadline_s: Callable[[str], float] | None = None,
        at_once: int | None = None,
        sharing: PrefixSharing | None = None,
    ) -> RolloutResult:
        """Run `round_` to its end on engines that already hold `version`; `tag` makes request ids unique.

        Without `seeds` the engines draw from generators of their own. `deadline_s` gives the seconds that scoring a
        sample of a prompt may take; without it, the reward workers' own. `at_once` is how many samples an engine
        decodes at a time; without it, as many as it was built for. `sharing` keeps a prompt's samples together; without
        it they are spread.
        Raises RunFailed when an infrastructure fault outlasts its retries or an invariant does not hold.
        """
        engines = self._fleet.engines(layout)
        state = _RoundInProgress(self, round_, engines, version, weights_path, tag, seeds, deadline_s, at_once, sharing)
        self._fleet.listen(state.on_engine_events, state.on_death, state.on_back, state.on_fault)
        patience_s = None
        try:
            return await state.drive()
        except asyncio.CancelledError:
            patience_s = LEAVE_S
            raise
        finally:
            await state.stop(patience_s)
            self._fleet.listen_no_more()


class _Back(NamedTuple):
    """A replacement is up; with weights, if `loaded`."""

    engine: EngineHandle
    loaded: bool


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
        at_once: int | None,
        sharing: PrefixSharing | None,
    ) -> None:
        self._r = runner
        self._at_once = at_once
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
        self._sends: set[asyncio.Task[Any]] = set()
        self._joins: set[asyncio.Task[Any]] = set()
        self._waiting: list[Issue] = []  # issues that found no engine alive
        self._restarts: list[str] = []
        self._began = time.perf_counter()
        self._last_decode_s = self._looked_s = 0.0
        self._scoring: set[str] = set()  # requests whose reward is being computed
        runner._health.begin_round()
        runner.progress = Progress()

    # -- messages in ---------------------------------------------------------------------------------------------------

    def on_engine_events(self, engine: EngineHandle, events: list[EngineEvent]) -> None:
        self._inbox.put_nowait((engine, events))

    def on_death(self, death: EngineDied) -> None:
        self._inbox.put_nowait(death)

    def on_back(self, engine: EngineHandle) -> None:
        self._inbox.put_nowait(_Back(engine, loaded=False))

    def on_fault(self, error: Exception) -> None:
        self._inbox.put_nowait(error)

    def _now(self) -> float:
        return time.perf_counter() - self._began

    async def drive(self) -> RolloutResult:
        for engine in self._engines:
            if engine.alive and engine.version != self._version:  # it came back after the weights were sent
                self.on_back(engine)
        self._apply(self._round.start())
        while not self._round.done:
            items = [await self._next_item()]
            while not self._inbox.empty():
                items.append(self._inbox.get_nowait())
            actions: list[Action] = []
            for item in items:
                for event in self._translate(item):
                    actions.extend(self._round.handle(event))
            self._apply(actions)
            self._look()
        ended = self._now()
        rollout_s = self._last_decode_s or ended
        return RolloutResult(rollout_s, max(ended - rollout_s, 0.0), self._samples, self._restarts)

    async def _next_item(self) -> Any:
        silent_s = 0.0
        while True:
            try:
                return await asyncio.wait_for(self._inbox.get(), LOOK_S)
            except TimeoutError:
                silent_s += LOOK_S
            self._look()
            if silent_s >= self._r._stall_s and self._inbox.empty() and not self._awaited():
                raise RunFailed(f"no event for {silent_s:.0f} s, and nobody is left to wait for")

    def _look(self) -> None:
        """Each engine that has samples must decode, whatever the others do."""
        if self._now() - self._looked_s < LOOK_S:
            return
        self._looked_s = self._now()
        for index, engine in enumerate(self._engines):
            if self._balancer.running(index):
                engine.watch_progress()

    def _awaited(self) -> bool:
        """Whether anybody is to be heard of; each of them has a deadline of its own."""
        decoding = any(e.alive and self._balancer.running(i) for i, e in enumerate(self._engines))
        return decoding or bool(self._scoring or self._joins) or not all(engine.alive for engine in self._engines)

    def _translate(self, item: Any) -> list[Event]:
        """A message as machine events; stale ones vanish here."""
        if isinstance(item, EngineDied):
            return self._lose(item)
        if isinstance(item, _Back):
            self._welcome(item)
            return []
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
        """The samples of a dead engine are lost; its replacement is on its way."""
        if death.engine not in self._engines:
            self._restarts.append(f"{death.engine.name}: {death.reason} (it had no part in this round)")
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
        return [Lost(key) for key in lost]

    def _welcome(self, back: _Back) -> None:
        """An engine of this round is up again: it gets the weights, then what waited for an engine."""
        if back.engine not in self._engines or not back.engine.alive:
            return
        if back.loaded:
            waiting, self._waiting = self._waiting, []
            self._issue(waiting)
        else:
            spawn(self._joins, self._join(back.engine), f"weights for {back.engine.name}")

    async def _join(self, engine: EngineHandle) -> None:
        """Not ended with the round: a load that has begun is carried out, and the next one waits for its turn."""
        try:
            await engine.load(self._weights, self._version, checksums=False)
            self._inbox.put_nowait(_Back(engine, loaded=True))
        except Exception as error:  # noqa: BLE001 - of an engine that died again the fleet tells
            if classify(error) is not Fault.ACTOR:
                self.on_fault(failure(error, engine.name))

    # -- actions out ---------------------------------------------------------------------------------------------------

    def _apply(self, actions: list[Action]) -> None:
        """Carry out actions; what was issued and aborted in one breath never reaches an engine."""
        dropped = {a.key for a in actions if isinstance(a, Abort)}
        aborts: dict[int, list[str]] = {}
        for action in actions:
            if isinstance(action, Abort):
                self._abort(action.key, aborts)
        self._issue([a for a in actions if isinstance(a, Issue) and a.key not in dropped])
        for action in actions:
            if isinstance(action, Score) and action.key not in dropped:
                self._score(action.key)
        for index, request_ids in aborts.items():
            self._send(self._engines[index].abort(request_ids), "abort")

    def _send(self, call: Coroutine[Any, Any, None], what: str) -> None:
        """Send what was decided. Calls of one engine are carried out in the order in which they come here."""
        spawn(self._sends, self._sent(call), what)

    async def _sent(self, call: Coroutine[Any, Any, None]) -> None:
        try:
            await call
        except Exception as error:  # noqa: BLE001 - of a death the fleet tells, and the samples are lost and issued again
            if classify(error) is not Fault.ACTOR:
                self.on_fault(failure(error, "rollout"))

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

    def _issue(self, issues: list[Issue]) -> None:
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
                    cutoff_tokens=issue.cutoff_tokens,
                    temperature=self._r._temperature,
                    ignore_eos=self._r._ignore_eos,
                    seed=None if self._seeds is None else self._seeds.issue(issue),
                )
            )
            self._r.progress.issued += 1
            self._r.progress.decoding += 1
        for index, requests in batches.items():
            self._send(self._engines[index].submit(requests, self._version, self._at_once), "submit")

    def _request_id(self, sample: Generated) -> str:
        return f"{self._tag}/{sample.key.draw}.{sample.key.sample}.{sample.attempt}"

    def _score(self, key: SampleKey) -> None:
        sample = self._samples[key]
        prompt = self._r._prompts[sample.prompt]
        request_id = self._request_id(sample)
        text = self._r._decode_text(sample.tokens)
        sample.reward_deadline_s = None if self._deadline_s is None else self._deadline_s(sample.prompt)
        future = self._r._rewards.score(request_id, prompt.text, text, prompt.answer, sample.reward_deadline_s)

        self._scoring.add(request_id)

        def scored(done: asyncio.Future[Any]) -> None:
            self._scoring.discard(request_id)
            if done.cancelled() or sample.aborted:
                return
            error = done.exception()
            if error is not None:
                # Not this sample's fault but the pool's: dropping samples one by one would only hide it.
                self._inbox.put_nowait(RunFailed(f"reward workers: {error}"))
                return
            result = done.result()
            sample.reward_s, sample.reward_outcome = result.seconds, result.outcome
            sample.reward_detail = result.detail
            event = self._r._health.event(key, sample.prompt, result)
            if isinstance(event, Scored):
                sample.reward = event.reward
                self._r.progress.scored += 1
            self._inbox.put_nowait(event)

        future.add_done_callback(scored)

    async def stop(self, patience_s: float | None = None) -> None:
        """Leave nothing behind: whatever of the round still runs is stopped. Replacements go on.

        With `patience_s`, engines that do not answer within so many seconds are not waited for. What was sent to them
        keeps its turn before what is sent next.
        """
        running: dict[int, list[str]] = {}
        for request_id, key in list(self._by_request.items()):
            self._abort(key, running)
            assert request_id not in self._by_request
        for index, request_ids in running.items():
            self._send(self._engines[index].abort(request_ids), "abort")
        # All that will be sent is sent by now: only the decisions of `drive` send.
        if self._sends:
            await asyncio.wait(set(self._sends), timeout=patience_s)
