"""Which jobs of a plan of groups are executed, what a new plan changes for them, and all checks before that starts."""

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from rlplan.cli.main import cli
from rlplan.executor.groups import member_process, prepare_group
from rlplan.executor.groups.group_change import planned_change
from rlplan.executor.groups.member_task import BAD_INPUT, DONE, FAILED, STOPPED, MemberTask
from rlplan.executor.groups.prepare_group import prepare_groups
from rlplan.executor.placement.run_placement import Room, place
from rlplan.plans.schema.workload import load_workload
from rlplan.plans.yaml.errors import InputError, RunFailed
from rlplan.plans.yaml.yaml_io import sha256_file
from rlplan.rounds.permits.move_machine import JobMove
from rlplan.traces.groups.group_journal import GROUP_JOURNAL, GROUPS_COPY

from ..test_prepare import MODEL
from ..tiny_job import make_plan, train_apart, write_plan
from .group_runs import write_member, write_workload


def solve(workload, name, *options):
    path = workload.with_name(name)
    done = CliRunner().invoke(cli, ["solve", str(workload), "-o", str(path), *map(str, options)])
    assert done.exit_code == 0, done.output
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Jobs a, b and c; `groups.yaml` is of a and b, `next.yaml` of b and c instead, solved from it."""
    folder = tmp_path_factory.mktemp("groups")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(MODEL))
    for name in "abc":
        write_member(folder, folder / "model", name)
    workload = write_workload(folder / "workload.yaml", {name: {"slo": 20.0} for name in "ab"})
    solve(workload, "groups.yaml")
    write_workload(folder / "later.yaml", {name: {"slo": 20.0} for name in "bc"})
    solve(folder / "later.yaml", "next.yaml", "--from", folder / "groups.yaml")
    return folder


def test_the_groups_of_a_plan_have_seats_and_nodes_for_their_jobs(folder, tmp_path):
    (group,) = prepare_groups(folder / "groups.yaml", None, tmp_path / "out", False)
    assert [job.name for job in group.jobs] == ["a", "b"] and group.kind == "cpu"
    assert [(room.pool, room.devices) for room in group.rooms] == [("learn", 1), ("main", 1)]
    assert group.units == ((0,), (1,)) and group.job("b").nodes == (1, 0)
    seat = group.job("b").placed
    assert seat.units == ((1,), (0,)) and seat.expected_s[0] > 0 and seat.pace_s > 0 and seat.switch_s == (0.05, 0.05)
    assert group.job("a").execution.run_dir == tmp_path / "out" / group.key / "a"
    (alone,) = prepare_groups(folder / "groups.yaml", group.key, tmp_path / "out", False)
    assert alone.job("a").execution.run_dir == tmp_path / "out" / "a"
    with pytest.raises(InputError, match="--group g77: there is no such group; there are "):
        prepare_groups(folder / "groups.yaml", "g77", tmp_path / "out", False)


def test_a_folder_takes_groups_as_they_were_started(folder, tmp_path):
    plan, out = folder / "groups.yaml", tmp_path / "out"

    def refused(says, key=None, resume=False, path=plan):
        with pytest.raises(InputError, match=says):
            prepare_groups(path, key, out, resume)

    refused("holds no run of a group to resume; run without --resume", resume=True)
    (out / "g1").mkdir(parents=True)
    journal = out / "g1" / GROUP_JOURNAL
    journal.write_text('{"event":"group","t_s":0,"group":"g1"}\n')
    assert prepare_groups(plan, None, out, False), "no turn has ended"
    refused("holds the runs of all groups of a plan; continue them as they were started", key="g1")
    refused("runs another plan of groups than .*groups.yaml is now", resume=True)
    (out / GROUPS_COPY).write_bytes(plan.read_bytes())
    assert prepare_groups(plan, None, out, True)
    refused("runs another plan", resume=True, path=folder / "next.yaml")
    journal.write_text(journal.read_text() + '{"event":"done","t_s":1,"job":"a"}\n')
    refused("holds a group's run already; continue it with --resume")
    journal.write_text("no event\n" * 2)
    refused("choose another --out")
    journal.unlink()
    (out / "trace.jsonl").write_text('{"event":"step","t_s":0}\n')
    refused("holds the run of one job; choose another --out")


def test_a_job_that_cannot_take_turns_is_refused(folder, tmp_path, monkeypatch):
    own = folder / "a" / "plan.yaml"
    text = own.read_text()
    monkeypatch.setattr(prepare_group, "changed_inputs", lambda plan, path: [])
    plan = make_plan(folder / "a", "a")
    plan["predicted"]["nodes"] = 2
    try:
        for change, says in (
            (
                lambda plan: plan,
                "job a: its plan trains on the devices of its rollout; in a group rollout and training",
            ),
            (lambda plan: train_apart(plan, streams=True), "job a: its plan trains beside its rollout"),
        ):
            write_plan(change(plan), own)
            with pytest.raises(InputError, match=says):
                prepare_groups(folder / "groups.yaml", None, tmp_path / "out", False)
    finally:
        own.write_text(text)


def test_groups_on_gpus_refuse_what_stays_there_between_turns(folder, tmp_path, monkeypatch):
    kinds = {"main": "cuda", "learn": "cuda"}

    def load(path):
        workload, cluster = load_workload(path)
        for name, kind in kinds.items():
            own = cluster.pools[name]
            accelerators = own.accelerators.model_copy(update={"kind": kind})
            cluster.pools[name] = own.model_copy(update={"accelerators": accelerators})
        return workload, cluster

    monkeypatch.setattr(prepare_group, "load_workload", load)
    plan = folder / "groups.yaml"
    (group,) = prepare_groups(plan, None, tmp_path / "out", False)
    assert group.kind == "cuda"
    job = group.jobs[0]
    planned = job.execution.plan.job
    judged = planned.model_copy(update={"reward": planned.reward.model_copy(update={"judge": "a judge"})})
    checked = replace(job.execution.checked, plan=job.execution.plan.model_copy(update={"job": judged}))
    with monkeypatch.context() as patch:
        same = replace(job, execution=replace(job.execution, checked=checked))
        patch.setattr(prepare_group, "_job", lambda *_: same)
        with pytest.raises(InputError, match=f"group {group.key}: a, a: a judge stays on its GPUs"):
            prepare_groups(plan, None, tmp_path / "out", False)
    kinds["main"] = "cpu"
    with pytest.raises(InputError, match="nodes of kind cpu and cuda"):
        prepare_groups(plan, None, tmp_path / "out", False)


def test_a_plan_whose_inputs_changed_is_refused(folder, tmp_path):
    workload = folder / "workload.yaml"
    text = workload.read_text()
    try:
        workload.write_text(text + "\n")
        with pytest.raises(InputError, match=r"workload.* changed since it was solved; solve again with --from"):
            prepare_groups(folder / "groups.yaml", None, tmp_path / "out", False)
    finally:
        workload.write_text(text)


def test_a_new_plan_says_who_leaves_moves_and_joins(folder, tmp_path):
    out = tmp_path / "out"
    plan, after = folder / "groups.yaml", folder / "next.yaml"
    with pytest.raises(InputError, match="holds no groups that run; start them with rlplan execute"):
        planned_change(out, after, ())
    (out / "g1" / "b").mkdir(parents=True)
    (out / GROUPS_COPY).write_bytes(plan.read_bytes())
    change = planned_change(out, after, ())
    (key,) = change.groups
    assert change.moves == (JobMove("a", "g1", None), JobMove("c", None, key)) and change.sha256 == sha256_file(after)
    assert [row["price_s"] for row in change.rows()] == [0.0, 55.0] and change.rows()[0]["from_group"] == "g1"
    assert [move.job for move in planned_change(out, after, ["a"]).moves] == ["c"], (
        "who has ended leaves without a move"
    )
    with pytest.raises(InputError, match="was solved anew; solve with --from"):
        planned_change(out, plan, ())
    (out / GROUPS_COPY).write_text(plan.read_text() + "\n")
    with pytest.raises(InputError, match="was solved from another plan than the one that runs"):
        planned_change(out, after, ())
    (out / GROUP_JOURNAL).write_text('{"event":"group","t_s":0,"group":"g1"}\n')
    with pytest.raises(InputError, match="runs one group alone"):
        planned_change(out, after, ())


TASK = MemberTask(
    "a", "plan.yaml", "out", "actor", "a-1", os.getpid(),
    [("n1", ["10.0.0.1", "h", [0, 1], [], [["torch", "2"]], []], True)],
    {"steps": 3, "resume": False}, [[0, 1]], tail_units=1, tail_finished=0.5,
)  # fmt: skip


def test_a_task_says_where_a_jobs_engines_are_in_its_group(tmp_path):
    TASK.write(tmp_path / "task.json")
    task = MemberTask.read(tmp_path / "task.json")
    (node,) = task.leased
    assert (node.node_id, node.facts.cores, node.facts.versions, node.part) == ("n1", (0, 1), (("torch", "2"),), True)
    placement = place(Room("p", 2, 1, 1), {1: ["one", "two"]}, {}, 0)
    assert task.engine_units(place(Room("p", 1, 2, 2), {1: ["one"]}, {}, 0)) is None, "one node, which it always has"
    units = replace(task, nodes=task.nodes * 2, units=[[0], [1, 2]]).engine_units(placement)
    assert units.of_engine == {"one": frozenset({0}), "two": frozenset({1, 2})} and units.all_units == {0, 1, 2}
    assert (units.keep, units.at_finished, units.pauses) == (1, 0.5, False)
    engines = [SimpleNamespace(name=name) for name in ("one", "two")]
    assert units.tail_of(engines) == (1, 0.5) or units.tail_of(engines).at_finished == 0.5
    assert units.tail_of(engines[1:]) is None and units.tail_of(engines[:1]) is None


@pytest.mark.parametrize(
    ("end", "code", "told"),
    [
        (True, DONE, None), (False, STOPPED, None), (InputError("no such file"), BAD_INPUT, "no such file"),
        (RunFailed("Ray is gone"), FAILED, "Ray is gone"),
    ],
)  # fmt: skip
def test_a_jobs_process_tells_lines_and_ends_as_its_execution_does(tmp_path, monkeypatch, capsys, end, code, told):
    TASK.write(tmp_path / "task.json")
    driven, signals = [], []

    def execute(executions, options, watcher, member):
        driven.append((executions, options.steps, [node.node_id for node in member.leased]))
        watcher.phase("starting Ray")
        watcher.round_begins("a", "short", 2, None)
        figures = dict.fromkeys(("total_s", "rollout_s", "train_s", "reward_mean"), 1.5)
        watcher.step_done("a", SimpleNamespace(step=2, kind="short", **figures))
        watcher.note("a note")
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.setattr(member_process, "prepare", lambda paths, out, resume: (paths[0].name, out.name, resume))
    monkeypatch.setattr(member_process, "execute", execute)
    prctl = SimpleNamespace(CDLL=lambda name: SimpleNamespace(prctl=lambda *given: signals.append(given)))
    monkeypatch.setattr(member_process, "ctypes", prctl)
    monkeypatch.setattr(member_process.os, "getppid", lambda: TASK.driver)
    monkeypatch.setattr(member_process.os, "kill", lambda *given: signals.append(given))
    assert member_process.main(str(tmp_path / "task.json")) == code
    assert driven == [(("plan.yaml", "out", False), 3, ["n1"])] and signals == [(1, 9)]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["tell"] for line in lines[:4]] == ["phase", "round", "step", "note"] and lines[2]["total_s"] == 1.5
    assert lines[4:] == ([] if told is None else [{"tell": "failed", "text": told}])
    monkeypatch.setattr(member_process.os, "getppid", lambda: 1)
    member_process.main(str(tmp_path / "task.json"))
    assert signals[1:] == [(1, 9), (os.getpid(), 9)], "its driver was gone before"
