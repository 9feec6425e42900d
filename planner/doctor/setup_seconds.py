"""Seconds of a step of another framework's trainer, by phase, from the planner's own costs.

Generation is a plain round (or one that races, with over-sampling) of the real machine on the engines of the set-up, by
the decode law of a shipped profile; the trainer's passes (trainer_passes.py) are by its training law. Both laws are of
data sheets and of a model's shape, so any public model on any listed GPU has a price, with an error that grows with the
way from the profile's model. `Overheads` is all that is fitted: what frameworks take over these laws, found on named
rows of docs/ledger.md and judged on the others (benchmarks/ledger).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...plans.facts.public_models import Architecture
from ...plans.facts.trainer_setup import TrainerSetup
from ...plans.schema.levers import EngineLayout
from ...profiles.hardware import GPUS, Gpu
from ...profiles.laws.rank_memory import ENGINE_RESERVE_BYTES
from ...profiles.laws.sync_law import COLOCATED_ERROR, START_S
from ...profiles.laws.train_error import law_error
from ...profiles.laws.train_law import WEIGHT_BYTES
from ...profiles.length_tables import shipped_table
from ...profiles.library import GPU_NAMES, library_profile, nearest_shipped
from ...profiles.library.scaled_profile import entry_by_law, scaling_errors
from ...profiles.phase_schema import Rollout
from ...profiles.profile_schema import Profile
from ...rounds.machines.race import RaceRound
from ..costs.colocation import MAP_BYTES_PER_S
from ..costs.decode_costs import DecodeCost, decode_cost
from ..costs.reward_costs import AT_ONCE
from ..lengths.table_lengths import copula_tokens
from ..simulate.reference_round import RoundLengths, simulate_round
from .setup_memory import (
    capacity_bytes,
    engine_weight_bytes,
    known_gpu,
    known_model,
    mean_prompt_tokens,
    memory_share,
)
from .trainer_passes import PASSES, trainer_passes

_Array = NDArray[np.float64]
_Priced = tuple[Architecture, Gpu]

SEQUENCES = {True: 1024, False: 256}
"""Sequences that vLLM decodes at once where nobody says, by whether the GPU has 70 GB or more (its arg_utils.py)."""

BUCKETS_BYTES_PER_S = 8.25e9
"""Of weights that go from trainers with GPUs of their own to engines in buckets: verl's checkpoint engine by NCCL, from
2 to 30 ranks on H100s (verl/checkpoint_engine/README.md)."""

SENDS_TENSORS = {"trl", "openrlhf"}
"""Frameworks whose trainers then send one tensor after the other, as the law of profiles has it."""

UNLIKE_GPU_ERROR = 0.2
"""Relative error that comes with a GPU of which no profile ships: factors over the data sheets are another one's."""

SCORES_ITS_OWN: Mapping[str, bool] = {"trl": False}
"""Whether the trainer scores its samples with the weights they came from before the update, by framework; the others
do. TRL leaves the pass out where a batch is trained once."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What a set-up does not say of the step. None: assumed, which a note says.

    Attributes:
        lengths: shipped table whose shape the responses have; it is scaled to the set-up's mean.
        old_logprobs: samples are scored before the update.
        host_overlaps: the engine schedules a step while the one before it runs (vLLM 0.14 and later, SGLang).
    """

    lengths: str = "math-16k"
    old_logprobs: bool | None = None
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
"""What the rows with a star in docs/ledger.md ask for (benchmarks/ledger/ledger_rows.py, `fit`)."""


@dataclass(frozen=True, slots=True)
class SetupSeconds:
    """A step of a set-up.

    Attributes:
        step_s: the sum of the phases; with steps ahead the longer of generation and the trainer's phases, and the sync.
        phases_s: those that the set-up has of generation, old_logprobs, reference, update, sync, offload.
        limits_s: by phase what the data sheet allows at best: bytes of weights and KV over bandwidth, operations over
            peak.
        errors: relative, one standard deviation, by phase; `error`: of `step_s`.
        mean_tokens: of a trained response.
        notes: what was assumed, and what is not priced.
    """

    step_s: float
    phases_s: dict[str, float]
    limits_s: dict[str, float]
    errors: dict[str, float]
    error: float
    mean_tokens: float
    notes: tuple[str, ...]


def setup_seconds(
    setup: TrainerSetup, facts: StepFacts | None = None, overheads: Overheads = FITTED, seed: int = 0
) -> SetupSeconds:
    """The seconds of a step of the set-up. Raises InputError where its model or its GPU has no data sheet."""
    return with_overheads(setup, _by_the_laws(setup, facts or StepFacts(), seed), overheads)


def with_overheads(setup: TrainerSetup, laws: SetupSeconds, overheads: Overheads) -> SetupSeconds:
    """The step of the set-up that takes `laws` without any overhead."""
    phases = dict(laws.phases_s)
    phases["generation"] *= overheads.decode
    phases["update"] *= overheads.trainer(setup)
    for name in phases.keys() & {"old_logprobs", "reference"}:
        phases[name] *= overheads.trainer(setup) * overheads.scoring
    if setup.colocated:
        phases["sync"] += engine_weight_bytes(setup, known_model(setup)) / overheads.load_bytes_per_s
    total = sum(phases.values())
    trainer_s = total - phases["generation"] - phases["sync"]
    ahead = setup.steps_ahead > 0 and not setup.colocated
    step_s = max(phases["generation"], trainer_s) + phases["sync"] if ahead else total
    error = math.hypot(*(laws.errors[name] * seconds for name, seconds in phases.items())) / total
    return replace(laws, step_s=step_s, phases_s=phases, error=error)


def _by_the_laws(setup: TrainerSetup, facts: StepFacts, seed: int) -> SetupSeconds:
    notes: list[str] = []
    model, gpu, error = known_model(setup), known_gpu(setup), 0.0
    profile = _profile(model, gpu)
    assert profile.train_law is not None, "shipped profiles have laws"
    shape = profile.train_law.shape
    error = 0.0 if shape.is_shaped_as(model) else scaling_errors(shape, model)[0]
    if error:
        notes.append(f"costs of {profile.train_law.model} scaled to {model.name} by the laws, {100 * error:.0f} % off")
    if profile.train_law.accelerator != gpu.name:
        error = math.hypot(error, UNLIKE_GPU_ERROR)
        factors = f"factors of {profile.train_law.accelerator}, {100 * UNLIKE_GPU_ERROR:.0f} % off"
        notes.append(f"no profile of {gpu.name} ships: its data sheet, with {factors}")
    prompt = mean_prompt_tokens(setup)
    if setup.mean_prompt_tokens is None:
        notes.append(f"prompts of {prompt:.0f} tokens, a quarter of the most, assumed")
    entry = entry_by_law(profile, model, gpu, setup.rollout_tp, error)
    decode = _engines(setup, facts, profile, entry, (model, gpu))
    round_ = _generate(setup, facts, decode, (model, gpu), prompt, seed, notes)
    trainer = trainer_passes(setup, profile.train_law, model, gpu, round_.lengths + prompt)
    phases = {"generation": round_.seconds}
    if facts.old_logprobs if facts.old_logprobs is not None else SCORES_ITS_OWN.get(setup.framework, True):
        phases["old_logprobs"] = trainer.score_s()
    if setup.reference:
        phases["reference"] = trainer.score_s()
    phases["update"] = trainer.update_s(setup)
    phases["sync"] = entry.sync.p50 if setup.colocated or entry.sync_apart is None else entry.sync_apart.p50
    if not setup.colocated and setup.framework not in SENDS_TENSORS:
        phases["sync"] = min(phases["sync"], START_S + WEIGHT_BYTES * model.parameters / BUCKETS_BYTES_PER_S)
    if moved := trainer.moves_s(setup) + _turns_s(setup, (model, gpu)):
        phases["offload"] = moved
    if setup.critic:
        notes.append("the critic's passes are not priced")
    if setup.lora_rank:
        notes.append("adapters are priced as sent merged into all weights")
    if setup.engine == "transformers":
        notes.append("generation without an engine is priced as if vLLM did it")
    if setup.rollout_tp > setup.gpus_per_node:
        notes.append("an engine spans nodes: its sums are priced as inside one")
    if setup.steps_ahead and not setup.colocated:
        notes.append("generation runs ahead: a step is the longer of both sides, and the sync")
    limits = {"generation": round_.limit_s, **{name: trainer.limit_s(name) for name in phases if name in PASSES}}
    known = {"generation": _decode_error(entry), "sync": COLOCATED_ERROR, "offload": UNLIKE_GPU_ERROR}
    law = math.hypot(law_error(profile.train_law, trainer.layout), error)
    errors = {name: known.get(name, law) for name in phases}
    return SetupSeconds(0.0, phases, limits, errors, 0.0, float(round_.lengths.mean()), tuple(notes))


def _decode_error(entry: Rollout) -> float:
    return entry.evidence["decode"].error if "decode" in entry.evidence else entry.error


# -- the profile whose laws price model and GPU ------------------------------------------------------------------------


def _profile(model: Architecture, gpu: Gpu) -> Profile:
    """The shipped profile nearest to the model, of its kind, on the GPU or on the one most like it by data sheet."""

    def unlike(name: str) -> float:
        other = GPUS[name]
        rates = other.memory_bytes_per_s / gpu.memory_bytes_per_s, other.bf16_flops / gpu.bf16_flops
        return sum(abs(math.log(rate)) for rate in rates)

    likest = gpu.name if gpu.name in GPU_NAMES else min(GPU_NAMES, key=unlike)
    name = nearest_shipped(model, likest, math.inf)
    assert name is not None, "profiles of dense models and of mixtures of experts ship for each GPU"
    return _shipped(likest, name)


_shipped = cache(library_profile)


# -- generation --------------------------------------------------------------------------------------------------------


class _Round(NamedTuple):
    seconds: float
    lengths: _Array
    limit_s: float


def _generate(
    setup: TrainerSetup, facts: StepFacts, decode: DecodeCost, of: _Priced, prompt: float, seed: int, notes: list[str]
) -> _Round:
    """One round of the engines: its seconds, the lengths that are trained, and the seconds of its bytes."""
    # Where generation runs ahead and responses go on under new weights, rounds decode side by side.
    beside = 1 + setup.steps_ahead if setup.partial_rollout and not setup.colocated else 1
    wanted = beside * setup.prompts
    issued = beside * max(setup.issued_prompts or setup.prompts, setup.prompts)
    lengths = _lengths(setup, facts, issued, seed, notes)
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
    limit_s = _bytes_s(setup, of, steps, read) / beside
    return _Round(times.decode_end_s / beside, trained[::beside], limit_s)


def _bytes_s(
    setup: TrainerSetup,
    of: _Priced,
    steps: Mapping[tuple[int, int], float],
    read: Mapping[int, float],
) -> float:
    """Seconds in which the busiest engine's GPUs read the weights of its steps, and the KV, at their full bandwidth."""
    model, gpu = of

    def weights(sequences: int) -> float:
        touched = 1 - (1 - model.active_experts / model.experts) ** sequences if model.experts else 0.0
        return WEIGHT_BYTES * (model.common_parameters + touched * model.expert_parameters)

    kv_bytes = WEIGHT_BYTES * model.kv_values_per_token
    bytes_read = {engine: kv_bytes * tokens for engine, tokens in read.items()}
    for (engine, sequences), count in steps.items():
        bytes_read[engine] = bytes_read.get(engine, 0.0) + count * weights(sequences)
    return max(bytes_read.values()) / (setup.rollout_tp * gpu.memory_bytes_per_s)


def _lengths(setup: TrainerSetup, facts: StepFacts, issued: int, seed: int, notes: list[str]) -> _Array:
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


def _capped(tokens: _Array, cap: int) -> _Array:
    whole: _Array = np.clip(np.ceil(tokens), 1, cap)
    return whole


def _engines(setup: TrainerSetup, facts: StepFacts, profile: Profile, entry: Rollout, of: _Priced) -> DecodeCost:
    """Decode costs of the set-up's engines, with the room for KV that their share of memory leaves."""
    model, gpu = of
    ranks = min(setup.rollout_tp, 1 if model.latent_kv else model.kv_heads)
    taken = memory_share(setup) * capacity_bytes(gpu) - (0.0 if setup.engine == "sglang" else ENGINE_RESERVE_BYTES)
    fits = int((taken - engine_weight_bytes(setup, model)) * ranks / (WEIGHT_BYTES * model.kv_values_per_token))
    room = max(setup.max_prompt_tokens + setup.max_response_tokens, fits)
    priced = profile.model_copy(update={"rollout": (entry,), "checks": ()})
    engines = setup.engines * setup.rollout_dp  # ranks whose attention is data parallel have sequences of their own
    cost = decode_cost(priced, entry, engines)
    cost = replace(cost, key=EngineLayout(setup.rollout_tp, engines), kv_capacity_tokens=room)
    if facts.host_overlaps:
        return cost
    counts = [count for count, _ in cost.curve]
    curve = tuple((count, cost.device_s(count) + cost.host_s(count)) for count in counts)
    return replace(cost, curve=curve, host=(0.0, 0.0))


def _turns_s(setup: TrainerSetup, of: _Priced) -> float:
    """Seconds in which colocated engines sleep and wake: memory is mapped, weights kept on the host cross its link."""
    if not (setup.colocated and setup.engine_sleeps):
        return 0.0
    model, gpu = of
    mapped = 2 * (memory_share(setup) * gpu.memory_bytes - ENGINE_RESERVE_BYTES) / MAP_BYTES_PER_S
    if not setup.engine_keeps_weights_on_host:
        return mapped
    return mapped + 2 * engine_weight_bytes(setup, model) / gpu.host_copy_bytes_per_s
