"""Where results can be written is checked before the work, and a user's own files are not overwritten."""

from pathlib import Path

import pytest

from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.output_files import must_take_file, must_take_folder, written_kind
from rlplan.plans.yaml.yaml_io import atomic_write, schema_of

from ...documents import CLUSTER
from ...full_disk import full_disk

OURS = {
    "plan": "# yaml-language-server: $schema=.rlplan/plan.schema.json\nrlplan: 1\n",
    "profile": "rlplan_profile: 1\n",
    "document": CLUSTER,
    "lengths": '{"prompt": "a", "epoch": 0, "sample": 0, "tokens": 5}\n',
    "page": '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta name="generator" content="rlplan 0.1.0">\n',
    "timeline": '{"traceEvents":[]}\n',
    "schema": schema_of(Cluster),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "plan.yaml"


@pytest.mark.parametrize("kind", OURS)
def test_only_a_file_of_the_kind_that_is_written_is_overwritten(kind, path):
    path.write_text(OURS[kind])
    assert written_kind(path) == kind
    must_take_file(path, kind)
    must_take_file(path)  # a command that does not say its kind overwrites what rlplan wrote
    other = "page" if kind == "plan" else "plan"
    with pytest.raises(InputError, match=f"exists and is a {kind}, and a {other} is to be written; .*--force"):
        must_take_file(path, other)
    must_take_file(path, other, force=True)


@pytest.mark.parametrize("text", ["call the landlord\n", "\0\1\2", '{"traceEvents": []}', "a: 1\n", "x" * 100_000])
def test_a_file_that_rlplan_did_not_write_is_not_overwritten_unless_forced(text, path):
    path.write_text(text)
    for kind in (None, *OURS):
        with pytest.raises(InputError, match=r"plan\.yaml: exists and .*; choose another name, or say --force"):
            must_take_file(path, kind)
    must_take_file(path, "plan", force=True)
    assert path.read_text() == text, "asking writes nothing"
    path.write_text("")
    must_take_file(path, "plan")  # an empty file is nobody's


def test_a_full_disk_keeps_old_files(path, tmp_path):
    atomic_write(path, "old\n")
    path.chmod(0o640)
    with full_disk(), pytest.raises(InputError, match=r"plan\.yaml: cannot be written: .*; make room"):
        atomic_write(path, "new\n")
    with pytest.raises(UnicodeEncodeError):
        atomic_write(path, "new \ud800\n")
    assert list(tmp_path.iterdir()) == [path] and path.read_text() == "old\n"
    atomic_write(path, "new\n")
    assert path.read_text() == "new\n" and path.stat().st_mode & 0o777 == 0o640


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
def test_a_place_that_takes_no_folder_is_refused(target, tmp_path):
    for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        must_take_folder(path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(InputError):
        must_take_folder(Path(target.format(folder=tmp_path)))


def test_a_link_to_a_file_that_is_ours_stays_a_link(tmp_path):
    (tmp_path / "real.yaml").write_text(OURS["plan"])
    (tmp_path / "link.yaml").symlink_to("real.yaml")
    must_take_file(tmp_path / "link.yaml", "plan")
    atomic_write(tmp_path / "link.yaml", "rlplan: 1\n")
    assert (tmp_path / "link.yaml").is_symlink() and (tmp_path / "real.yaml").read_text() == "rlplan: 1\n"
