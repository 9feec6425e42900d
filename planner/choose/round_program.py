"""The round program: a linear model over rates, with binaries for the choices.

Variables, per S = P n trained samples (one step's worth, so that numbers are near 1):
    u[s, m], v[l, m] >= 0   rounds of short column s and long column l with update choice m
    x[s], z[l], y[m], w[m], e[k]   binary: column in use, update choice of short and of long rounds, layout k in use
    c, d >= 0               long rounds that change engines, long rounds that change shards
    min  sum t[s, m] u[s, m] + sum t[l, m] v[l, m] + 2 t_engines c + 2 t_shards d
    one step's worth of samples is trained; of each deferral rule, what short rounds defer is what long rounds take
    u <= U x, u <= U y, v <= V z, v <= V w;  one x, one y, one w;  one z of a rule if its x defers, else none
    x <= e, z <= e of their layout; the engines of all layouts in use, and the trainers that take most, fit into the
    host memory of the fullest node together
    c >= sum v where x and z differ in layout; d >= sum v where y and w shard differently
    one choice of reward workers and deadlines in both kinds: of each, sum z <= sum x of its columns; its workers fit
    into the host cores that the nodes of the engines in use leave them
    bias: the excess of trained tokens, plus its error, within the budget; SLO: at most 5 % of the steps are slow
Minimising USD, the price of a second depends on the nodes in use: the program is solved once for each number of nodes,
over what fits into them, and the cheapest wins; its bound is the least of all bounds.
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
    solutions: list[tuple[Cycle, float, bool]] = []
    for part in _parts(short, long, limits):
        solved = _solve(*part, needs_long, limits, group_target, max_nodes)
        if solved is not None:
            solutions.append(solved)
    if not solutions:
        raise Infeasible(_why_infeasible(short, long, needs_long, limits, group_target))
    cycle = min((c for c, _, _ in solutions), key=lambda c: (c.cost(limits), c.nodes(limits), c.name))
    objective = cycle.cost(limits)
    bound = max(0.0, min(objective, *(b for _, b, _ in solutions)))
    return Solution(
        cycle=cycle,
        objective=objective,
        bound=bound,
        # Differences below the solver's own tolerance are not a gap.
        gap=0.0 if objective - bound <= 1e-7 * objective else (objective - bound) / objective,
        optimal=all(optimal for _, _, optimal in solutions),
        solver=f"HiGHS {version('highspy')}",
    )


_Part = tuple[list[Column], list[Column], list[int], float, NodesTaken]
"""Columns, update choices, the price of a second, and nodes."""


def _parts(short: Sequence[Column], long: Sequence[Column], limits: Limits) -> list[_Part]:
    """One program for seconds; for USD one for each number of nodes."""
    trains = list(range(len(short[0].step_s))) if short else []
    if limits.objective == "seconds":
        return [(list(short), list(long), trains, 1.0, limits.all_nodes)]
    engines = {limits.nodes_of(c.layout) for c in [*short, *long]}
    trainers = {limits.train_nodes_of(m) for m in trains}
    states = {limits.train_host[m]: m for m in trains}.values() if limits.train_host else [0]
    pairs = itertools.product({c.layout for c in short}, {c.layouts for c in [*short, *long]}, states)
    if limits.train_pool is None:
        counts = engines | trainers | {limits.nodes_for([s, *w], [m]) for s, w, m in pairs}
        choices = [NodesTaken(nodes) for nodes in sorted(counts)]
    else:
        taken = [limits.taken([s, *w], [m]) for s, w, m in pairs]
        engines, trainers = engines | {t.rollout for t in taken}, trainers | {t.train for t in taken}
        choices = [NodesTaken(*each) for each in itertools.product(sorted(engines), sorted(trainers))]
    programs = []
    for nodes in choices:
        few, many = ([c for c in columns if limits.nodes_of(c.layout) <= nodes.rollout] for columns in (short, long))
        room = nodes.rollout if limits.train_pool is None else nodes.train
        fitting = [m for m in trains if limits.train_nodes_of(m) <= room]
        if few and fitting:
            most = limits.all_nodes
            bounded = NodesTaken(min(nodes.rollout, most.rollout), min(nodes.train, most.train))
            programs.append((few, many, fitting, limits.usd_per_s(nodes), bounded))
    return programs


def _solve(
    short: list[Column],
    long: list[Column],
    trains: list[int],
    price: float,
    nodes: NodesTaken,
    needs_long: set[DeferralRule],
    limits: Limits,
    group_target: int,
    max_nodes: int,
) -> tuple[Cycle, float, bool] | None:
    """(choice, bound of the objective per sample, proven); None if infeasible."""
    limits = limits.on_nodes(nodes)
    build = ProgramModel(short, long, trains, needs_long, limits, group_target)
    first = minimise(build.problem, build.cost, max_nodes)
    if first is None:
        return None
    bound = first.bound * price / (group_target * limits.group_size)
    if not first.proven:
        # A limit cut the search. Listing schedules needs no search, and finds what the search may have missed.
        listed = [
            c
            for c in all_cycles(short, long, needs_long, limits)
            if {c.train, c.long_train} <= set(trains) and not c.violations(limits)
        ]
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
        "host cores for reward workers; write fewer of them": dataclasses.replace(limits, workers=()),
        "host memory of a node for engines, trainers and their offloaded states; add memory, nodes or fewer layouts": (
            limits.with_host_memory(everything)
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
