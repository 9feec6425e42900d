"""Memory of a rank: what stays, and the largest of a few moments. Rollout and training are two bars, never summed:
engines sleep while a trainer trains.

A trainer of the executor (and others that shard weights over replicas) is counted from its modules, its activations
tensor by tensor (below). Weights, gradients and AdamW's moments are in float32 and sharded (FSDP2); layers and the
embedding are gathered in the dtype that is computed in while they are used, the output matrix throughout a
micro-batch. Tensor parallel ranks divide the output matrix, and have all of an embedding that is not the output
matrix; the vocabulary's logits are gathered whole on each. An engine keeps weights and graphs; what is left is KV.

What a layer keeps for its backward pass is counted in the modules of transformers 5.19 (Qwen2, Qwen3, Llama) with the
executor's packed attention (executor/trainer/policy/attention.py) and torch's fused attention, and equal to what
autograd held of such models on a CPU to 0.1 % (tests/profiles/laws/test_measured_memory.py). With h the model's
width, D the width of all query heads, I of the feed-forward, and c bytes of a value in the dtype that is computed in,
a token keeps in a layer

    each of two norms     input and scale in float32, normalised and output in c      (4 + 2c) h + 4
    norms of heads        of queries and keys, where the model has them               (4 + c) (D + K) + 4 heads
    attention             query, key and value repeated to all heads, output,         5 c D + 4 heads
                          output in token order, float32 log-sum-exp
    feed-forward          gate, activation, up, product                               4 c I

(K: width of the key heads. In float32 a norm's input is the residual itself, so residuals cost nothing more.) Tensor
parallel ranks divide attention, head norms and feed-forward, not the norms of the model's width. Experts: the
feed-forward of those that a token visits, and the token copied to them and back; that is arithmetic, not measured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ...plans.facts.device_shares import ENGINE_SHARE
from ...plans.facts.model_shape import tp_divides
from ...plans.facts.public_models import Architecture
from ...plans.schema.levers import LoraSpec, UpdateLayout
from ..hardware import Gpu
from ..phase_schema import TrainedAdapters

# Bytes of a parameter while training: float32 weight, two moments of AdamW, gradient.
MASTER_BYTES, MOMENT_BYTES, GRADIENT_BYTES = 4.0, 8.0, 4.0
STATE_BYTES = MASTER_BYTES + MOMENT_BYTES  # what an update starts from and leaves, the gradient not counted
CHECKPOINT_BYTES = STATE_BYTES  # of a parameter in the copy that a checkpoint is written from while training goes on
RUNTIME_BYTES = 2.5e9  # on a GPU: context, communication buffers, workspaces
LOGIT_CHUNK_TOKENS = 2048  # the loss is computed in chunks of so many tokens
LOGIT_BLOCK = {"cpu": 2**18, "cuda": 2**25}  # logits of a chunk that are computed with at once, in float32
LOGIT_BLOCK_BYTES = 8.0  # of such a logit: scaled, and its power (executor/trainer/policy/chunked_head.py)
BUCKET_PARAMETERS = 64 * 1024**2  # whose offloaded moments are on the device at once (executor/trainer/optimizer.py)
COMPUTE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 4}  # of a value by the job's dtype (policy/load_policy.py)

FRAGMENTS = "trainer_allocator_fragmentation"
"""Name of what an allocator has beside what was asked of it."""

UTILISATION = ENGINE_SHARE  # of a GPU that an engine takes
ENGINE_RESERVE_BYTES = 4e9  # captured graphs, activations of the largest step, context
LEAST_KV_TOKENS = 16384  # an engine that holds less is no layout
ENGINE_SIZES = (1, 2, 4, 8)  # of TP; a derived profile has an entry for each


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Bytes of one token on a rank of the executor's trainer.

    Attributes:
        layer: of a layer's activations, all that its backward pass needs.
        norms: of `layer`, what tensor parallel ranks do not divide.
        layer_input: of a layer's input, which is all that recomputation keeps of it.
        shared_input: of `layer_input`, what is part of `layer` as well.
        end: of the last norm, its rows that predict a token, and the rotary table.
        layer_step: on top of `layer`, at the worst moment of its backward pass.
        end_step: on top of `end`, while the backward pass of the last norm runs.
    """

    layer: float
    norms: float
    layer_input: float
    shared_input: float
    end: float
    layer_step: float
    end_step: float


def token_bytes(a: Architecture, tp: int, compute_bytes: int) -> TokenBytes:
    """Bytes of one token on one of `tp` tensor parallel ranks; `compute_bytes`: of a value, 4 (float32) or 2."""
    c, queries = compute_bytes, a.head_dim * a.heads
    norm = (4 + 2 * c) * a.hidden + 4
    inside = 5 * c * queries + 4 * a.heads
    if a.qk_norm:
        inside += (4 + c) * a.head_dim * (a.heads + a.kv_heads) + 4 * (a.heads + a.kv_heads)
    width = a.active_experts * a.expert_intermediate + a.shared_intermediate if a.experts else a.intermediate
    routed = 2 * c * a.active_experts * a.hidden if a.experts else 0
    norms = 2 * norm + routed
    feed_forward = 4 * c * width / tp
    # Backward of the feed-forward: gradients of its output, of the product and of the activation. Backward of a norm:
    # three float32 copies of its width, and the gradient in the narrower dtype's float32.
    in_norm = (12 if c == 4 else 16) * a.hidden
    return TokenBytes(
        layer=norms + inside / tp + feed_forward,
        norms=norms,
        layer_input=c * a.hidden,
        shared_input=c * a.hidden if c == 4 else 0,
        end=norm + 2 * c * a.head_dim,
        layer_step=max(c * (a.hidden + 2 * width / tp), in_norm + c * a.hidden - feed_forward),
        end_step=in_norm,
    )


def held_by_layers(token: TokenBytes, layers: float, recompute: str, attention_output: float) -> tuple[float, float]:
    """(bytes of a token that all layers hold after the forward pass, at the worst moment of the backward pass).

    Args:
        layers: on this rank, times the micro-batches that are under way at once.
        recompute: `none`; `full`: of each layer its input is kept, and all of the one that is computed again;
            `selective` (of other frameworks): attention is computed again.
        attention_output: bytes of a token that `selective` does not keep in a layer.
    """
    if recompute == "full":
        inputs = layers * token.layer_input
        again = token.layer - token.shared_input + token.layer_step
        return inputs, inputs + max(again, token.end + token.end_step)
    held = layers * (token.layer - (attention_output if recompute == "selective" else 0.0))
    again = attention_output if recompute == "selective" else 0.0
    return held, held + max(again + token.layer_step, token.end + token.end_step)


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

    def scaled(self, factors: Mapping[str, float]) -> TrainMemory:
        """The same with fitted factors: `activations` on activations, `rest` on all else.

        They were fitted to what torch had reserved, so what they add is the allocator's: blocks that are rounded up,
        and free ones that nothing fits.
        """

        def times(held: Mapping[str, float]) -> dict[str, float]:
            of = {name: factors["activations" if name == "trainer_activations" else "rest"] for name in held}
            scaled = {name: min(1.0, of[name]) * size for name, size in held.items()}
            return scaled | {FRAGMENTS: sum((max(1.0, of[name]) - 1.0) * size for name, size in held.items())}

        return TrainMemory(times(self.kept), {moment: times(held) for moment, held in self.moments.items()})


def adapter_parameters(a: Architecture, rank: int, modules: Collection[str]) -> int:
    """Parameters of low-rank adapters of `rank` on matrices of all layers: rank x (inputs + outputs) of each. Experts
    are no modules of their own, and have none (executor/trainer/policy/adapters.py)."""
    queries, keys = a.head_dim * a.heads, a.head_dim * a.kv_heads
    attention = {
        "q_proj": a.hidden + queries,
        "k_proj": a.hidden + keys,
        "v_proj": a.hidden + keys,
        "o_proj": queries + a.hidden,
    }
    dense = a.layers if not a.experts else a.dense_layers
    widths = sum(a.layers * attention.get(name, 0) for name in modules)
    widths += sum(dense * (a.hidden + a.intermediate) for name in modules if name not in attention)
    return rank * widths


def adapters_of(a: Architecture, lora: LoraSpec | None, dtype: str) -> TrainedAdapters | None:
    """What a job of that `model.lora` and `model.dtype` trains in place of the weights; None without it."""
    if lora is None:
        return None
    return TrainedAdapters(
        rank=lora.rank,
        modules=lora.target_modules,
        sent=lora.sent,
        parameters=adapter_parameters(a, lora.rank, lora.target_modules),
        frozen_bytes=2 if dtype == "bfloat16" else 4,
    )


def rank_parameters(a: Architecture, layout: UpdateLayout) -> float:
    """Parameters whose float32 weights a rank of a trainer with sharded weights keeps.

    Tensor parallel ranks divide layers and the output matrix, and the embedding only if it is the output matrix (tied);
    all are sharded over the ranks that share out a copy of the states.
    """
    layers = layer_parameters(a) * a.layers / layout.tp / layout.pp
    return (layers + vocabulary_parameters(a, layout)) / layout.shard_ranks


def layer_parameters(a: Architecture) -> float:
    """Parameters of a layer, mean over the layers."""
    return (a.common_parameters - a.vocab * a.hidden + a.expert_parameters) / a.layers


def vocabulary_parameters(a: Architecture, layout: UpdateLayout) -> float:
    """Parameters of embedding and output matrix on a tensor parallel rank, before they are sharded."""
    return a.vocab * a.hidden * (1.0 / layout.tp if a.tied else 1.0 + 1.0 / layout.tp)


def train_memory(
    a: Architecture,
    layout: UpdateLayout,
    compute_bytes: int = 2,
    on_gpu: bool = True,
    tokens: int | None = None,
    micro_batches: int = 2,
    logit_bytes: int | None = None,
    adapters: TrainedAdapters | None = None,
) -> TrainMemory:
    """Memory of a trainer rank.

    Args:
        compute_bytes: of a value of activations, 2 (bfloat16) or 4.
        on_gpu: with a GPU's context and communication buffers, and moments that come for a moment if offloaded; on a
            CPU the host is the device.
        tokens: of a replica's micro-batch; None: the layout's budget.
        micro_batches: in a step; gradients stay from one to the next, so that in the first of them there are none yet.
        logit_bytes: of a logit and of its gradient; None: as of all else. The products of the head's backward pass take
            a gradient of `compute_bytes` in any case.
        adapters: what is trained in place of the weights, whole on each rank, with gradients and moments of their own;
            the frozen weights have neither. A token keeps of each adapter the rank's values between its matrices.
    """
    row = layout.micro_batch_tokens if tokens is None else tokens
    c = compute_bytes
    share, mine = rank_parameters(a, layout), row / (layout.cp * layout.sp)
    token = token_bytes(a, layout.tp, c)
    trained = share if adapters is None else float(adapters.parameters)
    if adapters is not None:
        token = replace(token, layer=token.layer + c * adapters.rank * len(adapters.modules))
    # A stage of a pipeline holds the activations of as many micro-batches as there are stages behind it: pp at most.
    output = c * a.head_dim * a.heads / layout.tp
    after_forward, in_backward = held_by_layers(token, a.layers, layout.recompute, output)
    rows, wide = min(float(LOGIT_CHUNK_TOKENS), mine), logit_bytes or c
    block = LOGIT_BLOCK_BYTES * min(rows * a.vocab, LOGIT_BLOCK["cuda" if on_gpu else "cpu"])
    moments: dict[str, dict[str, float]] = {
        "loss": {
            "trainer_activations": mine * (after_forward + token.end),
            "trainer_logits": wide * rows * a.vocab + block,
        },
        "loss_backward": {
            "trainer_activations": mine * (after_forward + token.end),
            "trainer_logits": 2 * wide * rows * a.vocab + block,  # and their gradient
        },
        "head_backward": {
            "trainer_activations": mine * (after_forward + token.end),
            "trainer_logits": (wide + c * (wide != c)) * rows * a.vocab,  # the gradient alone
        },
        "backward": {"trainer_activations": mine * in_backward},
        "embedding": {"trainer_activations": mine * (token.layer_input + token.end_step)},
        "optimizer": {"trainer_optimizer_step": _moments_at_once(trained) * (layout.offload and on_gpu)},
    }
    if layout.reference == "host":  # brought for a forward pass, of streamed groups beside gradients
        moments["reference"] = {
            "trainer_reference": share * c * (adapters is None),
            "trainer_activations": mine * (token.layer_input + token.layer + token.end),
            "trainer_logits": wide * rows * a.vocab + block,
        }
    for moment, held in _gathered(a, layout, c, mine > rows).items():
        if adapters is not None:
            held = {name: size for name, size in held.items() if name != "trainer_unsharded_gradients"}
        moments[moment] = moments.get(moment, {}) | held
    gradients = trained * GRADIENT_BYTES
    steady = gradients if micro_batches > 1 else 0.0
    if micro_batches == 1:  # layers come last to first: the largest sum is at either end
        for moment in set(moments) & {"embedding", "sum_of_head", "sum_of_embedding", "optimizer"}:
            moments[moment]["trainer_gradients"] = gradients
    return TrainMemory(
        kept={
            "trainer_context": RUNTIME_BYTES * on_gpu,
            "trainer_parameters": parameter_bytes(share, adapters),
            "trainer_optimizer": 0.0 if layout.offload else trained * MOMENT_BYTES,
            "trainer_gradients": steady,
            "trainer_reference": share * c * (layout.reference == "device" and adapters is None),
        },
        moments=moments,
    )


def _gathered(a: Architecture, layout: UpdateLayout, c: int, chunked: bool) -> dict[str, dict[str, float]]:
    """By moment: bytes of gathered weights and of gradients that are not sharded yet.

    FSDP2 gathers a unit in the dtype that is computed in, and sums its gradients in float32, in a copy that stays until
    the next unit's. Units are the layers, each gathered ahead of its use; the embedding; and the output matrix with the
    last norm. Tied, the embedding is part of the last (executor/trainer/policy/load_policy.py), which is torch's root:
    as token ids have no gradient, torch ends its backward pass after all others'. So it stays gathered for a whole
    micro-batch, and its gradient whole until the end, when the embedding's is there as well.

    Args:
        c: bytes of a value that is computed.
        chunked: whether the loss has several chunks.
    """
    head = a.vocab * a.hidden / layout.tp
    embedding = 0.0 if a.tied else float(a.vocab * a.hidden)  # as a unit of its own
    layer = layer_parameters(a) / max(layout.tp, layout.ep if a.experts else 1)
    of_loss = head * c * chunked  # the sum over chunks
    of_head = of_loss + head * c  # and that of a further chunk
    weights, gradients = "trainer_gathered_weights", "trainer_unsharded_gradients"
    if layout.shard_ranks == 1 and c == 4:
        # Nothing is gathered; a matrix's gradient is computed beside the sum that it is added to.
        matrix = float(max(a.intermediate, a.expert_intermediate, a.head_dim * a.heads) * a.hidden / layout.tp)
        return {
            "loss_backward": {gradients: of_loss},
            "head_backward": {gradients: of_head},
            "backward": {gradients: c * matrix},
            "embedding": {gradients: c * (embedding or head)},
        }
    summed = GRADIENT_BYTES + c  # of a gradient and its copy
    last = c * embedding  # gathered for its backward pass, and again its gradient
    return {
        "loss": {weights: c * (head + layer)},
        "loss_backward": {weights: c * (head + layer), gradients: of_loss},
        "head_backward": {weights: c * (head + layer), gradients: of_head},
        "backward": {weights: c * (head + layer + max(layer, embedding)), gradients: c * head + summed * layer},
        "embedding": {weights: c * head + last, gradients: c * head + (last or c * head) + GRADIENT_BYTES * layer},
        "sum_of_head": {weights: last, gradients: summed * head + last},
        "sum_of_embedding": {gradients: summed * embedding},
    }


def parameter_bytes(share: float, adapters: TrainedAdapters | None) -> float:
    """Bytes of the parameters that a rank keeps, `share` of the model's: in float32, or frozen, and adapters beside."""
    if adapters is None:
        return share * MASTER_BYTES
    return share * adapters.frozen_bytes + adapters.parameters * MASTER_BYTES


def _moments_at_once(share: float) -> float:
    """Bytes of offloaded moments that are on a GPU while its rank's optimizer steps on `share` parameters."""
    return MOMENT_BYTES * min(share, BUCKET_PARAMETERS)


def rank_peak_bytes(
    architecture: Architecture,
    layout: UpdateLayout,
    dtype: str = "bfloat16",
    device_kind: str = "cuda",
    head_dtype: str | None = None,
    adapters: TrainedAdapters | None = None,
) -> int:
    """Peak bytes on the device of a rank of the executor's trainer in a step, all tensors that stay included.

    Moments of AdamW that are offloaded are not counted: they lie in host memory, `MOMENT_BYTES * rank_parameters`.

    Args:
        dtype: the job's: float32, bfloat16 or float16 (which is computed in float32).
        device_kind: `cuda` or `cpu`; on a CPU there is no context.
        head_dtype: the job's; None: as `dtype`.
        adapters: as in `train_memory`.
    """
    memory = train_memory(
        architecture,
        layout,
        compute_bytes=COMPUTE_BYTES[dtype],
        on_gpu=device_kind == "cuda",
        logit_bytes=None if head_dtype is None else COMPUTE_BYTES[head_dtype],
        adapters=adapters,
    )
    return memory.peak_bytes


def kv_capacity_tokens(a: Architecture, gpu: Gpu, tp: int) -> int:
    """KV tokens that an engine holds, weights and KV in bf16; 0 where its weights leave no room."""
    ranks = min(tp, 1 if a.latent_kv else a.kv_heads)
    free = tp * (UTILISATION * gpu.memory_bytes - ENGINE_RESERVE_BYTES) - 2.0 * a.parameters
    return max(0, int(free * ranks / tp / (2.0 * a.kv_values_per_token)))


def engine_tps(a: Architecture, gpu: Gpu, sizes: Sequence[int] = ENGINE_SIZES) -> list[int]:
    """Sizes of TP that divide the model's heads, and whose engines have room for KV beside the weights in bf16."""
    return [tp for tp in sizes if tp_divides(tp, a) and kv_capacity_tokens(a, gpu, tp) >= LEAST_KV_TOKENS]
