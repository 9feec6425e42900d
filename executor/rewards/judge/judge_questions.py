"""A judge's questions, and its copies: which question is with which copy."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ....plans.yaml.errors import InputError, RunFailed
from ...engines.engine_handle import EngineHandle
from ..charges import RewardResult


@dataclass(eq=False)
class Question:
    """A sample that waits for its verdict.

    Attributes:
        tokens: what the judge reads.
        deadline_s: of one try, in seconds.
        tries: all of them.
        late: tries without a verdict since it was last with a copy that was replaced.
        first_asked_s: when the first of these began; `asked_s`: the last one. Both of `time.monotonic`.
        copy: that has it, under `request_id`; None while it waits.
        timer: of its deadline.
    """

    key: str
    tokens: tuple[int, ...]
    deadline_s: float
    future: asyncio.Future[RewardResult]
    tries: int = 0
    late: int = 0
    first_asked_s: float = 0.0
    asked_s: float = 0.0
    copy: Copy | None = None
    request_id: str = ""
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class Copy:
    """A copy of the judge: its engine, the questions that it has by request id, and when it gave its last verdict."""

    engine: EngineHandle
    questions: dict[str, Question] = field(default_factory=dict)
    heard_s: float = 0.0


def given_up(engine: EngineHandle) -> bool:
    """Whether an engine could not be replaced."""
    try:
        engine.check()
    except (RunFailed, InputError):
        return True
    return False
