"""The sum of a reward's parts: added up in order, known with the last part, and nothing of it is waited for in vain."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from rlplan.executor.rewards.charges import RewardResult
from rlplan.executor.rewards.kinds.length_reward import beyond_target, overlong
from rlplan.executor.rollout.reward_sum import PartScore, RewardPart, RewardSum


class Asked:
    """A scorer whose futures the test resolves."""

    def __init__(self) -> None:
        self.calls: dict[str, asyncio.Future[RewardResult]] = {}
        self.deadlines: dict[str, float | None] = {}
        self.cancelled: list[str] = []

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def score(self, sample_key, prompt, response, answer, deadline_s=None):
        self.calls[sample_key] = asyncio.get_running_loop().create_future()
        self.deadlines[sample_key] = deadline_s
        return self.calls[sample_key]

    def cancel(self, sample_key):
        self.cancelled.append(sample_key)
        return self.calls[sample_key].cancel()

    def answer(self, key, reward, outcome="ok", seconds=1.0, detail=""):
        self.calls[key].set_result(RewardResult(reward, seconds, outcome, detail, 1, "w"))


def summing(body):
    """Run `body(reward, code, shape)` on a reward of code, format and length."""

    async def run():
        code, shape = Asked(), Asked()
        length = partial(beyond_target, target_tokens=10, per_token=0.01)
        parts = [
            RewardPart("code", 1.0, code),
            RewardPart("shape", 0.1, shape),
            RewardPart("length", 0.5, of_length=length),
        ]
        return await body(RewardSum(parts), code, shape)

    return asyncio.run(run())


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("first", ["code", "shape"])
def test_the_sum_is_the_same_whichever_part_comes_first(first):
    async def body(reward, code, shape):
        future = reward.score("a", "p", "r", None, 30, {"code": 2.0, "shape": 1.0})
        for scorer, value in ((code, 0.7), (shape, 1.0)) if first == "code" else ((shape, 1.0), (code, 0.7)):
            assert not future.done()
            scorer.answer("a", value, seconds=0.2 if scorer is code else 0.1)
            await settle()
        assert (code.deadlines["a"], shape.deadlines["a"]) == (2.0, 1.0)
        return future.result()

    result, parts = (done := summing(body)).result, done.parts
    assert result.reward == 0.0 + 1.0 * 0.7 + 0.1 * 1.0 + 0.5 * (-0.01 * 20)
    assert (result.outcome, result.seconds) == ("ok", 0.2)
    assert list(parts) == ["code", "shape", "length"]
    assert parts["length"] == PartScore(-0.2, 0.0, "ok")


def test_a_part_that_times_out_is_worth_0_and_names_the_samples_outcome():
    async def body(reward, code, shape):
        future = reward.score("a", "p", "r", None, 5)
        code.answer("a", 0.0, "policy_timeout", detail="no reward within 2 s")
        shape.answer("a", 1.0)
        await settle()
        return future.result()

    done = summing(body)
    assert done.result.reward == 0.1
    assert (done.result.outcome, done.result.detail) == ("policy_timeout", "code: no reward within 2 s")
    assert done.parts["shape"].outcome == "ok"


def test_a_failure_of_the_machine_ends_the_sample_at_once_and_cancels_its_other_parts():
    async def body(reward, code, shape):
        future = reward.score("a", "p", "r", None, 5)
        shape.answer("a", 0.0, "infra_failed", detail="the worker is gone")
        await settle()
        assert future.done() and code.cancelled == ["a"]
        assert not reward.cancel("a")
        return future.result()

    assert summing(body).result.outcome == "infra_failed"


def test_an_abort_cancels_all_parts_and_the_key_can_be_used_again():
    async def body(reward, code, shape):
        future = reward.score("a", "p", "r", None, 5)
        assert reward.cancel("a") and not reward.cancel("a")
        await settle()
        assert future.cancelled() and code.cancelled == shape.cancelled == ["a"]
        again = reward.score("a", "p", "r", None, 5)
        code.answer("a", 1.0)
        shape.answer("a", 0.0)
        await settle()
        return again.result()

    assert summing(body).result.reward == 1.0


def test_a_pool_without_workers_fails_the_sample_and_leaves_no_part_behind():
    async def body(reward, code, shape):
        future = reward.score("a", "p", "r", None, 5)
        code.calls["a"].set_exception(RuntimeError("no worker can be started"))
        await settle()
        assert shape.cancelled == ["a"]
        return str(future.exception())

    assert summing(body) == "no worker can be started"


def test_a_reward_of_lengths_alone_is_known_with_the_sample():
    async def body():
        reward = RewardSum([RewardPart("length", of_length=float)])
        return reward.score("a", "p", "r", None, 7).result().result.reward

    assert asyncio.run(body()) == 7.0


@pytest.mark.parametrize(
    ("tokens", "value"),
    [(1, 0.0), (16384, 0.0), (16384 + 1024, -0.25), (16384 + 4096, -1.0), (30000, -1.0)],
)
def test_overlong_is_equation_13_of_dapo_with_its_own_figures(tokens, value):
    assert overlong(tokens, max_tokens=20480, cache_tokens=4096) == value
