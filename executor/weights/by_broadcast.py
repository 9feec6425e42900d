"""The way in pieces: each trainer rank sends what it holds, each node with engines receives each byte once, and all
engines of the node load it at once from memory that they share; on GPUs, where they allow it, from memory of the GPU
(slots/slot_choice.py).

Invariants:
- no rank gathers the model;
- a party that dies ends the transfer for all within seconds, one that hangs after `stall_s` seconds and the time that
  the bytes may take: an engine is replaced and the transfer is tried again with those left, a trainer rank is
  `TrainerDied`;
- nobody uses what was received of a transfer that did not come to its end.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from ..actors import retrieved
from ..engines.engine_handle import LOAD_BYTES_PER_S, EngineHandle
from ..faults import ActorFailed, reason
from ..host import node_address
from ..supervision import CALL_DEADLINE_S
from ..trainer.trainer_group import STEP_DEADLINE_S, TrainerDied, TrainerGroup
from .broadcast_parts import Partly, fault_of, node_memories
from .slots.slot_choice import Choice, SlotsName, choose
from .transfer.bucket_plan import BucketPlan, Holdings, bucket_plan
from .transfer.engine_transfers import Received
from .transfer.message_board import MessageBoard, TransferBroken
from .transfer.session import ReceivingNode, Session
from .ways import Sent, WayClosed

BUCKET_BYTES = 128 * 10**6
TRIES = 3  # of a transfer that breaks off although no engine died
LEAVE_S = 10.0  # in which all parties of a transfer that was ended must have left it
QUEUE_S = STEP_DEADLINE_S + CALL_DEADLINE_S  # a call to the ranks may have to wait until they have taken a step
SESSIONS = 3  # kept for the next transfers: rounds of two kinds, and the tail of one, may have engines of their own

Opened = tuple[Any, ...]
Chooser = Callable[[list[EngineHandle]], Awaitable[Choice]]


class _Live(NamedTuple):
    """A session that all parties have joined, the driver's board of it, and its engines."""

    session: Session
    board: MessageBoard
    engines: tuple[EngineHandle, ...]


class ByBroadcast:
    """Transfers from one trainer. `may_send` is asked before each transfer begins; with `relay` nodes without trainer
    ranks pass on to each other what they receive, for a slow link between them and the trainer. `slots`: where weights
    shall lie, if they can; None: in the best place.

    Slots on GPUs that break although no engine died are given up for good: host memory serves everything.
    """

    def __init__(
        self,
        trainer: TrainerGroup,
        stall_s: float,
        may_send: Callable[[], bool] = lambda: True,
        bucket_bytes: int = BUCKET_BYTES,
        relay: bool = False,
        slots: SlotsName | None = None,
    ) -> None:
        self._trainer, self._stall_s, self._may_send, self._bucket_bytes = trainer, stall_s, may_send, bucket_bytes
        self._relay, self._wanted = relay, slots
        self._broke: str | None = None
        """What went wrong with slots on GPUs."""
        self._live: dict[Opened, _Live] = {}
        self._turns: dict[str, int] = {}
        self._layout: tuple[int, BucketPlan, list[Holdings]] | None = None
        self._leaving: set[asyncio.Task[Any]] = set()

    async def send(self, engines: Sequence[EngineHandle], version: str, checked: bool) -> Sent:
        """Send the weights in pieces; see `Way`."""
        return await self._send(engines, version, checked, self._choice)

    async def _send(self, engines: Sequence[EngineHandle], version: str, checked: bool, choose_slots: Chooser) -> Sent:
        plan, _ = await self._planned()
        expected: dict[str, str] = {}
        if checked:
            expected = (await self._trainer.each("transfer", QUEUE_S, "checksums"))[0]
        received: dict[str, dict[str, str]] = {}
        broken = ""
        choice = Choice("host")
        for _ in range(TRIES):
            left = [engine for engine in engines if engine.alive and engine.name not in received]
            while left:
                died = {engine.name: engine.lives for engine in left}
                choice = await choose_slots(left)
                try:
                    received |= await self._attempt(left, version, checked, choice.slots)
                    return Sent(plan.nbytes, expected, received, *choice)
                except Partly as partly:
                    received |= partly.received
                    broken = partly.reason
                same = [e for e in left if e.alive and e.lives == died[e.name] and e.name not in received]
                if len(same) == len(left) and choice.slots == "host":
                    break
                if len(same) == len(left):
                    self._broke = f"{choice.slots} broke: {broken}"
                left = same
            else:
                return Sent(plan.nbytes, expected, received, *choice)
        raise WayClosed(f"the transfer broke off {TRIES} times: {broken}", lasting=False)

    async def _choice(self, engines: list[EngineHandle]) -> Choice:
        """Where weights lie for these engines."""
        if self._broke is not None:
            return Choice("host", self._broke)
        _, held = await self._planned()
        uuids = [uuid for e in engines for uuid in (e.facts.devices or ("",) * e.config.tp)]
        return choose([each.device for each in held], uuids, self._wanted)

    async def send_again(self, engines: Sequence[EngineHandle], version: str) -> None:
        """Send the weights to further engines; see `Way`. Others may decode, so GPUs may have no room for slots."""
        sent = await self._send(engines, version, False, _host)
        for engine in engines:
            if engine.name not in sent.received:
                raise ActorFailed(engine.name, "it died as it received weights")

    async def close(self) -> None:
        """Leave all sessions."""
        for key in list(self._live):
            self._drop(key, "the run has ended")
        leaving = set(self._leaving)
        if leaving:
            await asyncio.wait(leaving, timeout=LEAVE_S)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)

    # -- one transfer --------------------------------------------------------------------------------------------------

    async def _attempt(
        self, engines: list[EngineHandle], version: str, checked: bool, slots: SlotsName
    ) -> dict[str, dict[str, str]]:
        """Checksums by engine of one transfer to `engines`. Raises Partly if not all of them have received it."""
        key = self._key(engines, slots)
        try:
            live = self._live.get(key) or await self._open(key, engines, slots)
        except (TransferBroken, ActorFailed) as error:
            if isinstance(error, TrainerDied):
                raise
            raise Partly({}, reason(error)) from error
        if not self._may_send():
            raise WayClosed("the trainer goes on to the next weights", lasting=False)
        turn = self._turns[live.session.name]
        self._turns[live.session.name] = turn + 1
        # Longer than any party waits for another, so that only who hangs itself is beyond it.
        deadline_s = self._stall_s + live.session.plan.nbytes / LOAD_BYTES_PER_S + 2 * LEAVE_S
        name = live.session.name
        publish = _task(self._trainer.each("transfer", deadline_s + LEAVE_S, "publish", name, turn, version))
        loads = {e: _task(e.receive(name, turn, version, checked, deadline_s)) for e in engines}
        try:
            why = await self._settle(live, publish, loads)
        except BaseException:
            self._drop(key, "the driver has given it up")
            raise
        if why is not None:
            self._drop(key, why)
        publish.result()
        received: dict[str, dict[str, str]] = {}
        for engine, load in loads.items():
            try:
                answer: Received = load.result()
            except ActorFailed:  # its replacement has begun; the fleet tells of it
                continue
            if answer.broken is None:
                received[engine.name] = answer.sums
        if why is not None:
            raise Partly(received, why)
        return received

    async def _settle(
        self, live: _Live, publish: asyncio.Future[Any], loads: dict[EngineHandle, asyncio.Future[Any]]
    ) -> str | None:
        """Wait until all parties have left the transfer; why it broke off, None if it came to its end."""
        why: str | None = None
        pending: set[asyncio.Future[Any]] = {publish, *loads.values()}
        while pending:
            limit_s = None if why is None else LEAVE_S
            done, pending = await asyncio.wait(pending, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                fault = fault_of(task)
                if fault is not None and why is None:
                    why = fault
                    live.board.end(why)
            if not done:
                for engine, load in loads.items():
                    if load in pending:
                        engine.fail(f"it did not leave a transfer of weights that was ended within {LEAVE_S:.0f} s")
        return why

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _key(self, engines: Sequence[EngineHandle], slots: SlotsName) -> Opened:
        return (self._trainer.lives, slots, *((engine.name, engine.lives) for engine in engines))

    async def _planned(self) -> tuple[BucketPlan, list[Holdings]]:
        """The buckets of the model, and what each trainer rank holds. Raises WayClosed."""
        lives = self._trainer.lives
        if self._layout is None or self._layout[0] != lives:
            held: list[Holdings] = await self._trainer.each("transfer", QUEUE_S, "holdings")
            obstacle = next((each.obstacle for each in held if each.obstacle is not None), None)
            if obstacle is not None:
                raise WayClosed(obstacle, lasting=True)
            try:
                plan = bucket_plan(
                    held[0].sources, held[0].shapes, [each.held for each in held], held[0].dtype, self._bucket_bytes
                )
            except ValueError as error:
                raise WayClosed(str(error), lasting=True) from error
            self._layout = (lives, plan, held)
        return self._layout[1:]

    async def _open(self, key: Opened, engines: Sequence[EngineHandle], slots: SlotsName) -> _Live:
        """A session of these engines. Raises TransferBroken, ActorFailed, RunFailed."""
        plan, held = await self._planned()
        while len(self._live) >= SESSIONS:
            self._drop(next(iter(self._live)), "other engines receive weights now")
        name = f"{self._trainer.name} {uuid.uuid4().hex[:8]}"
        nodes = [ReceivingNode(device, "", 1) for engine in engines for device in engine.facts.devices]
        if slots == "host":
            try:
                nodes = await node_memories(name, engines, plan.largest, len(held))
            except BaseException:
                self._later(name, self._engines_leave(name, engines))  # those that have made a node's memory
                raise
        address = node_address()
        board = MessageBoard(address, 0, self._stall_s, serves=True)
        session = Session(
            name, address, board.port, self._stall_s, tuple(nodes), tuple(each.node for each in held), plan,
            self._relay, slots, tuple(each.device for each in held),
        )  # fmt: skip
        live = _Live(session, board, tuple(engines))
        calls: list[Coroutine[Any, Any, Any]] = [
            self._trainer.each("transfer", QUEUE_S, "open", session),
            *(engine.open_transfer(session) for engine in engines),
        ]
        faults = await asyncio.gather(*calls, return_exceptions=True)
        for fault in faults:
            if isinstance(fault, BaseException):
                self._leave(live, "a party did not join")
                raise fault
        texts = [text for fault in faults for text in (fault if isinstance(fault, list) else [fault]) if text]
        if texts:
            self._leave(live, str(texts[0]))
            raise TransferBroken(str(texts[0]))
        self._live[key] = live
        self._turns[name] = 0
        return live

    def _drop(self, key: Opened, why: str) -> None:
        """End a session."""
        live = self._live.pop(key, None)
        if live is not None:
            self._turns.pop(live.session.name, None)
            self._leave(live, why)

    def _leave(self, live: _Live, why: str) -> None:
        """Have all parties leave a session, without waiting for them."""
        live.board.end(why)
        self._later(live.session.name, self._all_leave(live))

    def _later(self, name: str, leave: Coroutine[Any, Any, None]) -> None:
        """Have parties leave a session, without waiting for them; `close` waits."""
        task = asyncio.create_task(leave, name=f"leave {name}")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _all_leave(self, live: _Live) -> None:
        """Have all parties leave; the board's server runs as long. Whoever is gone has left."""
        name = live.session.name
        await asyncio.gather(
            self._trainer.each("transfer", QUEUE_S, "leave", name),
            self._engines_leave(name, live.engines),
            return_exceptions=True,
        )

    async def _engines_leave(self, name: str, engines: Sequence[EngineHandle]) -> None:
        """Have engines leave a session that they may be in, and give its memory back."""
        await asyncio.gather(*(engine.leave_transfer(name) for engine in engines), return_exceptions=True)


async def _host(engines: list[EngineHandle]) -> Choice:
    return Choice("host")


def _task(call: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
    return retrieved(asyncio.ensure_future(call))
