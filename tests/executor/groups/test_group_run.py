"""Two jobs run as one, by the command line: real engines and trainers on shared nodes, and processes killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from benchmarks.faults.driver import MARK, marked_processes
from rlplan.executor.groups import prepare_group
from rlplan.executor.groups.prepare_group import prepare_groups
from rlplan.plans.schema.plan import Plan
from rlplan.plans.schema.workload import load_workload
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump
from rlplan.traces.groups.group_turns import TURNS
from rlplan.traces.run_log import TRACE, read_run
from rlplan.traces.trace import read_trace

from ..test_execute import JOB, plan_document, write_files
from .group_runs import APART, WAIT_S, all_steps, executed, rlplan, solved

pytestmark = pytest.mark.engine

STEPS = 5
JOBS = ("one", "two")

WORKLOAD = """\
rlplan_workload: 1
cluster: cluster.yaml
jobs:
"""
MEMBER = """\
  {name}:
    slo: 2.5
    source: {{plan: {name}/plan.yaml}}
    phases:
      rollout: {{pool: main, warm_s: 0.1, resident_bytes: 1000000000}}
      train: {{pool: learn, warm_s: 0.1, resident_bytes: 1000000000}}
    cold_s: 30.0
"""


@pytest.fixture(scope="module")
def groups(tiny_model, tmp_path_factory):
    """A plan of one group of two jobs, whose own plans have trainers on a pool of their own."""
    folder = tmp_path_factory.mktemp("group")
    for seed, name in enumerate((*JOBS, "three")):
        (folder / name).mkdir()
        job = JOB.replace("name: tiny", f"name: {name}").replace("seed: 3", f"seed: {seed}")
        write_files(folder / name, tiny_model, job.replace("48}", "48, seed_per_sample: true}"), APART)
        plan = plan_document(folder / name).model_dump(mode="json")
        plan["job"] |= {"name": name, "placement": {"train_pool": "learn", "streams": False}}
        plan["predicted"] |= {"nodes": 2, "train_nodes": 1}
        dump(Plan.model_validate(plan), folder / name / "plan.yaml")
    (folder / "cluster.yaml").write_text(APART)
    (folder / "workload.yaml").write_text(WORKLOAD + "".join(MEMBER.format(name=name) for name in JOBS))
    return solved(folder)


@pytest.fixture(scope="module")
def undisturbed(groups, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "runs"
    done = executed(groups, STEPS, out)
    assert json.loads(done.stdout) == {
        "out": str(out), "groups": ["g1"], "finished": True,
        "jobs": {name: {"finished": True, "left": False, "reason": "", "restarts": 0} for name in JOBS},
    }  # fmt: skip
    return out


def wait_for_step(run: Path, step: int, driver: subprocess.Popen[str]) -> None:
    """Wait until a run has done so many steps."""
    deadline = time.monotonic() + WAIT_S
    while not (run / TRACE).exists() or len(read_run(run / TRACE).steps) < step:
        assert driver.poll() is None and time.monotonic() < deadline, "the run made no progress"
        time.sleep(0.2)


def trained(out: Path, names: tuple[str, ...] | list[str] = JOBS) -> dict[str, list[tuple[int, str, int, int, float]]]:
    """By job, its trained samples with step, length and reward."""
    return {
        name: sorted(
            (step, row["prompt"], row["sample"], row["tokens"], row["reward"])
            for step, rows in read_run(out / "g1" / name / TRACE).samples.items()
            for row in rows
            if row["fate"] == "trained"
        )
        for name in names
    }


def test_jobs_take_turns_and_none_computes_on_units_of_another(undisturbed):
    running: dict[int, str] = {}
    turns = dict.fromkeys(JOBS, 0)
    for event in read_trace(undisturbed / "g1" / TURNS):
        if event["event"] in ("done", "leave"):
            running = {unit: job for unit, job in running.items() if job != event["job"]}
        for turn in event.get("begun", ()):
            assert not running.keys() & set(turn["units"]), "a unit with two holders"
            running |= dict.fromkeys(turn["units"], turn["job"])
            assert turn["turn"] == turns[turn["job"]] and turn["phase"] == ("rollout", "train")[turn["turn"] % 2]
            turns[turn["job"]] += 1
    assert min(turns.values()) >= 2 * STEPS
    for name in JOBS:
        log = all_steps(undisturbed / "g1" / name, STEPS)
        waited = [event for event in log.events if event["event"] == "permit"]
        assert {event["phase"] for event in waited} == {"rollout", "train"}


def test_kills_a_leave_and_a_join_cost_the_other_job_nothing_and_no_sample_is_lost(groups, undisturbed, tmp_path):
    out, folder, token = tmp_path / "runs", groups.parent, "group-under-kills"
    (folder / "workload2.yaml").write_text(WORKLOAD + "".join(MEMBER.format(name=name) for name in ("one", "three")))
    solved = rlplan("solve", folder / "workload2.yaml", "--from", groups, "-o", folder / "new.yaml")
    assert solved.returncode == 0, solved.stderr
    command = [sys.executable, "-m", "rlplan.cli.main", "execute", str(groups), "--steps", "4000", "--out", str(out)]
    command += ["--checkpoint-every", "1", "--json"]
    environment = {**os.environ, MARK: token}
    driver = subprocess.Popen(command, env=environment, cwd="/", stdout=subprocess.PIPE, text=True)
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
        # 30 s on idle cores; "one" decodes for 1.0 s of its 1.2 s on the core where "three" starts.
        assert moves["three"]["price_s"] == pytest.approx(30.0 * (1 + 1.0 / 1.2)) and moves["three"]["outage_s"] > 0.0
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
    first_steps = {name: [row for row in rows if row[0] <= STEPS] for name, rows in trained(out).items()}
    assert first_steps == trained(undisturbed)
    assert any((out / "g1" / "two" / "checkpoints").glob("*step-*"))
    report = rlplan("report", out, "--json")
    assert json.loads(report.stdout)["groups"]["g1"]["left"].keys() == {"two"}, report.stderr


def test_states_that_the_nodes_have_no_memory_for_are_refused_before_any_job_starts(groups, tmp_path):
    plan, beyond = groups.with_name("beyond.yaml"), 10**15
    text = re.sub(r"(resident|host_memory)_bytes: [0-9.e+]+", rf"\1_bytes: {beyond}", groups.read_text())
    plan.write_text(text)
    done = rlplan("execute", plan, "--group", "g1", "--steps", STEPS, "--out", tmp_path / "runs")
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert re.search(
        r"pool 'learn', 'main'\) has .* of host memory free, and states .* take 2 PB as planned", done.stderr
    ), done.stderr
    assert not list((tmp_path / "runs").glob("*/.task.json"))


def test_groups_on_gpus_are_prepared_and_what_would_stay_on_one_between_turns_is_refused(groups, tmp_path, monkeypatch):
    kinds = {"main": "cuda", "learn": "cuda"}

    def load(path):
        workload, cluster = load_workload(path)
        for name, kind in kinds.items():
            own = cluster.pools[name]
            cluster.pools[name] = own.model_copy(
                update={"accelerators": own.accelerators.model_copy(update={"kind": kind})}
            )
        return workload, cluster

    monkeypatch.setattr(prepare_group, "load_workload", load)
    prepared = prepare_groups(groups, "g1", tmp_path / "out", False)
    assert [group.kind for group in prepared] == ["cuda"]
    job = prepared[0].jobs[0]
    with_judge = job.execution.plan.job.reward.model_copy(update={"judge": "a judge"})
    plan = job.execution.plan.model_copy(
        update={"job": job.execution.plan.job.model_copy(update={"reward": with_judge})}
    )
    execution = replace(job.execution, checked=replace(job.execution.checked, plan=plan))
    monkeypatch.setattr(prepare_group, "_job", lambda *_: replace(job, execution=execution))
    with pytest.raises(InputError, match="group g1: one, one: a judge stays on its GPUs"):
        prepare_groups(groups, "g1", tmp_path / "out", False)
    kinds["main"] = "cpu"
    with pytest.raises(InputError, match="nodes of kind cpu and cuda"):
        prepare_groups(groups, "g1", tmp_path / "out", False)


def test_a_plan_of_groups_whose_jobs_changed_or_cannot_take_turns_is_refused(groups, tmp_path):
    assert {room.pool for room in prepare_groups(groups, "g1", tmp_path / "out", False)[0].rooms} == {"main", "learn"}
    folder = tmp_path / "copy"
    shutil.copytree(groups.parent, folder, ignore=shutil.ignore_patterns("model"))
    for name in JOBS:
        (folder / name / "model").symlink_to(groups.parent / name / "model")
    own = folder / "one" / "plan.yaml"
    own.write_text(own.read_text().replace("{train_pool: learn", "{train_pool: learn, streams: true"))
    with pytest.raises(InputError, match=r"one/plan\.yaml changed since it was solved"):
        prepare_groups(folder / "groups.yaml", None, tmp_path / "out", False)
    done = rlplan("solve", folder / "workload.yaml", "-o", folder / "new.yaml")
    assert done.returncode == 0, done.stderr
    with pytest.raises(InputError, match="job one: its plan trains beside its rollout") as refused:
        prepare_groups(folder / "new.yaml", None, tmp_path / "out", False)
    assert str(own) in str(refused.value) and not (tmp_path / "out").exists()
