"""An engine's actor as its handle sees it, in this process; what it says, and when it dies, the test decides."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import replace

from rlplan.executor.engines.engine_handle import EngineHandle
from rlplan.executor.engines.fleet import Fleet, FleetConfig
from rlplan.executor.engines.messages import EngineEvent, EngineFacts
from rlplan.executor.engines.start_watch import Children
from rlplan.executor.faults import ActorFailed
from rlplan.executor.supervision import Patience, Supervisor
from rlplan.plans.schema.sections.layouts import EngineLayout


class Ref:
    """A Ray reference whose task runs on the test's loop."""

    def __init__(self, coroutine):
        self._future = Future()

        async def run():
            try:
                self._future.set_result(await coroutine)
            except Exception as error:  # noqa: BLE001 - as Ray hands on whatever it was
                self._future.set_exception(error)

        self.task = asyncio.get_running_loop().create_task(run())

    def future(self):
        return self._future


class Method:
    def __init__(self, body):
        self._body = body

    def options(self, **options):
        return self

    def remote(self, *arguments):
        return Ref(self._body(*arguments))


class FakeActor:
    """Answers like `RolloutEngine`; finishes each request `decode_s` after its submit."""

    def __init__(self, name, log, decode_s=0.02):
        self.name, self.log, self.decode_s = name, log, decode_s
        self.version = ""
        self.dies_in_start = self.stuck_in_start = self.core_dead = False
        self.hangs = asyncio.Event()
        self.hangs.set()
        self.submit_s = 0.0
        self.running = {}
        self.outbox = []

    def __getattr__(self, method):
        return Method(lambda *arguments: self._call(method, *arguments))

    async def _call(self, method, *arguments):
        await self.hangs.wait()
        return await getattr(self, f"_{method}")(*arguments)

    async def _start(self):
        if self.dies_in_start:
            raise ActorFailed(self.name, "its core died while it started")
        if self.stuck_in_start:
            await asyncio.Event().wait()
        return EngineFacts(0.0, 0, 0, 0, ())

    async def _look_at_children(self):
        return Children(2, 7.5, False)

    async def _load_weights(self, path, version, checksums):
        if self.core_dead:
            raise ActorFailed(self.name, "vLLM's core process died")
        assert not self.running, "weights while requests decode"
        self.log.append((self.name, "load", version))
        self.version = version
        return {}

    async def _submit(self, requests, version, max_num_seqs=None):
        await asyncio.sleep(self.submit_s)
        assert version == self.version
        for request in requests:
            self.log.append((self.name, "submit", request.request_id))
            self.running[request.request_id] = asyncio.get_running_loop().create_task(self._decode(request))

    async def _decode(self, request):
        await asyncio.sleep(self.decode_s)
        del self.running[request.request_id]
        self.outbox.append(
            EngineEvent("finished", request.request_id, [5] * 3, [0.0] * 3, False, self.version, self.version)
        )

    async def _abort(self, request_ids):
        for name in request_ids:
            self.log.append((self.name, "abort", name))
            if name in self.running:
                self.running.pop(name).cancel()

    async def _poll(self, timeout_s):
        if self.core_dead:
            raise ActorFailed(self.name, "vLLM failed: its core process died")
        await asyncio.sleep(0.01)
        events, self.outbox = self.outbox, []
        return events or [EngineEvent("pulse", "")]

    async def _close(self):
        return None


class FakeFleet:
    """Handles of real supervision over fake actors; `actors` holds every actor that ever was, in order."""

    def __init__(self, count, patience=None, prepare=lambda actor: None, decode_s=0.02):
        self.log, self.actors, self.ended = [], [], []
        self.prepare = prepare
        self.supervisor = Supervisor(patience or Patience(stall_s=0.6), pause=lambda seconds: asyncio.sleep(0))

        def spawn(config):
            actor = FakeActor(config.name, self.log, decode_s)
            self.actors.append(actor)
            self.prepare(actor)
            return actor

        def handle(config, tell, supervisor):
            config = replace(config, name=config.name.replace("rollout-tp1", "engine"))
            return EngineHandle(config, tell, supervisor, spawn, self.ended.append)

        layouts = (EngineLayout(1, count),)
        self.fleet = Fleet(FleetConfig(layouts, "", "float32", "cpu", 8, 8, 1), self.supervisor, handle)
