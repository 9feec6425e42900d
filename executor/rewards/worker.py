"""The body of a reward worker, a Ray actor with one thread: it has samples scored one after the other.

Whatever a response can make a reward function do happens in another process: `code` has a sandbox for each response,
`math` and `function` one process with limits for many (`scoring_process`). So a response cannot end, hang or bloat the
worker itself, and the worker can say which response ended the process.

Imports no Ray (the pool wraps the class) and nothing heavy: a worker is restarted while a round waits for it.

Invariant: `score` answers within `budget_s` plus one alarm plus what Python needs. The pool counts on that to tell a
slow worker from a hung one.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

from ...plans.yaml.errors import InputError
from .functions import ReadyReward, ScorerConfig, resolve
from .scoring import ScoringResult, score_one, where
from .scoring_process import GRACE_S, ScoringProcess


class WorkerFacts(NamedTuple):
    """Facts that a worker reports when it has started."""

    problem: str | None
    """What the user must mend; None if nothing."""
    failure: str | None
    """What failed on its machine; None if nothing."""
    alarm_s: float
    """Seconds after which it interrupts the scoring of one sample."""
    pid: int
    notes: tuple[str, ...] = ()
    """What its machine lacks of what should hold a response."""


class RewardWorker:
    """Scores batches of samples."""

    def __init__(self, config: ScorerConfig) -> None:
        # Before the function's module is imported: the cores belong to the engine that decodes meanwhile.
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = "1"
        self._problem: str | None = None
        self._failure: str | None = None
        self._scorer: ReadyReward | None = None
        self._process: ScoringProcess | None = None
        self._deadline_s = config.deadline_s
        if config.reward_kind != "code":
            self._process = ScoringProcess(config)
            return
        try:
            self._scorer = resolve(config)
        except InputError as error:
            self._problem = error.message
        except Exception as error:  # noqa: BLE001 - told by ready(); from here Ray would wrap it in pages
            self._failure = where(error)

    def ready(self) -> WorkerFacts:
        """Start the process that scores, if needed; returns problems of the start, and the alarm's seconds."""
        alarm_s = self._scorer.alarm_s if self._scorer else 0.0
        if self._process is not None:
            self._problem, self._failure = self._process.start()
            alarm_s = self._deadline_s + GRACE_S
        notes = self._scorer.notes if self._scorer else ()
        return WorkerFacts(self._problem, self._failure, alarm_s, os.getpid(), notes)

    def score(self, batch: list[tuple[str, str, Any, float]], budget_s: float) -> list[ScoringResult]:
        """Score `(prompt, response, answer, deadline_s)` in order; stop starting new ones once `budget_s` has gone by.

        The answer may so be shorter than `batch`, but never empty; it is also where a response cost the process that
        scored it. It never raises for what a reward function does.
        """
        if self._process is not None:
            return self._process.score(batch, budget_s)
        scorer = self._scorer
        assert scorer is not None, "score() on a worker that was not ready"
        began = time.monotonic()
        results: list[ScoringResult] = []
        for prompt, response, answer, deadline_s in batch:
            if results and time.monotonic() - began >= budget_s:
                break
            alarm_s = deadline_s + scorer.margin_s
            results.append(score_one(scorer.within(deadline_s), alarm_s, prompt, response, answer))
        return results
