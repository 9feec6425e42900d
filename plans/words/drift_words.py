"""What a plan's reader must know of lengths that change while the policy learns, in words."""

from __future__ import annotations

import math

from ..schema.predicted import LengthDrift

_STANDS_OUT = 1.645
"""Standard errors from which on a change is told as one, as the planner's own use of it has it."""


def drift_text(drift: LengthDrift | None) -> str:
    """One sentence."""
    held = "predictions hold for the policy that the lengths were measured on"
    if drift is None:
        return f"{held}; the length trace has no two epochs of a prompt to tell how learning moves lengths"
    moves = [
        f"{name} by {100 * math.expm1(rate):+.1f}% (±{100 * error:.1f}%)"
        for name, rate, error in (("the mean", drift.body, drift.body_error), ("p95", drift.tail, drift.tail_error))
        if abs(rate) > _STANDS_OUT * error
    ]
    if not moves:
        return f"{held}; over epochs {drift.first} to {drift.last} of the length trace no move of lengths stands out"
    return (
        f"{held}; over epochs {drift.first} to {drift.last} of the length trace an epoch moved {' and '.join(moves)}, "
        "which no prediction follows"
    )
