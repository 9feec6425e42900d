"""The actor that gives permits, and a job's side of it: in virtual time in this process, and in Ray, which kills it."""

import asyncio
from types import SimpleNamespace

import pytest
import ray

from rlplan.executor.groups import permit_actor
from rlplan.executor.groups.live_permits import LivePermits
from rlplan.executor.groups.permit_actor import (
    ACTOR_S,
    CALL_S,
    GroupState,
    MemberPermits,
    PermitActor,
    ask,
    membership,
    start_permits,
)
from rlplan.executor.processes.actors import start_ray
from rlplan.plans.yaml.errors import RunFailed
from rlplan.rounds.permits.permit_events import PlacedJob
from rlplan.traces.groups.group_journal import GROUP_JOURNAL, read_group_journal

from ..engines.engine_fakes import Method
from ..virtual_loop import now_s, played
from .test_live_permits import PAUSES, TAILS

SECONDS = {"a": (60.0, 30.0), "b": (40.0, 50.0), "c": (20.0, 20.0)}
SEATS = [PlacedJob(job, ((0,), (1,)), each) for job, each in SECONDS.items()]
ITERATIONS = 6


async def train(name, job, unit_s=1.0):
    """A job with devices that are clocks; it begins its third rollout twice, as one whose trainer died does."""
    permits = MemberPermits(name, job, f"process of {job}")
    async with membership(permits):
        for iteration in range(ITERATIONS):
            for phase, seconds in zip(("rollout", "train"), SECONDS[job], strict=True):
                await permits.begin(phase)
                assert permits.phase == phase
                await asyncio.sleep(seconds * unit_s)
                if iteration == 2 and phase == "train":
                    await permits.begin("rollout")
                    await permits.begin("train")
                await permits.end()
                assert permits.phase is None


def check(folder):
    """Each job had its turns in order, and they follow from the journal's events."""
    turns = read_group_journal(folder / GROUP_JOURNAL)
    for job in SECONDS:
        ended = [turn for turn in turns.spans if turn.job == job and turn.ended]
        assert [turn.phase for turn in ended] == ["rollout", "train"] * (ITERATIONS + 1)
    LivePermits("g1", "multi_rate", SEATS, folder / GROUP_JOURNAL).close()  # else it is refused


class Actor:
    """Ray's handle of an actor in this process; `kill` ends it, and another goes on with its journal."""

    def __init__(self, folder, seats, rule="multi_rate"):
        self._new = lambda: PermitActor("g1", rule, seats, str(folder / GROUP_JOURNAL), now_s)
        self._actor, self._alive, self.calls = self._new(), asyncio.Event(), []

    def __getattr__(self, method):
        return Method(lambda *arguments: self._call(method, *arguments))

    async def _call(self, method, *arguments):
        self.calls.append(arguments[0] if method == "report" else method)
        actor, alive = self._actor, self._alive
        call, death = (asyncio.ensure_future(each) for each in (getattr(actor, method)(*arguments), alive.wait()))
        await asyncio.wait({call, death}, return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if not call.done():
            call.cancel()
            raise ray.exceptions.ActorDiedError()
        try:
            return call.result()
        except RunFailed as error:
            raise ray.exceptions.RayTaskError("turn", "", error) from None

    def kill(self):
        self._actor._permits.close()
        self._alive.set()
        self._actor, self._alive = self._new(), asyncio.Event()


@pytest.fixture
def in_process(tmp_path, monkeypatch):
    """Have `body(actor)` take place in virtual time with the actor of a group of these seats."""

    def run(seats, body, rule="multi_rate"):
        async def scene():
            actor = Actor(tmp_path, seats, rule)

            def get_actor(name, namespace):
                if (name, namespace) != ("g1", permit_actor.NAMESPACE):
                    raise ValueError("no such actor")
                return actor

            found = SimpleNamespace(get_actor=get_actor, exceptions=ray.exceptions)
            monkeypatch.setattr(permit_actor, "ray", found)
            await body(actor)

        try:
            played(asyncio.wait_for(scene(), 10**5))
        finally:
            monkeypatch.undo()

    return run


def test_turns_go_on_where_they_stood_when_the_actor_dies(in_process, tmp_path):
    async def body(actor):
        async def kill():
            for _ in range(3):
                await asyncio.sleep(70)
                actor.kill()

        await asyncio.gather(*(train("g1", job) for job in SECONDS), kill())
        state = GroupState(*await ask(lambda: actor, "state"))
        assert state.held == {} and state.arrivals == {"a": -1, "b": -1, "c": -1} and state.now_s == now_s() - 1000

    in_process(SEATS, body)
    check(tmp_path)


def test_a_job_waits_for_its_turn_and_gives_its_devices_free_first(in_process):
    async def body(actor):
        a, b, freed = MemberPermits("g1", "a", "pa"), MemberPermits("g1", "b", "pb"), []
        await a.ready()
        b.before_end = lambda: asyncio.sleep(2.0, freed.append(b.phase))
        async with membership(None):
            begins = asyncio.create_task(a.begin("rollout"))
        await asyncio.sleep(12)
        await b.ready()
        await begins
        assert a.waited_s == pytest.approx(12.0) and a.phase == "rollout" and await b.holding() is None
        waits = asyncio.create_task(b.begin("rollout"))
        await asyncio.sleep(60)
        await a.end()
        await waits
        assert b.waited_s == pytest.approx(60.0) and (await b.holding()).units == (0,)
        await b.end()
        await b.end()
        assert freed == ["rollout"] and actor.calls.count("done") == 2
        with pytest.raises(RunFailed, match="permits of the group: b: its process gone has ended"):
            b._process = "gone"
            await b.leave()
            await b.ready()

    in_process(SEATS[:2], body)


def test_a_job_follows_its_units_and_says_what_it_left(in_process):
    async def body(actor):
        a, b = MemberPermits("g1", "a", "pa"), MemberPermits("g1", "b", "pb")
        await asyncio.gather(a.ready(), b.ready())
        await a.begin("rollout")
        held = await a.holding()
        waits, begins = asyncio.create_task(a.holding(held.since_s)), asyncio.create_task(b.begin("rollout"))
        began = now_s()
        assert (await waits).units == (0, 1) and now_s() - began == pytest.approx(permit_actor.ASK_S)
        waits = asyncio.create_task(a.holding(held.since_s))
        await asyncio.sleep(1)
        await a.tail()
        kept = await waits
        assert kept.units == (0,) and not begins.done()
        await a.released(kept.since_s)
        await begins
        assert (await b.holding()).units == (1,)
        seat = PlacedJob("d", ((7,), (8,)), (1.0, 1.0))
        await ask(lambda: actor, "report", "place_job", seat)
        await ask(lambda: actor, "report", "remove_job", "b")
        assert set(GroupState(*await ask(lambda: actor, "state")).arrivals) == {"a", "d"}

    in_process(TAILS[:2], body, "first_come")


def test_a_turn_that_was_paused_meanwhile_lets_the_urgent_one_begin(in_process):
    async def body(actor):
        a, b = MemberPermits("g1", "a", "pa"), MemberPermits("g1", "b", "pb")
        await a.ready()
        await ask(lambda: actor, "report", "place_job", PAUSES[1])
        await asyncio.sleep(1)
        await b.ready()
        begins = asyncio.create_task(a.begin("rollout"))
        await b.begin("rollout")
        assert not begins.done()
        await asyncio.sleep(4)
        await b.end()
        await begins
        assert a.phase == "rollout" and (await a.holding()).units == (0, 1)
        await asyncio.sleep(1)
        await b.begin("train")
        await b.end()
        assert (await a.holding()).units == (), "b is in a hurry again"
        await a.begin("train")
        assert a.phase == "train", "its rollout ended while it was paused"

    in_process(PAUSES[:1], body)


@pytest.mark.parametrize("dies", [False, True])
def test_the_actor_wakes_its_machine_when_it_is_due(in_process, dies):
    """A job that would make a pressed one late is held back until it would be late itself (rounds/permits)."""
    tight, lax = (PlacedJob(job, ((0,), (1,)), each, pace_s=slo * sum(each)) for job, each, slo in (
        ("tight", (80.0, 77.0), 1.1), ("lax", (888.0, 559.0), 2.0),
    ))  # fmt: skip

    async def body(actor):
        a, b = MemberPermits("g1", "tight", "pa"), MemberPermits("g1", "lax", "pb")
        await asyncio.gather(a.ready(), b.ready())
        await a.begin("rollout")
        await asyncio.sleep(80)
        await a.end()
        due_s = (2.0 - 1.0) * (888 + 559) - 80
        assert GroupState(*await ask(lambda: actor, "state")).wake_s == due_s
        await ask(lambda: actor, "wake")
        assert GroupState(*await ask(lambda: actor, "state")).wake_s == due_s, "it is not due yet"
        if dies:
            actor.kill()
        await b.begin("rollout")
        assert now_s() == pytest.approx(1000 + due_s)

    in_process((tight, lax), body)


@pytest.mark.parametrize("gone", ["is not there", "does not answer"])
def test_a_job_that_finds_no_actor_gives_up_in_time(in_process, gone):
    async def body(actor):
        began = now_s()
        actor._actor.report = lambda *arguments: asyncio.sleep(10**6)
        with pytest.raises(RunFailed, match=f"actor that gives permits is gone for {ACTOR_S:.0f} s"):
            await MemberPermits("nobody" if "there" in gone else "g1", "a", "p").ready()
        assert ACTOR_S < now_s() - began <= ACTOR_S + (1 if "there" in gone else CALL_S + 1)

    in_process(SEATS, body)


@pytest.mark.search
def test_turns_go_on_in_ray_where_they_stood_when_the_actor_dies(tmp_path, loop):
    start_ray()
    actor = start_permits("permits-test", "g1", "multi_rate", SEATS, tmp_path / GROUP_JOURNAL)

    async def kill():
        for _ in range(3):
            await asyncio.sleep(0.7)
            ray.kill(actor, no_restart=False)

    async def run():
        async with asyncio.timeout(120):
            await asyncio.gather(*(train("permits-test", job, 0.002) for job in SECONDS), kill())

    loop.run_until_complete(run())
    check(tmp_path)
