"""Nothing that an actor started outlives it, and a stopped actor does not outlive its parent."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from ..conftest import runs

# A parent that starts an actor, which guards itself and starts a child; all say their process ids.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
child.wait()
"""
ACTOR = """
import os, subprocess, time
from rlplan.executor.engines.guard import guard_group
guard_group()
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("end", ["SIGKILL of the actor", "SIGKILL of the parent of a stopped actor"])
def test_what_an_actor_started_is_gone_when_the_actor_or_its_parent_is(end):
    process = subprocess.Popen([sys.executable, "-c", PARENT, ACTOR], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = sorted(int(process.stdout.readline()) for _ in range(2))
    actor = next(p for p in map(psutil.Process, pids) if "sleep" not in p.name())
    all_of_it = [actor, *actor.children(recursive=True)]
    assert len(all_of_it) >= 3, "the actor, its guard and its child"
    try:
        if end == "SIGKILL of the actor":
            actor.kill()
        else:
            actor.suspend()
            process.kill()
            process.wait()  # a zombie still answers to its number
        deadline = time.monotonic() + 90
        while left := [p for p in all_of_it if runs(p)]:
            assert time.monotonic() < deadline, f"{left} still run"
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate()
