"""What becomes of moves that go wrong, on groups of the test: what is asked of whom, and what a new driver makes."""

from types import SimpleNamespace

import pytest

from rlplan.executor.groups import move_driver
from rlplan.executor.groups.group_change import GroupChange, MoveJournal, MoveRequest, take_request, write_request
from rlplan.executor.groups.job_process import JobEnd
from rlplan.executor.groups.member_task import BAD_INPUT, DONE, FAILED, STOPPED
from rlplan.executor.groups.move_driver import AGAIN_S, LEAST_DRAIN_S, MoveDriver, bring_job
from rlplan.plans.yaml.errors import InputError, RunFailed
from rlplan.plans.yaml.yaml_io import sha256_file
from rlplan.rounds.permits.move_machine import JobMove
from rlplan.traces.groups.group_turns import GROUPS_COPY
from rlplan.traces.groups.groups_folder import MOVES, moves_of, refusal_of, request_file
from rlplan.traces.trace import read_trace

from ..virtual_loop import played

PATIENCE_S = 60.0
GROUPS = {"g1": SimpleNamespace(key="g1"), "g2": SimpleNamespace(key="g2")}
CHANGES = (JobMove("old", "g1", None), JobMove("mover", "g2", "g1"), JobMove("new", None, "g1"))


class Running:
    """Groups of which the test says what happens; it notes what is asked."""

    def __init__(self, folder):
        self.out, self.asked, self.fails, self.notes = folder, [], {}, []
        self.place = {"old": "g1", "stays": "g1", "mover": "g2"}
        self.groups = {}
        for key in GROUPS:
            (folder / key).mkdir(exist_ok=True)
            seats = {job: SimpleNamespace(pace_s=50.0) for job, place in self.place.items() if place == key}
            state = SimpleNamespace(arrivals=dict.fromkeys(seats, 1))
            self.groups[key] = SimpleNamespace(folder=folder / key, seats=seats, state=state)

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
        if job in self.fails:
            raise self.fails[job]
        self.place[job] = planned.key
        return self.groups[planned.key].state.arrivals.setdefault(job, 0)

    async def settle(self, plan, groups):
        self.asked.append(("settle", ""))

    def keep_nodes(self):
        self.asked.append(("keep", ""))

    def note(self, text):
        self.notes.append(text)

    def arrive(self, job):
        self.groups[self.place[job]].state.arrivals[job] += 1


class Driven:
    """A driver of moves on groups of the test, and the words of the test to it."""

    def __init__(self, folder):
        self.folder, self.running = folder, Running(folder)
        self.driver = MoveDriver(folder, MoveJournal(folder), self.running, PATIENCE_S)

    async def apply(self, name="r1", sha256=""):
        plan = self.folder / "b.yaml"
        write_request(self.folder, MoveRequest(name, str(plan), sha256 or sha256_file(plan)))
        await self.driver.look()

    async def end(self, job, code=STOPPED, reason=""):
        self.running.place.pop(job)
        return await self.driver.job_ended(job, JobEnd(code, reason, 0))

    async def later(self, seconds):
        move_driver.asyncio.get_running_loop()._now_s += seconds
        await self.driver.look()

    def states(self):
        return {move["job"]: move["state"] for move in moves_of(self.folder)["moves"]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    plan = tmp_path / "b.yaml"
    plan.write_text("the plan\n")
    change = GroupChange(plan, sha256_file(plan), GROUPS, CHANGES, {"old": 0.0, "mover": 20.0, "new": 20.0})
    monkeypatch.setattr(move_driver, "planned_change", lambda out, path, ended: change)
    return tmp_path


def test_a_plan_is_taken_over_before_its_first_move(folder):
    async def body():
        moves = Driven(folder)
        await moves.apply()
        assert moves.running.asked == [("keep", ""), ("stop", "old")] and moves.driver.under_way
        copies = [(folder / place / GROUPS_COPY).read_text() for place in ("g1", "g2", ".")]
        assert copies == ["the plan\n"] * 3 and "3 moves to make" in moves.running.notes[0]
        assert moves.driver.stopped() == ["mover", "new"]
        assert [event["event"] for event in read_trace(folder / MOVES)][-1] == "stopped"

    played(body())


def test_a_job_that_fails_or_finds_no_nodes_gives_its_move_up(folder):
    async def body():
        moves = Driven(folder)
        moves.running.fails["mover"] = InputError("pool 'main' needs 1 node")
        await moves.apply()
        assert not await moves.end("old", FAILED, "died"), "it has its last checkpoint"
        assert await moves.end("mover") and moves.running.asked[-1] == ("start", "new"), "others go on without it"
        await moves.end("new", FAILED, "its model is damaged")
        tries = moves.running.asked.count(("start", "mover"))
        await moves.later(AGAIN_S + 1)
        assert moves.running.asked.count(("start", "mover")) == tries + 1, "its nodes are looked for again"
        await moves.later(PATIENCE_S)
        assert ("give up", "mover") in moves.running.asked and not moves.driver.under_way
        assert moves.states() == {"old": "made", "mover": "failed", "new": "failed"}

    played(body())


def test_a_group_that_fails_takes_no_other_job_along(folder):
    async def body():
        moves = Driven(folder)
        moves.running.fails["mover"] = RunFailed("its actor is gone")
        await moves.apply()
        await moves.end("old")
        await moves.end("mover")
        assert ("give up", "mover") in moves.running.asked
        moves.running.arrive("new")
        await moves.driver.look()
        assert moves.states() == {"old": "made", "mover": "failed", "new": "made"}

    played(body())


def test_a_job_that_is_done_before_it_moves_stays_done(folder):
    async def body():
        moves = Driven(folder)
        moves.running.place.pop("old")  # it ended before it was asked
        await moves.apply()
        assert moves.running.asked == [("keep", ""), ("stop", "mover")]
        assert not await moves.end("mover", DONE) and not await moves.end("stays", DONE)
        assert moves.running.asked[-1] == ("start", "new")
        assert not await moves.end("new", BAD_INPUT, "no such file")
        assert moves.states() == {"old": "ended", "mover": "ended", "new": "failed"}
        assert moves.running.asked[-1] == ("settle", "")

    played(body())


def test_a_job_that_does_not_stop_in_time_leaves_its_step(folder):
    async def body():
        moves = Driven(folder)
        await moves.apply()
        await moves.later(LEAST_DRAIN_S)
        assert ("stop now", "old") not in moves.running.asked
        await moves.later(500.0 - LEAST_DRAIN_S + 1)  # ten iterations
        await moves.later(1.0)
        assert moves.running.asked.count(("stop now", "old")) == 1

    played(body())


def test_a_plan_that_changed_or_comes_while_moves_are_made_is_refused(folder):
    async def body():
        moves = Driven(folder)
        await moves.apply("r1", "2" * 64)
        assert moves.running.asked == [] and "changed after it was applied" in refusal_of(folder, "r1")
        await moves.apply("r2")
        await moves.apply("r2")
        await moves.apply("r3")
        assert refusal_of(folder, "r2") is None and "r2 are under way" in refusal_of(folder, "r3")

    played(body())


def test_a_disk_that_refuses_the_plan_ends_no_job(folder, monkeypatch):
    def full(path, text):
        raise InputError("No space left on device", str(path))

    monkeypatch.setattr(move_driver, "atomic_write", full)

    async def body():
        moves = Driven(folder)
        await moves.apply()
        assert not moves.driver.under_way and moves.running.asked == []
        assert "No space left" in refusal_of(folder, "r1")

    played(body())


@pytest.mark.parametrize("ended", [[], ["old"], ["old", "mover"]])
def test_the_next_driver_makes_the_moves_that_are_left(folder, ended):
    async def body():
        first = Driven(folder)
        await first.apply()
        for job in ended:
            await first.end(job)
        again = Driven(folder)  # the first was killed with all its jobs
        again.running.place = {"stays": "g1"}
        assert again.driver.pending() == {"mover", "new"}
        await again.driver.go_on(GROUPS)
        assert again.running.asked == [("keep", ""), ("start", "mover"), ("start", "new")]
        assert again.states()["old"] == "made"
        for job in ("mover", "new"):
            again.running.arrive(job)
        await again.driver.look()
        assert again.running.asked[-1] == ("settle", "") and moves_of(folder)["state"] == "applied"
        assert Driven(folder).driver.pending() == set()

    played(body())


def test_a_plan_that_a_killed_driver_had_not_taken_over_is_void(folder):
    (folder / GROUPS_COPY).write_text("the plan before\n")
    journal = MoveJournal(folder)
    rows = [{"job": "new", "from_group": None, "to_group": "g1", "price_s": 20.0}]
    journal.write("wanted", id="r0", plan="b.yaml", sha256=sha256_file(folder / "b.yaml"), moves=rows)
    journal.close()
    assert Driven(folder).driver.pending() == set() and moves_of(folder) is None
    assert "before it had taken the plan over" in refusal_of(folder, "r0")


def test_a_run_is_brought_to_its_group_wherever_it_is(folder):
    (folder / "g2" / "mover" / "weights").mkdir(parents=True)
    for _ in range(2):
        bring_job(folder, "mover", "g1")
    bring_job(folder, "new", "g1")
    assert (folder / "g1" / "mover" / "weights").is_dir() and not (folder / "g2" / "mover").exists()
    assert not (folder / "g1" / "new").exists()


def test_a_request_that_cannot_be_read_holds_up_no_other(tmp_path):
    request_file(tmp_path, "a").write_text("no json")
    write_request(tmp_path, MoveRequest("b", "plan.yaml", "1" * 64))
    assert take_request(tmp_path) == MoveRequest("b", "plan.yaml", "1" * 64) and take_request(tmp_path) is None
