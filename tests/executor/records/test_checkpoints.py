"""Checkpoints on disk: damage is found and fallen back from, room is looked for first; one driver per folder."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from rlplan.executor.records import checkpoints as checkpoints_module
from rlplan.executor.records.checkpoints import (
    CheckpointFailed,
    checkpoints,
    load_checkpoint,
    stage_checkpoint,
    write_checkpoint,
)
from rlplan.executor.records.execution_folder import begin_folder, check_folder, run_lock
from rlplan.executor.weights.manifest import write_manifest
from rlplan.plans.yaml.errors import InputError, RunFailed

Usage = namedtuple("Usage", "total used free")


class Trainer:
    """Keeps one number; writes it as a trainer's ranks write their parts."""

    parameters = 1000

    def __init__(self, value=0, fails=False):
        self.value, self.fails = value, fails

    async def stage(self):
        return 9

    async def write(self, folder):
        if self.fails:
            raise RunFailed("trainer failed in write_staged: OSError(28, 'No space left on device')")
        folder.mkdir()
        part = folder / "__0_0.distcp"
        part.write_text(f"{self.value:09d}")
        write_manifest(folder / "manifest-0.json", [part])

    async def load(self, folder):
        self.value = int((folder / "__0_0.distcp").read_text())


def save(run_dir, *steps, trace_bytes=0, fails=False):
    async def body(step):
        trainer, state = Trainer(step * 11, fails), {"step": step, "trace_bytes": trace_bytes}
        staged = await stage_checkpoint(run_dir, step, state, trainer)
        state.clear()  # what is staged does not follow the run
        await write_checkpoint(run_dir, staged, trainer)

    for step in steps:
        asyncio.run(body(step))


def load(run_dir):
    trainer = Trainer()
    loaded = asyncio.run(load_checkpoint(run_dir, trainer))
    return loaded.state["step"], trainer.value, loaded.damaged


def names(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_latest_two_checkpoints_are_kept_and_the_latest_is_loaded(tmp_path):
    save(tmp_path, 1, 2, 3)
    assert names(tmp_path) == ["step-000002", "step-000003"]
    assert load(tmp_path) == (3, 33, {})


@pytest.mark.parametrize(
    ("file", "harm", "words"),
    [
        ("trainer/__0_0.distcp", flip, "other bytes"),
        ("state.json", flip, "other bytes"),
        ("trainer/__0_0.distcp", lambda path: path.write_text("1"), "1 bytes instead of 9"),
        ("trainer/__0_0.distcp", lambda path: path.unlink(), "__0_0.distcp is missing"),
        ("trainer/manifest-0.json", lambda path: path.unlink(), "manifest-0.json is missing"),
        ("manifest.json", lambda path: path.unlink(), "manifest.json is missing"),
        ("manifest.json", lambda path: path.write_text("{"), "cannot be read"),
    ],
)
def test_a_damaged_latest_checkpoint_is_set_aside_and_the_one_before_it_is_loaded(tmp_path, file, harm, words):
    save(tmp_path, 1, 2)
    harm(tmp_path / "checkpoints" / "step-000002" / file)
    step, value, damaged = load(tmp_path)
    assert (step, value) == (1, 11)
    assert list(damaged) == ["step-000002"] and words in damaged["step-000002"]
    assert names(tmp_path) == ["damaged-step-000002", "step-000001"]
    save(tmp_path, 2)  # trained again, and saved under the same name
    assert load(tmp_path) == (2, 22, {})


def test_where_no_checkpoint_is_sound_each_fault_is_named_and_all_stay_where_they_are(tmp_path):
    save(tmp_path, 1, 2)
    for step in (1, 2):
        flip(tmp_path / "checkpoints" / f"step-00000{step}" / "state.json")
    for _ in range(2):
        with pytest.raises(InputError, match=r"step-000002: state.json .* step-000001: state.json .*backup"):
            load(tmp_path)
    for step in (1, 2):  # as from a backup
        flip(tmp_path / "checkpoints" / f"step-00000{step}" / "state.json")
    assert load(tmp_path) == (2, 22, {})


@pytest.mark.parametrize("harm", [lambda trace: trace.unlink(), lambda trace: trace.write_text("x" * 59)])
def test_checkpoints_are_loaded_again_once_a_trace_that_was_lost_is_put_back(tmp_path, harm):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("x" * 100)
    save(tmp_path, 1, trace_bytes=60)
    save(tmp_path, 2, trace_bytes=100)
    harm(trace)
    with pytest.raises(InputError, match=r"put trace\.jsonl back"):
        load(tmp_path)
    assert names(tmp_path) == ["step-000001", "step-000002"]
    trace.write_text("x" * 100)
    assert load(tmp_path) == (2, 22, {})


def test_nothing_is_set_aside_for_a_checkpoint_that_could_not_be_loaded_after_all(tmp_path):
    save(tmp_path, 1, 2)
    flip(tmp_path / "checkpoints" / "step-000002" / "state.json")
    trainer = Trainer()

    async def fail(folder):
        raise RunFailed("trainer toy could not do load: Input/output error")

    trainer.load = fail
    with pytest.raises(RunFailed, match="Input/output error"):
        asyncio.run(load_checkpoint(tmp_path, trainer))
    assert names(tmp_path) == ["step-000001", "step-000002"]


def test_a_run_of_which_only_set_aside_checkpoints_are_left_gets_one_advice_with_and_without_resume(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "checkpoints" / "step-000001").rename(tmp_path / "checkpoints" / "damaged-step-000001")
    with pytest.raises(InputError, match=r"no checkpoint.*damaged-step-000001.*another --out") as resumed:
        load(tmp_path)
    with pytest.raises(InputError, match="another --out"):
        check_folder(tmp_path, tmp_path / "plan.yaml", resume=False)
    assert "without --resume" not in str(resumed.value)
    (tmp_path / "checkpoints" / "damaged-step-000001").rename(tmp_path / "checkpoints" / "step-000001")
    assert load(tmp_path) == (1, 11, {})


def test_a_checkpoint_whose_steps_the_trace_has_lost_is_not_loaded(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("x" * 100)
    save(tmp_path, 1, trace_bytes=60)
    save(tmp_path, 2, trace_bytes=100)
    trace.write_text("x" * 99)
    step, value, damaged = load(tmp_path)
    assert (step, value) == (1, 11) and "99 of 100 bytes" in damaged["step-000002"]


def test_a_checkpoint_that_fails_leaves_those_before_it_and_nothing_of_itself(tmp_path):
    save(tmp_path, 1, 2)
    with pytest.raises(CheckpointFailed, match=r"step 3.*No space left"):
        save(tmp_path, 3, fails=True)
    assert names(tmp_path) == ["step-000001", "step-000002"]


def free(monkeypatch, of_run):
    """The disk has this many bytes free, by `of_run()`, when asked."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, of_run()))
    monkeypatch.setattr(checkpoints_module, "SPARE_BYTES", 0)


def test_without_room_nothing_is_written_and_the_shortage_is_named(tmp_path, monkeypatch):
    free(monkeypatch, lambda: 11_999)
    with pytest.raises(CheckpointFailed, match=r"needs 0\.00 GB and the disk has 0\.00 GB free"):
        save(tmp_path, 1)  # 1000 parameters of 12 bytes
    assert names(tmp_path) == []


def test_room_for_a_third_copy_is_made_from_the_older_checkpoint_if_the_newer_is_sound(tmp_path, monkeypatch):
    save(tmp_path, 1, 2)
    size = checkpoints_module.folder_bytes(tmp_path / "checkpoints" / "step-000002")
    held = size * 5 // 2  # the disk holds two and a half checkpoints
    free(monkeypatch, lambda: held - checkpoints_module.folder_bytes(tmp_path / "checkpoints"))
    save(tmp_path, 3)
    assert names(tmp_path) == ["step-000002", "step-000003"]
    flip(tmp_path / "checkpoints" / "step-000003" / "state.json")
    with pytest.raises(CheckpointFailed):
        save(tmp_path, 4)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000002", "step-000003"]


HOLD = "import sys; from pathlib import Path; from rlplan.executor.records.execution_folder import run_lock\n"
HOLD += "with run_lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"


def test_a_second_driver_in_the_folder_of_a_run_is_refused_until_the_first_is_gone(tmp_path):
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout.readline() == "held\n"
    with pytest.raises(InputError, match=f"in use by process {first.pid} on "), run_lock(tmp_path):
        pytest.fail("two drivers in one folder")
    first.kill()
    first.wait()
    with run_lock(tmp_path):
        pass


def test_a_run_that_never_came_to_a_checkpoint_is_begun_anew_and_cannot_be_resumed(tmp_path):
    (tmp_path / "trace.jsonl").write_text('{"event":"run","t_s":0}\n')
    check_folder(tmp_path, tmp_path / "plan.yaml", resume=False)
    with pytest.raises(InputError, match="run without --resume"):
        check_folder(tmp_path, tmp_path / "plan.yaml", resume=True)


@contextlib.contextmanager
def full_disk():
    """The kernel lets no file grow; only within a test, since what pytest prints may go to a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_lock_on_a_full_disk_is_refused_in_one_line(tmp_path):
    refused = pytest.raises(RunFailed, match=r"\.lock cannot be written \(File too large\); make room")
    with full_disk(), refused as caught, run_lock(tmp_path):
        pytest.fail("it must not begin")
    assert "\n" not in str(caught.value)


def test_an_error_of_what_is_done_under_the_lock_is_not_taken_for_one_of_the_lock(tmp_path):
    with pytest.raises(OSError, match="of the run"), run_lock(tmp_path):
        raise OSError(5, "of the run")


def test_a_plan_that_a_full_disk_does_not_take_is_told_in_one_line(tmp_path):
    plan = Path(__file__)  # any file
    with full_disk(), pytest.raises(RunFailed, match=r"plan\.yaml cannot be written \(File too large\); make room"):
        begin_folder(tmp_path / "run", plan, resume=False)


def test_a_checkpoint_that_cannot_be_set_aside_is_told_in_one_line(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    save(tmp_path, 1, 2)
    flip(tmp_path / "checkpoints" / "step-000002" / "state.json")
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(RunFailed, match="step-000002 cannot be written \\(No space left"):
        load(tmp_path)


def test_files_beside_a_checkpoint_are_in_it_and_their_damage_does_not_cost_it(tmp_path):
    async def body():
        staged = await stage_checkpoint(tmp_path, 3, {"step": 3}, Trainer(33), {"history.npz": b"texts"})
        await write_checkpoint(tmp_path, staged, Trainer(33))

    save(tmp_path, 2)
    asyncio.run(body())
    beside = tmp_path / "checkpoints" / "step-000003" / "history.npz"
    assert beside.read_bytes() == b"texts"
    beside.write_bytes(b"damaged")
    assert load(tmp_path) == (3, 33, {})
    beside.unlink()
    assert load(tmp_path) == (3, 33, {})
