"""Findings as SARIF hold every property that GitHub code scanning requires."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlplan.cli.main import cli
from rlplan.plans.check.annotations import sarif
from rlplan.plans.check.finding import Finding
from rlplan.plans.check.rules import RULES
from rlplan.plans.yaml.errors import InputError


def required(log: dict) -> list[dict]:
    """The results of a log; asserts that it has the properties that GitHub requires."""
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "rlplan" and driver["version"]
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules) and all(rule["shortDescription"]["text"] for rule in driver["rules"])
    for result in run["results"]:
        assert result["ruleId"] == rules[result["ruleIndex"]] and result["level"] in ("error", "warning")
        assert result["message"]["text"]
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert not place["artifactLocation"]["uri"].startswith(("/", "file:")) and place["region"]["startLine"] >= 1
    return run["results"]


def test_sarif_names_rules_levels_messages_and_relative_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    findings = [
        Finding("slo-missed", str(tmp_path / "plans" / "a b.yaml"), 7, "predicted.step_s.p95", "is 3 s", "solve again"),
        Finding("thin-trace", "plans/b.yaml", 9, "predicted.length_basis", "rests on 3 prompts"),
        Finding("slo-missed", "plans/b.yaml", None, "", "is 4 s"),
    ]
    first, second, third = required(sarif(findings))
    assert (first["ruleId"], first["level"], second["level"]) == ("slo-missed", "error", "warning")
    assert first["message"]["text"] == "predicted.step_s.p95: is 3 s; solve again"
    place = first["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("plans/a%20b.yaml", 7)
    assert third["locations"][0]["physicalLocation"]["region"]["startLine"] == 1
    assert required(sarif([])) == [] and RULES["slo-missed"].finds


def test_check_writes_sarif_beside_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    Path("job.yaml").write_text("rlplan_job: 1\nfast: yes\n")
    code = cli.main(["check", "job.yaml", "--json", "--sarif", "out.sarif"], standalone_mode=False)
    printed = json.loads(capsys.readouterr().out)["files"][0]["findings"]
    results = required(json.loads(Path("out.sarif").read_text()))
    assert code == 2 and [(r["ruleId"]) for r in results] == [finding["rule"] for finding in printed]
    Path("notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        cli.main(["check", "job.yaml", "--sarif", "notes.txt"], standalone_mode=False)
    assert cli.main(["check", "job.yaml", "--sarif", "out.sarif"], standalone_mode=False) == 2
