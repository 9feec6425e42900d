"""Parts of a transfer in pieces as the driver sees them: node memory, how a party fared, what was received in part."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ..engines.engine_handle import EngineHandle
from ..faults import ActorFailed, reason
from .transfer.engine_transfers import Received
from .transfer.message_board import TransferBroken
from .transfer.session import ReceivingNode


async def node_memories(
    name: str, engines: Sequence[EngineHandle], bucket_bytes: int, ranks: int
) -> list[ReceivingNode]:
    """Have one engine of each node make the node's memory for a session. Raises TransferBroken, ActorFailed."""
    by_node: dict[str, list[EngineHandle]] = {}
    for engine in engines:
        by_node.setdefault(engine.facts.node, []).append(engine)
    nodes = []
    for node, of_node in sorted(by_node.items()):
        path = await of_node[0].make_node_memory(name, bucket_bytes, ranks)
        if not path.startswith("/"):
            raise TransferBroken(path)
        nodes.append(ReceivingNode(node, path, sum(engine.config.tp for engine in of_node)))
    return nodes


class Partly(Exception):
    """A transfer broke off; `received` has the engines that have all of it."""

    def __init__(self, received: dict[str, dict[str, str]], why: str) -> None:
        super().__init__(why)
        self.received, self.reason = received, why


def fault_of(task: asyncio.Future[Any]) -> str | None:
    """Why a party's part in a transfer ended early; None if it came to its end."""
    error = task.exception()
    if error is not None:
        return f"{error.process}: {error.reason}" if isinstance(error, ActorFailed) else reason(error)
    answer = task.result()
    if isinstance(answer, Received):
        return answer.broken
    return next((text for text in answer if text is not None), None)
