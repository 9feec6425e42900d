"""A reward worker's process as the pool sees it: one call at a time, with a limit; the supervisor starts it.

Every wait here has a deadline, and its error names the worker. No call is forgotten: `close` sees each to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import ray

from ...plans.yaml.errors import InputError, RunFailed
from ..placement.actor_placer import ActorPlacer
from ..placement.guard import guarded
from ..placement.live_nodes import on_node
from ..processes.actors import ACTOR_OPTIONS, end_actor, track
from ..processes.faults import ActorFailed
from ..processes.supervision import Supervisor
from .functions import ScorerConfig
from .scoring import ScoringResult
from .worker import RewardWorker, WorkerFacts

log = logging.getLogger(__name__)

START_S = 300.0
"""Longest start. A worker loads no weights, so it gets less than an engine's first half hour: an interpreter and the
function's imports are up within a minute on a busy machine, and one that hangs is replaced after five."""
CLOSE_S = 5.0
"""How long `close` waits for the calls of a killed worker to report their end."""


class RewardPoolDown(RunFailed):
    """No reward worker can be started; the run cannot go on. The message names the worker and the reason."""


class WorkerDied(Exception):
    """The worker's process is gone, or answered with an error of its own."""


class WorkerHung(Exception):
    """The worker did not answer within the call's limit."""

    def __init__(self, name: str, silent_s: float) -> None:
        super().__init__(f"reward worker {name} silent for {silent_s:.3g} s")
        self.silent_s = silent_s


def spawn_worker(actor_name: str, config: ScorerConfig, node_id: str = "") -> Any:
    """A new actor for a worker, on the node of this id ("": on any)."""
    remote: Any = ray.remote(guarded(RewardWorker))
    options = {"name": actor_name, "max_concurrency": 1, **ACTOR_OPTIONS, **on_node(node_id)}
    return remote.options(**options).remote(config)


class RewardProcess:
    """A Ray actor of class `RewardWorker` and its successors under one name.

    Args:
        name: what errors call it.
        config: how its worker scores.
        supervisor: starts and replaces it; how often it may is counted by `name`.
        start_s: seconds that a start may take at most, the import of the reward function's module included.
        spawn, end: make and kill its actor.
        placer, number: where it runs, as worker `number`; None: on any node.
    """

    def __init__(
        self,
        name: str,
        config: ScorerConfig,
        supervisor: Supervisor,
        start_s: float = START_S,
        spawn: Callable[[str, ScorerConfig, str], Any] = spawn_worker,
        end: Callable[[Any], None] = end_actor,
        placer: ActorPlacer | None = None,
        number: int = 0,
    ) -> None:
        self.name = name
        self._placer, self._number = placer, number
        self._node_id = ""
        self._config = config
        self._supervisor = supervisor
        self._start_s = start_s
        self._spawn, self._end = spawn, end
        self._generation = 0
        self._actor: Any = None
        self._calls: set[asyncio.Future[Any]] = set()
        self.facts: WorkerFacts | None = None
        """Those of the process that runs now; None while there is none."""

    async def start(self) -> WorkerFacts:
        """Start the process; a start that it does not survive is tried again.

        Raises `InputError` for an unusable reward function, else `RunFailed`.
        """
        await self._supervisor.start(self)
        assert self.facts is not None, "launch() returned without facts"
        return self.facts

    async def restart(self, why: str) -> None:
        """Replace the process, or what is left of it. Raises as `start` does; `RunFailed` beyond the hour's budget."""
        await self._supervisor.replace(self, why)

    async def find_node(self) -> None:
        """Find the worker's node."""
        if self._placer is not None:
            self._node_id = (await self._placer.worker(self._number)).node_id

    async def launch(self) -> None:
        """One try of a start, for the supervisor. Raises `InputError`, or anything that tells of the fault."""
        # A killed actor's name is free only a moment later, hence a new one for each.
        actor_name = self.name if self._generation == 0 else f"{self.name}.{self._generation}"
        self._generation += 1
        deadline_s = self._start_deadline_s()
        self._actor = self._spawn(actor_name, self._config, self._node_id)
        call = self._track(self._actor.ready.remote())
        await asyncio.wait({call}, timeout=deadline_s)
        if not call.done():
            raise ActorFailed(self.name, f"silent for {deadline_s:g} s while it started")
        facts: WorkerFacts = call.result()
        if facts.problem is not None:
            raise InputError(facts.problem)
        if facts.failure is not None:
            raise ActorFailed(self.name, facts.failure)
        self.facts = facts

    async def discard(self) -> None:
        """End the process now, whatever it does."""
        self.facts = None
        actor, self._actor = self._actor, None
        if actor is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                self._end(actor)

    def _start_deadline_s(self) -> float:
        return min(self._start_s, self._supervisor.start_deadline_s(self.name))

    async def ping(self, limit_s: float) -> None:
        """Returns once the idle process has answered. Raises `WorkerDied`, or `WorkerHung` after `limit_s`."""
        await self._call("__ray_ready__", limit_s)

    async def renew(self) -> None:
        """Have the worker start again the process in which it scores. Raises `WorkerDied` or `WorkerHung`."""
        facts: WorkerFacts = await self._call("ready", self._start_deadline_s())
        if facts.problem or facts.failure:
            raise WorkerDied(f"reward worker {self.name} cannot score any more: {facts.problem or facts.failure}")

    async def score(
        self, rows: list[tuple[str, str, Any, float]], budget_s: float, limit_s: float
    ) -> list[ScoringResult]:
        """One call of `RewardWorker.score`. Raises `WorkerDied`, or `WorkerHung` after `limit_s`."""
        results: list[ScoringResult] = await self._call("score", limit_s, rows, budget_s)
        if not 1 <= len(results) <= len(rows):
            raise WorkerDied(f"reward worker {self.name} is of no use: {len(results)} results for {len(rows)} samples")
        return results

    async def _call(self, method: str, limit_s: float, *arguments: Any) -> Any:
        began = time.monotonic()
        try:
            call = self._track(getattr(self._actor, method).remote(*arguments))
            # wait, not wait_for: that would cancel the future, and Ray's own thread would complete it all the same.
            await asyncio.wait({call}, timeout=limit_s)
            if call.done():
                return call.result()
        except Exception as error:
            # Ray has many names for a process that is gone.
            raise WorkerDied(f"reward worker {self.name} died: {_first_line(error)}") from error
        raise WorkerHung(self.name, time.monotonic() - began)

    async def close(self) -> None:
        """Kill the process and wait until Ray has ended its calls."""
        await self.discard()
        if self._calls:
            await asyncio.wait(set(self._calls), timeout=CLOSE_S)
        for call in list(self._calls):
            log.warning("reward worker %s: a call has not ended %g s after it was killed", self.name, CLOSE_S)
            call.cancel()

    def _track(self, ref: Any) -> asyncio.Future[Any]:
        """The call's future, kept until it ends."""
        call = track(ref)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
