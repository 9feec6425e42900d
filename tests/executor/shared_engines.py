"""Engines that a whole pytest run starts once: tests decode on them, and whole runs borrow them as their own fleet."""

import asyncio
from functools import partial
from pathlib import Path

from rlplan.executor.engines.engine_handle import EngineHandle
from rlplan.executor.engines.fleet import Fleet, FleetConfig
from rlplan.plans.schema.levers import EngineLayout

BACK_S = 300.0
"""Within which an engine that a test killed is up again."""


class SharedEngine(EngineHandle):
    """An engine that is up when a run starts it, and stays up when the run closes it."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self._asleep: list[str] = []

    async def start(self):
        await (self.seat() if self.alive else super().start())

    async def launch(self):
        self._asleep = []
        await super().launch()

    async def sleep(self):
        await super().sleep()
        self._asleep = ["weights", "kv_cache"]

    async def wake(self, part):
        await super().wake(part)
        self._asleep.remove(part)

    async def close(self):
        self.room = self.gone = None

    async def end(self):
        """Stop it, at the end of all tests."""
        await super().close()

    async def reset(self, weights: Path):
        """Wait until it is up, awake, of use to nobody, and holds these weights."""
        self.room = self.gone = None
        while not self.alive:
            self.check()
            await asyncio.wait({self.repair})
        if "weights" in self._asleep:
            await self.wake("weights")
        await self.load(str(weights), "reset", False)
        if self._asleep:
            await self.wake("kv_cache")


class SharedEngines:
    """Two engines of TP 1 and one of TP 2 of a tiny model, each on the cores that a run on this machine gives it."""

    def __init__(self, model: Path, loop: asyncio.AbstractEventLoop):
        self._loop, self._weights = loop, model / "model.safetensors"
        self.fleet = Fleet(
            FleetConfig(
                layouts=(EngineLayout(1, 2), EngineLayout(2, 1)),
                model_path=str(model),
                dtype="float32",
                device="cpu",
                max_model_len=512,
                max_num_seqs=64,
                kv_memory_bytes_per_accelerator=100_000_000,
            ),
            handle=SharedEngine,
        )

    def start(self):
        self._loop.run_until_complete(self.fleet.start())

    def end(self):
        """Stop all of them."""
        self._together(engine.end() for engine in self.fleet.all_engines())

    def reset(self):
        """Take them back from the test that had them: its weights, its cache and what it listened to are gone."""
        self.fleet.listen_no_more()
        self.fleet.take_missed()
        self._together(engine.reset(self._weights) for engine in self.fleet.all_engines())

    def _together(self, calls):
        async def all_of_them():
            await asyncio.wait_for(asyncio.gather(*calls), BACK_S)

        self._loop.run_until_complete(all_of_them())

    def lend(self, config, tell, supervisor):
        """The shared engine of a name, for a fleet that `tell` belongs to; it keeps its own supervisor."""
        self.fleet.listen(tell)
        return next(engine for engine in self.fleet.all_engines() if engine.name == config.name)

    def lent(self):
        """What a run makes its fleet with, in place of the class `Fleet`."""
        return partial(Fleet, handle=self.lend)
