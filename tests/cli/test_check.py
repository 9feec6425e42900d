"""`rlplan check` at the command line: exit codes, several files, policies, annotations, JSON."""

from __future__ import annotations

import json

from rlplan.plans.check.annotations import annotation
from rlplan.plans.check.finding import Finding
from rlplan.plans.check.rules import RULES
from rlplan.plans.schema.site_rules import SITE_RULES_NAME, find_site_rules

from .command_line import data, printed
from .conftest import EXAMPLES
from .solved_folder import edit


def test_findings_are_written_as_sarif_too(groups):
    out = groups / "out.sarif"
    edit(groups / "workload.yaml", "slo: 1.5", "slo: 1.6")
    for _ in range(2):  # it may be overwritten
        found = data("check", groups / "groups.yaml", "--sarif", out, code=1)
    results = json.loads(out.read_text())["runs"][0]["results"]
    assert [each["ruleId"] for each in results] == [f["rule"] for f in found["files"][0]["findings"]] and results


def test_annotations_count_from_workspace_or_repository(monkeypatch, tmp_path):
    evil = Finding("unknown-key", "a,b:c%.yaml", 3, "k", "50% of\r\nit: bad, or")
    assert annotation(evil) == (
        "::error file=a%2Cb%3Ac%25.yaml,line=3,title=rlplan unknown-key::k: 50%25 of%0D%0Ait: bad, or"
    )
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / "plans").mkdir()
    monkeypatch.chdir(tmp_path / "repo" / "plans")
    for workspace, expected in ((None, "plans/a.yaml"), (tmp_path, "repo/plans/a.yaml"), ("/none", "plans/a.yaml")):
        monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
        if workspace:
            monkeypatch.setenv("GITHUB_WORKSPACE", str(workspace))
        for name in ("a.yaml", "./a.yaml", str(tmp_path / "repo" / "plans" / "a.yaml")):
            assert f"file={expected}," in annotation(Finding("unknown-key", name, 3, "k", "bad"))


def test_the_nearest_policy_holds_up_to_the_repositorys_root(tmp_path, groups):
    folder = tmp_path / "below"
    folder.mkdir()
    for name in ("groups.yaml", "cluster.yaml", "workload.yaml"):
        (folder / name).write_bytes((groups / name).read_bytes())
    plan, above, near = folder / "groups.yaml", tmp_path / SITE_RULES_NAME, folder / SITE_RULES_NAME
    above.write_text("rlplan_policy: 1\nmax_usd_per_hour: 1.0\n")
    assert "[policy-usd-per-hour]" in printed("check", plan, code=1)
    near.write_text("rlplan_policy: 1\nmax_usd_per_hour: 1000.0\n")
    assert "no findings" in printed("check", plan)
    printed("check", plan, "--policy", above, code=1)
    near.unlink()
    (folder / ".git").mkdir()
    assert find_site_rules(plan) is None
    printed("check", plan)


def test_a_policy_that_is_a_link_to_nowhere_is_not_passed_over(groups):
    (groups / SITE_RULES_NAME).symlink_to("nowhere.yaml")
    assert f"{SITE_RULES_NAME}: [unreadable] no such file" in printed("check", groups / "groups.yaml", code=2)
    assert "name the file" in printed("check", "", code=2)


def test_a_profile_older_than_allowed_is_a_finding(solved):
    plan = solved / "plan.yaml"
    assert printed("check", plan, "--max-age-days", "1", code=1).count("[profile-old]") == 1
    printed("check", plan, "--max-age-days", "100000")


def test_the_rules_are_listed_with_what_they_find():
    listed = [line.split(maxsplit=1) for line in printed("check", "--rules").splitlines() if line.startswith("  ")]
    assert [name for name, _ in listed] == list(RULES) and all(len(finds) > 20 for _, finds in listed)
    assert [name for name, finds in listed if finds.endswith("(warning)")] == [
        "profile-scaled", "slow-update", "slow-decode", "impossible-order", "model-guessed", "thin-trace",
    ]  # fmt: skip
    assert [rule["rule"] for rule in data("check", "--rules")["rules"]] == list(RULES)


def test_a_setting_beside_the_algorithms_is_a_note_and_no_finding():
    job, said = EXAMPLES / "math-32b" / "job.yaml", "the job overrides its algorithm: clip_high is 0.28 (grpo: 0.2)"
    assert f"note: {said}" in printed("check", job)
    found = data("check", job)
    assert found["ok"] and found["findings"] == 0 and found["files"][0]["notes"] == [said]
