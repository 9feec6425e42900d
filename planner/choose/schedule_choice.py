"""From simulated columns to the plan's schedule: the integer program's proof, the simplest schedule tied with it, what
it is compared with, and whether all that holds on rounds that nothing was chosen on."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace

from ...plans.yaml.errors import Infeasible
from .candidate_search import ON_REQUEST, Progress, Search, is_plain
from .candidates.round_kinds import LongKey, ShortKey
from .cycle_cost import Column, Cycle
from .holdout_rounds import Holdout, least_p95, simulate_holdout, step_p95
from .plan_limits import Limits
from .round_program import Solution, nothing_trained, solve_program
from .ties import cost_above, simplest, tolerance_of

# The baseline of a plan: plain synchronous rounds on the nodes that the plan takes, under the limits that it keeps.
#
# Minimising USD, a plan may take other nodes than the plain rounds that cost least; the two then differ by hardware
# and not by schedule. So the baseline is the fastest plain schedule on at most the plan's nodes, and what the
# objective alone would have chosen of plain rounds is told beside it.


def baseline_of(search: Search, chosen: Cycle) -> Cycle:
    """The fastest plain synchronous schedule on at most as many nodes as `chosen` takes, and scored as it is, with a
    last pass's rounds.

    Of those that fit (host memory, cores for rewards) and keep the SLO, if any does; else of those that fit, and
    `keeps_slo` says so. A plan that is such a schedule is its own baseline.
    """
    if is_plain(chosen):
        return chosen
    limits, nodes, rounds = search.limits, chosen.taken(search.limits), search.passes[-1].short_rounds
    while True:
        fitting = [c for c in fitting_plain_cycles(search) if c.short.reward == chosen.short.reward]
        if not fitting:
            scored = [_scored_as(search, cycle, chosen) for cycle in fitting_plain_cycles(search)]
            fitting = [c for c in scored if _fits(search, c)] or scored
        # An edited plan may take fewer nodes than any update of the search: then plain rounds take what they take.
        plain = [c for c in fitting if c.taken(limits).within(nodes)] or fitting
        if not plain:
            raise Infeasible("no plain rounds, with which a plan is compared, fit into the pool's host memory")
        best = min(
            [c for c in plain if keeps_slo(c, limits)] or plain,
            key=lambda c: (c.seconds_per_sample(limits.group_size), c.name),
        )
        if best.short.rounds >= rounds:
            return best
        search.simulate(best, rounds, 0)


def _scored_as(search: Search, plain: Cycle, chosen: Cycle) -> Cycle:
    """A plain schedule with the reward workers and deadlines of `chosen`."""
    key = plain.short.key._replace(reward=chosen.short.reward)
    return search.simulate(replace(plain, short=replace(plain.short, key=key)), search.passes[0].short_rounds, 0)


def keeps_slo(cycle: Cycle, limits: Limits) -> bool:
    """Whether at least 95 % of the cycle's steps keep slo.step_p95_s; True without an SLO."""
    return "slo" not in cycle.violations(limits)


def fitting_plain_cycles(search: Search) -> list[Cycle]:
    """The plain schedules that fit into the memory and the cores of their nodes."""
    return [c for c in search.plain_cycles() if _fits(search, c)]


def _fits(search: Search, cycle: Cycle) -> bool:
    return not {"memory", "cores"} & set(cycle.violations(search.limits))


@dataclass(frozen=True)
class Decided:
    """The chosen schedule, and the rounds that the plan's predictions are read from.

    Attributes:
        solution: the proven best schedule.
        cycle: the plan's schedule, the simplest that is tied with the best.
        tolerance: share of its cost up to which a schedule is tied with the best.
        baseline: the plain synchronous schedule that the plan is compared with.
        holdout: the plan's schedule and the baseline on rounds that nothing was chosen on.
    """

    solution: Solution
    cycle: Cycle
    tolerance: float
    baseline: Cycle
    holdout: Holdout

    def given_up(self, search: Search) -> float:
        """Share by which the plan's schedule costs more than the proven best, on the rounds that it was chosen on."""
        return cost_above(search, self.solution.cycle, self.cycle)


def eligible_of(search: Search) -> list[Column[ShortKey]]:
    """Simulated short columns of the modes that may be chosen: the forced one, or those that need no force."""
    mode = search.mode
    return [
        c
        for c in search.columns()[0]
        if (c.deferral.mode not in ON_REQUEST if mode is None else c.deferral.mode == mode)
    ]


def finalists_of(search: Search) -> tuple[list[Column[ShortKey]], list[Column[LongKey]]]:
    """(short, long) columns with all rounds of the last pass: columns that lost an earlier pass have too few rounds to
    be chosen, since few rounds are lucky more often."""
    last = search.passes[-1]
    short = [c for c in eligible_of(search) if c.rounds >= last.short_rounds]
    return short, [c for c in search.columns()[1] if c.rounds >= last.long_rounds]


FURTHER = 4
"""Schedules with a column that lost an early pass that are simulated further, because all columns' program prefers
them."""


def solve_all(search: Search, max_nodes: int) -> Solution:
    """The choice of the columns that came through all passes, with its gap to the bound of the program of all columns
    that were simulated.

    Columns that lost early have few rounds, whose draws may be easy ones: their seconds are taken times what the
    choice's own column has on all rounds over what it has on as many. A schedule of such that still costs less is
    simulated further, and then is a candidate like others.
    """
    dynamic, target, last = search.setting.dynamic_sampling, search.setting.target, search.passes[-1]
    for tries in range(FURTHER + 1):
        eligible, (finalists, partners) = eligible_of(search), finalists_of(search)
        every = search.columns()[1]
        # Columns with few rounds are used only if nothing else is left: the error can then name the limit that binds.
        solution = solve_program(
            finalists or eligible, partners or every, search.needs_long, search.limits, target, max_nodes, dynamic
        )
        if not finalists or (len(finalists), len(partners)) == (len(eligible), len(every)):
            return solution
        chosen = solution.cycle
        levelled = [search.on_all_rounds(c, chosen.short, chosen.train) for c in eligible]
        levelled_long = [search.on_all_rounds(c, chosen.long, chosen.long_train) for c in every]
        wider = solve_program(levelled, levelled_long, search.needs_long, search.limits, target, max_nodes, dynamic)
        few = wider.cycle.short.rounds < last.short_rounds or (
            wider.cycle.long is not None and wider.cycle.long.rounds < last.long_rounds
        )
        if tries < FURTHER and few and wider.objective < solution.objective * (1 - 1e-7):
            search.simulate(wider.cycle, last.short_rounds, last.long_rounds)
        else:
            return solution.among(wider)
    raise AssertionError("the last try returns")


def decide(search: Search, max_nodes: int, progress: Progress) -> Decided:
    """Solve the program over the columns that came through all passes, until the simplest schedule tied with its choice
    keeps the limits on rounds that it has not seen, too, and is no slower there than plain rounds that it may be."""
    dynamic, eligible = search.setting.dynamic_sampling, eligible_of(search)
    finalists, partners = finalists_of(search)
    progress(f"integer program over {len(finalists)} + {len(partners)} columns", 0.98)
    tried_s = tried_mean_s = math.inf  # p95 and mean of a step, of choices that kept the limits by chance
    try:
        solution: Solution | None = solve_all(search, max_nodes)
        finalists, partners = finalists_of(search)
        finalists, partners = finalists or eligible, partners or search.columns()[1]
        while True:
            if solution is None:
                solution = solve_program(
                    finalists, partners, search.needs_long, search.limits, search.setting.target, max_nodes, dynamic
                )
            progress("simulating the choice on rounds of its own", 0.985)
            tolerance = tolerance_of(search, solution.cycle)
            simple = simplest(search, solution.cycle, tolerance)
            # A simpler schedule that breaks a limit on the holdout rounds, or loses to plain rounds there, is no tie;
            # then only the proven best is tried, and after it what it loses to.
            tried = [simple, *([] if simple is solution.cycle else [solution.cycle])]
            for cycle in tried:
                baseline = baseline_of(search, cycle)
                holdout = simulate_holdout(search, cycle, baseline)
                if not (holdout.cycle.trains and holdout.baseline.trains):
                    raise Infeasible(nothing_trained(dynamic))
                if not holdout.keeps_the_limits:
                    continue
                if not (search.chooses_plain and holdout.loses_to_plain):
                    return Decided(solution, cycle, tolerance, baseline, holdout)
                tried.append(baseline)
            tried_s = min(tried_s, step_p95(holdout.search, holdout.cycle))
            tried_mean_s = min(tried_mean_s, holdout.cycle.step_s())
            corrected = holdout.corrected(finalists), holdout.corrected(partners)
            if corrected == (finalists, partners):
                # The program's own tolerance let it through.
                raise Infeasible("no simulated plan keeps its limits on other rounds than those it was chosen on")
            finalists, partners, solution = *corrected, None
    except Infeasible as error:
        names, limits = {c.name for c in eligible}, search.limits
        schedules = [c for c in search.cycles() if c.short.name in names]
        if limits.within_s is not None and schedules:
            others = dataclasses.replace(limits, within_s=None)
            kept = [c for c in schedules if not c.violations(others)] or schedules
            least_s = min(c.step_s() for c in kept) if math.isinf(tried_mean_s) else tried_mean_s
            if least_s > limits.within_s:
                raise Infeasible(f"{error}; the least mean step that was simulated is {least_s:.4g} s") from None
        if not limits.slo or not schedules:
            raise
        # Do not propose an SLO that only plans reach which break another limit (bias).
        other_limits = dataclasses.replace(limits, slo=False)
        schedules = [c for c in schedules if not c.violations(other_limits)] or schedules
        # Short and long rounds have the fewest slow steps for a low limit, and their p95 is a long round's.
        alike = [c for c in schedules if c.long is None]
        looked_at = [schedules, alike] if alike else [schedules]
        lowest_s = min(least_p95(search, each) for each in looked_at) if math.isinf(tried_s) else tried_s
        raise Infeasible(f"{error}; the lowest p95 of a step that was simulated is {lowest_s:.3g} s") from None
