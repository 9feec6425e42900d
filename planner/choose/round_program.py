"""The round program: a linear model over rates, with binaries for the choices.

Variables, per S = P n trained samples (one step's worth, so that numbers are near 1):
    g[N]                    binary: N nodes are taken
    u[s, m, N], v[l, m, N] >= 0   rounds of short column s and long column l with update choice m on N nodes
    x[s], z[l], y[m], w[m], e[k]   binary: column in use, update choice of short and of long rounds, layout k in use
    c[N], d[N] >= 0         long rounds that change engines, long rounds that change shards
    min  sum over N of price[N] (sum t[s, m] u + sum t[l, m] v + 2 t_engines c + 2 t_shards d)
    on each N: one step's worth of samples is trained if g[N], else none; of each deferral rule, what short rounds bring
    into the queue is what long rounds take from it (`moved`, which need not be what they train, `groups`)
    rounds only of what is in use: of each column and of each update choice, trained samples <= S x (y, z, w)
    one g, one x, one y, one w;  one z of a rule if its x defers, else none
    nodes: what the engines and trainers in use take is within the N of g
    host memory: x <= e, z <= e of their layout; the engines of all layouts in use, and the trainers that take most, fit
    into the fullest of N nodes together if g[N]
    cores: the reward workers (one choice in both kinds) fit into the host cores that the engines in use leave them
    c >= long rounds of a layout - V x of that layout; d likewise of shardings
    on each N: bias: the excess of trained tokens, plus its error, within the budget; SLO: at most 5 % of the steps are
    slow; usd-within: seconds at most W times the rounds
Minimising USD, the price of a second is that of the nodes in use, and a product of a binary and a rate. Rates are split
by N, so that it is linear, and each N's rates have the rows of a program of their own: no bound of the relaxation is
weaker than that of the best number of nodes. Minimising seconds, there is one N, all nodes, of price 1.
A second solve keeps the optimum and takes, of the choices that reach it, the first by name.

Discipline: columns sorted, names zero-padded, lpSum; how it is solved is in highs.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import pulp

from ...plans.schema.plan import Method
from ...plans.yaml.errors import Infeasible
from ..costs.job_pools import NodesTaken
from .candidates.round_kinds import DeferralRule, LongKey, ShortKey
from .candidates.solve_options import MAX_NODES
from .cycle_cost import CONFIDENCE_Z, SLOW_SHARE, Column, Cycle, Key, all_cycles, make_cycle
from .highs import minimise
from .plan_limits import Limits

# The model of the round program in PuLP: its variables, constraints and objective, as round_program.py states them.

Weight = Callable[[Column[Any], int], float]
"""A quantity of a round of a column with an update choice."""


class _Kind:
    """Short or long rounds: their columns, and variables for which column and which update is used, and how often.

    `rates`: by number of a choice of nodes, (column, its number, update choice, rate).
    """

    def __init__(
        self,
        names: tuple[str, str, str],
        columns: Sequence[Column[Any]],
        trains: Sequence[int],
        limits: Limits,
        choices: Sequence[NodesTaken],
    ) -> None:
        of_column, of_update, of_rate = names
        self.columns = columns
        self.used = [pulp.LpVariable(f"{of_column}_{c:05d}", cat=pulp.LpBinary) for c in range(len(columns))]
        self.update = {m: pulp.LpVariable(f"{of_update}_{m:05d}", cat=pulp.LpBinary) for m in trains}
        self.rates = [
            [
                (column, c, m, pulp.LpVariable(f"{of_rate}_{c:05d}_{m:05d}_{k:03d}", 0, cat=pulp.LpContinuous))
                for c, column in enumerate(columns)
                for m in _unbeaten(column, trains, nodes, limits)
            ]
            for k, nodes in enumerate(choices)
        ]

    def total(self, k: int, weight: Weight) -> Any:
        """Sum of a quantity over the rounds on choice `k` of nodes."""
        return pulp.lpSum([weight(column, m) * rate for column, _, m, rate in self.rates[k]])

    def rounds_by(self, k: int, key: Callable[[Column[Any], int], Hashable], weight: Weight) -> dict[Any, Any]:
        """Sums of a quantity over the rounds on choice `k` of nodes, by a key of them."""
        return _sums((key(column, m), weight(column, m) * rate) for column, _, m, rate in self.rates[k])

    def columns_by(self, key: Callable[[Column[Any]], Hashable]) -> dict[Any, Any]:
        """Whether a column is used, by a key of columns."""
        return _sums((key(column), used) for column, used in zip(self.columns, self.used, strict=True))

    def weighed(self, weight: Callable[[Column[Any]], float]) -> Any:
        """The quantity of the column that is used."""
        return pulp.lpSum([weight(column) * used for column, used in zip(self.columns, self.used, strict=True)])

    def updates_by(self, key: Callable[[int], Hashable]) -> dict[Any, Any]:
        """Whether an update choice is used, by a key of them."""
        return _sums((key(m), used) for m, used in self.update.items())


def _sums(terms: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    listed: dict[Any, list[Any]] = {}
    for key, term in terms:
        listed.setdefault(key, []).append(term)
    return {key: pulp.lpSum(listed[key]) for key in sorted(listed)}


def _unbeaten(column: Column[Any], trains: Sequence[int], nodes: NodesTaken, limits: Limits) -> list[int]:
    """Update choices that a column can have on so many nodes, without those that another one beats: of the same
    sharding and host memory, no slower, and with no more slow steps."""
    if limits.nodes_of(column.layout) > nodes.rollout:
        return []
    room = nodes.rollout if limits.train_pool is None else nodes.train
    kept: dict[Hashable, list[int]] = {}
    for m in sorted((m for m in trains if limits.train_nodes_of(m) <= room), key=lambda m: (column.step_s[m], m)):
        sharding = limits.sharding_of(m) if limits.one_sharding or limits.reshard_s > 0 else 0
        alike = kept.setdefault((sharding, limits.train_host[m] if limits.train_host else None), [])
        if not alike or (limits.slo and column.slow[m] < column.slow[alike[-1]]):
            alike.append(m)
    return sorted(m for alike in kept.values() for m in alike)


class ProgramModel:
    """The round program's PuLP problem, and the schedule that its solution chooses.

    `choices`: of nodes. `cost` is per step's worth of samples, in seconds or, minimising USD, in `unit` USD: the least
    price of a second, so that numbers are near those of seconds.
    """

    def __init__(
        self,
        short: list[Column[ShortKey]],
        long: list[Column[LongKey]],
        needs_long: set[DeferralRule],
        limits: Limits,
        group_target: int,
        choices: Sequence[NodesTaken],
    ) -> None:
        pulp.set_v4_migration_warnings(False)
        trains = range(len(short[0].step_s))
        self.limits, self.target, self.choices = limits, group_target, choices
        self.problem: Any = pulp.LpProblem("rounds", pulp.LpMinimize)
        self.short = _Kind(("x", "y", "u"), short, trains, limits, choices)
        self.long = _Kind(("z", "w", "v"), long, trains, limits, choices)
        self.nodes = [pulp.LpVariable(f"g_{k:03d}", cat=pulp.LpBinary) for k in range(len(choices))]
        self._most_long = max((group_target / c.groups for c in long), default=0.0)
        self._seconds = [self._seconds_on(k) for k in range(len(choices))]
        prices = [limits.usd_per_s(each) if limits.objective == "usd" else 1.0 for each in choices]
        self.unit = min(prices)
        self.cost = pulp.lpSum([p / self.unit * s for p, s in zip(prices, self._seconds, strict=True)])
        # Names sort as keys do; the first part outweighs the second, and so on (Cycle.name).
        unit, terms = 1.0, []
        for of_kind in (self.long.update.values(), self.short.update.values(), self.long.used, self.short.used):
            terms += [unit * (number + 1) * variable for number, variable in enumerate(of_kind)]
            unit *= len(of_kind) + 1
        self.rank = pulp.lpSum([term * (1e3 / unit) for term in terms])
        self._one_of_each(needs_long)
        self._rates(needs_long)
        self._capacity()
        self._bounds()

    def _both(self, k: int, weight: Weight) -> Any:
        return self.short.total(k, weight) + self.long.total(k, weight)

    def _seconds_on(self, k: int) -> Any:
        """Seconds on choice `k` of nodes: steps, and long rounds' changes of engines and shards, there and back."""
        seconds, limits = self._both(k, lambda column, m: column.step_s[m]), self.limits
        if limits.layout_switch_s > 0:
            rounds = self.long.rounds_by(k, lambda column, m: column.layout, lambda column, m: 1.0)
            here = self.short.columns_by(lambda column: column.layout)
            seconds += 2 * limits.layout_switch_s * self._changes(f"engines_{k:03d}", rounds, here)
        if limits.reshard_s > 0 and not limits.one_sharding:
            rounds = self.long.rounds_by(k, lambda column, m: limits.sharding_of(m), lambda column, m: 1.0)
            here = self.short.updates_by(limits.sharding_of)
            seconds += 2 * limits.reshard_s * self._changes(f"shards_{k:03d}", rounds, here)
        return seconds

    def _changes(self, name: str, rounds: dict[Any, Any], here: dict[Any, Any]) -> Any:
        """Long rounds on what short rounds do not have: those by a key, but for the key that short rounds have."""
        changes = []
        for number, (key, taken) in enumerate(rounds.items()):
            changes.append(pulp.LpVariable(f"changes_{name}_{number:05d}", 0, cat=pulp.LpContinuous))
            self.problem += changes[-1] >= taken - self._most_long * here.get(key, 0), f"{name}_change_{number:05d}"
        return pulp.lpSum(changes)

    def _one_of_each(self, needs_long: set[DeferralRule]) -> None:
        self.problem += pulp.lpSum(self.nodes) == 1, "one_choice_of_nodes"
        self.problem += pulp.lpSum(self.short.used) == 1, "one_short"
        self.problem += pulp.lpSum(self.short.update.values()) == 1, "one_short_update"
        self.problem += pulp.lpSum(self.long.update.values()) == 1, "one_long_update"
        # Without long rounds their update is the short ones', so that a choice has one name.
        deferring = pulp.lpSum(self.long.used)
        for m, update in self.long.update.items():
            self.problem += update - self.short.update[m] <= deferring, f"idle_update_{m:05d}"
        if self.limits.one_sharding:
            here, there = (kind.updates_by(self.limits.sharding_of) for kind in (self.short, self.long))
            for sharding, used in here.items():
                self.problem += used == there[sharding], f"one_sharding_{sharding:05d}"
        rules = self.short.columns_by(lambda column: column.deferral)
        for number, (rule, used) in enumerate(self.long.columns_by(lambda column: column.deferral).items()):
            deferred = rules.get(rule, 0) if rule in needs_long else 0
            self.problem += used == deferred, f"one_long_{number:05d}"
        for number, rule in enumerate(sorted(set(rules) & needs_long - {c.deferral for c in self.long.columns})):
            self.problem += rules[rule] == 0, f"no_long_{number:05d}"
        here, there = (kind.columns_by(lambda column: column.reward) for kind in (self.short, self.long))
        for reward, used in there.items() if len(here) > 1 else ():
            self.problem += used <= here.get(reward, 0), f"one_reward_{reward:05d}"

    def _rates(self, needs_long: set[DeferralRule]) -> None:
        """Rounds of what is used only; they train one step of samples, and take from the queue what comes into it."""
        for k, chosen in enumerate(self.nodes):
            self.problem += self._both(k, lambda c, m: c.groups) == self.target * chosen, f"one_step_of_samples_{k:03d}"
            come, taken = (kind.rounds_by(k, lambda c, m: c.deferral, lambda c, m: c.moved) for kind in self._kinds)
            for number, rule in enumerate(sorted(needs_long & (come.keys() | taken.keys()))):
                self.problem += come.get(rule, 0) == taken.get(rule, 0), f"queue_{k:03d}_{number:05d}"
        for kind, (of_column, of_update) in zip(self._kinds, (("x", "y"), ("z", "w")), strict=True):
            every = [each for rates in kind.rates for each in rates]
            trained = _sums((c, column.groups * rate) for column, c, _, rate in every)
            for c, used in enumerate(kind.used):
                self.problem += trained.get(c, 0) <= self.target * used, f"needs_{of_column}_{c:05d}"
            trained = _sums((m, column.groups * rate) for column, _, m, rate in every)
            for m, used in kind.update.items():
                self.problem += trained.get(m, 0) <= self.target * used, f"needs_{of_update}_{m:05d}"

    @property
    def _kinds(self) -> tuple[_Kind, _Kind]:
        return self.short, self.long

    def _capacity(self) -> None:
        """Nodes, and their host memory and cores, hold engines, trainers and reward workers."""
        limits, pool = self.limits, self.limits.train_pool
        rollout = pulp.lpSum([nodes.rollout * chosen for nodes, chosen in zip(self.choices, self.nodes, strict=True)])
        train = pulp.lpSum([nodes.train * chosen for nodes, chosen in zip(self.choices, self.nodes, strict=True)])
        for kind, name in zip(self._kinds, ("short", "long"), strict=True):
            self.problem += kind.weighed(lambda c: max(map(limits.nodes_of, c.key.layouts))) <= rollout, f"{name}_nodes"
            trainers = pulp.lpSum([limits.train_nodes_of(m) * used for m, used in kind.update.items()])
            self.problem += trainers <= (rollout if pool is None else train), f"{name}_train_nodes"
        if limits.workers:
            workers = self.short.weighed(lambda column: limits.workers[column.reward])
            self.problem += workers <= self.short.weighed(lambda c: limits.worker_room[c.layout]), "reward_cores"
        layouts = sorted({layout for kind in self._kinds for column in kind.columns for layout in column.key.layouts})
        exists = {key: pulp.LpVariable(f"e_{number:05d}", cat=pulp.LpBinary) for number, key in enumerate(layouts)}
        for kind, name in zip(self._kinds, ("short", "long"), strict=True):
            for c, (column, used) in enumerate(zip(kind.columns, kind.used, strict=True)):
                for number, layout in enumerate(column.key.layouts):
                    self.problem += used <= exists[layout], f"{name}_engines_{c:05d}_{number}"
        most = limits.all_nodes
        for k, (nodes, chosen) in enumerate(zip(self.choices, self.nodes, strict=True)):
            on, of_train = min(nodes.rollout, most.rollout), min(nodes.train, most.train)
            engines = {key: limits.engines_on_node(key, on) for key in layouts}
            beside = {m: limits.trainers_on_node(m, on if pool is None else of_train) for m in self.short.update}
            for kind, name in zip(self._kinds, ("short", "long"), strict=True):
                trainers = [(held, kind.update[m]) for m, held in beside.items()]
                held = [(size, exists[key]) for key, size in engines.items()] + (trainers if pool is None else [])
                self._holds(held, limits.host_memory_bytes, chosen, f"host_memory_{name}_{k:03d}")
                if pool is not None:
                    self._holds(trainers, pool.host_memory_bytes, chosen, f"trainers_host_memory_{name}_{k:03d}")

    def _holds(self, held: Sequence[tuple[float, Any]], capacity: float, chosen: Any, name: str) -> None:
        """A node of the chosen ones holds it. In GB: coefficients of 1e10 beside 1 are what tolerances are lost on."""
        over = max(0.0, sum(size for size, _ in held) - capacity)
        if over > 0:
            in_use = pulp.lpSum([size / 1e9 * used for size, used in held])
            self.problem += in_use <= capacity / 1e9 + over / 1e9 * (1 - chosen), name

    def _bounds(self) -> None:
        limits, samples = self.limits, self.target * self.limits.group_size
        for k, chosen in enumerate(self.nodes):
            if math.isfinite(limits.bias_budget):
                # In units of the mean length of all samples of a step, again to keep numbers near 1.
                unit, budget = limits.mean_tokens * samples, (limits.bias_budget + 1e-9) * chosen
                longer = self._both(k, lambda c, m: (c.excess_tokens + CONFIDENCE_Z * c.excess_error) / unit)  # noqa: B023
                shorter = self._both(k, lambda c, m: (CONFIDENCE_Z * c.excess_error - c.excess_tokens) / unit)  # noqa: B023
                self.problem += longer <= budget, f"bias_longer_{k:03d}"
                self.problem += shorter <= budget, f"bias_shorter_{k:03d}"
            if limits.slo:
                self.problem += self._both(k, lambda c, m: c.slow[m] - SLOW_SHARE) <= 0, f"slo_{k:03d}"
            if limits.within_s is not None:
                within_s = limits.within_s
                self.problem += self._seconds[k] <= within_s * self._both(k, lambda c, m: 1.0), f"within_{k:03d}"

    def chosen(self) -> Cycle:
        """The columns in use."""
        short = next(c for c, x in zip(self.short.columns, self.short.used, strict=True) if x.value() > 0.5)
        long = next((c for c, z in zip(self.long.columns, self.long.used, strict=True) if z.value() > 0.5), None)
        train = next(m for m, y in self.short.update.items() if y.value() > 0.5)
        long_train = next(m for m, w in self.long.update.items() if w.value() > 0.5)
        return make_cycle(short, long, train, long_train, self.limits)


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
    method: Method = "integer program"

    def among(self, wider: Solution) -> Solution:
        """This choice, with its gap to the bound of a program of more columns."""
        bound = min(self.bound, wider.bound)
        gap = self.gap if bound >= self.bound * (1 - 1e-7) else (self.objective - bound) / self.objective
        listed = next((each for each in (self, wider) if not each.optimal), self)
        return dataclasses.replace(self, bound=bound, gap=gap, optimal=listed.optimal, method=listed.method)


def solve_program(
    short: Sequence[Column[ShortKey]],
    long: Sequence[Column[LongKey]],
    needs_long: set[DeferralRule],
    limits: Limits,
    group_target: int,
    max_nodes: int = MAX_NODES,
    dynamic_sampling: bool = False,
) -> Solution:
    """Choose columns. Raises Infeasible, naming the limits that bind, when no choice keeps them.

    Args:
        short, long: columns; names unique; all with the same update choices.
        needs_long: deferral rules whose short rounds defer prompts.
        group_target: P, which the rates are scaled by.
        max_nodes: of the branch and bound, the same on every machine; what is found until then is returned with its
            gap to what was proven.
        dynamic_sampling: whether groups whose rewards are all equal were dropped, for the error to say.
    """
    # Few rounds of dynamic sampling may have trained no group at all: such a column has no rate.
    short, long = _that_train(short), _that_train(long)
    if not short:
        raise Infeasible(nothing_trained(dynamic_sampling))
    solved = _solve(short, long, needs_long, limits, group_target, max_nodes)
    if solved is None:
        raise Infeasible(_why_infeasible(short, long, needs_long, limits, group_target))
    cycle, bound, proven = solved
    objective = cycle.cost(limits)
    bound = max(0.0, min(objective, bound))
    return Solution(
        cycle=cycle,
        objective=objective,
        bound=bound,
        # Differences below the solver's own tolerance are not a gap.
        gap=0.0 if objective - bound <= 1e-7 * objective else (objective - bound) / objective,
        optimal=proven,
        solver=f"HiGHS {version('highspy')}",
        method="integer program" if proven else "enumeration",
    )


def _that_train(columns: Sequence[Column[Key]]) -> list[Column[Key]]:
    return sorted((column for column in columns if column.groups > 0), key=lambda column: column.name)


def _node_choices(
    short: Sequence[Column[ShortKey]], long: Sequence[Column[LongKey]], limits: Limits
) -> list[NodesTaken]:
    """Numbers of nodes that a schedule may take: those that engines, trainers or their host memory need; minimising
    seconds only the most."""
    trains, all_nodes = range(len(short[0].step_s)), limits.all_nodes
    columns: list[Column[Any]] = [*short, *long]
    engines = {limits.nodes_of(c.layout) for c in columns}
    trainers = {limits.train_nodes_of(m) for m in trains}
    if limits.objective == "seconds":
        engines, trainers = {max(engines | {all_nodes.rollout})}, {max(trainers | {all_nodes.train})}
    else:
        states = {limits.train_host[m]: m for m in trains}.values() if limits.train_host else [0]
        pairs = itertools.product({c.layout for c in short}, {c.key.layouts for c in columns}, states)
        taken = {limits.taken([s, *w], [m]) for s, w, m in pairs}
        engines, trainers = engines | {t.rollout for t in taken}, trainers | {t.train for t in taken}
    if limits.train_pool is None:
        counts = {max(engines | trainers)} if limits.objective == "seconds" else (engines | trainers) - {0}
        return [NodesTaken(nodes) for nodes in sorted(counts)]
    return [NodesTaken(*each) for each in itertools.product(sorted(engines), sorted(trainers))]


def _solve(
    short: list[Column[ShortKey]],
    long: list[Column[LongKey]],
    needs_long: set[DeferralRule],
    limits: Limits,
    group_target: int,
    max_nodes: int,
) -> tuple[Cycle, float, bool] | None:
    """(choice, bound of the objective per sample, proven); None if infeasible."""
    build = ProgramModel(short, long, needs_long, limits, group_target, _node_choices(short, long, limits))
    first = minimise(build.problem, build.cost, max_nodes)
    if first is None:
        return None
    bound = first.bound * build.unit / (group_target * limits.group_size)
    if not first.proven:
        # A limit cut the search. Listing schedules needs no search, and finds what the search may have missed.
        listed = [c for c in all_cycles(short, long, needs_long, limits) if not c.violations(limits)]
        incumbent = [build.chosen()] if math.isfinite(first.objective) else []
        cycle = min([*listed, *incumbent], key=lambda c: (c.cost(limits), c.name), default=None)
        return None if cycle is None else (cycle, bound, False)
    # Ties (and only ties: a relative 1e-7 is far below the noise of any column) go to the first by name.
    build.problem += build.cost <= first.objective * (1 + 1e-7), "keep_the_optimum"
    second = minimise(build.problem, build.rank, MAX_NODES)
    if second is None or not second.proven:
        raise RuntimeError("the optimum of the first phase is not found in the second")
    return build.chosen(), bound, True


def _why_infeasible(
    short: Sequence[Column[ShortKey]],
    long: Sequence[Column[LongKey]],
    needs_long: set[DeferralRule],
    limits: Limits,
    group_target: int,
) -> str:
    """The error that names the limit that binds: solve again without each limit, and see which gives a plan."""
    limits = dataclasses.replace(limits, objective="seconds")  # feasibility does not depend on the price
    everything = max(1, math.ceil(limits.on_node(limits.host_bytes, range(len(limits.train_host)), 1)))
    lifted = {
        "the bias budget; allow more of it or drop the forced mode": dataclasses.replace(limits, bias_budget=math.inf),
        "slo.step_p95_s; raise it": dataclasses.replace(limits, slo=False),
        "the seconds of the objective usd-within; allow more": dataclasses.replace(limits, within_s=None),
        "host cores for reward workers; write fewer of them": dataclasses.replace(limits, workers=()),
        "host memory of a node for engines, trainers and their offloaded states; add memory, nodes or fewer layouts": (
            limits.with_host_memory(everything)
        ),
    }
    reasons = [
        reason
        for reason, relaxed in lifted.items()
        if _solve(list(short), list(long), needs_long, relaxed, group_target, MAX_NODES) is not None
    ]
    if not reasons:
        return (
            f"none of {len(short)} simulated kinds of short round keeps the bias budget, the SLO and the memory at once"
        )
    return "no simulated plan keeps " + ", or ".join(reasons)
