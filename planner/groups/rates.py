"""What a group gives its jobs: slowdown of each member in the long run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .model import Group, GroupJob, Rules, Slowdown
from .twin import FIRST_COME, MULTI_RATE, ROUND_ROBIN, long_run

POLICIES = {"round_robin": ROUND_ROBIN, "first_come": FIRST_COME, "multi_rate": MULTI_RATE}


def slowdowns(group: Group, jobs: Mapping[str, GroupJob], rules: Rules, iterations: int = 30) -> dict[str, Slowdown]:
    """Simulated slowdown of every member of `group` under `rules`."""
    rollout, train, bits, pace = [], [], [], []
    for pin in group.pins:
        job = jobs[pin.job]
        spread = np.array(job.spread or [(1.0, 1.0)])
        rollout.append(job.rollout[pin.rollout].mean_s * spread[:, 0])
        train.append(job.train[pin.train].mean_s * spread[:, 1])
        bits.append([sum(1 << unit for unit in units) for units in (pin.rollout_units, pin.train_units)])
        pace.append(job.slo * job.solo_s)
    units = np.array(bits, dtype=np.uint64)
    means = long_run(
        np.array(rollout), np.array(train), units[:, 0], units[:, 1], np.array(pace), POLICIES[rules.policy], iterations
    )
    factors = [float(mean) / jobs[pin.job].solo_s for pin, mean in zip(group.pins, means, strict=True)]
    return {pin.job: Slowdown(f, f, f) for pin, f in zip(group.pins, factors, strict=True)}
