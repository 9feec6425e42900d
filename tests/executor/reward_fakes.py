"""Reward functions that misbehave on demand; reward workers import this module by its folder."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path


def length(prompt, response, answer):
    return float(len(response)) + float(answer or 0)


def slow_length(prompt, response, answer):
    time.sleep(0.02)
    return float(len(response))


def sleep_on_demand(prompt, response, answer):
    if response.startswith("sleep"):
        time.sleep(60)
    return 1.0


def swallow_the_alarm(prompt, response, answer):
    with contextlib.suppress(BaseException):
        time.sleep(60)
    return 1.0


def hang_on_demand(prompt, response, answer):
    if response == "blocked signal":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(60)
    if response == "loop in C":
        sum(range(10**13))  # holds the interpreter lock and never looks at signals
    return 1.0


def fail_on_demand(prompt, response, answer):
    if response == "fail":
        raise KeyError("no such row")
    if response == "exit":
        sys.exit(3)
    return float("nan") if response == "nan" else 1.0


def fail_the_first_time(prompt, response, answer):
    mark = Path(answer) / response
    if not mark.exists():
        mark.touch()
        raise ConnectionError("the judge is restarting")
    return 1.0


def die_on_demand(prompt, response, answer):
    if response == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def kill_the_parent_on_demand(prompt, response, answer):
    if response == "die":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return 1.0


def judge_elsewhere(prompt, response, answer):
    if (Path(answer) / "down").exists():
        raise ConnectionError("the judge is down")
    return 1.0


def misbehave(prompt, response, answer):
    global kept
    if response == "allocate":
        return float(len([0] * 10**12))
    if response == "allocate and swallow":
        kept = []
        with contextlib.suppress(MemoryError):
            while True:
                kept.append(bytearray(1 << 20))
        return 1.0
    if response == "keep":
        kept = bytearray(40 << 20)
    if response == "loop in C":
        sum(range(10**13))
    if response == "dump":
        os.abort()
    if response == "close":
        os.closerange(3, 256)
        time.sleep(60)
    if response == "start":
        pid = os.fork()
        if not pid:
            time.sleep(60)
        (Path(answer) / "pid").write_text(str(pid))
        time.sleep(60)
    return float(os.getpid())


not_a_function = 3
