"""The least seconds of a step on its hardware: weights read once a decode step, KV once, updates at peak, no waiting.

    rollout_s = (D M w / tp + R k / accelerators) / bandwidth      train_s = (6 N T + 6 A Q) / (trainers peak)

    D: decode steps of the engine that makes the most; N: parameters that a token uses; w: bytes of one
    M: parameters that a decode step reads, mean over steps by their sequences (hardware_peaks.py); dense: N
    R: KV tokens that decode steps read, over all engines; k: KV bytes of a token; accelerators: of all engines
    T, Q: trained tokens, and the sum of the samples' squared tokens; A: layers x heads x head size

The mean step is the mean over kinds of round, by their shares. Weight transfers and rewards are waiting: their least is
0. So are prefill, sleep and wake. On CPUs the trainers are all cores of a node, whatever their ranks. Where trainers
train while others decode, a step is the longer of both, and the phase of training is of whole updates. Where the tail
of a round has engines of its own, all of it is read by the larger TP size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...plans.schema.predicted import PredictedPhases
from ...plans.schema.predicted_limit import HardwareLimit, LimitPhases, PhaseLimit, RoundLimit
from .hardware_peaks import Peaks, PolicyWork


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
