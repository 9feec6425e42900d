"""Whole runs whose long rounds end on an engine of TP 2."""

import json
import os
import signal
import threading
import time

import psutil
import pytest

from rlplan.traces.report import run_report
from rlplan.traces.run_log import TRACE, read_run

from ..loaded_runs import load_runs
from .tiny_job import CLUSTER, and_pool, check_steps, make_plan, train_apart, write_job, write_plan

pytestmark = pytest.mark.engine

STEPS, WAIT_S = 5, 500


def make_job(tiny_model, folder, own_trainers=False):
    """A job whose every second step or so is a long round, and its plan."""
    cluster = and_pool(CLUSTER, "other") if own_trainers else CLUSTER
    write_job(folder, tiny_model, samples=4, longest=200, cluster=cluster)
    plan = make_plan(folder, samples=4, cutoff=40, engines=2)
    plan["job"]["rounds"]["long"]["tail"] = {"engines": 1, "tp": 2, "at_finished": 0.25}
    return write_plan(train_apart(plan, "other", streams=True) if own_trainers else plan, folder / "tail.yaml")


def check_run(out):
    """What holds for every whole run; returns its log and the events of tails."""
    log = read_run(out / TRACE)
    check_steps(log.steps, STEPS)
    assert sum(step.on_policy_violations for step in log.steps) == 0
    assert all(step.conservation_violations == [] for step in log.steps)
    assert sum(step.checksum_mismatches for step in log.steps) == 0
    tails = {event["step"]: event for event in log.events if event["event"] == "tail"}
    assert sorted(tails) == [step.step for step in log.steps if step.kind == "long"] != []
    for step, rows in log.samples.items():
        assert len({tuple(row.version) for row in rows}) == 1
        moved = [row for row in rows if row.moves]
        assert len(moved) <= (tails[step]["moved"] if step in tails else 0)
        assert all(row.engine == "rollout-tp2-0" for row in moved)
    return log, tails


def check_changes(out, log, tails):
    """Rounds changed to the tail's engine, samples moved to it, and the report tells it."""
    changed = [event for event in tails.values() if event["seconds"] is not None]
    assert changed and sum(event["moved"] for event in changed) > 0
    assert all((event["engines"], event["tp"]) == (1, 2) for event in tails.values())
    # Rounding is carried far by these steep weights, and two ranks round another way than one.
    assert max(step.metrics.get("logprob_max_abs_diff", 0.0) for step in log.steps) < 1e-2
    (run,) = load_runs(out)
    detail = run_report(run, None)
    assert detail["overlap"]["tails"]["rounds"] == len(changed)
    for row in detail["timeline"]["rows"]:
        assert all(a < b for a, b in row["spans"])
    turns = [event for event in log.events if event["event"] == "turn" and event["step"] == next(iter(tails))]
    assert [turn["turn"] for turn in turns].count("engine_wakes_kv") >= 1


def test_a_round_streams_to_another_pool_and_changes_its_engines(tiny_model, tmp_path, execute):
    assert execute(make_job(tiny_model, tmp_path, True), "--out", tmp_path / "run", "--steps", STEPS) == 0
    log, tails = check_run(tmp_path / "run")
    assert any(event["seconds"] is not None and event["moved"] for event in tails.values())
    streamed = {event["step"]: event for event in log.events if event["event"] == "streamed"}
    assert set(tails) <= set(streamed) and sum(event["groups"] for event in streamed.values()) > 0


def kill_the_trainer_in_a_change(trace, killed):
    """Wait until a round's engines sleep while no step of it is told, which is in mid-change; kill the trainer then."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        rows = [json.loads(line) for line in trace.read_text().splitlines()[:-1]] if trace.exists() else []
        turns = [row["turn"] for row in rows if row["event"] == "turn"]
        if any(turns[i : i + 2] == ["engine_wakes_kv", "engine_sleeps"] and turns[i + 2 : i + 3] != ["trainer_loads"]
               and turns[i + 2 :] in ([], ["engine_wakes_weights"]) for i in range(len(turns))):  # fmt: skip
            break
        time.sleep(0.01)
    for process in psutil.Process().children(recursive=True):
        if _is_trainer(process):
            os.kill(process.pid, signal.SIGKILL)
            killed.append(process.pid)


def test_tails_go_on_after_the_trainer_died_in_one(tiny_model, tmp_path, execute):
    plan, out, killed = make_job(tiny_model, tmp_path), tmp_path / "run", []
    killer = threading.Thread(target=kill_the_trainer_in_a_change, args=(out / TRACE, killed), daemon=True)
    killer.start()
    assert execute(plan, "--out", out, "--steps", STEPS) == 0
    log, tails = check_run(out)
    check_changes(out, log, tails)
    events = log.events
    restart = next(i for i, row in enumerate(events) if row["event"] == "restart")
    assert killed and events[restart]["whom"].startswith("trainer")
    assert any(row["event"] == "resume" for row in events)


def _is_trainer(process):
    try:
        return "TrainerRank" in " ".join(process.cmdline())
    except psutil.Error:
        return False
