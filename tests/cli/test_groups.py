"""Workloads and plans of groups at the command line: solved, shown, simulated, and refused in one line."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from rlplan.cli.shared.paths import check_target
from rlplan.plans.phrases.numbers import count
from rlplan.plans.schema.groups_plan import load_groups_plan
from rlplan.plans.yaml.errors import InputError

from ..workloads import edit, write_workload
from .command_line import refused, rlplan

EXAMPLE = Path(__file__).resolve().parents[2] / "plans" / "examples" / "groups" / "workload.yaml"


def without_volatile(path: Path) -> str:
    text = path.read_text()
    return text[: text.index("\nvolatile:")]


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """A folder with a workload and its plan; tests that change something copy it."""
    folder = tmp_path_factory.mktemp("solved")
    path = write_workload(folder)
    result = rlplan("solve", path, "--json")
    assert result.returncode == 0, result.stderr
    return folder, json.loads(result.stdout)


def test_solving_a_workload_writes_a_plan_beside_it_that_keeps_every_bound_and_costs_no_more_than_the_baselines(solved):
    folder, summary = solved
    plan = load_groups_plan(folder / "groups.yaml")
    assert sorted(name for group in plan.groups.values() for name in group.jobs) == ["big", "small"]
    for group in plan.groups.values():
        for member in group.jobs.values():
            assert member.slowdown.p95 <= member.slowdown.slo
    prices = summary["usd_per_hour"]
    assert prices["plan"] <= prices["algorithm_1"] <= prices["solo_d"]
    assert summary["slo_attained"] == 1.0


def test_the_shipped_example_solves_and_solves_again_to_the_same_bytes(tmp_path):
    for name in ("cluster.yaml", "workload.yaml"):
        (tmp_path / name).write_text((EXAMPLE.parent / name).read_text())
    for out in ("a.yaml", "b.yaml"):
        result = rlplan("solve", tmp_path / "workload.yaml", "--out", tmp_path / out)
        assert result.returncode == 0, result.stderr
    assert without_volatile(tmp_path / "a.yaml") == without_volatile(tmp_path / "b.yaml")
    plan = load_groups_plan(tmp_path / "a.yaml")
    assert sum(len(group.jobs) for group in plan.groups.values()) == 5
    assert plan.predicted.plan.slo_attained == 1.0
    assert plan.predicted.plan.usd_per_hour < plan.predicted.solo_d.usd_per_hour
    assert plan.predicted.plan.fits and not plan.predicted.solo_d.fits, "alone they take 6 h800, and there are 4"
    assert "does not fit the cluster" in result.stdout and "342.24" in result.stdout
    shown = rlplan("show", tmp_path / "a.yaml")
    for name in ("agent-4b", "code-14b", "math-32b", "agent-8b", "math-7b"):
        [row] = [line for line in shown.stdout.splitlines() if line[1:2] == "/" and line[4:].startswith(f"{name} ")]
        assert len(row.rstrip()) <= 80 and row.count("x") >= 4


def test_the_objective_of_the_command_line_goes_before_that_of_the_rules_and_both_prices_are_stated(solved, tmp_path):
    folder, hour = solved
    for name in ("cluster.yaml", "workload.yaml", "groups.yaml"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    path, out = tmp_path / "workload.yaml", tmp_path / "unit.yaml"
    result = rlplan("solve", path, "--objective", "usd_per_unit", "--out", out, "--json")
    assert result.returncode == 0, result.stderr
    unit = json.loads(result.stdout)
    assert (hour["objective"], unit["objective"]) == ("usd_per_hour", "usd_per_unit")
    assert unit["usd_per_unit"]["plan"] <= hour["usd_per_unit"]["plan"] * (1 + 1e-5)
    assert hour["usd_per_hour"]["plan"] <= unit["usd_per_hour"]["plan"]
    assert unit["usd_per_unit"]["bound"] <= unit["usd_per_unit"]["plan"] * (1 + 1e-5)
    assert load_groups_plan(out).rules.objective == "usd_per_unit"
    edit(path, "group_cap: 4", "group_cap: 4, objective: usd_per_unit")
    result = rlplan("solve", path, "--json")
    assert json.loads(result.stdout)["usd_per_unit"] == unit["usd_per_unit"]
    again = rlplan("solve", path, "--from", out, "--out", tmp_path / "again.yaml", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["moves"] == []


@pytest.mark.parametrize(("document", "objective"), [("workload.yaml", "seconds"), ("job.yaml", "usd_per_unit")])
def test_an_objective_of_the_other_kind_of_document_is_refused(solved, tmp_path, document, objective):
    folder, _ = solved
    (tmp_path / "workload.yaml").write_bytes((folder / "workload.yaml").read_bytes())
    (tmp_path / "job.yaml").write_text("rlplan_job: 1\n")
    refused(rlplan("solve", tmp_path / document, "--objective", objective), f"--objective {objective} is for a")


def test_show_draws_each_group_with_its_jobs_and_says_why(solved):
    folder, summary = solved
    result = rlplan("show", folder / "groups.yaml")
    assert result.returncode == 0, result.stderr
    for word in (*summary["groups"], "big", "small", "slowdown", "USD/h", "nearest to its bound"):
        assert word in result.stdout


def test_show_writes_a_timeline_whose_spans_lie_on_named_rows_and_never_overlap(solved, tmp_path):
    folder, _ = solved
    out = tmp_path / "t.json"
    result = rlplan("show", folder / "groups.yaml", "--timeline", out, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["timeline"] == str(out)
    events = json.loads(out.read_text())["traceEvents"]
    rows = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    by_row: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            by_row.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert set(by_row) <= rows and by_row
    for spans in by_row.values():
        spans.sort()
        assert all(end <= begin + 1 for (_, end), (begin, _) in itertools.pairwise(spans))


def test_simulating_a_plan_with_changed_phases_says_who_breaks_the_bound(solved, tmp_path):
    folder, _ = solved
    for file in folder.glob("*.yaml"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    result = rlplan("simulate", tmp_path / "groups.yaml", "--json")
    assert result.returncode == 0, result.stderr
    assert all(row["keeps"] for row in json.loads(result.stdout)["jobs"].values())
    edit(tmp_path / "workload.yaml", "slo: 1.9", "slo: 1.0")
    edit(tmp_path / "workload.yaml", "slo: 1.5", "slo: 1.0")
    result = rlplan("simulate", tmp_path / "groups.yaml", "--json")
    assert "workload.yaml has changed" in result.stderr
    jobs = json.loads(result.stdout)["jobs"]
    assert all(row["planned_mean"] <= row["planned_p95"] for row in jobs.values())
    shared = len({row["group"] for row in jobs.values()}) == 1
    assert all(row["keeps"] for row in jobs.values()) != shared


def test_solving_from_the_running_plan_keeps_jobs_in_place_or_prices_their_moves(solved, tmp_path):
    folder, _ = solved
    for file in folder.glob("*.yaml"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "workload.yaml"
    text = path.read_text()
    path.write_text(text + text[text.index("  small:") :].replace("small", "third"))
    result = rlplan("solve", path, "--from", tmp_path / "groups.yaml", "--out", tmp_path / "new.yaml")
    assert result.returncode == 0, result.stderr
    plan = load_groups_plan(tmp_path / "new.yaml")
    assert plan.inputs.previous is not None and plan.inputs.previous.path == "groups.yaml"
    assert {name for group in plan.groups.values() for name in group.jobs} == {"big", "small", "third"}
    assert f"{count(len(plan.moves), 'move')} from groups.yaml" in result.stdout
    again = rlplan("solve", path, "--from", tmp_path / "groups.yaml", "--out", tmp_path / "again.yaml")
    assert again.returncode == 0, again.stderr
    assert without_volatile(tmp_path / "again.yaml") == without_volatile(tmp_path / "new.yaml")
    refused(rlplan("solve", path, "--from", path), "workload.yaml:1:", "rlplan_groups")
    refused(rlplan("solve", path, "--from", tmp_path / "groups.yaml", "--out", tmp_path / "groups.yaml"), "is an input")


def test_a_plan_of_groups_whose_jobs_have_no_plan_of_their_own_is_not_executed(solved):
    groups = solved[0] / "groups.yaml"
    refused(rlplan("execute", groups, "--out", solved[0] / "no"), "groups.yaml:", "has no plan of its own", "source")
    refused(rlplan("execute", groups, "--group", "g9"), "groups.yaml", "no such group", "g1")
    refused(rlplan("execute", groups, groups), "groups.yaml", "executed alone")
    refused(rlplan("execute", groups, "--show-placement"), "groups.yaml", "--show-placement")
    assert not (solved[0] / "no").exists()


FAULTS = {
    "bound below one": ("workload.yaml", "slo: 1.5", "slo: 0.5", ["at least 1"]),
    "duplicate name": ("workload.yaml", "  small:", "  big:", ["given twice"]),
    "negative price": ("cluster.yaml", "usd_per_node_hour: 40.0", "usd_per_node_hour: -1.0", ["at least 0"]),
    "job larger than the pool": ("workload.yaml", "{pool: train, tp", "{pool: train, nodes: 9, tp", ["7 more"]),
    "memory that fits nowhere": ("workload.yaml", "tp: 2", "tp: 2, resident_bytes: 2000000000000", ["1 TB more"]),
    "pool of no cluster": ("workload.yaml", "train: {pool: train, tp", "train: {pool: gpu, tp", ["no pool 'gpu'"]),
    "no YAML": ("workload.yaml", "jobs:", "jobs: [", ["not valid YAML"]),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_an_inconsistent_workload_is_one_line_with_file_and_line_and_nothing_is_written(fault, tmp_path):
    path = write_workload(tmp_path)
    name, old, new, words = FAULTS[fault]
    line = edit(tmp_path / name, old, new)
    before = sorted(tmp_path.iterdir())
    place = f"{name}:" if fault == "no YAML" else f"{name}:{line}:"
    refused(rlplan("solve", path), place, *words)
    assert sorted(tmp_path.iterdir()) == before


def test_a_cluster_that_is_too_small_says_which_pool_by_how_much_and_what_would_do(tmp_path):
    path = write_workload(tmp_path)
    edit(path, "slo: 1.5", "slo: 1.0")
    edit(path, "slo: 1.9", "slo: 1.0")
    text = path.read_text()
    big = text[text.index("  big:") : text.index("  small:")]
    path.write_text(text + "".join(big.replace("big", f"big{i}") for i in range(5)))
    result = rlplan("solve", path)
    assert result.returncode == 3, result.stdout + result.stderr
    [line] = result.stderr.splitlines()
    assert line.startswith("no feasible plan: ")
    for word in (
        "pool 'train' has 2 nodes",
        "takes at least",
        "they fit with 7 nodes of pool 'roll' and 7 nodes of pool 'train'",
    ):
        assert word in line
    assert not (tmp_path / "groups.yaml").exists()
    edit(tmp_path / "cluster.yaml", "    nodes: 3\n", "    nodes: 7\n")
    edit(tmp_path / "cluster.yaml", "    nodes: 2\n", "    nodes: 7\n")
    assert rlplan("solve", path).returncode == 0


RUNNING = """\
rlplan_workload: 1
cluster: cluster.yaml
rules: {group_cap: 2}
jobs:
"""


def test_moves_that_do_not_pay_are_named_with_their_price_and_running_jobs_that_cannot_stay_are_blamed(tmp_path):
    write_workload(tmp_path)
    job = (
        "  {}:\n    slo: 1.5\n    cold_s: 10.0\n    remaining_s: 40.0\n    phases:\n"
        "      rollout: {{pool: roll, mean_s: 100.0, resident_bytes: 1000000, warm_s: 0.0}}\n"
        "      train: {{pool: train, mean_s: 100.0, resident_bytes: 1000000, warm_s: 0.0}}\n"
    )
    path = tmp_path / "few.yaml"
    path.write_text(RUNNING + "".join(map(job.format, "abcd")))
    assert rlplan("solve", path, "--out", tmp_path / "run.yaml").returncode == 0
    groups = [sorted(group.jobs) for group in load_groups_plan(tmp_path / "run.yaml").groups.values()]
    assert sorted(map(len, groups)) == [2, 2]
    path.write_text(RUNNING + "".join(job.format(names[0]) for names in groups))
    result = rlplan("solve", path, "--from", tmp_path / "run.yaml", "--out", tmp_path / "new.yaml")
    spared = load_groups_plan(tmp_path / "new.yaml").declined
    assert spared is not None and len(spared.jobs) == 1 and spared.reason == "price"
    assert spared.saves_usd_per_hour * spared.hours < 1.25 * spared.price_usd
    [line] = [line for line in result.stdout.splitlines() if line.startswith("not made: ")]
    assert "worth 50.00 USD/h, would cost" in line
    edit(tmp_path / "cluster.yaml", "    nodes: 3\n", "    nodes: 1\n")
    result = rlplan("solve", path, "--from", tmp_path / "run.yaml", "--no-moves")
    assert result.returncode == 3
    assert "running jobs cannot all stay: they hold 2 nodes of pool 'roll', which has 1" in result.stderr


def test_options_of_a_job_are_refused_for_a_workload_and_the_other_way_round(tmp_path, solved):
    path = write_workload(tmp_path)
    refused(rlplan("solve", path, "--seed", "3"), "--seed", "workload", "--from")
    refused(rlplan("solve", path, "--no-moves"), "--no-moves", "--from")
    refused(rlplan("simulate", solved[0] / "groups.yaml", "--steps", "3"), "--steps", "groups")
    (tmp_path / "job.yaml").write_text("rlplan_job: 1\n")
    refused(rlplan("solve", tmp_path / "job.yaml", "--from", solved[0] / "groups.yaml"), "--from", "workload")


def test_a_folder_that_takes_no_files_is_known_before_anything_is_solved(tmp_path, monkeypatch):
    def refuse(**_):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("rlplan.plans.yaml.output_files.tempfile.NamedTemporaryFile", refuse)
    with pytest.raises(InputError, match=r"x\.yaml: cannot be written: its folder takes no new file"):
        check_target(tmp_path / "x.yaml")


@pytest.mark.parametrize("target", ["none/groups.yaml", ".", "workload.yaml", "cluster.yaml"])
def test_a_plan_is_never_written_over_an_input(target, tmp_path):
    path = write_workload(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    refused(rlplan("solve", path, "--out", tmp_path / target))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_plan_of_groups_cut_off_anywhere_is_refused(solved, tmp_path):
    text = (solved[0] / "groups.yaml").read_text()
    for share in (0.1, 0.5, 0.95):
        (tmp_path / "cut.yaml").write_text(text[: int(share * len(text))])
        refused(rlplan("show", tmp_path / "cut.yaml"), "cut.yaml")


def test_a_plan_that_contradicts_itself_is_refused_at_its_line(solved, tmp_path):
    text = (solved[0] / "groups.yaml").read_text()
    at = text.index("units: [")
    broken = text[:at] + "units: [99]" + text[text.index("\n", at) :]
    (tmp_path / "broken.yaml").write_text(broken)
    line = broken[:at].count("\n") + 1
    refused(rlplan("show", tmp_path / "broken.yaml"), f"broken.yaml:{line}:", "unit 99")
