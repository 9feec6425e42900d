"""Rules that compare the predictions of a plan, of a job or of groups, with each other, with its decisions, its job and
its cluster. They read no file.

Figures of `predicted` that
were edited by hand are found by their digest (`predictions_edited` in solved_rules.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..facts.executable import ALIVE_TOKENS, PROGRESS_S
from ..phrases.numbers import count, seconds
from ..schema.cluster import Cluster, Pool
from ..schema.groups_plan import GroupMember, GroupsPlan, PlannedGroup, Span
from ..schema.job import Job
from ..schema.plan import Plan
from ..yaml.yaml_doc import Loc
from .finding import Fault
from .plan_fit import AGAIN, CLOSE, differs, pool_faults

NOISE = 0.005
"""How far a length ratio may exceed its bias budget because of simulation noise."""

INSTANT_S = 1e-6
"""Seconds that two spans may overlap because of rounding: their ends are written with six digits."""


def thin_trace(plan: Plan) -> Iterator[Fault]:
    """Faults of a length trace with too few responses for the plan's predictions."""
    predicted = plan.predicted
    if predicted.length_basis is None:
        return
    for message in predicted.length_basis.thin_reasons(predicted.speedup):
        remedy = "measure more responses under the job's cap, of more prompts, and solve again"
        yield Fault("thin-trace", ("predicted", "length_basis"), message, remedy)


def slow_decode_steps(plan: Plan) -> Iterator[Fault]:
    """Faults of decode steps so long that an engine tells no tokens for longer than `rlplan execute` waits for them."""
    for kind, mean in plan.predicted.rounds.kinds:
        steps: float = getattr(getattr(plan.predicted.limit, kind, None), "decode_steps", 0.0)
        step_s = mean.rollout_s.mean / steps if steps else 0.0
        if (silent_s := min(ALIVE_TOKENS, steps) * step_s) > PROGRESS_S:
            message = (
                f"is {seconds(step_s)} for each of {steps:,.0f} decode steps; an engine tells tokens once "
                f"in {ALIVE_TOKENS} steps, and one that tells none for {seconds(PROGRESS_S)} is replaced"
            )
            remedy = f"execute with --stall-timeout {math.ceil(2 * silent_s)}, or decode fewer sequences at once"
            yield Fault("decodes-too-slowly", ("predicted", "rounds", kind, "rollout_s"), message, remedy)


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
    solver = plan.solver
    yield from _gap(solver.gap, solver.reached, solver.bound)


def _gap(stated: float, reached: float, bound: float) -> Iterator[Fault]:
    gap = 1 - bound / reached if reached > 0 else 0.0
    # A difference as small as the solver's own tolerance is no fault.
    if abs(gap - stated) > CLOSE:
        message = f"is {stated:.6g}, and {reached:.6g} reached over a bound of {bound:.6g} make it {gap:.6g}"
        yield Fault("gap-contradicts-bound", ("solver", "gap"), message, AGAIN)


def nodes_taken(plan: Plan, pool: Pool, train_pool: Pool | None) -> tuple[int, int]:
    """Nodes that engines and trainers need for their accelerators, the maximum over both kinds of round: of `pool`, and
    of the pool that trainers have to themselves (None: they are on the same; then 0)."""
    kinds = [kind for _, kind in plan.job.rounds.kinds]
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
    price, paid = of_engines * pool.node_price, f"{count(of_engines, 'node')} of {pool.node_price:.6g}"
    if train_pool is not None:
        price += of_trainers * train_pool.node_price
        paid += f" and {of_trainers} of {train_pool.node_price:.6g}"
    yield from differs(
        "price-does-not-add-up", ("predicted", "usd_per_hour"), predicted.usd_per_hour, price, f"{paid} USD are", AGAIN
    )


def self_contradictions(plan: GroupsPlan) -> Iterator[Fault]:
    """Faults within a plan of groups: broken bounds, paces beyond bounds, impossible timelines, a gap that contradicts
    the solver's bound."""
    for key, group in plan.groups.items():
        if len(group.jobs) > plan.rules.group_cap:
            message = f"has {count(len(group.jobs), 'job')}, and rules.group_cap is {plan.rules.group_cap}"
            yield Fault("group-too-large", ("groups", key, "jobs"), message, "solve again, or raise the cap")
        for name, member in group.jobs.items():
            # A job that is alone in its group always keeps its bound, whatever its p95.
            p95_counts = len(group.jobs) > 1 and plan.rules.quantile >= 0.95
            yield from _member(("groups", key, "jobs", name), member, p95_counts)
        yield from _timeline(("groups", key, "timeline"), group)
    solver, reached = plan.solver, plan.predicted.plan
    bound, value = solver.bound_usd_per_hour, reached.usd_per_hour
    if plan.rules.objective == "usd_per_unit":
        bound, value = solver.bound_usd_per_unit, reached.usd_per_unit
    if solver.gap is not None and bound is not None and value > 0:
        yield from _gap(solver.gap, value, bound)


def _member(location: Loc, member: GroupMember, p95_counts: bool) -> Iterator[Fault]:
    slowdown = member.slowdown
    if not slowdown.keeps or (p95_counts and slowdown.p95 > slowdown.slo * (1 + CLOSE)):
        yield Fault(
            "bound-broken",
            (*location, "slowdown", "p95" if slowdown.keeps else "keeps"),
            f"its slowdown is {slowdown.mean:.4g} (p95 {slowdown.p95:.4g}), and its bound {slowdown.slo:.4g}",
            "raise its slo, give it another way to run, or add nodes, and solve again",
        )
    longest = slowdown.slo * slowdown.alone_s
    if member.pace_s > longest * (1 + CLOSE):
        message = f"is {member.pace_s:.6g} s, and its bound allows {slowdown.slo:.4g} times {slowdown.alone_s:.6g} s"
        yield Fault("pace-beyond-bound", (*location, "pace_s"), message, AGAIN)


def _timeline(location: Loc, group: PlannedGroup) -> Iterator[Fault]:
    timeline = group.timeline
    until = timeline.span_s * (1 + CLOSE)
    if timeline.span_s > timeline.period_s * (1 + CLOSE):
        message = f"shows {timeline.span_s:.6g} s of a period of {timeline.period_s:.6g} s"
        yield Fault("timeline-contradiction", (*location, "span_s"), message, AGAIN)
    for index, span in enumerate(timeline.spans):
        span_location: Loc = (*location, "spans", index)
        if span.end_s < span.begin_s or span.end_s > until:
            message = f"runs from {span.begin_s:.6g} to {span.end_s:.6g} s of a timeline of {timeline.span_s:.6g} s"
            yield Fault("timeline-contradiction", span_location, message, AGAIN)
        member = group.jobs[span.job]
        pinned_units = member.rollout.units if span.phase == "rollout" else member.train.units
        wrong_units = sorted(set(span.units) - set(pinned_units))
        if wrong_units:
            message = (
                f"'{span.job}' holds unit {wrong_units[0]} in its {span.phase}, which is pinned to {list(pinned_units)}"
            )
            yield Fault("timeline-contradiction", (*span_location, "units"), message, AGAIN)
    yield from _held_twice(location, list(timeline.spans))


def _held_twice(location: Loc, spans: list[Span]) -> Iterator[Fault]:
    """Units that a job takes before another job has released them."""
    holder: dict[int, tuple[int, Span]] = {}
    for index, span in sorted(enumerate(spans), key=lambda item: (item[1].begin_s, item[1].end_s, item[0])):
        clash = None
        for unit in span.units:
            before = holder.get(unit)
            if before is not None and span.begin_s < before[1].end_s - _instant(before[1].end_s):
                clash = clash or (unit, before[1])
            if before is None or before[1].end_s < span.end_s:
                holder[unit] = (index, span)
        if clash is not None:
            unit, earlier = clash
            yield Fault(
                "units-held-twice",
                (*location, "spans", index, "units"),
                f"'{span.job}' takes unit {unit} at {span.begin_s:.6g} s, and '{earlier.job}' holds it until "
                f"{earlier.end_s:.6g} s",
                AGAIN,
            )


def _instant(seconds: float) -> float:
    """Seconds that two spans may overlap at `seconds` of the timeline because of rounding."""
    return max(INSTANT_S, 1e-5 * seconds)
