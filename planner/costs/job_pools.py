"""The pools of a job's engines and trainers, which are one where they take turns, and the seconds in which weights get
from the one to the other."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ...plans.check.plan_fit import pool_faults
from ...plans.schema.cluster import Cluster, Pool
from ...plans.schema.levers import EngineLayout, UpdateLayout
from ...plans.schema.planned_job import PlannedJob
from ...profiles.laws.sync_law import Networks, between_pools_s, chain_s, transfer_s, within_pool_s


class NodesTaken(NamedTuple):
    """Nodes that a plan takes of the engines' pool, and of the trainers' where they have one of their own (else 0)."""

    rollout: int
    train: int = 0

    @property
    def total(self) -> int:
        """Nodes of both pools."""
        return self.rollout + self.train

    def within(self, others: NodesTaken) -> bool:
        """Whether they are no more of either pool than `others`."""
        return self.rollout <= others.rollout and self.train <= others.train


class HostShare(NamedTuple):
    """Host memory of equal parts that are spread evenly over nodes.

    Attributes:
        part_count: how many parts there are.
        phases: for each phase, bytes of a part, and bytes that a node holds once, however many parts it has.
    """

    part_count: int
    phases: tuple[tuple[float, float], ...]

    def on_node(self, nodes: int) -> float:
        """Bytes on the fullest of so many nodes, in the phase in which it is fullest."""
        each = -(-self.part_count // max(1, nodes))
        return max(each * part + once for part, once in self.phases)


def fewest(most: int, suffice: Callable[[int], bool]) -> int:
    """The fewest nodes up to `most` that suffice, more of which suffice as well; `most` where no fewer do."""
    return bisect.bisect_left(range(1, most), True, key=suffice) + 1


@dataclass(frozen=True, slots=True)
class JobPools:
    """The pools of a job.

    Attributes:
        rollout: of its engines.
        train: of its trainers alone; None: they take turns with the engines.
        networks: those that the cluster names between and within them.
    """

    rollout: Pool
    train: Pool | None = None
    networks: Networks = field(default_factory=Networks)

    @property
    def apart(self) -> bool:
        """Whether trainers have a pool of their own."""
        return self.train is not None

    @property
    def of_trainers(self) -> Pool:
        """The pool that trainers are on."""
        return self.rollout if self.train is None else self.train

    @property
    def whole(self) -> NodesTaken:
        """All nodes of both."""
        return NodesTaken(self.rollout.nodes, 0 if self.train is None else self.train.nodes)

    def usd_per_hour(self, nodes: NodesTaken) -> float:
        """Price of so many nodes in USD an hour."""
        price = nodes.rollout * self.rollout.node_price
        return price if self.train is None else price + nodes.train * self.train.node_price

    @property
    def through_host(self) -> bool:
        """Whether weights lie in host memory on their way between pools: those of GPUs go from GPU to GPU over NCCL
        (executor/weights/transfer.py)."""
        return self.rollout.accelerators.kind == "cpu"

    def network_s(self, size_bytes: float, engines: EngineLayout, trainers: UpdateLayout) -> float:
        """Seconds in which weights of `size_bytes` cross the networks from trainers to engines, which are spread over
        the nodes that both take (executor/placement/run_placement.py).

        Those are the nodes of these two layouts. Where the other kind of round or host memory takes more, engines are
        on more nodes, and a transfer through host memory takes up to a copy more for each doubling.
        """
        taken = self.rollout.nodes_of(engines.engines, engines.tp)
        train_nodes = self.of_trainers.nodes_of(1, trainers.accelerators)
        if self.train is None:
            nodes = min(engines.engines, max(taken, train_nodes))
            if self._on_gpus_of(trainers, nodes):
                return chain_s(size_bytes, self.networks, train_nodes)
            return within_pool_s(size_bytes, self.networks, nodes, train_nodes)
        nodes = min(engines.engines, taken)
        if not self.through_host:
            return chain_s(size_bytes, self.networks, nodes)
        streams = min(engines.engines * engines.tp, trainers.accelerators)
        return between_pools_s(size_bytes, self.networks, streams, nodes)

    def _on_gpus_of(self, trainers: UpdateLayout, nodes: int) -> bool:
        """Whether each GPU of the first `nodes` nodes has a trainer rank, so that NCCL among the ranks is all that
        crosses a network, and engines load from their GPUs through CUDA IPC."""
        accelerators = self.rollout.accelerators
        return accelerators.kind == "cuda" and trainers.accelerators >= nodes * accelerators.per_node


@dataclass(frozen=True, slots=True)
class Travel:
    """The way of weights to the engines of a layout over networks that the cluster names.

    Attributes:
        constant_s: seconds of a transfer by the profile, networks not looked at.
        tensors: of the model; None: unknown.
    """

    pools: JobPools
    engines: EngineLayout
    size_bytes: float
    constant_s: float
    tensors: int | None

    def seconds(self, trainers: UpdateLayout) -> float:
        """Seconds of a transfer from trainers of a layout."""
        network_s = self.pools.network_s(self.size_bytes, self.engines, trainers)
        return transfer_s(self.constant_s, network_s, self.tensors)


def job_pools(cluster: Cluster, rollout: str, train: str | None) -> JobPools:
    """The pools called `rollout` and `train` (None: trainers are on that of the engines), with what links them; both
    are the cluster's."""
    networks = Networks(
        between=None if train is None else cluster.stream_bytes_per_s(train, rollout),
        within=cluster.stream_bytes_per_s(rollout, rollout),
    )
    return JobPools(cluster.pools[rollout], None if train is None else cluster.pools[train], networks)


def pools_of_plan(planned: PlannedJob, cluster: Cluster | None) -> JobPools | None:
    """The pools of a plan; None where the cluster is unknown or lacks one of them, or trainers cannot have theirs."""
    rollout = planned.rounds.short.rollout.pool
    train = None if planned.placement is None else planned.placement.train_pool
    if cluster is None or rollout not in cluster.pools:
        return None
    if train is not None and any(pool_faults(cluster, train, rollout)):
        return None
    return job_pools(cluster, rollout, train)
