"""The round program: a linear model over rates, with binaries for the choices. All PuLP and HiGHS of rlplan is here.

Variables, per S = P n trained samples (one step's worth, so that numbers are near 1):
    u[s, m], v[l, m] >= 0   rounds of short column s and long column l trained with micro-batch m
    x[s], z[l], y[m], e[k]  binary: column in use, micro-batch in use, engines of layout k exist
    min  sum t[s, m] u[s, m] + sum t[l, m] v[l, m]
    one step's worth of samples is trained; of each law, what short rounds defer is what long rounds take
    u <= U x, u <= U y, v <= V z, v <= V y;  one x, one y;  one z of a law if its x defers, else none
    x <= e, z <= e of their layout; the engines of all layouts in use fit into host memory together
    bias: the excess of trained tokens, plus its error, within the budget; SLO: at most 5 % of the steps are slow
A second solve keeps the optimum and takes, of the choices that reach it, the first by name.

Discipline (refs/planners.md 5): columns sorted, names zero-padded, lpSum, one thread, a fixed seed, no time limit;
`sol_status`, bound and gap are read, because on a limit the plain status still says Optimal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import pulp

from ..plans.errors import Infeasible
from .candidates import Law
from .cycle import CONFIDENCE_Z, SLOW_SHARE, Column, Cycle, Limits

# Nodes, not seconds: the same limit on every machine. Programs of a thousand columns need a few hundred at most.
_MAX_NODES = 200_000

_SEED = 1


@dataclass(frozen=True, slots=True)
class Solution:
    """A choice with its proof. Objective and bound in seconds per trained sample."""

    cycle: Cycle
    objective_s: float
    bound_s: float
    gap: float
    optimal: bool
    solver: str


def solve_program(
    short: Sequence[Column],
    long: Sequence[Column],
    micros: int,
    needs_long: set[Law],
    limits: Limits,
    group_target: int,
) -> Solution:
    """Choose columns. Raises Infeasible, naming the limits that bind, when no choice keeps them.

    Args:
        short, long: columns; names unique.
        micros: number of micro-batch choices.
        needs_long: laws whose short rounds defer prompts.
        group_target: P, which the rates are scaled by.
    """
    build = _Build(
        sorted(short, key=lambda c: c.name),
        sorted(long, key=lambda c: c.name),
        micros,
        needs_long,
        limits,
        group_target,
    )
    first = build.run(build.cost)
    if first is None:
        raise Infeasible(_why_infeasible(short, long, micros, needs_long, limits, group_target))
    objective, bound, gap, optimal = first
    # Ties (and only ties: a relative 1e-7 is far below the noise of any column) go to the first by name.
    build.problem += build.cost <= objective * (1 + 1e-7), "keep_the_optimum"
    second = build.run(build.rank)
    assert second is not None, "the optimum of the first phase is feasible in the second"
    cycle = build.chosen()
    seconds = cycle.seconds_per_sample(limits.group_size)
    scale = group_target * limits.group_size
    return Solution(
        cycle=cycle,
        objective_s=seconds,
        bound_s=max(0.0, min(seconds, bound / scale)),
        gap=max(0.0, gap if math.isfinite(gap) else 1.0),
        optimal=optimal,
        solver=f"HiGHS {version('highspy')}",
    )


class _Build:
    """The model, and how to read it."""

    def __init__(
        self,
        short: list[Column],
        long: list[Column],
        micros: int,
        needs_long: set[Law],
        limits: Limits,
        group_target: int,
    ) -> None:
        pulp.set_v4_migration_warnings(False)
        self.short, self.long, self.micros = short, long, micros
        self.problem: Any = pulp.LpProblem("rounds", pulp.LpMinimize)
        binary, real = pulp.LpBinary, pulp.LpContinuous
        s_, l_, m_ = range(len(short)), range(len(long)), range(micros)
        self.x = [pulp.LpVariable(f"x_{s:05d}", cat=binary) for s in s_]
        self.z = [pulp.LpVariable(f"z_{i:05d}", cat=binary) for i in l_]
        self.y = [pulp.LpVariable(f"y_{m:05d}", cat=binary) for m in m_]
        self.u = {(s, m): pulp.LpVariable(f"u_{s:05d}_{m:05d}", 0, cat=real) for s in s_ for m in m_}
        self.v = {(i, m): pulp.LpVariable(f"v_{i:05d}_{m:05d}", 0, cat=real) for i in l_ for m in m_}
        self.cost = pulp.lpSum(
            [short[s].step_s[m] * u for (s, m), u in self.u.items()]
            + [long[i].step_s[m] * v for (i, m), v in self.v.items()]
        )
        # Names sort as keys do; a micro-batch outweighs no column.
        self.rank = pulp.lpSum(
            [(s + 1) * x for s, x in enumerate(self.x)]
            + [(i + 1) / (len(long) + 1) * z for i, z in enumerate(self.z)]
            + [(m + 1) / ((len(long) + 1) * (micros + 1)) * y for m, y in enumerate(self.y)]
        )
        self._rates(group_target)
        self._choices(needs_long)
        self._memory(limits)
        self._bounds(limits, group_target * limits.group_size)

    def _weighted(self, short: Sequence[Sequence[float]], long: Sequence[Sequence[float]]) -> Any:
        return pulp.lpSum(
            [short[s][m] * u for (s, m), u in self.u.items()] + [long[i][m] * v for (i, m), v in self.v.items()]
        )

    def _rates(self, group_target: int) -> None:
        micros = self.micros
        trained = self._weighted([[c.groups] * micros for c in self.short], [[c.groups] * micros for c in self.long])
        self.problem += trained == group_target, "one_step_of_samples"
        for (s, m), u in self.u.items():
            most = group_target / self.short[s].groups
            self.problem += u <= most * self.x[s], f"u_needs_x_{s:05d}_{m:05d}"
            self.problem += u <= most * self.y[m], f"u_needs_y_{s:05d}_{m:05d}"
        for (i, m), v in self.v.items():
            most = group_target / self.long[i].groups
            self.problem += v <= most * self.z[i], f"v_needs_z_{i:05d}_{m:05d}"
            self.problem += v <= most * self.y[m], f"v_needs_y_{i:05d}_{m:05d}"

    def _choices(self, needs_long: set[Law]) -> None:
        self.problem += pulp.lpSum(self.x) == 1, "one_short"
        self.problem += pulp.lpSum(self.y) == 1, "one_micro_batch"
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
            put_off = [self.short[s].moved * self.u[s, m] for s in short for m in range(self.micros)]
            taken = [self.long[i].moved * self.v[i, m] for i in long for m in range(self.micros)]
            self.problem += pulp.lpSum(put_off) == pulp.lpSum(taken), f"queue_{number:05d}"

    def _memory(self, limits: Limits) -> None:
        layouts = sorted({c.layout for c in [*self.short, *self.long]})
        exists = {k: pulp.LpVariable(f"e_{n:05d}", cat=pulp.LpBinary) for n, k in enumerate(layouts)}
        for s, column in enumerate(self.short):
            self.problem += self.x[s] <= exists[column.layout], f"short_engines_{s:05d}"
        for i, column in enumerate(self.long):
            self.problem += self.z[i] <= exists[column.layout], f"long_engines_{i:05d}"
        # In GB: coefficients of 1e10 beside 1 are what tolerances are lost on.
        held = pulp.lpSum([limits.host_bytes[k] / 1e9 * e for k, e in exists.items()])
        self.problem += held <= limits.host_memory_bytes / 1e9, "host_memory"

    def _bounds(self, limits: Limits, samples: int) -> None:
        micros = self.micros
        if math.isfinite(limits.bias_budget):
            # In units of the mean length of all samples of a step, again to keep numbers near 1.
            unit = limits.mean_tokens * samples
            for name, sign in (("longer", 1.0), ("shorter", -1.0)):
                excess = [
                    [[(sign * c.excess_tokens + CONFIDENCE_Z * c.excess_error) / unit] * micros for c in columns]
                    for columns in (self.short, self.long)
                ]
                self.problem += self._weighted(*excess) <= limits.bias_budget + 1e-9, f"bias_{name}"
        if limits.slo:
            slow = [[[share - SLOW_SHARE for share in c.slow] for c in columns] for columns in (self.short, self.long)]
            self.problem += self._weighted(*slow) <= 0, "slo"

    def run(self, objective: Any) -> tuple[float, float, float, bool] | None:
        """(objective, bound, gap, proven); None if infeasible. Raises RuntimeError if HiGHS fails."""
        self.problem.setObjective(objective)
        solver = pulp.HiGHS(
            msg=False,
            threads=1,
            gapRel=0.0,
            random_seed=_SEED,
            mip_max_nodes=_MAX_NODES,
            mip_feasibility_tolerance=1e-9,
        )
        self.problem.solve(solver)
        if self.problem.sol_status == pulp.LpSolutionInfeasible or self.problem.status == pulp.LpStatusInfeasible:
            return None
        if self.problem.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            raise RuntimeError(f"HiGHS ended with status {pulp.LpStatus[self.problem.status]}")
        info = self.problem.solverModel.getInfo()
        optimal = self.problem.sol_status == pulp.LpSolutionOptimal
        return float(pulp.value(self.problem.objective)), info.mip_dual_bound, info.mip_gap, optimal

    def chosen(self) -> Cycle:
        """The columns in use."""
        short = next(c for c, x in zip(self.short, self.x, strict=True) if x.value() > 0.5)
        long = next((c for c, z in zip(self.long, self.z, strict=True) if z.value() > 0.5), None)
        micro = next(m for m, y in enumerate(self.y) if y.value() > 0.5)
        return Cycle(short, long, micro)


def _why_infeasible(
    short: Sequence[Column],
    long: Sequence[Column],
    micros: int,
    needs_long: set[Law],
    limits: Limits,
    group_target: int,
) -> str:
    """Name the limit that binds: the one without which there is a plan, by solving again with each lifted."""
    import dataclasses

    lifted = {
        "the bias budget; allow more of it or drop the forced mode": dataclasses.replace(limits, bias_budget=math.inf),
        "slo.step_p95_s; raise it": dataclasses.replace(limits, slo=False),
        "host memory for the engines; add memory or fewer layouts": dataclasses.replace(
            limits, host_memory_bytes=max(1, sum(limits.host_bytes.values()))
        ),
    }
    reasons = []
    for reason, relaxed in lifted.items():
        build = _Build(list(short), list(long), micros, needs_long, relaxed, group_target)
        if build.run(build.cost) is not None:
            reasons.append(reason)
    if not reasons:
        return (
            f"none of {len(short)} simulated kinds of short round keeps the bias budget, the SLO and the memory at once"
        )
    return "no simulated plan keeps " + ", or ".join(reasons)
