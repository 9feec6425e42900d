"""Groups in virtual time: driver, groups, permits, moves and jobs are real; a job's process and its node are fake."""

import asyncio
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from rlplan.executor.groups import group_run, job_process, live_group, move_driver, permit_actor
from rlplan.executor.groups.group_change import GroupChange, MoveRequest, write_request
from rlplan.executor.groups.group_run import run_groups
from rlplan.executor.groups.member_task import BAD_INPUT, DONE, FAILED, STOPPED, MemberTask
from rlplan.executor.groups.prepare_group import MemberJob, PreparedGroup, placed_job
from rlplan.executor.placement import live_nodes
from rlplan.executor.placement.live_nodes import LeasedNode, NodeFacts
from rlplan.executor.placement.run_placement import Room
from rlplan.executor.prepare import Options
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, sha256_file
from rlplan.rounds.permits.move_machine import JobMove
from rlplan.traces.groups.groups_folder import MOVES, moves_of
from rlplan.traces.trace import read_trace

from ...group_documents import group, groups_plan, member
from ..virtual_loop import now_s, played
from .test_permit_actor import Actor

ROLLOUT_S, TRAIN_S, STEPS = 60.0, 30.0, 5


def executed(plan):
    rollout = SimpleNamespace(most_tokens_per_step=1000)
    return SimpleNamespace(plan_path=plan, checked=SimpleNamespace(job=SimpleNamespace(rollout=rollout)))


class FakeProcess:
    """A job's process, which takes its turns and checkpoints each step; `world.fate` has what becomes of it instead."""

    pid, returncode = 4711, None

    def __init__(self, world, task):
        self.world, self.task, self.asked, self.stdout = world, task, 0, asyncio.StreamReader()
        self.running = asyncio.create_task(self.run())

    def tell(self, **what):
        self.stdout.feed_data(json.dumps(what).encode() + b"\n")

    async def run(self):
        try:
            self.returncode = await self.steps()
        except asyncio.CancelledError:
            self.returncode = -signal.SIGKILL
        self.stdout.feed_eof()

    async def steps(self):
        task = self.task
        fate = self.world.fate.get(task.job, lambda step, process: None)
        checkpoints = sorted(self.world.out.glob(f"*/{task.job}/checkpoints/*"))
        assert task.options["resume"] == bool(checkpoints)
        await asyncio.sleep(5)
        if fate(-1, self) == "hang":
            await asyncio.sleep(10**6)
        await task.permits.ready()
        for step in range(len(checkpoints), task.options["steps"]):
            for phase, seconds in (("rollout", ROLLOUT_S), ("train", TRAIN_S)):
                await task.permits.begin(phase)
                await asyncio.sleep(seconds)
                end = fate(step, self) if phase == "rollout" else None
                if isinstance(end, int):
                    self.tell(tell="failed", text="its model is damaged")
                    return end
                if end == "hang":
                    await asyncio.sleep(10**6)
                await task.permits.end()
            (self.world.out / task.out / "checkpoints" / f"step-{step + 1:06d}").mkdir(parents=True)
            self.tell(tell="step", step=step + 1, at_s=now_s() - 1000)
            if self.asked:
                break
        await task.permits.leave()
        return DONE if step + 1 == task.options["steps"] else STOPPED

    async def wait(self):
        await self.running
        return self.returncode

    def send_signal(self, number):
        self.asked += number == signal.SIGINT
        if number == signal.SIGKILL or self.asked > 1:
            self.running.cancel()


class World:
    """Where groups run, and who watches: `fate`, by job, is asked after each rollout; `heard` has what is told."""

    def __init__(self, folder):
        self.out, self.folder, self.fate, self.heard, self.asleep = folder / "out", folder, {}, [], []
        self.tasks, self.actors, self.killed = [], {}, []

    # -- the watcher ---------------------------------------------------------------------------------------------------

    def phase(self, text):
        self.heard.append(("phase", text))

    def jobs(self, planned):
        self.heard.append(("jobs", *planned))

    def reported(self, job, what):
        self.heard.append((job, what))

    def note(self, text):
        self.heard.append(("note", text))

    @property
    def notes(self):
        return [text for kind, text, *_ in self.heard if kind == "note"]

    def steps(self, job):
        return [what["at_s"] for who, what, *_ in self.heard if who == job and what.get("tell") == "step"]

    # -- plans ---------------------------------------------------------------------------------------------------------

    def plan(self, name="plan.yaml", **groups):
        """Groups of these jobs, each on one node to decode and one to train; returns the plan's file and the groups."""
        path = self.folder / name
        document = groups_plan({key: group({job: member() for job in jobs}) for key, jobs in groups.items()})
        dump(document, path)
        return path, [
            PreparedGroup(
                path, key, "multi_rate",
                tuple(
                    MemberJob(job, executed(self.folder / f"{job}.yaml"), placed_job(job, fields),
                              (0, 1), fields) for job, fields in each.jobs.items()
                ),
                tuple(Room(node.pool, 1, 1, 1, first=number) for number, node in enumerate(each.nodes)), ((0,), (1,)),
                "cpu",
            )
            for key, each in document.groups.items()
        ]  # fmt: skip

    def run(self, groups, alone=False, resume=False, **options):
        """How each job ended, and its restarts."""
        self.ends = run_groups(groups, self.out, alone, Options(STEPS, resume, restarts_per_hour=2, **options), self)
        return {job: (end.code, end.restarts) for job, end in self.ends.items()}


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path)

    async def start(*command, **options):
        world.tasks.append(MemberTask.read(Path(command[-1])))
        assert options["process_group"] == 0 and options["env"]["RAY_ADDRESS"] == "10.0.0.1:6379"
        return FakeProcess(world, world.tasks[-1])

    def start_permits(name, key, rule, seats, journal):
        world.actors[name] = Actor(journal.parent, seats, rule)
        return world.actors[name]

    async def sleeping(each):
        world.asleep.append([(one.pool, one.resident_bytes) for one in each])

    async def left_by(pid):
        return {"n1": [7, 8]} if pid == FakeProcess.pid else {}

    facts = NodeFacts("127.0.0.1", "here", (2, 5, 7, 9), (), ())
    context = SimpleNamespace(gcs_address="10.0.0.1:6379")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(asyncio, "run", lambda scene: played(asyncio.wait_for(scene, 20_000)))
    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    monkeypatch.setattr(group_run, "start_ray", lambda tokens: True)
    monkeypatch.setattr(group_run, "check_host_memory", sleeping)
    monkeypatch.setattr(live_nodes, "this_machine", lambda kind, devices: LeasedNode("id", facts))
    monkeypatch.setattr(live_group, "start_permits", start_permits)
    monkeypatch.setattr(live_group, "ray", SimpleNamespace(kill=lambda actor, no_restart: world.killed.append(actor)))
    monkeypatch.setattr(job_process, "left_by", left_by)
    monkeypatch.setattr(job_process, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    found = SimpleNamespace(get_actor=lambda name, _: world.actors[name], exceptions=ray.exceptions)
    monkeypatch.setattr(permit_actor, "ray", found)
    return world


def test_jobs_of_groups_run_to_their_ends_in_turns(world):
    _, groups = world.plan(g1=["a", "b"], g2=["c"])
    assert world.run(groups) == dict.fromkeys("abc", (DONE, 0))
    assert world.heard[:5] == [
        ("phase", "starting Ray"), ("jobs", "a"), ("jobs", "b"), ("jobs", "c"), ("phase", "starting a, b, c"),
    ]  # fmt: skip
    assert world.steps("c") == [95.0, 185.0, 275.0, 365.0, 455.0], "it is alone"
    assert world.steps("a")[:3] == [95.0, 215.0, 335.0] and world.steps("b")[0] == 155.0, "one decodes, one trains"
    a, b, c = sorted(world.tasks, key=lambda task: task.job)
    assert (a.plan, a.driver) == (str(world.folder / "a.yaml"), os.getpid()) and a.out == str(world.out / "g1" / "a")
    assert a.actor == b.actor != c.actor and a.units == [[0], []] and len({a.process, b.process, c.process}) == 3
    cores = [[node[1][2] for node in task.nodes] for task in (a, c)]
    assert cores == [[[2], [5]], [[7], [9]]] and all(node[2] for node in a.nodes), "each node has its own cores"
    assert (a.options["steps"], a.options["history"], a.tail_units, a.pauses) == (STEPS, None, 0, False)
    assert world.asleep == [[("roll", 1e9), ("train", 1e9)] * 2] and len(world.killed) == 2
    assert [(world.out / key / "groups.yaml").read_bytes() for key in ("g1", "g2", ".")] == [
        groups[0].plan_path.read_bytes()
    ] * 3


def test_a_job_that_dies_is_started_again_from_its_checkpoint(world):
    deaths = iter([-9])
    world.fate["a"] = lambda step, process: next(deaths, None) if step == 1 else None
    _, groups = world.plan(g1=["a", "b"])
    assert world.run(groups) == {"a": (DONE, 1), "b": (DONE, 0)}
    first, again = [task for task in world.tasks if task.job == "a"]
    assert not first.options["resume"] and again.options["resume"] and first.process != again.process
    assert world.notes == [
        "a: processes 7, 8 of it still run on node n1", "a is started again: its model is damaged",
    ]  # fmt: skip
    assert max(world.steps("b")) < max(world.steps("a")) and len(world.steps("a")) == STEPS


@pytest.mark.parametrize(
    ("code", "end", "notes"),
    [
        (FAILED, (FAILED, 0), 1),
        (BAD_INPUT, (BAD_INPUT, 0), 0),
        (-9, (FAILED, 2), 6),
    ],
)
def test_a_job_that_fails_for_good_leaves_its_group(world, code, end, notes):
    world.fate["a"] = lambda step, process: code if step == 0 else None
    _, groups = world.plan(g1=["a", "b"])
    assert (
        world.run(groups, alone=True) == {"a": end, "b": (DONE, 0)} and world.ends["a"].reason == "its model is damaged"
    )
    assert len(world.notes) == notes and world.tasks[0].out == str(world.out / "a")
    assert not notes or world.notes[-1] == "a has failed and leaves the group: its model is damaged"


@pytest.mark.parametrize(
    ("fate_at", "reason", "after_s"),
    [(0, "its rollout took more than 600 s, expected were 60 s", 605), (-1, "it was not ready within 700 s", 700)],
)
def test_a_job_that_takes_too_long_is_killed_and_started_again(world, monkeypatch, fate_at, reason, after_s):
    monkeypatch.setattr(job_process, "START_S", 700.0)
    hangs = iter(["hang"])
    world.fate["a"] = lambda step, process: next(hangs, None) if step == fate_at else None
    _, groups = world.plan(g1=["a"])
    assert world.run(groups) == {"a": (DONE, 1)}
    assert f"a is started again: {reason}" in world.notes
    assert after_s < world.steps("a")[0] < after_s + 110


@pytest.mark.parametrize(("signals", "after_s"), [(1, 95.0), (2, None)])
def test_a_stop_is_passed_on_to_all_jobs(world, signals, after_s):
    def ask(step, process):
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGINT)

    world.fate["a"] = lambda step, process: ask(step, process) if step == 0 else None
    _, groups = world.plan(g1=["a"])
    world.run(groups)
    (end,) = world.ends.values()
    if signals == 1:
        assert end[:2] == (STOPPED, f"its process ended with exit code 130; see {world.out}/g1/a/driver.log")
        assert world.steps("a") == [after_s] and not end.left
    else:
        assert end.code == FAILED and "signal 9" in end.reason and world.steps("a") == []


def moved(world, monkeypatch, moves, **groups):
    """Have a plan of these groups applied after the first step of a."""
    path, prepared = world.plan("next.yaml", **groups)
    prices = {move.job: 20.0 for move in moves}
    change = GroupChange(path, sha256_file(path), {each.key: each for each in prepared}, moves, prices)
    monkeypatch.setattr(move_driver, "planned_change", lambda out, path, ended: change)

    def ask(step, process):
        if step == 1 and not moves_of(world.out):
            write_request(world.out, MoveRequest("r1", str(path), change.sha256))

    world.fate["a"] = ask
    return prepared


MOVES_NOW = (JobMove("old", "g1", None), JobMove("mover", "g2", "g1"), JobMove("new", None, "g1"))


def test_jobs_leave_move_and_join_while_the_others_go_on(world, monkeypatch):
    _, groups = world.plan(g1=["a", "old"], g2=["mover"])
    moved(world, monkeypatch, MOVES_NOW, g1=["a", "mover", "new"])
    assert world.run(groups) == {"old": (STOPPED, 0)} | dict.fromkeys(("a", "mover", "new"), (DONE, 0))
    assert [job for job, end in world.ends.items() if end.left] == ["old"]
    told = moves_of(world.out)
    assert told["state"] == "applied" and {move["state"] for move in told["moves"]} == {"made"}
    assert (world.out / "g1" / "mover" / "checkpoints" / "step-000005").is_dir()
    assert not (world.out / "g2" / "mover").exists()
    assert [task.job for task in world.tasks].count("mover") == 2 and len(world.killed) == 2
    assert ("jobs", "a", "mover", "new") in world.heard and "all moves are made" in world.notes[-1]
    events = [(event["event"], event.get("job", "")) for event in read_trace(world.out / MOVES)]
    assert events == [
        ("groups", ""), ("wanted", ""), ("drain", "old"), ("out", "old"), ("drain", "mover"), ("out", "mover"),
        ("enter", "mover"), ("in", "mover"), ("enter", "new"), ("in", "new"), ("applied", ""),
    ]  # fmt: skip
    took = {move["job"]: move for move in told["moves"]}
    assert took["mover"]["price_s"] == 20.0 and took["mover"]["outage_s"] >= took["mover"]["start_s"] >= 5.0


def test_a_driver_that_is_started_again_makes_the_moves_that_are_left(world, monkeypatch):
    _, groups = world.plan(g1=["a", "old"], g2=["mover"])
    prepared = moved(world, monkeypatch, MOVES_NOW, g1=["a", "mover", "new"])
    fate = world.fate["a"]

    def dies(step, process):
        fate(step, process)
        if moves_of(world.out) and any(move["state"] != "planned" for move in moves_of(world.out)["moves"]):
            os.kill(os.getpid(), signal.SIGINT)

    world.fate["a"] = dies
    assert world.run(groups)["new"] == (STOPPED, 0)
    world.fate.clear()
    assert world.run(prepared, resume=True) == dict.fromkeys(("a", "mover", "new"), (DONE, 0))
    assert {move["job"]: move["state"] for move in moves_of(world.out)["moves"]}["new"] == "made"


def test_a_job_without_nodes_where_it_goes_is_given_up_in_time(world, monkeypatch):
    _, groups = world.plan(g1=["a"])
    moved(world, monkeypatch, MOVES_NOW[2:], g1=["a", "new"])
    enter = live_group.LiveGroup.enter

    async def no_nodes(self, planned, names):
        if "new" in names:
            raise InputError("pool 'roll' needs 1 node")
        await enter(self, planned, names)

    monkeypatch.setattr(live_group.LiveGroup, "enter", no_nodes)
    assert world.run(groups, node_patience_s=30.0) == {"new": (FAILED, 0), "a": (DONE, 0)}
    assert world.ends["new"].reason == "no nodes for it were found in 30 s"
    assert "new waits for nodes: pool 'roll' needs 1 node" in world.notes
