"""Peaks of an accelerator, and what the policy's arithmetic and its bytes need of them.

Model FLOPs utilisation (MFU) is as in PaLM (arXiv 2204.02311, appendix B), with attention's masked half left out:

    operations of an update = 6 N T + 6 A Q
    N: parameters that a token uses, embeddings counted; T: trained tokens, prompts included
    A: layers x heads x head size; Q: sum over samples of their squared tokens

A forward pass takes 2 operations a parameter and token, and 4 A for each pair of a query and a key, of which a sample
of t tokens has t^2 / 2; the backward pass takes twice as much. Under adapters the weights are frozen, and half of the
products of that pass are not needed: N counts 4 times, and the adapters' parameters 6 times. What is computed again
(recompute) is not counted: this is no hardware utilisation (HFU). A decode step reads the weights once, and all KV of
its sequences once. Of the experts of a layer a token visits the share f, and n sequences 1 - (1 - f)^n if they choose
independently:

    parameters that a step reads = N + (all - N) (1 - (1 - f)^(n - 1))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...plans.facts.model_names import architecture_of
from ...plans.facts.public_models import Architecture
from ...plans.schema.predicted import PredictedPhases
from ...plans.schema.predicted_evidence import HardwareLimit, LimitPhases, PhaseLimit, RoundLimit
from ..hardware import gpu_of
from ..phase_schema import Rollout, Train
from ..profile_schema import Dtype, Machine, PolicyShape, Profile


@dataclass(frozen=True, slots=True)
class RoundWork:
    """The work of one kind of round, mean over its rounds; fields as in RoundLimit.

    Attributes:
        share: of the steps.
        tp, engine_accelerators: of an engine, and of all engines of a round.
        trainers: accelerators of the update.
        steps_of: shares of the decode steps, by their sequences.
        update_s: predicted seconds of a whole update.
        streams: trainers train while others decode.
    """

    share: float
    tp: int
    engine_accelerators: int
    trainers: int
    decode_steps: float
    read_kv_tokens: float
    trained_tokens: float
    trained_squares: float
    steps_of: Mapping[int, float] = field(default_factory=dict)
    update_s: float = 0.0
    streams: bool = False


def round_limit(work: PolicyWork, peaks: Peaks, kv_bytes: int, round_: RoundWork) -> RoundLimit:
    """The least seconds of a round by the formulas above; `kv_bytes`: of a token, over a whole engine."""
    of_experts = None
    if work.expert_share:
        of_experts = sum(share * work.step_parameters(count) for count, share in round_.steps_of.items())
    read = work.parameters if of_experts is None else of_experts
    weights = round_.decode_steps * read * work.weight_bytes / round_.tp
    kv = round_.read_kv_tokens * kv_bytes / round_.engine_accelerators
    rollout_s = (weights + kv) / peaks.bytes_per_s
    operations = work.update_flops(round_.trained_tokens, round_.trained_squares)
    train_s = operations / peaks.of_trainers(round_.trainers)
    return RoundLimit(
        decode_steps=round_.decode_steps,
        step_parameters=of_experts,
        read_kv_tokens=round_.read_kv_tokens,
        trained_tokens=round_.trained_tokens,
        trained_squares=round_.trained_squares,
        rollout_s=rollout_s,
        train_s=train_s,
        update_s=round_.update_s if round_.streams else None,
    )


def step_limit(
    work: PolicyWork, peaks: Peaks, kv_bytes: int, rounds: Sequence[RoundWork], phases: PredictedPhases, step_s: float
) -> HardwareLimit:
    """The limit of a plan's mean step; `rounds`: short ones first, then long ones if there are any; `phases`, `step_s`:
    predicted means over all steps."""
    limits = [round_limit(work, peaks, kv_bytes, each) for each in rounds]
    both = list(zip(rounds, limits, strict=True))
    rollout_s = sum(each.share * limit.rollout_s for each, limit in both)
    train_s = sum(each.share * limit.train_s for each, limit in both)
    beside_s = sum(each.share * min(limit.rollout_s, limit.train_s) for each, limit in both if each.streams)
    updates_s = sum(each.share * each.update_s for each in rounds)
    least_s = rollout_s + train_s - beside_s
    return HardwareLimit(
        step_s=least_s,
        ratio=_share(least_s, step_s),
        phases=LimitPhases(
            rollout=_phase(rollout_s, phases.rollout),
            reward_exposed=_phase(0.0, phases.reward_exposed),
            train=_phase(train_s, updates_s if any(each.streams for each in rounds) else phases.train),
            sync=_phase(0.0, phases.sync),
        ),
        parameters=work.parameters,
        weight_bytes=work.weight_bytes,
        attention_width=work.attention_width,
        kv_bytes_per_token=kv_bytes,
        peak_flops=peaks.flops,
        peak_bytes_per_s=peaks.bytes_per_s,
        short=limits[0],
        long=limits[1] if len(limits) > 1 else None,
    )


def _phase(least_s: float, predicted_s: float) -> PhaseLimit:
    return PhaseLimit(limit_s=least_s, predicted_s=predicted_s, ratio=_share(least_s, predicted_s))


def _share(least_s: float, predicted_s: float) -> float:
    return least_s / predicted_s if predicted_s else 0.0


TF32_SHARE = 0.5
"""Of a GPU's dense bf16 peak in float32: with TF32, NVIDIA's data sheets of A100, H100, H200, H20, B200 and L40S."""


UPDATE_MICRO_BATCHES = 8
"""Micro-batches of each replica in the update that a profile's entry is judged by: fewer than a step has on few GPUs,
where seconds that do not depend on tokens weigh less, and more than on many, where they weigh more."""

SAMPLE_SHARE = 1 / 8
"""Of a micro-batch, tokens of a sample by which two entries are compared where lengths are not known."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peaks of one accelerator: dense operations a second in the policy's dtype, bytes a second of its memory.

    `cores`: of a node where accelerators are cores, which trainers share out; 0: they are GPUs.
    """

    flops: float
    bytes_per_s: float
    cores: int = 0

    def of_trainers(self, ranks: int) -> float:
        """Operations a second of so many ranks. On CPUs a rank has threads on its part of a node's cores, an engine's
        rank only one."""
        return ranks * max(1, self.cores // ranks) * self.flops


@dataclass(frozen=True, slots=True)
class PolicyWork:
    """What the policy's arithmetic and reading amount to.

    Attributes:
        parameters: that a token uses (N); of a mixture of experts those of the experts that it visits.
        attention_width: layers x heads x head size (A); 0: not known, and attention is left out.
        weight_bytes: of a parameter.
        all_parameters, expert_share: of a mixture of experts with those that a token does not visit, and the share of
            experts that it visits; 0: of a dense model, or not known, and a decode step reads N.
        adapters: parameters of adapters that updates train in place of the weights; 0: they train the weights.
    """

    parameters: int
    attention_width: int
    weight_bytes: int
    all_parameters: int = 0
    expert_share: float = 0.0
    adapters: int = 0

    def step_parameters(self, sequences: float) -> float:
        """Parameters that a decode step of so many sequences reads, by the formula above."""
        idle = self.all_parameters - self.parameters if self.expert_share else 0
        return self.parameters + idle * (1 - math.pow(1 - self.expert_share, sequences - 1))

    def update_flops(self, tokens: float, squares: float) -> float:
        """Operations of an update on samples with these sums of tokens and of squared tokens."""
        of_weights = (4.0 if self.adapters else 6.0) * self.parameters + 6.0 * self.adapters
        return of_weights * tokens + 6.0 * self.attention_width * squares

    def mfu(self, entry: Train, peaks: Peaks, mean_tokens: float = 0.0) -> float:
        """MFU of a whole update of `UPDATE_MICRO_BATCHES` in a measured layout.

        `mean_tokens`: of the sample of a trained token, sum of squares over sum of tokens; 0: attention is left out.
        """
        tokens, seconds = whole_update(entry, mean_tokens)
        flops = self.update_flops(tokens, tokens * mean_tokens)
        return flops / (seconds * peaks.of_trainers(entry.layout.accelerators))

    def reads(self, entry: Rollout, point: DecodeNeeds, peaks: Peaks) -> float:
        """Share of the bandwidth of an engine's accelerators at which a decode step reads weights and KV once."""
        read = self.step_parameters(point.sequences) * self.weight_bytes + point.kv_tokens * entry.kv_bytes_per_token
        return read / (point.step_s * entry.tp * peaks.bytes_per_s)

    def computes(self, entry: Rollout, point: DecodeNeeds, peaks: Peaks) -> float:
        """Share of the peak at which a decode step multiplies: what bounds large batches."""
        return 2.0 * self.parameters * point.sequences / (point.step_s * entry.tp * peaks.flops)


def whole_update(entry: Train, mean_tokens: float) -> tuple[float, float]:
    """(tokens, seconds) of an update of `UPDATE_MICRO_BATCHES` of each replica; `mean_tokens`: as of PolicyWork.mfu."""
    tokens = float(UPDATE_MICRO_BATCHES * entry.dp * entry.micro_batch_tokens)
    per_token_s = entry.step_s_per_token + entry.step_s_per_token_squared * mean_tokens
    return tokens, entry.step_s + tokens * per_token_s


@dataclass(frozen=True, slots=True)
class DecodeNeeds:
    """A decode step of an engine: its sequences, their KV tokens together, its seconds, and its relative spread."""

    sequences: int
    kv_tokens: float
    step_s: float
    spread: float = 0.0


def peaks_of(machine: Machine, dtype: Dtype) -> Peaks | None:
    """Peaks of an accelerator: those that the profile measured, else those of its GPU's data sheet; None where neither
    is known."""
    if machine.peak_flops is not None and machine.peak_bytes_per_s is not None:
        return Peaks(machine.peak_flops, machine.peak_bytes_per_s, machine.cores if machine.kind == "cpu" else 0)
    gpu = gpu_of(machine.accelerator) if machine.kind == "cuda" else None
    if gpu is None:
        return None
    return Peaks(gpu.bf16_flops * (TF32_SHARE if dtype == "float32" else 1.0), gpu.memory_bytes_per_s)


def dtype_of(profile: Profile) -> Dtype:
    """The dtype that a profile is of. One that does not say it: bfloat16 on GPUs, float32 on CPUs, as jobs have it."""
    if profile.shape is not None:
        return profile.shape.dtype
    return "bfloat16" if profile.machine.kind == "cuda" else "float32"


def work_of(profile: Profile, dtype: Dtype | None = None, model: str | None = None) -> PolicyWork:
    """The work of a profile's policy, by the shape that it states, else by that of its law's model or of the public
    model called `model`; without any, all of its parameters are used by a token, and attention is not known."""
    dtype = dtype or dtype_of(profile)
    shape = profile.shape
    if shape is None:
        law = profile.train_law
        known = law.shape if law is not None else architecture_of(model) if model is not None else None
        shape = shape_of_policy(None if known is None or known.guessed else known, profile.model_parameters, dtype)
    work = work_of_shape(shape, profile.model_parameters, dtype)
    return work if profile.adapters is None else replace(work, adapters=profile.adapters.parameters)


def work_of_shape(shape: PolicyShape, parameters: int, dtype: Dtype) -> PolicyWork:
    """The work of a policy of this shape and so many parameters, which engines hold in `dtype`."""
    weight_bytes = 4 if dtype == "float32" else 2
    return PolicyWork(shape.active_parameters, shape.attention_width, weight_bytes, parameters, shape.expert_share)


def shape_of_policy(architecture: Architecture | None, parameters: int, dtype: Dtype) -> PolicyShape:
    """The shape of a policy of so many parameters; of an unknown architecture all are used, and attention is not
    known."""
    if architecture is None:
        return PolicyShape(active_parameters=parameters, attention_width=0, dtype=dtype)
    a = architecture
    idle = (1 - a.active_experts / a.experts) * a.expert_parameters if a.experts else 0.0
    return PolicyShape(
        active_parameters=round(parameters - idle),
        attention_width=(a.layers - a.window_layers) * a.heads * a.head_dim,
        dtype=dtype,
        expert_share=a.active_experts / a.experts if a.experts else 0.0,
    )


def decoding_points(entry: Rollout) -> list[DecodeNeeds]:
    """The decode steps that a profile's entry states: those that were measured, else those of its curve or line, which
    are off by the entry's error."""
    if entry.points:
        return [DecodeNeeds(p.sequences, p.kv_tokens, p.step_s, p.spread) for p in entry.points if not p.outlier]
    curve = list(zip(entry.curve_sequences, entry.curve_s, strict=True))
    return [DecodeNeeds(n, 0.0, s, entry.error) for n, s in curve or [(1, entry.step_s + entry.step_s_per_sequence)]]


def best_read(work: PolicyWork, entry: Rollout, peaks: Peaks) -> float:
    """The largest share of bandwidth that any decode step of an entry reaches."""
    return max((work.reads(entry, point, peaks) for point in decoding_points(entry)), default=0.0)
