"""Shapes of public language models, and what follows from a shape: bytes of weights and KV, operations per token.

Each row of the table is a model's `config.json` on the Hugging Face hub. Counts leave out norms and biases (< 0.1 %).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder-only transformer.

    Attributes:
        name: as in the table.
        layers, hidden, heads, kv_heads, head_dim, vocab: as in config.json.
        intermediate: width of a dense feed-forward layer (0 when all layers have experts).
        tied: input and output embeddings are one matrix.
        experts, active_experts, expert_intermediate: routed experts of a layer, how many a token visits, their width.
        shared_intermediate: width of the experts that every token visits.
        dense_layers: layers without experts, in a model that has them.
        latent_kv: values of the compressed KV of a token and layer (multi-head latent attention); 0: K and V heads.
        latent_q: rank of the compressed query, likewise.
        window_layers, window_tokens: layers that attend to a sliding window only, and its length.
        guessed: shape inferred from a name; good for a prior, not for memory.
        qk_norm: queries and keys are normalised within each head, as in Qwen3.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    intermediate: int = 0
    tied: bool = False
    experts: int = 0
    active_experts: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    dense_layers: int = 0
    latent_kv: int = 0
    latent_q: int = 0
    window_layers: int = 0
    window_tokens: int = 0
    guessed: bool = False
    qk_norm: bool = False

    @property
    def attention_parameters(self) -> int:
        """Attention parameters of a layer; latent: down- and up-projections (DeepSeek-V2, arXiv 2405.04434, 2.1)."""
        if not self.latent_kv:
            return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        rank = self.latent_kv - self.head_dim // 2  # the rest of the latent is the rotary key
        q_heads = self.heads * (self.head_dim + self.head_dim // 2)
        return (
            self.hidden * (self.latent_q + self.latent_kv)
            + self.latent_q * q_heads
            + rank * 2 * self.heads * self.head_dim
            + self.heads * self.head_dim * self.hidden
        )

    @property
    def expert_parameters(self) -> int:
        """Parameters of the routed experts of all layers."""
        return (self.layers - self.dense_layers) * self.experts * 3 * self.hidden * self.expert_intermediate

    @property
    def common_parameters(self) -> int:
        """Weights of the layers that every token uses, and the output matrix; without the input embedding."""
        sparse = self.layers - self.dense_layers if self.experts else 0
        dense = self.layers - sparse
        feed_forward = 3 * self.hidden * (dense * self.intermediate + sparse * self.shared_intermediate)
        router = sparse * self.hidden * self.experts
        return self.layers * self.attention_parameters + feed_forward + router + self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        embedding = 0 if self.tied else self.vocab * self.hidden
        return self.common_parameters + self.expert_parameters + embedding

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses, without the input embedding: 2 operations each in a forward pass."""
        share = self.active_experts / self.experts if self.experts else 0.0
        return round(self.common_parameters + share * self.expert_parameters)

    @property
    def kv_values_per_token(self) -> int:
        """Values of KV that a token adds in all layers that keep everything; a window's are constant."""
        layers = self.layers - self.window_layers
        return layers * (self.latent_kv or 2 * self.kv_heads * self.head_dim)

    @property
    def window_kv_values(self) -> int:
        """Values of KV that a sequence holds in its windowed layers, once it is as long as the window."""
        return self.window_layers * self.window_tokens * 2 * self.kv_heads * self.head_dim

    @property
    def attention_flops_per_pair(self) -> float:
        """Operations of a forward pass per (query, key) pair over all full layers: 2 for scores, 2 for the sum."""
        return 4.0 * (self.layers - self.window_layers) * self.heads * self.head_dim


def moe(name: str, shape: tuple[int, ...], experts: tuple[int, int, int], **more: int | bool) -> Architecture:
    """A mixture of experts. `shape`: layers to vocab, as of Architecture; `experts`: number, active ones, width."""
    layers, hidden, heads, kv_heads, head_dim, vocab = shape
    count, active, width = experts
    return Architecture(
        name, layers, hidden, heads, kv_heads, head_dim, vocab,
        experts=count, active_experts=active, expert_intermediate=width, **more,  # type: ignore[arg-type]
    )  # fmt: skip


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("Qwen2.5-0.5B", 24, 896, 14, 2, 64, 151936, 4864, tied=True),
    Architecture("Qwen2.5-1.5B", 28, 1536, 12, 2, 128, 151936, 8960, tied=True),
    Architecture("Qwen2.5-3B", 36, 2048, 16, 2, 128, 151936, 11008, tied=True),
    Architecture("Qwen2.5-7B", 28, 3584, 28, 4, 128, 152064, 18944),
    Architecture("Qwen2.5-14B", 48, 5120, 40, 8, 128, 152064, 13824),
    Architecture("Qwen2.5-32B", 64, 5120, 40, 8, 128, 152064, 27648),
    Architecture("Qwen2.5-72B", 80, 8192, 64, 8, 128, 152064, 29568),
    Architecture("Qwen3-0.6B", 28, 1024, 16, 8, 128, 151936, 3072, tied=True, qk_norm=True),
    Architecture("Qwen3-1.7B", 28, 2048, 16, 8, 128, 151936, 6144, tied=True, qk_norm=True),
    Architecture("Qwen3-4B", 36, 2560, 32, 8, 128, 151936, 9728, tied=True, qk_norm=True),
    Architecture("Qwen3-8B", 36, 4096, 32, 8, 128, 151936, 12288, qk_norm=True),
    Architecture("Qwen3-14B", 40, 5120, 40, 8, 128, 151936, 17408, qk_norm=True),
    Architecture("Qwen3-32B", 64, 5120, 64, 8, 128, 151936, 25600, qk_norm=True),
    moe("Qwen3-30B-A3B", (48, 2048, 32, 4, 128, 151936), (128, 8, 768), qk_norm=True),
    moe("Qwen3-235B-A22B", (94, 4096, 64, 4, 128, 151936), (128, 8, 1536), qk_norm=True),
    Architecture("Llama-3.2-1B", 16, 2048, 32, 8, 64, 128256, 8192, tied=True),
    Architecture("Llama-3.2-3B", 28, 3072, 24, 8, 128, 128256, 8192, tied=True),
    Architecture("Llama-3.1-8B", 32, 4096, 32, 8, 128, 128256, 14336),
    Architecture("Llama-3.1-70B", 80, 8192, 64, 8, 128, 128256, 28672),
    Architecture("Llama-3.3-70B", 80, 8192, 64, 8, 128, 128256, 28672),
    Architecture("Llama-3.1-405B", 126, 16384, 128, 8, 128, 128256, 53248),
    moe("Mixtral-8x7B", (32, 4096, 32, 8, 128, 32000), (8, 2, 14336)),
    moe("MiniMax-M2", (62, 3072, 48, 8, 128, 200064), (256, 8, 1536)),
    moe("gpt-oss-20b", (24, 2880, 64, 8, 64, 201088), (32, 4, 2880), window_layers=12, window_tokens=128),
    moe("gpt-oss-120b", (36, 2880, 64, 8, 64, 201088), (128, 4, 2880), window_layers=18, window_tokens=128),
    moe(
        "GLM-4.5-Air", (46, 4096, 96, 8, 128, 151552), (128, 8, 1408),
        intermediate=10944, shared_intermediate=1408, dense_layers=1,
    ),
    moe(
        "INTELLECT-3", (46, 4096, 96, 8, 128, 151552), (128, 8, 1408),
        intermediate=10944, shared_intermediate=1408, dense_layers=1,
    ),
    moe(
        "GLM-4.5", (92, 5120, 96, 8, 128, 151552), (160, 8, 1536),
        intermediate=12288, shared_intermediate=1536, dense_layers=3,
    ),
    moe(
        "DeepSeek-V3", (61, 7168, 128, 128, 128, 129280), (256, 8, 2048),
        intermediate=18432, shared_intermediate=2048, dense_layers=3, latent_kv=576, latent_q=1536,
    ),
    moe(
        "DeepSeek-R1", (61, 7168, 128, 128, 128, 129280), (256, 8, 2048),
        intermediate=18432, shared_intermediate=2048, dense_layers=3, latent_kv=576, latent_q=1536,
    ),
    moe(
        "Kimi-K2", (61, 7168, 64, 64, 128, 163840), (384, 8, 2048),
        intermediate=18432, shared_intermediate=2048, dense_layers=1, latent_kv=576, latent_q=1536,
    ),
)  # fmt: skip

_BY_LENGTH = sorted(ARCHITECTURES, key=lambda a: (-len(a.name), a.name))

_FAMILIES: Mapping[str, str] = {
    "DeepSeek": "deepseek_v3",
    "GLM-4.5": "glm4_moe",
    "INTELLECT-3": "glm4_moe",
    "Kimi-K2": "kimi_k2",
    "Llama-3": "llama",
    "MiniMax-M2": "minimax_m2",
    "Mixtral": "mixtral",
    "Qwen2.5": "qwen2",
    "Qwen3-235B-A22B": "qwen3_moe",
    "Qwen3-30B-A3B": "qwen3_moe",
    "Qwen3": "qwen3",
    "gpt-oss": "gpt_oss",
}
"""By the beginning of a name in the table: `model_type` of its models. Of two that fit, the first counts."""


def family_of(architecture: Architecture) -> str | None:
    """`model_type` of a model in the table; None for another one."""
    if architecture not in ARCHITECTURES:
        return None
    return next(family for name, family in _FAMILIES.items() if architecture.name.startswith(name))


def plain_name(model: str) -> str:
    """The last part of a hub id or path, in small letters; of a distilled model its student's name, which it ends with
    and whose shape it has."""
    return model.lower().rstrip("/").split("/")[-1].split("distill-")[-1]


def public_model(model: str) -> Architecture | None:
    """The shape of a model in the table by its hub id or path; None for another one.

    Variants of a model (`-Instruct`, `-2507`, `-FP8`, a distillation that keeps the shape) share its entry.
    """
    name = re.sub(r"^(meta|nvidia)[-_]", "", plain_name(model))
    for architecture in _BY_LENGTH:
        if name.startswith(architecture.name.lower()) and not name[len(architecture.name) :][:1].isdigit():
            return architecture
    return None
