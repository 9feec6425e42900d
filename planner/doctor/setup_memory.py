"""Bytes of a trainer's set-up in any framework: per GPU and per host, by phase, before and after the first update.

`setup_uses` gives a use for each place and phase, in the order in which a run meets them. Step 1 is a run before its
first optimizer step has made Adam's moments, step 2 everything from then on: a set-up that decodes, scores and runs its
backward pass in step 1 may still not have room for the moments.

Activations are counted as in profiles/laws/rank_memory.py, those of Megatron by its own kernels. What is above it comes
from public reports:

- A GPU of 80 GB reports 79.1-79.6 GiB, one of 96 GB 94.99 GiB, one of 141 GB 139.8 GiB: `REPORTED` times its name.
- vLLM measures the largest step before it takes KV: for Llama-3-8B and 8,192 tokens that is 1.26 GiB of activations
  (vllm-project/vllm pull request 10511); `engine_step_bytes` gives 1.1 GiB of it.
- Both sides off a GPU leave 7.45 GiB of it taken (vllm-project/vime issue 56): a trainer's context and communicators,
  and those of an engine that sleeps, with its captured graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ...plans.facts.model_shape import named_model
from ...plans.facts.public_models import Architecture
from ...plans.facts.trainer_setup import TrainerSetup
from ...plans.phrases.numbers import bytes_text
from ...plans.yaml.errors import InputError
from ...profiles.hardware import GPUS, Gpu, gpu_of
from ...profiles.laws.rank_memory import RUNTIME_BYTES, held_by_layers, token_bytes
from .host_memory import host_uses
from .rank_states import Held, RankShare, SetupUse, rank_share, rank_states, state_bytes, trained_share

REPORTED = 1.063
"""Bytes that a GPU reports over the GB of its name times 1e9."""

TRAINER_CONTEXT_BYTES = RUNTIME_BYTES
"""Of a GPU: a trainer's CUDA context, communicators and workspaces."""

ASLEEP_BYTES = 5e9
"""Of a GPU: a sleeping engine's context, communicators and captured graphs; with a trainer's 7.5 of 8.0 GB."""

ENGINE_BESIDE_BYTES = {"vllm": 1.0e9, "sglang": 5.0e9, "transformers": 0.0}
"""Of a GPU that an awake engine takes beside its share: vLLM's communicators; SGLang's share is weights and KV alone,
and its captured graphs and activations come on top."""

ENGINE_OWN_BYTES = 0.5e9
"""Of vLLM's share that is no tensor of torch: kernels' workspaces, communicators (0.2 to 1.8 GiB in its logs)."""

BATCHED_TOKENS, DECODED_SEQUENCES = 8192, 256
"""Tokens and sequences of vLLM's largest step, where nothing is said."""

ENGINE_SHARES = {"vllm": 0.9, "sglang": 0.85, "transformers": 0.9}
"""Of a GPU that an engine takes where nothing is said."""

FRAGMENTS_SHARE = 0.05
"""What torch's allocator has reserved beside what comes and goes in a micro-batch; states that stay leave no holes.
Prime-rl with 30.5e9 parameters on 8 H100s reserves 80.1 GB, of which 76.3 GB are states and AdamW's step."""

LOGIT_BYTES = {"verl": 6.0, "skyrl": 8.0, "openrlhf": 14.0, "trl": 8.0}
"""Of a logit of a micro-batch in the loss, with its gradient, where the loss is not chunked and the backend is not
Megatron: bf16 logits, their gradient and a copy; OpenRLHF and, for float32 weights, TRL make float32 ones."""
MEGATRON_LOGIT_BYTES = 8.0
"""The same in slime and verl: float32 logits of all tokens and their gradient (THUDM/slime issue 1951: the forward pass
asks for tokens x vocabulary / tp x 4 B at once)."""

SAMPLE_LOGIT_BYTES = {"megatron": 8.0}
"""On top of it, of the one sample that is scored at a time: powers and their sum's gradient (slime)."""


def known_model(setup: TrainerSetup) -> Architecture:
    """The shape of a set-up's model. Raises InputError where it is not known."""
    if setup.shape is not None:
        return setup.shape
    named = named_model(setup.model)
    if named.architecture is None:
        raise InputError(f"model {setup.model}: {named.unsure or 'its shape is not known'}; name one with --model")
    return named.architecture


def known_gpu(setup: TrainerSetup) -> Gpu:
    """The data sheet of a set-up's GPU. Raises InputError where it is not known."""
    if setup.gpu is None:
        raise InputError(
            f"{setup.source or 'the set-up'} does not say which GPUs it runs on: none is named; add --gpus H100, or "
            "whichever they are"
        )
    if (gpu := gpu_of(setup.gpu)) is None:
        raise InputError(f"GPU {setup.gpu} has no data sheet here; known: {', '.join(GPUS)}")
    return gpu


def capacity_bytes(gpu: Gpu) -> float:
    """Bytes of a GPU as programs see them."""
    return REPORTED * gpu.memory_bytes


def setup_uses(setup: TrainerSetup, a: Architecture, gpu: Gpu) -> tuple[SetupUse, ...]:
    """The uses of a set-up, in the order in which a run meets them: init, then rollout and train of steps 1 and 2."""
    return tuple(_uses(setup, a, gpu))


def first_overflow(uses: tuple[SetupUse, ...]) -> SetupUse | None:
    """The first use that does not fit; None if all fit."""
    return next((use for use in uses if not use.fits), None)


def _uses(setup: TrainerSetup, a: Architecture, gpu: Gpu) -> Iterator[SetupUse]:
    room, share = capacity_bytes(gpu), rank_share(setup, a)
    if setup.host_bytes is not None:
        yield from host_uses(setup, a, share, "init", 1)
    for step in (1, 2):
        resident = _resident(setup, a, share, step)
        yield from _rollout_uses(setup, a, resident, room, step)
        if setup.host_bytes is not None:
            yield from host_uses(setup, a, share, "rollout", step)
        yield _train_use(setup, a, share, room, step)
        if setup.host_bytes is not None:
            yield from host_uses(setup, a, share, "train", step)


# -- the trainer on its GPU --------------------------------------------------------------------------------------------


def _resident(setup: TrainerSetup, a: Architecture, share: RankShare, step: int) -> dict[str, Held]:
    """What of a rank stays on its GPU while engines decode."""
    states = rank_states(setup, a, share, step)
    kept = {"trainer context": Held(TRAINER_CONTEXT_BYTES, "CUDA context, communicators")}
    for name, held in states.items():
        where = setup.optimizer_at if "optimizer" in name else setup.weights_at
        if name == "reference" or where != "device":
            continue
        if "gradient" in name and setup.backend != "megatron":
            continue  # gradients are given back after the update; Megatron's buffers stay
        kept[name] = held
    if "reference" in states:
        kept["reference"] = states["reference"]
    return kept


def mean_prompt_tokens(setup: TrainerSetup) -> float:
    """Mean tokens of a prompt; where not known, a quarter of the cap."""
    return setup.mean_prompt_tokens or max(1.0, setup.max_prompt_tokens / 4)


def mean_sample_tokens(setup: TrainerSetup) -> float:
    """Mean tokens of a prompt and its response; where that is not known, a third of the cap."""
    return mean_prompt_tokens(setup) + (setup.mean_response_tokens or setup.max_response_tokens / 3)


def micro_batch_tokens(setup: TrainerSetup) -> int:
    """Tokens of a rank's fullest micro-batch, before context and sequence parallelism: the budget, or so many samples
    (of mean length where they are packed), and at least one of full length."""
    longest = setup.max_prompt_tokens + setup.max_response_tokens
    mean = mean_sample_tokens(setup)
    if setup.micro_batch_tokens is not None:
        tokens = setup.micro_batch_tokens * setup.cp * setup.sp
        if setup.mini_batch_samples is not None:
            tokens = min(tokens, round(setup.mini_batch_samples / setup.dp * mean))
        return max(tokens, longest)
    samples = setup.micro_batch_samples or 1
    if setup.pads:  # to the longest of each
        return samples * (setup.max_response_tokens + round(setup.mean_prompt_tokens or setup.max_prompt_tokens))
    return max(longest, round(samples * mean))


def _train_use(setup: TrainerSetup, a: Architecture, share: RankShare, room: float, step: int) -> SetupUse:
    """The fullest moment of an update: its loss, its backward pass or its optimizer step."""
    states = rank_states(setup, a, share, step)
    if setup.optimizer_at == "host":
        states = {name: held for name, held in states.items() if "optimizer" not in name}
    kept = {"trainer context": Held(TRAINER_CONTEXT_BYTES, "CUDA context, communicators"), **states}
    if setup.colocated:
        engine = _engine_beside(setup, room)
        kept |= engine
    moments = [_loss(setup, a, share), _backward(setup, a, share)]
    if step > 1:
        moments.append(_stepping(setup, a, share))
    moment = max(moments, key=lambda held: sum(each.bytes for each in held.values()))
    fragments = FRAGMENTS_SHARE * sum(held.bytes for held in moment.values())
    kept |= moment
    kept["allocator fragments"] = Held(fragments, f"{FRAGMENTS_SHARE:.0%} of what comes and goes")
    return SetupUse("train", "device", step, "both" if setup.colocated else "trainers", kept, room)


def _loss(setup: TrainerSetup, a: Architecture, share: RankShare) -> dict[str, Held]:
    """While the loss is computed: what layers keep, and logits with their gradient."""
    tokens, after, _ = _activations(setup, a)
    held = {"activations": Held(tokens * after, _activations_text(setup, a, tokens, after))}
    if not setup.chunked_logits:
        held["logits"] = _logits(setup, a, tokens)
    return held | _gathered(setup, a, share, backward=False)


def _backward(setup: TrainerSetup, a: Architecture, share: RankShare) -> dict[str, Held]:
    """While layers are computed again and their gradients are made."""
    tokens, _, peak = _activations(setup, a)
    held = {"activations": Held(tokens * peak, _activations_text(setup, a, tokens, peak))}
    return held | _gathered(setup, a, share, backward=True)


def _activations(setup: TrainerSetup, a: Architecture) -> tuple[float, float, float]:
    """(tokens on a rank, bytes of a token after the forward pass, at the worst moment of the backward pass)."""
    tokens = micro_batch_tokens(setup) / (setup.cp * setup.sp)
    if setup.backend == "megatron":
        layer, layer_input = _megatron_layer_bytes(a) / setup.tp, 2.0 * a.hidden / setup.tp
        modules = setup.recompute_modules if setup.recompute == "selective" else ()
        kept = _megatron_layer_bytes(a, modules) / setup.tp
        if setup.recompute == "full":
            return tokens, a.layers * layer_input, a.layers * layer_input + 2 * layer
        return tokens, a.layers * kept, a.layers * kept + layer
    token = token_bytes(a, setup.tp, 2)
    output = 2.0 * a.head_dim * a.heads / setup.tp
    return tokens, *held_by_layers(token, a.layers, setup.recompute, output)


def _megatron_layer_bytes(a: Architecture, modules: tuple[str, ...] = ()) -> float:
    """Bytes of a token that a layer of Megatron keeps for its backward pass, before tensor parallel ranks share it out:
    with sequence parallelism they share all of it (Korthikanti et al., arXiv 2205.05198, 4.2).

    In bf16: inputs and outputs of two norms; queries, keys, values and the output of attention; gate, up and their
    product; of experts, the token's copies to those that it visits (what comes back needs no copy: probabilities are
    multiplied in with the activation, megatron/core/transformer/moe/experts.py). Less what `modules` compute again.
    """
    heads = a.head_dim * (2 * a.heads + 2 * a.kv_heads) if not a.latent_kv else 4 * a.head_dim * a.heads
    width = a.active_experts * a.expert_intermediate + a.shared_intermediate if a.experts else a.intermediate
    inner, copies = 6.0 * width, 2.0 * a.active_experts * a.hidden
    if "moe" in modules if a.experts else "mlp" in modules:
        inner = copies = 0.0
    elif a.experts and "moe_act" in modules:
        inner = 4.0 * width
    norms = (4.0 if "layernorm" in modules else 8.0) * a.hidden
    return norms + 2.0 * heads + inner + copies


def _activations_text(setup: TrainerSetup, a: Architecture, tokens: float, each: float) -> str:
    return f"{tokens:,.0f} tokens x {each / 1e3:.0f} kB ({a.layers} layers, recompute {setup.recompute})"


def _logits(setup: TrainerSetup, a: Architecture, tokens: float) -> Held:
    per = MEGATRON_LOGIT_BYTES if setup.backend == "megatron" else LOGIT_BYTES.get(setup.framework, 8.0)
    scored = tokens
    if setup.framework == "trl":
        per *= 2 if state_bytes(setup)[0] == 4.0 else 1
        # Logits of responses alone are computed.
        scored = min(tokens, setup.max_response_tokens * (setup.micro_batch_samples or 1))
    logits = scored * a.vocab / setup.tp * per
    text = f"{scored:,.0f} tokens x {a.vocab:,}{f' / tp {setup.tp}' if setup.tp > 1 else ''} x {per:g} B"
    if more := SAMPLE_LOGIT_BYTES.get(setup.backend):
        longest = min(tokens, (setup.max_prompt_tokens + setup.max_response_tokens) / setup.cp)
        logits += longest * a.vocab / setup.tp * more
        text += f" + {longest:,.0f} of one sample x {more:g} B"
    return Held(logits, text)


def _gathered(setup: TrainerSetup, a: Architecture, share: RankShare, backward: bool) -> dict[str, Held]:
    """Weights that are gathered or cast for a micro-batch, and gradients that are not sharded yet."""
    weight, gradient, _ = state_bytes(setup)
    held: dict[str, Held] = {}
    layer = (a.parameters - (1 if a.tied else 2) * a.vocab * a.hidden) / a.layers / setup.tp
    if setup.backend in ("fsdp", "deepspeed") and setup.zero >= 3 and share.dense_shards > 1:
        root = a.vocab * a.hidden * (1 if a.tied else 2) / setup.tp
        text = f"({root / 1e9:.2f}e9 of the vocabulary + 2 layers of {layer / 1e9:.2f}e9) x 2 B"
        held["gathered weights"] = Held(2.0 * (root + 2 * layer), text)
        if backward and not setup.lora_rank:
            held["unsharded gradients"] = Held(gradient * layer, f"a layer's {layer / 1e9:.2f}e9 x {gradient:g} B")
    if setup.backend == "ddp" and weight == 4.0:
        held["bf16 copies of weights"] = Held(2.0 * share.parameters, f"{share.text} x 2 B (autocast)")
    return held


def _stepping(setup: TrainerSetup, a: Architecture, share: RankShare) -> dict[str, Held]:
    """While torch's AdamW steps, the root of the second moments is there as well (foreach)."""
    weight, _, _ = state_bytes(setup)
    trained = trained_share(setup, a, share)
    if setup.backend in ("fsdp", "ddp") and setup.optimizer_at != "host":
        own = trained.sharded if setup.backend == "fsdp" else trained.parameters
        return {"optimizer step": Held(weight * own, f"{own / 1e9:.2f}e9 x {weight:g} B")}
    return {}


# -- engines on their GPU ----------------------------------------------------------------------------------------------


def memory_share(setup: TrainerSetup) -> float:
    """Of a GPU that an engine takes."""
    return ENGINE_SHARES[setup.engine] if setup.memory_share is None else setup.memory_share


def engine_weight_bytes(setup: TrainerSetup, a: Architecture) -> float:
    """Bytes of an engine's weights on each of its GPUs, in bf16."""
    ranks = setup.rollout_tp * (setup.rollout_dp if setup.rollout_ep > 1 else 1)
    dense = a.parameters - a.expert_parameters
    return 2.0 * dense / setup.rollout_tp + 2.0 * a.expert_parameters / max(
        setup.rollout_tp, min(ranks, setup.rollout_ep)
    )


def engine_step_bytes(setup: TrainerSetup, a: Architecture) -> float:
    """Bytes that vLLM keeps free for its largest step: a layer's activations (residual, norm, gate, up and their
    product, bf16) of all its tokens, then float32 logits, and a copy to sample from, of all its sequences."""
    if setup.engine != "vllm":
        return 0.0
    width = a.active_experts * a.expert_intermediate + a.shared_intermediate if a.experts else a.intermediate
    layer = 6.0 * a.hidden + 6.0 * width / setup.rollout_tp
    tokens, sequences = setup.max_batched_tokens or BATCHED_TOKENS, setup.max_num_seqs or DECODED_SEQUENCES
    return ENGINE_OWN_BYTES + tokens * layer + 8.0 * a.vocab * sequences


def _engine_beside(setup: TrainerSetup, room: float) -> dict[str, Held]:
    """What an engine holds on a GPU on which a trainer trains."""
    if setup.engine == "transformers":
        return {}
    if setup.engine_sleeps:
        return {"engine asleep": Held(ASLEEP_BYTES, "context, communicators, captured graphs")}
    share = memory_share(setup)
    return {
        "engine awake": Held(
            share * room + ENGINE_BESIDE_BYTES[setup.engine], f"{share:g} of {bytes_text(room)}; it never sleeps"
        )
    }


def _rollout_uses(
    setup: TrainerSetup, a: Architecture, resident: dict[str, Held], room: float, step: int
) -> Iterator[SetupUse]:
    beside = resident if setup.colocated else {}
    side: Literal["both", "engines"] = "both" if setup.colocated else "engines"
    if setup.engine == "transformers":
        tokens = (setup.max_prompt_tokens + setup.max_response_tokens) * (setup.micro_batch_samples or 1)
        kv = Held(2.0 * a.kv_values_per_token * tokens, f"{tokens:,} tokens x {2 * a.kv_values_per_token / 1e3:.0f} kB")
        yield SetupUse("rollout", "device", step, side, {**beside, "kv cache": kv}, room)
        return
    share, ranks = memory_share(setup), setup.rollout_tp
    weights = engine_weight_bytes(setup, a)
    kv_ranks = min(ranks, 1 if a.latent_kv else a.kv_heads)
    one = 2.0 * a.kv_values_per_token * (setup.max_prompt_tokens + setup.max_response_tokens) / kv_ranks
    largest = engine_step_bytes(setup, a)
    least = weights + one + largest
    planned = share * room
    if least > planned:
        yield SetupUse(
            "init", "device", step, side,
            {
                "engine weights": Held(weights, f"{a.parameters / 1e9:.2f}e9 x 2 B over {ranks} ranks"),
                "kv cache of one sample": Held(
                    one,
                    f"{setup.max_prompt_tokens + setup.max_response_tokens:,} tokens x "
                    f"{2 * a.kv_values_per_token / kv_ranks / 1e3:.0f} kB",
                ),
                "engine's largest step": Held(
                    largest,
                    f"activations of {setup.max_batched_tokens or BATCHED_TOKENS:,} tokens, logits of "
                    f"{setup.max_num_seqs or DECODED_SEQUENCES:,}, and {bytes_text(ENGINE_OWN_BYTES)}",
                ),
            },
            planned,
        )  # fmt: skip
    more = ENGINE_BESIDE_BYTES[setup.engine]
    engine = {
        "engine": Held(planned + more, f"{share:g} of {bytes_text(room)}{f' + {bytes_text(more)}' if more else ''}")
    }
    yield SetupUse("rollout", "device", step, side, {**beside, **engine}, room)
