"""Findings for GitHub: workflow commands, and SARIF with every property that code scanning requires."""

import json
from pathlib import Path

import pytest

from rlplan.cli.main import cli
from rlplan.plans.check.finding import Finding, annotation, is_sarif, sarif
from rlplan.plans.yaml.errors import InputError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    return tmp_path


def required(log):
    """The results of a log; asserts that it has the properties that GitHub requires."""
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "rlplan" and driver["version"]
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules) and all(rule["shortDescription"]["text"] for rule in driver["rules"])
    for result in run["results"]:
        assert result["ruleId"] == rules[result["ruleIndex"]] and result["level"] in ("error", "warning")
        place = result["locations"][0]["physicalLocation"]
        assert not place["artifactLocation"]["uri"].startswith(("/", "file:")) and place["region"]["startLine"] >= 1
    return run["results"]


def test_a_finding_is_told_with_rule_level_message_and_relative_place(here, monkeypatch):
    findings = [
        Finding("slo-missed", str(here / "plans" / "a b.yaml"), 7, "predicted.step_s.p95", "is 3 s", "solve again"),
        Finding("thin-trace", "plans/b,1.yaml", 9, "predicted.length_basis", "on 3%\nof all"),
        Finding("slo-missed", "plans/b.yaml", None, "", "is 4 s"),
    ]
    assert [annotation(finding) for finding in findings] == [
        "::error file=plans/a b.yaml,line=7,title=rlplan slo-missed::predicted.step_s.p95: is 3 s; solve again",
        "::warning file=plans/b%2C1.yaml,line=9,title=rlplan thin-trace::predicted.length_basis: on 3%25%0Aof all",
        "::error file=plans/b.yaml,line=1,title=rlplan slo-missed::is 4 s",
    ]
    first, second, third = required(sarif(findings))
    assert (first["ruleId"], first["level"], second["level"]) == ("slo-missed", "error", "warning")
    assert first["message"]["text"] == "predicted.step_s.p95: is 3 s; solve again"
    place = first["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("plans/a%20b.yaml", 7)
    assert third["locations"][0]["physicalLocation"]["region"]["startLine"] == 1 and required(sarif([])) == []
    # Paths begin at the repository's root, or at GitHub's workspace if the file is below it.
    (here / "plans" / ".git").mkdir(parents=True)
    monkeypatch.chdir(here / "plans")
    assert "file=a b.yaml," in annotation(findings[0])
    monkeypatch.setenv("GITHUB_WORKSPACE", str(here))
    assert "file=plans/a b.yaml," in annotation(findings[0])
    monkeypatch.setenv("GITHUB_WORKSPACE", "/nowhere")
    assert "file=a b.yaml," in annotation(findings[0])


def test_check_writes_sarif_beside_what_it_prints(capsys):
    Path("job.yaml").write_text("rlplan_job: 1\nfast: yes\n")
    code = cli.main(["check", "job.yaml", "--json", "--sarif", "out.sarif"], standalone_mode=False)
    printed = json.loads(capsys.readouterr().out)["files"][0]["findings"]
    results = required(json.loads(Path("out.sarif").read_text()))
    assert code == 2 and [(r["ruleId"]) for r in results] == [finding["rule"] for finding in printed]
    Path("notes.txt").write_text("mine")
    assert is_sarif(Path("out.sarif")) and not is_sarif(Path("notes.txt")) and not is_sarif(Path("none"))
    with pytest.raises(InputError, match=r"notes\.txt"):
        cli.main(["check", "job.yaml", "--sarif", "notes.txt"], standalone_mode=False)
    assert cli.main(["check", "job.yaml", "--sarif", "out.sarif"], standalone_mode=False) == 2
