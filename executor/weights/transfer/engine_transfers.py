"""Transfers in which an engine's actor takes part, for its node, and what it and its ranks (bucket_reader.py) tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...actors import retrieved
from ...host import node_address, node_key
from .message_board import TransferBroken
from .session import RankAnswer, Session

if TYPE_CHECKING:
    from .node_receiver import NodeReceiver

RankCall = Callable[[str, tuple[Any, ...]], Awaitable[list[Any]]]
"""Calls a method of all ranks of the engine; returns what they return."""


class Received(NamedTuple):
    """What an engine tells of a transfer: checksums of what it received, if asked for; `broken`: why it received
    nothing that may be used."""

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
        from .node_receiver import NodeReceiver  # here, since the driver names this class, and this is all of torch

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
