"""Bytes of a trainer's set-up in any framework: per GPU and per host, by phase, before and after the first update.

`setup_uses` gives a use for each place and phase, in the order in which a run meets them. Step 1 is a run before its
first optimizer step has made Adam's moments, step 2 everything from then on: a set-up that decodes, scores and runs its
backward pass in step 1 may still not have room for the moments.

What each backend keeps of a parameter (bytes; `shards`: data-parallel ranks that share it out)

    megatron   weights 2, float32 gradients 4, on all replicas; float32 master 4 and moments 8 over `shards`
               (Megatron-LM, docs of the distributed optimizer: 6 + 12 / d)
    fsdp       float32 weights 4, gradients 4, moments 8 over `shards`; layers and the root's matrices are gathered in bf16
    deepspeed  bf16 weights 2 (ZeRO 3: over shards), gradients 2 (ZeRO 2 and 3: over shards), master and moments 12 over
               shards from ZeRO 1 on (Rajbhandari et al., arXiv 1910.02054, figure 1)
    ddp        weights, gradients and the buckets in which they are summed, in the dtype that the model is loaded in;
               moments in it twice; nothing is shared out

Activations are counted as in profiles/laws/rank_memory.py. What is above it comes from public reports:

- A GPU of 80 GB reports 79.1-79.6 GiB, one of 96 GB 94.99 GiB, one of 141 GB 139.8 GiB: `REPORTED` times its name.
- Both sides off a GPU leave 7.45 GiB of it taken (vllm-project/vime issue 56): a trainer's context and communicators,
  and those of an engine that sleeps, with its captured graphs.
- Megatron's optimizer on the host keeps float32 weights and gradients in page-locked blocks, whose sizes torch rounds
  up to powers of two, and moments beside them; slime keeps a page-locked copy of the actor's and of the reference's
  weights. For Qwen3-30B-A3B that is 96 GB of a rank of 8 and 193 GB of a rank of 4, and processes had 102 GB
  (THUDM/slime issue 1851) and 196 GB (vime issue 56): `TRAINER_PROCESS_BYTES` is the difference.
- Beside trainers these nodes held 184 and 200 GB: `ENGINE_PROCESS_BYTES` for each GPU of an engine and
  `NODE_SHARE` of its memory for all else, with the 61 GB of weights that vLLM keeps at sleep level 1.
- Ray kills a process once a node's memory is 95 % full (RAY_memory_usage_threshold).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ...plans.facts.public_models import Architecture
from ...plans.facts.trainer_setup import TrainerSetup
from ...plans.phrases.numbers import bytes_text
from ...profiles.hardware import Gpu
from ...profiles.laws.rank_memory import RUNTIME_BYTES, held_by_layers, token_bytes

Phase = Literal["init", "rollout", "train"]
Place = Literal["device", "host"]

REPORTED = 1.063
"""Bytes that a GPU reports over the GB of its name times 1e9."""

TRAINER_CONTEXT_BYTES = RUNTIME_BYTES
"""Of a GPU: a trainer's CUDA context, communicators and workspaces."""

ASLEEP_BYTES = 5e9
"""Of a GPU: a sleeping engine's context, communicators and captured graphs; with a trainer's, 7.5 of the 8.0 GB above."""

ENGINE_BESIDE_BYTES = {"vllm": 1.0e9, "sglang": 5.0e9, "transformers": 0.0}
"""Of a GPU that an awake engine takes beside its share: vLLM's communicators; SGLang's share is weights and KV alone,
and its captured graphs and activations come on top."""

ENGINE_SHARES = {"vllm": 0.9, "sglang": 0.85, "transformers": 0.0}
"""Of a GPU that an engine takes where nothing is said."""

FRAGMENTS_SHARE = 0.05
"""What torch's allocator has reserved beside what comes and goes in a micro-batch; states that stay have no holes. Public
runs of prime-rl (30.5e9 parameters on 8 H100s: 80.1 GB reserved, of which 76.3 GB are states and AdamW's step)."""

TRAINER_PROCESS_BYTES = {"megatron": 16e9, "fsdp": 6e9, "deepspeed": 6e9, "ddp": 6e9}
ENGINE_PROCESS_BYTES = 15e9
NODE_SHARE = 0.07
RAY_SHARE = 0.95
ROUNDED = 1 / math.log(2)
"""Mean of a size rounded up to a power of two, over the size, if the logarithms of sizes are spread evenly."""

DEEPSPEED_HOST_BYTES = 24.0
"""Of a parameter whose states DeepSpeed keeps on the host: 16, times the 1.5 of its own estimator
(deepspeed/runtime/zero/stage_1_and_2.py, estimate_zero2_model_states_mem_needs)."""

LOGIT_BYTES = {"verl": 6.0, "skyrl": 8.0, "openrlhf": 14.0, "trl": 8.0}
"""Of a logit of a micro-batch in the loss, with its gradient, where the loss is not chunked and the backend not Megatron:
bf16 logits, their gradient and a copy (temperature, entropy); OpenRLHF and, for float32 weights, TRL make float32 ones."""
MEGATRON_LOGIT_BYTES = 8.0
"""The same in slime and verl: float32 logits of all tokens and their gradient (THUDM/slime issue 1951: the forward pass
asks for tokens x vocabulary / tp x 4 B at once)."""

SAMPLE_LOGIT_BYTES = {"megatron": 8.0}
"""On top of it, of the one sample that is scored at a time: powers and their sum's gradient (slime)."""


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that one thing holds, and the sum that they come from."""

    bytes: float
    sum: str


@dataclass(frozen=True, slots=True)
class SetupUse:
    """What one GPU, or a node's host, holds at the fullest moment of a phase; `side`: of whom, where pools are apart."""

    phase: Phase
    where: Place
    step: int
    side: Literal["both", "engines", "trainers"]
    holds: dict[str, Held]
    capacity_bytes: float

    @property
    def needed_bytes(self) -> float:
        """Bytes in all."""
        return sum(held.bytes for held in self.holds.values())

    @property
    def fits(self) -> bool:
        """Whether there are so many."""
        return self.needed_bytes <= self.capacity_bytes

    @property
    def arithmetic(self) -> list[str]:
        """A line for each holder, largest first: `optimizer 72.1 GB = …`."""
        rows = sorted(self.holds.items(), key=lambda row: -row[1].bytes)
        return [f"{name} {bytes_text(held.bytes)} = {held.sum}" for name, held in rows if held.bytes > 0]


@dataclass(frozen=True, slots=True)
class RankShare:
    """Parameters of a model on one trainer rank before data-parallel sharding, and the ranks that share each part out."""

    dense: float
    experts: float
    dense_shards: int
    expert_shards: int
    text: str

    @property
    def parameters(self) -> float:
        """All of them."""
        return self.dense + self.experts

    @property
    def sharded(self) -> float:
        """Those that are a rank's own once states are shared out."""
        return self.dense / self.dense_shards + self.experts / self.expert_shards


def capacity_bytes(gpu: Gpu) -> float:
    """Bytes of a GPU as programs see them."""
    return REPORTED * gpu.memory_bytes


def rank_share(setup: TrainerSetup, a: Architecture) -> RankShare:
    """How a trainer's ranks share the model out.

    Megatron divides layers by tp and pp, experts by ep (and etp), the vocabulary by tp; the fullest stage has one of
    embedding and output matrix. The others have all of it on each replica, or shard it.
    """
    vocabulary = float(a.vocab * a.hidden)
    if setup.backend != "megatron":
        shards = setup.shard_ranks or max(1, setup.train_gpus // (setup.tp * setup.pp))
        return RankShare(a.parameters / setup.tp, 0.0, shards, shards, f"{a.parameters / 1e9:.2f}e9")
    layers = a.common_parameters - vocabulary
    ends = vocabulary * (1 if a.tied or setup.pp > 1 else 2)
    dense = (layers / setup.pp + ends) / setup.tp
    spread = setup.pp * setup.ep * setup.etp
    experts = a.expert_parameters / spread
    text = f"{dense / 1e9:.2f}e9"
    if experts:
        text = f"({text} + {experts / 1e9:.2f}e9 of experts)"
    return RankShare(
        dense,
        experts,
        max(1, setup.train_gpus // (setup.tp * setup.pp)),
        max(1, setup.train_gpus // spread),
        text,
    )


def rounded_up(setup: TrainerSetup, a: Architecture, value_bytes: float) -> float:
    """Bytes of page-locked copies of a rank's matrices over what they have: each is rounded up to a power of two."""
    tp = max(1, setup.tp if setup.backend == "megatron" else 1)
    heads = (a.heads + 2 * a.kv_heads) * a.head_dim
    matrices = [(a.layers, heads * a.hidden / tp), (a.layers, a.heads * a.head_dim * a.hidden / tp)]
    if a.intermediate:
        dense = a.layers if not a.experts else a.dense_layers
        matrices += [(dense, 2 * a.intermediate * a.hidden / tp), (dense, a.intermediate * a.hidden / tp)]
    if a.experts:
        width = a.expert_intermediate * a.hidden / setup.etp
        count = (a.layers - a.dense_layers) * a.experts / setup.ep
        matrices += [(count, 2 * width), (count, width)]
    matrices.append((1 if a.tied else 2, a.vocab * a.hidden / tp))
    held = sum(count * size for count, size in matrices)
    taken = sum(count * 2 ** math.ceil(math.log2(size * value_bytes)) / value_bytes for count, size in matrices if size)
    return taken / held


def setup_uses(setup: TrainerSetup, a: Architecture, gpu: Gpu) -> tuple[SetupUse, ...]:
    """The uses of a set-up, in the order in which a run meets them: init, then rollout and train of steps 1 and 2."""
    return tuple(_uses(setup, a, gpu))


def first_overflow(uses: tuple[SetupUse, ...]) -> SetupUse | None:
    """The first use that does not fit; None if all fit."""
    return next((use for use in uses if not use.fits), None)


def _uses(setup: TrainerSetup, a: Architecture, gpu: Gpu) -> Iterator[SetupUse]:
    room, share = capacity_bytes(gpu), rank_share(setup, a)
    if setup.host_bytes is not None:
        yield from _host_uses(setup, a, share, "init", 1)
    for step in (1, 2):
        resident = _resident(setup, a, share, step)
        yield from _rollout_uses(setup, a, resident, room, step)
        if setup.host_bytes is not None:
            yield from _host_uses(setup, a, share, "rollout", step)
        yield _train_use(setup, a, share, room, step)
        if setup.host_bytes is not None:
            yield from _host_uses(setup, a, share, "train", step)


# -- the trainer on its GPU --------------------------------------------------------------------------------------------


def state_bytes(setup: TrainerSetup) -> tuple[float, float, float]:
    """Bytes of a trained parameter: (weight, gradient, optimizer), as the backend keeps them."""
    weight = setup.weight_bytes or {"megatron": 2.0, "fsdp": 4.0, "deepspeed": 2.0, "ddp": 4.0}[setup.backend]
    gradient = setup.gradient_bytes or {"megatron": 4.0, "deepspeed": 2.0}.get(setup.backend, weight)
    default = {"megatron": 12.0, "deepspeed": 12.0}.get(setup.backend, 2 * weight)
    return weight, gradient, setup.optimizer_bytes or default


def _trained(setup: TrainerSetup, a: Architecture, share: RankShare) -> RankShare:
    """The parameters that have gradients and moments: all, or those of low-rank adapters."""
    if not setup.lora_rank:
        return share
    inner = (a.heads + 2 * a.kv_heads) * a.head_dim + a.hidden + a.heads * a.head_dim + a.hidden
    width = a.intermediate or a.active_experts * a.expert_intermediate
    per_layer = setup.lora_rank * (inner + 3 * (a.hidden + width))
    adapters = float(per_layer * a.layers) / (setup.tp * setup.pp)
    return replace(share, dense=adapters, experts=0.0, text=f"{adapters / 1e9:.3f}e9 of adapters")


def _states(setup: TrainerSetup, a: Architecture, share: RankShare, step: int) -> dict[str, Held]:
    """Weights, gradients and optimizer of a rank, all on the device."""
    weight, gradient, optimizer = state_bytes(setup)
    trained = _trained(setup, a, share)
    master = optimizer - 8.0 if setup.backend in ("megatron", "deepspeed") else 0.0
    all_shared, grads_shared = setup.zero >= 3, setup.zero >= 2
    if setup.backend == "megatron":
        all_shared = grads_shared = False
    shards = f" / {share.dense_shards} ranks"
    weights = share.sharded if all_shared else share.parameters
    grads = trained.sharded if grads_shared else trained.parameters
    steps = trained.sharded if setup.backend != "ddp" and setup.zero >= 1 else trained.parameters
    # DeepSpeed makes its moments at the start, torch and Megatron in the first optimizer step.
    per = optimizer if step > 1 or setup.backend == "deepspeed" else master
    what = "master and moments" if master else "moments"
    own = {
        "weights": Held(weight * weights, f"{share.text} parameters{shards if all_shared else ''} x {weight:g} B"),
        "gradients": Held(gradient * grads, f"{trained.text}{shards if grads_shared else ''} x {gradient:g} B"),
        "optimizer": Held(
            per * steps,
            f"{trained.text}{shards if steps != trained.parameters else ''} x {per:g} B ({what if per > master else 'master'})",
        ),
    }
    if setup.backend == "ddp" and setup.train_gpus > 1:
        own["gradient buckets"] = Held(gradient * grads, f"{trained.text} x {gradient:g} B (DDP sums gradients in copies)")
    if setup.backend == "deepspeed" and setup.zero == 2:
        own["gradient buckets"] = Held(2e9, "5e8 elements x 2 B, reduced and received")
    if setup.critic:
        for name in ("weights", "gradients", "optimizer"):
            own[f"critic {name}"] = Held(own[name].bytes, f"a value model of the same size: {own[name].sum}")
    if setup.reference and setup.reference_at == "device":
        frozen = 2.0 if setup.backend != "fsdp" else weight
        held = frozen * (share.sharded if all_shared else share.parameters)
        own["reference"] = Held(held, f"{share.text} parameters{shards if all_shared else ''} x {frozen:g} B")
    return own


def _resident(setup: TrainerSetup, a: Architecture, share: RankShare, step: int) -> dict[str, Held]:
    """What of a rank stays on its GPU while engines decode."""
    states = _states(setup, a, share, step)
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


def micro_batch_tokens(setup: TrainerSetup) -> int:
    """Tokens of a rank's fullest micro-batch, before context and sequence parallelism: the budget, or so many samples (of
    mean length where they are packed; half of the caps if it is not known), and at least one sample of full length."""
    longest = setup.max_prompt_tokens + setup.max_response_tokens
    mean = (setup.mean_prompt_tokens or setup.max_prompt_tokens / 2) + (
        setup.mean_response_tokens or setup.max_response_tokens / 2
    )
    if setup.micro_batch_tokens is not None:
        tokens = setup.micro_batch_tokens * setup.cp * setup.sp
        if setup.mini_batch_samples is not None and setup.mean_response_tokens is not None:
            tokens = min(tokens, round(setup.mini_batch_samples / setup.dp * mean))
        return max(tokens, longest)
    samples = setup.micro_batch_samples or 1
    if not setup.packed:  # to the longest of each
        return samples * (setup.max_response_tokens + round(setup.mean_prompt_tokens or setup.max_prompt_tokens))
    return max(longest, round(samples * mean))


def _train_use(setup: TrainerSetup, a: Architecture, share: RankShare, room: float, step: int) -> SetupUse:
    """The fullest moment of an update: its loss, its backward pass or its optimizer step."""
    states = _states(setup, a, share, step)
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
    token = token_bytes(a, setup.tp, 2)
    output = 2.0 * a.head_dim * a.heads / setup.tp
    after, peak = held_by_layers(token, a.layers, setup.recompute, output)
    if setup.backend == "megatron" and setup.tp > 1:  # its sequence parallelism divides inputs and norms too
        if setup.recompute == "full":
            inputs = token.layer_input * a.layers
            return tokens, after - inputs + inputs / setup.tp, peak - inputs + inputs / setup.tp
        norms = a.layers * token.norms * (1 - 1 / setup.tp)
        return tokens, after - norms, peak - norms
    return tokens, after, peak


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
    trained = _trained(setup, a, share)
    if setup.backend in ("fsdp", "ddp") and setup.optimizer_at != "host":
        own = trained.sharded if setup.backend == "fsdp" else trained.parameters
        return {"optimizer step": Held(weight * own, f"{own / 1e9:.2f}e9 x {weight:g} B")}
    return {}


# -- engines on their GPU ----------------------------------------------------------------------------------------------


def memory_share(setup: TrainerSetup) -> float:
    """Of a GPU that an engine takes."""
    return ENGINE_SHARES[setup.engine] if setup.memory_share is None else setup.memory_share


def _engine_beside(setup: TrainerSetup, room: float) -> dict[str, Held]:
    """What an engine holds on a GPU on which a trainer trains."""
    if setup.engine == "transformers":
        return {}
    if setup.engine_sleeps:
        return {"engine asleep": Held(ASLEEP_BYTES, "context, communicators, captured graphs")}
    share = memory_share(setup)
    return {"engine awake": Held(share * room + ENGINE_BESIDE_BYTES[setup.engine], f"{share:g} of {bytes_text(room)}; it never sleeps")}


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
    weights = 2.0 * (a.parameters - a.expert_parameters) / ranks + 2.0 * a.expert_parameters / max(ranks, setup.rollout_ep)
    kv_ranks = min(ranks, 1 if a.latent_kv else a.kv_heads)
    one = 2.0 * a.kv_values_per_token * (setup.max_prompt_tokens + setup.max_response_tokens) / kv_ranks
    least = weights + one + (2e9 if setup.engine == "vllm" else 0.0)
    planned = share * room
    if least > planned:
        yield SetupUse(
            "init", "device", step, side,
            {
                "engine weights": Held(weights, f"{a.parameters / 1e9:.2f}e9 x 2 B over {ranks} ranks"),
                "kv cache of one sample": Held(one, f"{one / 1e9:.2f} GB"),
                "engine activations": Held(least - weights - one, "graphs and activations"),
            },
            planned,
        )  # fmt: skip
    more = ENGINE_BESIDE_BYTES[setup.engine]
    engine = {"engine": Held(planned + more, f"{share:g} of {bytes_text(room)}{f' + {bytes_text(more)}' if more else ''}")}
    yield SetupUse("rollout", "device", step, side, {**beside, **engine}, room)


# -- a node's host -----------------------------------------------------------------------------------------------------


def _host_uses(setup: TrainerSetup, a: Architecture, share: RankShare, phase: Phase, step: int) -> Iterator[SetupUse]:
    assert setup.host_bytes is not None
    train_ranks = min(setup.train_gpus, setup.gpus_per_node)
    engine_ranks = min(setup.rollout_gpus, setup.gpus_per_node) if setup.engine != "transformers" else 0
    ray = setup.framework not in ("trl",)
    capacity = setup.host_bytes * (RAY_SHARE if ray else 1.0)
    # Pools that are apart share a node if both fit on one.
    together = setup.colocated or setup.nodes == 1
    trainers = _trainers_on_host(setup, a, share, phase, step, train_ranks)
    # OpenRLHF starts its engines before it loads the trainers' models, the others after.
    engines = {} if phase == "init" and setup.framework != "openrlhf" else _engines_on_host(setup, a, engine_ranks)
    node = {"the node's own": Held(NODE_SHARE * setup.host_bytes, f"{NODE_SHARE:.0%}: system, Ray's objects, driver, rollouts")}
    if together:
        yield SetupUse(phase, "host", step, "both", {**trainers, **engines, **node}, capacity)
    else:
        yield SetupUse(phase, "host", step, "trainers", {**trainers, **node}, capacity)
        if step == 1:
            yield SetupUse(phase, "host", step, "engines", {**engines, **node}, capacity)


def _engines_on_host(setup: TrainerSetup, a: Architecture, ranks: int) -> dict[str, Held]:
    if not ranks:
        return {}
    held = {"engine processes": Held(ranks * ENGINE_PROCESS_BYTES, f"{ranks} x {bytes_text(ENGINE_PROCESS_BYTES)}")}
    if setup.engine_keeps_weights_on_host and setup.engine_sleeps:
        copies, factor = ranks / setup.rollout_tp, rounded_up(setup, a, 2.0)
        size = 2.0 * a.parameters * factor
        text = f"{copies:g} engines x {a.parameters / 1e9:.2f}e9 x 2 B x {factor:.2f} (page-locked blocks are powers of two)"
        held["weights of sleeping engines"] = Held(copies * size, text)
    return held


def _trainers_on_host(
    setup: TrainerSetup, a: Architecture, share: RankShare, phase: Phase, step: int, ranks: int
) -> dict[str, Held]:
    process = TRAINER_PROCESS_BYTES[setup.backend]
    held = {"trainer processes": Held(ranks * process, f"{ranks} x {bytes_text(process)}")}
    weight, gradient, optimizer = state_bytes(setup)
    trained = _trained(setup, a, share)
    if phase == "init":
        if setup.backend in ("ddp", "deepspeed") and setup.zero < 3:
            text = f"{ranks} x {a.parameters / 1e9:.2f}e9 x {weight:g} B (each rank loads the model)"
            held["models being loaded"] = Held(ranks * a.parameters * weight, text)
        return held
    if setup.backend == "megatron":
        factor = rounded_up(setup, a, 2.0)
        copies = 1 + setup.reference
        if setup.colocated or setup.optimizer_at == "host":
            held["copies of weights"] = Held(
                ranks * copies * 2.0 * factor * share.parameters,
                f"{ranks} x {copies} x {share.text} x 2 B x {factor:.2f} (page-locked blocks are powers of two)",
            )
        if setup.optimizer_at == "host":
            wide = rounded_up(setup, a, 4.0)
            masters = 4.0 * wide
            held["optimizer's weights"] = Held(ranks * masters * trained.sharded, f"{ranks} x {trained.sharded / 1e9:.2f}e9 x 4 B x {wide:.2f}")
            if step > 1:
                held["moments"] = Held(ranks * 8.0 * trained.sharded, f"{ranks} x {trained.sharded / 1e9:.2f}e9 x 8 B")
                if phase == "train":
                    held["gradients"] = Held(ranks * masters * trained.sharded, f"{ranks} x {trained.sharded / 1e9:.2f}e9 x 4 B x {wide:.2f}")
        elif setup.optimizer_at == "between" and phase == "rollout":
            per = optimizer if step > 1 else optimizer - 8.0
            held["optimizer"] = Held(ranks * per * trained.sharded, f"{ranks} x {trained.sharded / 1e9:.2f}e9 x {per:g} B")
        return held
    away = setup.optimizer_at == "host" or (setup.optimizer_at == "between" and phase == "rollout")
    if setup.backend == "deepspeed":
        if away:
            per = DEEPSPEED_HOST_BYTES if setup.optimizer_at == "host" else optimizer
            held["optimizer"] = Held(ranks * per * trained.sharded, f"{ranks} x {trained.sharded / 1e9:.2f}e9 x {per:g} B")
        return held
    own = trained.sharded if setup.backend == "fsdp" else trained.parameters
    if away and step > 1:
        held["optimizer"] = Held(ranks * optimizer * own, f"{ranks} x {own / 1e9:.2f}e9 x {optimizer:g} B")
    if setup.weights_at == "host" or (setup.weights_at == "between" and phase == "rollout"):
        mine = share.sharded if setup.backend == "fsdp" else share.parameters
        held["weights"] = Held(ranks * weight * mine, f"{ranks} x {mine / 1e9:.2f}e9 x {weight:g} B")
    if setup.reference and setup.reference_at != "device":
        mine = share.sharded if setup.backend == "fsdp" else share.parameters
        held["reference"] = Held(ranks * weight * mine, f"{ranks} x {mine / 1e9:.2f}e9 x {weight:g} B")
    return held
