"""The nodes of the groups that one driver runs: leased when a job needs them, released when none does.

While jobs move between groups, the pool keeps the nodes that one group gives back until another group takes them, so
that no other tenant of the cluster gets them in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...plans.yaml.errors import InputError
from .actor_placer import same_versions
from .live_nodes import LeasedNode, answers, choose, cluster_nodes, device_resource, lease, part_of_this_machine
from .run_placement import Room


class NodePool:
    """See the module.

    Args:
        kind: of all devices, `cpu` or `cuda`.
        own_machine: whether Ray was started for this run; where devices are cores, its machine then stands for all
            nodes, and each gets cores of its own as far as they suffice.

    Invariant: a leased node is held by one group, kept as spare, or released.
    """

    def __init__(self, kind: str, own_machine: bool) -> None:
        self.kind = kind
        self.keeps = False
        """Whether nodes that are given back become spare nodes, for groups that need such nodes next."""
        self._own_machine = own_machine and kind == "cpu"  # GPUs of one machine are one node
        self._rooms: dict[int, tuple[str, int]] = {}  # pool and devices of each node, by its id()
        self._held: list[LeasedNode] = []
        self._spare: list[LeasedNode] = []

    async def take(self, rooms: Sequence[Room]) -> list[LeasedNode]:
        """A node for each room. Raises InputError if the cluster lacks one, RunFailed if no process starts there; no
        node is held then."""
        if self._own_machine:
            return [self._part(room) for room in rooms]
        resource = device_resource(self.kind)
        taken: dict[int, LeasedNode] = {}
        try:
            for number, room in enumerate(rooms):
                if (spare := await self._spare_for(room)) is not None:
                    taken[number] = self._hold(spare, room)
            missing = [number for number in range(len(rooms)) if number not in taken]
            chosen, lack = choose(cluster_nodes(resource), [rooms[number] for number in missing], resource)
            if lack is not None:
                raise InputError(f"{lack}; start more nodes, wait for other jobs, or solve for this cluster")
            for number, free in zip(missing, chosen, strict=True):
                room = rooms[number]
                held = None if free is None else await lease(free, resource, room.devices)
                if held is None:
                    raise InputError(f"a node of pool '{room.pool}' was taken by others meanwhile; try again")
                taken[number] = self._hold(held, room)
            if self._held:
                same_versions(self._held)
        except BaseException:
            for node in taken.values():  # a spare one too: it may be what was wrong
                self._held = [each for each in self._held if each is not node]
                self._release(node)
            raise
        return [taken[number] for number in range(len(rooms))]

    def give_back(self, node: LeasedNode) -> None:
        """A group needs this node no more."""
        self._held = [each for each in self._held if each is not node]
        if self.keeps and not self._own_machine:
            self._spare.append(node)
        else:
            self._release(node)

    def release_spare(self) -> None:
        """Release the spare nodes, and keep none from now on."""
        self.keeps = False
        for node in self._spare:
            self._release(node)
        self._spare = []

    def close(self) -> None:
        """Release all nodes."""
        self.release_spare()
        for node in list(self._held):
            self.give_back(node)

    async def _spare_for(self, room: Room) -> LeasedNode | None:
        """Take a spare node of the same pool and size that still answers; None: there is none."""
        for node in [each for each in self._spare if self._rooms[id(each)] == (room.pool, room.devices)]:
            self._spare.remove(node)
            if await answers(node):
                return node
            self._release(node)
        return None

    def _hold(self, node: LeasedNode, room: Room) -> LeasedNode:
        self._rooms[id(node)] = (room.pool, room.devices)
        self._held.append(node)
        return node

    def _release(self, node: LeasedNode) -> None:
        self._rooms.pop(id(node), None)
        node.release()

    def _part(self, room: Room) -> LeasedNode:
        users = Counter(core for node in self._held for core in node.facts.cores)
        return self._hold(part_of_this_machine(self.kind, room.devices, users), room)
