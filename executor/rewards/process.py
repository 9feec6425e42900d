"""One reward worker's process as the pool sees it: start, one call at a time with a limit, kill, start anew.

Every wait here has a deadline, and its error names the worker. No call is forgotten: `close` sees each to its end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, NamedTuple

import ray

from ...plans.errors import InputError, RunFailed
from .scoring import Scored
from .worker import RewardWorker

log = logging.getLogger(__name__)

STARTS = 3
"""Attempts to start a worker anew before it is given up."""
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


class Facts(NamedTuple):
    """What a started worker says about itself."""

    alarm_s: float
    """Seconds after which it interrupts the scoring of one sample."""
    notes: tuple[str, ...]
    """What it could not provide on its machine."""
    pid: int


class RewardProcess:
    """A Ray actor of class `RewardWorker` and its successors under one name.

    Args:
        name: what errors call it.
        arguments: those of `RewardWorker`.
        start_s: seconds that a start may take, the import of the reward function's module included.
    """

    def __init__(self, name: str, arguments: tuple[Any, ...], start_s: float) -> None:
        self.name = name
        self._arguments = arguments
        self._start_s = start_s
        self._generation = 0
        self._actor: Any = None
        self._calls: set[asyncio.Future[Any]] = set()
        self.facts: Facts | None = None
        """Those of the process that runs now; None while there is none."""

    async def start(self) -> Facts:
        """Start the process, once. Raises `InputError` for an unusable reward function, else `RewardPoolDown`."""
        # A killed actor's name is free only a moment later, hence a new one for each.
        actor_name = self.name if self._generation == 0 else f"{self.name}.{self._generation}"
        self._generation += 1
        options = {"name": actor_name, "num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 1}
        try:
            self._actor = ray.remote(RewardWorker).options(**options).remote(*self._arguments)
            call = self._track(self._actor.ready.remote())
            await asyncio.wait({call}, timeout=self._start_s)
            if not call.done():
                raise TimeoutError(f"silent for {self._start_s:g} s")
            said = call.result()
        except Exception as error:
            self.kill()
            raise RewardPoolDown(f"reward worker {self.name} did not start: {_first_line(error)}") from error
        if said["problem"] is not None:
            self.kill()
            raise InputError(said["problem"])
        if said["failure"] is not None:
            self.kill()
            raise RewardPoolDown(f"reward worker {self.name} did not start: {said['failure']}")
        self.facts = Facts(said["alarm_s"], tuple(said["notes"]), said["pid"])
        return self.facts

    async def restart(self) -> None:
        """Kill what is left of the process and start it anew, `STARTS` times if need be. Raises as `start` does."""
        self.kill()
        for attempt in range(1, STARTS + 1):
            try:
                await self.start()
                return
            except RewardPoolDown as error:
                if attempt == STARTS:
                    raise
                log.warning("%s; trying again", error)
                await asyncio.sleep(0.5 * attempt)

    async def renew(self) -> None:
        """Have the worker start again the process in which it scores. Raises `WorkerDied`."""
        try:
            call = self._track(self._actor.ready.remote())
            await asyncio.wait({call}, timeout=self._start_s)
            said = call.result() if call.done() else {"failure": f"silent for {self._start_s:g} s"}
        except Exception as error:
            raise WorkerDied(f"reward worker {self.name} died: {_first_line(error)}") from error
        if said.get("problem") or said["failure"]:
            raise WorkerDied(
                f"reward worker {self.name} cannot score any more: {said.get('problem') or said['failure']}"
            )

    async def score(self, rows: list[tuple[str, str, Any, float]], budget_s: float, limit_s: float) -> list[Scored]:
        """One call of `RewardWorker.score`. Raises `WorkerDied`, or `WorkerHung` after `limit_s`."""
        began = time.monotonic()
        try:
            call = self._track(self._actor.score.remote(rows, budget_s))
            # wait, not wait_for: that would cancel the future, and Ray's own thread would complete it all the same.
            await asyncio.wait({call}, timeout=limit_s)
            if not call.done():
                raise WorkerHung(self.name, time.monotonic() - began)
            results: list[Scored] = call.result()
        except WorkerHung:
            raise
        except Exception as error:
            # Ray has many names for a process that is gone.
            raise WorkerDied(f"reward worker {self.name} died: {_first_line(error)}") from error
        assert results, "a reward worker answered with no result"
        return results

    def kill(self) -> None:
        """End the process now, whatever it does."""
        self.facts = None
        if self._actor is not None:
            ray.kill(self._actor, no_restart=True)
            self._actor = None

    async def close(self) -> None:
        """Kill the process and wait until Ray has ended its calls."""
        self.kill()
        if self._calls:
            await asyncio.wait(set(self._calls), timeout=CLOSE_S)
        for call in list(self._calls):
            log.warning("reward worker %s: a call has not ended %g s after it was killed", self.name, CLOSE_S)
            call.cancel()

    def _track(self, ref: Any) -> asyncio.Future[Any]:
        """The call's future, kept until it ends; its exception is taken note of even if nobody waits any more."""
        call: asyncio.Future[Any] = asyncio.wrap_future(ref.future())
        self._calls.add(call)

        def ended(call: asyncio.Future[Any]) -> None:
            self._calls.discard(call)
            if not call.cancelled():
                call.exception()

        call.add_done_callback(ended)
        return call


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
