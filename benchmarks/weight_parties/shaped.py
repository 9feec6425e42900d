"""Seconds and bytes of transfers over a slow link between two pools, direct and relayed.

Trainer ranks on one node, nodes of engines in another pool, all in network namespaces (pools.py). Everything but the
network is one machine's: what is shown is how many copies cross the link, and that seconds follow.

    {"direct": {"seconds": …, "slow_link_bytes": …}, "relayed": {…}, "ratio": seconds of direct over relayed,
     "copies": {"direct": …, "relayed": …}, "bytes": of the model, "link_mbit_per_s": …, "nodes": …, "mismatches": 0}
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from rlplan.executor.weights.transfer.session import ReceivingNode, Session

from .party import plan_of
from .party_process import Party, all_of
from .pools import Pools
from .transfers import DEADLINE_S, Transfers

RANKS = 2
READERS = 2
"""Engine ranks on each node."""
LINK_BITS_PER_S = 200e6
BUCKET_BYTES = 8 * 10**6
TRAINER = "trainer"


class ShapedTransfers(Transfers):
    """Transfers to `nodes` of the pool of engines, direct or relayed."""

    def __init__(self, pools: Pools, nodes: list[str], tensors: int) -> None:
        super().__init__(tensors)
        self._pools, self._nodes = pools, nodes
        self.board = self.party("board", TRAINER, pools.within(TRAINER))
        self.ranks = [self.party("rank", TRAINER, pools.within(TRAINER)) for _ in range(RANKS)]
        self.receivers = [self.party("node", node, pools.within(node)) for node in nodes]
        self.readers = [self.party("reader", node, pools.within(node)) for node in nodes for _ in range(READERS)]
        self.nbytes = 0

    def join(self, relay: bool) -> None:
        """Have all parties join a session."""
        plan = plan_of(self.tensors, RANKS, BUCKET_BYTES)
        self.nbytes = plan.nbytes
        nodes, address = self._nodes, self._pools.address
        host = address(TRAINER)
        port = self.board.call("serve", host, DEADLINE_S)
        paths = all_of([(party, ("make", plan.largest, RANKS)) for party in self.receivers])
        receiving = tuple(ReceivingNode(node, path, READERS) for node, path in zip(nodes, paths, strict=True))
        session = Session("shaped", host, port, DEADLINE_S, receiving, (TRAINER,) * RANKS, plan, relay)
        joins: list[tuple[Party, tuple[Any, ...]]] = [
            (party, ("join", session, node, address(node))) for party, node in zip(self.receivers, nodes, strict=True)
        ]
        joins += [(party, ("open", session, rank, host)) for rank, party in enumerate(self.ranks)]
        keys = [node for node in nodes for _ in range(READERS)]
        joins += [(party, ("open", session.for_reader(key))) for party, key in zip(self.readers, keys, strict=True)]
        all_of(joins)


def shaped(nodes: int, tensors: int, repeats: int, notify: Callable[[str], None]) -> dict[str, Any]:
    """Figures of transfers to `nodes` nodes of a model of `tensors` tensors; see the module."""
    names = [f"engines{number}" for number in range(nodes)]
    figures: dict[str, Any] = {}
    mismatches = nbytes = 0
    with Pools({TRAINER: True} | dict.fromkeys(names, False), LINK_BITS_PER_S) as pools:
        for way, relay in (("direct", False), ("relayed", True)):
            transfers = ShapedTransfers(pools, names, tensors)
            try:
                transfers.join(relay)
                nbytes = transfers.nbytes
                transfers.send()  # the first one makes what the others use again
                times, crossed = [], pools.crossed_bytes()
                for _ in range(repeats):
                    seconds, wrong = transfers.send()
                    times.append(seconds)
                    mismatches += wrong
                figures[way] = {
                    "seconds": round(statistics.median(times), 3),
                    "slow_link_bytes": (pools.crossed_bytes() - crossed) // repeats,
                }
                notify(f"{way}: {figures[way]}")
            finally:
                transfers.close()
    return figures | {
        "ratio": round(figures["direct"]["seconds"] / figures["relayed"]["seconds"], 2),
        "copies": {way: round(figures[way]["slow_link_bytes"] / nbytes, 2) for way in ("direct", "relayed")},
        "bytes": nbytes,
        "link_mbit_per_s": LINK_BITS_PER_S / 1e6,
        "nodes": nodes,
        "mismatches": mismatches,
    }
