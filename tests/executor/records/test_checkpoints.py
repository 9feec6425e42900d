"""Checkpoints on disk: damage is found and fallen back from, room is looked for first; one driver per folder."""

import asyncio
import contextlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlplan.executor.records import checkpoints as checkpoints_module
from rlplan.executor.records.checkpoints import (
    CheckpointFailed,
    check_room,
    checkpoints,
    folder_bytes,
    load_checkpoint,
    make_room,
    stage_checkpoint,
    write_checkpoint,
)
from rlplan.executor.records.execution_folder import begin_folder, check_folder, holds_run, run_lock
from rlplan.executor.records.run_checkpoints import Cadence
from rlplan.executor.trainer.manifest import damage, write_manifest
from rlplan.plans.yaml.errors import InputError, RunFailed

from ...full_disk import full_disk


class Trainer:
    """Keeps one number; writes it as a trainer's ranks write their parts."""

    trained_parameters = 1000

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

    async def damage(self, folder):
        return damage(folder / "manifest-0.json")

    async def load(self, folder):
        if self.fails:
            raise RunFailed("trainer toy could not do load: Input/output error")
        self.value = int((folder / "__0_0.distcp").read_text())


def save(run_dir, *steps, trace_bytes=0, fails=False, files=None):
    """Save steps, each with its number times 11; returns the bytes of the last."""

    async def body(step):
        trainer, state = Trainer(step * 11, fails), {"step": step, "trace_bytes": trace_bytes}
        staged = await stage_checkpoint(run_dir, step, state, trainer, files)
        state.clear()  # what is staged does not follow the run
        return await write_checkpoint(run_dir, staged, trainer)

    return [asyncio.run(body(step)) for step in steps][-1]


def load(run_dir, fails=False):
    trainer = Trainer(fails=fails)
    loaded = asyncio.run(load_checkpoint(run_dir, trainer))
    return loaded.state["step"], trainer.value, loaded.damaged


def step_folder(run_dir, number):
    return run_dir / "checkpoints" / f"step-{number:06d}"


def names(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_latest_two_checkpoints_are_kept_with_files_beside_them(tmp_path):
    assert save(tmp_path, 1, 2, 3, files={"history.npz": b"texts"}) == folder_bytes(step_folder(tmp_path, 3))
    assert names(tmp_path) == ["step-000002", "step-000003"] and load(tmp_path) == (3, 33, {})
    beside = step_folder(tmp_path, 3) / "history.npz"
    assert beside.read_bytes() == b"texts"
    beside.write_bytes(b"damaged")
    assert load(tmp_path) == (3, 33, {}), "their damage does not cost it"
    (tmp_path / "checkpoints" / ".partial-000004-1").mkdir()
    assert save(tmp_path, 3) and names(tmp_path) == ["step-000002", "step-000003"]


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
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before_it(tmp_path, file, harm, words):
    save(tmp_path, 1, 2)
    harm(step_folder(tmp_path, 2) / file)
    with pytest.raises(RunFailed, match="Input/output error"):
        load(tmp_path, fails=True)
    assert names(tmp_path) == ["step-000001", "step-000002"], "not before another one is loaded"
    step, value, damaged = load(tmp_path)
    assert (step, value) == (1, 11) and list(damaged) == ["step-000002"] and words in damaged["step-000002"]
    assert names(tmp_path) == ["damaged-step-000002", "step-000001"]
    save(tmp_path, 2)  # trained again, and saved under the same name
    assert load(tmp_path) == (2, 22, {})


def test_where_no_checkpoint_is_sound_all_stay_and_each_fault_is_named(tmp_path, monkeypatch):
    save(tmp_path, 1, 2)
    for step in (1, 2):
        flip(step_folder(tmp_path, step) / "state.json")
    for _ in range(2):
        with pytest.raises(InputError, match=r"step-000002: state.json .* step-000001: state.json .*backup"):
            load(tmp_path)
    flip(step_folder(tmp_path, 1) / "state.json")  # as from a backup

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(RunFailed, match=r"step-000002 cannot be written \(No space left"):
        load(tmp_path)


@pytest.mark.parametrize("left", [None, 59, 99])
def test_a_checkpoint_is_loaded_only_if_the_trace_reaches_as_far(tmp_path, left):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("x" * 100)
    save(tmp_path, 1, trace_bytes=60)
    save(tmp_path, 2, trace_bytes=100)
    trace.unlink() if left is None else trace.write_text("x" * left)
    if left == 99:
        step, value, damaged = load(tmp_path)
        assert (step, value) == (1, 11) and "99 of 100 bytes" in damaged["step-000002"]
        return
    with pytest.raises(InputError, match=r"put trace\.jsonl back"):
        load(tmp_path)
    assert names(tmp_path) == ["step-000001", "step-000002"]
    trace.write_text("x" * 100)
    assert load(tmp_path) == (2, 22, {})


def test_a_run_with_only_set_aside_checkpoints_gets_one_advice(tmp_path):
    save(tmp_path, 1)
    aside = step_folder(tmp_path, 1).with_name("damaged-step-000001")
    step_folder(tmp_path, 1).rename(aside)
    with pytest.raises(InputError, match=r"no checkpoint.*damaged-step-000001.*another --out") as resumed:
        load(tmp_path)
    with pytest.raises(InputError, match="another --out"):
        check_folder(tmp_path, resume=False)
    assert "without --resume" not in str(resumed.value)


def test_a_checkpoint_that_fails_leaves_those_before_it_and_nothing_of_itself(tmp_path):
    save(tmp_path, 1, 2)
    with pytest.raises(CheckpointFailed, match=r"step 3.*No space left"):
        save(tmp_path, 3, fails=True)
    assert names(tmp_path) == ["step-000001", "step-000002"]


def free(monkeypatch, of_run):
    """The disk has this many bytes free, by `of_run()`, when asked."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=of_run()))
    monkeypatch.setattr(checkpoints_module, "SPARE_BYTES", 0)


def test_room_for_a_third_copy_is_made_from_the_older_checkpoint(tmp_path, monkeypatch):
    folder, now = tmp_path / "checkpoints", [11_999]
    free(monkeypatch, lambda: now[0])
    with pytest.raises(CheckpointFailed, match=r"needs 0\.00 GB and the disk has 0\.00 GB free"):
        save(tmp_path, 1)  # 1000 parameters of 12 bytes
    assert names(tmp_path) == []
    now[0] = 12_000
    save(tmp_path, 1, 2)
    size = folder_bytes(step_folder(tmp_path, 2))
    held = size * 5 // 2  # the disk holds two and a half checkpoints
    free(monkeypatch, lambda: held - folder_bytes(folder))
    save(tmp_path, 3)
    assert names(tmp_path) == ["step-000002", "step-000003"]
    flip(step_folder(tmp_path, 3) / "state.json")
    for look in (lambda: save(tmp_path, 4), lambda: make_room(folder, 0)):
        with pytest.raises(CheckpointFailed):
            look()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000002", "step-000003"], "the newer is damaged"
    free(monkeypatch, lambda: size - folder_bytes(step_folder(tmp_path, 2)) - 1)
    with pytest.raises(CheckpointFailed):
        check_room(folder, 0)


HOLD = "import sys; from pathlib import Path; from rlplan.executor.records.execution_folder import run_lock\n"
HOLD += "with run_lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"


def test_a_runs_folder_has_one_driver_at_a_time(tmp_path):
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout.readline() == "held\n"
    with pytest.raises(InputError, match=f"in use by process {first.pid} on "), run_lock(tmp_path):
        pytest.fail("two drivers in one folder")
    (tmp_path / ".lock").write_text("torn")
    with pytest.raises(InputError, match="in use by another process; wait"), run_lock(tmp_path):
        pytest.fail("two drivers in one folder")
    first.kill()
    first.wait()
    with pytest.raises(OSError, match="of the run"), run_lock(tmp_path):
        raise OSError(5, "of the run")  # not taken for one of the lock


def test_a_folder_takes_one_run_and_keeps_its_plan(tmp_path):
    run = tmp_path / "run"
    for resume, why in ((False, None), (True, "holds no run to resume; run without --resume")):
        with contextlib.nullcontext() if why is None else pytest.raises(InputError, match=why):
            check_folder(run, resume)
    begin_folder(run, b"plan", resume=False)
    (run / "trace.jsonl").write_text('{"event":"run","t_s":0}\n')
    assert not holds_run(run), "it came to no checkpoint and no step: it is begun anew"
    begin_folder(run, b"plan", resume=False)
    assert not (run / "trace.jsonl").exists() and (run / "plan.yaml").read_text() == "plan"
    (run / "trace.jsonl").write_text('{"event":"step","t_s":0}\n')
    with pytest.raises(InputError, match="holds a run already; continue it with --resume"):
        check_folder(run, resume=False)
    check_folder(run, resume=True)
    begin_folder(run, b"another", resume=True)
    assert holds_run(run)
    assert (run / "plan.yaml").read_text() == "plan", "until the run goes on by the other one"


def test_what_a_full_disk_does_not_take_is_told_in_one_line(tmp_path):
    refused = pytest.raises(RunFailed, match=r"\.lock cannot be written \(File too large\); make room")
    with full_disk(), refused as caught, run_lock(tmp_path):
        pytest.fail("it must not begin")
    assert "\n" not in str(caught.value)
    with full_disk(), pytest.raises(RunFailed, match=r"plan\.yaml cannot be written \(File too large\); make room"):
        begin_folder(tmp_path / "run", Path(__file__).read_bytes(), resume=False)


def test_checkpoints_come_as_often_as_deaths_and_their_own_cost_call_for():
    now = [0.0]
    cadence = Cadence(lambda: now[0])
    assert not cadence.due(90.0), "nothing is due before a first one has shown its cost"
    cadence.saved(0.5, age_s=7.0)
    due = []
    for now[0] in range(200):
        due.append((cadence.due(3600.0), cadence.due(90.0)))
    # sqrt(2 x 0.5 s x 3600 s) = 60 s, and with four deaths in six minutes sqrt(2 x 0.5 s x 90 s) = 9.5 s
    assert [seconds.index(True) for seconds in zip(*due, strict=True)] == [53, 3]
