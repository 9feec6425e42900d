"""`rlplan check` at the command line: exit codes, several files, policies, annotations, JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlplan import plans
from rlplan.cli.check import check_command
from rlplan.cli.main import cli
from rlplan.plans.check.annotations import annotation
from rlplan.plans.check.finding import Finding
from rlplan.plans.check.rules import RULES
from rlplan.plans.schema.site_rules import SITE_RULES_NAME, find_site_rules

from ..workloads import write_workload
from .command_line import refused, rlplan
from .test_bad_input import edit


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("once")
    path = write_workload(folder)
    assert not cli.main(["solve", str(path)], standalone_mode=False)
    return folder


@pytest.fixture
def solved(once, tmp_path):
    return Path(shutil.copytree(once, tmp_path / "solved"))


def check(*arguments):
    """Exit code and output, in this process."""
    result = CliRunner().invoke(check_command, [str(a) for a in arguments], standalone_mode=False)
    assert result.exception is None, result.exception
    return result.return_value, result.stdout


def test_what_a_plan_of_groups_runs_on_is_told_with_the_finding_when_asked(solved):
    plain = json.loads(check(solved / "groups.yaml", "--json")[1])["files"][0]
    assert (plain["runs_on"], plain["not_executable"]) == (None, [])
    code, out = check(solved / "groups.yaml", "--executor", "--json")
    (file,) = json.loads(out)["files"]
    assert code == 1 and {finding["rule"] for finding in file["findings"]} == {"not-executable"}
    assert file["not_executable"] == file["findings"] and "each job's own plan" in file["runs_on"]


def test_good_documents_exit_with_0_and_a_line_each(solved):
    result = rlplan("check", *sorted(solved.glob("*.yaml")))
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 4 and all(": ok: " in line for line in lines[:3]) and lines[3] == "no findings in 3 files"


def test_findings_exit_with_1_at_their_lines_and_bad_input_with_2_and_nothing_is_lost(solved):
    line = edit(solved / "workload.yaml", "slo: 1.5", "slo: 1.6")
    code, out = check(solved / "groups.yaml", solved / "workload.yaml")
    assert code == 1 and "[input-changed]" in out and "[bound-changed]" in out
    (solved / "torn.yaml").write_text("rlplan: 1\njob: {name: x")
    code, out = check(solved / "torn.yaml", solved, solved / "nowhere.yaml", solved / "groups.yaml")
    assert code == 2 and "[bound-changed]" in out
    assert f"{solved / 'torn.yaml'}:2: [not-yaml]" in out
    assert f"{solved}: [unreadable] is a folder; a file is needed" in out
    assert f"{solved / 'nowhere.yaml'}: [unreadable] no such file" in out
    assert out.splitlines()[-1] == "5 findings in 4 of 4 files; 3 files could not be read"
    assert line


def test_json_has_every_file_and_its_lines_exist(solved):
    edit(solved / "workload.yaml", "group_cap: 4", "group_cap: 3")
    edit(solved / "groups.yaml", "rlplan: 0.1.0", "rlplan: 8.1.0")
    code, out = check(solved / "groups.yaml", solved / "cluster.yaml", "--json")
    found = json.loads(out)
    assert code == 1 and not found["ok"] and found["findings"] == 3
    assert [(f["file"], f["kind"], f["policy"]) for f in found["files"]] == [
        (str(solved / "groups.yaml"), "groups", None), (str(solved / "cluster.yaml"), "cluster", None),
    ]  # fmt: skip
    assert {f["rule"] for f in found["files"][0]["findings"]} == {"input-changed", "rules-changed", "other-version"}
    lines = (solved / "groups.yaml").read_text().splitlines()
    for finding in found["files"][0]["findings"]:
        assert finding["key"].split(".")[-1] in lines[finding["line"] - 1] and finding["remedy"]


def test_github_annotations_name_file_and_line_from_the_current_folder(solved, monkeypatch):
    line = edit(solved / "groups.yaml", "rlplan: 0.1.0", "rlplan: 8.1.0")
    monkeypatch.chdir(solved.parent)
    for name in (solved / "groups.yaml", "solved/groups.yaml", "./solved/groups.yaml"):
        code, out = check(name, "--format", "github")
        assert code == 1
        assert out.startswith(
            f"::error file=solved/groups.yaml,line={line},title=rlplan other-version::volatile.rlplan: "
        )


def test_annotations_are_escaped_as_github_wants(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    finding = Finding("unknown-key", "a,b:c%.yaml", 3, "k", "50% of\r\nit: bad, or")
    assert annotation(finding) == (
        "::error file=a%2Cb%3Ac%25.yaml,line=3,title=rlplan unknown-key::k: 50%25 of%0D%0Ait: bad, or"
    )


def test_the_nearest_policy_holds_up_to_the_root_of_the_repository(solved):
    (solved.parent / SITE_RULES_NAME).write_text("rlplan_policy: 1\nmax_usd_per_hour: 1.0\n")
    code, out = check(solved / "groups.yaml")
    assert code == 1 and "[policy-usd-per-hour]" in out and f"{SITE_RULES_NAME}:2 has max_usd_per_hour: 1" in out
    (solved / SITE_RULES_NAME).write_text("rlplan_policy: 1\nmax_usd_per_hour: 1000.0\n")
    code, out = check(solved / "groups.yaml")
    assert code == 0 and f"policy {solved / SITE_RULES_NAME}" in out
    assert check(solved / "groups.yaml", "--policy", solved.parent / SITE_RULES_NAME)[0] == 1
    (solved / SITE_RULES_NAME).unlink()
    (solved / ".git").mkdir()
    assert find_site_rules(solved / "groups.yaml") is None
    assert check(solved / "groups.yaml")[0] == 0


def test_a_policy_that_cannot_be_read_is_bad_input_in_one_line(solved):
    refused(rlplan("check", solved / "groups.yaml", "--policy", solved / "none.yaml"), "none.yaml", "no such file")
    refused(rlplan("check", solved / "groups.yaml", "--policy", solved), "is a folder")
    refused(rlplan("check", solved / "groups.yaml", "--policy", solved / "cluster.yaml"), "cluster", "policy is needed")
    (solved / SITE_RULES_NAME).write_text("rlplan_policy: 1\nmax_usd_per_h: 3\n")
    refused(
        rlplan("check", solved / "groups.yaml", "--policy", solved / SITE_RULES_NAME),
        f"{SITE_RULES_NAME}:2",
        "max_usd_per_h",
    )
    code, out = check(solved / "groups.yaml", solved / "cluster.yaml")
    assert (
        code == 2 and out.count("[unknown-key]") == 1 and f"{SITE_RULES_NAME}:2" in out and "groups.yaml: ok" not in out
    )
    assert "groups.yaml: not held against its policy" in out


def test_the_rules_are_listed_with_what_they_find(solved):
    code, out = check("--rules")
    assert code == 0
    listed = [line.split(maxsplit=1) for line in out.splitlines() if line.startswith("  ")]
    assert [name for name, _ in listed] == list(RULES) and all(len(finds) > 20 for _, finds in listed)
    code, out = check("--rules", "--json")
    assert code == 0 and [rule["rule"] for rule in json.loads(out)["rules"]] == list(RULES)
    refused_usage = rlplan("check")
    assert refused_usage.returncode == 2 and "Traceback" not in refused_usage.stderr


@pytest.mark.parametrize("days", ["nan", "inf", "-1", "0"])
def test_an_age_that_is_no_number_of_days_is_refused(days, solved):
    refused(rlplan("check", solved / "groups.yaml", f"--max-age-days={days}"), "--max-age-days")


def test_annotations_count_from_the_workspace_or_the_root_of_the_repository(monkeypatch, tmp_path):
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / "plans").mkdir()
    monkeypatch.chdir(tmp_path / "repo" / "plans")
    finding = Finding("unknown-key", "a.yaml", 3, "k", "bad")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    assert "file=plans/a.yaml," in annotation(finding)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    assert "file=repo/plans/a.yaml," in annotation(finding)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "elsewhere"))
    assert "file=plans/a.yaml," in annotation(finding)


def test_a_policy_that_is_misnamed_or_a_link_to_nowhere_is_not_passed_over(solved):
    (solved / "rlplan.policy.yml").write_text("rlplan_policy: 1\n")
    code, out = check(solved / "groups.yaml")
    assert code == 2 and "a policy is called rlplan.policy.yaml" in out
    (solved / "rlplan.policy.yml").unlink()
    (solved / SITE_RULES_NAME).symlink_to("nowhere.yaml")
    code, out = check(solved / "groups.yaml")
    assert code == 2 and f"{solved / SITE_RULES_NAME}: [unreadable] no such file" in out


def test_an_anchor_is_refused_though_nothing_uses_it_and_an_empty_word_is_no_file(solved):
    (solved / "anchor.yaml").write_text("rlplan: &a 1\n")
    code, out = check(solved / "anchor.yaml", "")
    assert code == 2 and "anchor.yaml:1: [not-yaml] anchors and aliases" in out and "name the file" in out


def test_a_job_that_overrides_its_algorithm_is_told_so_and_that_is_no_finding(example_job):
    code, output = check(example_job)
    assert code == 0
    assert "note: the job overrides its algorithm: clip_high is 0.28 (grpo: 0.2)" in output
    code, output = check(example_job, "--json")
    found = json.loads(output)
    assert code == 0 and found["ok"] and found["findings"] == 0
    assert found["files"][0]["notes"] == ["the job overrides its algorithm: clip_high is 0.28 (grpo: 0.2)"]


@pytest.fixture
def example_job():
    return Path(plans.__file__).parent / "examples" / "math-32b" / "job.yaml"
