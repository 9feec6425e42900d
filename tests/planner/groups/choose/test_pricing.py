"""Pricing: what is worth more than it costs."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.groups.choose import pricing
from rlplan.planner.groups.choose.group_columns import FULL, built, job_placements, unit_shares
from rlplan.planner.groups.choose.group_nodes import resident
from rlplan.planner.groups.choose.pricing import Members, PlacementTable, Pricing, connected, structure_hash_of
from rlplan.planner.groups.choose.pricing_kernel import InfeasibleSet
from rlplan.planner.groups.inputs.group_model import GroupJob, Rules

from ..made import job, named, node_types

NODE_TYPES = node_types(memory=1e12)
USD = np.array([14.8, 42.24])


def table_of(jobs: list[GroupJob]) -> PlacementTable:
    placements = {each.name: job_placements(each, NODE_TYPES, Rules()) for each in jobs}
    return pricing.placement_table(placements, NODE_TYPES)


def priced(
    jobs: list[GroupJob], values: list[float], floor: float = 0.0, cap: int = 3, known: InfeasibleSet | None = None,
    prune: bool = False, **options: int,
) -> tuple[PlacementTable, Pricing]:  # fmt: skip
    tab = table_of(jobs)
    found = pricing.price(tab, np.array(values, float), USD, cap, floor, known or InfeasibleSet(), prune, **options)
    assert all(structure_hash_of(tab, one.members) == one.structure_hash for one in found.groups)
    profits = [one.profit for one in found.groups]
    assert profits == sorted(profits, reverse=True) and min(profits, default=floor + 1) > floor
    return tab, found


def equal(count: int) -> list[GroupJob]:
    return [job(f"j{at}", slo=1.9, gb=300) for at in range(count)]


def wide(*widths: tuple[int, int], slo: float = 6.0, seconds: float = 50.0) -> list[GroupJob]:
    return [job(f"j{at}", seconds, seconds, slo, gb=300, nodes=nodes) for at, nodes in enumerate(widths)]


def overlaps(members: Members) -> tuple[object, ...]:
    """How a structure's phases meet: nodes by who holds them."""
    held: dict[int, list[tuple[int, int]]] = {}
    for m, *phases in members:
        for phase, nodes in enumerate(phases):
            for node in nodes:
                held.setdefault(node, []).append((m, phase))
    return tuple(sorted(tuple(sorted(some)) for some in held.values()))


def listed(jobs: list[GroupJob], values: list[float], cap: int, floor: float) -> set[tuple[object, ...]]:
    """Connected structures that fit their nodes and are worth more than `floor`, by listing all sets of nodes."""
    by_name, found, tab = named(*jobs), set(), table_of(jobs)
    width = [(each.rollout[0].nodes, each.train[0].nodes) for each in jobs]
    for some in (s for size in range(1, cap + 1) for s in combinations(range(len(jobs)), size)):
        # The first job's nodes are fixed; the others' are among its nodes and as many others as they need.
        r_all, t_all = (range(100 * phase, 100 * phase + sum(width[m][phase] for m in some)) for phase in (0, 1))
        first, *others = some
        here = [[(first, tuple(r_all[: width[first][0]]), tuple(t_all[: width[first][1]]))]]
        here += [product([m], combinations(r_all, width[m][0]), combinations(t_all, width[m][1])) for m in others]
        for members in product(*here):
            used = sorted({node for _, *phases in members for nodes in phases for node in nodes})
            if not connected(members) or overlaps(members) in found:
                continue
            placed = [
                (tab.placements[m], *([used.index(n) for n in nodes] for nodes in phases)) for m, *phases in members
            ]
            group = built(placed, ["roll" if node < 100 else "train" for node in used], NODE_TYPES)
            if (
                max(unit_shares(group, by_name, Rules(), NODE_TYPES)) <= FULL
                and resident(group, by_name, NODE_TYPES)
                and sum(values[m] for m in some) - group.usd_per_hour(NODE_TYPES) > floor
            ):
                found.add(overlaps(members))
    return found


def check_search(jobs: list[GroupJob], values: list[float], floor: float, prune: bool) -> None:
    _, result = priced(jobs, values, floor, prune=prune)
    got = [overlaps(one.members) for one in result.groups]
    assert len(got) == len(set(got)) and result.floor == floor
    assert len({one.structure_hash for one in result.groups}) == len(result.groups)
    assert set(got) == listed(jobs, values, 3, floor)


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(50, 400), st.integers(50, 400), st.integers(0, 100)), min_size=1, max_size=4),
    st.lists(st.integers(0, 60), min_size=4, max_size=4),
    st.sampled_from([0.0, 10.0, -10.0]),
)
def test_the_search_finds_what_listing_all_groups_finds(rows, worth: list[int], floor: float) -> None:
    jobs = [job(f"j{at}", r, t, 1 + s / 100, gb=300) for at, (r, t, s) in enumerate(rows)]
    check_search(jobs, worth[: len(jobs)], floor, True)


@pytest.mark.parametrize("widths", [((3, 2), (2, 3)), ((2, 1), (1, 1), (3, 1)), ((2, 1),) * 3])
def test_every_way_in_which_wide_phases_can_meet_is_tried_once(widths) -> None:
    check_search(wide(*widths), [1e4] * len(widths), 0.0, False)


def test_a_known_pair_takes_all_that_hold_it_and_nothing_else() -> None:
    known = InfeasibleSet()
    _, everything = priced(equal(3), [60.0] * 3, known=known, prune=True)
    pair = next(one for one in everything.groups if len(one.members) == 2)
    known.add(pair.structure_hash)
    _, rest = priced(equal(3), [60.0] * 3, known=known, prune=True)
    lost = {one.structure_hash for one in everything.groups} - {one.structure_hash for one in rest.groups}
    assert pair.structure_hash in lost
    assert any(len(one.members) == 3 for one in everything.groups if one.structure_hash in lost)
    assert any(len(one.members) == 2 for one in rest.groups)


def test_a_search_that_is_cut_short_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert priced(equal(4), [60.0] * 4, cap=4, prune=True, max_steps=10)[1].floor == float("inf")
    jobs = wide((2, 1), (2, 1), (2, 1))
    assert priced(jobs, [1e4] * 3)[1].floor == 0.0
    monkeypatch.setattr(pricing, "MOST_NODE_CLASSES", 4)
    assert priced(jobs, [1e4] * 3)[1].floor == float("inf"), "more kinds of node than are kept"


def test_a_search_that_returns_few_keeps_the_best() -> None:
    values = [60.0, 70.0, 80.0, 90.0]
    _, every = priced(equal(4), values)
    _, few = priced(equal(4), values, most_groups=5)
    assert few.floor > 0.0
    assert [one.profit for one in few.groups] == [one.profit for one in every.groups if one.profit > few.floor]


def test_known_structures_survive_growth() -> None:
    known = InfeasibleSet()
    words = [int(w) for w in np.random.default_rng(0).integers(1, 2**63, 50_000)]
    for word in words:
        known.add(word)
    assert all(word in known for word in words[::97])
    assert 12345 not in known


def test_phases_of_more_nodes_than_a_word_has_bits_are_priced() -> None:
    solo = 300 * 14.8 + 40 * 42.24
    jobs = wide((300, 40), (300, 40), (280, 40), slo=1.6, seconds=100.0)
    tab, result = priced(jobs, [0.7 * solo] * 3, 0.39 * solo, cap=2)
    best = result.groups[0]
    assert result.floor == 0.39 * solo
    assert sorted(tab.placements[m].job for m, _, _ in best.members) in (["j0", "j1"], ["j0", "j2"], ["j1", "j2"])
    assert len(best.pools) == 340 and best.profit == pytest.approx(0.4 * solo)


def test_three_on_one_node_are_not_three_that_meet_in_pairs() -> None:
    tab = table_of(wide((2, 1), (2, 1), (2, 1)))
    star = [(0, (0, 1), (9,)), (1, (0, 2), (10,)), (2, (0, 3), (11,))]
    triangle = [(0, (0, 1), (9,)), (1, (0, 2), (10,)), (2, (1, 2), (11,))]
    assert structure_hash_of(tab, star) != structure_hash_of(tab, triangle)
