"""Which node receives what from which trainer rank, as data: directly, or relayed by the nodes that receive.

A message holds what one rank puts into one bucket. Without a relay a rank broadcasts its messages to all receiving
nodes elsewhere. With one, the receiving nodes without trainer ranks (engines in a pool of their own, which the trainer
reaches over a slow link) each take one part of each message, and broadcast it to the others over their own network. So
one copy of the model crosses the slow link whatever the number of nodes, and the links of all of them carry at once.
This is the two-stage transfer of RollMux with parts of messages in place of shards of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PART_ALIGNMENT = 64
"""Bytes of which the size of a part is a multiple, but of the last one."""


class Route(NamedTuple):
    """Part `part` of `parts` of the messages of one party, on its way to `nodes`; `name` is unique in a session."""

    name: str
    nodes: tuple[str, ...]
    part: int = 0
    parts: int = 1

    def span(self, nbytes: int) -> slice:
        """The bytes of a message of `nbytes` bytes that go this way; perhaps none."""
        return part_of(nbytes, self.part, self.parts)


def part_of(nbytes: int, part: int, parts: int) -> slice:
    """The bytes of part `part` of a message of `nbytes` bytes: equal parts, but the last ones may be short or empty."""
    size = -(-nbytes // parts)
    size = -(-size // PART_ALIGNMENT) * PART_ALIGNMENT
    return slice(min(part * size, nbytes), min((part + 1) * size, nbytes))


def relaying_nodes(nodes: Sequence[str], rank_nodes: Sequence[str], relay: bool) -> tuple[str, ...]:
    """Of the receiving `nodes` those that relay to each other: those without trainer ranks, if there are several."""
    far = tuple(node for node in nodes if node not in rank_nodes)
    return far if relay and len(far) > 1 else ()


def rank_routes(rank: int, nodes: Sequence[str], rank_nodes: Sequence[str], relay: bool) -> tuple[Route, ...]:
    """On which routes a trainer rank sends; each node elsewhere is on at most one of them."""
    far = relaying_nodes(nodes, rank_nodes, relay)
    direct = tuple(node for node in nodes if node != rank_nodes[rank] and node not in far)
    routes = [Route(f"rank {rank}", direct)] if direct else []
    routes += [Route(f"rank {rank} part {part}", (node,), part, len(far)) for part, node in enumerate(far)]
    return tuple(routes)


def relay_routes(nodes: Sequence[str], rank_nodes: Sequence[str], relay: bool) -> tuple[Route, ...]:
    """On which routes the nodes that relay pass on what they receive first: node number `part` to the others."""
    far = relaying_nodes(nodes, rank_nodes, relay)
    others = [tuple(other for other in far if other != node) for node in far]
    return tuple(Route(f"relay {part}", to, part, len(far)) for part, to in enumerate(others))
