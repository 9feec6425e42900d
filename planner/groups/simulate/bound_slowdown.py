"""The slowdown that a bound is held against: at the rules' quantile of stretches, as the solver judges it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..inputs.group_model import Group, GroupJob, Rules, Slowdown
from .permit_seats import bound
from .slowdowns import STRETCHES, is_alone, stretches_of

_TOLERANCE = 1e-6


def judged(group: Group, jobs: Mapping[str, GroupJob], got: Mapping[str, Slowdown], rules: Rules) -> dict[str, float]:
    """Slowdown of each member at `rules.quantile`; `got`: the group's slowdowns (rates.slowdowns)."""
    if rules.quantile == 0.95 or not any(jobs[pin.job].spread for pin in group.pins):
        return {pin.job: got[pin.job].p95 for pin in group.pins}
    some = stretches_of(group, jobs, rules, STRETCHES)[0]
    return {pin.job: float(np.quantile(s, rules.quantile)) for pin, s in zip(group.pins, some, strict=True)}


def keeping(group: Group, jobs: Mapping[str, GroupJob], got: Mapping[str, Slowdown], rules: Rules) -> dict[str, bool]:
    """Whether each member keeps its bound; a lone job on its reference is what bounds are measured against."""
    lone = is_alone(group)
    return {
        name: lone or slow <= bound(jobs[name], rules) * (1 + _TOLERANCE)
        for name, slow in judged(group, jobs, got, rules).items()
    }
