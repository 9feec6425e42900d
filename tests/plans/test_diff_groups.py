"""The difference of two plans of groups: jobs that arrived, left or moved, whatever the ids of the groups."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.plans.diff.groups_diff import diff_groups
from rlplan.plans.diff.groups_report import groups_report, groups_verdict
from rlplan.plans.diff.job_diff import NO_FILES
from rlplan.plans.diff.markdown import MAX_LINES, markdown
from rlplan.plans.diff.one_plan import one_plan_report
from rlplan.plans.schema.groups_plan import GroupsPlan
from rlplan.plans.yaml.yaml_io import dump, loads

from ..group_documents import group, groups_plan, groups_plans, member
from .strategies import relaxed


def shown(old: GroupsPlan, new: GroupsPlan) -> str:
    return markdown(groups_report(diff_groups(old, new), "groups.yaml"))


def statuses(old: GroupsPlan, new: GroupsPlan) -> dict[str, str]:
    return {job.name: job.status for job in diff_groups(old, new).jobs if job.status != "stays"}


def move(job: str, start: str, end: str) -> dict[str, object]:
    return {
        "job": job, "from_group": start, "to_group": end, "price_usd": 12.5, "price_s": 300.0, "together": 1,
        "saves_usd_per_hour": 10.0, "needed": False,
    }  # fmt: skip


OLD = groups_plan({"g1": group(["a", "b", "c"]), "g2": group(["d", "e"])})


def test_a_group_with_another_name_and_the_same_jobs_is_no_difference() -> None:
    new = groups_plan({"g7": group(["d", "e"]), "g3": group(["a", "b", "c"])})
    diff = diff_groups(OLD, new)
    assert diff.same and statuses(OLD, new) == {}
    assert diff.matched == {"g3": "g1", "g7": "g2"}


def test_a_plan_survives_its_file() -> None:
    assert diff_groups(OLD, loads(dump(OLD), GroupsPlan)).same


def test_jobs_that_arrive_leave_and_move_are_told_apart() -> None:
    new = groups_plan({"g2": group(["d", "c"]), "g5": group(["a", "b", "f"])})
    assert statuses(OLD, new) == {"f": "arrived", "e": "left", "c": "moved"}
    text = shown(OLD, new)
    assert "1 job arrived, 1 job left, 1 job moved" in text
    assert (
        "| `c` | g1 (now g5) -> g2 |" in text
        and "| `f` | arrived in g1 (now g5) |" in text
        and "| `e` | left g2 |" in text
    )
    assert "| g1 (now g5) |" in text and "+f -c; 2 stay" in text
    assert "the price of the moves is unknown" in text


def test_groups_are_matched_so_that_fewest_jobs_move() -> None:
    old = groups_plan({"g1": group(["a", "b", "c"]), "g2": group(["d", "e", "f"])})
    new = groups_plan({"g1": group(["d", "e", "a"]), "g2": group(["b", "c", "f"])})
    assert statuses(old, new) == {"a": "moved", "f": "moved"}


def test_ids_that_were_swapped_are_told_in_every_row() -> None:
    old = groups_plan({"g1": group(["a", "b", "c"]), "g2": group(["d", "e"])})
    new = groups_plan({"g1": group(["d", "e", "a"]), "g2": group({"b": member(p95=1.3), "c": member()})})
    text = shown(old, new)
    assert "| `a` | g1 (now g2) -> g2 (now g1) |" in text and "| `b` | g1 (now g2) |" in text
    assert "g1 -> g1" not in text and "| g2 (now g1) |" in text and "| g1 (now g2) |" in text
    gone = groups_plan({"g2": group(["x", "y"]), "g1": group(["a", "b", "c"])})
    text = shown(old, gone)
    assert "| `d` | left g2 (gone) |" in text and "| `x` | arrived in g2 (new) |" in text, "one id, two groups"


def test_moves_have_a_price_and_begin_from_the_old_plan_or_from_another_one() -> None:
    new = {"g1": group(["a", "b"]), "g2": group(["c", "d", "e"])}
    inputs = OLD.inputs.model_dump() | {"previous": {"path": "old.yaml", "sha256": "a" * 64}}
    plan = groups_plan(new, moves=[move("c", "g1", "g2")], inputs=inputs)
    from_old = diff_groups(OLD, plan, old_sha256="a" * 64)
    assert from_old.moves_from_old and from_old.inputs == ()
    text = markdown(groups_report(from_old, "groups.yaml"))
    assert "| `c` | g1 -> g2, 12.50 USD |" in text and "1 move for 12.50 USD once" in text
    elsewhere = diff_groups(OLD, plan, old_sha256="b" * 64)
    assert elsewhere.moves_from_old is False and [change.name for change in elsewhere.inputs] == ["previous"]
    text = markdown(groups_report(elsewhere, "groups.yaml"))
    assert "starting from another plan" in text and "| `c` | g1 -> g2 |" in text


def test_a_bound_that_breaks_is_a_warning_and_newly_broken_ones_come_first() -> None:
    old = groups_plan({"g1": group({"a": member(), "z": member(p95=1.9)})})
    new = groups_plan({"g1": group({"a": member(p95=1.6), "z": member(p95=1.9)})})
    diff = diff_groups(old, new)
    assert [(job.name, job.breaks_bound, job.newly_broken) for job in diff.jobs] == [
        ("a", True, True),
        ("z", True, False),
    ]
    assert "2 bounds broken (1 newly)" in groups_verdict(diff)
    text = shown(old, new)
    assert text.index("a breaks its bound: p95 1.600x of at most 1.500x") < text.index("z breaks its bound as before")
    assert "1.200x -> 1.600x" in text


def test_more_nodes_of_a_group_are_no_move_of_its_jobs() -> None:
    new = groups_plan({"g1": group(["a", "b", "c"], roll_nodes=2), "g2": group(["d", "e"])})
    assert statuses(OLD, new) == {}
    diff = diff_groups(OLD, new)
    assert diff.effect("nodes.roll").delta == 1 and diff.effect("usd_per_hour").delta == 10
    text = shown(OLD, new)
    assert "1 roll + 1 train -> 2 roll + 1 train" in text and "no job arrived, left or moved" in text


def test_rules_inputs_and_hand_edits_are_named() -> None:
    rules = OLD.rules.model_dump() | {"policy": "first_come"}
    inputs = OLD.inputs.model_dump() | {"workload": {"path": "workload.yaml", "sha256": "b" * 64}}
    new = groups_plan({"g1": group(["a", "b", "c"]), "g2": group(["d", "e"])}, rules=rules, inputs=inputs)
    text = shown(OLD, new)
    assert "| `rules.policy` | `multi_rate` | `first_come` |" in text
    assert "1 input (workload) differs" in text
    assert text.count("edited after it was solved") == 2, "neither carries the digest of its decisions"


def test_two_hundred_jobs_that_all_move_fit_into_forty_lines_and_say_how_many_there_are() -> None:
    jobs = [f"job-{i:03}" for i in range(200)]
    old = groups_plan({f"g{i}": group(jobs[4 * i : 4 * i + 4]) for i in range(50)})
    crossed = {f"g{i}": group({name: member(p95=1.7) for name in jobs[i::50]}) for i in range(50)}
    new = groups_plan(crossed)
    text = shown(old, new)
    assert len(text.splitlines()) <= MAX_LINES
    assert "jobs moved" in text and "… and " in text and "200 bounds broken" in text
    assert json.loads(json.dumps(diff_groups(old, new).as_dict(), allow_nan=False))["same"] is False
    full = markdown(groups_report(diff_groups(old, new), "groups.yaml", full=True), None)
    assert all(f"| `{name}` |" in full for name in jobs)
    assert len(markdown(one_plan_report(new, "groups.yaml", True, NO_FILES)).splitlines()) <= MAX_LINES


@relaxed
@given(groups_plans())
def test_a_plan_is_the_same_as_itself(plan: GroupsPlan) -> None:
    diff = diff_groups(plan, plan)
    assert diff.same and all(job.status in ("stays", "other nodes") for job in diff.jobs)


@settings(relaxed, max_examples=60)
@given(groups_plans(), groups_plans(), st.booleans())
def test_any_two_plans_have_a_difference_of_at_most_forty_lines_and_finite_json(
    a: GroupsPlan, b: GroupsPlan, full: bool
) -> None:
    diff = diff_groups(a, b)
    json.dumps(diff.as_dict(), allow_nan=False)
    text = markdown(groups_report(diff, "groups.yaml", full=full))
    assert len(text.splitlines()) <= MAX_LINES
    assert "USD per hour" in text or diff.same
    assert len(markdown(one_plan_report(a, "groups.yaml", True, NO_FILES)).splitlines()) <= MAX_LINES


@relaxed
@given(groups_plans(), groups_plans())
def test_arrived_left_and_staying_jobs_are_all_jobs_of_both_plans(a: GroupsPlan, b: GroupsPlan) -> None:
    old, new = ({name for each in plan.groups.values() for name in each.jobs} for plan in (a, b))
    found: dict[str, set[str]] = {}
    for job in diff_groups(a, b).jobs:
        found.setdefault(job.status, set()).add(job.name)
    assert found.pop("arrived", set()) == new - old
    assert found.pop("left", set()) == old - new
    assert set().union(*found.values()) == old & new
