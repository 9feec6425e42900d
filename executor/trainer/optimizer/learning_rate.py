"""The learning rate of each update, a function of its number alone: a run that resumes has what it would have had."""

from __future__ import annotations

import math

from ....plans.schema.algorithm import Algorithm


def learning_rate(algorithm: Algorithm, update: int) -> float:
    """Learning rate of update number `update`, counted from 0.

    It rises linearly over `warmup_steps`, its first value being above 0; then it is constant, or falls to
    `final_share` of `learning_rate` over `decay_steps`, linearly or along half a cosine, and stays there.
    """
    peak, schedule = algorithm.learning_rate, algorithm.schedule
    if update < schedule.warmup_steps:
        return peak * (update + 1) / (schedule.warmup_steps + 1)
    if schedule.kind == "constant":
        return peak
    assert schedule.decay_steps is not None, "the schema demands decay_steps"
    done = min((update - schedule.warmup_steps) / schedule.decay_steps, 1.0)
    left = 1.0 - done if schedule.kind == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0
    return peak * (schedule.final_share + (1.0 - schedule.final_share) * left)
