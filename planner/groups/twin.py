"""The compiled long-run simulation of one group under a permit policy.

Each job alternates rollout and training for ever; a phase holds all its units from its start to its end and is not
preempted. Policies are those of rounds/permit.py, by number.
"""

from __future__ import annotations

import numpy as np
from numba import njit

ROUND_ROBIN, FIRST_COME, MULTI_RATE = 0, 1, 2


@njit(cache=True)  # type: ignore[untyped-decorator]
def long_run(rollout_s, train_s, rollout_units, train_units, pace_s, policy, iterations):  # type: ignore[no-untyped-def]
    """Mean seconds of an iteration of each job, in the long run.

    Parameters
    ----------
    rollout_s, train_s: (jobs, draws) seconds of each phase, used cyclically
    rollout_units, train_units: (jobs,) uint64 bit sets of units held
    pace_s: (jobs,) seconds within which an iteration must end on average (SLO times solo)
    policy: FIRST_COME or MULTI_RATE (least slack against the pace first)
    iterations: that the slowest job does before the simulation ends
    """
    jobs, draws = rollout_s.shape
    phase = np.zeros(jobs, np.int64)  # 0 waits or runs rollout, 1 training
    running = np.zeros(jobs, np.bool_)
    ends = np.full(jobs, np.inf)
    since = np.zeros(jobs)  # when it began to wait
    done = np.zeros(jobs, np.int64)
    first = np.zeros(jobs)  # end of the warm-up iteration
    last = np.zeros(jobs)
    warm = 2
    busy = np.uint64(0)
    now = 0.0
    order = np.empty(jobs)
    while True:
        # Give out what is free, the most urgent first; a waiting phase that does not fit blocks nobody behind it.
        blocked = np.uint64(0)
        for j in range(jobs):
            if policy == MULTI_RATE:
                order[j] = last[j] + pace_s[j] - (train_s[j, done[j] % draws])
            else:
                order[j] = since[j]
        taken = running.copy()
        for _ in range(jobs):
            pick = -1
            for j in range(jobs):
                if not taken[j] and (pick < 0 or order[j] < order[pick]):
                    pick = j
            if pick < 0:
                break
            taken[pick] = True
            units = rollout_units[pick] if phase[pick] == 0 else train_units[pick]
            if units & (busy | blocked):
                blocked |= units
                continue
            busy |= units
            running[pick] = True
            seconds = rollout_s[pick, done[pick] % draws] if phase[pick] == 0 else train_s[pick, done[pick] % draws]
            ends[pick] = now + seconds
        j = int(np.argmin(ends))
        now = ends[j]
        ends[j] = np.inf
        running[j] = False
        since[j] = now
        if phase[j] == 0:
            busy &= ~rollout_units[j]
            phase[j] = 1
        else:
            busy &= ~train_units[j]
            phase[j] = 0
            done[j] += 1
            last[j] = now
            if done[j] == warm:
                first[j] = now
        if done.min() >= warm + iterations:
            break
    return (last - first) / (done - warm)
