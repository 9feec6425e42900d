"""Runs that are read while they are written: byte by byte, begun anew, damaged, several of one name, dead."""

import fcntl
import os
import shutil
import time

import pytest

from rlplan.plans.diff.change import plain
from rlplan.plans.yaml.errors import InputError
from rlplan.traces.report import report
from rlplan.traces.run_log import TraceTail, read_run
from rlplan.traces.watched_runs import WatchedRuns

from ..plans.conftest import PLAN_TEXT
from ..plans.page.runs import write_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with all kinds of events that has ended."""
    return write_run(tmp_path_factory.mktemp("whole") / "run", PLAN_TEXT, "exact", steps=7, full=True)


def begun(whole, home, lines=0):
    """A folder whose run has written so many lines of its trace; the rest, to be appended."""
    home.mkdir(parents=True)
    shutil.copy(whole / "plan.yaml", home)
    text = (whole / "trace.jsonl").read_bytes().splitlines(keepends=True)
    (home / "trace.jsonl").write_bytes(b"".join(text[:lines]))
    return text[lines:]


def append(home, *lines):
    with (home / "trace.jsonl").open("ab") as file:
        file.write(b"".join(lines))


def same(log, path):
    """Whether a log is what the reader of whole files has of a path."""
    first, second = ({**vars(each), "samples": {k: list(v) for k, v in each.samples.items()}} for each in
                     (log, read_run(path)))  # fmt: skip
    return first == second


def test_a_trace_that_grows_reads_as_a_whole_one(whole, tmp_path):
    data, path = (whole / "trace.jsonl").read_bytes(), tmp_path / "trace.jsonl"
    resumed = data.replace(b'"event": "failed", ', b'"event": "resume", "step": 5, ')
    for text in (data, resumed + data.splitlines(keepends=True)[-3]):
        path.write_bytes(b"")
        tail, sizes = TraceTail(path), [1, 7, 600, 3, 5000, 40_000]
        at = 0
        while at < len(text):
            size = sizes[at % len(sizes)]
            with path.open("ab") as file:
                file.write(text[at : at + size])
            at += size
            whole_lines = text[:at].count(b"\n") - text[: at - size].count(b"\n")
            assert tail.more() == (whole_lines > 0)
        assert not tail.more() and same(tail.log, path)


def test_a_trace_that_was_cut_or_begun_anew_is_read_again(whole, tmp_path):
    rest = begun(whole, tmp_path / "run", lines=40)
    path = tmp_path / "run" / "trace.jsonl"
    tail = TraceTail(path)
    assert tail.more()
    kept = path.read_bytes().splitlines(keepends=True)[:-3]  # a disk that filled took a part of a flush
    path.write_bytes(b"".join(kept))
    assert tail.more() and same(tail.log, path)
    append(path.parent, *rest)  # the lines between are lost, and nobody reads what was there before
    assert tail.more() and same(tail.log, path)
    path.write_bytes((whole / "trace.jsonl").read_bytes().replace(b'"reward_mean": 0.', b'"reward_mean": 1.'))
    assert tail.more() and same(tail.log, path) and tail.log.steps[0].reward_mean > 1


def test_what_is_watched_is_what_a_report_says(whole, tmp_path):
    rest = begun(whole, tmp_path / "run", lines=20)
    watched = WatchedRuns([tmp_path / "run"])
    assert watched.look() == [] and watched.version == 1 and not watched.ended
    append(tmp_path / "run", *rest[:60])
    assert watched.look() == ["run"] and watched.version == 2
    standing = watched.standing("run")
    assert standing["state"] == "running" and standing["of"] == 40 and standing["left_s"] > 100
    assert 0 < standing["step"] < 7 and standing["step_s_predicted"] == 6.4 and standing["reward_mean"] > 0.4
    append(tmp_path / "run", *rest[60:])
    assert watched.look() == ["run"] and watched.ended
    assert watched.standing("run")["state"] == "stopped" and watched.standing("run")["left_s"] is None
    assert watched.report() == plain(report(tmp_path / "run")) | {"unreadable": {}}


def test_a_damaged_trace_stops_no_other_run(whole, tmp_path):
    begun(whole, tmp_path / "a" / "run", lines=30)
    rest = begun(whole, tmp_path / "b" / "run", lines=30)
    watched = WatchedRuns([tmp_path / "a", tmp_path / "b" / "run"])
    assert set(watched.runs()) == {"a/run", "b/run"}
    append(tmp_path / "a" / "run", b"nonsense\n")
    append(tmp_path / "b" / "run", *rest)
    assert watched.look() == ["b/run"]
    found = watched.report()
    assert set(found["runs"]) == {"b/run"} and "not a trace event" in found["unreadable"]["a/run"]
    assert watched.look() == [] and watched.ended


def test_a_run_may_begin_later_and_begin_anew(whole, tmp_path):
    with pytest.raises(InputError, match="no such run folder"):
        WatchedRuns([tmp_path / "run"])
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match="holds no run"):
        WatchedRuns([tmp_path / "run"])
    with (tmp_path / "run" / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as its driver does, whose engines start
        watched = WatchedRuns([tmp_path / "run"])
    assert watched.runs() == {} and not watched.ended and watched.report()["runs"] == {}
    shutil.copytree(whole, tmp_path / "run", dirs_exist_ok=True)
    assert watched.look() == ["run"] and watched.ended
    (tmp_path / "run" / "trace.jsonl").unlink()
    assert watched.look() == [] and watched.runs() == {} and not watched.ended
    shutil.copy(whole / "trace.jsonl", tmp_path / "run")
    assert watched.look() == ["run"] and watched.ended


def test_a_run_without_a_driver_has_died_once_it_is_quiet(whole, tmp_path):
    home = tmp_path / "run"
    begun(whole, home, lines=100)
    watched = WatchedRuns([home])
    longest_s = max(step.total_s for step in watched.runs()["run"].log.steps)
    for age_s, state in ((1, "running"), (3.5 * longest_s + 30, "died")):
        os.utime(home / "trace.jsonl", (0, time.time() - age_s))
        watched.look()
        assert watched.standing("run")["state"] == state and watched.ended == (state == "died")
    assert watched.standing("run")["left_s"] is None
    with (home / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert watched.look() == ["run"] and watched.standing("run")["state"] == "running"
