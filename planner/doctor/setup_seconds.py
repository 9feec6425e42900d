"""Seconds of a step of another framework's trainer, by phase, from the planner's own costs.

Generation is a plain round (or one that races, with over-sampling) of the real machine on the engines of the set-up, by
the decode law of a shipped profile; the passes of the trainer are its training law. Both laws are of data sheets and of
a model's shape, so any public model on any listed GPU has a price, with an error that grows with the way from the
profile's model. What another trainer does otherwise than ours is physics too: Megatron's weights stay gathered and its
tensor ranks share out norms and logits, samples that are not packed are padded, an optimizer on the host steps at the
host's rate. `Overheads` is all that is fitted: what frameworks take over these laws, found on named rows of
docs/ledger.md and judged on the others (benchmarks/ledger).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...plans.facts.model_shape import named_model
from ...plans.facts.public_models import Architecture
from ...plans.facts.trainer_setup import TrainerSetup
from ...plans.schema.levers import EngineLayout, UpdateLayout
from ...plans.yaml.errors import InputError
from ...profiles.hardware import GPUS, Gpu, gpu_of, hint_of
from ...profiles.laws.rank_memory import ENGINE_RESERVE_BYTES, UTILISATION, rank_parameters
from ...profiles.laws.train_error import law_error, parallel_factor
from ...profiles.laws.train_law import BACKWARD, FILL, IMBALANCE, OPTIMIZER_BYTES, WEIGHT_BYTES, TrainPhysics
from ...profiles.length_tables import shipped_table
from ...profiles.library import GPU_NAMES, MODEL_NAMES, library_profile
from ...profiles.library.scaled_profile import SCALED_ERROR, entry_by_law
from ...profiles.phase_schema import Rollout, TrainLaw
from ...profiles.profile_schema import Profile
from ...rounds.machines.race import RaceRound
from ..costs.colocation import MAP_BYTES_PER_S
from ..costs.decode_costs import DecodeCost, decode_cost
from ..costs.reward_costs import AT_ONCE
from ..lengths.table_lengths import copula_tokens
from ..simulate.reference_round import RoundLengths, simulate_round

CPU_ADAM_S = 0.45e-9
"""Seconds of one host for one parameter of an optimizer that steps there: 10 s for 72e9 parameters on four hosts
(DeepSpeed#6834), 9.6 s for 107e9 on four (slime#1139)."""

SEQUENCES = {True: 1024, False: 256}
"""Sequences that vLLM decodes at once where nobody says, by whether the GPU has 70 GB or more (its arg_utils.py)."""

SHARE = {"vllm": 0.9, "sglang": 0.85, "transformers": 0.9}
"""Of a GPU that an engine takes where nobody says."""

UNLIKE_GPU_ERROR = 0.2
"""Relative error that comes with a GPU of which no profile ships: factors over the data sheets are another one's."""

SCORES_ITS_OWN: Mapping[str, bool] = {"trl": False}
"""Whether the trainer scores its samples with the weights they came from before the update, by framework; the others
do. TRL leaves the pass out where a batch is trained once."""

PADS: Mapping[str, bool] = {"trl": True, "openrlhf": True}
"""Whether samples of a micro-batch are padded to the longest of them; the others pack."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What a set-up does not say of the step. None: assumed, which a note says.

    Attributes:
        prompt_tokens: mean of the prompts.
        lengths: shipped table whose shape the responses have; it is scaled to the set-up's mean.
        old_logprobs: samples are scored before the update.
        padded: micro-batches are padded to their longest sample.
        host_overlaps: the engine schedules a step while the one before it runs (vLLM 0.14 and later, SGLang).
    """

    prompt_tokens: float | None = None
    lengths: str = "math-16k"
    old_logprobs: bool | None = None
    padded: bool | None = None
    host_overlaps: bool = True


@dataclass(frozen=True, slots=True)
class Overheads:
    """What frameworks take over the laws.

    Attributes:
        decode: factor on generation.
        megatron, sharded: on passes of Megatron's trainer, and of the others (FSDP, DeepSpeed).
        scoring: a further one, on passes that only score.
        load_bytes_per_s: rate at which each colocated GPU takes its share of an engine's weights, beside the transfer:
            trainers gather, convert and hand over weights tensor by tensor.
    """

    decode: float = 1.0
    megatron: float = 1.0
    sharded: float = 1.0
    scoring: float = 1.0
    load_bytes_per_s: float = math.inf

    def trainer(self, setup: TrainerSetup) -> float:
        """On passes of this trainer: Megatron's, or those of the others (FSDP, DeepSpeed)."""
        return self.megatron if setup.backend == "megatron" else self.sharded


NONE = Overheads()
FITTED = Overheads(decode=1.09, megatron=0.861, sharded=1.025, scoring=0.97, load_bytes_per_s=2.25e9)
"""Found by `python -m benchmarks.ledger --fit` on the rows that it names."""


@dataclass(frozen=True, slots=True)
class SetupSeconds:
    """A step of a set-up.

    Attributes:
        step_s: the sum of the phases; with steps ahead the longer of generation and the trainer's phases, and the sync.
        phases_s: those that the set-up has of generation, old_logprobs, reference, update, sync, offload.
        limits_s: by phase what the data sheet allows at best: bytes of weights and KV over bandwidth, operations over
            peak.
        error: relative, one standard deviation, of `step_s`.
        mean_tokens: of a trained response.
        notes: what was assumed, and what is not priced.
    """

    step_s: float
    phases_s: dict[str, float]
    limits_s: dict[str, float]
    error: float
    mean_tokens: float
    notes: tuple[str, ...]


def setup_seconds(
    setup: TrainerSetup, facts: StepFacts | None = None, overheads: Overheads = FITTED, seed: int = 0
) -> SetupSeconds:
    """The seconds of a step of the set-up. Raises InputError where its model or its GPU has no data sheet."""
    facts = facts or StepFacts()
    notes: list[str] = []
    model, gpu, error = _shape(setup), _gpu(setup), 0.0
    profile = _profile(model, gpu)
    assert profile.train_law is not None, "shipped profiles have laws"
    away = abs(math.log(model.parameters / profile.train_law.shape.parameters))
    error = SCALED_ERROR["experts" if model.experts else "dense"] * (1 + away) if away > 1e-3 else 0.0
    if profile.train_law.accelerator != gpu.name:
        error = math.hypot(error, UNLIKE_GPU_ERROR)
        notes.append(f"no profile of {gpu.name} ships: its data sheet, with factors of {profile.train_law.accelerator}")
    if error:
        notes.append(f"costs of {profile.train_law.model} scaled to {model.name} by the laws, {100 * error:.0f} % off")
    prompt = facts.prompt_tokens
    if prompt is None:
        prompt = max(1.0, setup.max_prompt_tokens / 4)
        notes.append(f"prompts of {prompt:.0f} tokens, a quarter of the most, assumed")
    entry = entry_by_law(profile, model, gpu, setup.rollout_tp, error)
    round_ = _generate(setup, facts, profile, entry, (model, gpu), prompt, seed, notes)
    trainer = _trainer(setup, facts, profile.train_law, (model, gpu), round_.lengths + prompt)
    phases: dict[str, float] = {"generation": round_.seconds * overheads.decode}
    if facts.old_logprobs if facts.old_logprobs is not None else SCORES_ITS_OWN.get(setup.framework, True):
        phases["old_logprobs"] = trainer.score_s() * overheads.trainer(setup) * overheads.scoring
    if setup.reference:
        phases["reference"] = trainer.score_s() * overheads.trainer(setup) * overheads.scoring
    phases["update"] = trainer.update_s(setup) * overheads.trainer(setup)
    if setup.colocated or entry.sync_apart is None:
        phases["sync"] = entry.sync.p50 + loaded_bytes(setup) / overheads.load_bytes_per_s
    else:
        phases["sync"] = entry.sync_apart.p50
    if moved := trainer.moves_s(setup) + _turns_s(setup, gpu):
        phases["offload"] = moved
    if setup.critic:
        notes.append("the critic's passes are not priced")
    if setup.lora_rank:
        notes.append("LoRA is priced as training of all weights")
    if setup.engine == "transformers":
        notes.append("generation without an engine is priced as if vLLM did it")
    if setup.rollout_tp > setup.gpus_per_node:
        notes.append("an engine spans nodes: its sums are priced as inside one")
    ours = sum(seconds for name, seconds in phases.items() if name not in ("generation", "sync"))
    step_s = phases["generation"] + ours + phases["sync"]
    if setup.steps_ahead and not setup.colocated:
        step_s = max(phases["generation"], ours) + phases["sync"]
        notes.append("generation runs ahead: a step is the longer of both sides, and the sync")
    limits = {"generation": round_.limit_s, **{name: trainer.limit_s(name) for name in phases if name in _PASSES}}
    errors = {"generation": _decode_error(entry), "sync": 0.7, "offload": 0.35}
    law = math.hypot(law_error(profile.train_law, trainer.layout), error)
    off = math.hypot(*(errors.get(name, law) * seconds for name, seconds in phases.items())) / sum(phases.values())
    return SetupSeconds(step_s, phases, limits, off, float(round_.lengths.mean()), tuple(notes))


def loaded_bytes(setup: TrainerSetup) -> float:
    """Bytes of the weights that a GPU of an engine takes at a sync."""
    return WEIGHT_BYTES * _shape(setup).parameters / setup.rollout_tp


def _decode_error(entry: Rollout) -> float:
    return entry.evidence["decode"].error if "decode" in entry.evidence else entry.error


# -- the model, the GPU, and the profile whose laws price them ---------------------------------------------------------


def _shape(setup: TrainerSetup) -> Architecture:
    named = named_model(setup.model)
    if named.architecture is None:
        raise InputError(named.unsure or f"the shape of {setup.model} is not known")
    return named.architecture


def _gpu(setup: TrainerSetup) -> Gpu:
    gpu = None if setup.gpu is None else gpu_of(setup.gpu)
    if gpu is None:
        hint = "" if setup.gpu is None else hint_of(setup.gpu)
        raise InputError(f"no data sheet of the GPU {setup.gpu or '(none is named)'}{f'; {hint}' if hint else ''}")
    return gpu


def _profile(model: Architecture, gpu: Gpu) -> Profile:
    """The shipped profile nearest to the model, of its kind, on the GPU or on the one most like it by data sheet."""

    def unlike(name: str) -> float:
        other = GPUS[name]
        rates = other.memory_bytes_per_s / gpu.memory_bytes_per_s, other.bf16_flops / gpu.bf16_flops
        return sum(abs(math.log(rate)) for rate in rates)

    likest = gpu.name if gpu.name in GPU_NAMES else min(GPU_NAMES, key=unlike)
    profiles = [library_profile(likest, name) for name in MODEL_NAMES]
    laws = [profile for profile in profiles if profile.train_law is not None]
    of_kind = [p for p in laws if p.train_law is not None and bool(p.train_law.shape.experts) == bool(model.experts)]
    return min(of_kind or laws, key=lambda p: abs(math.log((p.model_parameters or 1) / model.parameters)))


# -- generation --------------------------------------------------------------------------------------------------------


class _Round(NamedTuple):
    seconds: float
    lengths: NDArray[np.float64]
    limit_s: float


def _generate(
    setup: TrainerSetup,
    facts: StepFacts,
    profile: Profile,
    entry: Rollout,
    of: tuple[Architecture, Gpu],
    prompt: float,
    seed: int,
    notes: list[str],
) -> _Round:
    """One round of the engines: its seconds, the lengths that are trained, and the seconds of its bytes."""
    # Where generation runs ahead and responses go on under new weights, rounds decode side by side.
    beside = 1 + setup.steps_ahead if setup.partial_rollout and not setup.colocated else 1
    wanted = beside * setup.prompts
    issued = beside * max(setup.issued_prompts or setup.prompts, setup.prompts)
    lengths = _lengths(setup, facts, issued, seed, notes)
    decode = _engines(setup, facts, profile, entry, of)
    most = setup.max_num_seqs or SEQUENCES[of[1].memory_bytes >= 70e9]
    machine = RaceRound(
        [str(place) for place in range(issued)], wanted, setup.samples, setup.samples, setup.max_response_tokens
    )
    given = RoundLengths(
        natural=lambda key, name: int(lengths[int(name), key.sample]),
        prompt_tokens=lambda name: max(1, round(prompt)),
        reward=lambda key, name: float(key.sample % 2),
        cap_tokens=setup.max_response_tokens,
        expected_tokens=float(lengths.mean()),
    )
    steps: dict[tuple[int, int], float] = {}
    read: dict[int, float] = {}

    def observe(t_s: float, what: str, a: int, b: int, c: int) -> None:
        if what == "stepped":
            steps[a, b] = steps.get((a, b), 0.0) + c / 1e6
        elif what == "worked":
            read[a] = float(c)

    times = simulate_round(machine, given, decode, AT_ONCE, most, observe)
    if beside > 1:
        notes.append(f"responses go on under new weights: {beside} rounds decode side by side")
    if (setup.partial_rollout and beside == 1) or setup.dynamic_sampling:
        notes.append("rounds are priced without samples that go on, or are drawn again, in the next one")
    trained = np.array([tokens for group in machine.outcome().trained for tokens in group.tokens], float)
    limit_s = _bytes_s(setup, of, steps, read, entry.kv_bytes_per_token) / beside
    return _Round(times.decode_end_s / beside, trained[::beside], limit_s)


def _bytes_s(
    setup: TrainerSetup,
    of: tuple[Architecture, Gpu],
    steps: Mapping[tuple[int, int], float],
    read: Mapping[int, float],
    kv_bytes: float,
) -> float:
    """Seconds in which the busiest engine's GPUs read the weights of its steps, and the KV, at their full bandwidth."""
    model, gpu = of

    def weights(sequences: int) -> float:
        touched = 1 - (1 - model.active_experts / model.experts) ** sequences if model.experts else 0.0
        return WEIGHT_BYTES * (model.common_parameters + touched * model.expert_parameters)

    bytes_read = {engine: kv_bytes * tokens for engine, tokens in read.items()}
    for (engine, sequences), count in steps.items():
        bytes_read[engine] = bytes_read.get(engine, 0.0) + count * weights(sequences)
    return max(bytes_read.values()) / (setup.rollout_tp * gpu.memory_bytes_per_s)


def _lengths(setup: TrainerSetup, facts: StepFacts, issued: int, seed: int, notes: list[str]) -> NDArray[np.float64]:
    """Lengths of all issued samples, (prompts, samples): the table's, times what makes their mean the set-up's."""
    table, cap = shipped_table(facts.lengths), setup.max_response_tokens
    cdf = [(float(tokens), share) for tokens, share in table.quantiles]
    drawn = copula_tokens(cdf, table.icc, issued, setup.samples, seed)
    mean = setup.mean_response_tokens
    if mean is None:
        notes.append(f"lengths as in the table {facts.lengths}, assumed")
        return _capped(drawn, cap)
    low, high = 1e-3, 1e4
    for _ in range(60):  # the capped mean grows with the factor
        factor = math.sqrt(low * high)
        low, high = (factor, high) if np.minimum(factor * drawn, cap).mean() < mean else (low, factor)
    return _capped(factor * drawn, cap)


def _capped(tokens: NDArray[np.float64], cap: int) -> NDArray[np.float64]:
    whole: NDArray[np.float64] = np.clip(np.ceil(tokens), 1, cap)
    return whole


def _engines(
    setup: TrainerSetup, facts: StepFacts, profile: Profile, entry: Rollout, of: tuple[Architecture, Gpu]
) -> DecodeCost:
    """Decode costs of the set-up's engines, with the room for KV that their share of memory leaves."""
    model, gpu = of
    share = SHARE[setup.engine] if setup.memory_share is None else setup.memory_share
    ranks = min(setup.rollout_tp, 1 if model.latent_kv else model.kv_heads)
    more = (share - UTILISATION) * gpu.memory_bytes * ranks / (2.0 * model.kv_values_per_token)
    room = max(setup.max_prompt_tokens + setup.max_response_tokens, round(entry.kv_capacity_tokens + more))
    priced = profile.model_copy(update={"rollout": (entry,), "checks": ()})
    engines = setup.engines * setup.rollout_dp  # ranks whose attention is data parallel have sequences of their own
    cost = decode_cost(priced, entry, engines)
    cost = replace(cost, key=EngineLayout(setup.rollout_tp, engines), kv_capacity_tokens=room)
    if facts.host_overlaps:
        return cost
    counts = [count for count, _ in cost.curve]
    curve = tuple((count, cost.device_s(count) + cost.host_s(count)) for count in counts)
    return replace(cost, curve=curve, host=(0.0, 0.0))


def _turns_s(setup: TrainerSetup, gpu: Gpu) -> float:
    """Seconds in which colocated engines sleep and wake: memory is mapped, weights kept on the host cross its link."""
    if not (setup.colocated and setup.engine_sleeps):
        return 0.0
    share = SHARE[setup.engine] if setup.memory_share is None else setup.memory_share
    mapped = 2 * (share * gpu.memory_bytes - ENGINE_RESERVE_BYTES) / MAP_BYTES_PER_S
    crossed = 2 * loaded_bytes(setup) / gpu.host_copy_bytes_per_s if setup.engine_keeps_weights_on_host else 0.0
    return mapped + crossed


# -- the trainer -------------------------------------------------------------------------------------------------------

_PASSES = {"old_logprobs": 1.0, "reference": 1.0, "update": 1.0 + BACKWARD}


@dataclass(frozen=True)
class _Trainer:
    """The passes of a trainer over a round's samples.

    Attributes:
        tokens, squares: sums over the samples as the trainer computes them, padding included.
        useful, useful_squares: of their own tokens.
        micro_tokens: of a micro-batch, mean.
        steps: optimizer steps.
    """

    physics: TrainPhysics
    layout: UpdateLayout
    tokens: float
    squares: float
    useful: float
    useful_squares: float
    micro_tokens: float
    steps: int
    zero: int

    def _pass_s(self, token_s: float, pair_s: float, micro_s: float, begins: int) -> float:
        """Seconds of a pass that waits for its last replica `begins` times: tokens, micro-batches, pipeline bubbles."""
        dp, pp = self.layout.dp, self.layout.pp
        work = (token_s * self.tokens + pair_s * self.squares) / dp
        micros = max(begins * 1.0, self.tokens / dp / self.micro_tokens + begins / 2)
        each = work / micros + micro_s
        waited = IMBALANCE * math.log2(dp) if dp > 1 else 0.0
        return work + micros * micro_s + begins * (pp - 1 + waited) * each

    def score_s(self) -> float:
        """Seconds of a forward pass over all samples."""
        token, pair, micro = self.physics.scored(self.layout)
        if self.zero < 3:
            micro -= self._gathered_s(0.25)
        return self._pass_s(token, pair, micro, 1)

    def update_s(self, setup: TrainerSetup) -> float:
        """Seconds of all optimizer steps with their passes."""
        physics, layout = self.physics, self.layout
        micro, step = physics.micro_batch_s(layout), physics.step_s(layout)
        if self.zero < 3:  # weights stay; gradients are reduced and new weights gathered once a step
            micro -= self._gathered_s(1.0)
            step += self._gathered_s(6 / 8)
        if setup.optimizer_at == "host":
            shard = rank_parameters(physics.architecture, layout)
            nodes = max(1, setup.train_gpus // setup.gpus_per_node)
            crossed = 6 * shard / physics.gpu.host_copy_bytes_per_s
            step += CPU_ADAM_S * physics.architecture.parameters / nodes + crossed
            step -= shard * OPTIMIZER_BYTES / physics.gpu.memory_bytes_per_s
        work = self._pass_s(physics.token_s(layout), physics.pair_s(layout), micro, self.steps)
        return work + self.steps * step

    def _gathered_s(self, share: float) -> float:
        """Seconds to move a share of what FSDP moves of a rank's weights in a micro-batch, where not hidden."""
        moved = self.physics.micro_batch_s(self.layout) - replace(
            self.physics, factors={**self.physics.factors, "gather": 0.0}
        ).micro_batch_s(self.layout)
        return share * moved

    def moves_s(self, setup: TrainerSetup) -> float:
        """Seconds a step in which states that are on the device between phases only go to the host and come back."""
        shard = rank_parameters(self.physics.architecture, self.layout)
        weights = (4.0 if self.zero == 3 else 2.0 * self.layout.shard_ranks) * shard
        optimizer = (8.0 if self.zero == 3 else 12.0) * shard
        crossed = weights * (setup.weights_at == "between") + optimizer * (setup.optimizer_at == "between")
        return 2 * crossed / self.physics.gpu.host_copy_bytes_per_s

    def limit_s(self, name: str) -> float:
        """Seconds of a pass's operations, recomputation aside, at the GPUs' peak."""
        a = self.physics.architecture
        flops = _PASSES[name] * (
            2 * a.active_parameters * self.useful + a.attention_flops_per_pair / 2 * self.useful_squares
        )
        return flops / (self.layout.accelerators * self.physics.gpu.bf16_flops)


def _trainer(
    setup: TrainerSetup,
    facts: StepFacts,
    law: TrainLaw,
    of: tuple[Architecture, Gpu],
    samples: NDArray[np.float64],
) -> _Trainer:
    """The trainer of a set-up before samples of so many tokens, prompts included."""
    model, gpu = of
    padded = facts.padded if facts.padded is not None else PADS.get(setup.framework, False)
    computed = samples
    if setup.micro_batch_tokens is None:
        size = max(1, setup.micro_batch_samples or 1)
        if padded:
            longest = np.maximum.reduceat(samples, np.arange(0, len(samples), size))
            computed = np.repeat(longest, size)[: len(samples)]
        micro = size * float(computed.mean())
    else:
        micro = FILL * max(setup.micro_batch_tokens * setup.cp * setup.sp, float(samples.max()))
    copies = setup.dp * setup.cp * setup.sp // (setup.shard_ranks or setup.dp * setup.cp * setup.sp)
    layout = UpdateLayout(
        dp=setup.dp,
        tp=setup.tp,
        pp=setup.pp,
        cp=setup.cp,
        sp=setup.sp,
        ep=setup.ep,
        state_copies=max(1, copies),
        micro_batch_tokens=max(1, round(micro)),
        recompute=setup.recompute,
    )
    physics = TrainPhysics(
        model,
        gpu,
        law.factors,
        law.fabric_bytes_per_s,
        setup.gpus_per_node,
        parallel_factor(law),
        all_shared=setup.backend == "megatron",
    )
    mini = setup.mini_batch_samples or len(samples)
    return _Trainer(
        physics,
        layout,
        float(computed.sum()),
        float((computed**2).sum()),
        float(samples.sum()),
        float((samples**2).sum()),
        micro,
        max(1, math.ceil(len(samples) / mini)),
        setup.zero,
    )
