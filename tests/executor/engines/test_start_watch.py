"""Whether a start makes progress: on answers made by hand, and on real child processes; all without engines."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from rlplan.executor import supervision
from rlplan.executor.engines import start_watch
from rlplan.executor.engines.start_watch import Children
from rlplan.executor.faults import ActorFailed

NONE = Children(0, 0.0, False)


def used(seconds):
    return Children(2, seconds, False)


class StartingActor:
    """What a starting actor answers, one answer after the other and the last one for ever; "no" is none."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.asked = 0

    def __call__(self):
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        future = Future()
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer != "no":
            future.set_result(answer)
        return SimpleNamespace(future=lambda: future)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([NONE, used(1.0), used(2.0), used(2.01)], "its processes did nothing"),
        ([NONE, *(Children(3, 0.1 * i, True) for i in range(1, 400))], "its processes did nothing"),
        ([NONE, used(1.0), "no"], "no sign of life"),
        (["no"], "no sign of life"),
        ([NONE], None),
        ([NONE, *(used(0.1 * i) for i in range(1, 400))], None),
        ([NONE, ActorFailed("engine", "it is gone")], None),
    ],
    ids=["hung core", "stopped rank, peers spin", "stopped actor", "never up", "long imports", "slow but busy", "gone"],
)
def test_a_start_is_stuck_when_what_it_started_uses_no_cpu_time_and_never_because_it_is_slow(monkeypatch, answers, why):
    monkeypatch.setattr(start_watch, "PULSE_S", 0.005)
    monkeypatch.setattr(supervision, "LOOK_S", 0.005)
    monkeypatch.setattr(start_watch, "BORN_S", 0.3)

    async def body():
        return await asyncio.wait_for(start_watch.watch_start(StartingActor(*answers), 0.1), 1.0)

    if why is None:
        with pytest.raises(TimeoutError):
            asyncio.run(body())
    else:
        assert why in asyncio.run(body())


def test_the_cpu_time_of_children_and_a_stopped_one_are_seen_and_the_guard_is_no_child():
    code = (
        "import subprocess, sys, time; from rlplan.executor.engines.guard import guard_group; "
        "from rlplan.executor.engines.start_watch import look_at_children as look; "
        "guard_group(); print(look().processes); "
        "child = subprocess.Popen([sys.executable, '-c', 'while True: pass']); before = look().used_s\n"
        "while look().used_s < before + 0.2: time.sleep(0.02)\n"
        "print(look().stopped); child.send_signal(19)\n"
        "while not look().stopped: time.sleep(0.02)\n"
        "before = look(); time.sleep(0.3); print(look() == before); child.kill()"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert answer.stdout.split() == ["0", "False", "True"], answer.stderr
