"""Reward functions that misbehave on demand; reward workers import this module by its folder."""

import contextlib
import fcntl
import os
import signal
import struct
import sys
import threading
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


def fail_on_demand(prompt, response, answer):
    if response == "fail":
        raise KeyError("no such row")
    if response == "exit":
        sys.exit(3)
    return float("nan") if response == "nan" else 1.0


def die_on_demand(prompt, response, answer):
    if response == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def kill_the_parent_on_demand(prompt, response, answer):
    if response == "die":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
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
        sum(range(10**13))  # holds the interpreter lock and never looks at signals
    if response == "blocked signal":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(60)
    if response == "dump":
        os.abort()
    if response == "close":
        os.closerange(3, 1 << 16)
        time.sleep(60)
    if response == "start":
        pid = os.fork()
        if not pid:
            time.sleep(60)
        (Path(answer) / "pid").write_text(str(pid))
        time.sleep(60)
    return float(os.getpid())


def fork_on_demand(prompt, response, answer):
    """`answer`, after a fork whose copy ends as the response says; with "wait", minus its status if that is wrong."""
    how = response.split()
    if how[0] == "fork":
        pid = os.fork()
        if not pid:
            if how[1] == "exit":
                sys.exit(7)
            if how[1] == "raise":
                raise KeyError("in the copy")
            return -1.0
        if how[2:] == ["wait"]:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            return answer if status == {"exit": 7, "raise": 1, "return": 0}[how[1]] else -float(status)
    return answer


def write_to_answers(data):
    """Writes into the pipe that the process answers through."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            pipe = str(entry.readlink()).startswith("pipe:") and int(entry.name) > 2
            if pipe and fcntl.fcntl(int(entry.name), fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
                os.write(int(entry.name), data)


def answer_unasked(prompt, response, answer):
    """Answers `answer` without being asked: now, or after its call ended."""

    def write():
        write_to_answers(struct.pack("<I", len(answer)) + answer)

    if response == "now":
        write()
    if response == "later":
        threading.Timer(0.1, write).start()
    return float(os.getpid())


not_a_function = 3


def tell_the_environment(prompt, response, answer):
    """Raises with what is to be seen of a variable: in this process, and in one of the worker's."""
    parent = Path(f"/proc/{os.getppid()}/environ")
    try:
        seen = "seen" if response.encode() in parent.read_bytes() else "not there"
    except PermissionError:
        seen = "hidden"
    raise ValueError(f"own {os.environ.get(response)!r}, the parent's {seen}")
