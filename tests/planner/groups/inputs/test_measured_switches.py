"""Seconds of switches that a run of groups measured, in the workload of its plan."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import rlplan
from rlplan.cli.tune import tune_command
from rlplan.executor.groups.live_permits import LivePermits
from rlplan.planner.groups.inputs.measured_phases import DIGITS, FEWEST_TURNS, measured_switches
from rlplan.plans.schema.groups_plan import MemberPoint, load_groups_plan
from rlplan.plans.schema.workload import load_workload
from rlplan.plans.yaml.errors import InputError
from rlplan.rounds.permits.permit_events import Seat
from rlplan.traces.groups.group_turns import GROUPS_COPY, TURNS
from rlplan.traces.run_log import TRACE

from ..made import problem

EXAMPLES = Path(rlplan.__file__).parent / "plans" / "examples"
TURNS_MEASURED = FEWEST_TURNS + 3


@pytest.fixture
def files(tmp_path):
    """The shipped workload, its plan, and a run of the group in which math-7b is; returns the folder, and its jobs."""
    shutil.copytree(EXAMPLES / "groups", tmp_path / "groups")
    shutil.copy(EXAMPLES / "groups.yaml", tmp_path)
    plan = load_groups_plan(tmp_path / "groups.yaml")
    key = next(key for key, group in plan.groups.items() if "math-7b" in group.jobs)
    members = plan.groups[key].jobs
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(EXAMPLES / "groups.yaml", run / GROUPS_COPY)
    seats = [Seat(name, (m.rollout.units, m.train.units), (1.0, 1.0)) for name, m in members.items()]
    LivePermits(key, plan.rules.policy, seats, run / TURNS, lambda: 0.0).close()
    return tmp_path, members


def told(folder, turns=TURNS_MEASURED, **seconds):
    """A trace of turns of math-7b with so many seconds, in and out, of each phase's switches."""
    (folder / "run" / "math-7b").mkdir(exist_ok=True)
    with (folder / "run" / "math-7b" / TRACE).open("w", encoding="utf-8") as trace:
        for step in range(1, 1 + turns):
            for phase, (in_s, out_s) in seconds.items():
                fields = {"switch_in_s": in_s + 0.01 * (step % 2 - 0.5), "switch_out_s": out_s}
                event = {"event": "permit", "t_s": step, "step": step, "phase": phase, "waited_s": 0.0, **fields}
                trace.write(json.dumps(event) + "\n")


def tune(folder, *more, plan="groups.yaml"):
    arguments = [str(folder / "run"), *(["--plan", str(folder / plan)] if plan else []), *map(str, more)]
    return CliRunner().invoke(tune_command, arguments, catch_exceptions=False).output


def test_a_workload_gets_the_seconds_that_differ_and_keeps_the_rest(files):
    folder, members = files
    planned = members["math-7b"].train.switch_s
    told(folder, rollout=(20.0, 10.0), train=(planned - 0.1, 0.1))
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


def test_a_job_planned_with_its_group_keeps_its_switches(files):
    folder = files[0]
    plan, point = load_groups_plan(folder / "groups.yaml"), "1+1-exact"
    key, group = next(item for item in plan.groups.items() if "math-7b" in item[1].jobs)
    of_point = MemberPoint(
        name=point, nodes=(1, 1), reward_cores=8, step_s=9.0, usd_per_hour=9.0, alone=point, alone_usd_per_hour=9.0
    )
    plan.groups[key].jobs["math-7b"] = group.jobs["math-7b"].model_copy(update={"point": of_point})
    told(folder, rollout=(90.0, 9.0), train=(90.0, 9.0))
    found = measured_switches(folder / "run", plan)
    assert not any(switch.changes for switch in found) and any(switch.measured_s for switch in found)


def test_the_new_workload_is_solved_for_with_the_measured_seconds(files):
    told(files[0], rollout=(20.0, 10.0), train=(10.0, 20.0))
    tune(files[0])
    job = problem(files[0] / "groups" / "workload.tuned.yaml").jobs["math-7b"]
    assert {way.warm_s for way in (*job.rollout, *job.train)} == {30.0}, "all ways of both phases"


def test_nothing_is_written_without_enough_turns_that_differ(files):
    folder, members = files
    planned = members["math-7b"]
    told(folder, rollout=(planned.rollout.switch_s, 0.0), train=(0.0, planned.train.switch_s))
    assert "keep: no switch differs" in tune(folder)
    told(folder, FEWEST_TURNS - 1, rollout=(90.0, 9.0), train=(90.0, 9.0))
    assert "kept" in tune(folder) and not (folder / "groups" / "workload.tuned.yaml").exists()
    told(folder, FEWEST_TURNS, rollout=(90.0, 9.0), train=(90.0, 9.0))
    tune(folder)
    assert (folder / "groups" / "workload.tuned.yaml").exists()


def test_another_plan_or_none_or_another_folder_is_refused(files):
    folder, _ = files
    with pytest.raises(InputError, match="name the plan that it runs with --plan"):
        tune(folder, plan=None)
    (folder / "other.yaml").write_text((folder / "groups.yaml").read_text() + "# changed\n")
    with pytest.raises(InputError, match="runs another plan of groups"):
        tune(folder, plan="other.yaml")
    with pytest.raises(InputError, match="must be in the folder of"):
        tune(folder, "--out", folder / "elsewhere.yaml")
    plan = load_groups_plan(folder / "groups.yaml")
    (journal := folder / "run" / TURNS).write_text(journal.read_text().replace('"group":"g', '"group":"g7'))
    with pytest.raises(InputError, match="the plan has none"):
        measured_switches(folder / "run", plan)
