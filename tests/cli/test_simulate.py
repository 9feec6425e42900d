"""`rlplan simulate` as a user meets it; what it refuses is in test_refusals.py."""

import json

import pytest

from .command_line import data, printed, rlplan
from .solved_folder import edit, listing


def test_a_plan_is_simulated_beside_what_it_predicts(solved):
    before = listing(solved)
    result = rlplan("simulate", solved / "plan.yaml", "--steps", 40, "--json")
    assert result.returncode == 0 and result.stderr == ""
    found = json.loads(result.stdout)
    assert found["all"]["steps"] == 40 and found["long"] is None and found["findings"] == []
    assert found["all"]["step_s"]["mean"] == pytest.approx(found["predicted"]["step_s"]["mean"], rel=0.2)
    assert found["all"]["step_s"]["p50"] <= found["all"]["step_s"]["p95"]
    phases = sum(phase["mean"] for phase in found["all"]["phases_s"].values())
    assert phases == pytest.approx(found["all"]["step_s"]["mean"])
    assert 0 < found["all"]["bubble"] < 1
    assert found["all"]["tokens"]["wasted"] == 0 and found["length_ratio"] == pytest.approx(1.0, abs=0.2)
    assert found["cut_share"] == pytest.approx(found["predicted"]["cut_share"], abs=0.01)
    assert found["accelerator_s_per_1k_samples"] == pytest.approx(2000 * found["seconds_per_sample"])
    assert found["epochs"] == 3, "of 16 steps: the job has 64 prompts"
    assert data("simulate", solved / "plan.yaml", "--steps", 40) == found and listing(solved) == before


def test_a_what_if_is_of_the_value_that_was_set(solved):
    simulate = ("simulate", solved / "plan.yaml", "--steps", 20)
    plain = data(*simulate)
    slow = data(*simulate, "--set", "profile.rollout.0.step_s=0.02")
    assert slow["all"]["phases_s"]["rollout"]["mean"] > 5 * plain["all"]["phases_s"]["rollout"]["mean"]
    assert slow["all"]["phases_s"]["train"] == plain["all"]["phases_s"]["train"]
    assert slow["set"] == ["profile.rollout.0.step_s=0.02"]
    more = rlplan(*simulate, "--set", "job.rollout.samples_per_prompt=4", "--json")
    assert json.loads(more.stdout)["all"]["samples"] == 2 * plain["all"]["samples"]
    assert "note: plan.job.rounds.short.issue.samples follows: 2 -> 4" in more.stderr
    capped = data(*simulate, "--set", "job.rollout.max_response_tokens=32")
    assert plain["cut_share"] < 0.01 < 0.3 < capped["cut_share"] < 0.7
    assert "of the trained samples cut at the cap (plan: " in printed(*simulate)
    assert data(*simulate, "--prompts", "8")["epochs"] == 10
    assert data(*simulate, "--seed", "1") != plain
    longer = data(*simulate, "--drift", "0.05")
    assert longer["all"]["tokens"]["decoded"] > plain["all"]["tokens"]["decoded"]


def test_lengths_and_costs_of_another_file_take_their_place(solved):
    simulate = ("simulate", solved / "plan.yaml", "--steps", 20)
    rows = [json.loads(line) for line in (solved / "lengths.jsonl").read_text().splitlines()]
    short = "".join(json.dumps({**row, "tokens": max(1, row["tokens"] // 4)}) + "\n" for row in rows)
    (solved / "short.jsonl").write_text(short)
    (solved / "slow.yaml").write_text(
        (solved / "profile.yaml").read_text().replace("step_s: 0.002\n", "step_s: 0.02\n")
    )
    plain = data(*simulate)
    fewer = data(*simulate, "--trace", solved / "short.jsonl")
    assert fewer["all"]["tokens"]["decoded"] < 0.4 * plain["all"]["tokens"]["decoded"]
    slow = data(*simulate, "--profile", solved / "slow.yaml")
    assert slow["all"]["phases_s"]["rollout"]["mean"] > 5 * plain["all"]["phases_s"]["rollout"]["mean"]


def test_a_stale_plan_is_simulated_with_a_warning(solved):
    edit(solved / "job.yaml", "learning_rate: 0.001", "learning_rate: 0.002")
    result = rlplan("simulate", solved / "plan.yaml", "--steps", 5)
    [warning] = result.stderr.splitlines()
    assert result.returncode == 0 and warning.startswith("warning: ") and "job.yaml" in warning


def test_a_timeline_is_chrome_trace_json(solved):
    out = solved / "t.json"
    assert data("simulate", solved / "plan.yaml", "--steps", 20, "--timeline", out)["timeline"] == str(out)
    events = json.loads(out.read_text())["traceEvents"]
    assert sum(e["ph"] == "X" and e["name"].startswith("short step") for e in events) == 12
    text = printed("simulate", solved / "plan.yaml", "--steps", 20, "--timeline", out)
    assert text.endswith(f"timeline: {out}; open it at ui.perfetto.dev\n")


def test_a_plan_that_predicts_is_simulated_with_a_history(solved):
    printed("solve", solved, "--mode", "predict")
    result = rlplan("simulate", solved / "plan.yaml", "--steps", 5)
    assert "note: simulated from an epoch on that has a history" in result.stderr and result.returncode == 0


POLICIES = {
    "max_usd_per_hour: 0.01": "policy-usd-per-hour",
    "forbidden_modes: [MODE]": "policy-mode",
    "max_error: 0.0": "policy-error",
    "max_step_p95_s: 0.001": "policy-step-p95",
}


@pytest.mark.parametrize("rule", POLICIES)
def test_a_breach_of_policy_is_a_finding_whatever_is_set(solved, rule):
    mode = data("show", solved / "plan.yaml")["mode"]
    (solved / "rlplan.policy.yaml").write_text(f"rlplan_policy: 1\n{rule.replace('MODE', mode)}\n")
    checked = data("check", solved / "plan.yaml", code=1)["files"][0]["findings"]
    for more in ((), ("--set", "plan.job.reward.deadline_s=3"), ("--trace", solved / "lengths.jsonl")):
        result = rlplan("simulate", solved / "plan.yaml", "--steps", 20, *more, "--json")
        found = json.loads(result.stdout)["findings"]
        assert result.returncode == 1 and f"finding: {solved / 'plan.yaml'}:" in result.stderr
        assert [each["rule"] for each in found] == [POLICIES[rule]]
        assert (found[0]["line"], found[0]["key"]) == (checked[0]["line"], checked[0]["key"])


def test_a_policy_judges_what_a_changed_plan_takes(solved):
    p95 = data("show", solved / "plan.yaml")["predicted"]["step_s"]["p95"]
    (solved / "rlplan.policy.yaml").write_text(f"rlplan_policy: 1\nmax_step_p95_s: {2 * p95}\nmax_cut_share: 0.1\n")
    simulate = ("simulate", solved / "plan.yaml", "--steps", 100)
    assert data(*simulate)["findings"] == data(*simulate, "--set", "plan.job.reward.deadline_s=3")["findings"] == []
    slow = data(*simulate, "--set", "profile.rollout.0.step_s=0.05", code=1)
    assert [each["rule"] for each in slow["findings"]] == ["policy-step-p95"]
    assert f"is {slow['all']['step_s']['p95']:.6g} s" in slow["findings"][0]["message"]
    assert data(*simulate[:2], "--steps", 20, "--set", "profile.rollout.0.step_s=0.05")["findings"] == [], "too few"
    capped = data(*simulate, "--set", "job.rollout.max_response_tokens=32", code=1)
    assert [each["rule"] for each in capped["findings"]] == ["policy-cut"]


def test_a_policy_that_cannot_be_read_is_a_warning(solved):
    (solved / "rlplan.policy.yaml").write_text("rlplan_policy: 1\nmax_bais: 0.1\n")
    for more in ((), ("--set", "plan.job.reward.deadline_s=3")):
        result = rlplan("simulate", solved / "plan.yaml", "--steps", 2, *more)
        assert result.returncode == 0 and "warning: " in result.stderr and "'max_bais'" in result.stderr


def test_each_kind_of_round_stands_beside_its_planned_means(solved, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    printed("solve", solved, "--mode", "exact")
    plan = data("show", solved / "plan.yaml")["predicted"]
    text = printed("simulate", solved / "plan.yaml", "--steps", 60, "--switch-s", "0.5")
    rows = [line.split("│")[1:-1] for line in text.splitlines() if line.startswith("│")]
    assert all(cell.strip() for row in rows for cell in row), "no cell is blank"
    found = data("simulate", solved / "plan.yaml", "--steps", 60)["predicted"]
    for kind in ("short", "long"):
        planned = plan["rounds"][kind]
        means = {name: planned[f"{name}_s"]["mean"] for name in ("rollout", "reward_exposed", "train")}
        assert found[kind]["phases_s"] == {**means, "sync": planned["sync_s"], "switch": 0.0}
        assert sum(found[kind]["phases_s"].values()) == pytest.approx(planned["step_s"]["mean"], rel=1e-3)
