"""Moves of a new plan on groups of the test: what is asked of whom, what is journaled, and what a new driver makes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from rlplan.executor.groups.job_process import JobEnd
from rlplan.executor.groups.member_task import DONE, FAILED, STOPPED
from rlplan.executor.groups.moves import move_driver
from rlplan.executor.groups.moves.group_change import GroupChange
from rlplan.executor.groups.moves.move_driver import MoveDriver, bring_job
from rlplan.executor.groups.moves.move_journal import MoveJournal, Request, write_request
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import sha256_file
from rlplan.rounds.permits.move_machine import JobMove
from rlplan.traces.groups.group_turns import GROUPS_COPY
from rlplan.traces.groups.groups_folder import MOVES
from rlplan.traces.groups.moves_status import moves_of, refusal_of
from rlplan.traces.trace import read_trace

MOVES_OF_B = (JobMove("old", "g1", None), JobMove("mover", "g2", "g1"), JobMove("new", None, "g1"))


class Group:
    """A group whose jobs arrive when the test says so."""

    def __init__(self, folder, key, jobs):
        self.folder, self.arrivals = folder / key, dict.fromkeys(jobs, 1)
        self.seats = {job: SimpleNamespace(pace_s=1.0) for job in jobs}
        (folder / key).mkdir(exist_ok=True)

    @property
    def state(self):
        return SimpleNamespace(arrivals=dict(self.arrivals))

    async def look(self):
        return self.state


class Running:
    """Groups of which the test says what happens; it notes what is asked."""

    def __init__(self, folder):
        self.groups = {"g1": Group(folder, "g1", ["old", "stays"]), "g2": Group(folder, "g2", ["mover"])}
        self.place = {"old": "g1", "stays": "g1", "mover": "g2"}
        self.asked, self.short, self.out = [], set(), folder

    def group_of(self, job):
        return self.place.get(job)

    def ended(self):
        return set()

    def stop_job(self, job, at_once):
        self.asked.append(("stop now" if at_once else "stop", job))

    def give_up(self, job, reason):
        self.asked.append(("give up", job))

    async def start_job(self, planned, job):
        self.asked.append(("start", job))
        bring_job(self.out, job, planned.key)
        if job in self.short:
            raise InputError("pool 'main' needs 1 node")
        self.place[job] = planned.key
        return self.groups[planned.key].arrivals.setdefault(job, 0)

    async def settle(self, plan, groups):
        self.asked.append(("settle", ""))

    def keep_nodes(self):
        self.asked.append(("keep", ""))

    def note(self, text):
        pass

    def arrive(self, job):
        self.groups[self.place[job]].arrivals[job] += 1

    def gone(self, job):
        self.place.pop(job)


GROUPS = {"g1": SimpleNamespace(key="g1"), "g2": SimpleNamespace(key="g2")}


@pytest.fixture
def running(tmp_path, monkeypatch):
    plan = tmp_path / "b.yaml"
    plan.write_text("the plan\n")
    change = GroupChange(plan, sha256_file(plan), GROUPS, MOVES_OF_B, {"old": 0.0, "mover": 20.0, "new": 20.0})
    monkeypatch.setattr(move_driver, "planned_change", lambda out, path, ended: change)
    return Running(tmp_path)


def request(folder: Path, sha256: str = "") -> str:
    write_request(folder, Request("r1", str(folder / "b.yaml"), sha256 or sha256_file(folder / "b.yaml")))
    return "r1"


def events(folder):
    return [(event["event"], event.get("job", "")) for event in read_trace(folder / MOVES)]


def test_moves_are_made_one_after_the_other_and_journaled_with_their_seconds(running, tmp_path):
    async def drive():
        driver = MoveDriver(tmp_path, MoveJournal(tmp_path), running, 600.0)
        request(tmp_path)
        await driver.look()
        assert running.asked == [("keep", ""), ("stop", "old")] and driver.under_way
        assert (tmp_path / "g1" / "groups.yaml").read_text() == (tmp_path / "groups.yaml").read_text() == "the plan\n"
        running.gone("old")
        assert not await driver.job_ended("old", JobEnd(STOPPED, "", 0))
        assert running.asked[-1] == ("stop", "mover")
        running.gone("mover")
        (tmp_path / "g2" / "mover").mkdir()
        assert await driver.job_ended("mover", JobEnd(STOPPED, "", 0))
        assert running.asked[-1] == ("start", "mover")
        assert (tmp_path / "g1" / "mover").is_dir() and not (tmp_path / "g2" / "mover").exists()
        await driver.look()
        assert running.asked[-1] == ("start", "mover"), "it is not ready yet"
        running.arrive("mover")
        await driver.look()
        assert running.asked[-1] == ("start", "new")
        running.arrive("new")
        await driver.look()
        assert running.asked[-1] == ("settle", "") and not driver.under_way
        driver.stopped()

    asyncio.run(drive())
    assert events(tmp_path) == [
        ("groups", ""), ("wanted", ""), ("drain", "old"), ("out", "old"), ("drain", "mover"), ("out", "mover"),
        ("enter", "mover"), ("in", "mover"), ("enter", "new"), ("in", "new"), ("applied", ""),
    ]  # fmt: skip
    told = moves_of(tmp_path)
    assert told["state"] == "applied" and {move["state"] for move in told["moves"]} == {"made"}
    assert [move["price_s"] for move in told["moves"]] == [0.0, 20.0, 20.0]
    assert all(("outage_s" in move) == (move["job"] != "old") for move in told["moves"])


def test_a_driver_that_is_started_again_makes_the_moves_that_are_left(running, tmp_path):
    async def first():
        driver = MoveDriver(tmp_path, MoveJournal(tmp_path), running, 600.0)
        request(tmp_path)
        await driver.look()
        running.gone("old")
        await driver.job_ended("old", JobEnd(STOPPED, "", 0))
        running.gone("mover")
        await driver.job_ended("mover", JobEnd(STOPPED, "", 0))

    asyncio.run(first())  # and it is killed while mover starts
    again = Running(tmp_path)
    again.place = {"stays": "g1"}

    async def second():
        driver = MoveDriver(tmp_path, MoveJournal(tmp_path), again, 600.0)
        assert driver.pending() == {"mover", "new"}
        await driver.go_on(GROUPS)
        assert again.asked == [("keep", ""), ("start", "mover"), ("start", "new")]
        for job in ("mover", "new"):
            again.arrive(job)
        await driver.look()
        assert again.asked[-1] == ("settle", "")

    asyncio.run(second())
    assert moves_of(tmp_path)["state"] == "applied"
    assert MoveDriver(tmp_path, MoveJournal(tmp_path), running, 600.0).pending() == set()


def test_a_job_that_fails_or_finds_no_nodes_gives_its_move_up_and_the_rest_goes_on(running, tmp_path):
    running.short = {"mover"}

    async def drive():
        driver = MoveDriver(tmp_path, MoveJournal(tmp_path), running, 0.0)  # no patience
        request(tmp_path)
        await driver.look()
        running.gone("old")
        await driver.job_ended("old", JobEnd(FAILED, "died", 0))  # it has its last checkpoint
        running.gone("mover")
        await driver.job_ended("mover", JobEnd(STOPPED, "", 0))
        assert running.asked[-1] == ("start", "new"), "others go on without it"
        running.gone("new")
        await driver.job_ended("new", JobEnd(FAILED, "its model is damaged", 0))
        driver._now.looked -= 60.0
        await driver.look()
        assert ("give up", "mover") in running.asked
        assert not driver.under_way

    asyncio.run(drive())
    states = {move["job"]: move["state"] for move in moves_of(tmp_path)["moves"]}
    assert states == {"old": "made", "mover": "failed", "new": "failed"}


def test_a_job_that_is_done_before_it_moves_stays_done(running, tmp_path):
    async def drive():
        driver = MoveDriver(tmp_path, MoveJournal(tmp_path), running, 600.0)
        request(tmp_path)
        await driver.look()
        running.gone("old")
        assert not await driver.job_ended("old", JobEnd(DONE, "", 0))
        running.gone("mover")
        assert not await driver.job_ended("mover", JobEnd(DONE, "", 0))
        assert not await driver.job_ended("stays", JobEnd(DONE, "", 0))
        assert running.asked[-1] == ("start", "new")

    asyncio.run(drive())


def test_a_plan_that_changed_since_or_comes_while_moves_are_under_way_is_refused(running, tmp_path):
    async def drive():
        driver = MoveDriver(tmp_path, MoveJournal(tmp_path), running, 600.0)
        request(tmp_path, "2" * 64)
        await driver.look()
        assert running.asked == [] and "changed after it was applied" in refusal_of(tmp_path, "r1")
        sha256 = sha256_file(tmp_path / "b.yaml")
        write_request(tmp_path, Request("r2", str(tmp_path / "b.yaml"), sha256))
        await driver.look()
        write_request(tmp_path, Request("r3", str(tmp_path / "b.yaml"), sha256))
        await driver.look()
        assert "r2 are under way" in refusal_of(tmp_path, "r3")

    asyncio.run(drive())


def test_a_plan_that_the_driver_had_not_taken_over_when_it_was_killed_is_void(running, tmp_path):
    (tmp_path / GROUPS_COPY).write_text("the plan before\n")
    journal = MoveJournal(tmp_path)
    rows = [{"job": "new", "from_group": None, "to_group": "g1", "price_s": 20.0}]
    journal.write("wanted", id="r0", plan="b.yaml", sha256=sha256_file(tmp_path / "b.yaml"), moves=rows)
    journal.close()
    driver = MoveDriver(tmp_path, MoveJournal(tmp_path), running, 600.0)
    assert driver.pending() == set() and moves_of(tmp_path) is None
    assert "before it had taken the plan over" in refusal_of(tmp_path, "r0")


def test_a_disk_that_refuses_the_plan_ends_no_job(running, tmp_path, monkeypatch):
    def full(path, text):
        raise InputError("No space left on device", str(path))

    monkeypatch.setattr(move_driver, "atomic_write", full)

    async def drive():
        driver = MoveDriver(tmp_path, MoveJournal(tmp_path), running, 600.0)
        request(tmp_path)
        await driver.look()
        assert not driver.under_way and running.asked == []
        assert "No space left" in refusal_of(tmp_path, "r1")

    asyncio.run(drive())


def test_a_job_that_leaves_and_was_killed_with_its_driver_has_left(running, tmp_path):
    async def first():
        driver = MoveDriver(tmp_path, MoveJournal(tmp_path), running, 600.0)
        request(tmp_path)
        await driver.look()

    asyncio.run(first())
    again = Running(tmp_path)
    again.place = {"stays": "g1"}

    async def second():
        driver = MoveDriver(tmp_path, MoveJournal(tmp_path), again, 600.0)
        await driver.go_on(GROUPS)
        assert {move["job"]: move["state"] for move in moves_of(tmp_path)["moves"]}["old"] == "made"

    asyncio.run(second())
