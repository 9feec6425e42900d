"""Groups of trainer ranks: what their calls ask, and what becomes of them that lose one; the ranks are fakes."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from rlplan.executor.processes import supervision
from rlplan.executor.processes.faults import InfrastructureFailed
from rlplan.executor.processes.supervision import Patience, Supervisor
from rlplan.executor.trainer import trainer_group as trainers
from rlplan.executor.trainer.train_samples import ReplicaShare, TrainSample
from rlplan.executor.trainer.trainer_config import Divisors, TrainerConfig, UpdateSettings
from rlplan.executor.trainer.trainer_group import (
    PULSE_GROUP,
    WRITER_GROUP,
    PredictedCalls,
    TrainerDied,
    TrainerGroup,
    while_trainer_lives,
)
from rlplan.plans.schema.algorithm import Algorithm
from rlplan.plans.yaml.errors import RunFailed
from rlplan.rounds.device_ledger import MOMENTS, PARAMETERS

from ..engines.engine_fakes import Ref


def raised_in_task(error):
    return ray.exceptions.RayTaskError("Trainer.step", f"Traceback ...\n{error!r}", error).as_instanceof_cause()


CLOSED = raised_in_task(RuntimeError("[/gloo/transport/tcp/pair.cc:537] Read error: Connection closed by peer"))
FULL = raised_in_task(OSError(28, "No space left on device"))
DEAD = ray.exceptions.ActorDiedError()
ECC = raised_in_task(RuntimeError("CUDA error: uncorrectable ECC error encountered"))
NO_MEMORY = raised_in_task(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
PEER = raised_in_task(RuntimeError("NCCL error: remote process exited or there was a network error"))
OWN = raised_in_task(RuntimeError("NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"))
HANGS = object()


UPDATE = UpdateSettings(64)


class Method:
    def __init__(self, rank, name, thread=None):
        self._rank, self._name, self._thread = rank, name, thread

    def options(self, concurrency_group):
        return Method(self._rank, self._name, concurrency_group)

    def remote(self, *arguments):
        self._rank.calls.append((self._name, arguments, self._thread))
        return Ref(self._rank.answer(self._name))


class FakeRank:
    """Answers with its number, or as `fate` says of a method: by an error, never, after seconds (a float), or else."""

    def __init__(self, number, fate):
        self.number, self.fate, self.calls = number, dict(fate), []

    def __getattr__(self, name):
        return Method(self, name)

    async def answer(self, name):
        fate = self.fate.get(name, (self.number, self.number, 0.5) if name == "construct" else self.number)
        if fate is HANGS:
            await asyncio.Event().wait()
        if isinstance(fate, Exception):
            await asyncio.sleep(0.01 * self.number)
            raise fate
        if isinstance(fate, float):
            await asyncio.sleep(fate)
            return self.number
        return fate


class Group(TrainerGroup):
    """A group over fake ranks; `fates` are of each rank, in the first launch and in those that follow."""

    def __init__(self, *launches, placer=None):
        async def pause(seconds):
            return None

        supervisor = Supervisor(Patience(stall_s=0.2), pause=pause)
        config = TrainerConfig("", Algorithm(name="grpo", learning_rate=0.1), UPDATE, 2, 1.0, Divisors(1.0, 1.0, 1))
        super().__init__("run", replace(config, ranks=len(launches[0])), supervisor, placer, spawn=self._fakes)
        self.launches, self.spawned_on = list(launches), []

    def _fakes(self, config, seats):
        self.spawned_on.append(seats)
        fates = self.launches.pop(0) if len(self.launches) > 1 else self.launches[0]
        return [FakeRank(number, fate) for number, fate in enumerate(fates)]


@pytest.fixture(autouse=True)
def ended(monkeypatch):
    """The ranks that were ended; all waits are short."""
    found = []
    monkeypatch.setattr(trainers, "end_actor", found.append)
    for name, seconds in {"OTHERS_S": 0.2, "PULSE_S": 0.02, "BORN_S": 0.3}.items():
        monkeypatch.setattr(trainers, name, seconds)
    monkeypatch.setattr(supervision, "LOOK_S", 0.02)
    monkeypatch.setattr(trainers.ray, "put", lambda groups: ("stored", groups))
    return found


def outcome(group, call=lambda group: group.step([])):
    async def body():
        await group.start()
        try:
            return await call(group)
        finally:
            await group.close()

    return asyncio.run(asyncio.wait_for(body(), 20))


@pytest.mark.parametrize(
    "fates",
    [
        [{"step": CLOSED}, {"step": DEAD}],  # the survivor tells first
        [{"step": raised_in_task(RuntimeError("what no table knows"))}, {"step": DEAD}],
        [{"step": HANGS}, {"step": DEAD}],  # the survivor waits for ever
        [{"step": CLOSED}, {"step": HANGS}],
    ],
)
def test_a_dead_rank_is_a_death_whatever_the_survivor_says(fates, ended):
    with pytest.raises(TrainerDied, match="trainer run: step: "):
        outcome(Group(fates))
    assert {rank.number for rank in ended} == {0, 1}, "the survivor is ended too"


@pytest.mark.parametrize(
    ("fates", "blamed"),
    [
        ([{"step": CLOSED}, {"step": DEAD}], [("run", 1)]),
        ([{}, {"pid": DEAD, "step": HANGS}], [("run", 1)]),
        ([{"step": CLOSED}, {"step": CLOSED}], []),
        ([{"step": HANGS}, {"step": ECC}], [("run", 1)]),
        ([{"step": OWN}, {"step": PEER}], [("run", 0)]),
        ([{"step": PEER}, {"step": DEAD}], [("run", 1)]),
        ([{"step": HANGS}, {"step": NO_MEMORY}], []),
        ([{"step": DEAD}, {"step": DEAD}, {"step": ECC}], [("run", 2)]),  # the watchdog of NCCL ended the others
        ([{"pid": DEAD, "step": DEAD}, {"step": ECC}], [("run", 1)]),
        ([{"step": DEAD}, {"step": DEAD}], []),
        ([{"pid": DEAD, "step": HANGS}, {"pid": DEAD, "step": HANGS}], []),
        ([{"step": ECC}, {"step": ECC}], []),
    ],
)
def test_the_rank_that_died_is_blamed_and_not_those_that_lost_it(fates, blamed):
    found = []

    async def ranks(plan, patience_s):
        return []

    placer = SimpleNamespace(ranks=ranks, rank_failed=lambda plan, rank, why: found.append((plan, rank)))
    with pytest.raises(TrainerDied):
        outcome(Group(fates, placer=placer))
    assert found == blamed, "once, though all are ended then"


@pytest.mark.parametrize("other", [HANGS, 0])
def test_a_fault_in_a_ranks_work_ends_the_run_with_its_words(other, ended):
    async def call(group):
        with pytest.raises(RunFailed, match=r"trainer run failed in step: ValueError: a group of 3, not 4") as fault:
            await group.step([])
        assert not isinstance(fault.value, TrainerDied)
        # Who has not answered is in the middle of a collective, which it cannot take up again.
        assert bool(ended) == (other is HANGS)

    outcome(Group([{"step": raised_in_task(ValueError("a group of 3, not 4"))}, {"step": other}]), call)


def test_a_rank_without_sign_of_life_is_named_while_a_step_runs():
    async def call(group):
        group._ranks[1].fate["pid"] = HANGS
        return await group.step([])

    with pytest.raises(TrainerDied, match="no sign of life of rank 1 of 2"):
        outcome(Group([{"step": HANGS}, {"step": HANGS}]), call)
    assert outcome(Group([{"step": 0.5, "pid": 0.06}, {"pid": 0.06}])) == 0, "slow signs of life are some"


def test_a_live_rank_that_answers_too_late_costs_the_group(monkeypatch, ended):
    monkeypatch.setattr(trainers, "CALL_DEADLINE_S", 0.1)
    with pytest.raises(TrainerDied, match="no answer to stage within 0 s"):
        outcome(Group([{}, {"stage": HANGS}]), lambda group: group.stage())
    assert len(ended) >= 2


@pytest.mark.parametrize("fails", [2, 99])
def test_a_full_object_store_is_met_before_any_rank_changes(monkeypatch, fails):
    puts, begun = [], []

    def put(share):
        puts.append(share)
        if len(puts) <= fails:
            raise ray.exceptions.ObjectStoreFullError("the store and the disk behind it are full")
        return share

    async def at_once(call):
        return await supervision.again_while_it_passes(call, pause=lambda seconds: asyncio.sleep(0))

    async def call(group):
        await group.step([], begins=lambda: begun.append(len(group._ranks[0].calls)))
        return [name for name, *_ in group._ranks[0].calls]

    monkeypatch.setattr(trainers.ray, "put", put)
    monkeypatch.setattr(trainers, "again_while_it_passes", at_once)
    if fails > supervision.TRIES:
        with pytest.raises(InfrastructureFailed, match="object store has no room for the samples"):
            outcome(Group([{}]), call)
        assert not begun and len(puts) == supervision.TRIES
    else:
        assert outcome(Group([{}]), call).count("step") == 1 and len(begun) == 1


def test_ranks_sum_up_the_files_of_a_checkpoint_each_its_share(tmp_path):
    for number in range(12):
        (tmp_path / f"manifest-{number}.json").touch()

    async def call(group):
        fault = await group.damage(tmp_path)
        asked = [[arguments for name, arguments, _ in rank.calls if name == "damage"] for rank in group._ranks]
        return fault, [[Path(path).name for path in paths] for ((paths,),) in asked]

    fault, asked = outcome(Group([{"damage": None}, {"damage": "__1_0 has other bytes"}]), call)
    assert fault == "__1_0 has other bytes"
    assert asked == [[f"manifest-{number}.json" for number in range(first, 12, 2)] for first in (0, 1)]


@pytest.mark.parametrize("late", [False, True])
def test_an_update_may_take_five_times_its_prediction(monkeypatch, late):
    monkeypatch.setattr(trainers, "STEP_DEADLINE_S", 0.05)

    async def call(group):
        group.predicted = PredictedCalls(update_s=0.3)
        return await group.step([])

    group = Group([{"step": HANGS if late else 0.2}])
    if not late:
        assert outcome(group, call) == 0
        return
    with pytest.raises(TrainerDied, match="no answer to step within") as death:
        outcome(group, call)
    assert death.value.late


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_group_outlives_a_full_disk_of_all_ranks(ranks, ended):
    async def call(group):
        with pytest.raises(InfrastructureFailed, match=r"could not do write_staged.*No space left"):
            await group.write("folder")
        assert not ended
        return await group.step([])

    assert outcome(Group([{"write_staged": FULL} for _ in range(ranks)]), call) == 0


def test_a_full_disk_that_leaves_a_rank_waiting_costs_the_group():
    with pytest.raises(TrainerDied, match="No space left"):
        outcome(Group([{"export_weights": FULL}, {"export_weights": HANGS}]), lambda group: group.export("w"))


@pytest.mark.parametrize("fate", [{"construct": HANGS, "pid": HANGS}, {"construct": DEAD}], ids=["hangs", "dies"])
def test_a_rank_lost_while_the_group_starts_costs_another_start(fate):
    group = Group([{"construct": HANGS}, fate], [{}, {}])
    assert outcome(group) == 0
    assert (group.lives, group.supervisor.failures("trainer run")) == (2, 1)
    assert 0.0 < group.mean_s_between_failures() < 3600.0


def test_a_death_between_calls_is_known_before_the_next_one():
    async def call(group):
        group._ranks[1].fate["pid"] = DEAD
        with pytest.raises(TrainerDied, match="rank 1 of 2"):
            await asyncio.wait_for(group.lost(), 5)
        with pytest.raises(TrainerDied):
            await group.step([])
        group.launches = [[{}, {}]]
        await group.restart("killed")
        return await group.step([])

    assert outcome(Group([{}, {}]), call) == 0


def test_ranks_are_constructed_where_they_sit_and_meet_at_rank_0():
    class Seats:
        async def ranks(self, plan, patience_s):
            return [plan, patience_s]

    group = Group([{"meeting_point": "node:7", "construct": (42, 7, 0.5)}, {"construct": (41, 6, 0.5)}], placer=Seats())

    async def call(group):
        assert group.parameters == 42 and group.spawned_on == [["run", trainers.NODE_PATIENCE_S]]
        told = {arguments for rank in group._ranks for name, arguments, _ in rank.calls if name == "construct"}
        assert len(told) == 1 and re.fullmatch(r"tcp://node:7/[0-9a-f]{32}", *told.pop()), "all ranks know one nonce"
        assert await group.pids() == [0, 1] and ("pid", (), PULSE_GROUP) in group._ranks[1].calls

    outcome(group, call)
    outcome(Group([{}]), lambda group: _must_have(group, "construct", (None,), None))


async def _must_have(group, *call):
    assert all(call in rank.calls for rank in group._ranks)


EMPTY = ("stored", ReplicaShare([], [], [], 0, 0, 0, all_rewards=[]))


@pytest.mark.parametrize(
    ("call", "asked"),
    [
        (lambda g: g.step([], UPDATE, streamed=True), ("step", (EMPTY, UPDATE, True), None)),
        (lambda g: g.step([]), ("step", (EMPTY, None, False), None)),
        (lambda g: g.stream([], UPDATE, (1,), True), ("stream", (EMPTY, UPDATE, (1,), True), None)),
        (lambda g: g.export(Path("w"), "v", False), ("export_weights", ("w", "v", False), None)),
        (lambda g: g.place({PARAMETERS: 8.0, MOMENTS: 0.0}), ("place", (True, False), None)),
        (lambda g: g.place({PARAMETERS: 0.0, MOMENTS: 8.0}), ("place", (False, True), None)),
        (lambda g: g.stage(), ("stage", (), None)),
        (lambda g: g.write(Path("f")), ("write_staged", ("f",), WRITER_GROUP)),
        (lambda g: g.load(Path("f")), ("load", ("f",), None)),
    ],
)
def test_every_rank_is_asked_the_same_and_rank_0_answers(call, asked):
    async def body(group):
        assert await call(group) in (0, None)
        await _must_have(group, *asked)

    outcome(Group([{}, {}]), body)


def test_the_peak_of_memory_is_that_of_the_rank_with_most():
    assert outcome(Group([{"peak_bytes": 3}, {"peak_bytes": 7}]), lambda group: group.peak_bytes()) == 7


def test_a_round_is_left_when_the_trainer_dies_beside_it():
    left = []

    async def rollout():
        try:
            await asyncio.sleep(60)
        finally:
            left.append("the round stopped its samples")

    async def call(group):
        async def done():
            return "done"

        assert await while_trainer_lives(group, done()) == "done"
        group._ranks[0].fate["pid"] = DEAD
        await while_trainer_lives(group, rollout())

    with pytest.raises(TrainerDied):
        outcome(Group([{}]), call)
    assert left


def test_the_ranks_of_a_replica_get_its_share_alone():
    group = Group([{"step": {}}] * 4)
    group.config = replace(group.config, tp=2)
    groups = [
        [TrainSample(prompt, number, [1], [2 + number, 3], [-1.0] * 2, float(number), False) for number in range(2)]
        for prompt in ("a", "b")
    ]

    async def call(group):
        await group.step(groups)
        given = [next(arguments for name, arguments, _ in rank.calls if name == "step") for rank in group._ranks]
        assert all(arguments[1:] == (None, False) for arguments in given)
        stored = [arguments[0] for arguments in given]
        assert stored[0] is stored[1] and stored[2] is stored[3]
        shares = [share for _, share in (stored[0], stored[2])]
        assert [(share.samples, share.tokens, share.rewards) for share in shares] == [(4, 12, 2.0)] * 2
        assert [sum(len(batch.tokens) for batch in share.learning) for share in shares] == [6, 6]

    outcome(group, call)
