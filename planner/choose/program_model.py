"""The model of the round program in PuLP: its variables, constraints and objective, as round_program.py states them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pulp

from .candidates.round_kinds import DeferralRule
from .cycle_cost import CONFIDENCE_Z, SLOW_SHARE, Column, Cycle, make_cycle
from .plan_limits import Limits


class ProgramModel:
    """The round program's PuLP problem, and the schedule that its solution chooses."""

    def __init__(
        self,
        short: list[Column],
        long: list[Column],
        trains: list[int],
        needs_long: set[DeferralRule],
        limits: Limits,
        group_target: int,
    ) -> None:
        pulp.set_v4_migration_warnings(False)
        self.short, self.long, self.trains, self.limits = short, long, trains, limits
        self.problem: Any = pulp.LpProblem("rounds", pulp.LpMinimize)
        binary, real = pulp.LpBinary, pulp.LpContinuous
        s_, l_ = range(len(short)), range(len(long))
        self.x = [pulp.LpVariable(f"x_{s:05d}", cat=binary) for s in s_]
        self.z = [pulp.LpVariable(f"z_{i:05d}", cat=binary) for i in l_]
        self.y = {m: pulp.LpVariable(f"y_{m:05d}", cat=binary) for m in trains}
        self.w = {m: pulp.LpVariable(f"w_{m:05d}", cat=binary) for m in trains}
        self.u = {(s, m): pulp.LpVariable(f"u_{s:05d}_{m:05d}", 0, cat=real) for s in s_ for m in trains}
        self.v = {(i, m): pulp.LpVariable(f"v_{i:05d}_{m:05d}", 0, cat=real) for i in l_ for m in trains}
        self.engine_changes = pulp.LpVariable("changes_engines", 0, cat=real)
        self.shard_changes = pulp.LpVariable("changes_shards", 0, cat=real)
        self.cost = pulp.lpSum(
            [short[s].step_s[m] * u for (s, m), u in self.u.items()]
            + [long[i].step_s[m] * v for (i, m), v in self.v.items()]
            + [2 * limits.layout_switch_s * self.engine_changes, 2 * limits.reshard_s * self.shard_changes]
        )
        # Names sort as keys do; the first part outweighs the second, and so on (Cycle.name).
        unit, terms = 1.0, []
        for family in (list(self.w.values()), list(self.y.values()), self.z, self.x):
            terms += [unit * (number + 1) * variable for number, variable in enumerate(family)]
            unit *= len(family) + 1
        self.rank = pulp.lpSum([term * (1e3 / unit) for term in terms])
        self._rates(group_target)
        self._choices(needs_long)
        self._memory()
        self._rewards()
        self._changes(group_target)
        self._bounds(group_target * limits.group_size)

    def _weighted(self, short: Sequence[Sequence[float]], long: Sequence[Sequence[float]]) -> Any:
        return pulp.lpSum(
            [short[s][m] * u for (s, m), u in self.u.items()] + [long[i][m] * v for (i, m), v in self.v.items()]
        )

    def _same(self, values: Sequence[float]) -> list[list[float]]:
        """A column's number for each update choice."""
        return [[value] * (max(self.trains) + 1) for value in values]

    def _rates(self, group_target: int) -> None:
        trained = self._weighted(self._same([c.groups for c in self.short]), self._same([c.groups for c in self.long]))
        self.problem += trained == group_target, "one_step_of_samples"
        for (s, m), u in self.u.items():
            most = group_target / self.short[s].groups
            self.problem += u <= most * self.x[s], f"u_needs_x_{s:05d}_{m:05d}"
            self.problem += u <= most * self.y[m], f"u_needs_y_{s:05d}_{m:05d}"
        for (i, m), v in self.v.items():
            most = group_target / self.long[i].groups
            self.problem += v <= most * self.z[i], f"v_needs_z_{i:05d}_{m:05d}"
            self.problem += v <= most * self.w[m], f"v_needs_w_{i:05d}_{m:05d}"

    def _choices(self, needs_long: set[DeferralRule]) -> None:
        self.problem += pulp.lpSum(self.x) == 1, "one_short"
        self.problem += pulp.lpSum(self.y.values()) == 1, "one_short_update"
        self.problem += pulp.lpSum(self.w.values()) == 1, "one_long_update"
        # Without long rounds their update is the short ones', so that a choice has one name.
        deferring = pulp.lpSum(self.z)
        for m in self.trains:
            self.problem += self.w[m] - self.y[m] <= deferring, f"idle_update_{m:05d}"
        for sharding in sorted({self.limits.sharding_of(m) for m in self.trains} if self.limits.one_sharding else ()):
            alike = [m for m in self.trains if self.limits.sharding_of(m) == sharding]
            here, there = pulp.lpSum([self.y[m] for m in alike]), pulp.lpSum([self.w[m] for m in alike])
            self.problem += here == there, f"one_sharding_{sharding:05d}"
        for number, rule in enumerate(sorted({c.deferral for c in [*self.short, *self.long]})):
            short = [s for s, c in enumerate(self.short) if c.deferral == rule]
            long = [i for i, c in enumerate(self.long) if c.deferral == rule]
            if rule not in needs_long:
                self.problem += pulp.lpSum([self.z[i] for i in long]) == 0, f"no_long_{number:05d}"
                continue
            self.problem += (
                pulp.lpSum([self.z[i] for i in long]) == pulp.lpSum([self.x[s] for s in short]),
                f"one_long_{number:05d}",
            )
            put_off = [self.short[s].moved * self.u[s, m] for s in short for m in self.trains]
            taken = [self.long[i].moved * self.v[i, m] for i in long for m in self.trains]
            self.problem += pulp.lpSum(put_off) == pulp.lpSum(taken), f"queue_{number:05d}"

    def _memory(self) -> None:
        layouts = sorted({layout for c in [*self.short, *self.long] for layout in c.layouts})
        exists = {k: pulp.LpVariable(f"e_{n:05d}", cat=pulp.LpBinary) for n, k in enumerate(layouts)}
        for s, column in enumerate(self.short):
            self.problem += self.x[s] <= exists[column.layout], f"short_engines_{s:05d}"
        for i, column in enumerate(self.long):
            for number, layout in enumerate(column.layouts):
                self.problem += self.z[i] <= exists[layout], f"long_engines_{i:05d}_{number}"
        # In GB: coefficients of 1e10 beside 1 are what tolerances are lost on.
        limits, nodes = self.limits, self.limits.pool_nodes
        held = pulp.lpSum([limits.engines_on_node(k, nodes) / 1e9 * e for k, e in exists.items()])
        own = limits.train_pool
        states = {m: limits.trainers_on_node(m, nodes if own is None else own.nodes) / 1e9 for m in self.trains}
        if any(states.values()):
            trainers = pulp.LpVariable("trainers_on_host", 0, cat=pulp.LpContinuous)
            for name, choices in (("short", self.y), ("long", self.w)):
                self.problem += trainers >= pulp.lpSum([states[m] * c for m, c in choices.items()]), f"{name}_trainers"
            if own is None:
                held += trainers
            else:
                self.problem += trainers <= own.host_memory_bytes / 1e9, "trainers_host_memory"
        self.problem += held <= limits.host_memory_bytes / 1e9, "host_memory"

    def _rewards(self) -> None:
        """One choice of reward workers and deadlines for both kinds of round, and cores for them beside the engines."""
        choices = sorted({c.reward for c in [*self.short, *self.long]})
        for reward in choices if len(choices) > 1 else ():
            here = pulp.lpSum([x for x, c in zip(self.x, self.short, strict=True) if c.reward == reward])
            there = pulp.lpSum([z for z, c in zip(self.z, self.long, strict=True) if c.reward == reward])
            self.problem += there <= here, f"one_reward_{reward:05d}"
        limits = self.limits
        if limits.workers:
            # With one short column in use the sums are its workers, and the cores that its engines leave them.
            workers = pulp.lpSum([limits.workers[c.reward] * x for x, c in zip(self.x, self.short, strict=True)])
            room = pulp.lpSum([limits.worker_room[c.layout] * x for x, c in zip(self.x, self.short, strict=True)])
            self.problem += workers <= room, "reward_cores"

    def _changes(self, group_target: int) -> None:
        """Long rounds that change engines or shards; only where that costs something."""
        rounds = pulp.lpSum(self.v.values())
        most = max((group_target / c.groups for c in self.long), default=0.0)
        if self.limits.layout_switch_s > 0:
            for number, layout in enumerate(sorted({c.layout for c in self.short})):
                here = pulp.lpSum([x for x, c in zip(self.x, self.short, strict=True) if c.layout == layout])
                there = pulp.lpSum([z for z, c in zip(self.z, self.long, strict=True) if c.layout == layout])
                # here = 1 and there = 0 forces it; without long rounds `rounds` is 0 anyway.
                self.problem += (
                    self.engine_changes >= rounds - most * (1 - here) - most * there,
                    f"engines_change_{number:05d}",
                )
        if self.limits.reshard_s > 0:
            for number, sharding in enumerate(sorted({self.limits.sharding_of(m) for m in self.trains})):
                alike = [m for m in self.trains if self.limits.sharding_of(m) == sharding]
                here, there = pulp.lpSum([self.y[m] for m in alike]), pulp.lpSum([self.w[m] for m in alike])
                self.problem += (
                    self.shard_changes >= rounds - most * (1 - here) - most * there,
                    f"shards_change_{number:05d}",
                )

    def _bounds(self, samples: int) -> None:
        limits = self.limits
        if math.isfinite(limits.bias_budget):
            # In units of the mean length of all samples of a step, again to keep numbers near 1.
            unit = limits.mean_tokens * samples
            for name, sign in (("longer", 1.0), ("shorter", -1.0)):
                excess = [
                    self._same([(sign * c.excess_tokens + CONFIDENCE_Z * c.excess_error) / unit for c in columns])
                    for columns in (self.short, self.long)
                ]
                self.problem += self._weighted(*excess) <= limits.bias_budget + 1e-9, f"bias_{name}"
        if limits.slo:
            slow = [[[share - SLOW_SHARE for share in c.slow] for c in columns] for columns in (self.short, self.long)]
            self.problem += self._weighted(*slow) <= 0, "slo"

    def chosen(self) -> Cycle:
        """The columns in use."""
        short = next(c for c, x in zip(self.short, self.x, strict=True) if x.value() > 0.5)
        long = next((c for c, z in zip(self.long, self.z, strict=True) if z.value() > 0.5), None)
        train = next(m for m, y in self.y.items() if y.value() > 0.5)
        long_train = next(m for m, w in self.w.items() if w.value() > 0.5)
        return make_cycle(short, long, train, long_train, self.limits)
