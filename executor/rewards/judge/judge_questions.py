"""A judge's questions, and its copies: which question is with which copy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from ....plans.yaml.errors import InputError, RunFailed
from ...engines.engine_handle import EngineHandle
from ..charges import RewardResult

TEST_S = 120.0
"""Seconds that a copy that was silent may take for the shortest question, with nothing else to do."""
MOST_DEATHS = 3
"""Copies that may die while they have one question."""
LONGEST_S = 3600.0
"""Deadline of a question after which, asked again, it ends the run: no model that fits its job takes longer."""


@dataclass(eq=False)
class Question:
    """A sample that waits for its verdict.

    Attributes:
        tokens: what the judge reads.
        deadline_s: of the next try, in seconds; each that passes doubles it.
        tries: all of them.
        refused: tries that were answered with what is no verdict.
        deaths: copies that died while they had it.
        asked_s: when the last try began, of `time.monotonic`.
        copy: that has it, under `request_id`; None while it waits.
        timer: of its deadline.
    """

    key: str
    tokens: tuple[int, ...]
    deadline_s: float
    future: asyncio.Future[RewardResult]
    tries: int = 0
    refused: int = 0
    deaths: int = 0
    asked_s: float = 0.0
    copy: Copy | None = None
    request_id: str = ""
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class Copy:
    """A copy of the judge.

    Attributes:
        questions: that it has, by request id.
        heard_s: when it gave its last verdict.
        test: request id of the test question that it has alone, because it has been silent; "" without one.
        timer: of the test question's deadline.
    """

    engine: EngineHandle
    questions: dict[str, Question] = field(default_factory=dict)
    heard_s: float = 0.0
    test: str = ""
    timer: asyncio.TimerHandle | None = None

    def end_test(self) -> None:
        """The test question is answered, or its copy gone."""
        self.test = ""
        if self.timer is not None:
            self.timer.cancel()


def given_up(engine: EngineHandle) -> bool:
    """Whether an engine could not be replaced."""
    try:
        engine.check()
    except (RunFailed, InputError):
        return True
    return False


def copy_of(engine: EngineHandle, copies: Sequence[Copy]) -> Copy:
    """The copy with this engine."""
    return next(copy for copy in copies if copy.engine is engine)


def least_loaded(copies: Sequence[Copy], at_once: int) -> Copy | None:
    """The copy with the fewest questions of those that are up, not tested, and have fewer than `at_once`."""
    free = [copy for copy in copies if copy.engine.alive and not copy.test and len(copy.questions) < at_once]
    return min(free, key=lambda copy: len(copy.questions), default=None)
