"""A judge's questions: batched, bounded, asked again, never lost; copies say what the test has them say."""

import asyncio

import pytest

from rlplan.executor.engines.engine_handle import EngineBack, EngineDied, EngineEvents, EngineGivenUp
from rlplan.executor.engines.messages import EngineConfig, EngineEvent
from rlplan.executor.processes.faults import ActorFailed
from rlplan.executor.processes.supervision import Supervisor
from rlplan.executor.rewards.judge_pool import JudgeConfig, JudgePool
from rlplan.plans.yaml.errors import RunFailed

WORDS = ["<pad>", "<unk>", "rate", "yes", "no", "ten", "of", *(f"w{i}" for i in range(40))]
TEST_QUESTION = (WORDS.index("rate"), WORDS.index("of"))


class Words:
    """A tokenizer of words."""

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [WORDS.index(word) if word in WORDS else 1 for word in text.split()]}

    def decode(self, tokens, skip_special_tokens=True):
        return " ".join(WORDS[token] for token in tokens if token > 1)


class Copy:
    """An engine that keeps what it is asked."""

    def __init__(self, config, tell, supervisor, placer=None):
        self.config, self.name, self._tell = config, config.name, tell
        self.alive, self.error, self.refuses = True, None, None
        self.asked, self.batches, self.aborted = {}, [], []

    async def start(self): ...

    async def close(self): ...

    async def submit(self, requests, version, max_num_seqs=None):
        assert version == "", "a judge's weights have no version"
        if self.refuses is not None:
            raise self.refuses
        self.batches.append(len(requests))
        self.asked |= {request.request_id: request for request in requests}

    async def abort(self, request_ids):
        self.aborted += request_ids
        for name in request_ids:
            self.asked.pop(name, None)

    def check(self):
        if self.error is not None:
            raise self.error

    def say(self, word, name=None, cached=0):
        name = name or next(iter(self.asked))
        del self.asked[name]
        self._tell(EngineEvents(self, [EngineEvent("finished", name, [WORDS.index(word)], cached_tokens=cached)]))

    def fail(self, why):
        self.alive, self.asked = False, {}
        self._tell(EngineDied(self, why))

    def come_back(self):
        self.alive = True
        self._tell(EngineBack(self))

    def give_up(self):
        self.fail("killed")
        self.error = RunFailed(f"{self.name} was started again too often")
        self._tell(EngineGivenUp(self, self.error))

    async def is_tested(self):
        """Wait until it has the test question, and that alone."""
        while [request.prompt_tokens for request in self.asked.values()] != [TEST_QUESTION]:
            await asyncio.sleep(0.002)


def judging(copies=1, at_once=2, test_s=60.0):
    """Makes a test of `body(pool, *copies)` on a judge that says yes (1) or no (0)."""
    engines = tuple(EngineConfig(f"judge-{i}", "m", "float32", 1, 32, at_once, "cpu", 10**6) for i in range(copies))
    config = JudgeConfig(engines, "rate {response} of {prompt}", {"yes": 1.0, "no": 0.0}, at_once, 60.0, retries=1)

    def test_of(body):
        async def run():
            pool = JudgePool(config, Words(), Supervisor(), handle=Copy, test_s=test_s)
            await pool.start()
            try:
                return await asyncio.wait_for(body(pool, *pool.engines), 30)
            finally:
                await pool.close()

        def test():
            asyncio.run(run())

        return test

    return test_of


def ask(pool, count, **more):
    return [pool.score(f"s{i}", "w1", f"w{i}", None, **more) for i in range(count)]


async def settle():
    for _ in range(6):
        await asyncio.sleep(0)


@judging(copies=2, at_once=3)
async def test_questions_go_together_and_no_copy_has_more_than_its_number(pool, first, second):
    futures = ask(pool, 7)
    with pytest.raises(AssertionError, match="s0 is being judged already"):
        ask(pool, 1)
    await settle()
    assert (first.batches, second.batches) == ([3], [3])
    first.say("yes", cached=2)
    await settle()
    assert len(first.asked) == 3, "the seventh waited for room"
    for copy in (first, second):
        while copy.asked:
            copy.say("no")
    results = await asyncio.gather(*futures)
    assert [r.reward for r in results].count(1.0) == 1 and {r.outcome for r in results} == {"ok"}
    stats = pool.stats()
    assert (stats["ok"], stats["cached"], stats["tokens"]) == (7, 2, 7 * 4)


@judging()
async def test_a_question_can_be_answered_with_a_verdict_and_nothing_else(pool, copy):
    ask(pool, 1)
    await settle()
    (request,) = copy.asked.values()
    assert request.choices == ("yes", "no") and request.max_tokens == 1 and request.temperature == 0.0
    assert request.prompt_tokens == tuple(map(WORDS.index, ["rate", "w0", "of", "w1"]))


@judging()
async def test_a_copy_that_dies_loses_no_question(pool, copy):
    deaths = []
    pool.tell = lambda death: deaths.append(death.reason)
    futures = ask(pool, 3)
    await settle()
    copy.fail("killed")
    await settle()
    assert copy.asked == {} and not any(future.done() for future in futures)
    copy.come_back()
    await settle()
    asked = [WORDS[request.prompt_tokens[1]] for request in copy.asked.values()]
    assert asked == ["w0", "w1"], "those that it had come first, in their order"
    while copy.asked:
        copy.say("yes")
        await settle()
    results = await asyncio.gather(*futures)
    assert [result.reward for result in results] == [1.0] * 3
    assert [result.attempts for result in results] == [2, 2, 1]
    assert deaths == ["killed"] and pool.stats()["lost"] == 2


@judging()
async def test_a_question_that_takes_long_is_asked_again_with_twice_the_time(pool, copy):
    future = pool.score("slow", "w1", "w2", None, deadline_s=0.02)
    others = 0
    while len(copy.aborted) < 4:
        await asyncio.sleep(0.005)
        pool.score(f"other{others}", "w1", "w3", None)
        others += 1
        await settle()
        for name, request in list(copy.asked.items()):
            if request.prompt_tokens[1] == WORDS.index("w3"):
                copy.say("yes", name)
    assert not future.done() and copy.alive and pool.stats()["tests"] == 0
    assert pool._questions["slow"].deadline_s == 0.02 * 2**4
    while not any(request.prompt_tokens[1] == WORDS.index("w2") for request in copy.asked.values()):
        await settle()
    copy.say("yes", list(copy.asked)[-1])
    result = await future
    assert (result.outcome, result.reward, result.attempts) == ("ok", 1.0, 5)
    assert pool.stats()["again"] == 4


@judging()
async def test_one_long_question_alone_never_has_a_healthy_copy_replaced(pool, copy):
    future = pool.score("slow", "w1", "w2", None, deadline_s=0.02)
    for _ in range(3):  # late, each time with nothing else to answer: then a test question
        await copy.is_tested()
        copy.say("no")
        await settle()
    assert copy.alive and not future.done()
    copy.say("yes")
    assert (await future).reward == 1.0
    assert (pool.stats()["tests"], pool.stats()["died"]) == (3, 0)


@judging(test_s=0.02)
async def test_a_copy_that_does_not_answer_a_test_question_is_replaced(pool, copy):
    future = pool.score("s", "w1", "w2", None, deadline_s=0.02)
    while copy.alive:
        await asyncio.sleep(0.01)
    assert not future.done()
    copy.come_back()
    await settle()
    copy.say("yes")
    assert (await future).reward == 1.0


@judging()
async def test_a_question_with_which_copy_after_copy_dies_is_given_up(pool, copy):
    (future,) = ask(pool, 1)
    for _ in range(3):
        await settle()
        copy.fail("killed")
        copy.come_back()
    result = await future
    assert result.outcome == "infra_failed" and "3 copies of the judge died" in result.detail
    await settle()
    assert copy.asked == {}


def test_a_live_judge_that_takes_over_an_hour_ends_the_run(monkeypatch):
    monkeypatch.setattr("rlplan.executor.rewards.judge_pool.LONGEST_S", 0.04)

    @judging()
    async def body(pool, copy):
        future = pool.score("slow", "w1", "w2", None, deadline_s=0.02)
        await copy.is_tested()
        copy.say("no")
        with pytest.raises(RunFailed, match=r"is alive and judges a sample of 4 tokens not within 0.04 s"):
            await future

    body()


@judging()
async def test_what_is_no_verdict_is_never_a_value(pool, copy):
    future, other = ask(pool, 2)
    await settle()
    copy.say("ten")
    await settle()
    copy.say("ten", list(copy.asked)[-1])
    result = await future
    assert result.outcome == "infra_failed" and "wrote 'ten', which is none of its verdicts" in result.detail
    assert (result.reward, result.attempts, result.worker) == (0.0, 2, "judge-0")
    assert not other.done()


@judging()
async def test_an_abort_takes_the_question_back_and_makes_room(pool, copy):
    futures = ask(pool, 3)
    await settle()
    first = next(iter(copy.asked))
    assert pool.cancel("s0") and not pool.cancel("s0") and not pool.cancel("unknown")
    await settle()
    assert copy.aborted == [first] and len(copy.asked) == 2 and futures[0].cancelled()
    futures[1].cancel()
    await settle()
    assert len(copy.aborted) == 2 and len(copy.asked) == 1 and pool.stats()["cancelled"] == 2


@judging(copies=2)
async def test_a_judge_that_cannot_be_started_any_more_fails_its_samples(pool, first, second):
    futures = ask(pool, 2)
    await settle()
    first.give_up()
    assert not any(future.done() for future in futures), "the other copy goes on"
    second.give_up()
    for future in (*futures, pool.score("late", "w1", "w2", None)):
        with pytest.raises(RunFailed, match="was started again too often"):
            await future


@judging()
async def test_questions_that_an_engine_refuses_fail_unless_it_died(pool, copy):
    copy.refuses = ActorFailed("judge-0", "its core died")
    (lost,) = ask(pool, 1)
    await settle()
    assert not lost.done(), "its death is told, and the question asked again"
    copy.refuses = RunFailed("no such request")
    refused = pool.score("t", "w1", "w3", None)
    with pytest.raises(RunFailed, match="no such request"):
        await refused
