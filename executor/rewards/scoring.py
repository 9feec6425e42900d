"""One call of a reward function under its alarm: every way in which it can end is a `ScoringResult`."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

from .functions import InfrastructureError, Judge, PolicyError, PolicyTimeout, RewardFunction, RowError
from .sandbox.verdict import Verdict

Outcome = Literal[
    "ok", "policy_timeout", "policy_error", "policy_memory", "policy_crash", "function_error", "infra_failed"
]


STARVED_SHARE = 0.5
"""A response that was late is not to blame if its process waited for a CPU for more than this share of the time: a
frozen or overcommitted host, a container's CPU quota."""


class ScoringResult(NamedTuple):
    """The result of one call of the reward function; after some outcomes the pool tries again (charges.py)."""

    outcome: Outcome
    reward: float
    seconds: float
    detail: str
    renew: bool = False
    """The process that scored must be started anew before the next call."""
    steps: Sequence[tuple[str, str]] = ()
    """Of a call by `judge_one`: (name, text) of each step that the reward took."""
    refused: bool = False
    """Of a call by `judge_one`: the row cannot be scored, whatever the response."""


class _DeadlinePassed(BaseException):
    """Raised by the alarm inside a reward function. No Exception: `except Exception` there must not swallow it."""


def score_one(function: RewardFunction, alarm_s: float, prompt: str, response: str, answer: Any) -> ScoringResult:
    """Call `function` under an alarm, in the main thread.

    Returns in this process only: a copy of it that the function forked ends where it leaves the function.
    """
    process = os.getpid()
    armed = True
    fired = False

    def on_alarm(signum: int, frame: FrameType | None) -> None:
        nonlocal fired
        if armed:
            fired = True
            raise _DeadlinePassed

    outcome: Outcome = "infra_failed"
    reward, detail = 0.0, ""
    began, waited_s = time.monotonic(), _waited_for_cpu_s()
    # Anew for every sample: a reward function may have blocked the signal or installed a handler of its own.
    signal.signal(signal.SIGALRM, on_alarm)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    try:
        try:
            # Again and again, in case a bare `except:` in the function swallows the first.
            signal.setitimer(signal.ITIMER_REAL, alarm_s, max(alarm_s, 0.1))
            reward, outcome = _number(function(prompt, response, answer)), "ok"
        finally:
            if os.getpid() != process:
                os._exit(_exit_code(sys.exc_info()[1]))
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    except PolicyTimeout as error:
        outcome, detail = "policy_timeout", str(error)[:500]
    except PolicyError as error:
        outcome, detail = "policy_error", str(error)[:500]
    except _DeadlinePassed:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    except MemoryError as error:
        outcome, detail = "policy_memory", where(error)
    except InfrastructureError as error:
        detail = where(error)
    except BaseException as error:  # noqa: BLE001 - also SystemExit: a reward function must not end its worker
        outcome, detail = "function_error", where(error)
    seconds = time.monotonic() - began
    if fired:
        # Also when the function caught the alarm and returned something after all: it is late.
        outcome, reward, detail = "policy_timeout", 0.0, f"no reward within {alarm_s:g} s"
        waited_s = _waited_for_cpu_s() - waited_s
        if waited_s > STARVED_SHARE * seconds:
            outcome, detail = "infra_failed", f"{detail}, of which it waited for a CPU for {waited_s:.2g} s"
    return ScoringResult(outcome, reward, seconds, detail)


TOLD = 2000
"""Most characters that are kept of a step."""


def judge_one(judge: Judge, alarm_s: float, prompt: str, response: str, answer: Any) -> ScoringResult:
    """As `score_one`, with the steps that led to the reward; `detail` also says why a reward is not full."""
    verdicts: list[Verdict] = []
    refusals: list[RowError] = []

    def call(prompt: str, response: str, answer: Any) -> float:
        try:
            verdicts.append(judge(prompt, response, answer))
        except RowError as error:
            refusals.append(error)
            raise
        return verdicts[0].reward

    scored = score_one(call, alarm_s, prompt, response, answer)
    if refusals:
        return scored._replace(refused=True, detail=str(refusals[0]))
    if not verdicts or scored.outcome != "ok":
        return scored
    (told,) = verdicts
    steps = [(name, text if len(text) <= TOLD else f"{text[:TOLD]}…") for name, text in told.steps]
    return scored._replace(outcome="policy_timeout" if told.timed_out else "ok", detail=told.why[:TOLD], steps=steps)


def _waited_for_cpu_s() -> float:
    """Seconds that this process's main thread was ready to run and did not; 0 if the kernel does not report it."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _exit_code(error: BaseException | None) -> int:
    """What a program that ends by `error` (None: by itself) ends with; its parent may look at it."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    return 0 if error is None else 1


def _number(value: Any) -> float:
    """The reward as a float. Raises if it is none or not finite: one NaN would spoil the whole step's advantages."""
    reward = float(value)
    if not math.isfinite(reward):
        raise ValueError(f"the reward function returned {reward}, which is no finite number")
    return reward


def where(error: BaseException) -> str:
    """`Type: message (file.py:12)`, the place being the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"[:500]
