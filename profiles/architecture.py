"""Shapes of language models, and what follows from them: bytes of weights and KV, operations per token.

The table holds public models (each one's `config.json` on the Hugging Face hub); a model that is not in it is guessed
from the sizes in its name (`70B`, `235B-A22B`), and the guess says so. Counts leave out norms and biases (< 0.1 %).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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


def _moe(name: str, shape: tuple[int, ...], experts: tuple[int, int, int], **more: int | bool) -> Architecture:
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
    _moe("Qwen3-30B-A3B", (48, 2048, 32, 4, 128, 151936), (128, 8, 768), qk_norm=True),
    _moe("Qwen3-235B-A22B", (94, 4096, 64, 4, 128, 151936), (128, 8, 1536), qk_norm=True),
    Architecture("Llama-3.2-1B", 16, 2048, 32, 8, 64, 128256, 8192, tied=True),
    Architecture("Llama-3.2-3B", 28, 3072, 24, 8, 128, 128256, 8192, tied=True),
    Architecture("Llama-3.1-8B", 32, 4096, 32, 8, 128, 128256, 14336),
    Architecture("Llama-3.1-70B", 80, 8192, 64, 8, 128, 128256, 28672),
    Architecture("Llama-3.3-70B", 80, 8192, 64, 8, 128, 128256, 28672),
    Architecture("Llama-3.1-405B", 126, 16384, 128, 8, 128, 128256, 53248),
    _moe("Mixtral-8x7B", (32, 4096, 32, 8, 128, 32000), (8, 2, 14336)),
    _moe("MiniMax-M2", (62, 3072, 48, 8, 128, 200064), (256, 8, 1536)),
    _moe("gpt-oss-20b", (24, 2880, 64, 8, 64, 201088), (32, 4, 2880), window_layers=12, window_tokens=128),
    _moe("gpt-oss-120b", (36, 2880, 64, 8, 64, 201088), (128, 4, 2880), window_layers=18, window_tokens=128),
    _moe(
        "GLM-4.5-Air", (46, 4096, 96, 8, 128, 151552), (128, 8, 1408),
        intermediate=10944, shared_intermediate=1408, dense_layers=1,
    ),
    _moe(
        "INTELLECT-3", (46, 4096, 96, 8, 128, 151552), (128, 8, 1408),
        intermediate=10944, shared_intermediate=1408, dense_layers=1,
    ),
    _moe(
        "GLM-4.5", (92, 5120, 96, 8, 128, 151552), (160, 8, 1536),
        intermediate=12288, shared_intermediate=1536, dense_layers=3,
    ),
    _moe(
        "DeepSeek-V3", (61, 7168, 128, 128, 128, 129280), (256, 8, 2048),
        intermediate=18432, shared_intermediate=2048, dense_layers=3, latent_kv=576, latent_q=1536,
    ),
    _moe(
        "DeepSeek-R1", (61, 7168, 128, 128, 128, 129280), (256, 8, 2048),
        intermediate=18432, shared_intermediate=2048, dense_layers=3, latent_kv=576, latent_q=1536,
    ),
    _moe(
        "Kimi-K2", (61, 7168, 64, 64, 128, 163840), (384, 8, 2048),
        intermediate=18432, shared_intermediate=2048, dense_layers=1, latent_kv=576, latent_q=1536,
    ),
)  # fmt: skip

_BY_LENGTH = sorted(ARCHITECTURES, key=lambda a: (-len(a.name), a.name))
_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z])")
_ACTIVE = re.compile(r"(?<![a-z0-9])a(\d+(?:\.\d+)?)b(?![a-z])")


def architecture_of(model: str) -> Architecture | None:
    """The shape of a model by its hub id or path: from the table, else guessed from sizes in its name, else None.

    Variants of a model (`-Instruct`, `-2507`, `-FP8`, a distillation that keeps the shape) share its entry.
    """
    name = model.lower().rstrip("/").split("/")[-1]
    # A distilled model has the shape of its student, which its name ends with.
    name = name.split("distill-")[-1]
    plain = re.sub(r"^(meta|nvidia)[-_]", "", name)
    for architecture in _BY_LENGTH:
        if plain.startswith(architecture.name.lower()) and not plain[len(architecture.name) :][:1].isdigit():
            return architecture
    return _guess(name)


def architecture_from_config(config: Mapping[str, Any], name: str = "config.json") -> Architecture:
    """The shape that a model's config.json states, of the Qwen2, Qwen3, Llama and Mixtral families.

    Raises ValueError naming what is absent.
    """
    wanted = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size")
    if absent := [key for key in wanted if not config.get(key)]:
        raise ValueError(f"{name} states no {', '.join(absent)}; it is no decoder whose memory can be told")
    heads = int(config["num_attention_heads"])
    experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
    # A sparse model of Qwen has an `intermediate_size` beside its experts', one of Mixtral has that of its experts.
    width = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    return Architecture(
        name,
        layers=int(config["num_hidden_layers"]),
        hidden=int(config["hidden_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
        vocab=int(config["vocab_size"]),
        intermediate=0 if experts else int(config["intermediate_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        experts=experts,
        active_experts=int(config.get("num_experts_per_tok") or 0),
        expert_intermediate=width if experts else 0,
        qk_norm=str(config.get("model_type", "")).startswith("qwen3"),
    )


def typical() -> Architecture:
    """For a model of which not even the size is known. Its experts let a fit be of a dense model or of a sparse one."""
    architecture = _guess("100b-a10b")
    assert architecture is not None
    return architecture


def _guess(name: str) -> Architecture | None:
    """A usual shape of the size that the name gives: depth and width of the dense models in the table, by size."""
    size, active = _SIZE.search(name), _ACTIVE.search(name)
    if size is None:
        return None
    billions = float(size[1])
    sparse = active is not None and float(active[1]) < billions
    width_of = float(active[1]) if active is not None and sparse else billions
    # Dense models of the table follow hidden ~ 2000 B^0.33 and layers ~ 18 B^0.33 (B: billions of parameters).
    hidden = max(512, round(2000 * width_of**0.33 / 512) * 512)
    layers = max(12, round(18 * (billions if not sparse else billions**0.6) ** 0.33))
    heads, kv_heads, head_dim, vocab = max(8, hidden // 128), 8, 128, 150_000
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    rest = max(0.1, 1e9 * billions - 2 * vocab * hidden - layers * attention) / layers
    if not sparse:
        width = max(hidden, round(rest / (3 * hidden)))
        return Architecture(name, layers, hidden, heads, kv_heads, head_dim, vocab, width, guessed=True)
    return _moe(
        name, (layers, hidden, heads, kv_heads, head_dim, vocab), (128, 8, max(64, round(rest / (128 * 3 * hidden)))),
        guessed=True,
    )  # fmt: skip
