"""Samples judged by a model: questions in as samples end, one future for each, vLLM engines behind.

The engines are those of the rollout (engines/engine_handle.py) with another model whose weights never change: they are
watched, replaced and seated by the same parts. Invariants:
- a sample whose `score` was called ends in exactly one way: its future gets one result, is cancelled, or raises;
- a copy has `at_once` questions at most; the others wait here, in the order in which they came;
- a copy that dies loses no question: those that it had are asked again, first, of the next copy that is up;
- a question without a verdict by its deadline is aborted in the engine and asked again; after `retries` more tries the
  copy is replaced if it gave no verdict on any question meanwhile; else the sample is `infra_failed`: a response cannot
  make a judge silent, so it is drawn again and never worth 0 for that;
- a cancelled sample has no question in an engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any

from ....plans.files.judge_prompt import JudgePrompt
from ....plans.yaml.errors import RunFailed
from ...engines.engine_handle import EngineBack, EngineDied, EngineEvents, EngineHandle, EngineNews
from ...engines.messages import EngineEvent, Request
from ...faults import Fault, classify, failure
from ...placement.seat_keeper import SeatKeeper
from ...supervision import LOOK_S, Supervisor, together
from ..charges import RewardResult
from ..scoring import Outcome
from .judge_config import JudgeConfig
from .judge_questions import Copy, Question, given_up

log = logging.getLogger(__name__)


class JudgePool:
    """Judges samples. All methods are to be called on one running event loop; Ray must be initialised.

    Args:
        config: the judge.
        tokenizer: of its model.
        supervisor: the run's, which starts and replaces its engines.
        seats: the place of each copy; None: on the cores of its configuration.
        tell: hears of copies that died.
        handle: makes an engine from its configuration.
    """

    def __init__(
        self,
        config: JudgeConfig,
        tokenizer: Any,
        supervisor: Supervisor,
        seats: SeatKeeper | None = None,
        tell: Callable[[EngineDied], None] = lambda death: None,
        handle: Callable[..., EngineHandle] = EngineHandle,
    ) -> None:
        self.tell = tell
        self._config = config
        self._prompt = JudgePrompt(config.template, config.worth, tokenizer, config.engines[0].max_model_len)
        self._copies = [Copy(handle(engine, self._hear, supervisor, seats=seats)) for engine in config.engines]
        self._questions: dict[str, Question] = {}
        self._waiting: deque[Question] = deque()
        self._sends: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._due, self._serial = False, 0
        self._down: BaseException | None = None
        self._counts: Counter[str] = Counter()

    @property
    def engines(self) -> list[EngineHandle]:
        """The engines of the copies."""
        return [copy.engine for copy in self._copies]

    async def start(self) -> None:
        """Start all copies. Raises InputError or RunFailed."""
        await together(*(copy.engine.start() for copy in self._copies))
        self._watch = asyncio.create_task(self._look(), name="watch of the judge")

    async def close(self) -> None:
        """Cancel what is unfinished and end the copies."""
        if self._watch is not None:
            self._watch.cancel()
        for key in list(self._questions):
            self.cancel(key)
        if self._sends:
            await asyncio.wait(set(self._sends), timeout=LOOK_S)
        await asyncio.gather(*(copy.engine.close() for copy in self._copies))

    def score(
        self, sample_key: str, prompt: str, response: str, answer: Any, deadline_s: float | None = None
    ) -> asyncio.Future[RewardResult]:
        """Queue one sample; the future resolves to its result. Never blocks.

        `deadline_s`: seconds for one try, None: the judge's own. The future raises RunFailed if no copy can be started
        any more; `cancel` and `close` cancel it.
        """
        assert sample_key not in self._questions, f"sample {sample_key} is being judged already"
        future: asyncio.Future[RewardResult] = asyncio.get_running_loop().create_future()
        if self._down is not None:
            future.set_exception(self._down)
            return future
        tokens = self._prompt.question(prompt, response, answer)
        question = Question(sample_key, tokens, deadline_s or self._config.deadline_s, future)
        self._questions[sample_key] = question
        future.add_done_callback(lambda done: self.cancel(sample_key) if done.cancelled() else None)
        self._waiting.append(question)
        self._ask_soon()
        return future

    def cancel(self, sample_key: str) -> bool:
        """Drop a sample: its question is aborted and its future cancelled. True if it was still being judged."""
        question = self._questions.pop(sample_key, None)
        if question is None:
            return False
        self._withdraw(question)
        question.future.cancel()
        self._counts["cancelled"] += 1
        self._ask_soon()
        return True

    def stats(self) -> Counter[str]:
        """Counts since the start: samples by outcome; questions asked `again` after a deadline, `lost` with a copy, or
        `cancelled`; copies that `died`; `tokens` of answered questions, `cached` of them from the prefix cache."""
        return Counter(self._counts)

    # -- questions out -------------------------------------------------------------------------------------------------

    def _ask_soon(self) -> None:
        """Ask once the event loop has delivered what came together."""
        if not self._due and self._waiting:
            self._due = True
            asyncio.get_running_loop().call_soon(self._ask)

    def _ask(self) -> None:
        """Hand waiting questions to the copies that are up and have room, the least loaded first."""
        self._due = False
        batches: dict[int, list[Request]] = {}
        while self._waiting:
            room = [
                (len(copy.questions), number)
                for number, copy in enumerate(self._copies)
                if copy.engine.alive and len(copy.questions) < self._config.at_once
            ]
            if not room:
                break
            question = self._waiting.popleft()
            if question.future.done():
                continue
            _, number = min(room)
            batches.setdefault(number, []).append(self._put(question, self._copies[number]))
        for number, requests in batches.items():
            self._send(self._copies[number], self._copies[number].engine.submit(requests, ""), requests)

    def _put(self, question: Question, copy: Copy) -> Request:
        self._serial += 1
        question.request_id = f"judge/{self._serial}"
        question.copy, question.asked_s = copy, time.monotonic()
        if not question.late:
            question.first_asked_s = question.asked_s
        question.tries += 1
        copy.questions[question.request_id] = question
        loop = asyncio.get_running_loop()
        question.timer = loop.call_later(question.deadline_s, self._late, question, question.request_id)
        return Request(
            question.request_id,
            question.tokens,
            self._prompt.verdict_tokens,
            temperature=0.0,
            choices=self._prompt.choices,
        )

    def _withdraw(self, question: Question, abort: bool = True) -> None:
        """Take a question from the copy that has it."""
        copy, question.copy = question.copy, None
        if question.timer is not None:
            question.timer.cancel()
        if copy is None or copy.questions.pop(question.request_id, None) is None:
            return
        if abort and copy.engine.alive:
            self._send(copy, copy.engine.abort([question.request_id]))

    def _send(self, copy: Copy, call: Coroutine[Any, Any, None], requests: list[Request] | None = None) -> None:
        task = asyncio.create_task(self._sent(copy, call, requests or []))
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    async def _sent(self, copy: Copy, call: Coroutine[Any, Any, None], requests: list[Request]) -> None:
        try:
            await call
        except Exception as error:  # noqa: BLE001 - a death is told by the engine, and its questions are asked again
            if classify(error) is Fault.ACTOR:
                return
            for request in requests:
                question = copy.questions.get(request.request_id)
                if question is not None:
                    self._fail(question, failure(error, copy.engine.name))

    # -- verdicts in ---------------------------------------------------------------------------------------------------

    def _hear(self, news: EngineNews) -> None:
        match news:
            case EngineEvents(engine, events):
                copy = self._copy_of(engine)
                for event in events:
                    if event.name == "finished" and (question := copy.questions.get(event.request_id)) is not None:
                        self._withdraw(question, abort=False)
                        self._judged(question, event, copy)
            case EngineDied():
                self._lose(news)
            case EngineBack():
                pass  # it has room now
            case _:
                self._give_up(news)
        self._ask_soon()

    def _copy_of(self, engine: EngineHandle) -> Copy:
        return next(each for each in self._copies if each.engine is engine)

    def _judged(self, question: Question, event: EngineEvent, copy: Copy) -> None:
        self._counts["tokens"] += len(question.tokens)
        self._counts["cached"] += event.cached_tokens
        copy.heard_s = time.monotonic()
        seconds = copy.heard_s - question.asked_s
        try:
            value = self._prompt.value(event.tokens)
        except ValueError as error:
            self._again(question, str(error), seconds, copy)
            return
        self._finish(question, value, seconds, "ok", "", copy.engine.name)

    def _late(self, question: Question, request_id: str) -> None:
        """The deadline of a try has passed."""
        copy = question.copy
        if copy is None or question.request_id != request_id:
            return
        self._withdraw(question)
        reason = f"no verdict within {question.deadline_s:g} s"
        self._again(question, reason, question.deadline_s, copy)
        self._ask_soon()

    def _again(self, question: Question, reason: str, seconds: float, copy: Copy) -> None:
        """A try gave no verdict: ask again, have the copy replaced, or give the sample up."""
        question.late += 1
        if question.late <= self._config.retries:
            self._counts["again"] += 1
            self._waiting.append(question)
            return
        if copy.heard_s < question.first_asked_s:
            question.late = 0
            self._waiting.appendleft(question)
            copy.engine.fail(f"no verdict on any question: {reason}, {self._config.retries + 1} times")
            return
        detail = f"{copy.engine.name}: {reason}, asked {question.tries} times"
        self._finish(question, 0.0, seconds, "infra_failed", detail, copy.engine.name)

    def _lose(self, death: EngineDied) -> None:
        """A copy is gone; another is being started in its place."""
        copy = self._copy_of(death.engine)
        lost = list(copy.questions.values())
        log.info("%s died: %s; %d questions are asked again", death.engine.name, death.reason, len(lost))
        for question in lost:
            self._withdraw(question, abort=False)
            question.late = 0
        self._waiting.extendleft(reversed(lost))
        self._counts.update(died=1, lost=len(lost))
        self.tell(death)

    def _give_up(self, error: Exception) -> None:
        """A copy cannot be replaced. The others go on without it; without any, nothing can be judged."""
        log.error("a copy of the judge is given up: %s", error)
        if not all(given_up(copy.engine) for copy in self._copies):
            return
        self._down = error if isinstance(error, RunFailed) else RunFailed(str(error))
        for question in list(self._questions.values()):
            self._fail(question, self._down)

    def _fail(self, question: Question, error: BaseException) -> None:
        self._withdraw(question)
        self._questions.pop(question.key, None)
        if not question.future.done():
            question.future.set_exception(error)

    def _finish(
        self, question: Question, value: float, seconds: float, outcome: Outcome, detail: str, judge: str
    ) -> None:
        if self._questions.get(question.key) is question:
            del self._questions[question.key]
        self._counts[outcome] += 1
        if not question.future.done():
            question.future.set_result(RewardResult(value, seconds, outcome, detail, question.tries, judge))

    async def _look(self) -> None:
        """Have copies replaced that live and answer nothing."""
        while True:
            await asyncio.sleep(LOOK_S)
            for copy in self._copies:
                if copy.questions:
                    copy.engine.watch_progress()
