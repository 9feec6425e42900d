"""All transfers in which one engine takes part: its actor, for the node, and its ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from ...actors import retrieved
from ...host import node_address, node_key
from .bucket_reader import BucketReader, OtherVersion, ReaderPlace
from .message_board import TransferBroken
from .node_receiver import NodeReceiver
from .session import Session, session_of_reader

RankCall = Callable[[str, tuple[Any, ...]], Awaitable[list[Any]]]
"""Calls a method of all ranks of the engine; returns what they return."""


class Received(NamedTuple):
    """What an engine tells of a transfer: checksums of what it received, if asked for; `broken`: why it received
    nothing that may be used."""

    sums: dict[str, str]
    broken: str | None = None


class RankAnswer(NamedTuple):
    """What an engine rank tells of a transfer: the version of the bytes, checksums, why it broke off."""

    version: str
    sums: dict[str, str]
    broken: str | None = None


def agreed(engine: str, answers: Sequence[RankAnswer], version: str, source: str) -> dict[str, str]:
    """The checksums of what all ranks of an engine received from `source`. Raises RuntimeError if a rank received
    another version, or ranks received different weights."""
    for answer in answers:
        if answer.version != version:
            raise RuntimeError(f"{engine}: {source} holds weights {answer.version!r}, not {version!r}")
    if any(answer.sums != answers[0].sums for answer in answers[1:]):
        raise RuntimeError(f"{engine}: ranks received different weights from {source}")
    return answers[0].sums


class ActorTransfers:
    """The part of an engine's actor in transfers."""

    def __init__(self, call_ranks: RankCall) -> None:
        self._call_ranks = call_ranks
        self._made: dict[str, NodeReceiver] = {}

    def make_memory(self, name: str, bucket_bytes: int, ranks: int) -> str:
        """Make the memory of this node for a session of `ranks` trainer ranks; returns its path (it begins with a
        slash) or why it could not."""
        try:
            self._made[name] = NodeReceiver(bucket_bytes, ranks)
        except TransferBroken as broken:
            return str(broken)
        return self._made[name].memory.path

    async def open(self, session: Session) -> str | None:
        """Join a session with all ranks; returns why it could not."""
        key, address = node_key(), node_address()
        text = session.for_reader(key)
        try:
            if (made := self._made.get(session.name)) is not None:
                await asyncio.to_thread(made.join, session, key, address)
        except TransferBroken as broken:
            return str(broken)
        return next((fault for fault in await self._call_ranks("open_transfer", (text,)) if fault is not None), None)

    async def receive(self, name: str, turn: int, version: str, checksums: bool) -> list[RankAnswer]:
        """Take part in transfer number `turn` of a session; returns what the ranks tell of it."""
        made = self._made.get(name)
        network: asyncio.Future[None] | None = None
        if made is not None and made.is_needed:
            # If a rank dies, nobody awaits it: the transfer is ended, and it leaves by itself.
            network = retrieved(asyncio.ensure_future(asyncio.to_thread(made.receive, turn)))
        answers = [
            RankAnswer(*each) for each in await self._call_ranks("receive_buckets", (name, turn, version, checksums))
        ]
        if network is not None:
            try:
                await network
            except TransferBroken as broken:
                answers.append(RankAnswer(version, {}, str(broken)))
        return answers

    async def leave(self, name: str) -> None:
        """Leave a session, if the engine is in it."""
        made = self._made.pop(name, None)
        if made is not None:
            made.leave()
        await self._call_ranks("leave_transfer", (name,))


class ReaderRank:
    """The part of an engine rank in transfers. `load` gives tensors to vLLM, `reset` undoes a load that broke off;
    `at` says where the rank is."""

    def __init__(self, load: Callable[[Any], None], reset: Callable[[], None], at: ReaderPlace) -> None:
        self._load, self._reset, self._at = load, reset, at
        self._readers: dict[str, BucketReader] = {}

    def open(self, text: str) -> str | None:
        """Join a session; returns why it could not."""
        session = session_of_reader(text)
        try:
            self._readers[session.name] = BucketReader(session, self._at)
        except TransferBroken as broken:
            return str(broken)
        except RuntimeError as error:  # of CUDA or NCCL: weights can go through host memory then
            if session.slots == "host":
                raise
            return f"slots {session.slots}: {error}"
        return None

    def receive(self, name: str, turn: int, version: str, checksum: Callable[[Any], str] | None) -> RankAnswer:
        """Load the weights of transfer number `turn`, unless they are of another version than `version`."""
        reader, sums = self._readers.get(name), dict[str, str]()
        if reader is None:
            return RankAnswer(version, sums, f"an engine is in no session {name}")

        def tensors() -> Any:
            for tensor_name, tensor in reader.tensors(turn, version):
                if checksum is not None:
                    sums[tensor_name] = checksum(tensor)
                yield tensor_name, tensor
                del tensor  # who holds it is counted

        try:
            reader.await_first(turn, version)
            try:
                self._load(tensors())
            except BaseException:
                self._reset()
                raise
        except OtherVersion as other:
            return RankAnswer(other.found, {})
        except TransferBroken as broken:
            reader.end(str(broken))
            return RankAnswer(version, {}, str(broken))
        return RankAnswer(version, sums)

    def leave(self, name: str) -> None:
        """Leave a session, if this rank is in it."""
        reader = self._readers.pop(name, None)
        if reader is not None:
            reader.leave()
