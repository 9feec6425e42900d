"""Pricing: what is worth more than it costs."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.groups.choose import pricing
from rlplan.planner.groups.choose.group_columns import FULL, built, unit_shares
from rlplan.planner.groups.choose.placements import job_placements
from rlplan.planner.groups.choose.pricing import (
    Members,
    PlacementTable,
    Pricing,
    connected,
    placement_table,
    price,
    structure_hash_of,
)
from rlplan.planner.groups.choose.structure_hash import InfeasibleSet
from rlplan.planner.groups.inputs.group_model import GroupJob, NodeType, PhaseWay, Rules

NODE_TYPES = {"H20": NodeType("H20", 14.8, 1e12), "H800": NodeType("H800", 42.24, 1e12)}


def made(rows: list[tuple[int, int, int]]) -> dict[str, GroupJob]:
    return {
        f"j{at}": GroupJob(
            f"j{at}", 1 + slo / 100, (PhaseWay("H20", 1, 1, float(r), 3e11),), (PhaseWay("H800", 1, 1, float(t), 3e11),)
        )
        for at, (r, t, slo) in enumerate(rows)
    }


def listed(jobs: dict[str, GroupJob], values: dict[str, float], cap: int, floor: float) -> set[tuple[str, ...]]:
    """Sets of jobs that some connected choice of nodes makes worth more than `floor`, by listing all choices."""
    found = set()
    for size in range(1, cap + 1):
        for names in combinations(sorted(jobs), size):
            places = [[]]
            for _ in names:
                places = [[*p, (r, t)] for p in places for r in range(size) for t in range(size)]
            for place in places:
                r_used, t_used = {r for r, _ in place}, {t for _, t in place}
                if max(r_used) + 1 != len(r_used) or max(t_used) + 1 != len(t_used):
                    continue
                left, reach = set(range(size)), {0}
                while reach:
                    left -= reach
                    reach = {
                        i
                        for i in left
                        for k in set(range(size)) - left
                        if place[i][0] == place[k][0] or place[i][1] == place[k][1]
                    }
                if left:
                    continue
                pools = ["H20"] * len(r_used) + ["H800"] * len(t_used)
                members = [
                    (job_placements(jobs[n], NODE_TYPES, Rules())[0], [r], [len(r_used) + t])
                    for n, (r, t) in zip(names, place, strict=True)
                ]
                group = built(members, pools, NODE_TYPES)
                held = [sum(3e11 for m in members for on in m[1:] if at in on) for at in range(len(pools))]
                if max(unit_shares(group, jobs, Rules(), NODE_TYPES)) > FULL or max(held) >= 1e12:
                    continue
                if sum(values[n] for n in names) - group.usd_per_hour(NODE_TYPES) > floor:
                    found.add(names)
    return found


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(50, 400), st.integers(50, 400), st.integers(0, 100)), min_size=1, max_size=4),
    st.lists(st.integers(0, 60), min_size=4, max_size=4),
    st.sampled_from([0.0, 10.0, -10.0]),
)
def test_the_search_finds_what_listing_all_groups_finds(
    rows: list[tuple[int, int, int]], worth: list[int], floor: float
) -> None:
    jobs = made(rows)
    placements_of = {name: job_placements(job, NODE_TYPES, Rules()) for name, job in jobs.items()}
    tab = placement_table(placements_of, NODE_TYPES)
    values = {name: float(worth[at]) for at, name in enumerate(tab.names)}
    usd = np.array([NODE_TYPES[pool].usd_per_hour for pool in tab.pools])
    result = price(tab, np.array([values[n] for n in tab.names]), usd, 3, floor, InfeasibleSet(), True)
    names = {tuple(sorted(tab.placements[m].job for m, _, _ in one.members)) for one in result.groups}
    assert result.floor == floor
    assert names == listed(jobs, values, 3, floor)
    assert all(structure_hash_of(tab, one.members) == one.structure_hash for one in result.groups)


def test_a_known_pair_takes_all_that_hold_it_and_nothing_else() -> None:
    jobs = made([(100, 100, 90)] * 3)
    tab = placement_table({name: job_placements(job, NODE_TYPES, Rules()) for name, job in jobs.items()}, NODE_TYPES)
    usd = np.array([NODE_TYPES[pool].usd_per_hour for pool in tab.pools])
    values = np.full(3, 60.0)
    known = InfeasibleSet()
    everything = price(tab, values, usd, 3, 0.0, known, True)
    pair = next(one for one in everything.groups if len(one.members) == 2)
    known.add(pair.structure_hash)
    rest = price(tab, values, usd, 3, 0.0, known, True)
    lost = {one.structure_hash for one in everything.groups} - {one.structure_hash for one in rest.groups}
    assert pair.structure_hash in lost
    assert any(len(one.members) == 3 for one in everything.groups if one.structure_hash in lost)
    assert any(len(one.members) == 2 for one in rest.groups)


def test_a_search_that_is_cut_short_proves_nothing() -> None:
    jobs = made([(100, 100, 90)] * 4)
    tab = placement_table({name: job_placements(job, NODE_TYPES, Rules()) for name, job in jobs.items()}, NODE_TYPES)
    usd = np.array([NODE_TYPES[pool].usd_per_hour for pool in tab.pools])
    assert price(tab, np.full(4, 60.0), usd, 4, 0.0, InfeasibleSet(), True, max_steps=10).floor == float("inf")


def test_known_structures_survive_growth() -> None:
    known = InfeasibleSet()
    words = [int(w) for w in np.random.default_rng(0).integers(1, 2**63, 50_000)]
    for word in words:
        known.add(word)
    assert all(word in known for word in words[::97])
    assert 12345 not in known


def wide(rows: list[tuple[int, int, int, int]]) -> dict[str, GroupJob]:
    """Jobs of (rollout nodes, train nodes, seconds of both phases, bound in percent beyond 1)."""
    return {
        f"j{at}": GroupJob(
            f"j{at}", 1 + slo / 100, (PhaseWay("H20", r, 1, float(s), 3e11),), (PhaseWay("H800", t, 1, float(s), 3e11),)
        )
        for at, (r, t, s, slo) in enumerate(rows)
    }


def searched(
    jobs: dict[str, GroupJob], values: list[float], floor: float = 0.0, cap: int = 3
) -> tuple[PlacementTable, Pricing]:
    tab = placement_table({name: job_placements(job, NODE_TYPES, Rules()) for name, job in jobs.items()}, NODE_TYPES)
    usd = np.array([NODE_TYPES[pool].usd_per_hour for pool in tab.pools])
    return tab, price(tab, np.array(values), usd, cap, floor, InfeasibleSet(), False)


def overlaps(members: Members) -> tuple[object, ...]:
    """How a structure's phases meet: nodes by who holds them."""
    held: dict[int, list[tuple[int, int]]] = {}
    for m, *phases in members:
        for phase, nodes in enumerate(phases):
            for node in nodes:
                held.setdefault(node, []).append((m, phase))
    return tuple(sorted(tuple(sorted(some)) for some in held.values()))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=4, max_size=4), st.sampled_from([2, 3]))
def test_every_way_in_which_wide_phases_can_meet_is_tried_once(widths: list[int], count: int) -> None:
    jobs = wide([(widths[at], widths[-1 - at] if count == 2 else 1, 50, 500) for at in range(count)])
    tab, result = searched(jobs, [1e4] * count)
    got = [overlaps(one.members) for one in result.groups if len(one.members) == count]
    assert len(got) == len(set(got)) and result.floor == 0.0
    assert len({one.structure_hash for one in result.groups}) == len(result.groups)
    assert all(structure_hash_of(tab, one.members) == one.structure_hash for one in result.groups)
    # All sets of nodes, those of the first job fixed; the others' are among its nodes and as many others as they need.
    width = [(job.rollout[0].nodes, job.train[0].nodes) for job in jobs.values()]
    r_all, t_all = (range(100 * phase, 100 * phase + sum(w[phase] for w in width)) for phase in (0, 1))
    places = [[(0, tuple(r_all[: width[0][0]]), tuple(t_all[: width[0][1]]))]]
    for at in range(1, count):
        here = list(product([at], combinations(r_all, width[at][0]), combinations(t_all, width[at][1])))
        places = [[*p, one] for p in places for one in here]
    assert set(got) == {overlaps(p) for p in places if connected(p)}


def test_phases_of_more_nodes_than_a_word_has_bits_are_priced() -> None:
    jobs = wide([(300, 40, 100, 60), (300, 40, 100, 60), (280, 40, 100, 60)])
    solo = 300 * 14.8 + 40 * 42.24
    tab, result = searched(jobs, [0.7 * solo] * 3, 0.39 * solo, cap=2)
    best = result.groups[0]
    assert result.floor == 0.39 * solo
    assert sorted(tab.placements[m].job for m, _, _ in best.members) in (["j0", "j1"], ["j0", "j2"], ["j1", "j2"])
    assert len(best.pools) == 340 and best.profit == pytest.approx(0.4 * solo)
    assert structure_hash_of(tab, best.members) == best.structure_hash


def test_three_that_meet_on_one_node_are_not_three_that_meet_in_pairs() -> None:
    tab, _ = searched(wide([(2, 1, 50, 500)] * 3), [0.0] * 3)
    star = [(0, (0, 1), (9,)), (1, (0, 2), (10,)), (2, (0, 3), (11,))]
    triangle = [(0, (0, 1), (9,)), (1, (0, 2), (10,)), (2, (1, 2), (11,))]
    assert structure_hash_of(tab, star) != structure_hash_of(tab, triangle)


def test_a_search_that_meets_more_kinds_of_node_than_it_keeps_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = wide([(2, 1, 50, 500)] * 3)
    assert searched(jobs, [1e4] * 3)[1].floor == 0.0
    monkeypatch.setattr(pricing, "MOST_NODE_CLASSES", 4)
    assert searched(jobs, [1e4] * 3)[1].floor == float("inf")
