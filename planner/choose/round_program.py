"""The round program: a linear model over rates, with binaries for the choices.

Variables, per S = P n trained samples (one step's worth, so that numbers are near 1):
    u[s, m], v[l, m] >= 0   rounds of short column s and long column l with update choice m
    x[s], z[l], y[m], w[m], e[k]   binary: column in use, update choice of short and of long rounds, layout k in use
    c, d >= 0               long rounds that change engines, long rounds that change shards
    min  sum t[s, m] u[s, m] + sum t[l, m] v[l, m] + 2 t_engines c + 2 t_shards d
    one step's worth of samples is trained; of each law, what short rounds defer is what long rounds take
    u <= U x, u <= U y, v <= V z, v <= V w;  one x, one y, one w;  one z of a law if its x defers, else none
    x <= e, z <= e of their layout; the engines of all layouts in use, and the trainers that take most, fit into the
    host memory of the fullest node together
    c >= sum v where x and z differ in layout; d >= sum v where y and w shard differently
    bias: the excess of trained tokens, plus its error, within the budget; SLO: at most 5 % of the steps are slow
Minimising USD, the price of a second depends on the nodes in use: the program is solved once for each number of nodes,
over what fits into them, and the cheapest wins; its bound is the least of all bounds.
A second solve keeps the optimum and takes, of the choices that reach it, the first by name.

Discipline (refs/planners.md 5): columns sorted, names zero-padded, lpSum; how it is solved is in highs.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import pulp

from ...plans.yaml.errors import Infeasible
from ..highs import MAX_NODES, minimise
from .candidates import Law
from .cycle_cost import CONFIDENCE_Z, SLOW_SHARE, Column, Cycle, Limits, all_cycles, make_cycle

_ALL_FILTERED = (
    "no simulated round trained a group: nearly all samples of a prompt have one reward, and dynamic sampling filters "
    "such groups; profile a policy that is right now and then, or turn algorithm.dynamic_sampling off"
)
_NONE_ENDED = (
    "no simulated round trained a group: too few groups end in the rounds of the mode; plan another mode, or give a "
    "length trace of more prompts"
)


def nothing_trained(dynamic_sampling: bool) -> str:
    """Why no round trained a group, and what to do."""
    return _ALL_FILTERED if dynamic_sampling else _NONE_ENDED


@dataclass(frozen=True, slots=True)
class Solution:
    """A choice with its proof. Objective and bound per trained sample, in seconds or USD (`Limits.objective`)."""

    cycle: Cycle
    objective: float
    bound: float
    gap: float
    optimal: bool
    solver: str


def solve_program(
    short: Sequence[Column],
    long: Sequence[Column],
    needs_long: set[Law],
    limits: Limits,
    group_target: int,
    max_nodes: int = MAX_NODES,
    dynamic_sampling: bool = False,
) -> Solution:
    """Choose columns. Raises Infeasible, naming the limits that bind, when no choice keeps them.

    Args:
        short, long: columns; names unique; all with the same update choices.
        needs_long: laws whose short rounds defer prompts.
        group_target: P, which the rates are scaled by.
        max_nodes: of the branch and bound, the same on every machine; what is found until then is returned with its
            gap to what was proven.
        dynamic_sampling: whether groups whose rewards are all equal were dropped, for the error to say.
    """
    # Few rounds of dynamic sampling may have trained no group at all: such a column has no rate.
    short, long = (sorted((c for c in cs if c.groups > 0), key=lambda c: c.name) for cs in (short, long))
    if not short:
        raise Infeasible(nothing_trained(dynamic_sampling))
    found: list[tuple[Cycle, float, bool]] = []
    for part in _parts(short, long, limits):
        solved = _solve(*part, needs_long, limits, group_target, max_nodes)
        if solved is not None:
            found.append(solved)
    if not found:
        raise Infeasible(_why_infeasible(short, long, needs_long, limits, group_target))
    cycle = min((c for c, _, _ in found), key=lambda c: (c.cost(limits), c.nodes(limits), c.name))
    objective = cycle.cost(limits)
    bound = max(0.0, min(objective, *(b for _, b, _ in found)))
    return Solution(
        cycle=cycle,
        objective=objective,
        bound=bound,
        # Differences below the solver's own tolerance are not a gap.
        gap=0.0 if objective - bound <= 1e-7 * objective else (objective - bound) / objective,
        optimal=all(optimal for _, _, optimal in found),
        solver=f"HiGHS {version('highspy')}",
    )


_Part = tuple[list[Column], list[Column], list[int], float, int]
"""Columns, update choices, the price of a second, and nodes."""


def _parts(short: Sequence[Column], long: Sequence[Column], limits: Limits) -> list[_Part]:
    """One program for seconds; for USD one for each number of nodes."""
    trains = list(range(len(short[0].step_s))) if short else []
    if limits.objective == "seconds":
        return [(list(short), list(long), trains, 1.0, limits.pool_nodes)]
    counts = {limits.nodes_of(c.layout) for c in [*short, *long]} | {limits.train_nodes_of(m) for m in trains}
    states = {limits.train_host[m]: m for m in trains}.values() if limits.train_host else [0]
    pairs = itertools.product({c.layout for c in short}, {c.layout for c in [*short, *long]}, states)
    counts |= {limits.nodes_for([s, w], [m]) for s, w, m in pairs}
    parts = []
    for nodes in sorted(counts):
        few, many = ([c for c in columns if limits.nodes_of(c.layout) <= nodes] for columns in (short, long))
        fitting = [m for m in trains if limits.train_nodes_of(m) <= nodes]
        if few and fitting:
            parts.append((few, many, fitting, nodes * limits.usd_per_node_s, min(nodes, limits.pool_nodes)))
    return parts


def _solve(
    short: list[Column],
    long: list[Column],
    trains: list[int],
    price: float,
    nodes: int,
    needs_long: set[Law],
    limits: Limits,
    group_target: int,
    max_nodes: int,
) -> tuple[Cycle, float, bool] | None:
    """(choice, bound of the objective per sample, proven); None if infeasible."""
    limits = dataclasses.replace(limits, pool_nodes=nodes)
    build = _Build(short, long, trains, needs_long, limits, group_target)
    first = minimise(build.problem, build.cost, max_nodes)
    if first is None:
        return None
    bound = first.bound * price / (group_target * limits.group_size)
    if not first.proven:
        # A limit cut the search. Listing schedules needs no search, and finds what the search may not have got to.
        listed = [
            c
            for c in all_cycles(short, long, needs_long, limits)
            if {c.train, c.long_train} <= set(trains) and not c.violations(limits)
        ]
        found = [build.chosen()] if math.isfinite(first.objective) else []
        cycle = min([*listed, *found], key=lambda c: (c.cost(limits), c.name), default=None)
        return None if cycle is None else (cycle, bound, False)
    # Ties (and only ties: a relative 1e-7 is far below the noise of any column) go to the first by name.
    build.problem += build.cost <= first.objective * (1 + 1e-7), "keep_the_optimum"
    second = minimise(build.problem, build.rank, MAX_NODES)
    if second is None or not second.proven:
        raise RuntimeError("the optimum of the first phase is not found in the second")
    return build.chosen(), bound, True


class _Build:
    """The model, and how to read it."""

    def __init__(
        self,
        short: list[Column],
        long: list[Column],
        trains: list[int],
        needs_long: set[Law],
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

    def _choices(self, needs_long: set[Law]) -> None:
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
        for number, law in enumerate(sorted({c.law for c in [*self.short, *self.long]})):
            short = [s for s, c in enumerate(self.short) if c.law == law]
            long = [i for i, c in enumerate(self.long) if c.law == law]
            if law not in needs_long:
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
        layouts = sorted({c.layout for c in [*self.short, *self.long]})
        exists = {k: pulp.LpVariable(f"e_{n:05d}", cat=pulp.LpBinary) for n, k in enumerate(layouts)}
        for s, column in enumerate(self.short):
            self.problem += self.x[s] <= exists[column.layout], f"short_engines_{s:05d}"
        for i, column in enumerate(self.long):
            self.problem += self.z[i] <= exists[column.layout], f"long_engines_{i:05d}"
        # In GB: coefficients of 1e10 beside 1 are what tolerances are lost on.
        limits, nodes = self.limits, self.limits.pool_nodes
        held = pulp.lpSum([limits.engines_on_node(k, nodes) / 1e9 * e for k, e in exists.items()])
        states = {m: limits.trainers_on_node(m, nodes) / 1e9 for m in self.trains}
        if any(states.values()):
            trainers = pulp.LpVariable("trainers_on_host", 0, cat=pulp.LpContinuous)
            for name, choices in (("short", self.y), ("long", self.w)):
                self.problem += trainers >= pulp.lpSum([states[m] * c for m, c in choices.items()]), f"{name}_trainers"
            held += trainers
        self.problem += held <= limits.host_memory_bytes / 1e9, "host_memory"

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


def _why_infeasible(
    short: Sequence[Column], long: Sequence[Column], needs_long: set[Law], limits: Limits, group_target: int
) -> str:
    """Name the limit that binds: the one without which there is a plan, by solving again with each lifted."""
    limits = dataclasses.replace(limits, objective="seconds")  # what is feasible does not depend on the price
    everything = limits.on_node(limits.host_bytes, range(len(limits.train_host)), 1)
    lifted = {
        "the bias budget; allow more of it or drop the forced mode": dataclasses.replace(limits, bias_budget=math.inf),
        "slo.step_p95_s; raise it": dataclasses.replace(limits, slo=False),
        "host memory of a node for engines, trainers and their offloaded states; add memory, nodes or fewer layouts": (
            dataclasses.replace(limits, host_memory_bytes=max(1, math.ceil(everything)))
        ),
    }
    reasons = [
        reason
        for reason, relaxed in lifted.items()
        for part in _parts(short, long, relaxed)
        if _solve(*part, needs_long, relaxed, group_target, MAX_NODES) is not None
    ]
    if not reasons:
        return (
            f"none of {len(short)} simulated kinds of short round keeps the bias budget, the SLO and the memory at once"
        )
    return "no simulated plan keeps " + ", or ".join(reasons)
