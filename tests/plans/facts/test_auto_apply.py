"""What of a re-plan may be made without asking: nothing by default, and never more than each limit allows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlplan.plans.check.any_document import read_document
from rlplan.plans.diff.groups_diff import diff_groups
from rlplan.plans.facts.auto_apply import Permission, may_apply
from rlplan.plans.facts.digest import groups_decisions, groups_predictions
from rlplan.plans.schema.groups_plan import GroupsPlan
from rlplan.plans.schema.site_rules import SiteRules, SiteRulesFile
from rlplan.plans.yaml.yaml_io import loads

from ...group_documents import group, groups_plan, member

RUNNING = "7" * 64
POLICY = """\
rlplan_policy: 1
max_usd_per_hour: 500.0
auto_apply:
  most_moves: 2
  most_price_s: 900.0
  most_usd_per_hour_more: 5.0
  least_gain_usd_per_hour: 20.0
  least_hours_between: 2.0
"""


def policy(text: str = POLICY) -> SiteRulesFile:
    from rlplan.plans.yaml.yaml_doc import parse

    return SiteRulesFile("rlplan.policy.yaml", loads(text, SiteRules), parse(text, "rlplan.policy.yaml"))


def move(job: str, start: str, end: str, needed: bool = True, price_s: float = 300.0) -> dict[str, object]:
    return {
        "job": job, "from_group": start, "to_group": end, "price_usd": 12.5, "price_s": price_s, "together": 1,
        "saves_usd_per_hour": 10.0, "needed": needed,
    }  # fmt: skip


def as_solved(plan: GroupsPlan) -> GroupsPlan:
    """The plan with digests of its decisions and predictions."""
    return plan.model_copy(
        update={
            "decisions_sha256": groups_decisions(plan.groups),
            "predicted_sha256": groups_predictions(plan.predicted, plan.groups),
        }
    )


OLD = as_solved(groups_plan({"g1": group(["a", "b", "c"]), "g2": group(["d"])}))


def replanned(groups=None, moves=None, usd_more: float = 0.0, **changes) -> GroupsPlan:
    """A new plan, by default with `c` moved from g1 to g2; it costs this much more than the old one."""
    made = groups_plan(
        groups or {"g1": group(["a", "b"]), "g2": group(["c", "d"])},
        moves=[move("c", "g1", "g2")] if moves is None else moves,
        **changes,
    )
    figures = made.predicted.plan.model_copy(update={"usd_per_hour": OLD.predicted.plan.usd_per_hour + usd_more})
    inputs = made.inputs.model_copy(
        update={"previous": made.inputs.workload.model_copy(update={"path": "old.yaml", "sha256": RUNNING})}
    )
    predicted = made.predicted.model_copy(update={"plan": figures})
    return as_solved(made.model_copy(update={"predicted": predicted, "inputs": inputs}))


def permission(new: GroupsPlan, rules: SiteRulesFile | None = None, hours_since: float | None = None) -> Permission:
    return may_apply(rules or policy(), diff_groups(OLD, new, old_sha256=RUNNING), hours_since)


def test_within_all_limits_it_may_and_the_reason_names_the_policy():
    given = permission(replanned())
    assert given.given and given.reason == "rlplan.policy.yaml:3 allows 1 move of 300 s"


def test_without_a_policy_or_without_its_section_nothing_may():
    diff = diff_groups(OLD, replanned(), old_sha256=RUNNING)
    assert may_apply(None, diff, None) == Permission(False, "no rlplan.policy.yaml allows it")
    without = policy("rlplan_policy: 1\nmax_usd_per_hour: 500.0\n")
    assert may_apply(without, diff, None) == Permission(False, "rlplan.policy.yaml has no auto_apply")


@pytest.mark.parametrize(
    ("new", "hours_since", "words"),
    [
        (
            replanned(
                {"g1": group(["a"]), "g2": group(["b", "c", "d"])},
                [move("c", "g1", "g2"), move("b", "g1", "g2", price_s=601.0)],
            ),
            None,
            "its moves cost 901 s; rlplan.policy.yaml:5 has most_price_s: 900",
        ),
        (
            replanned(
                {"g1": group(["d"]), "g2": group(["a", "b", "c"])},
                [move("a", "g1", "g2"), move("b", "g1", "g2"), move("d", "g2", "g1")],
            ),
            None,
            "it moves 3 jobs; rlplan.policy.yaml:4 has most_moves: 2",
        ),
        (replanned(usd_more=5.1), None, "it costs 5.1 USD an hour more; rlplan.policy.yaml:6"),
        (
            replanned(moves=[move("c", "g1", "g2", needed=False)], usd_more=-19.0),
            None,
            "no bound needs it, and it saves 19.00 USD an hour; rlplan.policy.yaml:7",
        ),
        (replanned(), 1.5, "the last was made 1.50 hours ago; rlplan.policy.yaml:8"),
        (replanned(moves=[]), None, "it moves no job"),
        (replanned({"g1": group(["a", "b"]), "g2": group(["c", "d", "e"])}), None, "e come with it"),
        (replanned({"g1": group(["a", "b"]), "g2": group(["c"])}), None, "d go with it"),
        (
            replanned({"g1": group(["a"]), "g2": group(["b", "c", "d"])}),
            None,
            "b would change nodes without a move",
        ),
        (
            replanned({"g1": group({"a": member(p95=1.6), "b": member()}), "g2": group(["c", "d"])}),
            None,
            "a would break bounds",
        ),
        (replanned(rules={"group_cap": 3}), None, "it changes rules: group_cap"),
    ],
)
def test_each_limit_stands_against_what_is_beyond_it(new, hours_since, words):
    answer = permission(new, hours_since=hours_since)
    assert not answer.given and words in answer.reason, answer.reason


def test_a_gain_that_is_large_enough_may_and_one_that_no_bound_needs_may_not_without_the_key():
    new = replanned(moves=[move("c", "g1", "g2", needed=False)], usd_more=-20.0)
    assert permission(new).given
    bounds_only = policy("\n".join(line for line in POLICY.splitlines() if "least_gain" not in line) + "\n")
    assert "least_gain_usd_per_hour: null" in permission(new, bounds_only).reason
    assert permission(replanned(), bounds_only).given


def test_a_plan_of_other_origin_or_edited_by_hand_may_not():
    new = replanned()
    assert "not solved from the plan that runs" in may_apply(policy(), diff_groups(OLD, new), None).reason
    edited = new.model_copy(update={"decisions_sha256": "3" * 64})
    assert "edited after it was solved" in permission(edited).reason


def test_the_other_keys_of_the_policy_hold_as_well():
    strict = policy(POLICY.replace("max_usd_per_hour: 500.0", "max_usd_per_hour: 10.0"))
    assert "max_usd_per_hour: 10" in permission(replanned(), strict).reason


def test_everything_that_stands_against_it_is_named():
    new = replanned(moves=[move("c", "g1", "g2", price_s=1000.0)], usd_more=6.0)
    assert permission(new, hours_since=0.1).reason.count("rlplan.policy.yaml:") == 3


@pytest.mark.parametrize(
    ("line", "wrong", "words"),
    [
        ("  most_moves: 2", "  most_moves: 0", "most_moves"),
        ("  most_moves: 2", "  most_move: 2", "most_move"),
        ("  most_price_s: 900.0", "  most_price_s: -1.0", "most_price_s"),
        ("  most_moves: 2", "", "most_moves"),
    ],
)
def test_a_policy_with_a_mistake_is_refused_at_its_line(line, wrong, words, tmp_path):
    from rlplan.profiles.document_models import ALL_MODELS

    path = tmp_path / "rlplan.policy.yaml"
    path.write_text(POLICY.replace(line, wrong))
    findings = read_document(str(path), ALL_MODELS).findings
    assert findings and any(words in finding.text or words in finding.key for finding in findings)
    assert all(finding.line in (3, 4, 5) for finding in findings)


def test_a_verdict_depends_on_the_digest_of_the_running_plan():
    diff = diff_groups(OLD, replanned(), old_sha256="8" * 64)
    assert not may_apply(policy(), replace(diff), None).given
