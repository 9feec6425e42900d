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


not_a_function = 3
