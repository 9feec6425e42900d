"""The placement of a run as data: the node and devices of each engine, trainer rank and reward worker.

Nodes are numbered from 0, and so are the devices of each node. Invariants (`Placement.double_booked`, tests):
- in one phase (rollout with engines of one TP size, or the training of one plan) no device has two holders;
- an engine's devices, which hold its tensor-parallel ranks, are of one node;
- trainer ranks fill nodes in order, so that ranks that exchange most (rank_mesh.py) are on one node;
- where trainers have a pool to themselves no engine is on its nodes, and no rank elsewhere.

Engines are spread over nodes, one on each node before any node has two: an engine then shares its host with fewer
others, and a node that dies takes fewer engines with it. Engines are numbered node by node, as trainer ranks are: the
last engines, which may be handed over to training, then free whole nodes, and so whole replicas of the trainer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...plans.check.prediction_rules import nodes_taken
from ...plans.phrases.numbers import count
from ...plans.schema.cluster import Pool
from ...plans.schema.levers import EngineLayout
from ...plans.schema.plan import Plan


def engine_counts(layouts: Iterable[EngineLayout]) -> dict[int, int]:
    """By TP size, in order: as many engines as the largest layout of that size has; layouts share them."""
    counts: dict[int, int] = {}
    for layout in layouts:
        counts[layout.tp] = max(counts.get(layout.tp, 0), layout.engines)
    return dict(sorted(counts.items()))


def engine_name(tp: int, number: int) -> str:
    """Name of an engine in errors, traces and placements."""
    return f"rollout-tp{tp}-{number}"


def judge_name(number: int) -> str:
    """Name of a copy of the judge in errors, traces and placements."""
    return f"judge-{number}"


class DoesNotFit(Exception):
    """The pool is too small; the text says what does not fit, how much it needs and how much the pool has."""


@dataclass(frozen=True, slots=True, order=True)
class NodeDevices:
    """Devices of one node."""

    node: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Room:
    """Nodes of a pool that a run takes, numbered from `first`.

    Attributes:
        pool: its name.
        nodes: how many.
        devices: of each node.
        cores: host cores of each node; where devices are cores, they are among them.
    """

    pool: str
    nodes: int
    devices: int
    cores: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class Judges:
    """Copies of a judge: their names, the devices of each, and whether they are beside engines or have their own."""

    names: tuple[str, ...]
    tp: int
    beside: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """The node and devices of every actor of a run.

    Attributes:
        rooms: the nodes of the engines, and those of the trainers if these have a pool of their own.
        engines: devices by name of the engine, copies of a judge included.
        engine_sets: names of the engines of each TP size, which decode together; copies of a judge are in no set.
        trainers: devices of the ranks, in their order, by name of the plan; plans train one after another.
        reward_workers: the node of each worker.
    """

    rooms: tuple[Room, ...]
    engines: Mapping[str, NodeDevices]
    engine_sets: Mapping[int, tuple[str, ...]]
    trainers: Mapping[str, tuple[NodeDevices, ...]]
    reward_workers: tuple[int, ...]

    def phases(self) -> Iterator[tuple[str, list[NodeDevices]]]:
        """Yield (phase, devices that are in use together in it)."""
        for tp, names in self.engine_sets.items():
            yield f"rollout with TP {tp}", [self.engines[name] for name in names]
        for plan, ranks in self.trainers.items():
            yield f"training of {plan}", list(ranks)

    def double_booked(self) -> list[tuple[str, int, int]]:
        """(phase, node, device) of each device that has several holders in one phase; the invariants say none."""
        twice = []
        for phase, holders in self.phases():
            devices = Counter((held.node, device) for held in holders for device in held.devices)
            twice += [(phase, node, device) for (node, device), number in devices.items() if number > 1]
        return twice

    def nodes_in_use(self) -> dict[int, Room]:
        """The nodes that have an actor, in order, each with the pool that it is of."""
        trained = {held.node for ranks in self.trainers.values() for held in ranks}
        used = {held.node for held in self.engines.values()} | trained | set(self.reward_workers)
        return {
            node: room for room in self.rooms for node in range(room.first, room.first + room.nodes) if node in used
        }

    def device_names(self, kind: str) -> dict[str, list[str]]:
        """Names of the devices of each engine and each `trainer PLAN`, as `GPU 3 of node 1`; `kind`: cuda or cpu."""
        word = "GPU" if kind == "cuda" else "core"
        holders = {name: [held] for name, held in self.engines.items()}
        holders |= {f"trainer {plan}": list(ranks) for plan, ranks in self.trainers.items()}
        return {
            name: [f"{word} {device} of node {held.node}" for held in of_name for device in held.devices]
            for name, of_name in holders.items()
        }


def place(
    room: Room,
    engines: Mapping[int, Sequence[str]],
    ranks: Mapping[str, int],
    workers: int,
    train_room: Room | None = None,
    judges: Judges | None = None,
) -> Placement:
    """The placement of a run's actors.

    Args:
        room: the nodes of the engines.
        engines: names of the engines by TP size.
        ranks: trainer ranks of each plan.
        workers: number of reward workers; they are on nodes of the engines' pool that have engines or trainer ranks.
        train_room: the nodes of the trainers, which are numbered after those of the engines; None: the engines' nodes.
        judges: copies of a judge; None: there is no judge.

    Raises DoesNotFit.
    """
    if train_room is not None:
        train_room = replace(train_room, first=room.nodes)
    trained = train_room or room
    placed: dict[str, NodeDevices] = {}
    for tp, names in engines.items():
        of_size = sorted(_engine_devices(room, tp, number, len(names)) for number in range(len(names)))
        placed |= dict(zip(names, of_size, strict=True))
    trainers = {
        plan: tuple(_rank_device(trained, rank, total) for rank in range(total)) for plan, total in ranks.items()
    }
    used: list[set[int]] = [set() for _ in range(room.nodes)]
    for held in [*placed.values(), *(held for of_plan in trainers.values() for held in of_plan)]:
        if held.node < room.nodes:
            used[held.node].update(held.devices)
    if judges is not None:
        placed |= _judge_devices(room, judges, list(placed.values()))
    sets = {tp: tuple(names) for tp, names in engines.items()}
    rooms = (room,) if train_room is None else (room, train_room)
    return Placement(rooms, placed, sets, trainers, _worker_nodes(room, used, workers))


def _engine_devices(room: Room, tp: int, number: int, total: int) -> NodeDevices:
    of_node = room.devices // tp
    row, node = divmod(number, room.nodes)
    if row >= of_node:
        raise DoesNotFit(
            f"{count(total, 'engine')} of TP {tp} {'needs' if total == 1 else 'need'} {count(total * tp, 'device')}, "
            f"each engine's on one node; the {_text(room)} can hold {count(room.nodes * of_node, 'engine')}"
        )
    return NodeDevices(node, tuple(range(row * tp, (row + 1) * tp)))


def _judge_devices(room: Room, judges: Judges, engines: Sequence[NodeDevices]) -> dict[str, NodeDevices]:
    """Devices of a judge's copies, spread over nodes: those of engines, or devices that no engine ever has."""
    decoding: list[set[int]] = [set() for _ in range(room.nodes)]
    for held in engines:
        decoding[held.node].update(held.devices)
    free = [sorted(held if judges.beside else set(range(room.devices)) - held) for held in decoding]
    placed: dict[str, NodeDevices] = {}
    for name in judges.names:
        node = max(range(room.nodes), key=lambda number: (len(free[number]), -number))
        if len(free[node]) < judges.tp:
            whose = "engines have" if judges.beside else "engines leave"
            raise DoesNotFit(
                f"{count(len(judges.names), 'copy', 'copies')} of the judge need {count(judges.tp, 'device')} each on "
                f"one node; of the {_text(room)} the {whose} room for {len(placed)}"
            )
        placed[name] = NodeDevices(node, tuple(free[node][: judges.tp]))
        free[node] = free[node][judges.tp :]
    return placed


def _rank_device(room: Room, rank: int, total: int) -> NodeDevices:
    row, device = divmod(rank, room.devices)
    if row >= room.nodes:
        raise DoesNotFit(
            f"{count(total, 'trainer rank')} need a device each; the {_text(room)} have {room.nodes * room.devices}"
        )
    return NodeDevices(room.first + row, (device,))


def _text(room: Room) -> str:
    return f"{count(room.nodes, 'node')} of pool '{room.pool}', with {count(room.devices, 'device')} each,"


def _worker_nodes(room: Room, used: Sequence[set[int]], workers: int) -> tuple[int, ...]:
    """The node of each reward worker: among the nodes with engines or trainer ranks, the one with most unused cores.

    An engine or trainer rank uses one host core for each of its GPUs; where devices are cores, the device is that core.
    No worker gets a node to itself: the run would hold all devices of that node, too.
    """
    free = {node: room.cores - len(devices) for node, devices in enumerate(used) if devices}
    nodes = []
    for _ in range(workers):
        node = max(free, key=lambda number: (free[number], -number))
        free[node] -= 1
        nodes.append(node)
    return tuple(nodes)


def run_placement(plans: Mapping[str, Plan], pools: Mapping[str, Pool]) -> Placement:
    """The placement of plans that are executed in turns, by name, on the nodes that the plans take.

    They share engines and reward workers, and agree on their pools (prepare.py). Raises DoesNotFit.
    """
    jobs = {name: plan.job for name, plan in plans.items()}
    first = next(iter(jobs.values()))
    rollout_pool = first.rounds.short.rollout.pool
    train_pool = None if first.placement is None else first.placement.train_pool
    kinds = [kind for job in jobs.values() for kind in (job.rounds.short, job.rounds.long) if kind is not None]
    counts = engine_counts({layout for kind in kinds for layout in kind.layouts})
    engines = {tp: [engine_name(tp, number) for number in range(count)] for tp, count in counts.items()}
    ranks = {name: job.rounds.short.train.accelerators for name, job in jobs.items()}
    nodes, train_nodes = _nodes(plans.values(), pools[rollout_pool], None if train_pool is None else pools[train_pool])
    train_room = None if train_pool is None else room_of(train_pool, pools, train_nodes)
    judge = first.reward.judge
    judges = None
    if judge is not None:
        names = tuple(judge_name(number) for number in range(judge.instances))
        judges = Judges(names, judge.tp, judge.place == "beside")
    room = room_of(rollout_pool, pools, nodes)
    return place(room, engines, ranks, first.reward.all_workers, train_room, judges)


def room_of(name: str, pools: Mapping[str, Pool], nodes: int | None = None) -> Room:
    """The first `nodes` nodes of a pool, numbered from 0; None: all."""
    pool = pools[name]
    return Room(name, pool.nodes if nodes is None else nodes, pool.accelerators.per_node, pool.cores)


def _nodes(plans: Iterable[Plan], pool: Pool, train_pool: Pool | None) -> tuple[int, int]:
    """Nodes of the engines' pool and of the trainers' own (0 without one) that serve each of the plans.

    A plan takes the nodes of its prediction, which are what it is priced at; an edited one that needs more, as many as
    it needs. A prediction that is not of these pools (its `placement` was edited) says nothing: all nodes are taken.
    """
    whole = pool.nodes, 0 if train_pool is None else train_pool.nodes
    most = 0, 0
    for plan in plans:
        trainers = plan.predicted.train_nodes
        taken = whole
        if (trainers is None) == (train_pool is None):
            needed = nodes_taken(plan, pool, train_pool)
            taken = max(plan.predicted.nodes - (trainers or 0), needed[0]), max(trainers or 0, needed[1])
        most = max(most[0], taken[0]), max(most[1], taken[1])
    return min(most[0], whole[0]), min(most[1], whole[1])
