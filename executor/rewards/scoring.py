"""One call of a reward function under its alarm: every way in which it can end is a `Scored`."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

from .functions import InfrastructureError, PolicyError, PolicyTimeout, RewardFunction

Outcome = Literal[
    "ok", "policy_timeout", "policy_error", "policy_memory", "policy_crash", "function_error", "infra_failed"
]


class Scored(NamedTuple):
    """What one call of the reward function came to; the pool may try again (its docstring says after what)."""

    outcome: Outcome
    reward: float
    seconds: float
    detail: str
    renew: bool = False
    """The process that scored must be started anew before the next call."""


class _DeadlinePassed(BaseException):
    """Raised by the alarm inside a reward function. No Exception: `except Exception` there must not swallow it."""


def score_one(function: RewardFunction, alarm_s: float, prompt: str, response: str, answer: Any) -> Scored:
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
    began = time.monotonic()
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
    if fired:
        # Also when the function caught the alarm and returned something after all: it is late.
        outcome, reward, detail = "policy_timeout", 0.0, f"no reward within {alarm_s:g} s"
    return Scored(outcome, reward, time.monotonic() - began, detail)


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
