"""Shapes of public language models, and what follows from a shape: bytes of weights and KV, operations per token.

Each row of the table is a model's `config.json` on the Hugging Face hub. Counts leave out norms and biases (< 0.3 %).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


def word_set(words: str) -> frozenset[str]:
    """The words of a text that spaces part."""
    return frozenset(words.split())


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
        latent_q: rank of the compressed query, likewise; 0: the query is not compressed.
        window_layers, window_tokens: layers that attend to a sliding window only, and its length.
        guessed: shape inferred from a name; good for a prior, not for memory.
        qk_norm: queries and keys are normalised within each head, as in Qwen3.
        rope_dim, value_dim: rotary part of a head of latent attention, and a head of its values; 0: half of `head_dim`,
            and `head_dim`.
        index_values: values that an indexer of sparse attention keeps of a token and layer, beside its KV.
        gated: a feed-forward layer has three matrices (gate, up, down); else two.
        tower: parameters of an encoder of images, which no token of text passes.
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
    rope_dim: int = 0
    value_dim: int = 0
    index_values: int = 0
    gated: bool = True
    tower: int = 0

    def is_shaped_as(self, other: Architecture) -> bool:
        """Whether both are of one shape, whatever they are called and however that is known."""
        return replace(self, name=other.name, guessed=other.guessed) == other

    @property
    def attention_parameters(self) -> int:
        """Attention parameters of a layer; latent: down- and up-projections (DeepSeek-V2, arXiv 2405.04434, 2.1)."""
        if not self.latent_kv:
            return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        rope, value = self.rope_dim or self.head_dim // 2, self.value_dim or self.head_dim
        q_heads = self.heads * (self.head_dim + rope)
        query = self.latent_q * (self.hidden + q_heads) if self.latent_q else self.hidden * q_heads
        rank = self.latent_kv - rope  # the rest of the latent is the rotary key
        return (
            query
            + self.hidden * self.latent_kv
            + rank * self.heads * (self.head_dim + value)
            + self.heads * value * self.hidden
        )

    @property
    def _matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def expert_parameters(self) -> int:
        """Parameters of the routed experts of all layers."""
        return (
            (self.layers - self.dense_layers) * self.experts * self._matrices * self.hidden * self.expert_intermediate
        )

    @property
    def common_parameters(self) -> int:
        """Weights of the layers that every token uses, and the output matrix; without the input embedding."""
        sparse = self.layers - self.dense_layers if self.experts else 0
        dense = self.layers - sparse
        feed_forward = self._matrices * self.hidden * (dense * self.intermediate + sparse * self.shared_intermediate)
        router = sparse * self.hidden * self.experts
        return self.layers * self.attention_parameters + feed_forward + router + self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        embedding = 0 if self.tied else self.vocab * self.hidden
        return self.common_parameters + self.expert_parameters + embedding + self.tower

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses, without the input embedding: 2 operations each in a forward pass."""
        share = self.active_experts / self.experts if self.experts else 0.0
        return round(self.common_parameters + share * self.expert_parameters)

    @property
    def kv_values_per_token(self) -> int:
        """Values of KV that a token adds in all layers that keep everything; a window's are constant."""
        layers = self.layers - self.window_layers
        return layers * ((self.latent_kv or 2 * self.kv_heads * self.head_dim) + self.index_values)

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


def _dense(name: str, *shape: int, **more: int | bool) -> Architecture:
    """A model without experts. `shape`: layers to intermediate, as of Architecture."""
    return Architecture(name, *shape, **more)  # type: ignore[arg-type]


def _latent(name: str, shape: tuple[int, ...], experts: tuple[int, int, int], **more: int | bool) -> Architecture:
    """A mixture of experts with the latent attention of DeepSeek-V2."""
    return moe(name, shape, experts, latent_kv=576, **more)


_QWEN3 = {
    "0.6B": (28, 1024, 16, 8, 128, 151936, 3072),
    "1.7B": (28, 2048, 16, 8, 128, 151936, 6144),
    "4B": (36, 2560, 32, 8, 128, 151936, 9728),
    "8B": (36, 4096, 32, 8, 128, 151936, 12288),
    "14B": (40, 5120, 40, 8, 128, 151936, 17408),
    "32B": (64, 5120, 64, 8, 128, 151936, 25600),
}
_QWEN3_TIED = ("0.6B", "1.7B", "4B")
_GLM_AIR = {"intermediate": 10944, "shared_intermediate": 1408, "dense_layers": 1}
_DEEPSEEK_V3 = {"intermediate": 18432, "shared_intermediate": 2048, "dense_layers": 3, "latent_q": 1536}

_BY_FAMILY: dict[str, tuple[Architecture, ...]] = {
    "qwen2": (
        _dense("Qwen2.5-0.5B", 24, 896, 14, 2, 64, 151936, 4864, tied=True),
        _dense("Qwen2.5-1.5B", 28, 1536, 12, 2, 128, 151936, 8960, tied=True),
        _dense("Qwen2.5-3B", 36, 2048, 16, 2, 128, 151936, 11008, tied=True),
        _dense("Qwen2.5-7B", 28, 3584, 28, 4, 128, 152064, 18944),
        _dense("Qwen2.5-14B", 48, 5120, 40, 8, 128, 152064, 13824),
        _dense("Qwen2.5-32B", 64, 5120, 40, 8, 128, 152064, 27648),
        _dense("Qwen2.5-72B", 80, 8192, 64, 8, 128, 152064, 29568),
        _dense("DeepSeek-R1-Distill-Qwen-1.5B", 28, 1536, 12, 2, 128, 151936, 8960),
    ),
    "qwen2_5_vl": (
        _dense("Qwen2.5-VL-3B", 36, 2048, 16, 2, 128, 151936, 11008, tied=True, tower=668_000_000),
        _dense("Qwen2.5-VL-7B", 28, 3584, 28, 4, 128, 152064, 18944, tower=676_000_000),
        _dense("Qwen2.5-VL-32B", 64, 5120, 40, 8, 128, 152064, 27648, tower=689_000_000),
        _dense("Qwen2.5-VL-72B", 80, 8192, 64, 8, 128, 152064, 29568, tower=704_000_000),
    ),
    "qwen3": tuple(
        _dense(f"Qwen3-{size}", *shape, tied=size in _QWEN3_TIED, qk_norm=True) for size, shape in _QWEN3.items()
    ),
    "qwen3_vl": (
        _dense("Qwen3-VL-2B", *_QWEN3["1.7B"], tied=True, qk_norm=True, tower=403_000_000),
        _dense("Qwen3-VL-4B", *_QWEN3["4B"], tied=True, qk_norm=True, tower=411_000_000),
        _dense("Qwen3-VL-8B", *_QWEN3["8B"], qk_norm=True, tower=572_000_000),
        _dense("Qwen3-VL-32B", *_QWEN3["32B"], qk_norm=True, tower=590_000_000),
    ),
    "qwen3_vl_moe": (
        moe("Qwen3-VL-30B-A3B", (48, 2048, 32, 4, 128, 151936), (128, 8, 768), qk_norm=True, tower=534_000_000),
        moe("Qwen3-VL-235B-A22B", (94, 4096, 64, 4, 128, 151936), (128, 8, 1536), qk_norm=True, tower=572_000_000),
    ),
    "qwen3_moe": (
        moe("Qwen3-30B-A3B", (48, 2048, 32, 4, 128, 151936), (128, 8, 768), qk_norm=True),
        moe("Qwen3-235B-A22B", (94, 4096, 64, 4, 128, 151936), (128, 8, 1536), qk_norm=True),
        moe("Qwen3-Coder-480B-A35B", (62, 6144, 96, 8, 128, 151936), (160, 8, 2560), qk_norm=True),
    ),
    "llama": (
        _dense("Llama-3.2-1B", 16, 2048, 32, 8, 64, 128256, 8192, tied=True),
        _dense("Llama-3.2-3B", 28, 3072, 24, 8, 128, 128256, 8192, tied=True),
        _dense("Llama-3.1-8B", 32, 4096, 32, 8, 128, 128256, 14336),
        _dense("Llama-3.1-70B", 80, 8192, 64, 8, 128, 128256, 28672),
        _dense("Llama-3.1-405B", 126, 16384, 128, 8, 128, 128256, 53248),
        _dense("Llama-2-7b", 32, 4096, 32, 32, 128, 32000, 11008),
        _dense("Llama-2-13b", 40, 5120, 40, 40, 128, 32000, 13824),
        _dense("Llama-2-70b", 80, 8192, 64, 8, 128, 32000, 28672),
        _dense("TinyLlama-1.1B", 22, 2048, 32, 4, 64, 32000, 5632),
        _dense("SmolLM2-135M", 30, 576, 9, 3, 64, 49152, 1536, tied=True),
        _dense("SmolLM2-360M", 32, 960, 15, 5, 64, 49152, 2560, tied=True),
        _dense("SmolLM2-1.7B", 24, 2048, 32, 32, 64, 49152, 8192, tied=True),
        _dense("deepseek-llm-7b", 30, 4096, 32, 32, 128, 102400, 11008),
        _dense("Yi-1.5-9B", 48, 4096, 32, 4, 128, 64000, 11008),
        _dense("Yi-1.5-34B", 60, 7168, 56, 8, 128, 64000, 20480),
        _dense("Falcon3-1B", 18, 2048, 8, 4, 256, 131072, 8192),
        _dense("Falcon3-3B", 22, 3072, 12, 4, 256, 131072, 9216),
        _dense("Falcon3-7B", 28, 3072, 12, 4, 256, 131072, 23040),
        _dense("Falcon3-10B", 40, 3072, 12, 4, 256, 131072, 23040),
    ),
    "llama4": (
        moe(
            "Llama-4-Scout-17B", (48, 5120, 40, 8, 128, 202048), (16, 1, 8192),
            shared_intermediate=8192, window_layers=36, window_tokens=8192, tower=903_000_000,
        ),
        moe(
            "Llama-4-Maverick-17B", (48, 5120, 40, 8, 128, 202048), (128, 1, 8192),
            intermediate=16384, shared_intermediate=8192, dense_layers=24, window_layers=36, window_tokens=8192,
            tower=903_000_000,
        ),
    ),
    "mistral": (
        _dense("Mistral-7B", 32, 4096, 32, 8, 128, 32768, 14336),
        _dense("Mistral-7B-v0.1", 32, 4096, 32, 8, 128, 32000, 14336),
        _dense("Mistral-Nemo", 40, 5120, 32, 8, 128, 131072, 14336),
        _dense("Ministral-8B", 36, 4096, 32, 8, 128, 131072, 12288),
        _dense("Mistral-Small-24B", 40, 5120, 32, 8, 128, 131072, 32768),
        _dense("Codestral-22B", 56, 6144, 48, 8, 128, 32768, 16384),
        _dense("Mistral-Large", 88, 12288, 96, 8, 128, 32768, 28672),
    ),
    "mistral3": (_dense("Mistral-Small-3.1-24B", 40, 5120, 32, 8, 128, 131072, 32768, tower=439_000_000),),
    "mixtral": (
        moe("Mixtral-8x7B", (32, 4096, 32, 8, 128, 32000), (8, 2, 14336)),
        moe("Mixtral-8x22B", (56, 6144, 48, 8, 128, 32000), (8, 2, 16384)),
    ),
    "gemma": (
        _dense("gemma-2b", 18, 2048, 8, 1, 256, 256000, 16384, tied=True),
        _dense("gemma-7b", 28, 3072, 16, 16, 256, 256000, 24576, tied=True),
    ),
    "gemma2": (
        _dense("gemma-2-2b", 26, 2304, 8, 4, 256, 256000, 9216, tied=True, window_layers=13, window_tokens=4096),
        _dense("gemma-2-9b", 42, 3584, 16, 8, 256, 256000, 14336, tied=True, window_layers=21, window_tokens=4096),
        _dense("gemma-2-27b", 46, 4608, 32, 16, 128, 256000, 36864, tied=True, window_layers=23, window_tokens=4096),
    ),
    "gemma3_text": (
        _dense(
            "gemma-3-270m", 18, 640, 4, 1, 256, 262144, 2048,
            tied=True, qk_norm=True, window_layers=15, window_tokens=512,
        ),
        _dense(
            "gemma-3-1b", 26, 1152, 4, 1, 256, 262144, 6912,
            tied=True, qk_norm=True, window_layers=22, window_tokens=512,
        ),
    ),
    "gemma3": (
        _dense(
            "gemma-3-4b", 34, 2560, 8, 4, 256, 262208, 10240,
            tied=True, qk_norm=True, window_layers=29, window_tokens=1024, tower=420_000_000,
        ),
        _dense(
            "gemma-3-12b", 48, 3840, 16, 8, 256, 262208, 15360,
            tied=True, qk_norm=True, window_layers=40, window_tokens=1024, tower=421_000_000,
        ),
        _dense(
            "gemma-3-27b", 62, 5376, 32, 16, 128, 262208, 21504,
            tied=True, qk_norm=True, window_layers=52, window_tokens=1024, tower=423_000_000,
        ),
    ),
    "phi": (_dense("phi-2", 32, 2560, 32, 32, 80, 51200, 10240, gated=False),),
    "phi3": (
        _dense("phi-4", 40, 5120, 40, 10, 128, 100352, 17920),
        _dense("Phi-4-mini", 32, 3072, 24, 8, 128, 200064, 8192, tied=True),
        _dense("Phi-3-mini", 32, 3072, 32, 32, 96, 32064, 8192),
        _dense("Phi-3-medium", 40, 5120, 40, 10, 128, 32064, 17920),
    ),
    "olmo2": (
        _dense("OLMo-2-1B", 16, 2048, 16, 16, 128, 100352, 8192),
        _dense("OLMo-2-7B", 32, 4096, 32, 32, 128, 100352, 11008),
        _dense("OLMo-2-13B", 40, 5120, 40, 40, 128, 100352, 13824),
        _dense("OLMo-2-32B", 64, 5120, 40, 8, 128, 100352, 27648),
    ),
    "olmo3": (
        _dense("Olmo-3-7B", 32, 4096, 32, 32, 128, 100278, 11008, window_layers=24, window_tokens=4096),
        _dense("Olmo-3-32B", 64, 5120, 40, 8, 128, 100278, 27648, window_layers=48, window_tokens=4096),
    ),
    "olmoe": (moe("OLMoE-1B-7B", (16, 2048, 16, 16, 128, 50304), (64, 8, 1024)),),
    "smollm3": (_dense("SmolLM3-3B", 36, 2048, 16, 4, 128, 128256, 11008, tied=True),),
    "granite": (_dense("granite-3.3-8b", 40, 4096, 32, 8, 128, 49159, 12800, tied=True),),
    "internlm3": (_dense("internlm3-8b", 48, 4096, 32, 2, 128, 128512, 10240),),
    "glm4": (
        _dense("GLM-4-9B", 40, 4096, 32, 2, 128, 151552, 13696),
        _dense("GLM-4-32B", 61, 6144, 48, 2, 128, 151552, 23040),
    ),
    "mimo": (_dense("MiMo-7B", 36, 4096, 32, 8, 128, 151680, 11008),),
    "seed_oss": (_dense("Seed-OSS-36B", 64, 5120, 80, 8, 128, 155136, 27648),),
    "ernie4_5_moe": (
        moe(
            "ERNIE-4.5-21B-A3B", (28, 2560, 20, 4, 128, 103424), (64, 6, 1536),
            intermediate=12288, shared_intermediate=3072, dense_layers=1, tied=True,
        ),
    ),
    "minimax_m2": (moe("MiniMax-M2", (62, 3072, 48, 8, 128, 200064), (256, 8, 1536)),),
    "gpt_oss": (
        moe("gpt-oss-20b", (24, 2880, 64, 8, 64, 201088), (32, 4, 2880), window_layers=12, window_tokens=128),
        moe("gpt-oss-120b", (36, 2880, 64, 8, 64, 201088), (128, 4, 2880), window_layers=18, window_tokens=128),
    ),
    "glm4_moe": (
        moe("GLM-4.5-Air", (46, 4096, 96, 8, 128, 151552), (128, 8, 1408), **_GLM_AIR),
        moe(
            "GLM-4.5", (92, 5120, 96, 8, 128, 151552), (160, 8, 1536),
            intermediate=12288, shared_intermediate=1536, dense_layers=3,
        ),
    ),
    "glm_moe_dsa": (
        _latent(
            "GLM-5", (78, 6144, 64, 64, 192, 154880), (256, 8, 2048), intermediate=12288, shared_intermediate=2048,
            dense_layers=3, latent_q=2048, rope_dim=64, value_dim=256, index_values=66,
        ),
    ),
    "deepseek_v2": (
        _latent(
            "DeepSeek-V2-Lite", (27, 2048, 16, 16, 128, 102400), (64, 6, 1408),
            intermediate=10944, shared_intermediate=2816, dense_layers=1,
        ),
        _latent(
            "DeepSeek-V2", (60, 5120, 128, 128, 128, 102400), (160, 6, 1536),
            intermediate=12288, shared_intermediate=3072, dense_layers=1, latent_q=1536,
        ),
    ),
    "deepseek_v3": (
        _latent("DeepSeek-V3", (61, 7168, 128, 128, 128, 129280), (256, 8, 2048), **_DEEPSEEK_V3),
        _latent(
            "Moonlight-16B-A3B", (27, 2048, 16, 16, 128, 163840), (64, 6, 1408),
            intermediate=11264, shared_intermediate=2816, dense_layers=1,
        ),
    ),
    "deepseek_v32": (
        _latent(
            "DeepSeek-V3.2", (61, 7168, 128, 128, 128, 129280), (256, 8, 2048), **_DEEPSEEK_V3, index_values=66
        ),
    ),
    "kimi_k2": (
        _latent(
            "Kimi-K2", (61, 7168, 64, 64, 128, 163840), (384, 8, 2048),
            intermediate=18432, shared_intermediate=2048, dense_layers=1, latent_q=1536,
        ),
    ),
}  # fmt: skip
"""Rows by `model_type` of their config.json."""

_ALSO = {
    "Qwen2.5-0.5B": "Qwen2-0.5B",
    "Qwen2.5-1.5B": "Qwen2-1.5B Open-Reasoner-Zero-1.5B OpenReasoning-Nemotron-1.5B",
    "Qwen2.5-7B": (
        "Qwen2-7B DeepSeek-R1-Distill-Qwen-7B OpenThinker-7B OpenThinker2-7B OpenThinker3-7B Skywork-OR1-7B "
        "Open-Reasoner-Zero-7B Light-R1-7B AceReason-Nemotron-7B Eurus-2-7B AceReason-Nemotron-1.1-7B "
        "OpenR1-Distill-7B Bespoke-Stratos-7B OpenReasoning-Nemotron-7B"
    ),
    "Qwen2.5-14B": (
        "DeepSeek-R1-Distill-Qwen-14B DeepCoder-14B Light-R1-14B AceReason-Nemotron-14B OpenReasoning-Nemotron-14B"
    ),
    "Qwen2.5-32B": (
        "QwQ-32B DeepSeek-R1-Distill-Qwen-32B DAPO-Qwen-32B Skywork-OR1-32B Open-Reasoner-Zero-32B Light-R1-32B "
        "OpenThinker-32B OpenThinker2-32B s1-32B s1.1-32B Sky-T1-32B INTELLECT-2 Bespoke-Stratos-32B "
        "OpenReasoning-Nemotron-32B"
    ),
    "Qwen2.5-72B": "Qwen2-72B Kimi-Dev-72B",
    "Qwen3-4B": "Polaris-4B",
    "GLM-4-9B": "GLM-Z1-9B",
    "GLM-4-32B": "GLM-Z1-32B",
    "DeepSeek-R1-Distill-Qwen-1.5B": "DeepScaleR-1.5B DeepCoder-1.5B Nemotron-Research-Reasoning-Qwen-1.5B",
    "Llama-3.1-8B": (
        "Llama-3-8B DeepSeek-R1-Distill-Llama-8B Llama-3.1-Nemotron-Nano-8B Tulu-3-8B Llama-3.1-Tulu-3-8B"
    ),
    "Llama-3.1-70B": "Llama-3.3-70B Llama-3-70B DeepSeek-R1-Distill-Llama-70B Tulu-3-70B Llama-3.1-Tulu-3-70B",
    "Llama-3.1-405B": "Tulu-3-405B Llama-3.1-Tulu-3-405B",
    "Llama-2-7b": "Llama-7b vicuna-7b CodeLlama-7b",
    "Llama-2-13b": "vicuna-13b CodeLlama-13b",
    "Llama-2-70b": "CodeLlama-70b",
    "deepseek-llm-7b": "deepseek-math-7b DeepSeek-Prover-V2-7B",
    "Mistral-7B": "mathstral-7B",
    "DeepSeek-V2-Lite": "DeepSeek-Coder-V2-Lite",
    "DeepSeek-V2": "DeepSeek-V2.5 DeepSeek-Coder-V2",
    "Mistral-7B-v0.1": "Mistral-7B-v0.2 zephyr-7b",
    "Mistral-Small-24B": "Magistral-Small Devstral-Small",
    "Mistral-Small-3.1-24B": "Mistral-Small-3.2-24B",
    "Codestral-22B": "Mistral-Small-Instruct-2409",
    "Phi-3-mini": "Phi-3.5-mini",
    "GLM-4.5-Air": "INTELLECT-3",
    "GLM-4.5": "GLM-4.6 GLM-4.7",
    "GLM-5": "GLM-5.1 GLM-5.2",
    "MiniMax-M2": "MiniMax-M2.1 MiniMax-M2.5 MiniMax-M2.7",
    "DeepSeek-V3": "DeepSeek-R1 DeepSeek-V3.1 DeepSeek-Prover-V2-671B",
    "Kimi-K2": "Kimi-K2.5 Kimi-K2.6 Kimi-K2.7",
    "Olmo-3-32B": "Olmo-3.1-32B",
}
"""By the name of a row: other public models of that very shape, by the names of their repositories."""


FAMILIES = {
    name: family
    for family, rows in _BY_FAMILY.items()
    for row in rows
    for name in (row.name, *_ALSO.get(row.name, "").split())
}
"""By name of a model in the table: `model_type` of its config.json."""

ARCHITECTURES: tuple[Architecture, ...] = tuple(
    replace(row, name=name)
    for rows in _BY_FAMILY.values()
    for row in rows
    for name in (row.name, *_ALSO.get(row.name, "").split())
)
