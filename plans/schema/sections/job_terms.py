"""What a job demands of each of its plans: limits that it keeps, and pools that it takes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..base import Name, Positive, Strict, is_true


class Slo(Strict):
    """Limits that every plan of the job keeps."""

    step_p95_s: Positive | None = None
    """Seconds that 95% of the steps must stay below; null for no such limit."""


class JobPlacement(Strict):
    """Engines and trainers on pools of their own."""

    train_pool: Name
    """The pool of `cluster.yaml` that trainers have to themselves; engines are on another one."""

    streams: Annotated[bool, Field(exclude_if=is_true)] = True
    """Trainers train complete groups while the others of the round decode. False: they begin when the rollout has
    ended, as a job of a co-execution group must, whose phases take turns with those of other jobs."""
