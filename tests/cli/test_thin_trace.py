"""A trace that does not show the lengths that decide a plan: `solve` and `show` say so, and `check` warns."""

import json

import pytest

from rlplan.plans.facts.digest import job_predictions
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.yaml_io import dump

from .command_line import rlplan
from .solved_folder import edit, write_profiled, write_solved


@pytest.fixture
def thin(tmp_path):
    """A plan whose trace, it says, has fewer prompts than tell rare lengths."""
    folder = write_solved(tmp_path)
    path = folder / "plan.yaml"
    edit(path, "prompts: 24", "prompts: 19")
    plan = load_plan(path)
    dump(plan.model_copy(update={"predicted_sha256": job_predictions(plan.predicted)}), path)
    return path


def test_a_thin_trace_is_a_warning_with_which_a_plan_passes(thin):
    result = rlplan("check", thin)
    assert result.returncode == 0
    assert (
        "[thin-trace] warning: predicted.length_basis: the length trace holds 96 samples of 19 prompts" in result.stdout
    )
    assert "1 finding in 1 of 1 file, 1 of them a warning" in result.stdout
    found = json.loads(rlplan("check", thin, "--json").stdout)
    assert (found["findings"], found["warnings"], found["ok"]) == (1, 1, True)
    assert found["files"][0]["findings"][0]["warning"] is True
    assert rlplan("check", thin, "--format", "github").stdout.startswith("::warning file=")


def test_a_warning_hides_no_finding_beside_it(thin):
    edit(thin, "prompts_per_step: 4", "prompts_per_step: 5")
    result = rlplan("check", thin, "--json")
    found = json.loads(result.stdout)
    assert result.returncode != 0 and not found["ok"]


def test_the_catalogue_says_which_rules_warn():
    lines = rlplan("check", "--rules").stdout.splitlines()
    assert [line.split()[0] for line in lines if line.endswith("(warning)")] == ["thin-trace"]


def test_show_has_a_line_on_what_the_trace_shows_and_one_on_why_it_is_thin(thin, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    lines = rlplan("show", thin).stdout.splitlines()
    extrapolated, few = [line for line in lines if line.startswith("trace    ")]
    basis = load_plan(thin).predicted.length_basis
    assert f"{basis.longest_seen_tokens:,} tokens; responses of up to" in extrapolated
    assert "the length trace holds 96 samples of 19 prompts" in few


def test_solve_says_what_is_extrapolated(tmp_path):
    """No response of the trace reaches the job's cap, so longer ones are simulated than were seen."""
    write_profiled(tmp_path)
    result = rlplan("solve", tmp_path, "--mode", "exact")
    assert result.returncode == 0, result.stderr
    basis = load_plan(tmp_path / "plan.yaml").predicted.length_basis
    assert basis.longest_seen_tokens == 62 and basis.extrapolated
    assert "note: the longest response in the length trace has 62 tokens; " in result.stdout
    summary = json.loads(rlplan("solve", tmp_path, "--mode", "exact", "--json").stdout)
    assert summary["length_basis"] == pytest.approx(basis.model_dump(), rel=1e-5) and summary["baseline_nodes"] == 1


def test_responses_that_reach_the_cap_are_told_by_solve_and_by_show(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    write_profiled(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "lengths.jsonl").read_text().splitlines()]
    long = "".join(json.dumps({**row, "tokens": min(64, 2 * row["tokens"])}) + "\n" for row in rows)
    (tmp_path / "long.jsonl").write_text(long)
    result = rlplan("solve", tmp_path, "--trace", tmp_path / "long.jsonl", "--mode", "sync")
    assert result.returncode == 0, result.stderr
    (said,) = [line for line in result.stderr.splitlines() if "reach the cap" in line]
    assert "% of the responses reach the cap of 64 tokens (rollout.max_response_tokens)" in said
    assert "% of the responses reach 64" in rlplan("show", tmp_path / "plan.yaml").stdout
    assert "% of the responses reach the cap" in rlplan("check", tmp_path / "plan.yaml").stdout
    shorter = rlplan("solve", tmp_path, "--mode", "sync")
    assert "reach the cap" not in shorter.stderr
    assert "responses reach" not in rlplan("show", tmp_path / "plan.yaml").stdout
    assert "responses reach" not in rlplan("check", tmp_path / "plan.yaml").stdout
