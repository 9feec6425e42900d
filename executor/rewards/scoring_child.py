"""The process in which a reward is called; `worker` starts it, nobody imports it.

(`rlplan rewards try` and `audit` have it explain each verdict.)

It lives as long as its worker lets it, because its imports cost what a thousand calls do. What a response makes the
function do is limited as a response's own code is (`sandbox`), as far as a function of the user's allows (`code` has
its sandboxes below this process):

- address space: `memory_bytes` beyond what the process has after its imports;
- CPU seconds of each call: those of its deadline on every core that it may use; wall time is the parent's to keep;
- no core dump, a process group of its own so that it can be killed with all that it started, and death with its parent;
- an environment without the host's secrets (`worker.INHERITED`). That of its worker is hidden, too, but from root;
  `math` and `format` look into no process that they did not start, where the kernel has Landlock (5.19).

Files and sockets are the function's own affair: it may well ask a judge elsewhere.

Requests (a pickled `(batch, budget_s, rows)`) and answers (JSON) travel through two pipes, each after its length. A
batch is read whole before its first row is scored, and each row is answered as it ends, so that neither side waits for
the other between rows. An answer says of which batch and row it is, for what the function starts holds the pipes too;
only the process that was started answers, never a copy of it that the function forked.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import resource
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...plans.yaml.errors import InputError
from .functions import ReadyReward, ScorerConfig, resolve
from .sandbox.kernel import die_with_parent, hides_memory, lower
from .sandbox.visible_files import own_processes_only
from .scoring import judge_one, score_one, where

LENGTH = struct.Struct("<I")
WORN_SHARE = 0.5
"""Of the memory limit: a process that keeps so much between calls is replaced, before it fails a response for it."""


def main(requests: int, answers: int, fields: dict[str, Any], explains: bool = False) -> None:
    """Answer batches until the parent closes its end.

    `requests` and `answers` are file descriptors, `fields` those of a `ScorerConfig` as they come out of JSON.
    `explains`: the answers have the steps of each verdict, too.
    """
    config = ScorerConfig(**fields | {name: tuple(fields[name]) for name in ("packages", "environment")})
    notes = see_own_processes_only(config.reward_kind)
    die_with_parent()
    for descriptor in (requests, answers):
        os.set_inheritable(descriptor, False)
    process = os.getpid()

    def put(answer: Any) -> None:
        if os.getpid() != process:
            os._exit(1)
        _put(answers, answer)

    problem: str | None = None
    failure: str | None = None
    scorer: ReadyReward | None = None
    try:
        scorer = resolve(config)
    except InputError as error:
        problem = error.message
    except Exception as error:  # noqa: BLE001 - told to the parent, which ends the start with it
        failure = where(error)
    if scorer is None:
        put({"problem": problem, "failure": failure})
        return
    up = {"margin_s": scorer.margin_s, "notes": (*notes, *scorer.notes), "hidden": hides_memory()}
    put({"problem": None, "failure": None, **up})
    # Python's own handler would turn it into nothing; the default ends the process, which is meant.
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    before, sandboxed = address_space_bytes(), config.reward_kind == "code"  # a sandbox limits the response itself
    if not sandboxed:
        lower(resource.RLIMIT_AS, before + config.memory_bytes)
    lower(resource.RLIMIT_CORE, 0)
    with os.fdopen(requests, "rb") as stream:
        while head := stream.read(LENGTH.size):
            batch, budget_s, rows = pickle.loads(stream.read(LENGTH.unpack(head)[0]))
            worn = _batch(scorer, batch, rows, budget_s, put, explains, sandboxed)
            worn = worn or (not sandboxed and address_space_bytes() - before > WORN_SHARE * config.memory_bytes)
            put({"batch": batch, "worn": worn})


def see_own_processes_only(reward_kind: str) -> tuple[str, ...]:
    """Keep this process from looking into those that it did not start, if it scores mathematics or a format; returns a
    note where the kernel cannot. Other rewards may have sandboxes, which mount and gain privileges."""
    if reward_kind in ("math", "format"):
        try:
            own_processes_only()
        except OSError as error:
            return (f"reward {reward_kind}: its process could look into others of this user ({error})",)
    return ()


def _batch(
    scorer: ReadyReward,
    batch: int,
    rows: list[tuple[str, str, Any, float]],
    budget_s: float,
    tell: Callable[[Any], None],
    explains: bool,
    sandboxed: bool,
) -> bool:
    """Score rows until the budget is spent; True if this process should score nothing more. `sandboxed`: the function
    runs responses in a sandbox, whose processes would inherit a limit of this one's CPU seconds."""
    cores = len(os.sched_getaffinity(0))
    began = time.monotonic()
    for number, (prompt, response, answer, deadline_s) in enumerate(rows):
        if number and time.monotonic() - began >= budget_s:
            break
        alarm_s = deadline_s + scorer.margin_s
        if not sandboxed:
            _limit_cpu((math.ceil(alarm_s) + 1) * cores)
        if explains:
            scored = judge_one(scorer.judge_within(deadline_s), alarm_s, prompt, response, answer)
            tell([batch, number, *scored])
        else:
            scored = score_one(scorer.within(deadline_s), alarm_s, prompt, response, answer)
            tell([batch, number, *scored[:4]])
        if scored.outcome == "policy_memory":
            return True
    return False


def _limit_cpu(seconds: int) -> None:
    """Limit this process to so many CPU seconds from now. Only the soft limit moves: a hard one cannot be raised."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    limit = math.ceil(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def address_space_bytes() -> int:
    """Address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _put(descriptor: int, answer: Any) -> None:
    """Write an answer, which is far smaller than a pipe: the write neither blocks nor is cut."""
    text = json.dumps(answer).encode()
    os.write(descriptor, LENGTH.pack(len(text)) + text)
