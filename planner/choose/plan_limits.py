"""The limits that a schedule must keep, the seconds of changing engines and shards, and the objective."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ...plans.schema.levers import EngineLayout
from ..costs.job_pools import HostShare, NodesTaken, fewest
from .candidates.solve_options import Objective


@dataclass(frozen=True, slots=True)
class TrainPool:
    """A pool that trainers have to themselves: host memory of a node, the most nodes, and the price of one."""

    host_memory_bytes: int
    nodes: int
    usd_per_node_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that a plan must keep, the seconds of changing between kinds of round, and the objective.

    Attributes:
        group_size: n.
        mean_tokens: unconditioned mean length.
        bias_budget: allowed |1 - length ratio|; infinite if bias does not matter.
        slo: whether `Column.slow` binds.
        host_memory_bytes: of a node, for engines and the trainers beside them.
        host_bytes: of each layout's engines, all together; they are spread evenly over the nodes that a plan takes.
        sharding: for each update choice a number; choices with the same number shard the model alike.
        reshard_s: seconds of changing between two shardings.
        layout_switch_s: seconds of changing between the engines of two layouts.
        objective: "seconds" or "usd", per trained sample.
        within_s: most seconds of the mean step; None: no bound.
        nodes: nodes that each layout's engines take.
        train_nodes: nodes that each update choice takes.
        usd_per_node_s: price of a node.
        train_host: host memory of each update choice's trainers; empty: none.
        pool_nodes: the most nodes that a plan can take.
        train_pool: what differs where trainers are on a pool of their own; None: they are beside the engines.
        workers: by number of a choice of reward workers, how many; empty: the job fixes them.
        worker_room: by layout, host cores of the nodes of its engines on which reward workers may run.
        one_sharding: both kinds of round shard the model alike, since one set of trainers serves both.
    """

    group_size: int
    mean_tokens: float
    bias_budget: float
    slo: bool
    host_memory_bytes: int
    host_bytes: dict[EngineLayout, int]
    sharding: tuple[int, ...] = ()
    reshard_s: float = 0.0
    layout_switch_s: float = 0.0
    objective: Objective = "seconds"
    within_s: float | None = None
    nodes: dict[EngineLayout, int] = field(default_factory=dict)
    train_nodes: tuple[int, ...] = ()
    usd_per_node_s: float = 0.0
    train_host: tuple[HostShare, ...] = ()
    pool_nodes: int = 1
    one_sharding: bool = False
    train_pool: TrainPool | None = None
    workers: tuple[int, ...] = ()
    worker_room: dict[EngineLayout, int] = field(default_factory=dict)
    # Of many schedules the same sets of layouts and updates are asked for.
    _taken: dict[object, NodesTaken] = field(default_factory=dict, init=False, repr=False, compare=False)
    _held: dict[object, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    def engines_on_node(self, layout: EngineLayout, nodes: int) -> float:
        """Bytes of host memory that a layout's engines take on the fullest of so many nodes."""
        each = -(-layout.engines // nodes)
        return self.host_bytes[layout] * each / layout.engines

    def trainers_on_node(self, train: int, nodes: int) -> float:
        """Bytes of host memory that an update choice's trainers take on the fullest of so many nodes."""
        return self.train_host[train].on_node(nodes) if self.train_host else 0.0

    def on_node(self, layouts: Iterable[EngineLayout], trains: Iterable[int], nodes: int) -> float:
        """Bytes of host memory on the fullest of so many nodes: engines of all layouts, and the trainers that take
        most, since a model's training state is there once."""
        engines = sum(self.engines_on_node(layout, nodes) for layout in set(layouts))
        return engines + max((self.trainers_on_node(train, nodes) for train in set(trains)), default=0.0)

    def nodes_for(self, layouts: Iterable[EngineLayout], trains: Iterable[int]) -> int:
        """The fewest nodes whose host memory holds these engines and trainers; all of the pool's where none does."""
        layouts, trains = set(layouts), set(trains)
        return fewest(self.pool_nodes, lambda nodes: self.on_node(layouts, trains, nodes) <= self.host_memory_bytes)

    @property
    def all_nodes(self) -> NodesTaken:
        """All nodes of each pool."""
        return NodesTaken(self.pool_nodes, 0 if self.train_pool is None else self.train_pool.nodes)

    def with_host_memory(self, host_memory_bytes: int) -> Limits:
        """These limits with so much host memory in each node."""
        own = None if self.train_pool is None else replace(self.train_pool, host_memory_bytes=host_memory_bytes)
        return replace(self, host_memory_bytes=host_memory_bytes, train_pool=own)

    def taken(self, layouts: Iterable[EngineLayout], trains: Iterable[int]) -> NodesTaken:
        """Nodes that engines and update choices take: the most that accelerators or host memory need, of each pool."""
        key = frozenset(layouts), frozenset(trains)
        if key not in self._taken:
            self._taken[key] = self._nodes_taken(set(key[0]), set(key[1]))
        return self._taken[key]

    def _nodes_taken(self, layouts: set[EngineLayout], trains: set[int]) -> NodesTaken:
        engines, trainers = max(map(self.nodes_of, layouts)), max(map(self.train_nodes_of, trains))
        if self.train_pool is None:
            return NodesTaken(max(engines, trainers, self.nodes_for(layouts, trains)))
        own_bytes = self.train_pool.host_memory_bytes
        own = fewest(self.train_pool.nodes, lambda nodes: self.on_node((), trains, nodes) <= own_bytes)
        return NodesTaken(max(engines, self.nodes_for(layouts, ())), max(trainers, own))

    def usd_per_s(self, nodes: NodesTaken) -> float:
        """Price of a second of so many nodes."""
        price = nodes.rollout * self.usd_per_node_s
        return price if self.train_pool is None else price + nodes.train * self.train_pool.usd_per_node_s

    def holds(self, layouts: Iterable[EngineLayout], trains: Iterable[int]) -> bool:
        """Whether the host memory of all nodes of the pools holds these engines and trainers."""
        key = frozenset(layouts), frozenset(trains)
        if key not in self._held:
            self._held[key] = self._all_hold(*key)
        return self._held[key]

    def _all_hold(self, layouts: Iterable[EngineLayout], trains: Iterable[int]) -> bool:
        if self.train_pool is None:
            return self.on_node(layouts, trains, self.pool_nodes) <= self.host_memory_bytes
        if self.on_node((), trains, self.train_pool.nodes) > self.train_pool.host_memory_bytes:
            return False
        return self.on_node(layouts, (), self.pool_nodes) <= self.host_memory_bytes

    def lacks_cores(self, layout: EngineLayout, reward: int) -> bool:
        """Whether the nodes of a layout's engines have fewer cores for reward workers than choice `reward` has
        workers."""
        return bool(self.workers) and self.workers[reward] > self.worker_room[layout]

    def sharding_of(self, train: int) -> int:
        """How update choice `train` shards the model."""
        return self.sharding[train] if self.sharding else 0

    def nodes_of(self, layout: EngineLayout) -> int:
        """Nodes of a layout's engines."""
        return self.nodes.get(layout, 1)

    def train_nodes_of(self, train: int) -> int:
        """Nodes of an update choice."""
        return self.train_nodes[train] if self.train_nodes else 1
