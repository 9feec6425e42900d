"""Workloads and plans of groups at the command line: solved, shown, simulated, exported, and refused in one line."""

import itertools
import json

import pytest

from rlplan.api.input_paths import check_target
from rlplan.plans.schema.groups_plan import load_groups_plan
from rlplan.plans.yaml.errors import InputError

from ..workloads import write_workload
from .command_line import data, printed, rlplan, without_volatile
from .solved_folder import edit, harmed


def test_a_solved_workload_keeps_every_bound_and_costs_no_more(groups):
    path = groups / "groups.yaml"
    plan, before = load_groups_plan(path), without_volatile(path)
    summary = data("solve", groups / "workload.yaml")
    assert without_volatile(path) == before and summary["plan"] == str(path)
    assert sorted(name for group in plan.groups.values() for name in group.jobs) == ["big", "small"]
    for group in plan.groups.values():
        for member in group.jobs.values():
            assert member.slowdown.p95 <= member.slowdown.slo
    prices = summary["usd_per_hour"]
    assert prices["plan"] <= prices["algorithm_1"] <= prices["solo_d"] and summary["slo_attained"] == 1.0


def test_an_objective_given_goes_before_that_of_the_rules(groups):
    workload, out = groups / "workload.yaml", groups / "unit.yaml"
    hour, unit = data("solve", workload), data("solve", workload, "--objective", "usd_per_unit", "--out", out)
    assert (hour["objective"], unit["objective"]) == ("usd_per_hour", "usd_per_unit")
    assert unit["usd_per_unit"]["plan"] <= hour["usd_per_unit"]["plan"] * (1 + 1e-5)
    assert hour["usd_per_hour"]["plan"] <= unit["usd_per_hour"]["plan"]
    assert unit["usd_per_unit"]["bound"] <= unit["usd_per_unit"]["plan"] * (1 + 1e-5)
    assert load_groups_plan(out).rules.objective == "usd_per_unit"
    edit(workload, "group_cap: 4", "group_cap: 4, objective: usd_per_unit")
    assert data("solve", workload)["usd_per_unit"] == unit["usd_per_unit"]
    assert data("solve", workload, "--from", out, "--out", groups / "again.yaml")["moves"] == []


def test_the_spans_of_a_timeline_never_overlap(groups):
    out = groups / "t.json"
    assert data("show", groups / "groups.yaml", "--timeline", out)["timeline"] == str(out)
    events = json.loads(out.read_text())["traceEvents"]
    rows = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    by_row = {}
    for event in events:
        if event["ph"] == "X":
            by_row.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert by_row and set(by_row) <= rows
    for spans in by_row.values():
        assert all(end <= begin + 1 for (_, end), (begin, _) in itertools.pairwise(sorted(spans)))


def test_simulating_a_changed_workload_says_who_breaks_the_bound(groups):
    plan, workload = groups / "groups.yaml", groups / "workload.yaml"
    for row in data("simulate", plan)["jobs"].values():
        assert row["keeps"] and row["mean"] == pytest.approx(row["planned_mean"], rel=0.02)
    (groups / "rlplan.policy.yaml").write_text("rlplan_policy: 1\nmax_usd_per_hour: 0.01\n")
    broken = rlplan("simulate", plan, "--json")
    assert broken.returncode == 1 and "finding: " in broken.stderr
    assert [each["rule"] for each in json.loads(broken.stdout)["findings"]] == ["policy-usd-per-hour"]
    (groups / "rlplan.policy.yaml").unlink()
    edit(workload, "slo: 1.9", "slo: 1.0")
    edit(workload, "slo: 1.5", "slo: 1.0")
    text = workload.read_text()
    workload.write_text(text + text[text.index("  small:") :].replace("small", "third"))
    result = rlplan("simulate", plan, "--json")
    assert result.stderr == "note: workload.yaml has changed since the plan was solved\n"
    found = json.loads(result.stdout)
    assert found["not_placed"] == ["third"]
    shared = len({row["group"] for row in found["jobs"].values()}) == 1
    for row in found["jobs"].values():
        assert row["planned_mean"] <= row["planned_p95"] and row["keeps"] != shared


def test_solving_from_the_running_plan_prices_moves(groups):
    workload, running, new = groups / "workload.yaml", groups / "groups.yaml", groups / "new.yaml"
    text = workload.read_text()
    workload.write_text(text + text[text.index("  small:") :].replace("small", "third"))
    said = printed("solve", workload, "--from", running, "--out", new)
    plan = load_groups_plan(new)
    assert plan.inputs.previous is not None and plan.inputs.previous.path == "groups.yaml"
    assert {name for group in plan.groups.values() for name in group.jobs} == {"big", "small", "third"}
    assert f"{len(plan.moves)} move{'s' * (len(plan.moves) != 1)} from groups.yaml" in said
    printed("solve", workload, "--from", running, "--out", groups / "again.yaml")
    assert without_volatile(groups / "again.yaml") == without_volatile(new)


RUNNING = """\
rlplan_workload: 1
cluster: cluster.yaml
rules: {group_cap: 2}
jobs:
"""


def test_moves_that_do_not_pay_are_named_with_their_price(tmp_path):
    write_workload(tmp_path)
    job = (
        "  {}:\n    slo: 1.5\n    cold_s: 10.0\n    remaining_s: 40.0\n    phases:\n"
        "      rollout: {{pool: roll, mean_s: 100.0, resident_bytes: 1000000, warm_s: 0.0}}\n"
        "      train: {{pool: train, mean_s: 100.0, resident_bytes: 1000000, warm_s: 0.0}}\n"
    )
    few, run, new = tmp_path / "few.yaml", tmp_path / "run.yaml", tmp_path / "new.yaml"
    few.write_text(RUNNING + "".join(map(job.format, "abcd")))
    printed("solve", few, "--out", run)
    groups = [sorted(group.jobs) for group in load_groups_plan(run).groups.values()]
    assert sorted(map(len, groups)) == [2, 2]
    few.write_text(RUNNING + "".join(job.format(names[0]) for names in groups))
    text = printed("solve", few, "--from", run, "--out", new)
    spared = load_groups_plan(new).declined
    assert spared is not None and len(spared.jobs) == 1 and spared.reason == "price"
    assert spared.saves_usd_per_hour * spared.hours < 1.25 * spared.price_usd
    [line] = [line for line in text.splitlines() if line.startswith("not made: ")]
    assert "USD once and save 50.00 USD/h: within the" in line and "a quarter more than they cost" in line
    edit(tmp_path / "cluster.yaml", "    nodes: 3\n", "    nodes: 1\n")
    result = rlplan("solve", few, "--from", run, "--no-moves")
    assert result.returncode == 3
    assert "running jobs cannot all stay: they hold 2 nodes of pool 'roll', which has 1" in result.stderr


def test_a_cluster_that_is_too_small_is_told_with_what_would_do(tmp_path):
    path = write_workload(tmp_path)
    harmed(tmp_path, [("workload.yaml", "slo: 1.5", "slo: 1.0"), ("workload.yaml", "slo: 1.9", "slo: 1.0")])
    text = path.read_text()
    big = text[text.index("  big:") : text.index("  small:")]
    path.write_text(text + "".join(big.replace("big", f"big{i}") for i in range(3)))
    result = rlplan("solve", path)
    assert result.returncode == 3, result.stdout + result.stderr
    [line] = result.stderr.splitlines()
    assert line.startswith("no feasible plan: ") and "pool 'train' has 2 nodes and needs at least" in line
    assert "they fit with 5 nodes of pool 'roll' and 5 nodes of pool 'train'" in line
    assert not (tmp_path / "groups.yaml").exists()
    harmed(tmp_path, [("cluster.yaml", f"    nodes: {n}\n", "    nodes: 5\n") for n in (3, 2)])
    printed("solve", path)


def test_a_folder_that_takes_no_files_is_known_before_the_solve(tmp_path, monkeypatch):
    def refuse(**_):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("rlplan.plans.yaml.output_files.tempfile.NamedTemporaryFile", refuse)
    with pytest.raises(InputError, match=r"x\.yaml: cannot be written: its folder takes no new file"):
        check_target(tmp_path / "x.yaml")
