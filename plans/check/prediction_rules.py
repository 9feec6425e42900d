"""Whether what a plan predicts agrees with itself: figures that follow from others must do so. Reads no file.

A prediction is what a reviewer merges by. Figures are written with six digits, so they agree to `CLOSE`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from ..facts.node_price import usd_per_node_hour
from ..schema.cluster import Cluster, Pool
from ..schema.job import Job
from ..schema.plan import Plan, RoundRollout
from ..schema.predicted import PredictedRound, Quantiles
from ..schema.sections.layouts import UpdateLayout
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


def contradictions(plan: Plan) -> Iterator[Fault]:
    """Every figure of `predicted` that contradicts another one, or the solver's."""
    yield from _quantiles(plan)
    yield from _sums(plan)
    yield from _prices(plan)
    yield from _front(plan)
    yield from _bias(plan)
    yield from _gap(plan)


def kinds_of(plan: Plan) -> list[tuple[Loc, PredictedRound]]:
    """Predicted kinds of round, with their places."""
    rounds = plan.predicted.rounds
    found: list[tuple[Loc, PredictedRound]] = [(("predicted", "rounds", "short"), rounds.short)]
    if rounds.long is not None:
        found.append((("predicted", "rounds", "long"), rounds.long))
    return found


def _quantiles(plan: Plan) -> Iterator[Fault]:
    predicted = plan.predicted
    spreads: list[tuple[Loc, Quantiles]] = [
        (("predicted", "step_s"), predicted.step_s),
        (("predicted", "baseline", "step_s"), predicted.baseline.step_s),
    ]
    for at, kind in kinds_of(plan):
        spreads += [
            ((*at, "step_s"), kind.step_s),
            ((*at, "rollout_s"), kind.rollout_s),
            ((*at, "reward_exposed_s"), kind.reward_exposed_s),
            ((*at, "train_s"), kind.train_s),
        ]
    for at, spread in spreads:
        if spread.p95 < spread.p50:
            what = f"is {spread.p95:.6g}, below the median, {spread.p50:.6g}"
            yield Fault("quantiles-out-of-order", (*at, "p95"), what, AGAIN)
    lengths = predicted.lengths_tokens
    for index, (before, after) in enumerate(itertools.pairwise(lengths), 1):
        if after < before:
            what = f"is {after}, below the quantile before it, {before}"
            yield Fault("quantiles-out-of-order", ("predicted", "lengths_tokens", index), what, AGAIN)


def _sums(plan: Plan) -> Iterator[Fault]:
    predicted, kinds = plan.predicted, kinds_of(plan)
    shares = sum(kind.share for _, kind in kinds)
    if not math.isclose(shares, 1.0, abs_tol=CLOSE):
        what = f"the shares of the kinds of round sum to {shares:.6g}, not to 1"
        yield Fault("shares-do-not-add-up", (*kinds[-1][0], "share"), what, AGAIN)
    phases = predicted.phases_s
    whole = phases.rollout + phases.reward_exposed + phases.train + phases.sync
    if not close(whole, predicted.step_s.mean):
        what = f"the phases take {whole:.6g} s together, and the mean step {predicted.step_s.mean:.6g} s"
        yield Fault("phases-do-not-add-up", ("predicted", "phases_s"), what, AGAIN)
    for at, kind in kinds:
        parts = kind.rollout_s.mean + kind.reward_exposed_s.mean + kind.train_s.mean + kind.sync_s
        if not close(parts, kind.step_s.mean):
            what = f"its phases take {parts:.6g} s together, and its mean step {kind.step_s.mean:.6g} s"
            yield Fault("phases-do-not-add-up", (*at, "step_s", "mean"), what, AGAIN)
        if kind.tail_s > kind.rollout_s.mean * (1 + CLOSE):
            what = f"is {kind.tail_s:.6g} s, longer than its mean rollout, {kind.rollout_s.mean:.6g} s"
            yield Fault("tail-beyond-rollout", (*at, "tail_s"), what, AGAIN)
        if kind.reward_slack_s > kind.step_s.mean * (1 + CLOSE):
            what = f"is {kind.reward_slack_s:.6g} s, longer than its mean step, {kind.step_s.mean:.6g} s"
            yield Fault("tail-beyond-rollout", (*at, "reward_slack_s"), what, AGAIN)
    for phase, stated, mixed in (
        ("rollout", phases.rollout, [kind.share * kind.rollout_s.mean for _, kind in kinds]),
        ("reward_exposed", phases.reward_exposed, [kind.share * kind.reward_exposed_s.mean for _, kind in kinds]),
        ("train", phases.train, [kind.share * kind.train_s.mean for _, kind in kinds]),
        ("sync", phases.sync, [kind.share * kind.sync_s for _, kind in kinds]),
    ):
        if not close(stated, sum(mixed)):
            what = f"is {stated:.6g} s, and the kinds of round by their shares take {sum(mixed):.6g} s"
            yield Fault("phases-do-not-add-up", ("predicted", "phases_s", phase), what, AGAIN)


def baseline_of(plan: Plan, job: Job) -> Iterator[Fault]:
    """A baseline whose seconds per sample are not those of its step; with dynamic sampling a step trains fewer samples,
    since it replaces groups, so that only less than that is impossible."""
    baseline, issue = plan.predicted.baseline, plan.job.issue
    size = issue.prompts_per_step * issue.samples_per_prompt
    least = baseline.step_s.mean / size
    if close(baseline.seconds_per_sample, least):
        return
    if job.algorithm.dynamic_sampling and baseline.seconds_per_sample > least:
        return
    what = f"is {baseline.seconds_per_sample:.6g} s, and its mean step over {size} samples {least:.6g} s"
    yield Fault("phases-do-not-add-up", ("predicted", "baseline", "seconds_per_sample"), what, AGAIN)


def thin_trace(plan: Plan) -> Iterator[Fault]:
    """A length trace that is too thin for what is predicted from it."""
    predicted = plan.predicted
    if predicted.length_basis is None:
        return
    for what in predicted.length_basis.thin(predicted.baseline.seconds_per_sample / predicted.seconds_per_sample):
        remedy = "measure more responses under the job's cap, of more prompts, and solve again"
        yield Fault("thin-trace", ("predicted", "length_basis"), what, remedy)


def lengths_of(plan: Plan, job: Job) -> Iterator[Fault]:
    """Predicted lengths beyond the job's cap."""
    longest, cap = plan.predicted.lengths_tokens[-1], job.rollout.max_response_tokens
    if longest > cap:
        what = f"is {longest}, and a response of the job ends at {cap} tokens (max_response_tokens)"
        yield Fault("lengths-beyond-cap", ("predicted", "lengths_tokens", 20), what, "solve again")


def _prices(plan: Plan) -> Iterator[Fault]:
    predicted = plan.predicted
    per_1k = 1000 * predicted.usd_per_hour / 3600 * predicted.seconds_per_sample
    if not close(per_1k, predicted.usd_per_1k_samples):
        what = (
            f"is {predicted.usd_per_1k_samples:.6g}, and {predicted.seconds_per_sample:.6g} s per sample at "
            f"{predicted.usd_per_hour:.6g} USD per hour are {per_1k:.6g} USD per 1000"
        )
        yield Fault("price-does-not-add-up", ("predicted", "usd_per_1k_samples"), what, AGAIN)


def _front(plan: Plan) -> Iterator[Fault]:
    predicted, at = plan.predicted, ("predicted", "front")
    chosen = [(index, point) for index, point in enumerate(predicted.front) if point.chosen]
    if len(chosen) != 1:
        what = f"{len(chosen)} of its points are marked as chosen; exactly one is this plan"
        yield Fault("front-contradicts-plan", at, what, AGAIN)
        return
    index, point = chosen[0]
    if point.mode != plan.job.bias.mode:
        what = f"the chosen point is of mode {point.mode}, the plan of mode {plan.job.bias.mode}"
        yield Fault("front-contradicts-plan", (*at, index, "mode"), what, AGAIN)
    for key, shown, own in (
        ("seconds_per_sample", point.seconds_per_sample, predicted.seconds_per_sample),
        ("usd_per_1k_samples", point.usd_per_1k_samples, predicted.usd_per_1k_samples),
    ):
        if not close(shown, own):
            what = f"the chosen point has {shown:.6g}, the plan {own:.6g}"
            yield Fault("front-contradicts-plan", (*at, index, key), what, AGAIN)


def _bias(plan: Plan) -> Iterator[Fault]:
    off, budget = abs(1 - plan.predicted.length_ratio), plan.job.bias.budget
    if off > budget + NOISE:
        what = f"is {plan.predicted.length_ratio:.6g}, off by {off:.3g}, and the plan's own bias budget is {budget:.3g}"
        remedy = "solve with a larger --bias-budget, or by a mode that is unbiased"
        yield Fault("bias-over-budget", ("predicted", "length_ratio"), what, remedy)


def _gap(plan: Plan) -> Iterator[Fault]:
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
