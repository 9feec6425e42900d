"""The reward of a sample: the sum of its parts, and what becomes of samples that cannot be scored."""

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest

from rlplan.executor.rewards.charges import RewardResult
from rlplan.executor.rewards.kinds.length_reward import beyond_target, overlong
from rlplan.executor.rollout import reward_sum
from rlplan.executor.rollout.reward_sum import PartScore, PoolSize, RewardSum, ScoredPart
from rlplan.executor.rollout.round_samples import RolloutSample
from rlplan.executor.rollout.round_scoring import HOPELESS_FAILURES, ScoringHealth, Unscored, unscored
from rlplan.plans.schema.job import Job
from rlplan.plans.yaml.errors import RunFailed
from rlplan.plans.yaml.yaml_io import loads
from rlplan.rounds.machines.events import Finished, Issue, Score
from rlplan.rounds.machines.exact import ExactShortRound
from rlplan.traces.report_state import incidents

from ..run_stage import JOB
from ..virtual_loop import played


class Asked:
    """A scorer whose futures the test resolves."""

    def __init__(self):
        self.calls, self.deadlines, self.cancelled, self.log = {}, {}, [], []

    async def start(self):
        self.log.append("start")

    async def close(self):
        self.log.append("close")

    def score(self, sample_key, prompt, response, answer, deadline_s=None):
        self.calls[sample_key] = asyncio.get_running_loop().create_future()
        self.deadlines[sample_key] = deadline_s
        return self.calls[sample_key]

    def cancel(self, sample_key):
        self.cancelled.append(sample_key)
        return self.calls[sample_key].cancel()

    def answer(self, key, reward, outcome="ok", seconds=1.0, detail=""):
        self.calls[key].set_result(RewardResult(reward, seconds, outcome, detail, 2, "w"))


def summing(body):
    """Run `body(reward, code, shape)` on a reward of code, format and length."""

    async def run():
        code, shape = Asked(), Asked()
        length = partial(beyond_target, target_tokens=10, per_token=0.01)
        parts = [
            ScoredPart("code", 1.0, code), ScoredPart("shape", 0.1, shape), ScoredPart("length", 0.5, of_length=length),
        ]  # fmt: skip
        return await body(RewardSum(parts), code, shape)

    return played(run())


def settle():
    return asyncio.sleep(1)


@pytest.mark.parametrize("first", ["code", "shape"])
def test_the_sum_is_the_same_whichever_part_comes_first(first):
    async def body(reward, code, shape):
        future = reward.score("a", "p", "r", None, 30, {"code": 2.0, "shape": 1.0})
        for scorer, value in ((code, 0.7), (shape, 1.0)) if first == "code" else ((shape, 1.0), (code, 0.7)):
            assert not future.done()
            scorer.answer("a", value, seconds=0.2 if scorer is code else 0.1, detail="said" if scorer is code else "")
            await settle()
        assert (code.deadlines["a"], shape.deadlines["a"]) == (2.0, 1.0) and not reward.cancel("a")
        return future.result()

    result, parts = (done := summing(body)).result, done.parts
    assert result == RewardResult(0.0 + 1.0 * 0.7 + 0.1 * 1.0 + 0.5 * (-0.01 * 20), 0.2, "ok", "code: said", 2, "w")
    assert list(parts) == ["code", "shape", "length"]
    assert parts["code"] == PartScore(0.7, 0.2, "ok", 2.0, 2) and parts["length"] == PartScore(-0.2, 0.0, "ok")


def test_a_part_scores_the_rows_that_it_names_alone():
    async def run():
        math, code = Asked(), Asked()
        every = ScoredPart("length", 0.5, of_length=lambda tokens: -1.0)
        reward = RewardSum([ScoredPart("math", scorer=math, rows=("gsm8k",)), every,
                            ScoredPart("code", scorer=code, rows=("apps", "own"))])  # fmt: skip
        futures = [reward.score(key, "p", "r", None, 5, None, (key,)) for key in ("gsm8k", "own", "other")]
        math.answer("gsm8k", 0.7)
        code.answer("own", 0.9)
        await settle()
        return [future.result() for future in futures]

    first, second, neither = played(run())
    assert (first.result.reward, list(first.parts)) == (0.7 - 0.5, ["math", "length"])
    assert (second.result.reward, list(second.parts)) == (-0.5 + 0.9, ["length", "code"])
    assert neither.result.reward == -0.5


def test_evaluations_are_scored_by_the_parts_that_they_name():
    async def run():
        math, code = Asked(), Asked()
        every = RewardSum([ScoredPart("math", 0.0, math), ScoredPart("code", 0.5, code),
                           ScoredPart("length", 0.5, of_length=lambda tokens: -1.0)])  # fmt: skip
        assert every.only(()) is every
        future = every.only(["math"]).score("a", "p", "r", None, 5)
        math.answer("a", 0.7)
        await settle()
        assert not code.deadlines
        return future.result()

    done = played(run())
    assert (done.result.reward, list(done.parts)) == (0.7, ["math"])


def test_a_part_that_times_out_scores_0_and_names_it():
    async def body(reward, code, shape):
        future = reward.score("a", "p", "r", None, 5)
        code.answer("a", 0.0, "policy_timeout", detail="no reward within 2 s")
        shape.answer("a", 1.0)
        await settle()
        return future.result()

    done = summing(body)
    assert done.result.reward == 0.1 and done.parts["shape"].outcome == "ok"
    assert (done.result.outcome, done.result.detail) == ("policy_timeout", "code: no reward within 2 s")


def test_a_machine_failure_ends_the_sample_and_its_parts():
    async def body(reward, code, shape):
        future = reward.score("a", "p", "r", None, 5)
        shape.answer("a", 0.3, "infra_failed", detail="the worker is gone")
        await settle()
        assert future.done() and code.cancelled == ["a"] and shape.cancelled == []
        return future.result()

    done = summing(body)
    assert (done.result.outcome, done.result.reward, list(done.parts)) == ("infra_failed", 0.0, ["shape", "length"])


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
        assert again.result().result.reward == 1.0
        pending = reward.score("b", "p", "r", None, 5)
        await reward.start()
        await reward.close()
        assert pending.cancelled() and code.log == shape.log == ["start", "close"]

    summing(body)


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
        reward = RewardSum([ScoredPart("length", of_length=float)])
        return reward.score("a", "p", "r", None, 7).result().result.reward

    assert asyncio.run(body()) == 7.0


@pytest.mark.parametrize(
    ("tokens", "value"), [(1, 0.0), (16384, 0.0), (16384 + 1024, -0.25), (16384 + 4096, -1.0), (30000, -1.0)]
)
def test_overlong_is_equation_13_of_dapo_with_its_own_figures(tokens, value):
    assert overlong(tokens, max_tokens=20480, cache_tokens=4096) == value


def test_parts_of_a_reward_have_pools_seated_in_order(monkeypatch, tmp_path):
    made, paths = [], SimpleNamespace(reward_folder=tmp_path)

    class Pool(Asked):
        def __init__(self, config, workers, *, retries, name, supervisor, placer, first_worker):
            super().__init__()
            made.append((name, workers, retries, first_worker, config.deadline_s))
            self.facts = lambda: {0: SimpleNamespace(notes=["no cgroups", f"no {name}"])}

    monkeypatch.setattr(reward_sum, "RewardPool", Pool)
    parts = """
  - {kind: format, pattern: 'a|b', deadline_s: 1.0, weight: 0.5}
  - {kind: math, name: right, deadline_s: 2.0, retries: 3}
  - {kind: length, target_tokens: 2, per_token: 0.25, weight: 2.0}
  - {kind: judge, model: m/m, prompt: "Is {response} right?", scale: [0, 4], deadline_s: 5.0}"""
    job, judge = loads(JOB.replace("{kind: math, workers: 1, deadline_s: 5.0}", parts), Job), Asked()
    sizes = {"right": PoolSize(3, 2.5), "format": PoolSize(2, 1.5)}
    reward = RewardSum.of_job(job, paths, sizes, judge=judge)
    assert made == [("reward", 3, 3, 0, 2.5), ("reward-format", 2, 2, 3, 1.5)]
    assert reward.notes() == ["no cgroups", "no reward", "no reward-format"] and reward.scorer("judge") is judge
    assert len(RewardSum.of_job(job, paths, sizes).scorers) == 2, "without its judge"

    async def body():
        future = reward.score("a", "p", "r", None, 4)
        for name, value in (("format", 1.0), ("right", 1.0), ("judge", 0.25)):
            reward.scorer(name).answer("a", value)
        await settle()
        return future.result().result.reward

    assert played(body()) == 0.5 + 1.0 + 2.0 * -0.5 + 0.25


CUTOFF = 8


def scored_round(outcomes, number=3):
    """An exact short round whose samples all end short; those of prompt p get the outcome `outcomes[p]`, else ok."""
    health = ScoringHealth(number)
    machine = ExactShortRound([f"p{i}" for i in range(number)], number, 2, CUTOFF, 64)
    samples, told = [], []
    actions = machine.start()
    while actions:
        action = actions.pop(0)
        prompt = machine.draws[action.key.draw].prompt
        if isinstance(action, Issue):
            actions += machine.handle(Finished(action.key, 3, truncated=False))
        elif isinstance(action, Score):
            outcome = outcomes.get(prompt, "ok")
            result = RewardResult(float(outcome == "ok"), 0.1, outcome, f"why {outcome}", 1, "w")
            draw, sample = action.key
            samples.append(
                RolloutSample(prompt, sample, (), draw=draw, reward_outcome=outcome, reward_detail=result.detail)
            )
            told.append(health.event(action.key, prompt, result))
            if isinstance(told[-1], RunFailed):
                break
            actions += machine.handle(told[-1])
    return machine, samples, told


@pytest.mark.parametrize("outcome", ["function_error", "policy_crash", "policy_memory", "policy_error"])
def test_what_a_response_causes_is_reward_0_and_never_redraws_its_group(outcome):
    machine, samples, _ = scored_round({"p1": outcome})
    assert machine.done and len(machine.draws) == 3, "no group was drawn a second time"
    groups = {group.prompt: group.rewards for group in machine.outcome().trained}
    assert groups == {"p0": (1.0, 1.0), "p1": (0.0, 0.0), "p2": (1.0, 1.0)}
    assert unscored(samples) == ({} if outcome == "policy_error" else {outcome: Unscored(2, f"why {outcome}")})


def test_what_no_response_can_cause_redraws_the_group_and_reports_its_prompt():
    machine, _, _ = scored_round({"p1": "infra_failed"})
    outcome = machine.outcome()
    assert [group.prompt for group in outcome.trained] == ["p0", "p2"]
    assert outcome.failures == {"p1": "why infra_failed"} and len(machine.draws) > 3


def test_a_run_in_which_nothing_can_be_scored_ends_with_the_reason():
    _, _, told = scored_round({f"p{i}": "function_error" for i in range(8)}, 8)
    says = "none of the last 16 samples could be scored: "
    assert [str(item) for item in told if isinstance(item, RunFailed)] == [f"{says}why function_error"]
    health = ScoringHealth(100)
    for number in range(HOPELESS_FAILURES - 1):
        if number % 4 == 0:
            health.begin_round()
        assert health.hear(f"p{number // 4}", "policy_crash", "x") is None
    assert health.hear("p9", "policy_crash", "x") == f"{says}x", "of small rounds too"


def test_a_round_with_hardly_any_scores_ends_the_run():
    health = ScoringHealth(100)
    said = [health.hear(f"p{n % 10}", "ok" if n in (7, 15) else "function_error", "x") for n in range(40)]
    assert next(text for text in said if text) == "only 2 of the round's 20 samples could be scored: x"
    health = ScoringHealth(100)
    assert not any(health.hear(f"p{i}", "ok" if i % 3 == 0 else "function_error", "x") for i in range(200))
    assert not any(health.hear("bad", "function_error", "KeyError") for _ in range(64)), "one bad row ends no run"
    assert ScoringHealth(1).hear("p", "ok", "") is None and ScoringHealth(1)._enough == 1


def test_a_report_tells_of_samples_that_could_not_be_scored():
    event = {
        "event": "unscored",
        "t_s": 1.5,
        "step": 2,
        "outcome": "function_error",
        "samples": 3,
        "reason": "KeyError",
    }
    [found] = incidents([event], [])
    assert (found["kind"], found["step"]) == ("unscored", 2)
    assert found["text"] == "function_error of 3 samples, the first: KeyError"
