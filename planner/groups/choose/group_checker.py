"""Feasibility and slowdowns of groups in the group program, each group simulated once.

Results are kept by content: which jobs (by identity: a job whose durations changed is another object), in which ways,
and which jobs share units (with tails, also which units). The permit machine depends on nothing else, so that
re-solves and renumbered nodes find the same entry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..inputs.group_model import Group, GroupJob, Jobs, NodeTypes, Rules, Slowdown, slowdown_bound
from ..simulate.slowdowns import feasible_many, slowdowns

_ENTRIES = 1_000_000


_ROUNDING = 1e-9


class Checker:
    """Feasibility and slowdowns of groups under one set of rules, each group simulated once."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.simulated = 0
        self._numbers: dict[int, tuple[GroupJob, int]] = {}
        self._keeps: dict[tuple[object, ...], bool] = {}
        self._slow: dict[tuple[object, ...], dict[str, Slowdown]] = {}

    def keeps(self, groups: Sequence[Group], jobs: Jobs) -> list[bool]:
        """Whether every member of each group keeps its bound; the caller checks loads and residency.

        A verdict falls before a period is found, and a few in a thousand are wrong by some tenths of a percent: chosen
        groups must also pass `holds`.
        """
        keys = [self._key(group, jobs) for group in groups]
        unknown = {key: group for key, group in zip(keys, groups, strict=True) if key not in self._keeps}
        if unknown:
            if len(self._keeps) > _ENTRIES:
                self._keeps.clear()
            self.simulated += len(unknown)
            verdicts = feasible_many(list(unknown.values()), jobs, self.rules)
            self._keeps.update(zip(unknown, verdicts, strict=True))
            if any(key not in self._keeps for key in keys):
                return self.keeps(groups, jobs)
        return [self._keeps[key] for key in keys]

    def holds(self, group: Group, jobs: Jobs) -> bool:
        """Whether the group keeps all bounds by its long-run means too; `keeps` returns this verdict from now on."""
        held = self.keeps([group], jobs)[0] and (
            len(group.pins) == 1
            or all(
                slow.mean <= slowdown_bound(jobs[name], self.rules) + _ROUNDING
                for name, slow in self.slowdowns(group, jobs).items()
            )
        )
        self._keeps[self._key(group, jobs)] = held
        return held

    def lost(self, group: Group, jobs: Jobs, node_types: NodeTypes) -> float:
        """Units of training an hour that the members do less than solo (a unit is what one USD buys there)."""
        slow = self.slowdowns(group, jobs)
        return math.fsum(jobs[name].solo_usd_per_hour(node_types) * (1.0 - 1.0 / s.mean) for name, s in slow.items())

    def slowdowns(self, group: Group, jobs: Jobs) -> dict[str, Slowdown]:
        """Slowdown of every member."""
        key = self._key(group, jobs)
        if key not in self._slow:
            if len(self._slow) > _ENTRIES // 10:
                self._slow.clear()
            self._slow[key] = slowdowns(group, jobs, self.rules)
        return self._slow[key]

    def _key(self, group: Group, jobs: Jobs) -> tuple[object, ...]:
        """Members with their ways, then the distinct sets of phases that share a unit."""
        members = []
        occupants: dict[int, int] = {}
        for member, pin in enumerate(group.pins):
            members.append((self._number(jobs[pin.job]), pin.rollout, pin.train))
            for phase, units in enumerate((pin.rollout_units, pin.train_units)):
                bit = 1 << (2 * member + phase)
                for unit in units:
                    occupants[unit] = occupants.get(unit, 0) | bit
        if self.rules.tail_keep:
            # A tail keeps the first of its units: it counts how many are shared, and which.
            return (*members, *(occupants[unit] for unit in sorted(occupants)))
        return (*members, *sorted(set(occupants.values())))

    def _number(self, job: GroupJob) -> int:
        # Keep the job alive, so that no other object gets its id.
        return self._numbers.setdefault(id(job), (job, len(self._numbers)))[1]
