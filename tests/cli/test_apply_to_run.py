"""`rlplan apply PLAN --out RUN` as a user meets it; what drives the run is a thread that answers as a driver does."""

import json
import re
import threading
import time

import pytest

from rlplan.cli import tune
from rlplan.executor.groups.group_change import take_request
from rlplan.executor.records.execution_folder import run_lock
from rlplan.plans.yaml.errors import InputError

from ..executor.records.test_plan_changes import cutoff_20, run, step  # noqa: F401 (a fixture)
from .command_line import data, printed, rlplan


@pytest.fixture
def driven(run):  # noqa: F811
    """`driven(answer)`: from now on a driver holds the run and answers a request with what `answer` makes of it; None:
    it ends instead."""
    stop, threads = threading.Event(), []

    def drive(answer, held):
        with run_lock(run.home):
            held.set()
            while not stop.is_set():
                if (request := take_request(run.home)) is not None:
                    event = answer(request)
                    if event is None:
                        return
                    with (run.home / "trace.jsonl").open("a") as trace:
                        trace.write(json.dumps(event, separators=(",", ":")) + "\n")
                time.sleep(0.01)

    def start(answer):
        held = threading.Event()
        threads.append(threading.Thread(target=drive, args=(answer, held)))
        threads[-1].start()
        assert held.wait(10)

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def taken(request):
    return {"event": "plan", "t_s": 9.0, "step": 4, "plan": "second.yaml", "sha256": request.sha256, "owed": 3}


def refused(request):
    return {"event": "plan_refused", "t_s": 9.0, "id": request.id, "plan": request.plan, "reason": "no node has room"}


def test_a_run_takes_a_plan_and_says_from_which_step_on(run, driven):  # noqa: F811
    second = run.plan("second", cutoff_20)
    planned = data("apply", second, "--out", run.home, "--dry-run")
    assert planned["state"] == "not applied"
    assert planned["changes"] == {"rounds.short.cutoff_tokens": ["30", "20"]}
    driven(taken)
    applied = data("apply", second, "--out", run.home)
    assert (applied["state"], applied["from_step"], applied["owed"]) == ("applied", 5, 3)
    text = printed("apply", second, "--out", run.home)
    assert "rounds.short.cutoff_tokens  30 -> 20" in text and "from step 5 on the run goes by" in text
    assert "has this plan already" in printed("apply", run.folder / "first.yaml", "--out", run.home)


@pytest.mark.parametrize(
    ("answer", "code", "told"),
    [
        (refused, 2, "second.yaml: the run in .* refuses it: no node has room"),
        (lambda request: None, 1, "has ended before it took the plan; go on by it with --resume"),
        (lambda request: {"event": "note", "t_s": 9.0}, 1, "has not ended its step within 1 s; it takes the plan then"),
    ],
    ids=["refused", "ended", "in a long step"],
)
def test_a_plan_that_is_not_taken_is_told_in_one_line(run, driven, answer, code, told):  # noqa: F811
    second = run.plan("second", cutoff_20)
    driven(answer)
    done = rlplan("apply", second, "--out", run.home, "--timeout", "1")
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert re.search(told, line), line


def test_a_run_that_does_not_go_on_is_resumed_by_the_plan(run):  # noqa: F811
    second = run.plan("second", cutoff_20)
    done = rlplan("apply", second, "--out", run.home)
    assert done.returncode == 2 and f"rlplan execute {second} --out {run.home} --resume" in done.stderr
    assert not list(run.home.glob("*request*"))


def test_tuning_again_follows_the_steps_of_a_run(tmp_path, monkeypatch, capsys):
    trace, tuned = tmp_path / "trace.jsonl", []
    trace.write_text('{"event":"run","t_s":0.0,"name":"a"}\n')
    waits = iter(range(1, 7))

    def next_step(_):
        with trace.open("a") as file:
            file.write(json.dumps(step(next(waits)), separators=(",", ":")) + "\n")

    def once():
        tuned.append(len(trace.read_text().splitlines()) - 1)
        if len(tuned) == 1:
            raise InputError("its trace holds no samples")

    monkeypatch.setattr(tune.time, "sleep", next_step)
    running = iter([True] * 6 + [False])
    monkeypatch.setattr("rlplan.traces.run_log.driver_runs", lambda out: next(running))
    assert tune._tune_until_end(tmp_path, 2, once) == 0
    assert tuned == [2, 4] and "not tuned after step 2: its trace holds no samples" in capsys.readouterr().err
