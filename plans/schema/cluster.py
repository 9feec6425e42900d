"""cluster.yaml: the machines that a job may use, as pools of equal nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from .base import MAX_USD_PER_NODE_HOUR, Count, MemoryBytes, Name, Price, Strict, cross_error, is_none


class Accelerators(Strict):
    """The accelerators of one node."""

    kind: Literal["cpu", "cuda"]
    """What an accelerator is: `cuda`, a GPU; `cpu`, one host core."""

    name: Annotated[str, Field(min_length=1)]
    """Model name, as in `H100-SXM`; a profile measured on another one is refused."""

    per_node: Annotated[int, Field(ge=1, le=4096)]
    """Accelerators in one node; for kind cpu, the cores of the node that engines and trainers may use."""

    memory_bytes: MemoryBytes
    """Bytes of memory per accelerator; for kind cpu, the KV space that one engine may take per core."""


class Pool(Strict):
    """Equal nodes that a phase can be placed on; their price is stated per node or per GPU."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["usd_per_node_hour"]}, {"required": ["usd_per_gpu_hour"]}]}
    )

    nodes: Annotated[int, Field(ge=1, le=1_000_000)]
    """Number of nodes in the pool."""

    accelerators: Accelerators
    """The accelerators of each node."""

    cores: Count
    """Host cores of each node."""

    host_memory_bytes: MemoryBytes
    """Bytes of host memory of each node."""

    usd_per_node_hour: Annotated[Price | None, Field(exclude_if=is_none)] = None
    """Price of one node for one hour in USD; write either this or `usd_per_gpu_hour`."""

    usd_per_gpu_hour: Annotated[Price | None, Field(exclude_if=is_none)] = None
    """Price of one GPU for one hour in USD, as clouds list it; a node costs that times `accelerators.per_node`."""

    slots: Count = 1
    """Equal parts of a node that a phase of a co-execution group may hold; 1: whole nodes only."""

    @property
    def node_price(self) -> float:
        """USD for one node and hour: people know prices per GPU, and a plan pays for whole nodes."""
        if self.usd_per_gpu_hour is not None:
            return self.usd_per_gpu_hour * self.accelerators.per_node
        assert self.usd_per_node_hour is not None, "a pool has one of the two prices"
        return self.usd_per_node_hour

    @model_validator(mode="after")
    def _there_is_one_price(self) -> Pool:
        if self.usd_per_node_hour is None and self.usd_per_gpu_hour is None:
            of_gpu = "usd_per_gpu_hour, the price of one GPU and hour in USD, or "
            raise cross_error(
                f"a pool needs a price; add {of_gpu if self.accelerators.kind == 'cuda' else ''}usd_per_node_hour, the "
                "price of one node and hour in USD (0 if it costs nothing)",
                rule="missing-key",
            )
        if self.usd_per_node_hour is not None and self.usd_per_gpu_hour is not None:
            raise cross_error("says the price a second time; keep it or usd_per_node_hour", "usd_per_gpu_hour")
        if self.usd_per_gpu_hour is not None and self.accelerators.kind == "cpu":
            raise cross_error("the pool is of kind cpu and has no GPU; write usd_per_node_hour", "usd_per_gpu_hour")
        of_node = (self.usd_per_gpu_hour or 0.0) * self.accelerators.per_node
        if of_node > MAX_USD_PER_NODE_HOUR:
            raise cross_error(
                f"makes a node cost {of_node:.6g} USD an hour, and at most {MAX_USD_PER_NODE_HOUR:.6g} can be planned "
                "with; write the price of one GPU and hour",
                "usd_per_gpu_hour",
            )
        return self

    @model_validator(mode="after")
    def _slots_hold_whole_accelerators(self) -> Pool:
        if self.accelerators.per_node % self.slots:
            raise cross_error(
                f"{self.slots} slots do not divide the {self.accelerators.per_node} accelerators of a node; "
                "write a divisor",
                "slots",
            )
        return self

    @model_validator(mode="after")
    def _cpu_accelerators_are_cores(self) -> Pool:
        if self.accelerators.kind == "cpu" and self.accelerators.per_node > self.cores:
            raise cross_error(
                f"accelerators.per_node is {self.accelerators.per_node} but a node has {self.cores} cores, and for "
                f"kind cpu an accelerator is a core; write at most {self.cores}",
                "accelerators.per_node",
            )
        return self

    @property
    def accelerators_total(self) -> int:
        """Accelerators in the whole pool."""
        return self.nodes * self.accelerators.per_node

    def nodes_of(self, copies: int, accelerators: int) -> int:
        """Return the nodes that `copies` of `accelerators` each take; a copy that fits into a node spans no two."""
        per_node = self.accelerators.per_node
        if accelerators > per_node:
            return copies * -(-accelerators // per_node)
        return -(-copies // (per_node // accelerators))

    def engines_of(self, tp: int) -> int:
        """Return how many engines of `tp` accelerators fit; an engine never spans nodes."""
        return self.nodes * (self.accelerators.per_node // tp)


class PoolLink(Strict):
    """The network between two pools, or between the nodes of one pool, over which weights are sent."""

    pools: Annotated[tuple[Name, Name], Field(strict=False)]
    """The two pools, in either order; the same one twice for the network between its nodes."""

    stream_bytes_per_s: Annotated[float, Field(ge=1e3, le=1e15)]
    """Bytes per second from one accelerator to another. Between pools, as many streams run at once as the narrower
    phase has accelerators, but for a job whose weights go from GPU to GPU in one stream (docs/cluster.md); between
    nodes of one pool a broadcast is one stream."""


class Cluster(Strict):
    """The document cluster.yaml."""

    rlplan_cluster: Literal[1]
    """Version of the format."""

    name: Name
    """Name of the cluster, for reports."""

    pools: Annotated[dict[Name, Pool], Field(min_length=1)]
    """The pools by name."""

    links: Annotated[tuple[PoolLink, ...], Field(strict=False)] = ()
    """The networks between pools, and between the nodes of one. Where none is named, sending weights takes a job's plan
    what its profile says, and a plan of groups no time."""

    def stream_bytes_per_s(self, pool: str, other_pool: str) -> float | None:
        """Return the bytes per second of a stream between two pools, or between the nodes of one; None where no link is
        named."""
        return next((link.stream_bytes_per_s for link in self.links if set(link.pools) == {pool, other_pool}), None)

    @model_validator(mode="after")
    def _links_join_known_pools(self) -> Cluster:
        seen: set[frozenset[str]] = set()
        for index, link in enumerate(self.links):
            for pool in link.pools:
                if pool not in self.pools:
                    raise cross_error(
                        f"no pool is called '{pool}'; the pools are {', '.join(self.pools)}", f"links.{index}.pools"
                    )
            if frozenset(link.pools) in seen:
                raise cross_error(
                    f"'{link.pools[0]}' and '{link.pools[1]}' are linked twice; remove one of the two",
                    f"links.{index}.pools",
                )
            seen.add(frozenset(link.pools))
        return self


def load_cluster(path: str | Path) -> Cluster:
    """Read cluster.yaml. Raises InputError."""
    from ..yaml.yaml_io import load

    return load(path, Cluster)
