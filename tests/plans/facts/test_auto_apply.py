"""What of a re-plan may be made without asking: nothing by default, and never more than each limit allows."""

import pytest

from rlplan.plans.check.any_document import read_document
from rlplan.plans.diff.auto_apply import Permission, may_apply
from rlplan.plans.diff.groups_diff import diff_groups
from rlplan.plans.facts.digest import groups_decisions, groups_predictions
from rlplan.plans.schema.site_rules import SiteRules, SiteRulesFile
from rlplan.plans.yaml.yaml_doc import parse
from rlplan.plans.yaml.yaml_io import loads
from rlplan.profiles.document_models import ALL_MODELS

from ...group_documents import group, groups_plan, member
from ..test_diff import move

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


def policy(text=POLICY):
    return SiteRulesFile("rlplan.policy.yaml", loads(text, SiteRules), parse(text, "rlplan.policy.yaml"))


def as_solved(plan):
    """The plan with digests of its decisions and predictions."""
    predicted = groups_predictions(plan.predicted, plan.groups)
    digests = {"decisions_sha256": groups_decisions(plan.groups), "predicted_sha256": predicted}
    return plan.model_copy(update=digests)


OLD = as_solved(groups_plan({"g1": group(["a", "b", "c"]), "g2": group(["d"])}))


def replanned(first="ab", second="cd", moves="c", needed=True, price_s=300.0, usd_more=0.0, **changes):
    """A new plan, by default with `c` moved from g1 to g2; it costs this much more than the old one."""
    made = groups_plan(
        {"g1": group(first if isinstance(first, dict) else [*first]), "g2": group([*second])},
        moves=[
            move(job, *(("g2", "g1") if job == "d" else ("g1", "g2"))) | {"needed": needed, "price_s": price_s}
            for job in moves
        ],
        **changes,
    )
    figures = made.predicted.plan.model_copy(update={"usd_per_hour": OLD.predicted.plan.usd_per_hour + usd_more})
    previous = made.inputs.workload.model_copy(update={"path": "old.yaml", "sha256": RUNNING})
    inputs = made.inputs.model_copy(update={"previous": previous})
    predicted = made.predicted.model_copy(update={"plan": figures})
    return as_solved(made.model_copy(update={"predicted": predicted, "inputs": inputs}))


def permission(new, text=POLICY, hours_since=None):
    return may_apply(policy(text), diff_groups(OLD, new, old_sha256=RUNNING), hours_since)


def test_within_all_limits_it_may_and_the_reason_names_the_policy():
    assert permission(replanned()) == Permission(True, "rlplan.policy.yaml:3 allows 1 move of 300 s")
    limits = replanned(first="a", second="bcd", moves="bc", price_s=450.0, usd_more=5.0)
    assert permission(limits, hours_since=2.0).given
    assert permission(replanned(needed=False, usd_more=-20.0)).given


def test_without_a_policy_or_without_its_section_nothing_may():
    diff = diff_groups(OLD, replanned(), old_sha256=RUNNING)
    assert may_apply(None, diff, None) == Permission(False, "no rlplan.policy.yaml allows it")
    without = policy("rlplan_policy: 1\nmax_usd_per_hour: 500.0\n")
    assert may_apply(without, diff, None) == Permission(False, "rlplan.policy.yaml has no auto_apply")


BOUNDS_ONLY = POLICY.replace("  least_gain_usd_per_hour: 20.0\n", "")


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (replanned("a", "bcd", "bc", price_s=450.5),
        "its moves cost 901 s; rlplan.policy.yaml:5 has most_price_s: 900"),
        (replanned("d", "abc", "abd", price_s=1.0), "it moves 3 jobs; rlplan.policy.yaml:4 has most_moves: 2"),
        (replanned(usd_more=5.1), "it costs 5.1 USD an hour more; rlplan.policy.yaml:6"),
        (replanned(needed=False, usd_more=-19.0),
        "no bound needs it, and it saves 19.00 USD an hour; rlplan.policy.yaml:7"),
        (replanned(moves=""), "it moves no job"),
        (replanned(second="cde"), "e come with it"),
        (replanned(second="c"), "d go with it"),
        (replanned("a", "bcd"), "b would change nodes without a move"),
        (replanned({"a": member(p95=1.6), "b": member()}), "a would break bounds"),
        (replanned(rules={"group_cap": 3}), "it changes rules: group_cap"),
        (replanned().model_copy(update={"decisions_sha256": "3" * 64}), "edited after it was solved"),
    ],
)  # fmt: skip
def test_each_limit_stands_against_what_is_beyond_it(new, words):
    answer = permission(new)
    assert not answer.given and words in answer.reason, answer.reason


def test_all_that_stands_against_a_re_plan_is_named():
    assert "the last was made 1.50 hours ago; rlplan.policy.yaml:8" in permission(replanned(), hours_since=1.5).reason
    gain = replanned(needed=False, usd_more=-20.0)
    assert "least_gain_usd_per_hour: null" in permission(gain, BOUNDS_ONLY).reason
    assert permission(replanned(), BOUNDS_ONLY).given
    strict = POLICY.replace("max_usd_per_hour: 500.0", "max_usd_per_hour: 10.0")
    assert "max_usd_per_hour: 10" in permission(replanned(), strict).reason
    assert permission(replanned(price_s=1000.0, usd_more=6.0), hours_since=0.1).reason.count("rlplan.policy.yaml:") == 3
    for sha in (None, "8" * 64):
        answer = may_apply(policy(), diff_groups(OLD, replanned(), old_sha256=sha), None)
        assert not answer.given and "not solved from the plan that runs" in answer.reason


@pytest.mark.parametrize(
    ("line", "wrong", "key"),
    [
        ("  most_moves: 2", "  most_moves: 0", "most_moves"),
        ("  most_moves: 2", "  most_move: 2", "most_move"),
        ("  most_price_s: 900.0", "  most_price_s: -1.0", "most_price_s"),
        ("  most_moves: 2", "", "most_moves"),
    ],
)
def test_a_policy_with_a_mistake_is_refused_at_its_line(line, wrong, key, tmp_path):
    path = tmp_path / "rlplan.policy.yaml"
    path.write_text(POLICY.replace(line, wrong))
    findings = read_document(str(path), ALL_MODELS).findings
    assert any(key in finding.text for finding in findings) and all(finding.line in (3, 4, 5) for finding in findings)
