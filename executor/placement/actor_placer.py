"""Places the actors of a run while it goes on: which node of the cluster stands for each node of a placement.

Invariants:
- each node of the placement stands for one node of the cluster, and no two for the same one;
- an actor runs only on a node that this run has leased, on the devices that the placement gives it: a device never has
  two holders in a phase, whatever dies;
- a lost node is replaced, when an actor needs it, by another with as many free devices, or by itself once it is back;
  until then its engines wait, and the run goes on with the others;
- a node on which actors fail again and again, more than elsewhere, is excluded: it is left as if it were lost, and
  never leased again by this run. So it is if another node has room, or if all of its engines fail, there are others,
  and no trainer needs it; else each of its actors has its own limit (`supervision`). What fails on a second node, too,
  is no node's fault.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import ray

from ...plans.phrases.numbers import count
from ...plans.yaml.errors import InputError, RunFailed
from ..processes.faults import ActorFailed, ErrorClass, classify, out_of_memory, own_device_error, reason
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
FAILURES = 2  # of actors on a node, within FAILURES_S, after which it is excluded
FAILURES_S = 6 * 3600.0  # a start may take half an hour; faults further apart cost little


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
    """A node of the placement was lost (`event` "node_lost"), is back ("node_back"), or is excluded for a `reason`
    ("node_excluded"): what still runs there is to be ended."""

    event: str
    node: int
    address: str
    reason: str = ""


class _Failure(NamedTuple):
    at_s: float
    actor: str
    why: str


class Blame:
    """Which rank of a group was the first to fail: the one with an error of its own device, else the one that is gone.
    Where there are several it is none of them: NCCL's watchdog ends those that lost a peer, too."""

    def __init__(self) -> None:
        self.gone: set[int] = set()
        self._faulty: set[int] = set()

    def hear(self, rank: int, call: asyncio.Future[Any]) -> None:
        """Note how a call to a rank has ended."""
        error = None if call.cancelled() else call.exception()
        if error is not None and own_device_error(reason(error)):
            self._faulty.add(rank)
        elif isinstance(error, ray.exceptions.RayActorError):
            self.gone.add(rank)

    @property
    def rank(self) -> int | None:
        """The one to blame, where that is known."""
        found = self._faulty or self.gone
        return min(found) if len(found) == 1 else None


async def _all_fit(nodes: Sequence[LeasedNode]) -> None:
    """Any nodes do."""


class ActorPlacer:
    """Places the actors of a placement on nodes. `open()` first, `close()` last; all calls on one event loop.

    Args:
        placement: the node and devices of each actor.
        kind: of the devices, `cpu` or `cuda`.
        tell: called for each node that is lost or back.
        given: the nodes, already leased by another process, in the order of `placement.nodes_in_use()`; (): this object
            leases them.
        excluded: addresses of nodes that are never leased, and why; None: actors that fail exclude no further node.
        fits: given one of the nodes and one that comes in while the run goes on, raises InputError if they cannot work
            together.
    """

    def __init__(
        self,
        placement: Placement,
        kind: str,
        tell: Callable[[NodeNews], None] = lambda news: None,
        given: Sequence[LeasedNode] = (),
        excluded: Mapping[str, str] | None = None,
        fits: Callable[[Sequence[LeasedNode]], Awaitable[None]] = _all_fit,
    ) -> None:
        self.placement = placement
        self.tell = tell
        self.excluded = dict(excluded or {})
        self._excludes = excluded is not None
        self._kind = kind
        self._given = given
        self._fits = fits
        self._resource = ""
        self._rooms = placement.nodes_in_use()
        self._nodes: dict[int, LeasedNode] = {}
        self._lost: set[int] = set()
        self._failures: dict[int, list[_Failure]] = {}
        self._moved: dict[str, float] = {}  # actors for whose failures a node was excluded, and when
        self._placed: set[str] = set()
        self._draining: set[str] = set()
        self._locks = {node: asyncio.Lock() for node in self._rooms}
        self._replacing = asyncio.Lock()  # else two would get the same node

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
            for node, room in self._rooms.items():
                self._nodes[node] = await asyncio.to_thread(this_machine, self._kind, room.devices)
            return
        self._resource = device_resource(self._kind)
        while missing := [node for node in self._rooms if node not in self._nodes and node not in self._lost]:
            if (lack := await self._lease(missing)) is None:
                self._exclude_faulty(missing)
                continue
            spared = [node for node in missing if self._dispensable(node)]
            if not spared or len(self._lost) == len(self.excluded):
                raise InputError(f"{lack}{self._left_out()}; start more nodes, wait for other jobs, or solve for this "
                                 "cluster")  # fmt: skip
            why = "excluded, and no other has room in its place: the run begins without it"
            self.tell(NodeNews("node_lost", spared[-1], [*self.excluded][len(self._lost)], why))
            self._lost.add(spared[-1])
        same_versions(self.nodes)

    def _left_out(self) -> str:
        return "".join(f"; node {address} is excluded ({why})" for address, why in self.excluded.items())

    def _exclude_faulty(self, numbers: Iterable[int]) -> None:
        """Give back those of the newly leased nodes that have a device which does not work, if others are free."""
        without: list[int] = []  # which need others, too
        for number in numbers:
            node = self._nodes.get(number)
            if node is not None and node.facts.faults and self._lack([*without, number]) is None:
                without.append(number)
                self.excluded[node.facts.address] = why = "; ".join(dict(node.facts.faults).values())
                node.release()
                del self._nodes[number]
                self.tell(NodeNews("node_excluded", number, node.facts.address, why))

    async def _lease(self, missing: Sequence[int]) -> str | None:
        """Lease a node for each of these that is still free; returns what the cluster lacks, or None."""
        rooms = [self._rooms[node] for node in missing]
        chosen, lack = choose(self._not_held(cluster_nodes(self._resource)), rooms, self._resource)
        if lack is not None:
            return lack
        self._failures = {number: kept for number, kept in self._failures.items() if number not in missing}
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
        lack = self._lack([*self._lost, number])
        if lack is None:
            self._lose(number)
        return lack is None

    def _lack(self, numbers: Iterable[int]) -> str | None:
        """What the cluster lacks for other nodes in place of these, or None."""
        rooms = [self._rooms[number] for number in numbers]
        return choose(self._not_held(cluster_nodes(self._resource)), rooms, self._resource)[1]

    # -- nodes that fail -----------------------------------------------------------------------------------------------

    def engine_failed(self, name: str, why: str) -> None:
        """Note that an engine's process died, or did not come up."""
        self._note_failure(name, self.placement.engines[name].node, why)

    def rank_failed(self, plan: str, rank: int, why: str) -> None:
        """Note that a trainer rank died, or did not come up: the first of its group."""
        self._note_failure(f"rank {rank} of {plan}", self.placement.trainers[plan][rank].node, why)

    def _note_failure(self, actor: str, number: int, why: str) -> None:
        now = time.monotonic()
        moved = actor in self._moved and now - self._moved[actor] < FAILURES_S
        if number not in self._lost and not moved and not out_of_memory(why):  # a matter of the model and its plan
            self._failures.setdefault(number, []).append(_Failure(now, actor, why))

    def failing(self) -> dict[int, str]:
        """Nodes that are to be excluded, each with the reason."""
        if not self._excludes or not self._resource:  # without the latter: its only node, or those of a group
            return {}
        since = time.monotonic() - FAILURES_S
        counts = dict.fromkeys(set(self._rooms) - self._lost, 0)
        counts |= {n: sum(f.at_s > since for f in of_node) for n, of_node in self._failures.items() if n in counts}
        found = {}
        for number, failed in counts.items():
            share = statistics.median([counts[other] for other in counts if other != number] or [0])
            if failed >= max(FAILURES, 2 * share + 1) and (self._lack([*self._lost, number]) is None or (
                {f.actor for f in self._failures[number]} >= set(self._engines_on(number))
                and self._dispensable(number)
            )):  # fmt: skip
                last = self._failures[number][-1]
                found[number] = f"{count(failed, 'failure')} there; the last: {last.actor}: {last.why}"
        return found

    def _engines_on(self, number: int) -> list[str]:
        return [name for name, held in self.placement.engines.items() if held.node == number]

    def _dispensable(self, number: int) -> bool:
        """Whether engines of each kind that a node has are on other nodes, too, and no trainer needs it."""
        here, ours = self._engines_on(number), self.placement.engine_sets
        judges = tuple(name for name in self.placement.engines if not any(name in names for names in ours.values()))
        return not any(self.trains_on(plan, number) for plan in self.placement.trainers) and all(
            any(self.placement.engines[name].node not in (number, *self._lost) for name in names)
            for names in (*ours.values(), judges)
            if set(names) & set(here)
        )

    def exclude(self, number: int, why: str) -> None:
        """Leave a node for the rest of the run."""
        address = self.address(number)
        self.excluded[address] = why
        self._moved |= dict.fromkeys((failure.actor for failure in self._failures.pop(number, ())), time.monotonic())
        self._lost.add(number)
        self.tell(NodeNews("node_excluded", number, address, why))
        self._nodes[number].release()

    def waits(self, engine: str) -> bool:
        """Whether no node is there for an engine."""
        return self.placement.engines[engine].node in self._lost

    def stands(self, engine: str, node_id: str) -> bool:
        """Whether an engine's node still is the one of that id: it was neither lost nor replaced."""
        return not self.waits(engine) and self._nodes[self.placement.engines[engine].node].node_id == node_id

    # -- places --------------------------------------------------------------------------------------------------------

    async def engine(self, name: str) -> ActorPlacement:
        """Where an engine runs; waits as long as no node has room. Raises ActorFailed if its device does not work."""
        return await self._place(name, self.placement.engines[name])

    async def ranks(self, plan: str, patience_s: float) -> list[ActorPlacement]:
        """Where a plan's trainer ranks run. Raises RunFailed if a node is missing for `patience_s` seconds."""
        ranks = self.placement.trainers[plan]
        try:
            async with asyncio.timeout(patience_s):
                while True:
                    calls = [self._place(f"rank {rank} of {plan}", each, plan) for rank, each in enumerate(ranks)]
                    places = await asyncio.gather(*calls)
                    # The node of one may have become another while the others were asked for.
                    if all(
                        each.node not in self._lost and self._nodes[each.node].node_id == placed.node_id
                        for each, placed in zip(ranks, places, strict=True)
                    ):
                        return places
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

    async def _place(self, name: str, planned: NodeDevices, plan: str = "") -> ActorPlacement:
        """`plan`: whose trainer rank it is."""
        number = planned.node
        async with self._locks[number]:
            # An actor that was placed before is placed again since it died: its node may be gone.
            if name in self._placed and number not in self._lost:
                if not await answers(self._nodes[number]):
                    self._lose(number)
                # A trainer that lives there leaves between two steps (turns.Leaving).
                elif not any(self.trains_on(other, number) for other in self.placement.trainers if other != plan) and (
                    why := self.failing().get(number)
                ):
                    self.exclude(number, why)
            while number in self._lost:
                async with self._replacing:
                    found = await self._replaced(number)
                if not found:
                    await asyncio.sleep(LOOK_S)
            self._placed.add(name)
            for device, fault in self._nodes[number].facts.faults:
                if device in planned.devices:
                    raise ActorFailed(name, f"node {self.address(number)}: {fault}")
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
        before, found, why = self._nodes.pop(number, None), None, None
        try:
            await self._lease([number])
            if (found := self._nodes.get(number)) is not None:
                why = await self._unfit(found)
        finally:
            if why != "":  # it stays the run's no more than the one before
                self._nodes.pop(number, None)
                if found is not None:
                    found.release()
                if before is not None:
                    self._nodes[number] = before
        if found is None or why is None:
            return False
        if why:
            self.excluded[found.facts.address] = why
            self.tell(NodeNews("node_excluded", number, found.facts.address, why))
            return False
        self._lost.discard(number)
        self.tell(NodeNews("node_back", number, self._nodes[number].facts.address))
        return True

    async def _unfit(self, found: LeasedNode) -> str | None:
        """Why a node that comes in cannot work with the others, "" if it can; None: a node did not answer."""
        others = [node for number, node in self._nodes.items() if number not in self._lost]
        try:
            same_versions([*others, found])
            if not found.facts.faults:
                for other in others:  # one may be gone, and nobody know it yet
                    if await answers(other):
                        await self._fits([other, found])
                        break
                else:
                    await self._fits([found])
        except InputError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - whatever keeps a node from reading its model
            return reason(error) if classify(error) is ErrorClass.FATAL else None
        return "; ".join(dict(found.facts.faults).values())

    def _not_held(self, nodes: Sequence[ClusterNode]) -> list[ClusterNode]:
        held = {node.node_id for number, node in self._nodes.items() if number not in self._lost}
        return [node for node in nodes if node.node_id not in held and node.address not in self.excluded]

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
