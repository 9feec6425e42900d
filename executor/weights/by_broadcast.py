"""The way in pieces: trainer ranks put what they hold of a bucket where engines load it (ways.py), bucket by bucket.

The driver leads: it has the ranks send bucket i + 1 while engines load bucket i, from memory of two buckets. So nobody
waits for another party but in a collective among trainer ranks, which live and die together, or in the group of slots
`nccl`, which has a deadline.

Invariants:
- no rank gathers the model; each node with engines receives each byte once;
- an engine that dies or does not answer within `stall_s` and the time that a bucket may take is left out and replaced,
  and the others go on (of `nccl` they begin again); a trainer rank that does is `TrainerDied`;
- nobody uses what was received of a transfer that did not come to its end;
- no bucket is sent after the trainer may have changed its weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..actors import retrieved
from ..engines.engine_handle import LOAD_BYTES_PER_S, EngineHandle
from ..faults import ActorFailed
from ..supervision import CALL_DEADLINE_S
from ..trainer.trainer_group import STEP_DEADLINE_S, TrainerDied, TrainerGroup
from .bucket_plan import ITEM_BYTES, Bucket, buckets_of
from .transfer import Answer, Holdings, Transfer
from .ways import Sent, SlotsName, WayClosed, choose

BUCKET_BYTES = 128 * 10**6
TRIES = 2  # of a transfer that breaks off although no engine died
QUEUE_S = STEP_DEADLINE_S + CALL_DEADLINE_S  # a call to the ranks may have to wait until they have taken a step


class Broken(Exception):
    """A transfer did not come to its end, for this reason."""


class ByBroadcast:
    """Transfers from one trainer. `may_send` is asked before each bucket; `slots`: where weights shall lie, if they
    can, None: in the best place.

    Slots on GPUs that break although no engine died are given up for good: host memory serves everything.
    """

    def __init__(
        self,
        trainer: TrainerGroup,
        stall_s: float,
        may_send: Callable[[], bool] = lambda: True,
        bucket_bytes: int = BUCKET_BYTES,
        slots: SlotsName | None = None,
    ) -> None:
        self._trainer, self._stall_s, self._may_send, self._bucket_bytes = trainer, stall_s, may_send, bucket_bytes
        self._wanted = slots
        self._broke: str | None = None
        """What went wrong with slots on GPUs."""
        self._layout: tuple[int, tuple[Bucket, ...], list[Holdings]] | None = None
        self._memories: dict[str, tuple[EngineHandle, int, str]] = {}
        """Of each node: the engine that made its memory, in which of its lives, and the handle."""
        self._group: tuple[Any, str, str] = ((), "", "")
        """Of slots `nccl`: who is in the group, its name, where its members meet."""

    async def send(
        self, engines: Sequence[EngineHandle], version: str, checked: bool, *, from_host: bool = False
    ) -> Sent:
        """Send the trainer's weights as `version` to engines, all at once; `from_host`: through host memory.

        An engine that dies is left out; the fleet replaces it. Raises WayClosed, TrainerDied, and RunFailed if an
        engine was sent another version.
        """
        buckets, held = await self._planned()
        nbytes = ITEM_BYTES[held[0].dtype] * sum(math.prod(source.shape) for each in buckets for source in each.sources)
        expected: dict[str, str] = {}
        if checked:
            expected = (await self._trainer.each("transfer", QUEUE_S, "checksums"))[0]
        lives = {engine: engine.lives for engine in engines}
        slots: SlotsName = "host"
        reason, faults = None, 0
        while left := [e for e in engines if e.alive and e.lives == lives[e]]:
            slots, reason = ("host", None) if from_host else self._choice(left, held)
            try:
                received = await self._attempt(left, version, checked, slots)
                return Sent("broadcast", nbytes, expected, received, slots, reason)
            except Broken as broken:
                self._memories.clear()
                if any(not e.alive or e.lives != lives[e] for e in left):
                    continue  # that was why
                if slots != "host":
                    self._broke = f"{slots} broke: {broken}"
                    continue
                faults += 1
                if faults == TRIES:
                    raise WayClosed(f"the transfer broke off {TRIES} times: {broken}", lasting=False) from broken
        return Sent("broadcast", nbytes, expected, {}, slots, reason)

    def _choice(self, engines: list[EngineHandle], held: list[Holdings]) -> tuple[SlotsName, str | None]:
        """Where weights lie for these engines, and why not in a better place."""
        if self._broke is not None:
            return "host", self._broke
        uuids = [uuid for e in engines for uuid in (e.facts.devices or ("",) * e.config.tp)]
        return choose([each.device for each in held], uuids, self._wanted)

    async def _planned(self) -> tuple[tuple[Bucket, ...], list[Holdings]]:
        """The buckets of the model, and what each trainer rank says of itself. Raises WayClosed."""
        lives = self._trainer.lives
        if self._layout is None or self._layout[0] != lives:
            held: list[Holdings] = await self._trainer.each("transfer", QUEUE_S, "holdings")
            obstacle = next((each.obstacle for each in held if each.obstacle is not None), None)
            wanted, found = sum(math.prod(s.shape) for s in held[0].sources), sum(each.elements for each in held)
            if obstacle is not None or wanted != found:
                why = obstacle or f"the trainer's ranks say that they hold {found} of {wanted} weights"
                raise WayClosed(why, lasting=True)
            self._layout = lives, buckets_of(held[0].sources, ITEM_BYTES[held[0].dtype], self._bucket_bytes), held
        return self._layout[1:]

    async def _attempt(
        self, engines: list[EngineHandle], version: str, checked: bool, slots: SlotsName
    ) -> dict[str, dict[str, str]]:
        """Checksums by engine of one transfer to `engines`, without those that died. Raises Broken."""
        buckets, held = await self._planned()
        calls = _Calls(engines, self._stall_s)
        told = Transfer(version, slots, held[0].dtype, buckets, {}, checked, deadline_s=self._stall_s)
        told = await self._with_places(told, calls)
        try:
            versions, handles = zip(*_values(await self._of_ranks("begin", told)), strict=True)
            if slots == "ipc":
                told = told._replace(places={of.device: made for of, made in zip(held, handles, strict=True) if made})
            found = next((each for each in versions if each != version), version)
            begun = before = loading = calls.start("begin_weights", told, found)
            if slots == "nccl":
                await begun
            for index, bucket in enumerate(buckets):
                if slots == "nccl":  # engines take part in what the ranks send
                    before, loading = loading, calls.start("load_bucket", index, nbytes=bucket.nbytes)
                sent = _values(await self._of_ranks("send", index))
                await begun
                if not calls.left:
                    return {}
                if slots != "nccl":
                    await self._fill(index, sent, calls, bucket.nbytes)
                    before, loading = loading, calls.start("load_bucket", index, nbytes=bucket.nbytes)
                del sent  # Ray keeps it as long
                await before  # its memory is that of the next bucket
            await loading
            return await calls.all("finish_weights", version)
        except Broken:
            await calls.settle()  # who hangs is told apart from who waits for it
            raise
        finally:
            if slots != "host":
                with contextlib.suppress(TrainerDied):
                    await self._trainer.each("transfer", QUEUE_S, "end")

    async def _fill(self, index: int, sent: list[Any], calls: _Calls, nbytes: int) -> None:
        """Have the memory of each node filled with what ranks on other nodes sent. Raises Broken."""
        _, held = await self._planned()
        for node, (filler, _, _) in self._memories.items() if any(sent) else ():
            far = [ref for ref, of in zip(sent, held, strict=True) if ref is not None and of.node != node]
            if far and not await calls.all("fill_bucket", index, far, nbytes=nbytes, only=filler):
                raise Broken(f"{filler.name}, which fills the memory of its node, died")

    async def _of_ranks(self, method: str, *arguments: Any) -> list[Any]:
        """What the trainer's ranks answer. Raises WayClosed if the trainer may have changed its weights."""
        if not self._may_send():
            raise WayClosed("the trainer goes on to the next weights", lasting=False)
        return await self._trainer.each("transfer", QUEUE_S, method, *arguments)

    async def _with_places(self, told: Transfer, calls: _Calls) -> Transfer:
        """`told` with the places of its slots. Raises Broken if a node has no memory for it."""
        engines = calls.left
        devices = [device for engine in engines for device in engine.facts.devices]
        if told.slots == "ipc":
            return told._replace(places=dict.fromkeys(devices, ""))
        if told.slots == "nccl":
            members = self._trainer.lives, *((engine.name, engine.lives) for engine in engines)
            if self._group[0] != members:
                self._group = members, uuid.uuid4().hex, (await self._of_ranks("meet"))[0]
            places = {device: str(place) for place, device in enumerate(devices, 1)}
            return told._replace(places=places, group=self._group[1], meeting=self._group[2])
        memories = {}
        for node in {engine.facts.node for engine in engines}:
            maker, lives, handle = self._memories.get(node, (engines[0], -1, ""))
            if maker not in engines or maker.lives != lives:
                maker = next(engine for engine in engines if engine.facts.node == node)
                made = await calls.all("make_bucket_memory", told.largest, only=maker)
                if maker.name not in made:
                    raise Broken(f"{maker.name} died")
                lives, handle = maker.lives, made[maker.name]
            memories[node] = maker, lives, handle
        self._memories = memories
        return told._replace(places={node: handle for node, (_, _, handle) in memories.items()})


class _Calls:
    """Calls to the engines of one transfer, of which `left` has those that have not died."""

    def __init__(self, engines: Sequence[EngineHandle], stall_s: float) -> None:
        self.left, self._stall_s = list(engines), stall_s
        self._lives = {engine: engine.lives for engine in engines}
        self._begun: set[asyncio.Future[Any]] = set()

    async def settle(self) -> None:
        """Wait until all calls that were begun have ended, well or not."""
        await asyncio.gather(*self._begun, return_exceptions=True)

    def start(self, method: str, *arguments: Any, nbytes: int = 0) -> asyncio.Future[dict[str, Any]]:
        """Begin a call to all engines, which nobody has to wait for if the transfer ends."""
        call = retrieved(asyncio.ensure_future(self.all(method, *arguments, nbytes=nbytes)))
        self._begun.add(call)
        call.add_done_callback(self._begun.discard)
        return call

    async def all(
        self, method: str, *arguments: Any, nbytes: int = 0, only: EngineHandle | None = None
    ) -> dict[str, Any]:
        """The answers of all engines, or of one, by name; those that died are left out, their replacement has begun.

        Raises Broken if one of them tells why the transfer broke off, RunFailed as the engines do.
        """
        deadline_s = self._stall_s + nbytes / LOAD_BYTES_PER_S
        self.left = [engine for engine in self.left if engine.lives == self._lives[engine]]
        asked = [engine for engine in self.left if only in (None, engine)]
        calls = (engine.transfer(method, arguments, deadline_s) for engine in asked)
        found: dict[str, Answer] = {}
        for engine, answer in zip(asked, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(answer, ActorFailed):
                self.left = [other for other in self.left if other is not engine]
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[engine.name] = answer
        return dict(zip(found, _values(found.values()), strict=True))


def _values(answers: Iterable[Answer]) -> list[Any]:
    """What parties answer. Raises Broken if one of them tells why the transfer broke off."""
    values = []
    for answer in answers:
        if answer.broken is not None:
            raise Broken(answer.broken)
        values.append(answer.value)
    return values
