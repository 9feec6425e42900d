"""Clusters that cannot hold a workload: which constraint, by how much, what would make it feasible."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from rlplan.planner.groups.choose.group_program import solve_groups
from rlplan.planner.groups.choose.remedies import without_room
from rlplan.planner.groups.inputs.capacity import excess, shortages
from rlplan.planner.groups.inputs.group_model import Group, GroupJob, NodeType, PhaseWay, Rules
from rlplan.plans.yaml.errors import Infeasible


def node_types(nodes: int, memory: float = 1e12) -> dict[str, NodeType]:
    return {"a": NodeType("a", 1.0, memory, 1, nodes), "b": NodeType("b", 1.0, memory, 1, None)}


def job(
    name: str,
    slo: float = 1.0,
    state: float = 1e9,
    other: tuple[PhaseWay, ...] = (),
    of: tuple[float, float] = (90.0, 10.0),
) -> GroupJob:
    return GroupJob(name, slo, (PhaseWay("a", 1, 1, of[0], state), *other), (PhaseWay("b", 1, 1, of[1], state),))


def test_jobs_that_need_more_time_than_the_nodes_have_are_called_infeasible_with_what_would_do():
    three = {name: job(name) for name in "xyz"}
    [short] = shortages(three, node_types(2), Rules())
    assert (short.pool, short.limit) == ("a", 2) and short.needed == pytest.approx(2.7)
    assert "pool 'a' has 2 nodes" in str(short)
    assert "takes at least 2.70, 0.70 more" in str(short)
    assert shortages({n: job(n, slo=1.35) for n in "xyz"}, node_types(2), Rules()) == []
    assert shortages(three, node_types(3), Rules()) == []


def test_looser_bounds_need_less_and_a_margin_needs_more():
    loose = {name: job(name, slo=1.5) for name in "xyz"}
    assert shortages(loose, node_types(2), Rules()) == []
    assert shortages(loose, node_types(2), Rules(margin=0.9)) != []


def test_memory_that_all_nodes_together_lack_is_named():
    loose = {name: job(name, slo=9.0, state=6e11) for name in "xyz"}
    [short] = shortages(loose, node_types(1, memory=1e12), Rules())
    assert "host memory" in short.needed_for and short.needed == pytest.approx(1.8)


def test_a_phase_that_could_run_elsewhere_is_not_held_against_the_pool():
    spilling = {name: job(name, other=(PhaseWay("b", 1, 1, 95.0, 1e9),)) for name in "xyz"}
    assert shortages(spilling, node_types(2), Rules()) == []


def test_units_that_a_tail_gives_back_are_not_counted_to_its_end():
    """Two jobs on one node of two slots share it, since their tails of 60 % need one slot only."""
    halves = {"a": NodeType("a", 10.0, 1e12, 2, 1), "b": NodeType("b", 40.0, 1e12, 1, 2)}
    jobs = {
        name: GroupJob(
            name, 1.35, (PhaseWay("a", 1, 2, 300.0, 1e9),), (PhaseWay("b", 1, 1, 100.0, 1e9),), tail_share=0.6
        )
        for name in "xy"
    }
    assert shortages(jobs, halves, Rules(tail_keep=0.5)) == []
    assert len(solve_groups(list(jobs.values()), halves, Rules(tail_keep=0.5)).groups) == 1
    [short] = shortages(jobs, halves, Rules())
    assert short.needed == pytest.approx(2 * 0.75 / 1.35)


@pytest.mark.parametrize(
    ("jobs", "there"),
    [
        ({name: job(name, slo=1.2, of=(200.0, 100.0)) for name in "xyz"}, node_types(1)),
        ({name: job(name, slo=9.0, state=6e11) for name in "vwxyz"}, node_types(2)),
        (
            {name: job(name, slo=9.0, state=6e11) for name in "xyz"},
            node_types(2),
        ),  # nothing is proven: each fills a node
    ],
)
def test_every_remedy_that_is_named_makes_the_jobs_fit(jobs, there):
    def solves(jobs=jobs, there=there):
        solve_groups(list(jobs.values()), there, Rules())

    with pytest.raises(Infeasible):
        solves()
    text = str(without_room(jobs, there, Rules(), shortages(jobs, there, Rules())))
    nodes = int(re.search(r"with (\d+) nodes of pool 'a'", text)[1])
    solves(there={**there, "a": replace(there["a"], limit=nodes)})
    with pytest.raises(Infeasible):
        solves(there={**there, "a": replace(there["a"], limit=nodes - 1)})
    looser = re.search(r"with every slo ([\d.]+) times as loose", text)
    roomier = re.search(r"with ([\d.]+) times the host memory", text)
    assert looser or roomier
    if looser:
        solves({name: replace(j, slo=j.slo * float(looser[1])) for name, j in jobs.items()})
    if roomier:
        larger = float(roomier[1])
        solves(there={p: replace(k, host_memory_bytes=k.host_memory_bytes * larger) for p, k in there.items()})


def test_nodes_beyond_the_limit_are_counted():
    assert excess([Group(("a", "a", "b"), ()), Group(("a",), ())], node_types(2)) == [("a", 3, 2)]
    assert excess([Group(("a", "b"), ())], node_types(2)) == []
