"""Bytes of activations in the executor's trainer, counted tensor by tensor: what a layer keeps for its backward pass.

Counted in the modules of transformers 5.19 (Qwen2, Qwen3, Llama) with the executor's packed attention
(executor/trainer/policy/attention.py) and torch's fused attention, and equal to what autograd held of such models on a
CPU to 0.1 % (tests/profiles/laws/test_measured_memory.py). With h the model's width, D the width of all query heads, I
of the feed-forward, and c bytes of a value in the dtype that is computed in, a token keeps in a layer

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

from dataclasses import dataclass

from ...plans.facts.public_models import Architecture


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
