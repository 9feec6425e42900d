"""An engine's actor as its handle sees it, in this process; what it says, and when it dies, the test decides."""

import asyncio
import contextlib
from concurrent.futures import Future

from rlplan.executor.engines.engine_handle import EngineHandle
from rlplan.executor.engines.engine_watch import Children
from rlplan.executor.engines.fleet import Fleet, FleetConfig
from rlplan.executor.engines.messages import RECEIVE, EngineEvent, EngineFacts
from rlplan.executor.processes.faults import ActorFailed
from rlplan.executor.processes.supervision import Patience, Supervisor
from rlplan.executor.rewards.pool import RewardResult
from rlplan.plans.schema.levers import EngineLayout

from ..virtual_loop import now_s


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
    """Answers like `RolloutEngine`; decodes a token every `token_s`, each the number of the sample's tokens before it.

    `log` has what was done. `gate`, if set, is waited for before weights are loaded; no call is answered while
    `answers` is not set.
    """

    token_s, submit_s, capacity, fails_at = 0.01, 0.0, 10_000, ""
    dies_in_start = stuck_in_start = core_dead = grew = False
    slow_seeds, at_once, refuses = "", None, ""
    gives_up = lambda self, request: ""  # noqa: E731 - vLLM's reason for which it gives a request up; none

    def __init__(self, name, log):
        self.name, self.log = name, log
        self.version, self.gate = "", None
        self.answers, self.news = asyncio.Event(), asyncio.Event()
        self.answers.set()
        self.running, self.decoded, self.outbox = {}, {}, []

    def __getattr__(self, method):
        return Method(lambda *arguments: self._call(method, *arguments))

    async def _call(self, method, *arguments):
        await self.answers.wait()
        return await getattr(self, f"_{method}")(*arguments)

    def die(self):
        self.core_dead = True
        self.news.set()

    def length(self, request):
        """Tokens of a sample."""
        return 3

    async def _start(self):
        self.log.append((self.name, "start"))
        if self.dies_in_start:
            raise ActorFailed(self.name, "its core died while it started")
        if self.stuck_in_start:
            await asyncio.Event().wait()
        return EngineFacts(0.0, self.capacity, 16, 0, (), slow_seeds=self.slow_seeds)

    async def _look_at_children(self):
        return Children(2, 7.5, False)

    async def _load_weights(self, path, version, checksums):
        if self.gate is not None:
            await self.gate.wait()
        if self.core_dead:
            raise ActorFailed(self.name, "vLLM's core process died")
        if self.refuses:
            raise ActorFailed(self.name, f"vLLM could not {RECEIVE}: {self.refuses}")
        assert not self.running, "weights while requests decode"
        self.log.append((self.name, "load", version))
        self.version = version
        return {}

    async def _submit(self, requests, version, max_num_seqs=None):
        await asyncio.sleep(self.submit_s)
        assert version == self.version
        self.at_once = max_num_seqs
        for request in requests:
            self.log.append((self.name, "submit", request.request_id))
            self.running[request.request_id] = asyncio.get_running_loop().create_task(self._decode(request))

    async def _decode(self, request):
        tokens = self.decoded[request.request_id] = []
        while request.drawn_tokens + len(tokens) < self.length(request):
            await asyncio.sleep(self.token_s)
            tokens.append(request.drawn_tokens + len(tokens))
            self.grew = True
        reason = self.gives_up(request)
        self._end("lost" if reason else "finished", request.request_id, reason)

    def _end(self, name, request_id, reason=""):
        del self.running[request_id]
        tokens = self.decoded.pop(request_id, [])
        event = EngineEvent(name, request_id, tokens, [0.0] * len(tokens), False, self.version, self.version)
        event.reason = reason
        self.outbox.append(event)
        self.news.set()

    async def _abort(self, request_ids):
        for name in request_ids:
            self.log.append((self.name, "abort", name))
            if name in self.running:
                self.running.pop(name).cancel()

    async def _release(self, request_ids):
        for name in request_ids:
            self.log.append((self.name, "release", name))
            if name in self.running:
                self.running[name].cancel()
                self._end("released", name)

    async def _held_tokens(self):
        return {name: 2 + len(tokens) for name, tokens in self.decoded.items()}

    async def _poll(self, timeout_s):
        if not self.core_dead and not self.outbox:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.news.wait()
        if self.core_dead:
            raise ActorFailed(self.name, "vLLM failed: its core process died")
        self.news.clear()
        events, self.outbox = self.outbox, []
        sign, self.grew = "alive" if self.grew else "pulse", False
        return events or [EngineEvent(sign, "")]

    async def _sleep(self):
        assert not self.running, "it sleeps while requests decode"
        self.version = ""
        await self._turn("sleep")

    async def _wake(self, part):
        await self._turn(f"wake {part}")

    async def _turn(self, what):
        if what == self.fails_at:
            raise ActorFailed(self.name, f"vLLM could not {what}")
        await asyncio.sleep(0.01)
        self.log.append((self.name, what))

    async def _close(self):
        return None


class Fakes:
    """A fleet of real handles, really supervised, over fake actors; `actors` has every actor that ever was, in order.

    `prepare` is told each new actor; `ended` has those that were killed.
    """

    def __init__(self, *layouts, patience=None, actor=FakeActor):
        self.log, self.actors, self.ended = [], [], []
        self.prepare = lambda actor: None
        self.supervisor = Supervisor(patience or Patience(stall_s=5.0), now_s)

        def spawn(config):
            self.actors.append(actor(config.name, self.log))
            self.prepare(self.actors[-1])
            return self.actors[-1]

        def handle(config, tell, supervisor):
            return EngineHandle(config, tell, supervisor, spawn, self.ended.append)

        config = FleetConfig(tuple(EngineLayout(*each) for each in layouts), "", "float32", "cpu", 8, 8, 1)
        self.fleet = Fleet(config, self.supervisor, handle)

    def actor(self, handle):
        """The actor that bears an engine's name now."""
        return [actor for actor in self.actors if actor.name == handle.name][-1]

    def of(self, name):
        """What was done by one."""
        return [what for who, what, *_ in self.log if who == name]

    def submitted(self, handle):
        return [entry[2] for entry in self.log if entry[:2] == (handle.name, "submit")]


class Rewards:
    """Scores at once, or when `give` is called if they are `held`."""

    def __init__(self, held=False):
        self.held, self.pending = held, []

    def score(self, key, prompt, response, answer, deadline_s=None):
        future = asyncio.get_running_loop().create_future()
        self.pending.append(future)
        if not self.held:
            self.give()
        return future

    def give(self):
        pending, self.pending = self.pending, []
        for future in pending:
            future.set_result(RewardResult(1.0, 0.0, "ok", "", 1, "w"))

    def cancel(self, key):
        return False


async def until(condition, seconds=600):
    """Wait until something is so."""
    for _ in range(int(seconds / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen")
