"""Places the actors of a run while it goes on: which node of the cluster stands for each node of a placement.

Invariants:
- each node of the placement stands for one node of the cluster, and no two for the same one;
- an actor runs only on a node that this run has leased, on the devices that the placement gives it: a device never has
  two holders in a phase, whatever dies;
- a lost node is replaced, when an actor needs it, by another with as many free devices, or by itself once it is back;
  until then its engines wait, and the run goes on with the others.
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
from .run_placement import NodeDevices, Placement

LOOK_S = 2.0  # how often the cluster is asked for a node that is missing


class ActorPlacement(NamedTuple):
    """Where an actor runs on the cluster.

    Attributes:
        node_id: Ray's id of the node; "": any.
        address: of the node.
        cores: host cores that are the devices, where devices are cores.
        gpus: ids of the GPUs, where devices are GPUs.
        node_cores: number of cores of the node.
        stays_on: the only cores that a process there may use, since other nodes share the machine; (): all cores.
    """

    node_id: str
    address: str
    cores: tuple[int, ...]
    gpus: tuple[str, ...]
    node_cores: int
    stays_on: tuple[int, ...] = ()


class NodeNews(NamedTuple):
    """A node of the placement was lost (`event` "node_lost") or is back ("node_back")."""

    event: str
    node: int
    address: str


class ActorPlacer:
    """Places the actors of a placement on nodes. `open()` first, `close()` last; all calls on one event loop.

    Args:
        placement: the node and devices of each actor.
        kind: of the devices, `cpu` or `cuda`.
        tell: called for each node that is lost or back.
        given: the nodes, already leased by another process, in the order of `placement.nodes_in_use()`; (): this object
            leases them.
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
        self._placed: set[str] = set()
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
        """Lease a node for each of these that is still free; returns what the cluster lacks, or None."""
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
        """Whether a trainer rank of a plan runs on a node."""
        return any(held.node == number for held in self.placement.trainers[plan])

    def runs_on(self, engine: str, number: int) -> bool:
        """Whether an engine runs on a node."""
        return self.placement.engines[engine].node == number

    def leave(self, number: int) -> bool:
        """Give up a node that still lives, if another can replace it: actors that start there next get the other one.

        Returns whether it was given up.
        """
        # Nodes that were lost before and are not replaced yet need room, too.
        rooms = [self._rooms[node] for node in (*self._lost, number)]
        _, lack = choose(self._not_held(cluster_nodes(self._resource)), rooms, self._resource)
        if lack is None:
            self._lose(number)
        return lack is None

    async def engine(self, name: str) -> ActorPlacement:
        """Where an engine runs; waits as long as no node has room."""
        return await self._place(name, self.placement.engines[name])

    async def ranks(self, plan: str, patience_s: float) -> list[ActorPlacement]:
        """Where a plan's trainer ranks run. Raises RunFailed if a node is missing for `patience_s` seconds."""
        ranks = self.placement.trainers[plan]
        places = [self._place(f"rank {rank} of {plan}", planned) for rank, planned in enumerate(ranks)]
        try:
            return list(await asyncio.wait_for(asyncio.gather(*places), patience_s))
        except TimeoutError:
            raise RunFailed(
                f"trainer {plan}: no node with {self._rooms[ranks[0].node].devices} free {self._resource} came in "
                f"place of one that was lost, within {patience_s:.0f} s; start one, and go on with --resume"
            ) from None

    async def worker(self, number: int) -> ActorPlacement:
        """Where a reward worker runs: on another node while its own is missing. It holds no device."""
        first = self.placement.reward_workers[number]
        order = [first, *(node for node in self._nodes if node != first)]
        name = f"worker {number}"
        for node in order:
            if node not in self._lost and (name not in self._placed or await answers(self._nodes[node])):
                self._placed.add(name)
                return self._on_cluster(NodeDevices(node, ()))
        return await self._place(name, NodeDevices(first, ()))

    async def _place(self, name: str, planned: NodeDevices) -> ActorPlacement:
        number = planned.node
        async with self._locks[number]:
            # An actor that was placed before is placed again since it died: its node may be gone.
            if name in self._placed and number not in self._lost and not await answers(self._nodes[number]):
                self._lose(number)
            while number in self._lost:
                if not await self._replaced(number):
                    await asyncio.sleep(LOOK_S)
            self._placed.add(name)
            return self._on_cluster(planned)

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
            self._nodes[number].release()  # no actor runs there, and `close` releases only nodes that are not lost
            self._nodes[number] = before
            raise
        self._lost.discard(number)
        self.tell(NodeNews("node_back", number, self._nodes[number].facts.address))
        return True

    def _not_held(self, nodes: Sequence[ClusterNode]) -> list[ClusterNode]:
        held = {node.node_id for number, node in self._nodes.items() if number not in self._lost}
        return [node for node in nodes if node.node_id not in held]

    def _on_cluster(self, planned: NodeDevices) -> ActorPlacement:
        node = self._nodes[planned.node]
        cores, gpus = node.facts.cores, node.facts.gpus
        if self._kind == "cuda":
            return ActorPlacement(
                node.node_id, node.facts.address, (), tuple(gpus[d] for d in planned.devices), len(cores)
            )
        # A node may have fewer cores than the plan says (a laptop): then devices share them.
        own = tuple(cores[device % len(cores)] for device in planned.devices)
        return ActorPlacement(node.node_id, node.facts.address, own, (), len(cores), cores if node.part else ())


def same_versions(nodes: Sequence[LeasedNode]) -> None:
    """Raises InputError if nodes have different packages, with which ranks cannot work together."""
    first = nodes[0].facts
    for node in nodes[1:]:
        for (package, ours), (_, theirs) in zip(first.versions, node.facts.versions, strict=True):
            if ours != theirs:
                raise InputError(
                    f"{package} is {theirs} on node {node.facts.address} and {ours} on node {first.address}; install "
                    "the same on all nodes"
                )
