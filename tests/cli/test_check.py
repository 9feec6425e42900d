"""`rlplan check` at the command line: exit codes, several files, policies, annotations, JSON."""

import json

from rlplan.plans.check.finding import Finding, annotation
from rlplan.plans.check.rules import RULES
from rlplan.plans.schema.site_rules import SITE_RULES_NAME, find_site_rules

from .command_line import data, printed, refused, rlplan
from .conftest import EXAMPLES


def test_rows_that_cannot_be_scored_are_told_in_every_format(solved):
    rows, job = solved / "data.jsonl", solved / "job.yaml"
    good = rows.read_text()
    rows.write_text(
        good + '{"id": "many", "prompt": "p", "answer": ["3", "5"]}\n{"id": "t", "prompt": "p", "answer": 1,}\n'
    )
    found = data("check", job, "--sarif", solved / "out.sarif", code=1)["files"][0]["findings"]
    assert [finding["row"] for finding in found] == [
        {"file": str(rows.resolve()), "line": 65, "id": "many"}, {"file": str(rows.resolve()), "line": 66, "id": None}
    ]  # fmt: skip
    assert (
        found[0]["message"].startswith("data.jsonl:65: the answer is a list of 2")
        and "(id 'many')" in found[0]["message"]
    )
    results = json.loads((solved / "out.sarif").read_text())["runs"][0]["results"]
    for result, line in zip(results, (65, 66), strict=True):
        (row,), (document,) = result["locations"], result["relatedLocations"]
        assert row["physicalLocation"]["region"] == {"startLine": line}
        assert row["physicalLocation"]["artifactLocation"]["uri"].endswith("data.jsonl")
        assert document["physicalLocation"]["artifactLocation"]["uri"].endswith("job.yaml")
    assert "data.jsonl,line=65,title=rlplan input-unreadable::" in printed("check", job, "--format", "github", code=1)
    rows.write_text(good + "".join(f'{{"id": "n{n}", "prompt": "p", "answer": "?"}}\n' for n in range(30)))
    assert len(data("check", job, code=1)["files"][0]["findings"]) == 30
    said = printed("check", job, code=1).splitlines()
    assert sum("[input-unreadable]" in line for line in said) == 20
    assert "10 further rows of the data have faults; --json lists them" in said[20] and "30 findings" in said[22]
    assert said[21].endswith("note: 30 of 94 rows of the data have faults")


def test_planning_goes_on_with_rows_that_no_run_may_have(solved):
    rows = solved / "data.jsonl"
    rows.write_text(rows.read_text() + '{"id": "none", "prompt": "p", "answer": "?"}\n')
    result = rlplan("solve", solved, "--force", "--mode", "sync")
    assert result.returncode == 0 and "(id 'none')" in result.stderr
    assert "1 of the first 65 rows cannot be scored, which execute refuses" in result.stderr
    refused(rlplan("execute", solved / "plan.yaml", "--dry-run"), "data.jsonl:65: the answer '?'")


def test_answers_that_only_math_verify_reads_are_counted(solved, monkeypatch):
    rows = solved / "data.jsonl"
    hard = r"\\int_0^1 f(x) \\, dx = \\oint g"
    rows.write_text(rows.read_text() + f'{{"id": "hard", "prompt": "p", "answer": "{hard}"}}\n')
    monkeypatch.setattr("rlplan.plans.answers.gold_math._installed", lambda: False)
    report = data("check", solved / "job.yaml")["files"][0]
    assert not report["findings"] and "1 of 65 rows have answers that only math-verify reads" in report["notes"][0]


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
        "profile-scaled", "slow-update", "slow-decode", "impossible-order", "forgetful-moments",
        "model-guessed", "decodes-too-slowly", "thin-trace",
    ]  # fmt: skip
    assert [rule["rule"] for rule in data("check", "--rules")["rules"]] == list(RULES)


def test_a_setting_beside_the_algorithms_is_a_note_and_no_finding():
    job, said = EXAMPLES / "math-32b" / "job.yaml", "the job overrides its algorithm: clip_high is 0.28 (grpo: 0.2)"
    assert f"note: {said}" in printed("check", job)
    found = data("check", job)
    assert found["ok"] and found["findings"] == 0 and found["files"][0]["notes"] == [said]
