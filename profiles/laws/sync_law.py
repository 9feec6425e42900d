"""Seconds of a weight transfer from trainer to engines, and of an engine's start, from public measurements.

sync = start + bytes / rate + tensors * each: a full copy moves every byte once and handles every tensor; a model of
many experts has many small ones. There are two ways, with a fit each of what was published of full copies, and large,
stated errors, since rates differ between implementations:

    apart       trainers have GPUs of their own, and broadcast to those of the engines: 3 to 5 GB/s
    colocated   a rank of the trainer and one of an engine share a GPU, so that weights are gathered among all GPUs and
                loaded from each one's own memory: 61 to 76 GB/s by checkpoint-engine on 8 to 256 GPUs

Where a cluster names its networks (cluster.yaml, links), what crosses them is counted. Through host memory each trainer
rank sends its own pieces, each node with engines receives each byte once, and all engines of a node load at once from
node memory of two buckets; between GPUs one trainer rank broadcasts. Either way sending, receiving and loading overlap:

    transfer = start + tensors * each + max(out of a trainers' node, into an engines' node, load)

The load is no rate of its own: it is what remains of the fit above (or of a measurement) without start and tensors.
That still has in it what crossed the networks of those measurements, so a network that is faster than theirs changes
nothing, and a slower one makes itself felt.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...plans.facts.public_models import Architecture
from .factor_fit import Factor

START_S, TENSOR_S = 0.5, 1e-3
BYTES_PER_S = {False: 4e9, True: 30e9}
"""By whether trainers and engines are colocated: the centre of a wide prior. Colocated, the geometric mean of
checkpoint-engine's rates and of ours on one GPU (14 to 19 GB/s through CUDA IPC, docs/cluster.md)."""

COLOCATED_ERROR = 0.7
"""Relative standard deviation of a colocated transfer by another implementation than the fit's: a factor of 2."""
FACTORS = (Factor("start", 0.0, 0.5), Factor("bytes", 0.0, 0.7), Factor("tensors", 0.0, 0.7))

# Engines on A100 with vLLM's sleep mode, seconds from cold: 38 s (0.6B), 47 s (61 GB on one GPU), 98 s (59 GB on each
# of four); from sleep 2.9 s and 5.4 s for the latter two, over PCIe 4.
COLD_S, COLD_BYTES_PER_S = 38.0, 2e9


def tensors(a: Architecture) -> int:
    """Weight tensors as checkpoints have them: each expert's three on their own."""
    sparse = a.layers - a.dense_layers if a.experts else 0
    return a.layers * 9 + (a.layers - sparse) * 3 + sparse * (3 * a.experts + 1) + 3


def sync_s(
    a: Architecture, factors: dict[str, float], bytes_per_weight: float = 2.0, *, colocated: bool = False
) -> float:
    """Seconds of a weight transfer of a whole model."""
    moved_s = a.parameters * bytes_per_weight / BYTES_PER_S[colocated]
    return factors["start"] * START_S + factors["bytes"] * moved_s + factors["tensors"] * tensors(a) * TENSOR_S


def adapters_s(a: Architecture, parameters: int, host_bytes_per_s: float, *, colocated: bool = False) -> float:
    """Seconds in which engines have new adapters of so many float32 parameters added to the model's weights.

    Adapters alone are sent. Each rank then reads all weights in bf16 from the page cache of its node, at
    `host_bytes_per_s`, merges and loads them (executor/engines/engine_worker.py): all tensors are handled, and no
    network is crossed by them.
    """
    sent_s = 4.0 * parameters / BYTES_PER_S[colocated]
    return START_S + sent_s + 2.0 * a.parameters / host_bytes_per_s + tensors(a) * TENSOR_S


@dataclass(frozen=True, slots=True)
class Networks:
    """Networks that weights cross, by the bytes per second of one stream; None: not named, and then it takes no time.

    Attributes:
        between: from the trainers' pool to the engines'.
        within: between the nodes of the engines' pool.
    """

    between: float | None = None
    within: float | None = None


def between_pools_s(size_bytes: float, networks: Networks, streams: int, nodes: int, *, relay: bool = False) -> float:
    """Seconds in which weights get through host memory from the trainers' pool to all `nodes` of the engines'.

    `streams` share the link, as many as the narrower side has accelerators: each trainer rank sends its own share, to
    each node (the executor broadcasts over gloo). With `relay`, which the executor has not, one copy crosses, is
    scattered over the nodes, and they then broadcast it among themselves in one stream: RollMux's two stages (arXiv
    2512.11306), one after the other as it has them; stages that overlap by buckets take no longer.

    Against RollMux's 7B, 14B and 32B transfers at 18.3 Gbit/s a stream, one node: 0.83, 1.61 and 3.58 s where 0.9, 1.7
    and 3.9 s were measured. The broadcast inside the node, 0.1-0.3 s, is what is left out.
    """
    over_link_s = 0.0 if networks.between is None else size_bytes / (networks.between * streams)
    if relay:
        return over_link_s + (size_bytes / networks.within if networks.within is not None and nodes > 1 else 0.0)
    return nodes * over_link_s


def chain_s(size_bytes: float, networks: Networks, nodes: int) -> float:
    """Seconds in which weights get from GPUs of the trainers' pool to GPUs on all `nodes` of the engines'.

    One trainer rank and all engine ranks are one NCCL group, in which it broadcasts along a chain of the nodes: one
    copy crosses the link, in one stream, and then goes from node to node while the next bytes follow. The executor's
    way between GPUs has not been measured across nodes.
    """
    rates = [networks.between, networks.within if nodes > 1 else None]
    return max((size_bytes / rate for rate in rates if rate is not None), default=0.0)


def within_pool_s(size_bytes: float, networks: Networks, engine_nodes: int, train_nodes: int) -> float:
    """Seconds in which weights get through host memory across the network of one pool, from trainers on its first
    `train_nodes` nodes to engines on its first `engine_nodes`.

    Each trainers' node holds an equal share, and sends it to each other node with engines, where the executor takes the
    file. A node has one stream each way.
    """
    if networks.within is None:
        return 0.0
    share = size_bytes / train_nodes
    out = share * (engine_nodes - 1 if train_nodes <= engine_nodes else engine_nodes)
    into = size_bytes if engine_nodes > train_nodes else size_bytes - share
    return max(out, into) / networks.within


def transfer_s(constant_s: float, network_s: float, tensors: int | None) -> float:
    """Seconds of a transfer that takes `constant_s` where networks take no time, and `network_s` across them.

    `tensors`: of the model; None: unknown, and then only the start does not overlap with the network.
    """
    fixed_s = min(constant_s, START_S + (tensors or 0) * TENSOR_S)
    return max(constant_s, fixed_s + network_s) if network_s > 0 else constant_s


def cold_start_s(a: Architecture, tp: int) -> float:
    """Seconds until an engine of `tp` ranks serves, its weights in bf16."""
    return COLD_S + 2.0 * a.parameters / tp / COLD_BYTES_PER_S
