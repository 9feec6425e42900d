"""`rlplan fmt` and `rlplan schema`: canonical files with nothing lost, schemas that say what the models say."""

from __future__ import annotations

import json
import os

import pytest

from rlplan.cli.shared.documents import KINDS, model_of
from rlplan.plans.yaml.editor_schemas import schema_of
from rlplan.plans.yaml.errors import InputError

from .command_line import data, printed, refused, rlplan

CLUSTER = """\
name: "pod"
# eight nodes
rlplan_cluster: 1
pools:
  gpu: {nodes: 8, cores: 96, host_memory_bytes: 2_000_000_000_000, usd_per_node_hour: 20.0,
        accelerators: {kind: cuda, name: H100, per_node: 8, memory_bytes: 80000000000}}  # SXM
"""
HEAD = "# yaml-language-server: $schema=.rlplan/cluster.schema.json\n# eight nodes\nrlplan_cluster: 1"


@pytest.fixture
def cluster(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return path


def test_a_file_is_rewritten_with_its_comments_and_schema(cluster):
    before = cluster.read_bytes()
    said = f"{cluster}: is not canonical; run rlplan fmt\n"
    assert printed("fmt", "--check", cluster, code=1) == said
    assert cluster.read_bytes() == before and not (cluster.parent / ".rlplan").exists()
    text = printed("fmt", cluster)
    assert text.startswith(f"{cluster}: rewritten\nplans may have been solved from a rewritten file; rlplan check PLAN")
    text = cluster.read_text()
    assert text.startswith(HEAD)
    assert "# SXM" in text and (cluster.parent / ".rlplan" / "cluster.schema.json").is_file()
    assert data("fmt", cluster) == {"changed": [], "refused": [], "written": True, "files": 1}
    assert data("fmt", "--check", cluster) == {"changed": [], "refused": [], "written": False, "files": 1}
    assert cluster.read_text() == text


def test_what_is_no_document_is_left_alone_and_others_rewritten(cluster, tmp_path):
    notes, typo = tmp_path / "notes.yaml", tmp_path / "typo.yaml"
    notes.write_text("a: 1\n")
    typo.write_text("rlplan_job: 1\nnmae: x\n")
    result = rlplan("fmt", notes, typo, tmp_path / "nowhere.yaml", cluster, "--json")
    found = json.loads(result.stdout)
    assert result.returncode == 2 and (len(found["refused"]), found["changed"]) == (3, [str(cluster)])
    lines = result.stderr.splitlines()
    files = [line.removeprefix("error: ").split(": ")[0].rpartition("/")[2] for line in lines]
    # The misspelt key, and each that is missing beside it, on a line of its own.
    assert (
        list(dict.fromkeys(files)) == ["notes.yaml", "typo.yaml:2", "nowhere.yaml"] and files.count("typo.yaml:2") > 3
    )
    assert "did you mean 'name'?" in lines[1] and notes.read_text() == "a: 1\n"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"),
        lambda text: text.replace(b"rlplan_cluster:", b'"rlplan_cluster":'),
    ],
    ids=["line ends and a byte order mark", "a quoted mark"],
)
def test_spellings_of_one_document_become_one_text(change, cluster, tmp_path):
    cluster.write_bytes(change(cluster.read_bytes()))
    link = tmp_path / "link.yaml"
    link.symlink_to(cluster)
    printed("fmt", link)
    assert link.is_symlink() and cluster.read_text().startswith(HEAD) and b"\r" not in cluster.read_bytes()


def test_a_file_that_cannot_be_written_is_refused(cluster, monkeypatch):
    monkeypatch.setattr("rlplan.cli.fmt.os.access", lambda path, mode: mode != os.W_OK)
    refused(rlplan("fmt", cluster), "cluster.yaml: is read-only; make it writable first")
    printed("fmt", "--check", cluster, code=1)
    monkeypatch.undo()

    def full(path, text):
        raise InputError("the disk is full", str(path))

    monkeypatch.setattr("rlplan.plans.yaml.yaml_io.atomic_write", full)
    refused(rlplan("fmt", cluster), "cluster.yaml: the disk is full")
    assert cluster.read_text() == CLUSTER


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/null"):
        refused(rlplan("fmt", path), "a file is needed")


@pytest.mark.parametrize("kind", KINDS)
def test_schema_prints_what_the_model_says(kind):
    text = printed("schema", kind)
    assert text == schema_of(model_of(kind)) and json.loads(text)["additionalProperties"] is False


def test_schemas_are_written_into_a_folder(tmp_path):
    names = [tmp_path / f"{kind}.schema.json" for kind in KINDS]
    assert printed("schema", "--out", tmp_path).splitlines() == [str(name) for name in names]
    assert sorted(tmp_path.iterdir()) == sorted(names)
    schema = json.loads(printed("schema", "lengths"))
    assert schema["title"] == "LengthLine" and "tokens" in schema["required"]
    names[-1].write_text("mine")
    names[0].write_text("{}")
    refused(rlplan("schema", "--out", tmp_path), f"{names[0].name}: exists and is no schema")
    assert names[0].read_text() == "{}"
    printed("schema", "--out", tmp_path, "--force")
