"""Locks of nodes: what must be locked together, and how a lock is called."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.plans.export.node_locks import PHASES, NodeLock, lock_of, node_locks, nodes_held, pinned_phases
from rlplan.plans.schema.sections.planned_group import PlannedGroup

from ...group_documents import groups_plan, member, pinned


def planned(jobs: dict[str, tuple[list[int], list[int]]], pools: list[str], slots: int = 1) -> PlannedGroup:
    """A group on nodes of these pools; by job, the units of its rollout and of its training."""
    node = {"slots": slots, "resident_bytes": 1e9, "host_memory_bytes": 10**12, "busy": 0.5}
    of_unit = [pool for pool in pools for _ in range(slots)]
    first = next(iter(jobs))
    fields = {
        "nodes": [{"pool": pool, **node} for pool in pools],
        "jobs": {
            name: member()
            | {
                "rollout": pinned(of_unit[rollout[0]], 0) | {"units": rollout},
                "train": pinned(of_unit[train[0]], 0, 30.0) | {"units": train},
            }
            for name, (rollout, train) in jobs.items()
        },
        "usd_per_hour": 50.0,
        "timeline": {
            "period_s": 90.0, "repeats": True, "span_s": 90.0,
            "spans": [{"job": first, "phase": "rollout", "units": jobs[first][0], "begin_s": 0.0, "end_s": 60.0}],
        },
        "why": {},
    }  # fmt: skip
    return groups_plan({"g1": fields}).groups["g1"]


def test_rollout_nodes_and_training_nodes_are_a_lock_each():
    group = planned({"a": ([0], [1]), "b": ([0], [1])}, ["roll", "train"])
    assert node_locks("g4", group) == (
        NodeLock("g4-rollout", (0,), ("a", "b"), ()),
        NodeLock("g4-train", (1,), (), ("a", "b")),
    )


def test_a_job_on_two_nodes_joins_the_nodes_of_two_others():
    group = planned({"a": ([0], [2]), "b": ([1], [2]), "c": ([0, 1], [2])}, ["roll", "roll", "train"])
    assert [(lock.name, lock.nodes) for lock in node_locks("g1", group)] == [("g1-rollout", (0, 1)), ("g1-train", (2,))]


def test_jobs_that_share_no_rollout_node_have_locks_of_their_own_with_numbers():
    group = planned({"a": ([0], [2]), "b": ([1], [2])}, ["roll", "roll", "train"])
    assert [(lock.name, lock.rollouts) for lock in node_locks("g1", group)] == [
        ("g1-rollout-1", ("a",)),
        ("g1-rollout-2", ("b",)),
        ("g1-train", ()),
    ]


def test_a_node_where_one_decodes_and_another_trains_is_one_lock_of_both():
    group = planned({"a": ([0], [1]), "b": ([1], [1])}, ["roll", "train"])
    locks = node_locks("g1", group)
    assert [(lock.name, lock.rollouts, lock.trains) for lock in locks] == [
        ("g1-rollout", ("a",), ()),
        ("g1-both", ("b",), ("a", "b")),
    ]
    assert lock_of(locks, "b", "rollout") is lock_of(locks, "b", "train") is locks[1]
    assert locks[1].jobs == ("a", "b")


def test_parts_of_one_node_are_one_lock():
    group = planned({"a": ([0], [2, 3]), "b": ([1], [2, 3])}, ["roll", "train"], slots=2)
    assert [(lock.name, lock.nodes) for lock in node_locks("g1", group)] == [("g1-rollout", (0,)), ("g1-train", (1,))]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, 4), min_size=1), st.sets(st.integers(5, 7), min_size=1)), min_size=1))
def test_every_phase_has_one_lock_with_all_its_nodes_and_no_node_is_in_two(phases):
    jobs = {f"j{i}": (sorted(rollout), sorted(train)) for i, (rollout, train) in enumerate(phases)}
    group = planned(jobs, ["roll"] * 5 + ["train"] * 3)
    locks = node_locks("g1", group)
    covered = [node for lock in locks for node in lock.nodes]
    assert len(covered) == len(set(covered)) and len({lock.name for lock in locks}) == len(locks)
    for name, phase, where in pinned_phases(group):
        assert set(nodes_held(group, where)) <= set(lock_of(locks, name, phase).nodes)
        assert sum(name in lock.jobs_of(phase) for lock in locks) == 1
    assert {name for lock in locks for phase in PHASES for name in lock.jobs_of(phase)} == set(jobs)
