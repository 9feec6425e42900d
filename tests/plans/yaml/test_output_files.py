"""Where results can be written is checked before the work, and a user's own files are not overwritten."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.yaml.editor_schemas import schema_of
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.output_files import must_take_file, must_take_folder, written_kind
from rlplan.plans.yaml.yaml_io import atomic_write

from ...documents import CLUSTER

OURS = {
    "plan": "# yaml-language-server: $schema=.rlplan/plan.schema.json\nrlplan: 1\n",
    "profile": "rlplan_profile: 1\n",
    "document": CLUSTER,
    "lengths": '{"prompt": "a", "epoch": 0, "sample": 0, "tokens": 5}\n',
    "page": '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta name="generator" content="rlplan 0.1.0">\n',
    "timeline": '{"traceEvents":[]}\n',
    "schema": schema_of(Cluster),
}


@contextmanager
def full_disk(room_bytes=0):
    """Limit the size of every file, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("kind", OURS)
def test_a_file_of_the_kind_that_is_written_is_overwritten_and_one_of_another_kind_is_not(kind, tmp_path):
    path = tmp_path / "x"
    path.write_text(OURS[kind])
    assert written_kind(path) == kind
    must_take_file(path, kind)
    must_take_file(path)  # a command that does not say its kind overwrites what rlplan wrote
    other = "page" if kind == "plan" else "plan"
    with pytest.raises(InputError, match=f"exists and is a {kind}, and a {other} is to be written; .*--force"):
        must_take_file(path, other)
    must_take_file(path, other, force=True)


@pytest.mark.parametrize("text", ["call the landlord\n", "\0\1\2", '{"traceEvents": []}', "a: 1\n", "x" * 100_000])
def test_a_file_that_rlplan_did_not_write_is_not_overwritten_unless_forced(text, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    for kind in (None, *OURS):
        with pytest.raises(InputError, match=r"notes\.txt: exists and .*; choose another name, or say --force"):
            must_take_file(path, kind)
    must_take_file(path, "plan", force=True)
    assert path.read_text() == text, "asking writes nothing"


def test_an_empty_file_is_nobodys(tmp_path):
    (tmp_path / "new").touch()
    must_take_file(tmp_path / "new", "plan")


@pytest.mark.parametrize("name", ["n" * 256, "é" * 128, "n" * 300 + "/plan.yaml", "n/" * 2500 + "x"])
def test_a_name_that_no_file_can_have_is_refused_in_one_short_line(name, tmp_path):
    with pytest.raises(InputError, match="shorten it") as caught:
        must_take_file(tmp_path / name, "plan")
    assert len(str(caught.value)) < 250


def test_a_name_that_just_fits_is_written(tmp_path):
    path = tmp_path / ("n" * 250 + ".yaml")
    must_take_file(path, "plan")
    atomic_write(path, "rlplan: 1\n")
    assert [p.name for p in tmp_path.iterdir()] == [path.name] and path.read_text() == "rlplan: 1\n"


def test_a_full_disk_is_known_before_the_work_and_leaves_nothing(tmp_path):
    with full_disk(1000), pytest.raises(InputError, match=r"takes no new file .*; name another folder"):
        must_take_file(tmp_path / "plan.yaml", "plan")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_while_a_file_is_written_leaves_the_old_one_and_says_to_make_room(tmp_path):
    path = tmp_path / "plan.yaml"
    atomic_write(path, "old\n")
    with full_disk(), pytest.raises(InputError, match=r"plan\.yaml: cannot be written: .*; make room"):
        atomic_write(path, "new\n")
    assert [p.name for p in tmp_path.iterdir()] == ["plan.yaml"] and path.read_text() == "old\n"


def test_a_device_that_is_full_is_one_line():
    must_take_file(Path("/dev/full"), "plan")
    with pytest.raises(InputError, match="/dev/full: cannot be written: No space left on device; make room"):
        atomic_write("/dev/full", "x")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("/proc", "is a folder"),
        ("/proc/x.yaml", "takes no new file"),
        ("{folder}/a/b.yaml", "its folder does not exist"),
        ("{folder}/file/b.yaml", "its folder does not exist"),
    ],
)
def test_places_that_take_no_file_are_refused(target, message, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=message):
        must_take_file(Path(target.format(folder=tmp_path)), "plan")


@pytest.mark.parametrize("target", ["/proc", "/proc/x", "{folder}/file", "{folder}/file/run", "n" * 300, "-"])
def test_places_that_take_no_folder_are_refused(target, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError):
        must_take_folder(Path(target.format(folder=tmp_path)))


def test_a_folder_that_is_there_or_can_be_made_is_taken_and_nothing_is_made(tmp_path):
    for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        must_take_folder(path)
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_a_file_that_is_ours_stays_a_link(tmp_path):
    (tmp_path / "real.yaml").write_text(OURS["plan"])
    (tmp_path / "link.yaml").symlink_to("real.yaml")
    must_take_file(tmp_path / "link.yaml", "plan")
    atomic_write(tmp_path / "link.yaml", "rlplan: 1\n")
    assert (tmp_path / "link.yaml").is_symlink() and (tmp_path / "real.yaml").read_text() == "rlplan: 1\n"
