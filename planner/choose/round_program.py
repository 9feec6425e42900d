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
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from ...plans.schema.plan import Method
from ...plans.yaml.errors import Infeasible
from ..costs.job_pools import NodesTaken
from ..highs import MAX_NODES, minimise
from .candidates.round_kinds import DeferralRule
from .cycle_cost import Column, Cycle
from .plan_limits import Limits
from .program_model import ProgramModel
from .schedules import all_cycles

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
    short: Sequence[Column],
    long: Sequence[Column],
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
    short, long = (sorted((c for c in cs if c.groups > 0), key=lambda c: c.name) for cs in (short, long))
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


def _node_choices(short: Sequence[Column], long: Sequence[Column], limits: Limits) -> list[NodesTaken]:
    """Numbers of nodes that a schedule may take: those that engines, trainers or their host memory need; minimising
    seconds only the most."""
    trains, all_nodes = range(len(short[0].step_s)), limits.all_nodes
    engines = {limits.nodes_of(c.layout) for c in [*short, *long]}
    trainers = {limits.train_nodes_of(m) for m in trains}
    if limits.objective == "seconds":
        engines, trainers = {max(engines | {all_nodes.rollout})}, {max(trainers | {all_nodes.train})}
    else:
        states = {limits.train_host[m]: m for m in trains}.values() if limits.train_host else [0]
        pairs = itertools.product({c.layout for c in short}, {c.layouts for c in [*short, *long]}, states)
        taken = {limits.taken([s, *w], [m]) for s, w, m in pairs}
        engines, trainers = engines | {t.rollout for t in taken}, trainers | {t.train for t in taken}
    if limits.train_pool is None:
        counts = {max(engines | trainers)} if limits.objective == "seconds" else (engines | trainers) - {0}
        return [NodesTaken(nodes) for nodes in sorted(counts)]
    return [NodesTaken(*each) for each in itertools.product(sorted(engines), sorted(trainers))]


def _solve(
    short: list[Column],
    long: list[Column],
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
    short: Sequence[Column], long: Sequence[Column], needs_long: set[DeferralRule], limits: Limits, group_target: int
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
