"""The demo's policy: a tiny Llama, taught in under a minute to hunt for keys, and to be unsure of the answer.

The teacher is known in closed form, so the model is trained on the teacher's distribution of the next token and not on
draws from it: which symbol to try next (uniform), `no` or `yes` after a try, a value after `yes`, then the end. For
values the teacher is right with probability `RIGHT` and otherwise uniform over the wrong ones. That is the head-room
for RL: the right value is by far the likeliest, but the mean reward starts near `RIGHT`.

Three things make that possible in the time:
- looking a try up in the prompt needs an induction circuit (find the earlier occurrence, copy what followed), which
  random weights take many minutes to form: `_start_as_induction` gives them a rough one, training makes it exact;
- positions jump, so that looking up is learnt at every distance up to the cap although most sequences are short;
- the last phase trains on a few sequences of full length, where a try competes with two thousand earlier tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import task

RIGHT = 0.5
"""Probability of the right value in the teacher's answers."""

HIDDEN, LAYERS, HEADS = 128, 2, 2
MAX_POSITIONS = 4096
ROPE_THETA = 1e6
TRAINED_POSITIONS = 2240
"""Positions that the warm-up reaches: the demo's longest prompt and its cap of 2048 tokens, and some room."""


@dataclass(frozen=True)
class WarmupPhase:
    """A stretch of the warm-up: `steps` updates on `rows` sequences of `tokens` tokens, at most `keys` keys in each."""

    steps: int
    rows: int
    tokens: int
    keys: int
    hits: float
    """Share of tries that are keys of the prompt; far above the policy's own: it has to tell hits from misses."""


PHASES = (
    WarmupPhase(steps=200, rows=24, tokens=64, keys=20, hits=0.5),
    WarmupPhase(steps=150, rows=24, tokens=96, keys=32, hits=0.5),
    WarmupPhase(steps=20, rows=2, tokens=2208, keys=96, hits=0.2),
)
LEARNING_RATE = 1.5e-3
"""At 3e-3 training destroys, for about half of the seeds, the circuit that it starts from."""
RAMP_STEPS = 20
FLOOR = 0.03
"""The learning rate rises over RAMP_STEPS, then falls along a cosine to this share of itself."""

NOTHING, EXACT, TRY, VALUE = 0, 1, 2, 3
"""What the teacher says about the token after a position: nothing, one token, any symbol, a noisy value."""


def make_model(seed: int) -> Any:
    """A new LlamaForCausalLM in float32; its heads and key-value heads allow tensor parallelism of 2.

    Llama and not Qwen2, because for a model of type qwen2 AutoTokenizer (transformers 5) ignores the class that the
    folder names and splits its words by Qwen2's own rules.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(task.WORDS) + len(task.WORDS) % 2,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN // 2,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        bos_token_id=None,
        eos_token_id=task.TOKEN[task.EOS],
        pad_token_id=task.TOKEN[task.PAD],
    )
    model = LlamaForCausalLM(config).float()
    _start_as_induction(model)
    return model


@torch.no_grad()
def _start_as_induction(model: Any) -> None:
    """Set three heads to a rough induction circuit (Olsson et al. 2022, arXiv 2209.11895).

    Layer 0: biases alone make every position attend to the one before it, through the pairs of rotary dimensions that
    turn fast; what it copies is a projection O' P of that token. Layer 1: a query P x meets keys O x', on the pairs
    that hardly turn within MAX_POSITIONS, so that distance does not matter; the token found is copied to the output.
    The second head of layer 1 does the same for `yes`, whose query is the token before it: O x meets O x'.
    P and O are rows of one random rotation, hence do not interfere.
    """
    width, head = HIDDEN, HIDDEN // HEADS
    half = head // 2
    turn = ROPE_THETA ** (-torch.arange(half) / half)
    index = torch.arange(half)
    fast, slow = index[turn > 0.03], index[turn < 3e-4]
    still = torch.cat([slow, slow + half])
    rotation = torch.linalg.qr(torch.randn(width, width))[0]
    own, previous = rotation[: len(still)], rotation[len(still) : 2 * len(still)]
    model.model.embed_tokens.weight.normal_(0.0, 0.1)
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    # A query that lags by one turn of each pair scores highest one position back; 6 gives about 0.93 of the attention.
    first.k_proj.bias[fast] = 6.0
    first.q_proj.bias[fast] = 6.0 * torch.cos(turn[fast])
    first.q_proj.bias[fast + half] = -6.0 * torch.sin(turn[fast])
    first.v_proj.weight[still] = own
    first.o_proj.weight[:, still] = 0.1 * previous.T
    second.q_proj.weight[still] = 2.3 * own
    second.k_proj.weight[still] = 2.3 * previous
    second.q_proj.weight[head + still] = 2.3 * previous
    second.k_proj.weight[head + still] = 2.3 * previous
    # `yes` follows the same token as the value that it looks for, and would find itself: one dimension says no to it.
    hit = model.model.embed_tokens.weight[task.TOKEN[task.HIT]]
    second.q_proj.weight[head + still[0]] = 0.0
    second.q_proj.bias[head + still[0]] = -8.0
    second.k_proj.weight[head + still[0]] = hit / hit.norm()
    copied = torch.linalg.qr(torch.randn(width, width))[0]
    second.v_proj.weight.copy_(copied)
    second.o_proj.weight.copy_(0.1 * copied.T)


def batch(rng: np.random.Generator, phase: WarmupPhase) -> dict[str, Tensor]:
    """Teacher's sequences of one update, int64 [rows, tokens]: `tokens`, `positions`, `kind`, `label`.

    `kind` and `label` speak of the token *after* each position. A sequence goes on after a value, where a response
    would end: a prompt then serves many lookups. Nothing is learnt from the choice of those tries.
    """
    rows, length = phase.rows, phase.tokens
    miss, hit, end = (task.TOKEN[word] for word in (task.MISS, task.HIT, task.EOS))
    tokens = np.zeros((rows, length), np.int64)
    positions = np.tile(np.arange(length, dtype=np.int64), (rows, 1))
    kind = np.full((rows, length), NOTHING, np.int64)
    label = np.zeros((rows, length), np.int64)
    for r in range(rows):
        keys = round(math.exp(rng.uniform(0.0, math.log(phase.keys))))
        symbols = rng.permutation(task.SYMBOLS)[:keys] + task.FIRST_SYMBOL
        values = rng.integers(0, task.VALUES, keys) + task.FIRST_VALUE
        value_of = np.full(len(task.WORDS), -1, np.int64)
        value_of[symbols] = values
        start = 2 * keys + 2
        tokens[r, 0] = task.TOKEN[task.START]
        tokens[r, 1 : start - 1 : 2] = symbols
        tokens[r, 2 : start - 1 : 2] = values
        tokens[r, start - 1] = task.TOKEN[task.ASK]
        kind[r, start - 1] = TRY
        tries = (length - start) // 2 + 1
        tried = rng.integers(0, task.SYMBOLS, tries) + task.FIRST_SYMBOL
        # Each key once: at its second hit the response itself would show the value, nearer than the prompt does, and
        # the model would learn to look there. A real response hits once.
        hits = min(keys, rng.binomial(tries, phase.hits))
        tried[rng.permutation(tries)[:hits]] = rng.permutation(symbols)[:hits]
        taught: list[tuple[int, int, int]] = []
        for symbol in tried.tolist():
            value = int(value_of[symbol])
            if value < 0:
                taught += (symbol, EXACT, miss), (miss, TRY, 0)
            else:
                taught += (symbol, EXACT, hit), (hit, VALUE, value), (value, EXACT, end)
        tokens[r, start:], kind[r, start:], label[r, start:] = np.array(taught[: length - start]).T
        room = TRAINED_POSITIONS - length
        if room > 0:
            # One jump between prompt and response, one within the response.
            jump = int(rng.integers(0, room)) if rng.random() < 0.7 else 0
            positions[r, start:] += jump
            within = int(rng.integers(start, length))
            positions[r, within:] += int(rng.integers(0, room - jump)) if rng.random() < 0.3 else 0
    names = ("tokens", "positions", "kind", "label")
    return {n: torch.from_numpy(a) for n, a in zip(names, (tokens, positions, kind, label), strict=True)}


def teacher_loss(logits: Tensor, kind: Tensor, label: Tensor) -> Tensor:
    """Cross-entropy against the teacher, a scalar: the mean over the positions for which the teacher has a label."""
    taught = kind != NOTHING
    log_p, kind, label = torch.log_softmax(logits[taught].float(), -1), kind[taught], label[taught]
    exact = log_p.gather(1, label[:, None])[:, 0]
    symbols = log_p[:, task.FIRST_SYMBOL : task.FIRST_SYMBOL + task.SYMBOLS].mean(1)
    values = log_p[:, task.FIRST_VALUE : task.FIRST_VALUE + task.VALUES]
    wrong = (values.sum(1) - exact) / (task.VALUES - 1)
    of_value = RIGHT * exact + (1 - RIGHT) * wrong
    return -torch.where(kind == TRY, symbols, torch.where(kind == VALUE, of_value, exact)).mean()


@torch.no_grad()
def answer_quality(model: Any, seed: int) -> dict[str, float]:
    """How well the model does what it was taught, on fresh sequences of the second phase's kind.

    Returns probabilities, each a mean: `yes_at_hits` (near 1), `yes_at_misses` (near 0), `right_values` (near RIGHT).
    """
    data = batch(np.random.default_rng([seed, 1]), WarmupPhase(steps=1, rows=64, tokens=96, keys=32, hits=0.5))
    mask = torch.ones_like(data["tokens"])
    output = model(input_ids=data["tokens"], position_ids=data["positions"], attention_mask=mask, use_cache=False)
    p, kind, label = output.logits.softmax(-1), data["kind"], data["label"]
    yes = p[..., task.TOKEN[task.HIT]]
    exact = kind == EXACT
    of_label = p.gather(2, label[..., None])[..., 0]
    return {
        "yes_at_hits": float(yes[exact & (label == task.TOKEN[task.HIT])].mean()),
        "yes_at_misses": float(yes[exact & (label == task.TOKEN[task.MISS])].mean()),
        "right_values": float(of_label[kind == VALUE].mean()),
    }


def make_tokenizer() -> Any:
    """A fast Hugging Face tokenizer: words between spaces, one token each, nothing added before or after."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel(dict(task.TOKEN), unk_token=task.UNKNOWN))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=task.PAD,
        eos_token=task.EOS,
        unk_token=task.UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    )


def warm_up(
    seed: int,
    threads: int,
    phases: tuple[WarmupPhase, ...] = PHASES,
    on_step: Callable[[int, int, float], None] | None = None,
) -> Any:
    """Train a new model and return it, in eval mode.

    Args:
        seed: of the weights and of the teacher's sequences. On one machine, seed and `threads` determine the bytes.
        threads: torch threads to use; the process's own number is put back afterwards.
        phases: shortened by tests.
        on_step: called after each update with (updates done, updates in all, loss).
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        # fork_rng: making an example must not reseed the caller.
        with torch.random.fork_rng(devices=[]):
            return _train(make_model(seed), np.random.default_rng(seed), phases, on_step)
    finally:
        torch.set_num_threads(before)


def _train(
    model: Any,
    rng: np.random.Generator,
    phases: tuple[WarmupPhase, ...],
    on_step: Callable[[int, int, float], None] | None,
) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = [phase for phase in phases for _ in range(phase.steps)]
    model.train()
    for step, phase in enumerate(schedule):
        cosine = 0.5 * (1.0 + math.cos(math.pi * step / len(schedule)))
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / RAMP_STEPS) * max(FLOOR, cosine)
        data = batch(rng, phase)
        # Without an attention mask transformers takes a jump in the positions for the start of another sequence.
        mask = torch.ones_like(data["tokens"])
        output = model(input_ids=data["tokens"], position_ids=data["positions"], attention_mask=mask, use_cache=False)
        loss = teacher_loss(output.logits, data["kind"], data["label"])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if on_step is not None:
            on_step(step + 1, len(schedule), float(loss.detach()))
    return model.eval()
