"""Rules that compare a plan's predictions with its decisions, its job and its cluster. They read no file.

Figures are written with six digits, so two figures that should be equal agree to `CLOSE`. Figures of `predicted` that
were edited by hand are found by their digest (`predictions_edited` in solved_rules.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..facts.node_price import usd_per_node_hour
from ..phrases.numbers import count
from ..schema.cluster import Cluster, Pool
from ..schema.job import Job
from ..schema.plan import Plan
from ..schema.planned_rounds import LongRound, ShortRound
from ..schema.predicted import PredictedRound
from ..yaml.yaml_doc import Loc
from .finding import Fault
from .plan_fit import pool_faults

CLOSE = 1e-3
"""Relative difference of figures that count as equal: too small to matter to a reviewer, and far above rounding."""

NOISE = 0.005
"""How far a length ratio may exceed its bias budget because of simulation noise."""

AGAIN = "solve again; do not edit the figures"


def close(value: float, expected: float) -> bool:
    """Whether two figures are equal but for rounding."""
    return math.isclose(value, expected, rel_tol=CLOSE, abs_tol=1e-9)


def predicted_kinds(plan: Plan) -> list[tuple[Loc, PredictedRound]]:
    """The predicted kinds of round, with their locations in the plan."""
    rounds = plan.predicted.rounds
    kinds: list[tuple[Loc, PredictedRound]] = [(("predicted", "rounds", "short"), rounds.short)]
    if rounds.long is not None:
        kinds.append((("predicted", "rounds", "long"), rounds.long))
    return kinds


def thin_trace(plan: Plan) -> Iterator[Fault]:
    """Faults of a length trace with too few responses for the plan's predictions."""
    predicted = plan.predicted
    if predicted.length_basis is None:
        return
    for message in predicted.length_basis.thin_reasons(predicted.speedup):
        remedy = "measure more responses under the job's cap, of more prompts, and solve again"
        yield Fault("thin-trace", ("predicted", "length_basis"), message, remedy)


LEAST_MOVE = 0.99
"""How far a token of a long round moves weights at least, over one of a short round, without a finding."""


def forgetful_moments(plan: Plan, job: Job) -> Iterator[Fault]:
    """Faults of a second moment that forgets within a cycle of short and long rounds."""
    norms, long = plan.job.loss.grad_norms, plan.predicted.rounds.long
    if norms is None or long is None:
        return
    # What tokens that push alike make of the norms is as far from the planned ratio, which is that of noise, as that is
    # from 1: with a mean over tokens beyond it, with one over responses (a ratio below 1) back at 1.
    ratio = norms.long / norms.short
    moved = long_move(job.algorithm.betas, long.share, max(ratio, 1.0 / ratio))
    if moved < LEAST_MOVE:
        message = (
            f"algorithm.betas: where the tokens of a round push alike, one of a long round moves weights {moved:.2f} "
            f"times as far as one of a short round, since a beta2 of {job.algorithm.betas[1]:g} forgets within a cycle"
        )
        yield Fault("forgetful-moments", ("inputs", "job"), message, "leave betas out, for a beta2 of 0.999")


def long_move(betas: tuple[float, float], share: float, norm_ratio: float) -> float:
    """How far AdamW moves weights for a token of a long round, over one of a short round.

    `share`: of the steps that are long rounds, which come evenly; `norm_ratio`: a long round's gradient over a short
    one's. A gradient moves a weight in its own and the following updates, each divided by the root of the second moment
    v then: sum over k of (1 - beta1) beta1^k g / sqrt(v[t + k]), and v[t + k] = c + a c (g / s)^2 holds the gradient
    itself. Of a weight's gradient g most is noise of deviation s, so what a token adds to its mean moves the weight by
    the mean of the slope, E[(1 + a z^2)^(-3/2)] / sqrt(c) with z normal: (1 + 6 a)^(-1/4) to a's second order.
    """
    (beta1, beta2), steps, lags = betas, 600, range(100)
    squares = [norm_ratio**2 if int((t + 1) * share) > int(t * share) else 1.0 for t in range(steps)]
    second = [1.0 - share + share * norm_ratio**2]  # begins at its mean
    for square in squares:
        second.append(beta2 * second[-1] + (1.0 - beta2) * square)
    moves: dict[float, list[float]] = {}
    for t, square in enumerate(squares[100:-100], start=100):
        move = 0.0
        for k in lags:
            own = (1.0 - beta2) * beta2**k * square
            rest = second[t + k + 1] - own
            move += beta1**k * (1.0 + 6.0 * own / rest) ** -0.25 / math.sqrt(rest)
        moves.setdefault(square, []).append(move)
    if len(moves) < 2:
        return 1.0
    of_long, of_short = (math.fsum(moves[square]) / len(moves[square]) for square in (norm_ratio**2, 1.0))
    return of_long / of_short


def length_faults(plan: Plan, job: Job) -> Iterator[Fault]:
    """Faults of predicted lengths beyond the job's cap."""
    longest, cap = plan.predicted.lengths_tokens[-1], job.rollout.max_response_tokens
    if longest > cap:
        message = f"is {longest}, and a response of the job ends at {cap} tokens (max_response_tokens)"
        yield Fault("lengths-beyond-cap", ("predicted", "lengths_tokens", 20), message, "solve again")


def bias_over_budget(plan: Plan) -> Iterator[Fault]:
    """The fault of a predicted length ratio outside the plan's own bias budget."""
    ratio, budget = plan.predicted.length_ratio, plan.job.bias.budget
    deviation = abs(1 - ratio)
    if deviation > budget + NOISE:
        message = f"is {ratio:.6g}, {deviation:.3g} from 1, and the plan's own bias budget is {budget:.3g}"
        remedy = "solve with a larger --bias-budget, or by a mode that is unbiased"
        yield Fault("bias-over-budget", ("predicted", "length_ratio"), message, remedy)


def gap_faults(plan: Plan) -> Iterator[Fault]:
    """The fault of a gap that does not follow from the value reached and its bound."""
    solver, reached = plan.solver, plan.solver.reached
    gap = 1 - solver.bound / reached if reached > 0 else 0.0
    # A difference as small as the solver's own tolerance is no fault.
    if abs(gap - solver.gap) > CLOSE:
        message = f"is {solver.gap:.6g}, and {reached:.6g} reached over a bound of {solver.bound:.6g} make it {gap:.6g}"
        yield Fault("gap-contradicts-bound", ("solver", "gap"), message, AGAIN)


def nodes_taken(plan: Plan, pool: Pool, train_pool: Pool | None) -> tuple[int, int]:
    """Nodes that engines and trainers need for their accelerators, the maximum over both kinds of round: of `pool`, and
    of the pool that trainers have to themselves (None: they are on the same; then 0)."""
    rounds = plan.job.rounds
    kinds: list[ShortRound | LongRound] = [rounds.short, *filter(None, [rounds.long])]
    layouts = [layout for kind in kinds for layout in kind.layouts]
    engines = max(pool.nodes_of(layout.engines, layout.tp) for layout in layouts)
    judge = plan.job.reward.judge
    if judge is not None and judge.place == "own":
        accelerators = max(layout.engines * layout.tp for layout in layouts) + judge.instances * judge.tp
        engines = max(engines, pool.nodes_of(accelerators, 1))
    trainers = max((train_pool or pool).nodes_of(1, kind.train.accelerators) for kind in kinds)
    return (max(engines, trainers), 0) if train_pool is None else (engines, trainers)


def price_faults(plan: Plan, cluster: Cluster, taken: tuple[int, int] | None) -> Iterator[Fault]:
    """Faults of a number of nodes that engines and trainers do not need, and of a price that is not that of the nodes.

    `taken`: nodes of both pools that engines and trainers need for their accelerators and their host memory. None: the
    host memory is unknown; then the plan may have more nodes than the accelerators need.
    """
    predicted, planned = plan.predicted, plan.job
    name, train_pool = planned.rounds.short.rollout.pool, None
    pool = cluster.pools.get(name)
    if pool is None:
        return
    if planned.placement is not None:
        if any(pool_faults(cluster, planned.placement.train_pool, name)):
            return
        train_pool = cluster.pools[planned.placement.train_pool]
    of_trainers = predicted.train_nodes or 0
    of_engines = predicted.nodes - of_trainers
    if taken is None:
        least = nodes_taken(plan, pool, train_pool)
        taken = max(least[0], of_engines), max(least[1], of_trainers)
    if predicted.nodes != sum(taken):
        message = f"is {predicted.nodes}, and its engines and trainers take {count(sum(taken), 'node')}"
        yield Fault("nodes-do-not-add-up", ("predicted", "nodes"), message, AGAIN)
    elif of_trainers != taken[1]:
        message = f"is {of_trainers}, and its trainers take {count(taken[1], 'node')} of a pool of their own"
        yield Fault("nodes-do-not-add-up", ("predicted", "train_nodes"), message, AGAIN)
    price, paid = of_engines * usd_per_node_hour(pool), f"{count(of_engines, 'node')} of {usd_per_node_hour(pool):.6g}"
    if train_pool is not None:
        price += of_trainers * usd_per_node_hour(train_pool)
        paid += f" and {of_trainers} of {usd_per_node_hour(train_pool):.6g}"
    if not close(predicted.usd_per_hour, price):
        message = f"is {predicted.usd_per_hour:.6g}, and {paid} USD are {price:.6g}"
        yield Fault("price-does-not-add-up", ("predicted", "usd_per_hour"), message, AGAIN)
