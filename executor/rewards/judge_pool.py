"""Samples judged by a model: questions in as samples end, one future for each, vLLM engines behind.

The engines are those of the rollout (engines/engine_handle.py) with another model whose weights never change: they are
watched, replaced and placed by the same parts. Invariants:
- a sample whose `score` was called ends in exactly one way: its future gets one result, is cancelled, or raises;
- a copy has `at_once` questions at most; the others wait here, in the order in which they came;
- when a copy dies, its questions go to the next copy that is up, before all others. A question that has lost
  MOST_DEATHS copies ends as `infra_failed`, so that it cannot end the run;
- a question without a verdict by its deadline is aborted in the engine and asked again with twice the time, as often as
  it needs. If a slow verdict had its sample drawn again instead, short responses would be trained more often;
- a slow question is no proof that its copy is dead. A copy that gave no verdict at all within a question's time gets
  the shortest possible question, alone, and is replaced if it does not answer that;
- a cancelled sample has no question in an engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...plans.files.judge_prompt import JudgePrompt, fitting_prompt
from ...plans.schema.cluster import Pool
from ...plans.schema.job import Job
from ...plans.schema.levers import RewardJudge
from ...plans.yaml.errors import InputError, RunFailed
from ..engines.engine_handle import EngineDied, EngineEvents, EngineGivenUp, EngineHandle, EngineNews
from ..engines.messages import EngineConfig, EngineEvent, Request
from ..engines.vllm_options import FIXED_CACHE_SHARE, kv_bytes_per_token
from ..placement.actor_placer import ActorPlacer
from ..placement.run_placement import judge_name
from ..processes.actors import UnawaitedCalls
from ..processes.faults import failure
from ..processes.supervision import LOOK_S, Supervisor, together
from .charges import RewardResult
from .scoring import Outcome

# A judge's configuration: its engines, what it is asked, how long, and how often again.

SPARE_TOKENS_FACTOR = 2
"""Tokens of the judge's own tokenizer that a token of the policy's may take, where its model has room for so many."""

CACHE_FACTOR = 1.5
"""KV cache of a copy over what its questions hold at their longest: the rubric stays cached between them."""


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    """A judge.

    Attributes:
        engines: the copies.
        template: of a question.
        worth: of each verdict, by its text.
        at_once: questions that a copy has at a time.
        deadline_s: seconds for one try of a question.
        retries: further tries.
    """

    engines: tuple[EngineConfig, ...]
    template: str
    worth: Mapping[str, float]
    at_once: int
    deadline_s: float
    retries: int


def judge_config(job: Job, model: str, planned: RewardJudge, pool: Pool, tokenizer: Any) -> JudgeConfig:
    """The judge of a job as its plan has it; `model`: its path, `tokenizer`: its own.

    Raises InputError if the judge's model reads fewer tokens than a question may have, or cannot write a verdict.
    """
    from transformers import AutoConfig

    part = job.reward.judge
    assert part is not None and part.prompt is not None, "a plan with a judge is of a job with one"
    shape = AutoConfig.from_pretrained(model, trust_remote_code=False)
    shape = getattr(shape, "text_config", shape)
    most = int(shape.max_position_embeddings)
    prompt = fitting_prompt(job, tokenizer, most, model)
    own = prompt.frame_tokens + prompt.verdict_tokens
    longest = min(most, own + SPARE_TOKENS_FACTOR * job.rollout.longest_tokens)
    token_bytes = kv_bytes_per_token(model, job.model.dtype)
    engine = EngineConfig(
        name="",
        model_path=model,
        dtype=job.model.dtype,
        tp=planned.tp,
        max_model_len=longest,
        max_num_seqs=planned.at_once,
        device=pool.accelerators.kind,
        kv_memory_bytes=int(CACHE_FACTOR * planned.at_once * longest * token_bytes),
        seed=job.algorithm.seed,
        compute_share=planned.share or 1.0,
        memory_share=FIXED_CACHE_SHARE,
        sleeps=False,
    )
    return JudgeConfig(
        engines=tuple(engine.renamed(judge_name(number)) for number in range(planned.instances)),
        template=part.prompt,
        worth=part.worth(),
        at_once=planned.at_once,
        deadline_s=planned.deadline_s or part.deadline_s,
        retries=part.retries,
    )


# A judge's questions, and its copies: which question is with which copy.

TEST_S = 120.0
"""Seconds that a copy that was silent may take for the shortest question, with nothing else to do."""
MOST_DEATHS = 3
"""Copies that may die while they have one question."""
LONGEST_S = 3600.0
"""Deadline of a question after which, asked again, it ends the run: no model that fits its job takes longer."""


@dataclass(eq=False)
class Question:
    """A sample that waits for its verdict.

    Attributes:
        tokens: what the judge reads.
        deadline_s: of the next try, in seconds; each that passes doubles it.
        tries: all of them.
        refused: tries that were answered with what is no verdict.
        deaths: copies that died while they had it.
        asked_s: when the last try began, of `time.monotonic`.
        copy: that has it, under `request_id`; None while it waits.
        timer: of its deadline.
    """

    key: str
    tokens: tuple[int, ...]
    deadline_s: float
    future: asyncio.Future[RewardResult]
    tries: int = 0
    refused: int = 0
    deaths: int = 0
    asked_s: float = 0.0
    copy: Copy | None = None
    request_id: str = ""
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class Copy:
    """A copy of the judge.

    Attributes:
        questions: that it has, by request id.
        heard_s: when it gave its last verdict.
        test: request id of the test question that it has alone, because it has been silent; "" without one.
        timer: of the test question's deadline.
    """

    engine: EngineHandle
    questions: dict[str, Question] = field(default_factory=dict)
    heard_s: float = 0.0
    test: str = ""
    timer: asyncio.TimerHandle | None = None

    def end_test(self) -> None:
        """The test question is answered, or its copy gone."""
        self.test = ""
        if self.timer is not None:
            self.timer.cancel()


def given_up(engine: EngineHandle) -> bool:
    """Whether an engine could not be replaced."""
    try:
        engine.check()
    except (RunFailed, InputError):
        return True
    return False


def copy_of(engine: EngineHandle, copies: Sequence[Copy]) -> Copy:
    """The copy with this engine."""
    return next(copy for copy in copies if copy.engine is engine)


def least_loaded(copies: Sequence[Copy], at_once: int) -> Copy | None:
    """The copy with the fewest questions of those that are up, not tested, and have fewer than `at_once`."""
    free = [copy for copy in copies if copy.engine.alive and not copy.test and len(copy.questions) < at_once]
    return min(free, key=lambda copy: len(copy.questions), default=None)


log = logging.getLogger(__name__)


class JudgePool:
    """Judges samples. All methods are to be called on one running event loop; Ray must be initialised.

    Args:
        config: the judge.
        tokenizer: of its model.
        supervisor: the run's, which starts and replaces its engines.
        placer: the place of each copy; None: on the cores of its configuration.
        tell: hears of copies that died.
        handle: makes an engine from its configuration.
        test_s: seconds that a copy that was silent may take for the shortest question, at least.
    """

    def __init__(
        self,
        config: JudgeConfig,
        tokenizer: Any,
        supervisor: Supervisor,
        placer: ActorPlacer | None = None,
        tell: Callable[[EngineDied], None] = lambda death: None,
        handle: Callable[..., EngineHandle] = EngineHandle,
        test_s: float = TEST_S,
    ) -> None:
        self.tell = tell
        self._config, self._test_s = config, test_s
        self._prompt = JudgePrompt(config.template, config.worth, tokenizer, config.engines[0].max_model_len)
        self._copies = [Copy(handle(engine, self._hear, supervisor, placer=placer)) for engine in config.engines]
        self._questions: dict[str, Question] = {}
        self._waiting: deque[Question] = deque()
        self._sends = UnawaitedCalls()
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

    async def close(self) -> None:
        """Cancel what is unfinished and end the copies."""
        for copy in self._copies:
            copy.end_test()
        for key in list(self._questions):
            self.cancel(key)
        await self._sends.settle(LOOK_S)
        await asyncio.gather(*(copy.engine.close() for copy in self._copies))

    def score(
        self, sample_key: str, prompt: str, response: str, answer: Any, deadline_s: float | None = None
    ) -> asyncio.Future[RewardResult]:
        """Queue one sample; the future resolves to its result. Never blocks.

        `deadline_s`: seconds for a try, None: the judge's own. The future raises RunFailed if nothing can judge it.
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
        `cancelled`; `tests` of silent copies; copies that `died`; `tokens` answered, `cached` of them."""
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
        batches: dict[Copy, list[Request]] = {}
        while self._waiting and (copy := least_loaded(self._copies, self._config.at_once)) is not None:
            question = self._waiting.popleft()
            if not question.future.done():
                batches.setdefault(copy, []).append(self._put(question, copy))
        for copy, requests in batches.items():
            self._sends.begin(copy.engine.submit(requests, ""), partial(self._unsent, copy, requests))

    def _put(self, question: Question, copy: Copy) -> Request:
        self._serial += 1
        question.request_id = f"judge/{self._serial}"
        question.copy, question.asked_s = copy, time.monotonic()
        question.tries += 1
        copy.questions[question.request_id] = question
        loop = asyncio.get_running_loop()
        question.timer = loop.call_later(question.deadline_s, self._late, question, question.request_id)
        return self._request(question.request_id, question.tokens)

    def _request(self, name: str, tokens: tuple[int, ...]) -> Request:
        return Request(name, tokens, self._prompt.verdict_tokens, temperature=0.0, choices=self._prompt.choices)

    def _withdraw(self, question: Question, abort: bool = True) -> None:
        """Take a question from the copy that has it."""
        copy, question.copy = question.copy, None
        if question.timer is not None:
            question.timer.cancel()
        if copy is None or copy.questions.pop(question.request_id, None) is None:
            return
        if abort and copy.engine.alive:
            self._sends.begin(copy.engine.abort([question.request_id]))

    def _unsent(self, copy: Copy, requests: list[Request], error: Exception) -> None:
        for request in requests:
            question = copy.questions.get(request.request_id)
            if question is not None:
                self._fail(question, failure(error, copy.engine.name))

    # -- verdicts in ---------------------------------------------------------------------------------------------------

    def _hear(self, news: EngineNews) -> None:
        match news:
            case EngineEvents(engine, events):
                copy = copy_of(engine, self._copies)
                for event in events:
                    if event.name in ("finished", "lost") and event.request_id == copy.test:
                        copy.end_test()
                        copy.heard_s = time.monotonic()
                    elif event.name in ("finished", "lost") and (question := copy.questions.get(event.request_id)):
                        self._withdraw(question, abort=False)
                        self._judged(question, event, copy)
            case EngineDied():
                self._lose(news)
            case EngineGivenUp():
                self._give_up(news.error)
        self._ask_soon()

    def _judged(self, question: Question, event: EngineEvent, copy: Copy) -> None:
        self._counts["tokens"] += len(question.tokens)
        self._counts["cached"] += event.cached_tokens
        copy.heard_s = time.monotonic()
        seconds = copy.heard_s - question.asked_s
        if event.name == "lost":
            self._refused(question, f"vLLM ended the verdict with {event.reason!r}", seconds, copy)
            return
        try:
            value = self._prompt.value(event.tokens)
        except ValueError as error:
            self._refused(question, str(error), seconds, copy)
            return
        self._finish(question, value, seconds, "ok", "", copy.engine.name)

    def _late(self, question: Question, request_id: str) -> None:
        """The deadline of a try has passed."""
        copy = question.copy
        if copy is None or question.request_id != request_id:
            return
        self._withdraw(question)
        self._again(question)
        passed_s, question.deadline_s = question.deadline_s, 2 * question.deadline_s
        if passed_s >= LONGEST_S and question.tries > 1:
            size = f"{len(question.tokens)} tokens not within {passed_s:g} s"
            text = (
                f"{copy.engine.name} is alive and judges a sample of {size}; take a smaller judge, or shorter responses"
            )
            self._fail(question, RunFailed(text))
        elif copy.heard_s < question.asked_s:
            self._test(copy, passed_s)
        else:
            log.info("%s: no verdict on %s within %g s; asked again", copy.engine.name, question.key, passed_s)
        self._ask_soon()

    def _again(self, question: Question) -> None:
        self._counts["again"] += 1
        self._waiting.append(question)

    def _refused(self, question: Question, reason: str, seconds: float, copy: Copy) -> None:
        """A try was answered with no verdict: ask again, or give the sample up."""
        question.refused += 1
        if question.refused <= self._config.retries:
            self._again(question)
            return
        detail = f"{copy.engine.name}: {reason}, asked {question.tries} times"
        self._finish(question, 0.0, seconds, "infra_failed", detail, copy.engine.name)

    # -- copies that are silent, and dead ------------------------------------------------------------------------------

    def _test(self, copy: Copy, silent_s: float) -> None:
        """Ask a copy that has been silent for its shortest question, and nothing else until it is answered."""
        held = list(copy.questions.values())
        for question in held:
            self._withdraw(question)
        self._waiting.extendleft(reversed(held))
        self._counts["tests"] += 1
        self._serial += 1
        copy.test = f"judge/{self._serial}"
        request = self._request(copy.test, self._prompt.question("", "", ""))
        self._sends.begin(copy.engine.submit([request], ""))
        limit_s = max(self._test_s, silent_s)
        copy.timer = asyncio.get_running_loop().call_later(limit_s, self._silent, copy, copy.test, limit_s)

    def _silent(self, copy: Copy, request_id: str, limit_s: float) -> None:
        if copy.test == request_id:
            copy.engine.fail(f"no answer to a test question of the shortest kind within {limit_s:g} s")

    def _lose(self, death: EngineDied) -> None:
        """A copy is gone; another is being started in its place."""
        copy = copy_of(death.engine, self._copies)
        lost = list(copy.questions.values())
        log.info("%s died: %s; %d questions are asked again", death.engine.name, death.reason, len(lost))
        copy.end_test()
        for question in lost:
            self._withdraw(question, abort=False)
            question.deaths += 1
            if question.deaths >= MOST_DEATHS:
                detail = f"{question.deaths} copies of the judge died while they had it, the last: {death.reason}"
                self._finish(question, 0.0, 0.0, "infra_failed", detail, death.engine.name)
        self._waiting.extendleft(reversed([question for question in lost if question.deaths < MOST_DEATHS]))
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
