"""The same quantile and margin judge a bound in the solver and in what is reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlplan.planner.groups.inputs.group_model import Group, GroupJob, PhaseWay, Pin, Rules
from rlplan.planner.groups.simulate.slowdowns import bound_slowdowns, bounds_kept, feasible, slowdowns

PAIRS = tuple((1.0 + 0.3 * (-1) ** i, 1.0) for i in range(8))
GROUP = Group(("a", "b"), (Pin("x", 0, (0,), 0, (1,)), Pin("y", 0, (0,), 0, (1,))))


def pair(slo: float) -> dict[str, GroupJob]:
    return {
        n: GroupJob(n, slo, (PhaseWay("a", 1, 1, 100.0, 1e9),), (PhaseWay("b", 1, 1, 80.0, 1e9),), PAIRS) for n in "xy"
    }


@pytest.mark.parametrize("quantile", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("margin", [0.0, 0.4])
def test_a_group_keeps_its_bounds_in_the_report_exactly_if_the_solver_takes_it(quantile, margin):
    verdicts = set()
    for slo in (1.02, 1.15, 1.25, 1.4, 1.8):
        jobs, rules = pair(slo), Rules(quantile=quantile, margin=margin, stretch=3)
        kept = all(bounds_kept(GROUP, jobs, slowdowns(GROUP, jobs, rules), rules).values())
        assert kept == feasible(GROUP, jobs, rules), slo
        verdicts.add(kept)
    assert verdicts == {True, False}


def test_a_lower_quantile_asks_less():
    jobs, rules = pair(1.5), Rules(stretch=3)
    got = slowdowns(GROUP, jobs, rules)
    half, most = (bound_slowdowns(GROUP, jobs, got, replace(rules, quantile=q)) for q in (0.5, 0.95))
    assert half["x"] == pytest.approx(got["x"].p50) and half["x"] < most["x"] == got["x"].p95
