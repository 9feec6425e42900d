"""Seconds of switches that a run of groups measured, in the workload of its plan."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import rlplan
from rlplan.cli.tune import tune_command
from rlplan.executor.groups.live_permits import LivePermits
from rlplan.planner.groups.inputs.measured_switches import DIGITS, FEWEST_TURNS, measured_switches
from rlplan.planner.groups.inputs.workload_jobs import problem_of
from rlplan.plans.schema.groups_plan import load_groups_plan
from rlplan.plans.schema.workload import load_workload
from rlplan.plans.yaml.errors import InputError
from rlplan.rounds.permits.permit_events import Seat
from rlplan.traces.groups.group_turns import GROUPS_COPY, TURNS
from rlplan.traces.run_log import TRACE

EXAMPLES = Path(rlplan.__file__).parent / "plans" / "examples"
TURNS_MEASURED = FEWEST_TURNS + 3


@pytest.fixture
def files(tmp_path):
    """The shipped workload, its plan, and a run of the group in which math-7b is; returns the folder, and its jobs."""
    shutil.copytree(EXAMPLES / "groups", tmp_path / "groups")
    text = (EXAMPLES / "groups.yaml").read_text()
    (tmp_path / "groups.yaml").write_text(text)
    plan = load_groups_plan(tmp_path / "groups.yaml")
    key = next(key for key, group in plan.groups.items() if "math-7b" in group.jobs)
    members = plan.groups[key].jobs
    run = tmp_path / "run"
    run.mkdir()
    (run / GROUPS_COPY).write_text(text)
    seats = [Seat(name, (m.rollout.units, m.train.units), (1.0, 1.0)) for name, m in members.items()]
    LivePermits(key, plan.rules.policy, seats, run / TURNS, lambda: 0.0).close()
    return tmp_path, members


def told(run, job, seconds):
    """A trace of a job's turns with so many seconds, in and out, of each phase's switches."""
    (run / job).mkdir()
    with (run / job / TRACE).open("w", encoding="utf-8") as trace:
        for step in range(1, 1 + TURNS_MEASURED):
            for phase, (in_s, out_s) in seconds.items():
                fields = {"switch_in_s": in_s + 0.01 * (step % 2 - 0.5), "switch_out_s": out_s}
                event = {"event": "permit", "t_s": step, "step": step, "phase": phase, "waited_s": 0.0, **fields}
                trace.write(json.dumps(event) + "\n")


def tune(folder, *more, plan="groups.yaml"):
    done = CliRunner().invoke(tune_command, [str(folder / "run"), "--plan", str(folder / plan), *map(str, more)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def test_a_workload_has_the_seconds_that_were_measured_where_they_differ_and_all_else_as_it_was(files):
    folder, members = files
    planned = members["math-7b"].train.switch_s
    told(folder / "run", "math-7b", {"rollout": (20.0, 10.0), "train": (planned - 0.1, 0.1)})
    result = json.loads(tune(folder, "--json"))
    by_phase = {(s["job"], s["phase"]): s for s in result["switches"]}
    assert result["decision"] == "change" and {name for name, _ in by_phase} == set(members)
    changed = [where for where, switch in by_phase.items() if switch["changes"]]
    assert changed == [("math-7b", "rollout")], "the other one is as planned, and other jobs measured none"
    rollout = by_phase["math-7b", "rollout"]
    assert rollout["turns"] == TURNS_MEASURED and rollout["measured_s"] == pytest.approx(30.0, abs=0.01)
    old, new = folder / "groups" / "workload.yaml", Path(result["workload"])
    assert new == folder / "groups" / "workload.tuned.yaml"
    before, after = load_workload(old)[0], load_workload(new)[0]
    phases = after.jobs["math-7b"].phases
    assert phases.rollout.warm_s == float(f"{rollout['measured_s']:.{DIGITS}g}") and phases.train.warm_s is None
    unset = phases.model_copy(update={"rollout": phases.rollout.model_copy(update={"warm_s": None})})
    again = after.jobs["math-7b"].model_copy(update={"phases": unset})
    assert before.jobs == {**after.jobs, "math-7b": again} and before.rules == after.rules
    remarks = [line.split("#", 1)[1] for line in old.read_text().splitlines() if "#" in line]
    assert all(remark in new.read_text() for remark in remarks), "people's comments stay"


def test_the_new_workload_is_solved_for_with_the_measured_seconds(files):
    folder, _ = files
    told(folder / "run", "math-7b", {"rollout": (20.0, 10.0), "train": (10.0, 20.0)})
    tune(folder)
    path = folder / "groups" / "workload.tuned.yaml"
    workload, cluster = load_workload(path)
    job = problem_of(workload, path, cluster).jobs["math-7b"]
    assert {way.warm_s for way in (*job.rollout, *job.train)} == {30.0}, "all ways of both phases"


def test_nothing_is_written_where_switches_are_as_planned_or_too_few_were_measured(files):
    folder, members = files
    planned = members["math-7b"]
    told(
        folder / "run", "math-7b", {"rollout": (planned.rollout.switch_s, 0.0), "train": (0.0, planned.train.switch_s)}
    )
    assert "keep: no switch differs" in tune(folder)
    trace = folder / "run" / "math-7b" / TRACE
    few = [line.replace('"switch_out_s": ', '"switch_out_s": 9') for line in trace.read_text().splitlines()]
    trace.write_text("\n".join(few[: 2 * (FEWEST_TURNS - 1)]) + "\n")
    assert "kept" in tune(folder) and not (folder / "groups" / "workload.tuned.yaml").exists()


def test_another_plan_or_none_or_another_folder_is_refused(files):
    folder, _ = files
    with pytest.raises(InputError, match="name the plan that it runs with --plan"):
        CliRunner().invoke(tune_command, [str(folder / "run")], catch_exceptions=False)
    (folder / "other.yaml").write_text((folder / "groups.yaml").read_text() + "# changed\n")
    with pytest.raises(InputError, match="runs another plan of groups"):
        tune(folder, plan="other.yaml")
    with pytest.raises(InputError, match="must be in the folder of"):
        tune(folder, "--out", folder / "elsewhere.yaml")
    plan = load_groups_plan(folder / "groups.yaml")
    (journal := folder / "run" / TURNS).write_text(journal.read_text().replace('"group":"g', '"group":"g7'))
    with pytest.raises(InputError, match="the plan has none"):
        measured_switches(folder / "run", plan)
