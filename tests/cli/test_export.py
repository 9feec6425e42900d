"""`rlplan export GROUPS --to llm-d` at the command line."""

from __future__ import annotations

import json
import shutil

import pytest
import yaml

from ..workloads import edit, write_workload
from .command_line import refused, rlplan


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    result = rlplan("solve", write_workload(folder))
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture
def folder(once, tmp_path):
    return shutil.copytree(once, tmp_path, dirs_exist_ok=True)


def export(folder, *options):
    return rlplan("export", folder / "groups.yaml", "--to", "llm-d", *options)


def test_the_terminal_has_the_commands_the_places_of_pods_and_each_jobs_slowdown_under_llm_ds_locks(folder):
    result = export(folder)
    assert result.returncode == 0, result.stderr
    assert "nodes to label: 1 roll, 1 train" in result.stdout
    assert "kubectl label nodes <roll-node-1> --overwrite timeslice.io/enabled=true" in result.stdout
    for name in ("big", "small"):
        assert sum(line.startswith(name) for line in result.stdout.splitlines()) == 3
    assert "warning: the plan's permit rule is multi_rate" in result.stderr


def test_out_writes_the_export_and_json_has_the_same_values(folder):
    (folder / "nodes.yaml").write_text("roll: [r-1, r-2, r-3]\ntrain: [t-1]\n")
    out = folder / "llm-d.yaml"
    result = export(folder, "--nodes", folder / "nodes.yaml", "--out", out, "--json")
    assert result.returncode == 0, result.stderr
    data, written = json.loads(result.stdout), yaml.safe_load(out.read_text())
    assert all(data[key] == written[key] for key in ("nodes", "claims", "pods"))
    assert {node["name"] for node in written["nodes"]} == {"r-1", "t-1"} and "<" not in str(written)
    for row in data["jobs"].values():
        assert 0.95 < row["mean"] < 3 and row["keeps"] in (True, False)
    assert export(folder, "--out", out).returncode == 0, "an export may be overwritten"


def test_broken_bounds_are_a_warning(folder):
    data = json.loads(export(folder, "--json").stdout)
    broken = sorted(name for name, row in data["jobs"].items() if not row["keeps"])
    said = [note for note in data["warnings"] if "slower than the bounds allow" in note]
    assert bool(said) is bool(broken) and all(name in said[0] for name in broken)


def test_a_workload_that_changed_gives_labels_and_says_why_there_are_no_slowdowns(folder):
    edit(folder / "workload.yaml", "mean_s: 40.0", "mean_s: 41.0")
    result = export(folder, "--json")
    data = json.loads(result.stdout)
    assert result.returncode == 0 and data["jobs"] == {} and data["pods"]
    assert "workload.yaml is missing or has changed" in data["warnings"][-1]


def test_an_edited_plan_gives_labels_and_no_slowdowns(folder):
    path = folder / "groups.yaml"
    text = path.read_text()
    path.write_text(text.replace("way: 0", "way: 7", 1))
    data = json.loads(export(folder, "--json").stdout)
    assert data["jobs"] == {} and "decisions were edited" in data["warnings"][-1]


def test_a_pool_of_cores_is_refused_at_its_line(folder):
    text = (folder / "cluster.yaml").read_text()
    (folder / "cluster.yaml").write_text(
        text.replace("{kind: cuda, name: H800, per_node: 8", "{kind: cpu, name: core, per_node: 8")
    )
    refused(export(folder), "cluster.yaml:", "is of kind cpu, and llm-d shares GPUs")


def test_a_name_that_is_no_label_is_refused_at_its_line(folder):
    path = folder / "groups.yaml"
    path.write_text(path.read_text().replace("small", "small."))
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if text.strip() == "small.:")
    refused(export(folder), f"groups.yaml:{line}:", "'small.' cannot be a Kubernetes label")


def test_other_documents_and_targets_are_refused(folder, solved_once):
    refused(rlplan("export", solved_once / "plan.yaml", "--to", "llm-d"), "is a plan of one job")
    refused(rlplan("export", folder / "groups.yaml"), "--to")
    refused(rlplan("export", folder / "groups.yaml", "--to", "slurm"), "slurm")
    refused(export(folder, "--out", folder / "cluster.yaml"), "is an input of this command")
    refused(export(folder, "--out", "-", "--json"), "both write to standard output")
    (folder / "notes.txt").write_text("mine\n")
    refused(export(folder, "--out", folder / "notes.txt"), "is no export of rlplan's")
    (folder / "nodes.yaml").write_text("roll: [r-1]\nlab: [x]\n")
    refused(export(folder, "--nodes", folder / "nodes.yaml"), "nodes.yaml:2:", "uses no pool 'lab'")


def test_standard_output_takes_the_export_alone(folder):
    result = export(folder, "--out", "-")
    assert set(yaml.safe_load(result.stdout)) == {"nodes", "claims", "pods"}
    assert "nodes to label" in result.stderr
