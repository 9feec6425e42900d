"""`rlplan fmt` and `rlplan schema`: canonical files with nothing lost, schemas that say what the models say."""

from __future__ import annotations

import json

import pytest

from rlplan.cli.shared.documents import KINDS, model_of
from rlplan.plans.yaml.editor_schemas import schema_of

from .command_line import refused, rlplan

CLUSTER = """\
name: "pod"
# eight nodes
rlplan_cluster: 1
pools:
  gpu: {nodes: 8, cores: 96, host_memory_bytes: 2_000_000_000_000, usd_per_node_hour: 20,
        accelerators: {kind: cuda, name: H100, per_node: 8, memory_bytes: 80000000000}}  # SXM
"""


@pytest.fixture
def cluster(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER.replace("usd_per_node_hour: 20", "usd_per_node_hour: 20.0"))
    return path


def test_a_file_is_rewritten_with_its_comments_and_its_schema_beside_it(cluster):
    result = rlplan("fmt", cluster)
    assert result.returncode == 0 and "rewritten" in result.stdout and "rlplan check PLAN" in result.stdout
    text = cluster.read_text()
    assert text.startswith(
        "# yaml-language-server: $schema=.rlplan/cluster.schema.json\n# eight nodes\nrlplan_cluster: 1"
    )
    assert "# SXM" in text and (cluster.parent / ".rlplan" / "cluster.schema.json").is_file()
    again = rlplan("fmt", cluster, "--json")
    assert json.loads(again.stdout) == {"changed": [], "refused": [], "written": True, "files": 1}
    assert cluster.read_text() == text


def test_check_changes_nothing_and_says_which_files_are_not_canonical(cluster):
    before = cluster.read_bytes()
    result = rlplan("fmt", "--check", cluster)
    assert result.returncode == 1 and "cluster.yaml" in result.stdout
    assert cluster.read_bytes() == before and not (cluster.parent / ".rlplan").exists()
    rlplan("fmt", cluster)
    assert rlplan("fmt", "--check", cluster).returncode == 0


def test_what_is_no_document_is_named_and_left_alone_and_the_others_are_still_rewritten(cluster, tmp_path):
    notes, typo = tmp_path / "notes.yaml", tmp_path / "typo.yaml"
    notes.write_text("a: 1\n")
    typo.write_text("rlplan_job: 1\nnmae: x\n")
    result = rlplan("fmt", notes, typo, tmp_path / "nowhere.yaml", cluster, "--json")
    assert result.returncode == 2
    assert len(json.loads(result.stdout)["refused"]) == 3 and json.loads(result.stdout)["changed"] == [str(cluster)]
    lines = result.stderr.splitlines()
    assert all(line.startswith("error: ") for line in lines)
    files = [line.split(": ")[1].rpartition("/")[2] for line in lines]
    # The misspelt key, and each that is missing beside it, on a line of its own.
    assert (
        list(dict.fromkeys(files)) == ["notes.yaml", "typo.yaml:2", "nowhere.yaml"] and files.count("typo.yaml:2") > 3
    )
    assert "did you mean 'name'?" in lines[1]
    assert notes.read_text() == "a: 1\n"


def test_line_ends_and_a_byte_order_mark_are_made_plain(cluster):
    cluster.write_bytes(b"\xef\xbb\xbf" + cluster.read_bytes().replace(b"\n", b"\r\n"))
    assert rlplan("fmt", cluster).returncode == 0
    assert b"\r" not in cluster.read_bytes() and cluster.read_bytes().startswith(b"# yaml")


@pytest.mark.parametrize("kind", KINDS)
def test_schema_prints_what_the_model_says(kind):
    result = rlplan("schema", kind)
    assert result.returncode == 0 and result.stdout == schema_of(model_of(kind))
    assert json.loads(result.stdout)["additionalProperties"] is False


def test_schema_writes_all_of_them_into_a_folder(tmp_path):
    assert rlplan("schema", "--out", tmp_path).returncode == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"{kind}.schema.json" for kind in KINDS)
    refused(rlplan("schema"), "cluster", "--out")
    refused(rlplan("schema", "--out", tmp_path / "nowhere"), "nowhere")


def test_what_solve_writes_is_canonical_and_names_its_schema(solved):
    result = rlplan("solve", solved, "--mode", "sync", "--out", solved / "new.yaml")
    assert result.returncode == 0, result.stderr
    assert (solved / "new.yaml").read_text().startswith("# yaml-language-server: $schema=.rlplan/plan.schema.json\n")
    assert (solved / ".rlplan" / "plan.schema.json").is_file()
    assert rlplan("fmt", "--check", solved / "new.yaml").returncode == 0


def test_a_link_stays_a_link_and_what_it_leads_to_is_rewritten(cluster, tmp_path):
    link = tmp_path / "link.yaml"
    link.symlink_to(cluster)
    assert rlplan("fmt", link).returncode == 0
    assert link.is_symlink() and cluster.read_text().startswith("# yaml-language-server")


def test_what_is_no_regular_file_is_refused(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    refused(rlplan("fmt", tmp_path / "pipe"), "a file is needed")
    refused(rlplan("fmt", tmp_path), "a file is needed")
    refused(rlplan("fmt", "/dev/null"), "a file is needed")


def test_a_quoted_mark_is_a_mark(cluster):
    cluster.write_text(cluster.read_text().replace("rlplan_cluster:", '"rlplan_cluster":'))
    assert rlplan("fmt", cluster).returncode == 0
    assert "\nrlplan_cluster: 1" in cluster.read_text()
