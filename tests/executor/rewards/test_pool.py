"""Reward workers that are real Ray actors: rewards travel, deaths are noticed, and closing leaves no process behind.

What the pool decides is tested in test_reward_supervision.py, what a worker does in test_worker.py.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rlplan.executor.rewards.functions import ScorerConfig
from rlplan.plans.yaml.errors import InputError

from ..conftest import runs
from ..tiny_job import ALONE

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent


def pids(pool):
    return {name: facts.pid for name, facts in pool.facts().items()}


@pytest.fixture(scope="module")
def ray_here():
    import ray

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


def test_200_samples_get_each_its_own_reward(ray_here):
    async def body(pool):
        results = await asyncio.gather(*(pool.score(f"p/{i}", "?", "x" * i, 1000) for i in range(200)))
        return results, pool.stats()

    results, stats = run_pool("length", body, workers=2)
    assert [result.reward for result in results] == [1000.0 + i for i in range(200)]
    assert {(result.outcome, result.detail, result.attempts) for result in results} == {("ok", "", 1)}
    assert {result.worker for result in results} == {"reward-0", "reward-1"}
    assert (stats["ok"], stats["retried"], stats["queue"], stats["unfinished"]) == (200, 0, 0, 0)


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


def test_a_response_that_kills_the_worker_itself_is_scored_0_too(ray_here):
    async def body(pool):
        futures = [pool.score(str(i), "", "die" if i == 2 else "fine", None) for i in range(5)]
        return await asyncio.gather(*futures), pool.stats()

    results, stats = run_pool("kill_the_parent_on_demand", body)
    assert [result.outcome for result in results] == ["ok", "ok", "policy_crash", "ok", "ok"]
    # Once in company, which is not charged to it, then twice alone.
    assert (results[2].reward, results[2].attempts, stats["restarted"]) == (0.0, 3, 3)
    assert results[2].detail.startswith("reward worker reward-0 died: ")


def test_closing_in_mid_call_cancels_what_is_unfinished(ray_here):
    async def body(pool):
        futures = [pool.score(str(i), "", "sleep", None) for i in range(3)]
        await asyncio.sleep(0.1)
        return futures

    futures = run_pool("sleep_on_demand", body, deadline_s=30.0)
    assert all(future.cancelled() for future in futures)


def test_a_reward_function_without_import_is_an_input_error(ray_here):
    async def body(pool):
        raise AssertionError("the pool must not start")

    with pytest.raises(InputError, match="'misspelt' does not exist in 'reward_fakes'"):
        run_pool("misspelt", body)


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


# A driver with a reward worker and an actor of permits. It prints the process ids of what scores and of both actors.
DRIVER = """
import os, sys, time
from pathlib import Path
import ray
from rlplan.executor.groups.permit_actor import start_permits
from rlplan.executor.processes.actors import start_ray
from rlplan.executor.rewards.functions import ScorerConfig
from rlplan.executor.rewards.process import spawn_worker
from rlplan.rounds.permits.permit_events import PlacedJob

start_ray()
worker = spawn_worker("w", ScorerConfig("function", "reward_fakes:length", 5.0, sys.argv[1]))
permits = start_permits("p", "g1", "multi_rate", [PlacedJob("a", ((0,), (1,)), (1.0, 1.0))], Path(sys.argv[2]))
facts = ray.get(worker.ready.remote())
actors = ray.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in (worker, permits)])
print(facts.pid, *actors, flush=True)
time.sleep(600)
"""


def test_actors_that_stop_while_ray_ends_do_not_stay(tmp_path):
    command = [sys.executable, "-c", DRIVER, str(HERE), str(tmp_path / "journal.jsonl")]
    # Without the address of the suite's cluster: its own Ray ends with it.
    driver = subprocess.Popen(command, env=ALONE, stdout=subprocess.PIPE, text=True)
    scoring, *actors = (psutil.Process(int(pid)) for pid in driver.stdout.readline().split())
    raylet = actors[0].parent()
    try:
        driver.kill()
        while runs(raylet):  # Linux wakes stopped processes whose parent ends, but not those that stop afterwards
            time.sleep(0.001)
        for actor in actors:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
                actor.suspend()
        _, left = psutil.wait_procs([scoring, *actors], timeout=60)
        assert not left
    finally:
        driver.kill()
        driver.communicate()
        for process in (scoring, *actors):
            if process.is_running():
                process.kill()
