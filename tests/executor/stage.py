"""Engines of TP 1 (two, `short`) and TP 2 (one, `long`) and the trainer `a` on two devices of `CAPACITY`.

Handles, their supervision, ledger and turns are real; actors and ranks answer as the test has it."""

import asyncio
import contextlib

from rlplan.executor.memory.device_holds import trainer_name
from rlplan.executor.memory.device_turns import DeviceTurns
from rlplan.executor.placement.actor_placer import ActorPlacement
from rlplan.executor.trainer.trainer_group import TrainerDied
from rlplan.plans.schema.levers import EngineLayout
from rlplan.rounds.device_ledger import KV_CACHE, Device, DeviceLedger, engine_holder, trainer_holder

from .conftest import RunInMemory
from .engines.engine_fakes import FakeActor, Fakes
from .virtual_loop import in_scene

CAPACITY = 100.0
SHORT, LONG = EngineLayout(1, 2), EngineLayout(2, 1)


class Ranks:
    """A trainer group whose ranks note what they were told to keep on the device."""

    def __init__(self, name, log):
        self.name, self.log, self.dead = name, log, False

    async def start(self):
        self.log.append((self.name, "start"))

    async def place(self, parts):
        if self.dead:
            raise TrainerDied("trainer a", "killed")
        await asyncio.sleep(0.003)
        self.log.append((self.name, sorted(part for part, size in parts.items() if size)))

    async def close(self):
        self.log.append((self.name, "end"))


class Seats:
    """Seats for engines, while a node is free."""

    def __init__(self):
        self.free = asyncio.Event()
        self.free.set()

    def waits(self, name):
        return not self.free.is_set()

    def engine_failed(self, name, why):
        pass

    async def engine(self, name):
        await self.free.wait()
        return ActorPlacement("", "127.0.0.1", (), (), 1)


class Stage(Fakes):
    """See the module. `bounded`: the devices' memory holds one layout at a time; `shared`: other jobs of a group have
    the devices too, and trainers have one of their own; `room`: of a device for engine and trainer side by side."""

    needs = ()

    def __init__(self, training=90.0, bounded=True, shared=False, actor=FakeActor, capacity=CAPACITY, room=0.0):
        super().__init__((1, 2), (2, 1), actor=actor)
        self.run = RunInMemory()
        self.short, self.long = self.fleet.engines(SHORT), self.fleet.engines(LONG)
        trainer = trainer_holder(trainer_name("a"), 10.0, 20.0, 0.0 if shared else 10.0, training={"all": training})
        trainer = trainer if bounded else type(trainer)(trainer.name, "trainer")
        parts = {"engine_weights": 20.0, KV_CACHE: 60.0} if bounded else {}
        devices = []
        for number in range(2):
            names = [self.short[number].name, self.long[0].name]
            holders = [*(engine_holder(name, parts) for name in names), *([] if shared else [trainer])]
            devices.append(Device(f"GPU {number}", capacity, holders, room_bytes=room))
        if shared:
            devices.append(Device("trainers' GPU", CAPACITY, [trainer]))
        self.ranks = Ranks("a", self.log)
        self.turns = DeviceTurns(DeviceLedger(devices, shared=shared), self.fleet, {"a": self.ranks})

    def state(self, whom):
        """The state of an engine, or of a holder of this name."""
        return self.turns.ledger.states[getattr(whom, "name", whom)]

    def close(self):
        """Close what is open."""

    def seats(self):
        """Seats that engines find at once while this event is set; else they wait for a node."""
        found = Seats()
        for engine in self.fleet.all_engines():
            engine._placer = found
        return found

    async def decoding(self, engines):
        """From whatever is to a round on these engines."""
        await self.turns.to_sending(self.run, engines)
        for engine in engines:
            engine.version = "v"
        return await self.turns.to_decoding(self.run, engines)


@contextlib.asynccontextmanager
async def set_up(kind, start, options, given):
    stage = kind(**options, **{name: given[name] for name in ("bounded", "tmp_path") if name in given})
    try:
        if start:
            await stage.turns.start()
        yield stage
        stage.turns.ledger.check_invariants()
    finally:
        await stage.fleet.close()
        stage.close()


def staged(kind=Stage, start=True, **options):
    """Decorates `async def test(stage, ...)`: it takes place in virtual time, on a stage of these options."""
    return in_scene(lambda given: set_up(kind, start, options, given), kind.needs)
