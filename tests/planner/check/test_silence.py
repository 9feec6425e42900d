"""What `solve` wrote has no finding: of every mode, objective and kind of plan."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ...cli.solved_folder import write_profiled
from .conftest import gpus, run
from .edits import Checker

EXAMPLES = Path(__file__).resolve().parents[3] / "plans" / "examples"
EXAMPLE = EXAMPLES / "groups"


def check(path):
    return Checker(datetime.now(UTC)).check_file(str(path))


def told(report):
    return [f"{finding.rule}: {finding.text}" for finding in report.findings]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    folders = {}
    for name, make in (("laptop", write_profiled), ("gpus", gpus)):
        folders[name] = tmp_path_factory.mktemp(name)
        make(folders[name])
    return folders


@pytest.mark.parametrize(
    ("which", "mode"), [*(("laptop", mode) for mode in ("sync", "race", "defer", "exact", "predict")), ("gpus", "race")]
)
def test_plans_of_every_mode_have_no_finding(jobs, which, mode):
    folder, out = jobs[which], jobs[which] / f"{mode}.yaml"
    run("solve", folder, "--mode", mode, "--trace", folder / "lengths.jsonl", "-o", out)
    assert told(check(out)) == []


@pytest.mark.parametrize("which", ["laptop", "gpus"])
def test_a_plan_for_the_fewest_dollars_has_no_finding(jobs, which):
    folder, out = jobs[which], jobs[which] / "usd.yaml"
    run("solve", folder, "--objective", "usd", "--trace", folder / "lengths.jsonl", "-o", out)
    assert told(check(out)) == []


@pytest.mark.parametrize("objective", ["usd_per_hour", "usd_per_unit"])
def test_plans_of_groups_have_no_finding_nor_has_their_re_solve(objective, tmp_path):
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "groups"))
    out, again = folder / "plan.yaml", folder / "again.yaml"
    run("solve", folder / "workload.yaml", "--objective", objective, "-o", out)
    run("solve", folder / "workload.yaml", "--objective", objective, "--from", out, "-o", again)
    assert told(check(out)) == [] and told(check(again)) == []


def test_the_documents_that_plans_are_solved_from_have_no_finding(solved):
    for which in ("laptop", "gpus", "groups"):
        for file in sorted(solved(which).glob("*.yaml")):
            assert told(check(file)) == [], file.name


@pytest.mark.parametrize(
    "file", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda file: file.relative_to(EXAMPLES).as_posix()
)
def test_the_shipped_examples_have_no_finding(file):
    assert told(check(file)) == []
