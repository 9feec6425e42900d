"""Clusters that cannot hold a workload: which constraint, by how much, what would make it feasible."""

from __future__ import annotations

import pytest

from rlplan.planner.groups.limits import excess, shortages
from rlplan.planner.groups.model import Group, GroupJob, NodeKind, Rules, Way


def kinds(nodes: int, memory: float = 1e12) -> dict[str, NodeKind]:
    return {"a": NodeKind("a", 1.0, memory, 1, nodes), "b": NodeKind("b", 1.0, memory, 1, None)}


def job(name: str, slo: float = 1.0, state: float = 1e9, **more: tuple[Way, ...]) -> GroupJob:
    return GroupJob(name, slo, (Way("a", 1, 1, 90.0, state), *more.get("other", ())), (Way("b", 1, 1, 10.0, state),))


def test_jobs_that_need_more_time_than_the_nodes_have_are_called_infeasible_with_what_would_do():
    three = {name: job(name) for name in "xyz"}
    [short] = shortages(three, kinds(2), Rules())
    assert (short.pool, short.limit) == ("a", 2) and short.needed == pytest.approx(2.7)
    assert "pool 'a' has 2 node(s)" in str(short)
    assert "takes 2.70, 0.70 more; add 1 node(s) to it, or make every slo 1.35 times as loose" in str(short)
    assert shortages({n: job(n, slo=1.35) for n in "xyz"}, kinds(2), Rules()) == []
    assert shortages(three, kinds(3), Rules()) == []


def test_looser_bounds_need_less_and_a_margin_needs_more():
    loose = {name: job(name, slo=1.5) for name in "xyz"}
    assert shortages(loose, kinds(2), Rules()) == []
    assert shortages(loose, kinds(2), Rules(margin=0.9)) != []


def test_memory_that_all_nodes_together_lack_is_named():
    loose = {name: job(name, slo=9.0, state=6e11) for name in "xyz"}
    [short] = shortages(loose, kinds(1, memory=1e12), Rules())
    assert "host memory" in short.what and short.needed == pytest.approx(1.8)


def test_a_phase_that_could_run_elsewhere_is_not_held_against_the_pool():
    spilling = {name: job(name, other=(Way("b", 1, 1, 95.0, 1e9),)) for name in "xyz"}
    assert shortages(spilling, kinds(2), Rules()) == []


def test_nodes_beyond_the_limit_are_counted():
    assert excess([Group(("a", "a", "b"), ()), Group(("a",), ())], kinds(2)) == [("a", 3, 2)]
    assert excess([Group(("a", "b"), ())], kinds(2)) == []
