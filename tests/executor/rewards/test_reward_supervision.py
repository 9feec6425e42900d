"""Who starts and replaces reward workers, and whom a death is charged to: actors that do as the test says, no Ray."""

from __future__ import annotations

import asyncio
import logging

import pytest

pytest.importorskip("ray")

from rlplan.executor.faults import ActorFailed
from rlplan.executor.rewards.functions import ScorerConfig
from rlplan.executor.rewards.pool import RewardPool
from rlplan.executor.rewards.process import START_S, RewardProcess, WorkerDied
from rlplan.executor.rewards.scoring import Scored
from rlplan.executor.rewards.worker import WorkerFacts
from rlplan.executor.supervision import STARTS_IN_A_ROW, Patience, Supervisor
from rlplan.plans.yaml.errors import InputError, RunFailed

from ..engines.engine_fakes import Method

CONFIG = ScorerConfig("function", "any:any", 5.0)
UP = WorkerFacts(problem=None, failure=None, alarm_s=6.0, pid=1)


class FakeWorker:
    """A worker's actor. `start`: what it says when it is started, an error to raise, or "stopped"."""

    def __init__(self, start, deadly=()):
        self.start, self.deadly = start, deadly
        self.dead = self.stopped = False
        self.calls = []

    def __getattr__(self, method):
        return Method(lambda *arguments: self._call(method, *arguments))

    async def _call(self, method, *arguments):
        if self.stopped or self.start == "stopped":
            await asyncio.Event().wait()
        if self.dead:
            raise ActorFailed("fake", "its process is gone")
        self.calls.append(method)
        if method == "ready":
            if isinstance(self.start, Exception):
                raise self.start
            return self.start
        if method == "score":
            rows, _ = arguments
            if self.deadly and any(response in self.deadly for _, response, _, _ in rows):
                self.dead = True
                raise ActorFailed("fake", "its process is gone")
            return [Scored("ok", 1.0, 0.0, "") for _ in rows]
        return None


class Machine:
    """Makes the actors; the first start as `starts` say, all others come up."""

    def __init__(self, *starts, deadly=()):
        self.starts, self.deadly = list(starts), deadly
        self.made = []
        self.ended = []

    def spawn(self, actor_name, arguments, node_id):
        worker = FakeWorker(self.starts.pop(0) if self.starts else UP, self.deadly)
        self.made.append(worker)
        return worker

    def end(self, worker):
        worker.dead = True
        self.ended.append(worker)

    @property
    def alive(self):
        return [worker for worker in self.made if not worker.dead]


async def no_pause(seconds):
    await asyncio.sleep(0)


def keeper(per_hour=12):
    return Supervisor(Patience(restarts_per_hour=per_hour), pause=no_pause)


def one_process(machine, supervisor, start_s=START_S):
    return RewardProcess("reward-0", CONFIG, supervisor, start_s, machine.spawn, machine.end)


def with_pool(machine, workers, body, supervisor=None, slack_s=30.0):
    async def main():
        pool = RewardPool(CONFIG, workers, slack_s=slack_s, supervisor=supervisor or keeper())
        for process in pool._workers:
            process._spawn, process._end = machine.spawn, machine.end
        await pool.start()
        try:
            return await asyncio.wait_for(body(pool), 60)
        finally:
            await pool.close()
            assert not machine.alive, "closing leaves no actor"

    logging.getLogger("rlplan").setLevel(logging.CRITICAL)
    return asyncio.run(main())


DIED = ActorFailed("fake", "killed while it started")


@pytest.mark.parametrize("first", [DIED, "stopped", UP._replace(failure="no sandbox just now")])
def test_a_worker_that_dies_or_is_stopped_at_its_first_start_is_started_again_by_the_runs_supervisor(first):
    machine, supervisor = Machine(first), keeper()

    async def body():
        process = one_process(machine, supervisor, start_s=0.2)
        facts = await process.start()
        await process.discard()
        return facts

    assert asyncio.run(body()).alarm_s == 6.0
    assert len(machine.made) == 2 and not machine.alive
    assert supervisor.failures("reward-0") == 1


def test_a_worker_that_never_comes_up_ends_the_start_with_its_reason_and_leaves_no_actor():
    machine = Machine(*[DIED] * 9)
    with pytest.raises(RunFailed, match="reward-0 did not start: killed while it started"):
        with_pool(machine, 1, None)
    assert len(machine.made) == STARTS_IN_A_ROW


def test_an_unusable_reward_function_is_told_at_once():
    machine = Machine(UP._replace(problem="no such function"))
    with pytest.raises(InputError, match="no such function"):
        with_pool(machine, 1, None)
    assert len(machine.made) == 1


def test_a_start_has_five_minutes_at_most_and_less_once_it_is_known_what_one_takes():
    async def body():
        process = one_process(Machine(), keeper())
        first = process._start_deadline_s()
        await process.start()
        return first, process._start_deadline_s()

    assert asyncio.run(body()) == (300.0, 120.0)


def test_deaths_of_a_worker_beyond_the_hours_budget_end_it_and_those_of_the_last_one_the_pool():
    async def body(pool):
        said = []
        for number in range(4):
            machine.made[-1].dead = True
            said += await asyncio.gather(pool.score(str(number), "", "x", None), return_exceptions=True)
        return said

    machine = Machine()
    *scored, last, after = with_pool(machine, 1, body, keeper(per_hour=2))
    assert [result.outcome for result in scored] == ["ok", "ok"]
    assert "reward-0 was started again 2 times within an hour, which is the limit" in str(last) == str(after)
    assert len(machine.made) == 3


@pytest.mark.parametrize("how", ["dead", "stopped"])
@pytest.mark.parametrize("samples", [1, 4])
def test_workers_that_are_gone_before_they_are_handed_a_sample_cost_it_nothing(how, samples):
    async def body(pool):
        await pool.score("witness", "", "x", None)
        for worker in machine.made:
            setattr(worker, how, True)
        results = await asyncio.gather(*(pool.score(str(i), "", "x", None) for i in range(samples)))
        return results, pool.stats()

    machine = Machine()
    results, stats = with_pool(machine, 2, body, slack_s=0.2)
    assert {(result.outcome, result.reward, result.attempts) for result in results} == {("ok", 1.0, 1)}
    assert (stats["retried"], stats["policy_crash"], stats["policy_timeout"]) == (0, 0, 0)
    assert 1 <= stats["restarted"] <= 2


def test_a_response_that_ends_each_worker_that_it_was_handed_to_is_a_crash_and_only_its_own():
    async def body(pool):
        return await asyncio.gather(*(pool.score(r, "", r, None) for r in ("a", "b", "die", "c")))

    results = with_pool(Machine(deadly=("die",)), 2, body)
    assert [result.outcome for result in results] == ["ok", "ok", "policy_crash", "ok"]


@pytest.mark.parametrize("answers", [0, 2])
def test_a_worker_that_answers_with_too_few_or_too_many_results_is_replaced_and_the_pool_stays(answers):
    class Wrong(FakeWorker):
        async def _call(self, method, *arguments):
            said = await super()._call(method, *arguments)
            return said * answers if method == "score" else said

    async def body(pool):
        machine.made[0].__class__ = Wrong
        return await pool.score("a", "", "x", None), pool.stats()

    machine = Machine()
    result, stats = with_pool(machine, 1, body)
    assert (result.outcome, result.attempts, stats["restarted"]) == ("ok", 2, 1)


def test_a_call_to_a_worker_that_is_gone_says_so():
    async def body():
        machine = Machine()
        process = one_process(machine, keeper())
        await process.start()
        machine.made[0].dead = True
        with pytest.raises(WorkerDied, match="reward worker reward-0 died"):
            await process.ping(5.0)

    asyncio.run(body())
