"""Plain synchronous rounds come first: what else has to gain to be planned in their place, and what is said of it."""

import dataclasses
import math
from typing import Any

import pytest

from rlplan.cli.screens.solved import plan_summary, plan_text
from rlplan.planner.choose import schedule_choice, ties
from rlplan.planner.choose.candidate_search import Search, is_plain
from rlplan.planner.choose.candidates.solve_options import Pass
from rlplan.planner.choose.cycle_cost import Cycle
from rlplan.planner.choose.holdout_rounds import simulate_holdout
from rlplan.planner.choose.schedule_choice import Decided
from rlplan.planner.explain.why import tie_text
from rlplan.planner.solve import Solved
from rlplan.plans.facts.plan_text import LITTLE, little_gained
from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.schema.plan import Plan

from ..conftest import heavy_trace, rollout, small_profile
from ..solutions import QUICK, eight_by_four, solution
from .test_for_executor import check, update

NOISY = (Pass(2, 1, math.inf),)
"""So few rounds that the best of many schedules is mostly a lucky one."""


def spread(sigma: float, icc: float, **options: Any) -> Solved:
    """The small job on lengths that are more or less spread: the more they are, the more mode exact gains."""
    return solution(trace=heavy_trace(sigma=sigma, icc=icc), prompt_sets=2, **options)


def two_layouts(one_engine_s: float, sigma: float, icc: float, **options: Any) -> Solved:
    """A job on two engines of tp 1, whose decode steps take 7 ms, or on one of tp 2; costs are off by 10 %."""
    layouts = EngineLayout(1, 2), EngineLayout(2, 1)
    profile = small_profile(
        rollout=(rollout(1, 2, 7e-3, 3e-5), rollout(2, 1, one_engine_s, 3e-5)),
        checks=tuple(check(layout, 0.1) for layout in layouts),
        train=(update(4e-4, error=0.1),),
    )
    trace = heavy_trace(sigma=sigma, icc=icc)
    return solution(eight_by_four(tokens=(4096,)), profile=profile, trace=trace, prompt_sets=2, **options)


def gain(found: Solved) -> float:
    """Gain of the proven best schedule over the fastest plain rounds, on the rounds that it was chosen on."""
    limits, rounds = found.search.limits, QUICK[-1].short_rounds
    plain = [c for c in found.search.plain_cycles() if c.short.rounds >= rounds and not c.violations(limits)]
    return min(c.cost(limits) for c in plain) / found.solution.cycle.cost(limits) - 1


@pytest.mark.parametrize("sigma, icc", [(0.3, 0.1), (0.5, 0.5), (0.5, 0.8), (0.7, 0.1), (0.7, 0.8), (1.2, 0.5)])
def test_another_mode_is_planned_only_where_it_gains(sigma, icc):
    found = spread(sigma, icc)
    least = max(ties.ALIKE, ties.tolerance_of(found.search, found.solution.cycle))
    if gain(found) < least:
        assert found.plan.job.bias.mode == "sync" and found.plan.predicted.speedup == 1.0
    else:
        said = found.plan.job.why.get("ties", "")
        assert found.plan.job.bias.mode == "exact" or "on rounds that nothing was chosen on it is slower" in said
    assert found.plan.predicted.speedup >= 1.0
    if gain(found) > 0.1:
        assert found.plan.job.bias.mode == "exact", "what gains clearly is planned"


@pytest.mark.parametrize("one_engine_s, sigma, icc", [(5.5e-3, 0.5, 0.1), (6.6e-3, 0.5, 0.1), (5.5e-3, 0.5, 0.5),
                                                      (6.2e-3, 0.5, 0.5), (6.6e-3, 0.7, 0.1)])  # fmt: skip
def test_no_simpler_layout_makes_up_for_a_second_kind_of_round(one_engine_s, sigma, icc):
    found = two_layouts(one_engine_s, sigma, icc, prompts=64)  # too few for a queue, by which exact gains more
    assert gain(found) < ties.MOST and found.plan.job.bias.mode == "sync"
    assert found.plan.job.rounds.long is None and found.plan.predicted.speedup == 1.0
    assert (found.plan.solver.given_up or 0.0) <= ties.MOST


def test_a_simpler_layout_that_gains_nothing_gives_way():
    for one_engine_s in (5.0e-3, 5.5e-3, 6.2e-3):
        found = two_layouts(one_engine_s, 0.9, 0.5)
        assert gain(found) > ties.MOST and found.plan.job.bias.mode == "exact"
        above = ties.cost_above(found.search, found.solution.cycle, found.cycle)
        assert (1 + above) * (1 + ties.MOST) <= (1 + gain(found)) * (1 + 1e-6), "what was planned gains, too"


@pytest.mark.parametrize("sigma", [0.3, 1.3])
def test_another_mode_has_to_gain_over_sync_with_drafts(sigma):
    drafts = {"tokens": (2, 4), "acceptance": 0.6}
    job = eight_by_four(search={"tp": (1,), "micro_batch_tokens": (4096,), "drafts": drafts})
    found = solution(job, trace=heavy_trace(sigma=sigma, icc=0.5), prompt_sets=2)
    limits, rounds = found.search.limits, QUICK[-1].short_rounds
    sync = [c for c in found.search.sync_cycles() if c.short.rounds >= rounds and not c.violations(limits)]
    fastest = min(sync, key=lambda c: c.cost(limits))
    assert fastest.short.key.draft_tokens and found.cycle.short.key.draft_tokens and found.plan.predicted.speedup > 1.1
    least = 1 + max(ties.ALIKE, found.plan.predicted.error.costs)
    gains = fastest.cost(limits) / found.solution.cycle.cost(limits) >= least
    assert (found.plan.job.bias.mode == "exact") == gains == (sigma > 1)


def test_sync_with_drafts_that_lost_early_is_simulated_further():
    passes = Pass(4, 2, math.inf), Pass(24, 12, 0.02), Pass(48, 24, 0.0)
    job = eight_by_four(
        search={"tp": (1,), "micro_batch_tokens": (4096,), "drafts": {"tokens": (2, 4), "acceptance": 0.6}}
    )
    search = solution(job, trace=heavy_trace(sigma=1.6, icc=0.5), prompt_sets=2, passes=passes).search
    fastest = min(search.sync_cycles(), key=lambda c: (c.cost(search.limits), c.name))
    assert fastest.short.key.draft_tokens and fastest.short.rounds >= 24


@pytest.mark.parametrize("options", [{}, {"objective": "usd"}, {"bias_budget": 0.1}])
def test_no_free_plan_is_slower_than_plain_rounds(options):
    for seed in range(4):
        predicted = spread(0.5, 0.6, seed=seed, passes=NOISY, **options).plan.predicted
        assert predicted.speedup >= 1.0, (seed, predicted.speedup)


def test_schedules_that_lose_on_other_rounds_give_way_to_plain_ones(monkeypatch):
    def slowest(search: Search, best: Cycle, tolerance: float) -> Cycle:
        return max(
            (c for c in search.cycles() if c.short.deferral.mode == "exact"), key=lambda c: c.cost(search.limits)
        )

    monkeypatch.setattr(schedule_choice, "simplest", slowest)
    assert spread(0.5, 0.5, seed=7).plan.predicted.speedup >= 1.0
    forced = spread(0.5, 0.5, seed=7, mode="exact").plan
    assert forced.job.bias.mode == "exact" and forced.predicted.speedup < 1.0, "what is asked for is planned"


def test_no_tie_makes_a_forced_mode_slower_than_plain_rounds():
    for one_engine_s in (5.5e-3, 6.2e-3, 6.6e-3):
        found = two_layouts(one_engine_s, 0.7, 0.1, mode="exact")
        assert found.plan.job.bias.mode == "exact" and gain(found) > 0
        above = ties.cost_above(found.search, found.solution.cycle, found.cycle)
        assert 1 + above <= (1 + gain(found)) * (1 + 1e-6)


def test_ties_go_by_mode_then_kinds_of_round_then_layouts():
    search = solution(bias_budget=0.5).search
    cycles = sorted(search.cycles(), key=lambda c: ties.simplicity(search, c))
    unbiased = ("sync", "exact", "predict")
    ranks = [
        (c.short.deferral.mode != "sync", c.short.deferral.mode not in unbiased, c.long is not None) for c in cycles
    ]
    assert ranks == sorted(ranks) and len(set(ranks)) == 4, "sync, exact, biased of one kind, biased of two"
    two_layouts = [c.long is not None and c.long.layout != c.short.layout for c in cycles if not is_plain(c)]
    assert len(set(two_layouts)) == 2


def test_what_is_as_fast_is_not_said_to_be_faster():
    found = two_layouts(6.2e-3, 0.5, 0.1)
    sync = sorted(found.search.plain_cycles(), key=lambda c: c.cost(found.search.limits))
    fast, slow = sync[0], next(c for c in reversed(sync) if c.short.layout != sync[0].short.layout)
    for best, chosen, said in ((slow, fast, "would be no faster, within"), (fast, slow, "% faster, within")):
        holdout = simulate_holdout(found.search, chosen, chosen)
        decided = Decided(dataclasses.replace(found.solution, cycle=best), chosen, 0.05, chosen, holdout)
        assert said in (tie_text(found.search, decided) or "")


def with_speedup(plan: Plan, speedup: float) -> Plan:
    """The plan with plain rounds that make it so many times as fast."""
    base = plan.predicted.baseline.model_copy(
        update={"seconds_per_sample": speedup * plan.predicted.seconds_per_sample}
    )
    return plan.model_copy(update={"predicted": plan.predicted.model_copy(update={"baseline": base})})


@pytest.mark.parametrize(
    "speedup, said",
    [
        (0.98, "slower than plain rounds: 2.0% fewer samples per second"),
        (1.02, "little is gained: 2.0% more samples per second"),
    ],
)
def test_little_gain_or_loss_is_said_first(speedup, said, tmp_path):
    exact = with_speedup(solution(mode="exact").plan, speedup)
    first = plan_text(exact, tmp_path / "plan.yaml").splitlines()[0]
    assert first.startswith(said) and plan_summary(exact, tmp_path / "plan.yaml")["headline"] == first
    clear = with_speedup(exact, 1.001 + LITTLE)
    assert little_gained(clear) is None and plan_text(clear, tmp_path / "plan.yaml").startswith("exact: ")


def test_plain_rounds_are_named_as_what_they_are(tmp_path):
    free, forced = spread(0.3, 0.1).plan, spread(0.3, 0.1, mode="sync").plan
    for plan, reason in ((free, "no other schedule that solve may choose is 5% faster"), (forced, "--mode sync")):
        first, second = plan_text(plan, tmp_path / "plan.yaml").splitlines()[:2]
        assert first.startswith("plain rounds") and reason in first and second.startswith("sync: ")
    in_usd = spread(0.3, 0.1, objective="usd").plan
    assert (little_gained(in_usd) or "").endswith("is 5% cheaper"), "one on more nodes may be faster"


def test_a_slower_plan_whose_plain_rounds_break_the_slo_says_so():
    slow = with_speedup(solution(mode="exact").plan, 0.9)
    base = slow.predicted.baseline.model_copy(update={"keeps_slo": False})
    slow = slow.model_copy(update={"predicted": slow.predicted.model_copy(update={"baseline": base})})
    said = little_gained(slow)
    assert said is not None and said.endswith("but plain ones break slo.step_p95_s")
