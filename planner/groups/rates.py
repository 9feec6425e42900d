"""What a group gives its jobs: slowdown of each member in the long run, and whether all keep their bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .model import Group, GroupJob, Rules, Slowdown
from .twin import FIRST_COME, MULTI_RATE, ROUND_ROBIN, long_run_many, state

POLICIES = {"round_robin": ROUND_ROBIN, "first_come": FIRST_COME, "multi_rate": MULTI_RATE}

PACE = 0.998
"""Share of its bound that a job is paced at: what the machine regulates ends this little inside the bound."""

_ROWS = 400


def bound(job: GroupJob, rules: Rules) -> float:
    """The slowdown that a job must stay below."""
    return job.slo - rules.margin * (job.slo - 1.0)


def _seats(groups: Sequence[Group], jobs: Mapping[str, GroupJob], rules: Rules) -> tuple[NDArray[np.float64], ...]:
    most = max(len(group.pins) for group in groups)
    shape = (len(groups), most, 2)
    units, expected = np.zeros(shape, np.uint64), np.zeros(shape)
    warm, pace = np.zeros(shape), np.zeros(shape[:2])
    counts = np.zeros(len(groups), np.int64)
    for g, group in enumerate(groups):
        counts[g] = len(group.pins)
        for j, pin in enumerate(group.pins):
            job = jobs[pin.job]
            ways = job.rollout[pin.rollout], job.train[pin.train]
            for phase, (way, held) in enumerate(zip(ways, (pin.rollout_units, pin.train_units), strict=True)):
                bits = 0
                for unit in held:
                    bits |= 1 << unit
                units[g, j, phase] = bits
                expected[g, j, phase] = way.mean_s
                warm[g, j, phase] = way.warm_s
            pace[g, j] = PACE * bound(job, rules) * job.solo_s
    return units, expected + warm, warm, pace, expected[:, :, None, :].copy(), counts  # type: ignore[return-value]


def _factors(groups: Sequence[Group], jobs: Mapping[str, GroupJob], rules: Rules) -> list[list[float]]:
    seats = _seats(groups, jobs, rules)
    most = seats[3].shape[1]
    out = np.zeros(seats[3].shape)
    log, times = np.zeros((_ROWS, most, 4)), np.zeros(_ROWS)
    long_run_many(*seats, state(most), log, times, POLICIES[rules.policy], rules.interference, out)
    return [
        [float(out[g, j]) / jobs[pin.job].solo_s for j, pin in enumerate(group.pins)] for g, group in enumerate(groups)
    ]


def slowdowns(group: Group, jobs: Mapping[str, GroupJob], rules: Rules) -> dict[str, Slowdown]:
    """Simulated slowdown of every member of `group` under `rules`."""
    factors = _factors([group], jobs, rules)[0]
    return {pin.job: Slowdown(f, f, f) for pin, f in zip(group.pins, factors, strict=True)}


def feasible(group: Group, jobs: Mapping[str, GroupJob], rules: Rules) -> bool:
    """Whether every member keeps its bound; a lone job on its reference ways always does."""
    return feasible_many([group], jobs, rules)[0]


def feasible_many(groups: Sequence[Group], jobs: Mapping[str, GroupJob], rules: Rules) -> list[bool]:
    """`feasible` of many groups in one call of the compiled twin."""
    if not groups:
        return []
    found = []
    for group, factors in zip(groups, _factors(groups, jobs, rules), strict=True):
        alone = len(group.pins) == 1 and group.pins[0].rollout == group.pins[0].train == 0
        held = zip(group.pins, factors, strict=True)
        found.append(alone or all(factor <= bound(jobs[pin.job], rules) for pin, factor in held))
    return found
