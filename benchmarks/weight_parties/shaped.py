"""Seconds and bytes of transfers over a slow link between two pools, direct and relayed.

Trainer ranks on one node, nodes of engines in another pool, all in network namespaces (pools.py). Everything but the
network is one machine's: what is shown is how many copies cross the link, and that seconds follow.

    {"direct": {"seconds": …, "slow_link_bytes": …}, "relayed": {…}, "ratio": seconds of direct over relayed,
     "copies": {"direct": …, "relayed": …}, "bytes": of the model, "link_mbit_per_s": …, "nodes": …, "mismatches": 0}
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from rlplan.executor.weights.transfer.session import ReceivingNode, Session

from .party import plan_of
from .party_process import Party, all_of
from .pools import Pools

RANKS = 2
READERS = 2
"""Engine ranks on each node."""
LINK_BITS_PER_S = 200e6
DEADLINE_S = 60.0
BUCKET_BYTES = 8 * 10**6
TRAINER = "trainer"


class Transfers:
    """All parties of transfers to `nodes` in one session, direct or relayed."""

    def __init__(self, pools: Pools, nodes: list[str], tensors: int, relay: bool) -> None:
        self._tensors, self._turn, self._nodes = tensors, 0, nodes
        plan = plan_of(tensors, RANKS, BUCKET_BYTES)
        self.nbytes = plan.nbytes
        self._parties: list[Party] = []
        host = pools.address(TRAINER)
        self._board = self._party(pools, "board", TRAINER)
        self._ranks = [self._party(pools, "rank", TRAINER) for _ in range(RANKS)]
        self._receivers = [self._party(pools, "node", node) for node in nodes]
        self._readers = [self._party(pools, "reader", node) for node in nodes for _ in range(READERS)]
        port = self._board.call("serve", host, DEADLINE_S)
        paths = all_of([(party, ("make", plan.largest, RANKS)) for party in self._receivers])
        receiving = tuple(ReceivingNode(node, path, READERS) for node, path in zip(nodes, paths, strict=True))
        session = Session("shaped", host, port, DEADLINE_S, receiving, (TRAINER,) * RANKS, plan, relay)
        joins: list[tuple[Party, tuple[Any, ...]]] = [
            (party, ("join", session, node, pools.address(node)))
            for party, node in zip(self._receivers, nodes, strict=True)
        ]
        joins += [(party, ("open", session, rank, host)) for rank, party in enumerate(self._ranks)]
        keys = [node for node in nodes for _ in range(READERS)]
        joins += [(party, ("open", session.for_reader(key))) for party, key in zip(self._readers, keys, strict=True)]
        all_of(joins)

    def _party(self, pools: Pools, role: str, node: str) -> Party:
        party = Party(role, f"{role} on {node}", pools.within(node))
        self._parties.append(party)
        return party

    def send(self) -> tuple[float, int]:
        """One transfer of new weights; returns its seconds, and how many tensors came out other than they were."""
        turn = self._turn
        self._turn += 1
        all_of([(party, ("hold", self._tensors, turn)) for party in self._ranks])
        began = time.perf_counter()
        calls: list[tuple[Party, tuple[Any, ...]]] = [(party, ("read", turn)) for party in self._readers]
        calls += [(party, ("receive", turn)) for party in self._receivers]
        calls += [(party, ("publish", turn)) for party in self._ranks]
        counts = all_of(calls)[: len(self._readers)]
        seconds = time.perf_counter() - began
        wrong = all_of([(party, ("mismatches", turn)) for party in self._readers])
        return seconds, sum(wrong) + sum(count != self._tensors for count in counts)

    def close(self) -> None:
        """End all parties."""
        for party in self._parties:
            party.end()


def shaped(nodes: int, tensors: int, repeats: int, notify: Callable[[str], None]) -> dict[str, Any]:
    """Figures of transfers to `nodes` nodes of a model of `tensors` tensors; see the module."""
    names = [f"engines{number}" for number in range(nodes)]
    figures: dict[str, Any] = {}
    mismatches = nbytes = 0
    with Pools({TRAINER: True} | dict.fromkeys(names, False), LINK_BITS_PER_S) as pools:
        for way, relay in (("direct", False), ("relayed", True)):
            transfers = Transfers(pools, names, tensors, relay)
            try:
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
