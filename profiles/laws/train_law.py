"""Seconds of an update from its layout and its samples: physics with a few free factors.

A model replica is `tp * cp * sp * pp` ranks, of which there are `dp`. A token costs each pass over the layers (forward,
two backward, one more where activations are computed again), memory-bound work between the products, and what the
layout exchanges for it; a pair of tokens of one sample costs attention. A micro-batch costs launches, gathering the
sharded weights and summing their gradients; a step costs the optimizer, and waiting for the rank with most work; a
pipeline idles for pp - 1 micro-batches a step.

Frozen weights, under low-rank adapters, have no gradients: of the two products of a layer's backward pass that of the
weights is left out, so that a token takes about two thirds of the operations (LoRA, arXiv 2106.09685, section 4.2, saw
updates of GPT-3 a quarter faster); adapters add their own, are whole on each rank, and their gradients are summed over
all ranks once a step. Work over activations and logits stays, and so do launches, of which adapters make more: that is
not counted. No run with adapters is fitted.

Everything is linear in the samples' tokens and squared tokens, so an update is a few numbers (`UpdateSeconds`),
whatever the layout. Weights are sharded over replicas and gathered for each micro-batch (FSDP), in which samples are
packed. Tensor parallel ranks each compute norms and residuals, gather the logits, and step the optimizer on the
accelerator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...plans.facts.public_models import Architecture
from ...plans.schema.levers import UpdateLayout
from ..hardware import Gpu
from ..phase_schema import TRAIN_FACTORS, TrainedAdapters
from .factor_fit import Factor
from .rank_memory import GRADIENT_BYTES, MOMENT_BYTES, rank_parameters, token_bytes, vocabulary_parameters

# Operations of a backward pass over those of a forward pass: of products, and of flash attention, which computes its
# scores again (FlashAttention-2, arXiv 2307.08691, 4.1).
BACKWARD, ATTENTION_BACKWARD = 2.0, 2.5
ELEMENT_BYTES = 160.0  # read and written per hidden value, layer and pass: norms, rotary, residuals, gate
LOGIT_BYTES = 100.0  # per logit and update: float32 logits computed twice in chunks, softmax, entropy, gradient
PLAIN_LOGIT_BYTES = 20.0  # the same of a plain cross entropy
SCORED_LOGIT_BYTES = 30.0  # the same of a pass that only scores: float32 logits, softmax, entropy, once
LAUNCH_S = 150e-6  # of a layer and pass
STEP_S = 0.05
WEIGHT_BYTES = 2.0  # of a weight that is gathered
FSDP_BYTES = 8.0  # that a micro-batch moves of a weight: bf16 gathered forward and backward, float32 gradient reduced
OPTIMIZER_BYTES = 28.0  # per parameter of a rank's shard: states and gradient read, states and weight written
FILL = 0.9  # share of a packed micro-batch that is tokens

IMBALANCE = 0.03
"""Micro-batches that a step takes longer for each doubling of the replicas, because all wait for the fullest one.

Simulated: 256 or 1,024 samples of log-normal lengths (medians of 500 to 6,000 tokens under caps of 4,096 and 16,384),
whose attention costs what it does in a model of 7B, packed into micro-batches of the cap, the costliest first to the
one of least operations (longest processing time first, Graham 1969; executor/trainer/train_samples.py). The fullest
replica's work, summed over micro-batches, exceeds the mean replica's by 0.03, 0.05, 0.07, 0.1 and 0.23 micro-batches
with 2, 4, 8, 16 and 64 replicas, and by two to four times that where attention costs as in a model of 0.6B.
"""

ONE_RANK = UpdateLayout(dp=1, micro_batch_tokens=1)

_PRIORS = ((0.5, 0.3), (0.5, 0.5), (0.6, 0.4), (0.3, 0.5), (0.3, 0.5), (0.0, 0.7), (-1.0, 0.8), (0.3, 0.5), (0.0, 0.8))
FACTORS = tuple(Factor(name, *prior) for name, prior in zip(TRAIN_FACTORS, _PRIORS, strict=True))


@dataclass(frozen=True, slots=True)
class UpdateSeconds:
    """Seconds of an update = step_s + per_token_s tokens + per_token_squared_s squares."""

    step_s: float
    per_token_s: float
    per_token_squared_s: float


@dataclass(frozen=True)
class TrainPhysics:
    """Training of a model on an accelerator.

    Attributes:
        factors: each of `FACTORS` by name, over what the data sheets give.
        fabric_bytes_per_s: between nodes, per accelerator, one direction.
        per_node: accelerators that share the fast links.
        parallel_factor: seconds of layouts whose replicas have several ranks, or share out experts, over what the other
            factors give: no run was fitted to them.
        adapters: what is trained in place of the weights; None: the weights are.
        all_shared: tensor ranks share out norms and logits too, which are gathered nowhere (Megatron's sequence
            parallelism and its loss over a sharded vocabulary).
    """

    architecture: Architecture
    gpu: Gpu
    factors: Mapping[str, float]
    fabric_bytes_per_s: float = 50e9
    per_node: int = 8
    parallel_factor: float = 1.0
    all_shared: bool = False
    adapters: TrainedAdapters | None = None

    def _beyond_runs(self, layout: UpdateLayout) -> float:
        return self.parallel_factor if max(layout.replica, layout.ep) > 1 else 1.0

    def passes(self, layout: UpdateLayout) -> float:
        """Passes over the layers, in forward passes' operations."""
        return 1 + BACKWARD + (layout.recompute == "full")

    def token_s(self, layout: UpdateLayout, policy_loss: bool = True) -> float:
        """Seconds that a replica takes for one token more, attention aside; a policy loss looks at logits longer."""
        logit_bytes = self.factors["logits"] * LOGIT_BYTES if policy_loss else PLAIN_LOGIT_BYTES
        return self._token_s(layout, self.passes(layout), logit_bytes, self._exchanged_s(layout))

    def scored(self, layout: UpdateLayout) -> tuple[float, float, float]:
        """Seconds of a replica for a token, for a squared token of a sample and for a micro-batch that are only scored:
        one forward pass, in which weights are gathered once and nothing is reduced."""
        exchanged = self._exchanged_s(layout) / (2 + (layout.recompute == "full"))
        token = self._token_s(layout, 1.0, self.factors["logits"] * SCORED_LOGIT_BYTES, exchanged)
        attention = 1 + ATTENTION_BACKWARD + (layout.recompute != "none")
        launch = self.factors["launch"] * LAUNCH_S * self.architecture.layers / layout.pp
        each = FSDP_BYTES if self.adapters is None else 2 * WEIGHT_BYTES
        gathered = self.factors["gather"] * self._moved_s(layout) * WEIGHT_BYTES / each
        return token, self.pair_s(layout) / attention, self._beyond_runs(layout) * (launch + gathered)

    def _token_s(self, layout: UpdateLayout, passes: float, logit_bytes: float, exchanged_s: float) -> float:
        a, f = self.architecture, self.factors
        share = a.active_experts / a.experts if a.experts else 0.0
        sparse = share * a.expert_parameters
        multiplied = passes - (self.adapters is not None and passes > 1)
        flops = 2 * multiplied * (f["compute"] * a.common_parameters + f["compute"] * f["experts"] * sparse)
        if self.adapters is not None:
            flops += 2 * passes * f["compute"] * self.adapters.parameters
        elements = f["elements"] * passes * a.layers * a.hidden * ELEMENT_BYTES
        logits = a.vocab * logit_bytes
        if layout.tp > 1 and not self.all_shared:  # of the bytes that a layer's work makes, norms have this share
            token = token_bytes(a, 1, 2)
            elements *= 1 + (layout.tp - 1) * token.norms / token.layer
            logits *= layout.tp
        compute_s = flops / self.gpu.bf16_flops + (elements + logits) / self.gpu.memory_bytes_per_s
        return self._beyond_runs(layout) * (compute_s / layout.replica + f["exchange"] * exchanged_s)

    def _exchanged_s(self, layout: UpdateLayout) -> float:
        """Seconds of communication per token: sums and logits of tensor ranks, KV of context ranks, heads of sequence
        ranks, tokens to experts."""
        a, link = self.architecture, self.gpu.link_bytes_per_s / 2
        again = layout.recompute == "full"

        def rate(ranks: int) -> float:
            return link if ranks <= self.per_node else self.fabric_bytes_per_s

        mine = 1 / (layout.cp * layout.sp)  # of a replica's tokens
        # Forward and backward each sum twice a layer; computing again repeats the forward ones.
        tensor = (4 + 2 * again) * a.hidden * 2 * 2 * (layout.tp - 1) / layout.tp / link * mine
        # A chunk's logits are gathered in its forward pass, which is computed again.
        logits = 0.0 if self.all_shared else 2 * a.vocab * 2 * (layout.tp - 1) / layout.tp / link * mine
        kv = 2 * (a.latent_kv or 2 * a.kv_heads * a.head_dim) / layout.tp
        context = self.passes(layout) * kv * (layout.cp - 1) / layout.cp / rate(layout.tp * layout.cp)
        # Queries, keys, values and outputs go to the rank of their heads and back (DeepSpeed-Ulysses, arXiv 2309.14509,
        # 3.2), forward and, as gradients, backward.
        swapped = 2 * a.head_dim * 2 * (a.heads + a.kv_heads) / layout.tp
        sequence = (2 + again) * swapped * (layout.sp - 1) / layout.sp / rate(layout.tp * layout.sp) * mine
        # To the experts and back, in both directions of the pass.
        experts = 4 * a.active_experts * a.hidden * 2 * (layout.ep - 1) / layout.ep / rate(layout.ep * layout.tp)
        experts *= mine / layout.tp
        sparse = (a.layers - a.dense_layers) if a.experts else 0
        return (a.layers * (tensor + context + sequence) + sparse * experts + logits) / layout.pp

    def pair_s(self, layout: UpdateLayout) -> float:
        """Seconds of a replica per squared token of a sample (half of the pairs are masked)."""
        passes = 1 + ATTENTION_BACKWARD + (layout.recompute != "none")
        work = passes * self.architecture.attention_flops_per_pair / 2
        return self._beyond_runs(layout) * self.factors["attention"] * work / self.gpu.bf16_flops / layout.replica

    def micro_batch_s(self, layout: UpdateLayout) -> float:
        """Seconds of a micro-batch whatever is in it: launches, and gathering weights as far as nothing hides it."""
        launch = self.factors["launch"] * LAUNCH_S * self.passes(layout) * self.architecture.layers / layout.pp
        gathered = self.factors["gather"] * self._moved_s(layout)
        return self._beyond_runs(layout) * (launch + gathered)

    def _moved_s(self, layout: UpdateLayout) -> float:
        """Seconds of a micro-batch to move a rank's weights between the ranks that share out a copy of them.

        FSDP2 gathers a unit for its forward pass and again for its backward pass, of which computing it again is part
        (executor/trainer/policy/load_policy.py), and reduces its gradients in float32 after each micro-batch.
        """
        shards = layout.shard_ranks
        each = FSDP_BYTES if self.adapters is None else 2 * WEIGHT_BYTES  # frozen weights have no gradients to reduce
        moved = self._unsharded_parameters(layout) * each * (shards - 1) / shards
        return moved / self._ring_bytes_per_s(layout, shards, layout.tp * layout.pp)

    def _copies_s(self, layout: UpdateLayout) -> float:
        """Seconds of a step to sum the gradients of a rank's shard over the copies of the states, in float32.

        Once, after the last micro-batch (executor/trainer/policy/rank_mesh.py), so nothing hides it: a ring
        sends each byte twice, but for the share that is a rank's own.
        """
        copies, shard = layout.state_copies, rank_parameters(self.architecture, layout)
        if self.adapters is not None:  # of which each rank has all
            copies, shard = layout.accelerators, float(self.adapters.parameters)
        moved = 2 * shard * GRADIENT_BYTES * (copies - 1) / copies
        return moved / self._ring_bytes_per_s(layout, copies, layout.accelerators // copies)

    def _ring_bytes_per_s(self, layout: UpdateLayout, ranks: int, apart: int) -> float:
        """Bytes a second that pass from each of `ranks` accelerators to the next one, which is `apart` further on.

        Over several nodes a ring enters each of them once, and NCCL makes as many rings as the group has accelerators,
        and so ports to the network, in a node; fast links pass on what comes in. So FSDP of Llama 3.1 8B takes 2.84 s
        on 8 H100s, and 2.92 s on 128 with 50 GB/s each, for 16,384 tokens a GPU (torchtitan, benchmarks of 2024-12:
        5,762 and 5,605 tokens a second). Had a rank the rate of one port, it would take 0.7 s more, not 0.08 s.
        """
        link = self.gpu.link_bytes_per_s / 2
        if layout.accelerators <= self.per_node or self.per_node % (ranks * apart) == 0:
            return link
        return min(link, self.fabric_bytes_per_s * max(1, self.per_node // apart))

    def _unsharded_parameters(self, layout: UpdateLayout) -> float:
        """Parameters that a rank's layers have, before data-parallel sharding; experts stay where they are."""
        a = self.architecture
        divided = float(a.parameters - a.expert_parameters)
        # An embedding that is not the output matrix is whole on each tensor parallel rank.
        divided += vocabulary_parameters(a, layout) * layout.tp - vocabulary_parameters(a, ONE_RANK)
        return divided / (layout.tp * layout.pp) + a.expert_parameters / (max(layout.tp, layout.ep) * layout.pp)

    def step_s(self, layout: UpdateLayout) -> float:
        """Seconds of a step whatever it trains on: optimizer, and gradients summed over copies of the states."""
        shard = self._trained(layout)
        optimizer = shard * OPTIMIZER_BYTES / self.gpu.memory_bytes_per_s + self.moments_s(layout)
        return self.factors["step"] * STEP_S + optimizer + self._copies_s(layout)

    def moments_s(self, layout: UpdateLayout) -> float:
        """Seconds of a step in which offloaded moments come to the accelerator and go back, a bucket at a time.

        A bucket comes, is updated and goes back before the next one comes (executor/trainer/optimizer.py
        has all of it on one stream), so nothing hides it. 0 where moments are not offloaded.
        """
        if not layout.offload:
            return 0.0
        return 2 * self._trained(layout) * MOMENT_BYTES / self.gpu.host_copy_bytes_per_s

    def _trained(self, layout: UpdateLayout) -> float:
        """Parameters that a rank's optimizer steps."""
        if self.adapters is not None:
            return float(self.adapters.parameters)
        return rank_parameters(self.architecture, layout)

    def update(self, layout: UpdateLayout) -> UpdateSeconds:
        """Seconds of an update in a layout, as coefficients of its tokens and squared tokens."""
        token, micro = self.token_s(layout), self.micro_batch_s(layout)
        pair = self.pair_s(layout) / layout.dp
        bubble = (layout.pp - 1) * (layout.micro_batch_tokens * token + micro)
        step = self.step_s(layout) + bubble
        per_token = token + micro / (FILL * layout.micro_batch_tokens)
        # Each replica's last micro-batch is half full on average, and replicas wait for the fullest one.
        waited = IMBALANCE * math.log2(layout.dp) * (FILL * layout.micro_batch_tokens * token + micro)
        return UpdateSeconds(step + micro / 2 + waited, per_token / layout.dp, pair)


def fits_heads(architecture: Architecture, layout: UpdateLayout, per_node: int = 8) -> str | None:
    """Why a layout cannot be, in words; None if it can. Of several reasons the first."""
    return next((why for _, why in layout_faults(architecture, layout, per_node)), None)


def layout_faults(architecture: Architecture, layout: UpdateLayout, per_node: int = 8) -> Iterator[tuple[str, str]]:
    """Why a layout cannot be: (the field at fault, why in words).

    Tensor ranks share out heads and stay in a node; stages share out layers; experts are shared out over ranks that
    there are.
    """
    a = architecture
    if a.heads % layout.tp or (a.kv_heads % layout.tp and layout.tp % a.kv_heads):
        yield "tp", f"tp {layout.tp} does not divide {a.heads} attention and {a.kv_heads} KV heads"
    if layout.tp > per_node:
        yield "tp", f"tp {layout.tp} spans nodes of {per_node} accelerators"
    if a.layers % layout.pp:
        yield "pp", f"pp {layout.pp} does not divide {a.layers} layers"
    ranks = layout.dp * layout.cp * layout.sp * layout.tp
    if layout.ep > 1 and (not a.experts or a.experts % layout.ep or ranks % layout.ep):
        why = f"does not divide {a.experts} experts over {ranks} ranks" if a.experts else "is of no use: no experts"
        yield "ep", f"ep {layout.ep} {why}"
    heads = layout.tp * layout.sp
    if layout.sp > 1 and (a.heads % heads or a.kv_heads % heads):
        yield "sp", f"tp x sp {heads} does not divide {a.heads} attention and {a.kv_heads} KV heads"
    if layout.cp > 1 and layout.sp > 1:
        yield "sp", f"sp {layout.sp} and cp {layout.cp} both share sequences; one of them is 1"
    if layout.micro_batch_tokens % (layout.cp * layout.sp):
        field, size = ("cp", layout.cp) if layout.cp > 1 else ("sp", layout.sp)
        yield field, f"{field} {size} does not divide a micro-batch of {layout.micro_batch_tokens} tokens"
