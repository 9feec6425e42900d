"""Memory of a rank: what stays, and the largest of a few instants. Rollout and training are two bars, never summed:
engines sleep while a trainer trains.

Training keeps weights, gradients and optimizer states, sharded; on top comes at one instant a micro-batch's activations
with the logits, at another what the optimizer needs. An engine keeps weights and graphs; what is left is KV.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...plans.schema.sections.layouts import UpdateLayout
from ..architecture import Architecture
from ..hardware import Gpu

# Bytes of a parameter while training: float32 weight, gradient, two Adam moments; the bf16 copy is gathered by layer.
MASTER_BYTES, MOMENT_BYTES, GRADIENT_BYTES = 4.0, 8.0, 4.0
STATE_BYTES = MASTER_BYTES + MOMENT_BYTES  # what an update starts from and leaves, the gradient not counted
RUNTIME_BYTES = 2.5e9  # context, communication buffers, workspaces
LOGIT_CHUNK_TOKENS = 2048  # the loss is computed in chunks of so many tokens
LOGIT_BYTES = 10.0  # of a logit in such a chunk: bf16, float32, gradient
OPTIMIZER_BYTES = 8.0  # of a parameter in its step: float32 copies of a gradient and of an update
LIVE_LAYERS = 2.0  # gathered at once: the one in use and the next

UTILISATION = 0.9  # vLLM's default gpu_memory_utilization
ENGINE_RESERVE_BYTES = 4e9  # captured graphs, activations of the largest step, context


@dataclass(frozen=True, slots=True)
class TrainMemory:
    """Bytes on a rank, by what holds them.

    Attributes:
        kept: all the time.
        moments: on top of it at one moment each, by the moment's name.
    """

    kept: dict[str, float]
    moments: dict[str, dict[str, float]]

    @property
    def persistent(self) -> float:
        """Bytes that are held all the time."""
        return sum(self.kept.values())

    @property
    def instants(self) -> dict[str, float]:
        """Bytes on top of the persistent ones at each moment, by its name."""
        return {moment: sum(held.values()) for moment, held in self.moments.items()}

    @property
    def peak_bytes(self) -> int:
        """Persistent bytes and the largest instant."""
        return round(self.persistent + max(self.instants.values()))


def layer_activation_bytes(a: Architecture) -> float:
    """Activations of one token in one layer that a backward pass needs, bf16.

    Norms' inputs and outputs and the residual (Korthikanti et al., arXiv 2205.05198, 4.1, without dropout and with
    flash attention), queries, keys, values and the attention's output, and gate, up and product of the feed-forward.
    """
    width = a.active_experts * a.expert_intermediate + a.shared_intermediate if a.experts else a.intermediate
    # Tokens are copied to their experts and back.
    routed = 2 * a.active_experts * a.hidden if a.experts else 0
    return 2.0 * (5 * a.hidden + a.head_dim * (2 * a.heads + 2 * a.kv_heads) + 3 * width + routed)


def train_memory(a: Architecture, layout: UpdateLayout, activations: float = 1.0, sharded: bool = True) -> TrainMemory:
    """Memory of a trainer rank. `activations`: the fitted factor on them. `sharded`: as TrainerKind has it."""
    shard = a.parameters / layout.accelerators
    on_device = not layout.offload
    # Unsharded, a replica's ranks keep weights in bf16 and whole gradients.
    weights = 0.0 if sharded else 2 * a.parameters / layout.replica
    gradients = (shard if sharded else a.parameters / layout.replica) * GRADIENT_BYTES
    gathered = LIVE_LAYERS * 2 * (a.parameters - 2 * a.vocab * a.hidden) / a.layers / max(layout.tp, 1)
    if a.experts and layout.ep > 1:
        gathered /= layout.ep
    gathered += 2 * 2 * a.vocab * a.hidden / layout.tp
    gathered *= sharded
    tokens = layout.micro_batch_tokens / (layout.tp * layout.cp)
    layers = a.layers / layout.pp
    layer_bytes = layer_activation_bytes(a)
    # A stage of a pipeline holds the activations of as many micro-batches as there are stages behind it: pp at most.
    flights = layout.pp
    if layout.recompute == "full":
        held = tokens * (flights * layers * 2 * a.hidden + 3 * layer_bytes)
    elif layout.recompute == "selective":
        held = tokens * (flights * layers * (layer_bytes - 2.0 * a.head_dim * a.heads) + layer_bytes)
    else:
        held = tokens * (flights * layers * layer_bytes + layer_bytes)
    logits = min(LOGIT_CHUNK_TOKENS, layout.micro_batch_tokens) * a.vocab * LOGIT_BYTES / layout.tp
    return TrainMemory(
        kept={
            "trainer_context": RUNTIME_BYTES,
            "trainer_parameters": shard * MASTER_BYTES * on_device + weights,
            "trainer_optimizer": shard * MOMENT_BYTES * on_device,
            "trainer_gradients": gradients,
        },
        moments={
            "micro_batch": {
                "trainer_gathered_weights": gathered,
                "trainer_activations": activations * held,
                "trainer_logits": logits,
            },
            "optimizer": {"trainer_update": shard * OPTIMIZER_BYTES},
        },
    )


def kv_capacity_tokens(a: Architecture, gpu: Gpu, tp: int, weight_bytes: float = 2.0, kv_bytes: float = 2.0) -> int:
    """KV tokens that an engine holds; 0 where its weights leave no room."""
    ranks = min(tp, 1 if a.latent_kv else a.kv_heads)
    free = tp * (UTILISATION * gpu.memory_bytes - ENGINE_RESERVE_BYTES) - a.parameters * weight_bytes
    return max(0, int(free * ranks / tp / (a.kv_values_per_token * kv_bytes)))
