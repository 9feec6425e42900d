"""Rules on a plan's predictions: their digest, and figures that are computed again from the job and the cluster.

A reviewer merges a plan by its predictions. `predictions_edited` finds every figure of `predicted` that was edited by
hand, by one digest over all of them. The other rules compare figures with what is not in `predicted`. Figures are
written with six digits, so they agree to `CLOSE`. The rules read no file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..facts.node_price import usd_per_node_hour
from ..schema.cluster import Cluster, Pool
from ..schema.job import Job
from ..schema.plan import Plan
from ..schema.predicted import PredictedRound
from ..schema.sections.layouts import UpdateLayout
from ..schema.sections.planned_rounds import RoundRollout
from ..yaml.yaml_doc import Loc
from .finding import Fault

CLOSE = 1e-3
"""Relative; less than any difference that a reviewer would act on, and far more than six digits leave."""

NOISE = 0.005
"""Of a length ratio: what its own simulation may be off beyond the budget that the program kept."""

AGAIN = "solve again; figures are not to be edited"


def close(one: float, other: float) -> bool:
    """Whether two figures are one but for their digits."""
    return math.isclose(one, other, rel_tol=CLOSE, abs_tol=1e-9)


def kinds_of(plan: Plan) -> list[tuple[Loc, PredictedRound]]:
    """Predicted kinds of round, with their places."""
    rounds = plan.predicted.rounds
    found: list[tuple[Loc, PredictedRound]] = [(("predicted", "rounds", "short"), rounds.short)]
    if rounds.long is not None:
        found.append((("predicted", "rounds", "long"), rounds.long))
    return found


def thin_trace(plan: Plan) -> Iterator[Fault]:
    """A length trace that is too thin for what is predicted from it."""
    predicted = plan.predicted
    if predicted.length_basis is None:
        return
    for what in predicted.length_basis.thin_reasons(predicted.speedup):
        remedy = "measure more responses under the job's cap, of more prompts, and solve again"
        yield Fault("thin-trace", ("predicted", "length_basis"), what, remedy)


def lengths_of(plan: Plan, job: Job) -> Iterator[Fault]:
    """Predicted lengths beyond the job's cap."""
    longest, cap = plan.predicted.lengths_tokens[-1], job.rollout.max_response_tokens
    if longest > cap:
        what = f"is {longest}, and a response of the job ends at {cap} tokens (max_response_tokens)"
        yield Fault("lengths-beyond-cap", ("predicted", "lengths_tokens", 20), what, "solve again")


def bias_over_budget(plan: Plan) -> Iterator[Fault]:
    off, budget = abs(1 - plan.predicted.length_ratio), plan.job.bias.budget
    if off > budget + NOISE:
        what = f"is {plan.predicted.length_ratio:.6g}, off by {off:.3g}, and the plan's own bias budget is {budget:.3g}"
        remedy = "solve with a larger --bias-budget, or by a mode that is unbiased"
        yield Fault("bias-over-budget", ("predicted", "length_ratio"), what, remedy)


def gap_of(plan: Plan) -> Iterator[Fault]:
    solver, reached = plan.solver, plan.solver.reached
    gap = 1 - solver.bound / reached if reached > 0 else 0.0
    # Of a bound below the optimum by the solver's own tolerance nothing is said.
    if abs(gap - solver.gap) > CLOSE:
        what = f"is {solver.gap:.6g}, and {reached:.6g} reached over a bound of {solver.bound:.6g} make it {gap:.6g}"
        yield Fault("gap-contradicts-bound", ("solver", "gap"), what, AGAIN)


def nodes_taken(plan: Plan, pool: Pool) -> int:
    """Nodes of `pool` that the accelerators of the engines and trainers of either kind of round take."""
    rounds = plan.job.rounds
    parts: list[tuple[RoundRollout, UpdateLayout]] = [(rounds.short.rollout, rounds.short.train)]
    if rounds.long is not None:
        parts.append((rounds.long.rollout, rounds.long.train))
    return max(
        max(pool.nodes_of(rollout.engines, rollout.tp), pool.nodes_of(1, train.accelerators))
        for rollout, train in parts
    )


def prices_of(plan: Plan, cluster: Cluster, taken: int | None) -> Iterator[Fault]:
    """Nodes that are not what engines and trainers take of the pool, and a price that is not theirs.

    `taken`: nodes for their accelerators and their host memory; None where the profile does not tell what host memory
    they take, and then a plan may have more than their accelerators take.
    """
    predicted, rounds = plan.predicted, plan.job.rounds
    pool = cluster.pools.get(rounds.short.rollout.pool)
    if pool is None:
        return
    least = nodes_taken(plan, pool)
    if taken is None:
        taken = max(least, predicted.nodes)
    if predicted.nodes != taken:
        what = f"is {predicted.nodes}, and its engines and trainers take {taken} node(s)"
        yield Fault("nodes-do-not-add-up", ("predicted", "nodes"), what, AGAIN)
    price = predicted.nodes * usd_per_node_hour(pool)
    if not close(predicted.usd_per_hour, price):
        what = (
            f"is {predicted.usd_per_hour:.6g}, and {predicted.nodes} node(s) of {usd_per_node_hour(pool):.6g} USD "
            f"are {price:.6g}"
        )
        yield Fault("price-does-not-add-up", ("predicted", "usd_per_hour"), what, AGAIN)
