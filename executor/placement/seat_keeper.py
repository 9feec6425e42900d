"""The seats of a run while it goes on: which node of the cluster stands for each node of a placement.

Invariants:
- a node of the placement is one node of the cluster, and no two are the same one;
- an actor is seated only on a node that this run has leased, on the devices that the placement gives it: a device never
  has two holders in a phase, whatever dies;
- a node that is lost is replaced, when somebody needs it, by another with as many free devices, or by itself once it is
  back; while there is none its engines wait, and the run goes on with the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...plans.yaml.errors import InputError, RunFailed
from .live_nodes import (
    ClusterNode,
    LeasedNode,
    answers,
    choose,
    cluster_nodes,
    device_resource,
    draining_nodes,
    lease,
    this_machine,
)
from .seats import DeviceSeat, Placement

LOOK_S = 2.0  # how often the cluster is asked for a node that is missing


class LiveSeat(NamedTuple):
    """What an actor needs to know of its place.

    Attributes:
        node_id: Ray's id of the node; "": any.
        address: of the node.
        cores: host cores that are the devices, where devices are cores.
        gpus: ids of the GPUs, where devices are GPUs.
        node_cores: number of cores of the node.
        stays_on: cores that a process there keeps to, since the machine's others are another node's; (): no such.
    """

    node_id: str
    address: str
    cores: tuple[int, ...]
    gpus: tuple[str, ...]
    node_cores: int
    stays_on: tuple[int, ...] = ()


class NodeNews(NamedTuple):
    """A node of the placement was lost (`event` "node_lost") or is there again ("node_back")."""

    event: str
    node: int
    address: str


class SeatKeeper:
    """Seats the actors of a placement on nodes. `open()` first, `close()` last; all calls on one event loop.

    Args:
        placement: the seats.
        kind: of the devices, `cpu` or `cuda`.
        tell: hears of nodes that are lost or back.
        given: nodes for those of the placement in use, in order, which another process has leased; (): they are leased
            here.
    """

    def __init__(
        self,
        placement: Placement,
        kind: str,
        tell: Callable[[NodeNews], None] = lambda news: None,
        given: Sequence[LeasedNode] = (),
    ) -> None:
        self.placement = placement
        self.tell = tell
        self._kind = kind
        self._given = given
        self._resource = ""
        self._rooms = placement.nodes_in_use()
        self._nodes: dict[int, LeasedNode] = {}
        self._lost: set[int] = set()
        self._seated: set[str] = set()
        self._draining: set[str] = set()
        self._locks = {node: asyncio.Lock() for node in self._rooms}

    async def open(self, own_machine: bool) -> None:
        """Lease the nodes. `own_machine`: Ray was started for this run, on this machine alone.

        Raises InputError with what the cluster lacks, RunFailed if its nodes answer no more.
        """
        if self._given:
            self._nodes = dict(zip(self._rooms, self._given, strict=True))
            return
        if own_machine:
            if len(self._rooms) > 1:
                raise InputError(
                    f"{len(self._rooms)} nodes are needed, and this machine is one; start Ray on all nodes, and "
                    "set RAY_ADDRESS to the address of its head"
                )
            self._nodes = {node: this_machine(self._kind, room.devices) for node, room in self._rooms.items()}
            return
        self._resource = device_resource(self._kind)
        while missing := [node for node in self._rooms if node not in self._nodes]:
            if (lack := await self._lease(missing)) is not None:
                raise InputError(f"{lack}; start more nodes, wait for other jobs, or solve for this cluster")
        same_versions(self.nodes)

    async def _lease(self, missing: Sequence[int]) -> str | None:
        """Lease a node for each of these, unless one went away meanwhile; what the cluster lacks, or None."""
        rooms = [self._rooms[node] for node in missing]
        chosen, lack = choose(self._not_held(cluster_nodes(self._resource)), rooms, self._resource)
        if lack is not None:
            return lack
        calls = [lease(node, self._resource, room.devices) for node, room in zip(chosen, rooms, strict=True) if node]
        for number, leased in zip(missing, await asyncio.gather(*calls), strict=True):
            if leased is not None:
                self._nodes[number] = leased
        return None

    def close(self) -> None:
        """Give all devices back."""
        for number, node in self._nodes.items():
            if number not in self._lost:
                node.release()
        self._nodes = {}

    @property
    def nodes(self) -> list[LeasedNode]:
        """The leased nodes, in order."""
        return list(self._nodes.values())

    @property
    def numbered(self) -> dict[int, LeasedNode]:
        """The leased nodes, by the placement's numbers."""
        return dict(self._nodes)

    def address(self, number: int) -> str:
        """Address of the node that stands, or stood last, for a node of the placement."""
        return self._nodes[number].facts.address

    def newly_draining(self) -> dict[int, float | None]:
        """Nodes of which Ray says since the last call that they are to be taken away: the seconds until then, None
        where no time was named."""
        if not self._resource:  # Ray runs on this machine alone
            return {}
        going = draining_nodes()
        new = {
            number: going[node.node_id]
            for number, node in self._nodes.items()
            if node.node_id in going and node.node_id not in self._draining and number not in self._lost
        }
        self._draining.update(self._nodes[number].node_id for number in new)
        return new

    def trains_on(self, plan: str, number: int) -> bool:
        """Whether a trainer rank of a plan is seated on a node."""
        return any(seat.node == number for seat in self.placement.trainers[plan])

    def seated_on(self, engine: str, number: int) -> bool:
        """Whether an engine is seated on a node."""
        return self.placement.engines[engine].node == number

    def leave(self, number: int) -> bool:
        """Give up a node that still lives, if another can take its place; whoever is started there next comes there.

        Returns whether it was given up.
        """
        # Nodes that were lost before, and have nobody in their place yet, need room too.
        rooms = [self._rooms[node] for node in (*self._lost, number)]
        _, lack = choose(self._not_held(cluster_nodes(self._resource)), rooms, self._resource)
        if lack is None:
            self._lose(number)
        return lack is None

    async def engine(self, name: str) -> LiveSeat:
        """The seat of an engine; waits for a node with room as long as there is none."""
        return await self._take(name, self.placement.engines[name])

    async def ranks(self, plan: str, patience_s: float) -> list[LiveSeat]:
        """The seats of a plan's trainer ranks. Raises RunFailed if a node is missing for `patience_s` seconds."""
        seats = self.placement.trainers[plan]
        takes = [self._take(f"rank {rank} of {plan}", seat) for rank, seat in enumerate(seats)]
        try:
            return list(await asyncio.wait_for(asyncio.gather(*takes), patience_s))
        except TimeoutError:
            raise RunFailed(
                f"trainer {plan}: no node with {self._rooms[seats[0].node].devices} free {self._resource} came in "
                f"place of one that was lost, within {patience_s:.0f} s; start one, and go on with --resume"
            ) from None

    async def worker(self, number: int) -> LiveSeat:
        """The seat of a reward worker: on another node while its own is missing. It holds no device."""
        first = self.placement.reward_workers[number]
        order = [first, *(node for node in self._nodes if node != first)]
        name = f"worker {number}"
        for node in order:
            if node not in self._lost and (name not in self._seated or await answers(self._nodes[node])):
                self._seated.add(name)
                return self._live(DeviceSeat(node, ()))
        return await self._take(name, DeviceSeat(first, ()))

    async def _take(self, name: str, seat: DeviceSeat) -> LiveSeat:
        async with self._locks[seat.node]:
            # The first of a name finds the node as `open` left it; another one comes after a death.
            if name in self._seated and seat.node not in self._lost and not await answers(self._nodes[seat.node]):
                self._lose(seat.node)
            while seat.node in self._lost:
                if not await self._replaced(seat.node):
                    await asyncio.sleep(LOOK_S)
            self._seated.add(name)
            return self._live(seat)

    def _lose(self, number: int) -> None:
        node = self._nodes[number]
        self._lost.add(number)
        node.release()
        self.tell(NodeNews("node_lost", number, node.facts.address))

    async def _replaced(self, number: int) -> bool:
        if self._given:
            raise RunFailed(f"node {self.address(number)} of the group is gone; go on with --resume")
        if not self._resource:  # Ray runs on this machine alone
            raise RunFailed("Ray is gone from this machine; go on with --resume")
        before = self._nodes[number]
        if await self._lease([number]) is not None or self._nodes[number] is before:
            return False
        try:
            same_versions(self.nodes)
        except InputError:
            self._nodes[number].release()  # nobody sits there, and `close` gives back only nodes that are not lost
            self._nodes[number] = before
            raise
        self._lost.discard(number)
        self.tell(NodeNews("node_back", number, self._nodes[number].facts.address))
        return True

    def _not_held(self, nodes: Sequence[ClusterNode]) -> list[ClusterNode]:
        held = {node.node_id for number, node in self._nodes.items() if number not in self._lost}
        return [node for node in nodes if node.node_id not in held]

    def _live(self, seat: DeviceSeat) -> LiveSeat:
        node = self._nodes[seat.node]
        cores, gpus = node.facts.cores, node.facts.gpus
        if self._kind == "cuda":
            return LiveSeat(node.node_id, node.facts.address, (), tuple(gpus[d] for d in seat.devices), len(cores))
        # A node may have fewer cores than the plan says (a laptop): then devices share them.
        own = tuple(cores[device % len(cores)] for device in seat.devices)
        return LiveSeat(node.node_id, node.facts.address, own, (), len(cores), cores if node.part else ())


def same_versions(nodes: Sequence[LeasedNode]) -> None:
    """Raises InputError if nodes have different packages: ranks would not understand each other."""
    first = nodes[0].facts
    for node in nodes[1:]:
        for (package, ours), (_, theirs) in zip(first.versions, node.facts.versions, strict=True):
            if ours != theirs:
                raise InputError(
                    f"{package} is {theirs} on node {node.facts.address} and {ours} on node {first.address}; install "
                    "the same on all nodes"
                )
