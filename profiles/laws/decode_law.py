"""Seconds of a decode step from its layout, its sequences and the KV that they hold: physics with a few free factors.

A step reads the weights once (of the experts, those that some token visits), multiplies them with every token in it,
reads all KV, and with more than one rank sums activations twice a layer:

    step(m, n, K) = launch + sequence n + linear(m) + kv K + sums(m)
    linear(m)     = hypot(weights read, operations of m tokens)        the compute knee: the slower one wins
    weights read  = (common + experts (1 - (1 - k/E)^m)) / tp          k of E experts a token: MoE
    sums(m)       = 2 layers (latency log2(2 tp) / 2 + 2 (tp - 1)/tp m hidden bytes / link)      only if tp > 1

That is the device's part. The host's is vLLM's Python (scheduling, preparing inputs, output by request), once an engine
whatever its ranks:

    host(n)       = host (begin + each n)

vLLM 0.14 and later schedule a step while the one before it runs, so that a step takes the longer of the two; earlier
ones, and engines that draft by a proposer of ours (vllm/config/vllm.py), take both one after the other.

Every term has one positive factor over what the data sheets give. Factors are all that is fitted, so that a law of few
points still extrapolates in TP, batch and context, and is monotone in sequences and in KV whatever they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...plans.facts.public_models import Architecture
from ..hardware import Gpu
from .factor_fit import Factor

Array = NDArray[np.float64]

# Seconds that the sheets do not give; each is the centre of a wide prior.
LAUNCH_S, LAUNCH_PER_LAYER_S = 1e-3, 30e-6  # scheduling and sampling; kernel launches and norms of a layer
ROUTE_S = 30e-6  # choosing experts and gathering their tokens, a layer
SEQUENCE_S = 8e-6  # a sequence's share of sampling, which each rank does whole, and of kernels' launches
# Measured on an H200 with 0.5B parameters, where nothing else takes as long: a step of vLLM 0.24 takes 2.5 ms with up
# to 32 sequences, and 41 to 62 us more with each further one, with seeds and without (docs/cluster.md). Where vLLM 0.12
# and earlier served 32B and 70B one after the other, the fits below find 35 to 42 us.
HOST_S, HOST_SEQUENCE_S = 0.8e-3, 50e-6
HOST_ERROR = 0.2  # relative standard deviation of these figures, and of a host's speed
SUM_LATENCY_S = 8e-6  # one all-reduce of a small message inside a node
JOIN_S, JOIN_PER_LAYER_S = 1e-3, 40e-6  # a step that newcomers' prefill joins runs outside the captured graphs

ACTIVATION_BYTES = KV_BYTES = 2.0

CURVE = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Sequences for which a profile by this law states a decode step."""


FACTORS: tuple[Factor, ...] = (
    Factor("launch", 0.0, 0.5),
    Factor("weights", 0.25, 0.2),
    Factor("experts", 0.1, 0.3),
    Factor("compute", 0.6, 0.4),
    Factor("kv", 0.3, 0.3),
    Factor("kv_width", -0.3, 0.4),
    Factor("latency", 0.0, 0.6),
    Factor("link", 0.7, 0.7),
    Factor("sequence", 0.0, 0.7),
    Factor("host", 0.0, HOST_ERROR),
    Factor("join", 0.3, 0.7),
    Factor("capacity", 0.0, 0.2),
    Factor("ep", 0.1, 0.2),
    Factor("dp", 0.0, 0.2),
)
NAMES = tuple(factor.name for factor in FACTORS)


@dataclass(frozen=True, slots=True)
class Sheet:
    """The data sheets' seconds of a model on an accelerator in a precision: the law with all factors at 1.

    Seconds are for one rank that does everything; a rank of `tp` does 1/tp of it.
    """

    common_s: float
    experts_s: float
    touched: float
    token_s: float
    pair_s: float
    kv_token_s: float
    window_s: float
    kv_heads: int
    layers: int
    launch_s: float
    join_s: float
    token_link_s: float
    kv_bytes_per_token: float
    window_bytes: float
    weight_bytes: float
    memory_bytes: float
    exact: bool

    def as_guess(self) -> Sheet:
        """The same sheet, marked as a guess: its GPU or its model is in no table."""
        return replace(self, exact=False)

    @property
    def sums(self) -> int:
        """Number of all-reduces of a forward pass."""
        return 2 * self.layers


def sheet(architecture: Architecture, gpu: Gpu, weight_bytes: float) -> Sheet:
    """The data sheets of a model on an accelerator, its KV in bf16; `weight_bytes`: of one weight."""
    a, rate, flops = architecture, gpu.memory_bytes_per_s, gpu.flops(weight_bytes)
    return Sheet(
        common_s=a.common_parameters * weight_bytes / rate,
        experts_s=a.expert_parameters * weight_bytes / rate,
        touched=a.active_experts / a.experts if a.experts else 0.0,
        token_s=2.0 * a.active_parameters / flops,
        pair_s=a.attention_flops_per_pair / gpu.bf16_flops,
        kv_token_s=a.kv_values_per_token * KV_BYTES / rate,
        window_s=a.window_kv_values * KV_BYTES / rate,
        # Latent KV has no heads to share out: every rank reads all of it.
        kv_heads=1 if a.latent_kv else a.kv_heads,
        layers=a.layers,
        launch_s=LAUNCH_S + LAUNCH_PER_LAYER_S * a.layers + ROUTE_S * (a.layers - a.dense_layers if a.experts else 0),
        join_s=JOIN_S + JOIN_PER_LAYER_S * a.layers,
        # Ring all-reduce: each rank sends 2 (tp - 1)/tp of the activations, one way.
        token_link_s=2.0 * a.hidden * ACTIVATION_BYTES / (gpu.link_bytes_per_s / 2.0),
        kv_bytes_per_token=a.kv_values_per_token * KV_BYTES,
        window_bytes=a.window_kv_values * KV_BYTES,
        weight_bytes=a.parameters * weight_bytes,
        memory_bytes=gpu.memory_bytes,
        exact=not a.guessed,
    )


@dataclass(frozen=True)
class DecodeLaw:
    """A sheet and its factors (logarithms, in the order of `FACTORS`).

    Everywhere `tp` is the engine's ranks, `dp` how many groups of them share attention out by sequences instead of by
    heads, `ep` more than 1 if experts are shared out whole; sequences and tokens are the engine's.
    """

    sheet: Sheet
    logs: Array

    def factor(self, name: str) -> float:
        """The fitted factor called `name`."""
        return math.exp(float(self.logs[NAMES.index(name)]))

    def linear_s(self, tp: ArrayLike, tokens: ArrayLike, ep: ArrayLike = 1.0, dp: ArrayLike = 1.0) -> Array:
        """Seconds of the layers' matrix products for so many tokens: weights are read once for all of them."""
        tp, tokens, ep, dp = (np.asarray(value, float) for value in (tp, tokens, ep, dp))
        s = self.sheet
        # Attention groups hold a copy each of what all tokens use; experts are shared out over all ranks.
        read = self.factor("weights") * s.common_s * dp
        if s.experts_s:
            seen = -np.expm1(tokens * math.log1p(-s.touched))
            # Whole experts on a rank: the rank with most of the step's tokens sets the time.
            uneven = np.where(ep > 1, self.factor("ep"), 1.0)
            read = read + self.factor("experts") * s.experts_s * seen * uneven
        return np.asarray(np.hypot(read, self.factor("compute") * s.token_s * tokens) / tp)

    def sums_s(self, tp: ArrayLike, tokens: ArrayLike) -> Array:
        """Seconds of all-reduces between ranks; the exchanges of expert and data parallelism move about as much."""
        tp, tokens = np.asarray(tp, float), np.asarray(tokens, float)
        s = self.sheet
        latency = self.factor("latency") * SUM_LATENCY_S * np.log2(2 * tp) / 2
        carried = self.factor("link") * s.token_link_s * (tp - 1) / tp * tokens
        return np.where(tp > 1, s.sums * (latency + carried), 0.0)

    def kv_s(self, tp: ArrayLike, kv_tokens: ArrayLike, dp: ArrayLike = 1.0) -> Array:
        """Seconds to read `kv_tokens` tokens of KV."""
        read = self.kv_value_s * self.sheet.kv_token_s * np.asarray(kv_tokens, float)
        return np.asarray(read / self.kv_ranks(tp, dp))

    @property
    def kv_value_s(self) -> float:
        """What reading KV takes, over the sheet's."""
        return self.factor("kv") * self.factor("kv_width")

    def kv_ranks(self, tp: ArrayLike, dp: ArrayLike = 1.0) -> Array:
        """Ranks over which KV is spread; ranks of a group beyond the KV heads hold copies."""
        tp, dp = np.asarray(tp, float), np.asarray(dp, float)
        return np.asarray(dp * np.minimum(tp / dp, self.sheet.kv_heads))

    def base_s(self, tp: ArrayLike, sequences: ArrayLike, ep: ArrayLike = 1.0, dp: ArrayLike = 1.0) -> Array:
        """Seconds on the device of a decode step of so many sequences without their KV."""
        n = np.asarray(sequences, float)
        s = self.sheet
        per_sequence = self.factor("sequence") * SEQUENCE_S + self.kv_value_s * s.window_s / self.kv_ranks(tp, dp)
        return np.asarray(
            self.factor("launch") * s.launch_s + per_sequence * n + self.linear_s(tp, n, ep, dp) + self.sums_s(tp, n)
        )

    def prefill_s(self, tp: float) -> tuple[float, float, float]:
        """Seconds to admit a request, and more for each prompt token and for each squared one.

        A token computes, and is summed between ranks; attention is per pair, half of which are masked.
        """
        s, compute = self.sheet, self.factor("compute")
        token = compute * s.token_s / tp + float(self.sums_s(tp, 1.0)) - float(self.sums_s(tp, 0.0))
        return self.factor("join") * s.join_s, token, compute * s.pair_s / 2 / tp

    def host_s(self, sequences: ArrayLike) -> Array:
        """Seconds of vLLM's Python in a step of so many sequences."""
        return np.asarray(self.factor("host") * (HOST_S + HOST_SEQUENCE_S * np.asarray(sequences, float)))

    def step_s(
        self, tp: ArrayLike, sequences: ArrayLike, kv_tokens: ArrayLike, ep: ArrayLike = 1.0, dp: ArrayLike = 1.0
    ) -> Array:
        """Seconds on the device of a decode step of so many sequences that hold `kv_tokens` together."""
        return self.base_s(tp, sequences, ep, dp) + self.kv_s(tp, kv_tokens, dp)
