"""What a killed driver leaves on nodes is waited for, whatever it was doing."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

pytest.importorskip("ray")

import ray

from rlplan.executor.actors import start_ray
from rlplan.executor.placement.orphans import left_by, still_running

from ..conftest import runs

DRIVER = """
import ray, time
ray.init(address={address!r}, logging_level="ERROR", log_to_driver=False)

@ray.remote(num_cpus=0)
class Busy:
    def pid(self):
        import os
        return os.getpid()
    def compute(self):
        while True:
            pass

actors = [Busy.remote() for _ in range(2)]
print(*ray.get([actor.pid.remote() for actor in actors]), flush=True)
actors[0].compute.remote()
time.sleep(600)
"""


def test_actors_of_a_killed_driver_are_gone_when_it_has_been_waited_for(loop):
    start_ray()
    address = ray.get_runtime_context().gcs_address
    driver = subprocess.Popen([sys.executable, "-c", DRIVER.format(address=address)], stdout=subprocess.PIPE, text=True)
    try:
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(pids) == 2 and all(runs(psutil.Process(pid)) for pid in pids)
        node = ray.get_runtime_context().get_node_id()
        assert loop.run_until_complete(left_by(driver.pid, deadline_s=0.3)) == {node: sorted(pids)}, "it still runs"
    finally:
        driver.kill()
        driver.wait()
    assert loop.run_until_complete(left_by(driver.pid)) == {}
    assert not any(psutil.pid_exists(pid) and runs(psutil.Process(pid)) for pid in pids)


def test_a_process_that_never_connected_has_left_nothing(loop):
    start_ray()
    assert loop.run_until_complete(left_by(2**22 + 1)) == {}


def test_zombies_hold_no_memory_and_a_process_that_runs_on_is_named_after_the_deadline():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert still_running([process.pid], 0.2) == [process.pid]
        process.kill()
        deadline = time.monotonic() + 30
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.01)
        assert still_running([process.pid], 5.0) == []
    finally:
        process.kill()
        process.wait()
