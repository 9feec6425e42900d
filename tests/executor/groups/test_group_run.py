"""Two jobs run as one, by the command line: real engines and trainers on shared nodes, and processes killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.faults.driver import MARK, marked_processes
from rlplan.traces.run_log import TRACE, read_run

from ..tiny_job import ALONE, make_plan, write_plan
from .group_runs import COLD_S, WAIT_S, rlplan, solved, trained, write_member, write_workload

pytestmark = pytest.mark.engine

STEPS = 4
JOBS = ("one", "two", "three")


@pytest.fixture(scope="module")
def groups(tiny_model, tmp_path_factory):
    """A plan of one group of two jobs, whose own plans have trainers on a pool of their own; beside it another job."""
    folder = tmp_path_factory.mktemp("group")
    for seed, name in enumerate(JOBS):
        write_member(folder, tiny_model, name, seed=seed)
    return solved(write_workload(folder / "workload.yaml", {name: {"slo": 2.5} for name in JOBS[:2]}))


def wait_for_step(run: Path, step: int, driver: subprocess.Popen[str]) -> None:
    """Wait until a run has done so many steps."""
    deadline = time.monotonic() + WAIT_S
    while not (run / TRACE).exists() or len(read_run(run / TRACE).steps) < step:
        assert driver.poll() is None and time.monotonic() < deadline, "the run made no progress"
        time.sleep(0.2)


def test_kills_a_leave_and_a_join_lose_no_sample(groups, tmp_path, execute):
    out, folder, token = tmp_path / "runs", groups.parent, "group-under-kills"
    write_workload(folder / "workload2.yaml", {name: {"slo": 2.5} for name in ("one", "three")})
    solved_anew = rlplan("solve", folder / "workload2.yaml", "--from", groups, "-o", folder / "new.yaml")
    assert solved_anew.returncode == 0, solved_anew.stderr
    command = [sys.executable, "-m", "rlplan.cli.main", "execute", str(groups), "--steps", "4000", "--out", str(out)]
    command += ["--checkpoint-every", "1", "--json"]
    driver = subprocess.Popen(command, env={**ALONE, MARK: token}, cwd="/", stdout=subprocess.PIPE, text=True)
    try:
        for victim, job, step in (("two/.task.json", "two", 1), ("ray::PermitActor", "one", 3)):
            wait_for_step(out / "g1" / job, step, driver)
            struck = [process for process in marked_processes(token) if victim in process.command]
            assert struck
            for process in struck:
                os.kill(process.pid, signal.SIGKILL)
        wait_for_step(out / "g1" / "two", STEPS, driver)

        dry = rlplan("apply", folder / "new.yaml", "--out", out, "--dry-run")
        assert dry.returncode == 0 and "two" in dry.stdout and "three" in dry.stdout, dry.stderr
        applied = rlplan("apply", folder / "new.yaml", "--out", out, "--json")
        assert applied.returncode == 0, applied.stderr
        moves = {move["job"]: move for move in json.loads(applied.stdout)["moves"]}
        assert {move["state"] for move in moves.values()} == {"made"}
        assert (moves["two"]["to_group"], moves["three"]["from_group"]) == (None, None)
        # As long as on idle cores, and longer: "one" decodes for 1.0 s of its 1.2 s on the core where "three" starts.
        assert moves["three"]["price_s"] == pytest.approx(COLD_S * (1 + 1.0 / 1.2)) and moves["three"]["outage_s"] > 0.0
        wait_for_step(out / "g1" / "three", 1, driver)
        status = json.loads(rlplan("status", out, "--json").stdout)
        assert status["running"] and status["jobs"].keys() == {"one", "three"} and status["moves"]["state"] == "applied"
        again = rlplan("apply", folder / "new.yaml", "--out", out)
        assert again.returncode == 0 and "applied in" in again.stdout
        old = rlplan("apply", groups, "--out", out)
        assert old.returncode == 2 and "was solved anew; solve with --from" in old.stderr
        driver.send_signal(signal.SIGINT)
        printed, _ = driver.communicate(timeout=WAIT_S)
    finally:
        driver.kill()
        driver.wait()
    result = json.loads(printed)
    assert driver.returncode == 130 and result["jobs"]["two"]["left"] and not result["jobs"]["one"]["left"]
    assert result["jobs"]["two"]["restarts"] >= 1 and result["jobs"]["one"]["restarts"] == 0
    assert read_run(out / "g1" / "one" / TRACE).resumes == 0 < read_run(out / "g1" / "two" / TRACE).resumes
    assert any((out / "g1" / "two" / "checkpoints").glob("*step-*"))
    report = rlplan("report", out, "--json")
    assert json.loads(report.stdout)["groups"]["g1"]["left"].keys() == {"two"}, report.stderr
    for name in ("one", "two"):
        alone = write_plan(make_plan(folder / name, name), folder / name / "alone.yaml")
        assert execute(alone, "--out", tmp_path / name, "--steps", STEPS) == 0
        assert trained(out / "g1" / name, STEPS) == trained(tmp_path / name, STEPS)


def test_states_without_memory_are_refused_before_any_start(groups, tmp_path):
    plan, beyond = groups.with_name("beyond.yaml"), 10**15
    text = re.sub(r"(resident|host_memory)_bytes: [0-9.e+]+", rf"\1_bytes: {beyond}", groups.read_text())
    plan.write_text(text)
    done = rlplan("execute", plan, "--group", "g1", "--steps", STEPS, "--out", tmp_path / "runs")
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert re.search(
        r"pool 'learn', 'main'\) has .* of host memory free, and states .* take 2 PB as planned", done.stderr
    ), done.stderr
    assert not list((tmp_path / "runs").glob("*/.task.json"))
