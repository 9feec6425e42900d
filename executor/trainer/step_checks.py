"""Checks of a step between its gradients and the optimizer: whether it may be taken, and when a run must stop.

The trainer asks before it steps, and the run asks again about the metrics that it was handed: the answer is a function
of the metrics, so both have the same. A step that is refused changes neither weights nor optimizer state. There are two
reasons, with different ends:

- something is not finite: an accident of this batch, perhaps. The step is skipped: its samples are settled all the same
  (drawing them again would condition on what they are), they just teach nothing. `MAX_SKIPPED_IN_A_ROW` such steps one
  after another are no accident, and the run stops.
- engine and trainer differ by more than rounding explains: they hold other weights or distributions, and training on
  would be off-policy in disguise. The run stops at once, unless the job has it warn (`logprob_limits`).

Either way the last checkpoint is of finite weights: a trainer writes no others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from ...plans.schema.job import Job
from ...plans.yaml.errors import RunFailed

# One bad batch should not end a run of days; three in a row are the weights' fault or the data's, each costs a round.
MAX_SKIPPED_IN_A_ROW = 3


class LogprobLimits(NamedTuple):
    """How far the log-probabilities of engine and trainer may differ, in nats, over the response tokens of a step.

    Attributes:
        mean: limit of the mean absolute difference.
        p99: limit of its 99th percentile.
        bound: tokens beyond it are counted, and end nothing: in half precision a few always are.
        stops: whether a step beyond a limit is refused, which ends the run; else it is taken, and told of.
    """

    mean: float
    p99: float
    bound: float
    stops: bool = True


# Rounding alone: in float32 some 1e-5, and 1e-3 on single tokens of steep models; in bfloat16 a mean of 0.01 to 0.05
# and more than 1 on single tokens (slime's tests stop at a mean of 0.1); float16 has three more bits of mantissa.
# Weights that are one step old, or another temperature, are a mean of several tenths.
LOGPROB_LIMITS = {
    "float32": LogprobLimits(mean=2e-3, p99=1e-2, bound=1e-2),
    "bfloat16": LogprobLimits(mean=0.1, p99=1.0, bound=1.0),
    "float16": LogprobLimits(mean=0.05, p99=0.5, bound=0.5),
}


def logprob_limits(job: Job) -> LogprobLimits:
    """The limits of a job: those of its dtype, unless it sets its own."""
    limits, own = LOGPROB_LIMITS[job.model.dtype], job.logprob_limits
    if own is None:
        return limits
    p99 = own.p99 or limits.p99
    return LogprobLimits(own.mean or limits.mean, p99, bound=p99, stops=own.action == "stop")


class Refusal(NamedTuple):
    """Why a step is not taken.

    Attributes:
        reason: `not finite`: the step is skipped; `log-probs`: the run stops.
        text: the figures, beside their limits.
    """

    reason: Literal["not finite", "log-probs"]
    text: str


_FINITE = {
    "loss": "the loss",
    "logprob_mean_abs_diff": "the difference of log-probs between engine and trainer",
    "grad_norm": "the gradient norm",
    "kl_reference": "the KL to the reference",
}


def refusal(metrics: Mapping[str, float], limits: LogprobLimits | None) -> Refusal | None:
    """Why a step of these metrics may not be taken; None if it may. `limits` None: log-probs have no limit."""
    seen = {key: metrics[key] for key in _FINITE if key in metrics}
    not_finite = [f"{_FINITE[key]} is {value}" for key, value in seen.items() if not math.isfinite(value)]
    if not_finite:
        return Refusal("not finite", "; ".join(not_finite))
    text = None if limits is None or not limits.stops else beyond(metrics, limits)
    return None if text is None else Refusal("log-probs", text)


def beyond(metrics: Mapping[str, float], limits: LogprobLimits) -> str | None:
    """How far log-probs differ beyond their limits; None if they do not."""
    for key, where, limit in (
        ("logprob_mean_abs_diff", "in the mean", limits.mean),
        ("logprob_p99_abs_diff", "on 1 % of the tokens", limits.p99),
    ):
        if metrics[key] > limit:
            return (
                f"log-probs of engine and trainer differ by {metrics[key]:.3g} {where} (limit {limit:g}); they do not "
                "hold the same model, or sample at another temperature; where rounding explains it, as in a mixture of "
                "experts or at a low temperature, give the job other logprob_limits"
            )
    return None


class SkippedSteps:
    """How many steps were skipped one after another, and when that ends the run."""

    def __init__(self) -> None:
        self.in_a_row = 0

    def count(self, skipped: bool) -> None:
        """A step was skipped, or taken."""
        self.in_a_row = self.in_a_row + 1 if skipped else 0

    def stop_if_lost(self, metrics: Mapping[str, float], step: int, saved_step: int) -> None:
        """Raise RunFailed after `MAX_SKIPPED_IN_A_ROW` skipped steps, or if the update of `step` left weights that are
        not finite; `saved_step` is that of the last checkpoint."""
        if self.in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise RunFailed(
                f"{self.in_a_row} steps in a row were skipped, because losses or gradients are not finite; "
                f"the weights are those of step {step - self.in_a_row}, and no checkpoint holds others; the trace says "
                "of each what was seen"
            )
        if not math.isfinite(metrics.get("parameter_norm", 0.0)):
            raise RunFailed(
                f"the update of step {step} left weights that are not finite; the checkpoint of step {saved_step} is "
                "kept, resume from there with a lower learning rate"
            )
