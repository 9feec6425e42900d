"""Host memory that a job's sleeping state takes on a node, from first principles.

Between two runs of a phase its state is in host memory, one process per accelerator. All sizes are in bytes.

- Rollout: a sleeping engine backs its weights up tensor by tensor into pinned memory (vLLM's sleep mode), one copy per
  replica on the node, and PyTorch's allocator of pinned memory rounds every tensor up to a power of two
  (CachingHostAllocator). That rounding is what lifts the published footprints to 1.4-1.9 times the weights.
- Training: bf16 weights and gradients of each replica on the node, and 12 bytes a parameter of float32 weights and Adam
  moments, sharded over all replicas (Megatron's distributed optimizer, ZeRO: Rajbhandari et al., arXiv 1910.02054, 3).
  They lie in few flat buffers, so rounding is left out.
- A process takes `PROCESS_BYTES` besides: interpreter, libraries, CUDA's host side, communicators.

Against the published table (RollMux, arXiv 2512.11306, Table 2; Qwen2.5 on 8 GPUs, 32B's training on two nodes as in
Table 3) the largest error is 7.4 % (tests/planner/groups/inputs/test_state_memory.py); only `PROCESS_BYTES` was fitted
to the table.
"""

from __future__ import annotations

import math
from typing import Literal

from ....plans.facts.public_models import Architecture

WEIGHT_BYTES = 2.0
GRADIENT_BYTES = 2.0
OPTIMIZER_BYTES = 12.0
"""Bytes a parameter: a float32 weight and Adam's two moments."""
TRAINED_BYTES = WEIGHT_BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES
"""Bytes a parameter of a training state that is sharded over all ranks."""
PROCESS_BYTES = 4e9

KV_SHARE = 0.05
"""Least share of an accelerator's memory that weights must leave a rollout for keys and values."""

HostCopies = Literal["per_replica", "one"]


def rollout_bytes(a: Architecture, accelerators: int, tp: int, copies: HostCopies = "per_replica") -> float:
    """Bytes per node of sleeping engines on `accelerators` of it, each of `tp` accelerators.

    `one`: the engines of a node share one pinned copy of the weights, whatever their number.
    """
    replicas = accelerators / tp
    shared = min(1.0, replicas) if copies == "one" else replicas
    return shared * pinned_weight_bytes(a, tp) + accelerators * PROCESS_BYTES


def train_bytes(
    a: Architecture, accelerators: int, tp: int, nodes: int = 1, copies: HostCopies = "per_replica"
) -> float:
    """Bytes per node of sleeping trainers on `accelerators` of each of `nodes` nodes, replicas of `tp` accelerators.

    `one`: the bf16 weights of a node's replicas are one copy; gradients and optimizer states stay as they are.
    """
    replicas = accelerators / tp
    shared = min(1.0, replicas) if copies == "one" else replicas
    weights = a.parameters * (WEIGHT_BYTES * shared + GRADIENT_BYTES * replicas)
    return weights + a.parameters * OPTIMIZER_BYTES / nodes + accelerators * PROCESS_BYTES


def accelerator_bytes(a: Architecture, tp: int, training: bool) -> float:
    """Bytes of accelerator memory below which a phase cannot run with a copy of the model on `tp` accelerators, a lower
    bound: training, bf16 weights and gradients; rollout, bf16 weights and `KV_SHARE` of the memory."""
    if training:
        return a.parameters * (WEIGHT_BYTES + GRADIENT_BYTES) / tp
    return a.parameters * WEIGHT_BYTES / tp / (1.0 - KV_SHARE)


def pinned_weight_bytes(a: Architecture, tp: int) -> float:
    """Bytes of one replica's weights in pinned host memory, over its `tp` ranks: each tensor of each rank is rounded up
    to a power of two. Tensors as an engine fuses them: query-key-value, output, gate-up, down, a layer's experts, and
    the embeddings."""

    def pinned(values: float) -> float:
        return tp * _power_of_two(WEIGHT_BYTES * values / tp) if values else 0.0

    sparse = a.layers - a.dense_layers if a.experts else 0
    dense = a.layers - sparse
    output = a.hidden * a.heads * a.head_dim
    attention = pinned(a.attention_parameters - output) + pinned(output)
    feed_forward = dense * (pinned(2 * a.hidden * a.intermediate) + pinned(a.hidden * a.intermediate))
    for width in (a.experts * a.expert_intermediate, a.shared_intermediate):
        feed_forward += sparse * (pinned(2 * a.hidden * width) + pinned(a.hidden * width))
    embeddings = (1 if a.tied else 2) * pinned(a.vocab * a.hidden)
    return a.layers * attention + feed_forward + embeddings


def _power_of_two(size_bytes: float) -> float:
    return float(2 ** math.ceil(math.log2(size_bytes)))
