"""The body of a reward worker, a Ray actor with one thread: it scores samples one after the other, each under an alarm.

Imports no Ray (the pool wraps the class) and nothing heavy: a worker is restarted while a round waits for it.

Invariant: `score` answers within `budget_s` plus one alarm plus what Python needs, unless a call neither returns nor
lets Python run its signal handlers (a loop in C, a blocked signal). The pool counts on that to tell a slow worker from
a hung one.
"""

from __future__ import annotations

import math
import os
import signal
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

from ...plans.errors import InputError
from .functions import PolicyError, PolicyTimeout, RewardFunction, Scorer, resolve

Outcome = Literal["ok", "policy_timeout", "policy_error", "infra_failed"]


class Scored(NamedTuple):
    """What one call of the reward function came to. `infra_failed` means: this call; the pool may try again."""

    outcome: Outcome
    reward: float
    seconds: float
    detail: str


class _DeadlinePassed(BaseException):
    """Raised by the alarm inside a reward function. No Exception: `except Exception` there must not swallow it."""


class RewardWorker:
    """Scores batches of samples.

    Args:
        kind, function: as in the job's reward section.
        deadline_s: seconds of wall time for one sample, at most.
        search_path: folder searched first for the function's module.
    """

    def __init__(self, kind: str, function: str | None, deadline_s: float, search_path: str | None) -> None:
        # Before the function's module is imported: the cores belong to the engine that decodes meanwhile.
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = "1"
        self._problem: str | None = None
        self._failure: str | None = None
        self._scorer: Scorer | None = None
        try:
            self._scorer = resolve(kind, function, deadline_s, search_path)
        except InputError as error:
            self._problem = error.message
        except Exception as error:  # noqa: BLE001 - told by ready(); from here Ray would wrap it in pages
            self._failure = _where(error)

    def ready(self) -> dict[str, Any]:
        """How the start went and what the pool must know.

        `problem`: what the user must mend, or None; `failure`: what failed on this machine, or None; `alarm_s` and
        `notes`: the scorer's; `pid`: this process.
        """
        scorer = self._scorer
        return {
            "problem": self._problem,
            "failure": self._failure,
            "alarm_s": scorer.alarm_s if scorer else 0.0,
            "notes": list(scorer.notes) if scorer else [],
            "pid": os.getpid(),
        }

    def score(self, batch: list[tuple[str, str, Any, float]], budget_s: float) -> list[Scored]:
        """Score `(prompt, response, answer, deadline_s)` in order; stop starting new ones once `budget_s` has gone by.

        The answer may so be shorter than `batch`, but never empty. It never raises for what a reward function does.
        """
        scorer = self._scorer
        assert scorer is not None, "score() on a worker that was not ready"
        began = time.monotonic()
        results: list[Scored] = []
        for prompt, response, answer, deadline_s in batch:
            if results and time.monotonic() - began >= budget_s:
                break
            alarm_s = deadline_s + scorer.margin_s
            results.append(score_one(scorer.within(deadline_s), alarm_s, prompt, response, answer))
        return results


def score_one(function: RewardFunction, alarm_s: float, prompt: str, response: str, answer: Any) -> Scored:
    """Call `function` under an alarm, in the main thread; every way it can end is a `Scored`."""
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
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    except PolicyTimeout as error:
        outcome, detail = "policy_timeout", str(error)
    except PolicyError as error:
        outcome, detail = "policy_error", str(error)
    except _DeadlinePassed:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    except BaseException as error:  # noqa: BLE001 - also SystemExit: a reward function must not end its worker
        outcome, detail = "infra_failed", _where(error)
    if fired:
        # Also when the function caught the alarm and returned something after all: it is late.
        outcome, reward, detail = "policy_timeout", 0.0, f"no reward within {alarm_s:g} s"
    return Scored(outcome, reward, time.monotonic() - began, detail)


def _number(value: Any) -> float:
    """The reward as a float. Raises if it is none or not finite: one NaN would spoil the whole step's advantages."""
    reward = float(value)
    if not math.isfinite(reward):
        raise ValueError(f"the reward function returned {reward}, which is no finite number")
    return reward


def _where(error: BaseException) -> str:
    """`Type: message (file.py:12)`, the place being the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"[:500]
