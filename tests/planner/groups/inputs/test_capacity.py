"""Clusters that cannot hold a workload: which constraint, by how much, what would make it feasible."""

import re
from dataclasses import replace

import pytest

from rlplan.planner.groups.choose.group_program import solve_groups
from rlplan.planner.groups.inputs.group_model import Group, GroupJob, Jobs, NodeTypes, Rules, excess, shortages
from rlplan.planner.groups.solve_workload import without_room
from rlplan.plans.yaml.errors import Infeasible

from ..made import job, limited, named, node_types


def jobs(names: str, seconds: tuple[float, float] = (90, 10), **fields) -> dict[str, GroupJob]:
    return named(*(job(name, *seconds, **{"slo": 1.0, "gb": 1, **fields}) for name in names))


def nodes(count: int) -> NodeTypes:
    return limited(count, None, memory=1e12)


@pytest.mark.parametrize(
    ("some", "there", "rules", "needed"),
    [
        (jobs("xyz"), nodes(2), Rules(), 2.7),
        (jobs("xyz"), nodes(3), Rules(), None),
        (jobs("xyz", slo=1.35), nodes(2), Rules(), None),  # exactly enough
        (jobs("xyz", slo=1.34), nodes(2), Rules(), 2.7 / 1.34),
        (jobs("xyz", slo=1.5), nodes(2), Rules(margin=0.9), 2.7 / 1.05),  # a margin needs more
        (jobs("xyz", slo=9.0, gb=600), nodes(1), Rules(), 1.8),  # of host memory
        (jobs("xyz", spill=1.05), nodes(2), Rules(), None),  # a phase that could run elsewhere is not held against it
    ],
)
def test_a_pool_is_short_of_time_or_memory_for_its_jobs(some, there, rules, needed) -> None:
    short = shortages(some, there, rules)
    if needed is None:
        assert short == []
        return
    assert (short[0].pool, short[0].limit, len(short)) == ("roll", there["roll"].limit, 1)
    assert short[0].needed == pytest.approx(needed)
    assert ("host memory" in short[0].needed_for) == (needed == 1.8)
    if needed == 2.7:
        assert str(short[0]).startswith("pool 'roll' has 2 nodes and needs at least 2.70, even if every job is as slow")


def test_units_that_a_tail_gives_back_are_not_counted_to_its_end():
    """Two jobs on one node of two slots share it, since their tails of 60 % need one slot only."""
    halves = node_types(10.0, 40.0, 1e12, slots=2, limit=1)
    two = jobs("xy", (300, 100), slo=1.35, tail_share=0.6)
    two = {n: replace(j, rollout=(replace(j.rollout[0], slots=2),)) for n, j in two.items()}
    assert shortages(two, halves, Rules(tail_keep=0.5)) == []
    assert len(solve_groups(list(two.values()), halves, Rules(tail_keep=0.5)).groups) == 1
    [short] = shortages(two, halves, Rules())
    assert short.needed == pytest.approx(2 * 0.75 / 1.35)


def solves(some: Jobs, kinds: NodeTypes) -> bool:
    try:
        solve_groups(list(some.values()), kinds, Rules())
    except Infeasible:
        return False
    return True


@pytest.mark.parametrize(
    ("some", "there"),
    [
        (jobs("xyz", (200, 100), slo=1.2), nodes(1)),
        (jobs("vwxyz", slo=9.0, gb=600), nodes(2)),
        (jobs("xyz", slo=9.0, gb=600), nodes(2)),  # nothing is proven: each fills a node
    ],
)
def test_every_remedy_that_is_named_makes_the_jobs_fit(some, there):
    assert not solves(some, there)
    text = str(without_room(some, there, Rules(), shortages(some, there, Rules())))
    count = int(re.search(r"with (\d+) nodes of pool 'roll'", text)[1])
    for limit in (count - 1, count):
        assert solves(some, {**there, "roll": replace(there["roll"], limit=limit)}) == (limit == count)
    looser = re.search(r"with every slo ([\d.]+) times as loose", text)
    roomier = re.search(r"with ([\d.]+) times the host memory", text)
    assert looser or roomier
    if looser:
        assert solves({name: replace(j, slo=j.slo * float(looser[1])) for name, j in some.items()}, there)
    if roomier:
        larger = {p: replace(k, host_memory_bytes=k.host_memory_bytes * float(roomier[1])) for p, k in there.items()}
        assert solves(some, larger)


def test_nodes_beyond_the_limit_are_counted():
    two = Group(("roll", "roll", "train"), ())
    assert excess([two, Group(("roll",), ())], nodes(2)) == [("roll", 3, 2)]
    assert excess([two], nodes(2)) == []
