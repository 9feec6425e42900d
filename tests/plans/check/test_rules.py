"""Every rule that needs no profile, on documents with one fault each: golden/ has what is found of it."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from rlplan.plans.check import plan_fit, prediction_rules, site_breaches, solved_rules
from rlplan.plans.check.any_document import read_document
from rlplan.plans.check.finding import Fault, located
from rlplan.plans.check.rules import RULES, table
from rlplan.plans.facts.model_shape import ModelShape
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.groups_plan import GroupsPlan
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.plan import Plan
from rlplan.plans.schema.site_rules import SiteRules, SiteRulesFile
from rlplan.plans.schema.workload import Workload
from rlplan.plans.yaml.yaml_doc import parse
from rlplan.plans.yaml.yaml_io import loads

from ...documents import CLUSTER
from ...golden import cases_in, compact, same_as_golden
from ...workloads import LAB, WORKLOAD
from ..conftest import GROUPS, JOB, PLAN_TEXT, plain, with_values

GOLDEN = Path(__file__).with_name("golden")
NOW = datetime(2026, 2, 1, tzinfo=UTC)
MODEL = ModelShape("qwen2", 4, 2, vocab=None, intermediate=None, experts=0)


def documents(values, **texts):
    """Documents by name with other values; a key begins with its document's name."""
    own = {
        name: {k.removeprefix(f"{name}."): v for k, v in values.items() if k.startswith(f"{name}.")} for name in texts
    }
    return {name: with_values(plain(text), own[name]) for name, text in texts.items()}


def policy(values):
    own = documents(values, policy="rlplan_policy: 1")["policy"]
    return SiteRulesFile("p.yaml", SiteRules.model_validate(own), parse(yaml.safe_dump(own, sort_keys=False), "p.yaml"))


def of_job(values):
    made = documents({"job.search.max_over_issue": 3, **values}, plan=PLAN_TEXT, job=JOB, cluster=CLUSTER)
    plan, job = Plan.model_validate(made["plan"]), Job.model_validate(made["job"])
    cluster, limits = Cluster.model_validate(made["cluster"]), policy(values)
    yield from plan_fit.misfits(plan, cluster, job, MODEL)
    yield from plan_fit.resource_faults(plan, cluster, job, MODEL)
    yield from plan_fit.not_in_search(plan, job)
    yield from plan_fit.over_issue_beyond(plan, job)
    yield from plan_fit.pools_too_large(cluster)
    yield from prediction_rules.thin_trace(plan)
    yield from prediction_rules.length_faults(plan, job)
    yield from prediction_rules.bias_over_budget(plan)
    yield from prediction_rules.gap_faults(plan)
    yield from prediction_rules.price_faults(plan, cluster, None)
    yield from solved_rules.solved_at_unlikely(plan, NOW)
    yield from site_breaches.plan_breaches(plan, limits, job)
    yield from site_breaches.unknown_pools(limits, cluster, ("inputs", "cluster"))


G, BIG, SMALL = "plan.groups.g1.", "plan.groups.g1.jobs.big.", "plan.groups.g1.jobs.small."
FITS = {
    "plan.rules.group_cap": 4,
    "workload.rules.tail_keep": 0.5,
    SMALL + "slowdown.slo": 1.9,
    SMALL + "pace_s": 190.0,
}
FITS |= {f"{G}nodes.{index}.host_memory_bytes": 10**12 for index in (0, 1)}


def of_groups(values):
    made = documents({**FITS, **values}, plan=GROUPS, workload=WORKLOAD, cluster=LAB)
    plan, cluster = GroupsPlan.model_validate(made["plan"]), Cluster.model_validate(made["cluster"])
    yield from prediction_rules.self_contradictions(plan)
    yield from plan_fit.against_cluster(plan, cluster)
    yield from plan_fit.against_workload(plan, Workload.model_validate(made["workload"]))
    yield from site_breaches.group_breaches(plan, policy(values))


@pytest.mark.parametrize("faults", [of_job, of_groups])
def test_a_fault_is_found_and_what_is_near_it_is_none(faults):
    file, lines = GOLDEN / f"{faults.__name__}.txt", []
    for values in cases_in(file):
        lines += [compact(values), *(f"  {fault.rule} {fault.key}: {fault.text}" for fault in faults(values))]
    assert len(lines) > 80
    same_as_golden(lines, file)


TEXTS = {
    "": None, "nowhere": None, "folder": None, "blank": "\n", "bytes": b"rlplan: 1\n\xff\n", "list": "- 1\n",
    "text": "a: 1\n",
    "future": "a: 1\nrlplan_era: 2\n", "torn": "rlplan_job: 1\nname: {a\n", "twice": "rlplan_job: 1\nrlplan_job: 1\n",
    "job": JOB.replace("retries: 2", "retrys: 2").replace("workers: 1", "workers: -1").replace("deadline_s: 2.0",
    "deadline_s: x"),
    "list of job": JOB.replace("[1, 2]", "[]").replace("keyhunt", "key hunt").replace("grpo", "gpro"),
    "mode": PLAN_TEXT.replace("cutoff_tokens: 288", "cutoff_tokens: null"),
    "groups": GROUPS.replace("moves:\n", f"  g2:\n{GROUPS[GROUPS.index('    nodes:'):GROUPS.index('moves:')]}moves:\n"),
    "groups of none": GROUPS.replace("group_cap: 5", "group_cap: 0").replace("moves:\n",
    "  g2: {jobs: {big: {}}}\nmoves:\n"),
}  # fmt: skip


def test_what_is_no_sound_document_is_told_with_rule_line_and_remedy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    lines = []
    for name, text in TEXTS.items():
        if text is not None:
            Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
        found = read_document(name)
        assert found.value is None and found.path == name
        lines += [f"{name}: {found.mark}", *(f"  {f.rule} {f.line} {f.text} {f.bad_input}" for f in found.findings)]
    same_as_golden(lines, GOLDEN / "documents.txt")
    Path("sound").write_text(JOB)
    found = read_document("sound")
    assert found.mark == "rlplan_job" and isinstance(found.value, Job) and not found.findings
    assert found.document is not None and found.document.line_of(("name",)) == 2


@pytest.mark.parametrize(
    ("solved_by", "installed", "words"),
    [
        ("0.1.0", "0.1.0", None), ("0.1.2", "0.1.10", None), ("0.1.10", "0.1.2", "newer than the 0.1.2 that"),
        ("0.2.0", "0.10.0", "older than the 0.10.0 that"), ("2.0.0", "10.0.0", "older"), ("1.0.0", "0.9.9", "newer"),
        ("0.01.0", "0.1.0", None),
    ],
)  # fmt: skip
def test_a_plan_of_another_version_is_told(solved_by, installed, words):
    plan = Plan.model_validate(documents({"plan.volatile.rlplan": solved_by}, plan=PLAN_TEXT)["plan"])
    found = [fault.text for fault in solved_rules.other_version(plan, installed)]
    assert [words in text for text in found] == ([True] if words else [])
    assert all(("install that version" in text) == ("newer" in text) for text in found)


@pytest.mark.parametrize(("text", "model"), [(PLAN_TEXT, Plan), (GROUPS, GroupsPlan)])
def test_an_edit_after_the_solve_is_found_by_digests(text, model):
    plan = loads(text, model)
    whole = {"decisions_sha256": solved_rules.decisions_of(plan), "predicted_sha256": solved_rules.predictions_of(plan)}
    plan = plan.model_copy(update=whole)
    assert [*solved_rules.decisions_edited(plan), *solved_rules.predictions_edited(plan)] == []
    edited = plan.model_copy(update=dict.fromkeys(whole, "0" * 64))
    found = [*solved_rules.decisions_edited(edited), *solved_rules.predictions_edited(edited)]
    assert [fault.key for fault in found] == ["decisions_sha256", "predicted_sha256"]
    assert ("rlplan refresh" in found[0].text) == (model is Plan)
    (found,) = solved_rules.predictions_edited(plan.model_copy(update={"predicted_sha256": None}))
    assert found.key == "predicted" and "no digest" in found.text


def test_a_fault_has_the_line_of_its_key_or_parent():
    document = parse("a:\n  b: 1\n", "x")
    faults = [Fault("slo-missed", ("a", "b"), "is\n 1", "ask"), Fault("slo-missed", ("a", "c", 2), "lacks")]
    found = located(faults, "x.yaml", document)
    assert [(f.line, f.key, f.message, f.remedy) for f in found] == [
        (2, "a.b", "is 1", "ask"),
        (1, "a.c.2", "lacks", ""),
    ]


def test_the_catalogue_is_told_by_family_and_a_policy_waives_three_rules():
    lines = table().splitlines()
    assert lines[0] == "schema (bad input: exit code 2)" and len(lines) == len(RULES) + 6
    assert [line.split()[0] for line in lines if line.endswith(" (warning)")] == [
        "profile-scaled", "slow-update", "slow-decode", "impossible-order", "forgetful-moments", "model-guessed",
        "decodes-too-slowly", "thin-trace",
    ]  # fmt: skip
    assert RULES["unknown-key"].bad_input and not RULES["slo-missed"].bad_input
    for key, rule in (("allow_edited", "decisions-edited"), ("allow_other_versions", "other-version")):
        allowed = SiteRules.model_validate({"rlplan_policy": 1, key: True})
        assert [site_breaches.waived(name, allowed) for name in (rule, "bound-broken")] == [True, False]
    lenient = SiteRules.model_validate({"rlplan_policy": 1, "min_slo_attained": 0.5})
    assert site_breaches.waived("bound-broken", lenient) and not site_breaches.waived("bound-broken", None)
