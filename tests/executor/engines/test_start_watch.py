"""Whether a start makes progress, and that nothing that an actor started outlives it; all without engines."""

import asyncio
import subprocess
import sys
import time
from concurrent.futures import Future
from types import SimpleNamespace

import psutil
import pytest

from rlplan.executor.engines import engine_watch
from rlplan.executor.engines.engine_watch import Children
from rlplan.executor.processes.faults import ActorFailed

from ..conftest import runs
from ..virtual_loop import now_s, played

NONE = Children(0, 0.0, False)


def used(seconds):
    return Children(2, seconds, False)


class StartingActor:
    """What a starting actor answers, one answer after the other and the last one for ever; "no" is none."""

    def __init__(self, *answers):
        self._answers = list(answers)

    def __call__(self):
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        future = Future()
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer != "no":
            future.set_result(answer)
        return SimpleNamespace(future=lambda: future)


@pytest.mark.parametrize(
    ("answers", "why", "after_s"),
    [
        ([NONE, used(1.0), used(2.0), used(2.01)], "its processes did nothing for 10 s", 12),
        ([NONE, *(Children(3, 0.1 * i, True) for i in range(1, 400))], "its processes did nothing for 10 s", 10),
        ([NONE, used(1.0), "no"], "no sign of life for 10 s", 11),
        (["no"], "no sign of life for 120 s", 120),
        ([NONE], None, 300),
        ([NONE, *(used(0.05 * i) for i in range(1, 400))], None, 300),
        ([NONE, used(1.0), used(0.9), ActorFailed("engine", "it is gone")], None, 300),
    ],
    ids=["hung core", "stopped rank, peers spin", "stopped actor", "never up", "long imports", "slow but busy", "gone"],
)
def test_a_start_is_stuck_when_its_processes_use_no_cpu_time(answers, why, after_s):
    async def body():
        try:
            return await asyncio.wait_for(engine_watch.watch_start(StartingActor(*answers), 10.0), 300)
        except TimeoutError:
            return None
        finally:
            took.append(now_s() - 1000)

    took = []
    said = played(body())
    assert (said or "").startswith(why or "") and (said is None) == (why is None)
    assert took == [pytest.approx(after_s, abs=1.01)]


def test_cpu_time_of_children_is_seen_without_the_guards():
    code = (
        "import subprocess, sys, time; from rlplan.executor.placement.guard import guard_group; "
        "from rlplan.executor.engines.engine_watch import look_at_children as look; "
        "guard_group(); guard_group(); print(look().processes); "
        "child = subprocess.Popen([sys.executable, '-c', 'while True: pass']); before = look().used_s\n"
        "while look().used_s < before + 0.2: time.sleep(0.02)\n"
        "print(look().stopped); child.send_signal(19)\n"
        "while not look().stopped: time.sleep(0.02)\n"
        "before = look(); time.sleep(0.3); print(look() == before, before.processes); child.kill()"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert answer.stdout.split() == ["0", "False", "True", "1"], answer.stderr


# A parent that starts an actor, which guards itself and starts a child; all say their process ids.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
child.wait()
"""
ACTOR = """
import os, subprocess, time
from rlplan.executor.placement.guard import guard_group
guard_group(stopped_s=%d)
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("end", ["SIGKILL of the actor", "SIGKILL of the parent of a stopped actor", "SIGSTOP"])
def test_what_an_actor_started_is_gone_when_it_or_its_parent_is(end):
    actor_code = ACTOR % (2 if end == "SIGSTOP" else 600)
    process = subprocess.Popen([sys.executable, "-c", PARENT, actor_code], stdout=subprocess.PIPE, text=True)
    pids = sorted(int(process.stdout.readline()) for _ in range(2))
    actor = next(p for p in map(psutil.Process, pids) if "sleep" not in p.name())
    all_of_it = [actor, *actor.children(recursive=True)]
    assert len(all_of_it) >= 3, "the actor, its guard and its child"
    try:
        if end == "SIGKILL of the actor":
            actor.kill()
        else:
            actor.suspend()
        if "parent" in end:
            process.kill()
            process.wait()  # a zombie still answers to its number
        deadline = time.monotonic() + 90
        while left := [p for p in all_of_it if runs(p)]:
            assert time.monotonic() < deadline, f"{left} still run"
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate()
