"""The pool of reward workers over real Ray workers."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from rlplan.executor.rewards.functions import ScorerConfig
from rlplan.plans.yaml.errors import InputError

HERE = Path(__file__).parent


def pids(pool):
    return {name: facts.pid for name, facts in pool.facts().items()}


@pytest.fixture(scope="module")
def ray_here():
    ray = pytest.importorskip("ray")
    mine = not ray.is_initialized()
    if mine:
        ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
    yield ray
    if mine:
        ray.shutdown()


def run_pool(name, body, *, workers=1, deadline_s=5.0, retries=2, slack_s=1.0):
    """Run `await body(pool)` with a pool over the fake `name`, and check that closing leaves nothing behind."""
    from rlplan.executor.rewards.pool import RewardPool

    async def main():
        config = ScorerConfig("function", f"reward_fakes:{name}", deadline_s, str(HERE))
        pool = RewardPool(config, workers, retries=retries, slack_s=slack_s)
        await pool.start()
        try:
            return await asyncio.wait_for(body(pool), 60)
        finally:
            started = pids(pool).values()
            processes = list(pool._workers)
            await pool.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert not pool._samples and not pool._queue
            assert not any(process._calls for process in processes)
            await all_gone(started)

    return asyncio.run(main())


async def all_gone(pids):
    until = time.monotonic() + 5
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < until, "a reward worker outlived its pool by 5 s"
        await asyncio.sleep(0.02)


def alive(pid):
    try:
        # A zombie waits for Ray to reap it and runs no more.
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # gone, or gone between opening and reading
        return False


@pytest.mark.engine
def test_200_samples_get_each_its_own_reward(ray_here):
    async def body(pool):
        results = await asyncio.gather(*(pool.score(f"p/{i}", "?", "x" * i, 1000) for i in range(200)))
        return results, pool.stats()

    results, stats = run_pool("length", body, workers=2)
    assert [result.reward for result in results] == [1000.0 + i for i in range(200)]
    assert {(result.outcome, result.detail, result.attempts) for result in results} == {("ok", "", 1)}
    assert {result.worker for result in results} == {"reward-0", "reward-1"}
    assert (stats["ok"], stats["retried"], stats["queue"], stats["unfinished"]) == (200, 0, 0, 0)


@pytest.mark.engine
def test_a_response_that_times_out_alone_scores_0(ray_here):
    async def body(pool):
        began = time.monotonic()
        keys = ["a", "sleep 1", "b", "sleep 2", "c"]
        results = await asyncio.gather(*(pool.score(key, "", key, None) for key in keys))
        return results, pool.stats(), time.monotonic() - began

    results, stats, took_s = run_pool("sleep_on_demand", body, deadline_s=0.5)
    assert [result.reward for result in results] == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert [result.outcome for result in results] == ["ok", "policy_timeout", "ok", "policy_timeout", "ok"]
    assert results[1].detail == "no reward within 0.5 s"
    assert (stats["policy_timeout"], stats["restarted"], stats["ok"]) == (2, 0, 3)
    assert took_s < 10


@pytest.mark.engine
@pytest.mark.parametrize("how", ["blocked signal", "loop in C"])
def test_a_hang_that_no_alarm_reaches_costs_only_its_process(ray_here, how):
    async def body(pool):
        futures = [pool.score(str(i), "", how if i == 3 else "fine", None) for i in range(12)]
        others = await asyncio.gather(*(future for i, future in enumerate(futures) if i != 3))
        return others, await futures[3], pool.stats()

    others, hung, stats = run_pool("hang_on_demand", body, workers=2, deadline_s=0.2, slack_s=0.8)
    assert {(result.outcome, result.reward) for result in others} == {("ok", 1.0)}
    assert (hung.outcome, hung.reward, hung.attempts) == ("policy_timeout", 0.0, 1)
    assert hung.detail == "no reward within 0.2 s, and no end either: killed"
    assert (stats["ok"], stats["policy_timeout"]) == (11, 1)
    assert (stats["restarted"], stats["renewed"]) == (0, 1)


@pytest.mark.engine
def test_a_worker_killed_in_mid_call_scores_each_sample_once(ray_here):
    async def body(pool):
        settled = []
        futures = [pool.score(str(i), "", "x" * i, None) for i in range(60)]
        for i, future in enumerate(futures):
            future.add_done_callback(lambda done, i=i: settled.append(i))
        while len(settled) < 10:
            await asyncio.sleep(0.01)
        before = pids(pool)
        os.kill(before["reward-0"], signal.SIGKILL)
        results = await asyncio.gather(*futures)
        return results, settled, before, pids(pool), pool.stats()

    results, settled, before, after, stats = run_pool("slow_length", body, workers=2)
    assert [result.reward for result in results] == [float(i) for i in range(60)]
    assert sorted(settled) == list(range(60))
    assert (stats["ok"], stats["restarted"]) == (60, 1)
    # 1 if it died in the moment between two calls, where no sample was with it.
    assert max(result.attempts for result in results) in (1, 2)
    assert after["reward-1"] == before["reward-1"]


@pytest.mark.engine
def test_workers_killed_while_they_were_idle_cost_the_next_sample_nothing(ray_here):
    async def body(pool):
        await pool.score("witness", "", "x", None)
        before = pids(pool)
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        await all_gone(before.values())
        result = await pool.score("innocent", "", "xyz", None)
        return result, pool.stats()

    result, stats = run_pool("length", body, workers=2)
    assert (result.outcome, result.reward, result.attempts) == ("ok", 3.0, 1)
    assert (stats["policy_crash"], stats["retried"]) == (0, 0) and stats["restarted"] >= 1


@pytest.mark.engine
def test_a_worker_killed_at_its_first_start_is_started_again(ray_here, tmp_path):
    from rlplan.executor.rewards.pool import RewardPool
    from rlplan.executor.supervision import Supervisor

    (tmp_path / "reward_that_kills_once.py").write_text(
        "import os, pathlib, signal, time\n"
        f"mark = pathlib.Path({str(tmp_path / 'mark')!r})\n"
        "if not mark.exists():\n    mark.touch()\n    os.kill(os.getppid(), signal.SIGKILL)\n    time.sleep(60)\n"
        "def score(prompt, response, answer): return 2.5\n"
    )

    async def main():
        supervisor = Supervisor()
        config = ScorerConfig("function", "reward_that_kills_once:score", 5.0, str(tmp_path))
        pool = RewardPool(config, 1, supervisor=supervisor)
        try:
            await pool.start()
            return await asyncio.wait_for(pool.score("a", "", "x", None), 60), supervisor.failures("reward-0")
        finally:
            await pool.close()

    result, failures = asyncio.run(main())
    assert (result.outcome, result.reward, failures) == ("ok", 2.5, 1)


@pytest.mark.engine
def test_a_response_that_kills_the_process_twice_scores_0(ray_here):
    async def body(pool):
        futures = [pool.score(str(i), "", "die" if i == 2 else "fine", None) for i in range(5)]
        return await asyncio.gather(*futures), pool.stats()

    results, stats = run_pool("die_on_demand", body, retries=7)
    assert [result.outcome for result in results] == ["ok", "ok", "policy_crash", "ok", "ok"]
    assert (results[2].reward, results[2].attempts) == (0.0, 2)
    assert results[2].detail == "the process that scores died: killed by SIGKILL"
    assert (stats["restarted"], stats["renewed"], stats["ok"], stats["policy_crash"]) == (0, 2, 4, 1)


@pytest.mark.engine
def test_a_response_that_kills_the_worker_itself_is_scored_0_too(ray_here):
    async def body(pool):
        futures = [pool.score(str(i), "", "die" if i == 2 else "fine", None) for i in range(5)]
        return await asyncio.gather(*futures), pool.stats()

    results, stats = run_pool("kill_the_parent_on_demand", body)
    assert [result.outcome for result in results] == ["ok", "ok", "policy_crash", "ok", "ok"]
    # Once in company, which is not charged to it, then twice alone.
    assert (results[2].reward, results[2].attempts, stats["restarted"]) == (0.0, 3, 3)
    assert results[2].detail.startswith("reward worker reward-0 died: ")


@pytest.mark.engine
def test_a_response_whose_function_always_raises_scores_0_with_a_reason(ray_here, tmp_path):
    async def always(pool):
        return await asyncio.gather(pool.score("a", "", "fail", None), pool.score("b", "", "fine", None)), pool.stats()

    (failed, fine), stats = run_pool("fail_on_demand", always, retries=3)
    assert (failed.outcome, failed.reward, failed.attempts) == ("function_error", 0.0, 4)
    assert failed.detail.startswith("KeyError: 'no such row' (reward_fakes.py:")
    assert (fine.outcome, fine.attempts) == ("ok", 1)
    assert (stats["retried"], stats["function_error"], stats["ok"], stats["restarted"]) == (3, 1, 1, 0)

    async def once(pool):
        return await pool.score("a", "", "mark", str(tmp_path))

    result = run_pool("fail_the_first_time", once, retries=1)
    assert (result.outcome, result.reward, result.attempts) == ("ok", 1.0, 2)


@pytest.mark.engine
def test_a_function_that_always_fails_is_not_the_responses_fault(ray_here, tmp_path):
    async def body(pool):
        before = await pool.score("before", "", "x", str(tmp_path))
        (tmp_path / "down").touch()
        return before, await pool.score("meanwhile", "", "y", str(tmp_path)), pool.stats()

    before, meanwhile, stats = run_pool("judge_elsewhere", body, retries=1)
    assert before.outcome == "ok"
    assert (meanwhile.outcome, meanwhile.attempts) == ("infra_failed", 2)
    assert "the judge is down" in meanwhile.detail and "nor can a sample that was scored before" in meanwhile.detail
    assert (stats["ok"], stats["infra_failed"], stats["function_error"], stats["unfinished"]) == (1, 1, 0, 0)


@pytest.mark.engine
def test_cancel_drops_queued_and_running_samples_and_frees_their_keys(ray_here):
    async def body(pool):
        running = pool.score("running", "", "sleep", None)
        while pool.stats()["queue"]:
            await asyncio.sleep(0.01)
        queued = pool.score("queued", "", "sleep", None)
        kept = pool.score("kept", "", "fine", None)
        assert pool.cancel("running") and pool.cancel("queued")
        assert not pool.cancel("queued") and not pool.cancel("never seen")
        again = pool.score("queued", "", "fine", None)
        results = await asyncio.gather(kept, again)
        return running.cancelled(), queued.cancelled(), results, pool.stats()

    running, queued, results, stats = run_pool("sleep_on_demand", body, deadline_s=0.5)
    assert running and queued
    assert [result.outcome for result in results] == ["ok", "ok"]
    assert (stats["ok"], stats["cancelled"], stats["policy_timeout"], stats["unfinished"]) == (2, 2, 0, 0)


@pytest.mark.engine
def test_closing_in_mid_call_cancels_what_is_unfinished(ray_here):
    async def body(pool):
        futures = [pool.score(str(i), "", "sleep", None) for i in range(3)]
        await asyncio.sleep(0.1)
        return futures

    futures = run_pool("sleep_on_demand", body, deadline_s=30.0)
    assert all(future.cancelled() for future in futures)


@pytest.mark.engine
def test_a_reward_function_without_import_is_an_input_error(ray_here):
    async def body(pool):
        raise AssertionError("the pool must not start")

    with pytest.raises(InputError, match="'misspelt' does not exist in 'reward_fakes'"):
        run_pool("misspelt", body)


@pytest.mark.engine
def test_a_pool_without_workers_says_so_to_whoever_waits(ray_here):
    from rlplan.executor.rewards.process import RewardPoolDown

    async def body(pool):
        # The folder of the function goes away, as a shared file system may: no successor can start.
        pool._workers[0]._config = ScorerConfig("function", "no_such_module_anywhere:score", 5.0)
        os.kill(pids(pool)["reward-0"], signal.SIGKILL)
        waiting = [pool.score(response, "", response, None) for response in ("die", "fine")]
        early = await asyncio.gather(*waiting, return_exceptions=True)
        late = await asyncio.gather(pool.score("late", "", "fine", None), return_exceptions=True)
        return early + late

    for error in run_pool("die_on_demand", body):
        assert isinstance(error, RewardPoolDown)
        assert "no_such_module_anywhere" in str(error)


@pytest.mark.engine
def test_samples_of_one_pool_have_deadlines_of_their_own(ray_here):
    async def body(pool):
        with pytest.raises(AssertionError, match="a deadline of 31 s in a pool of 30 s"):
            pool.score("too long", "", "x", None, 31.0)
        keys = ["sleep 1", "a", "b"]
        return await asyncio.gather(*(pool.score(key, "", key, None, 0.3) for key in keys))

    results = run_pool("sleep_on_demand", body, deadline_s=30.0)
    assert [(result.outcome, result.reward) for result in results] == [
        ("policy_timeout", 0.0),
        ("ok", 1.0),
        ("ok", 1.0),
    ]
    assert results[0].detail == "no reward within 0.3 s"
