"""From simulated columns to the plan's schedule: the integer program's proof, the simplest schedule tied with it, what
it is compared with, and whether all that holds on rounds that nothing was chosen on."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from ...plans.yaml.errors import Infeasible
from ...profiles.profile_schema import Profile
from ..costs.colocation import turns_text
from ..explain.cycle_parts import parts_of
from ..explain.holdout_rounds import Unseen, simulate_unseen
from ..explain.predictions import least_p95, step_p95
from ..explain.waste import waste_text
from ..explain.why import tie_text
from .candidate_search import ON_REQUEST, Progress, Search
from .cycle_cost import Cycle
from .plain_baseline import baseline_of, baseline_text
from .round_program import Solution, nothing_trained, solve_program
from .ties import cost_above, simplest, tolerance_of


@dataclass(frozen=True)
class Decided:
    """The proven best schedule, the plan's, which is tied with it, its baseline, and both of these on unseen rounds."""

    solution: Solution
    cycle: Cycle
    tolerance: float
    baseline: Cycle
    unseen: Unseen

    def given_up(self, search: Search) -> float:
        """Share by which the plan's schedule costs more than the proven best, on the rounds that it was chosen on."""
        return cost_above(search, self.solution.cycle, self.cycle)


def decide(search: Search, profile: Profile, max_nodes: int, progress: Progress) -> Decided:
    """Solve the program over the columns that came through all passes, until the simplest schedule tied with its choice
    keeps the limits on rounds that it has not seen, too."""
    last = search.passes[-1]
    short, long = search.columns()
    mode, dynamic = search.mode, search.setting.dynamic_sampling
    eligible = [c for c in short if (c.law.mode not in ON_REQUEST if mode is None else c.law.mode == mode)]
    # Columns that lost an earlier pass have too few rounds to be chosen: few rounds are lucky more often. They are
    # looked at only when nothing else is left, so that the error can say which limit binds.
    finalists = [c for c in eligible if c.rounds >= last.short_rounds] or eligible
    partners = [c for c in long if c.rounds >= last.long_rounds] or long
    progress(f"integer program over {len(finalists)} + {len(partners)} columns", 0.98)
    tried_s = math.inf  # p95 of a step, of choices that kept the limits by luck
    try:
        while True:
            solution = solve_program(
                finalists, partners, search.needs_long, search.limits, search.setting.target, max_nodes, dynamic
            )
            progress("simulating the choice on rounds of its own", 0.985)
            tolerance = tolerance_of(search, solution.cycle, profile)
            simple = simplest(search, solution.cycle, tolerance)
            # One that is simpler and breaks a limit on other rounds is no tie; the proven best is then looked at alone.
            for cycle in [simple, *([] if simple is solution.cycle else [solution.cycle])]:
                baseline = baseline_of(search, cycle)
                unseen = simulate_unseen(search, cycle, baseline)
                if not (unseen.cycle.trains and unseen.baseline.trains):
                    raise Infeasible(nothing_trained(dynamic))
                if unseen.keeps_the_limits:
                    return Decided(solution, cycle, tolerance, baseline, unseen)
            tried_s = min(tried_s, step_p95(unseen.search, unseen.cycle))
            corrected = unseen.corrected(finalists), unseen.corrected(partners)
            if corrected == (finalists, partners):
                # The program's own tolerance let it through.
                raise Infeasible("no simulated plan keeps its limits on other rounds than those it was chosen on")
            finalists, partners = corrected
    except Infeasible as error:
        names = {c.name for c in eligible}
        schedules = [c for c in search.cycles() if c.short.name in names]
        if not search.limits.slo or not schedules:
            raise
        # A bound that only a plan reaches that breaks another limit (its bias) is nothing to raise the SLO to.
        others = dataclasses.replace(search.limits, slo=False)
        schedules = [c for c in schedules if not c.violations(others)] or schedules
        # Short and long rounds have the fewest slow steps for a low limit, and their p95 is a long round's.
        alike = [c for c in schedules if c.long is None]
        looked_at = [schedules, alike] if alike else [schedules]
        lowest_s = min(least_p95(search, some) for some in looked_at) if math.isinf(tried_s) else tried_s
        raise Infeasible(f"{error}; the lowest p95 of a step that was simulated is {lowest_s:.3g} s") from None


def choice_words(decided: Decided, search: Search, profile: Profile) -> dict[str, str]:
    """What speaks for the schedule beside its speed, and what it is compared with, by key of the plan's `why`."""
    parts = parts_of(decided.unseen.search, decided.unseen.cycle)
    turns = [(part.layout.tp, part.train.layout.accelerators, part.train.layout.offload) for part in parts]
    found = {
        "ties": tie_text(search, decided.solution.cycle, decided.cycle, decided.given_up(search), decided.tolerance),
        "waste": waste_text(parts, search.setting.target, search.limits.group_size),
        "baseline": baseline_text(search, decided.baseline),
        "colocation": turns_text(profile, turns),
    }
    return {key: text for key, text in found.items() if text is not None}
