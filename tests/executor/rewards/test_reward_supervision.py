"""Who starts and replaces reward workers, and whom a failure is charged to: actors that do as the test says, no Ray."""

import asyncio
import logging
from types import SimpleNamespace

import pytest

from rlplan.executor.processes.faults import ActorFailed
from rlplan.executor.processes.supervision import STARTS_IN_A_ROW, Patience, Supervisor
from rlplan.executor.rewards import process as processes
from rlplan.executor.rewards.charges import ScoringSample
from rlplan.executor.rewards.functions import ScorerConfig
from rlplan.executor.rewards.pool import RewardPool, SampleQueue
from rlplan.executor.rewards.process import RewardPoolDown, RewardProcess, WorkerDied
from rlplan.executor.rewards.scoring import ScoringResult
from rlplan.executor.rewards.worker import WorkerFacts
from rlplan.plans.yaml.errors import InputError, RunFailed

from ..engines.engine_fakes import Method

CONFIG = ScorerConfig("function", "any:any", 5.0)
UP = WorkerFacts(problem=None, failure=None, alarm_s=6.0, pid=1)


@pytest.fixture(autouse=True)
def short_and_silent(monkeypatch):
    monkeypatch.setattr(processes, "CLOSE_S", 0.05)
    logging.getLogger("rlplan").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("rlplan").setLevel(logging.NOTSET)


class FakeWorker:
    """A worker's actor. `start`: what it says when it is started, an error to raise, or "stopped".

    `says` has what becomes of a response: outcomes in turn, the last for all that follow; "hang", "die" or "renew" are
    of the actor.
    """

    def __init__(self, start, says):
        self.start, self.says = start, says
        self.dead = self.stopped = False
        self.calls, self.batches = [], []

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
        return await self._score(*arguments) if method == "score" else None

    async def _score(self, rows, budget_s):
        self.batches.append([response for _, response, _, _ in rows])
        results = []
        for _, response, _, _ in rows:
            outcomes = self.says.get(response, ["ok"])
            outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
            if outcome == "hang":
                await asyncio.Event().wait()
            if outcome == "die":
                self.dead = True
                raise ActorFailed("fake", "its process is gone")
            if outcome == "none":
                break
            renew, outcome = outcome == "renew", "ok" if outcome == "renew" else outcome
            results.append(ScoringResult(outcome, float(outcome == "ok"), 0.25, f"because of {response}", renew))
            if renew:
                break
        return results


class Machine:
    """Makes the actors; the first start as `starts` say, all others come up. `says` is of all of them."""

    def __init__(self, *starts, **says):
        self.starts, self.says, self.up = list(starts), says, UP
        self.made, self.spawned = [], []

    def spawn(self, *arguments):
        self.spawned.append(arguments)
        self.made.append(FakeWorker(self.starts.pop(0) if self.starts else self.up, self.says))
        return self.made[-1]

    def end(self, worker):
        worker.dead = True

    @property
    def alive(self):
        return [worker for worker in self.made if not worker.dead]

    @property
    def batches(self):
        return [batch for worker in self.made for batch in worker.batches]


async def no_pause(seconds):
    await asyncio.sleep(0)


def keeper(per_hour=12):
    return Supervisor(Patience(restarts_per_hour=per_hour), pause=no_pause)


def with_pool(machine, workers, body, supervisor=None, slack_s=30.0, alarm_s=6.0):
    machine.up = UP._replace(alarm_s=alarm_s)

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
            assert pool.stats()["unfinished"] == pool.stats()["queue"] == 0
            assert not any("serve" in task.get_name() for task in asyncio.all_tasks())

    return asyncio.run(main())


async def scored(pool, *responses):
    return await asyncio.gather(*(pool.score(str(i), "", each, None) for i, each in enumerate(responses)))


DIED = ActorFailed("fake", "killed while it started")


# ---- starts ----


@pytest.mark.parametrize("first", [DIED, "stopped", UP._replace(failure="no sandbox just now")])
def test_a_worker_lost_at_its_first_start_is_started_again(first):
    machine, supervisor = Machine(first), keeper()

    async def body():
        process = RewardProcess("reward-0", CONFIG, supervisor, 0.2, machine.spawn, machine.end)
        facts = await process.start()
        await process.discard()
        assert process.facts is None
        return facts

    assert asyncio.run(body()).alarm_s == 6.0
    assert [name for name, *_ in machine.spawned] == ["reward-0", "reward-0.1"] and not machine.alive
    assert supervisor.failures("reward-0") == 1


@pytest.mark.parametrize(
    ("start", "error", "says", "starts"),
    [
        (DIED, RunFailed, "reward-0 did not start: killed while it started", STARTS_IN_A_ROW),
        (UP._replace(problem="no such function"), InputError, "no such function", 1),
    ],
)
def test_a_worker_that_never_comes_up_ends_the_start_with_its_reason(start, error, says, starts):
    machine = Machine(*[start] * 9)
    with pytest.raises(error, match=says):
        with_pool(machine, 1, None)
    assert len(machine.made) == starts


def test_a_worker_keeps_its_node_and_restarts_in_less_time():
    async def seat_of(number):
        return SimpleNamespace(node_id=f"node {number}")

    async def body():
        seats = SimpleNamespace(worker=seat_of)
        process = RewardProcess("r", CONFIG, keeper(), spawn=machine.spawn, end=machine.end, seats=seats, number=3)
        assert process._start_deadline_s() == 300.0
        await process.start()
        assert process._start_deadline_s() == 120.0
        machine.made[0].dead = True
        with pytest.raises(WorkerDied, match=r"reward worker r died: ActorFailed: .*its process is gone"):
            await process.ping(5.0)
        await process.close()

    machine = Machine()
    asyncio.run(body())
    assert machine.spawned == [("r", CONFIG, "node 3")]


# ---- deaths ----


def test_deaths_beyond_the_hours_budget_end_a_worker_and_then_the_pool():
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
    assert isinstance(last, RewardPoolDown) and len(machine.made) == 3


@pytest.mark.parametrize("how", ["dead", "stopped"])
@pytest.mark.parametrize("samples", [1, 4])
def test_workers_lost_while_they_were_idle_cost_no_sample_anything(how, samples):
    async def body(pool):
        await pool.score("witness", "", "x", None)
        for worker in machine.made:
            setattr(worker, how, True)
        return await scored(pool, *["x"] * samples), pool.stats()

    machine = Machine()
    results, stats = with_pool(machine, 2, body, slack_s=0.2)
    assert {(result.outcome, result.reward, result.attempts) for result in results} == {("ok", 1.0, 1)}
    assert (stats["retried"], stats["policy_crash"], stats["policy_timeout"]) == (0, 0, 0)
    assert 1 <= stats["restarted"] <= 2


@pytest.mark.parametrize("answer", ["none", "more"])
def test_a_worker_with_a_wrong_number_of_results_is_replaced(answer):
    class More(FakeWorker):
        async def _score(self, rows, budget_s):
            return 2 * await super()._score(rows, budget_s)

    async def body(pool):
        if answer == "more":
            machine.made[0].__class__ = More
        return (await scored(pool, "a"))[0], pool.stats()

    machine = Machine(a=["none", "ok"] if answer == "none" else ["ok"])
    result, stats = with_pool(machine, 1, body)
    assert (result.outcome, result.attempts, stats["restarted"]) == ("ok", 2, 1)


# ---- charges ----


@pytest.mark.parametrize(
    ("outcomes", "witness", "outcome", "attempts", "retried"),
    [
        (["policy_timeout"], "ok", "policy_timeout", 1, 0),
        (["policy_error"], "ok", "policy_error", 1, 0),
        (["function_error", "ok"], "ok", "ok", 2, 1),
        (["function_error"], "ok", "function_error", 3, 2),
        (["function_error"], "policy_error", "function_error", 3, 2),
        (["function_error"], "function_error", "infra_failed", 3, 4),
        (["policy_memory"], "ok", "policy_memory", 2, 1),
        (["policy_crash", "policy_memory", "ok"], "ok", "ok", 3, 2),
        (["infra_failed"], "ok", "infra_failed", 3, 2),
        (["die"], "ok", "policy_crash", 2, 1),
        (["hang"], "ok", "policy_timeout", 2, 1),
    ],
)
def test_a_failure_is_charged_after_its_tries_and_with_a_witness(outcomes, witness, outcome, attempts, retried):
    async def body(pool):
        (first,) = await scored(pool, "witness")
        machine.says["witness"] = [witness]
        (result,) = await scored(pool, "bad")
        return first, result, pool.stats()

    machine = Machine(bad=list(outcomes))
    first, result, stats = with_pool(machine, 1, body, slack_s=0.25, alarm_s=0.05)
    assert first.outcome == "ok"
    assert (result.outcome, result.reward, result.attempts) == (outcome, float(outcome == "ok"), attempts)
    assert (stats["retried"], stats[outcome]) == (retried, 1 + (outcome == "ok"))
    assert (result.worker, stats["unfinished"]) == ("reward-0", 0)
    assert ("because of bad" in result.detail) == (outcomes[-1] not in ("die", "hang"))


def test_a_failure_is_charged_at_once_where_nothing_was_scored_before():
    machine = Machine(bad=["policy_memory"])
    (result,) = with_pool(machine, 1, lambda pool: scored(pool, "bad"))
    assert (result.outcome, result.attempts) == ("policy_memory", 2) and machine.batches == [["bad"], ["bad"]]


@pytest.mark.parametrize("fate", ["die", "hang"])
def test_a_response_that_costs_workers_takes_no_other_sample_along(fate):
    machine = Machine(bad=[fate])

    async def body(pool):
        return await scored(pool, "a", "b", "bad", "c"), pool.stats()

    results, stats = with_pool(machine, 1, body, slack_s=0.25, alarm_s=0.05)
    outcome = "policy_crash" if fate == "die" else "policy_timeout"
    assert [result.outcome for result in results] == ["ok", "ok", outcome, "ok"]
    # Once in company, which alone charges it with nothing.
    assert results[2].attempts == (3 if fate == "die" else 2) and stats["restarted"] == results[2].attempts
    assert machine.batches[0] == ["a", "b", "bad", "c"] and all(len(batch) == 1 for batch in machine.batches[1:])


def test_a_worn_process_is_renewed_and_the_rest_comes_first():
    machine = Machine(b=["renew", "ok"])

    async def body(pool):
        return await scored(pool, "a", "b", "c", "d", "e"), pool.stats(), pool.facts()

    results, stats, facts = with_pool(machine, 1, body)
    assert {(result.outcome, result.attempts) for result in results} == {("ok", 1)}
    assert machine.batches == [["a", "b", "c", "d"], ["c"], ["d"], ["e"]], "a sample takes 0.25 s, so they go alone"
    assert (stats["renewed"], stats["restarted"], machine.made[0].calls.count("ready")) == (1, 0, 2)
    assert facts == {"reward-0": UP}


def test_a_worker_whose_process_cannot_be_renewed_is_replaced():
    machine = Machine(a=["renew", "ok"])

    async def body(pool):
        machine.made[0].start = UP._replace(failure="no memory")
        return (await scored(pool, "a", "b")), pool.stats()

    results, stats = with_pool(machine, 1, body)
    assert [result.outcome for result in results] == ["ok", "ok"]
    assert (stats["renewed"], stats["restarted"], len(machine.made)) == (1, 1, 2)


def test_cancelled_samples_are_dropped_and_their_keys_free():
    machine = Machine(slow=["hang"])

    async def body(pool):
        running = pool.score("running", "", "slow", None)
        while not machine.batches:
            await asyncio.sleep(0.001)
        queued, own = pool.score("queued", "", "x", None), pool.score("own", "", "x", None)
        assert pool.stats()["queue"] == 2 and pool.stats()["unfinished"] == 3
        with pytest.raises(AssertionError, match="being scored already"):
            pool.score("queued", "", "x", None)
        assert pool.cancel("running") and pool.cancel("queued")
        assert not pool.cancel("queued") and not pool.cancel("never seen")
        own.cancel()
        again = await pool.score("queued", "", "fine", None)
        return [each.cancelled() for each in (running, queued, own)], again.outcome, pool.stats()

    cancelled, outcome, stats = with_pool(machine, 1, body, slack_s=0.25, alarm_s=0.05)
    assert cancelled == [True] * 3 and outcome == "ok"
    assert (stats["cancelled"], stats["ok"], stats["policy_timeout"]) == (3, 1, 0)


def test_a_sample_has_its_own_deadline_within_the_pools():
    async def body(pool):
        for deadline_s in (5.1, 0.0):
            with pytest.raises(AssertionError, match="in a pool of 5 s"):
                pool.score("a", "", "x", None, deadline_s)
        rows = []
        process = pool._workers[0]
        process.score, score = (lambda *a, **k: rows.append((a, k)) or score(*a, **k)), process.score
        await asyncio.gather(pool.score("a", "p", "x", 7, 1.5), pool.score("b", "q", "y", None))
        return rows

    ((arguments, limits),) = with_pool(Machine(), 1, body, slack_s=10.0)
    assert arguments == ([("p", "x", 7, 1.5), ("q", "y", None, 5.0)],)
    assert limits == {"budget_s": 6.0, "limit_s": 22.0}, "an alarm of 6 s twice, and the slack"


def test_an_error_of_the_pools_own_leaves_nobody_waiting():
    async def body(pool):
        pool._settle = None
        with pytest.raises(RewardPoolDown, match="reward-0 serve ended unexpectedly: TypeError"):
            await pool.score("a", "", "x", None)

    with_pool(Machine(), 1, body)


# ---- the queue ----


def batches_of(queue, count, idle=1):
    async def take():
        queue._idle_workers = idle - 1
        return [[sample.key for sample in await queue.next_batch()] for _ in range(count)]

    return asyncio.run(asyncio.wait_for(take(), 5))


def queue_of(*names, solo=()):
    queue, loop = SampleQueue(), asyncio.new_event_loop()
    for name in names:
        queue.put(ScoringSample(name, "", "", None, 1.0, loop.create_future()), solo=name in solo)
    loop.close()
    return queue


def test_batches_grow_with_the_speed_of_rewards_and_leave_some_for_others():
    names = [str(number) for number in range(100)]
    assert batches_of(queue_of(*names), 1) == [names[:4]], "before the seconds of a sample are known"
    assert batches_of(queue_of(*names[:5]), 1, idle=2) == [names[:3]]
    queue = queue_of(*names)
    queue.learn(0.1)
    queue.learn(0.2)  # 0.11 s in the mean
    assert batches_of(queue, 1) == [names[:2]]
    queue = queue_of(*names)
    queue.learn(1e-6)
    assert [len(batch) for batch in batches_of(queue, 4)] == [32, 32, 32, 4]
    queue = queue_of(*names[:2])
    queue.learn(9.0)
    assert batches_of(queue, 2) == [["0"], ["1"]]


def test_suspects_go_alone_and_last_and_cancelled_samples_not_at_all():
    queue = queue_of("a", "bad", "b", "worse", "c", solo=("bad", "worse"))
    queue._shared[1].future.cancel()
    assert len(queue) == 4
    assert batches_of(queue, 3) == [["a", "c"], ["bad"], ["worse"]]
    queue, loose = queue_of("a"), queue_of("x", "y", "z")
    queue.put_back(list(loose._shared)[:1])
    queue.put_back(list(loose._shared)[1:])
    queue.put_first([])
    assert batches_of(queue, 2) == [["y", "z", "a"], ["x"]], "one alone may be a suspect"
    queue.clear()
    assert len(queue) == 0
