"""The section `predicted` of plan.yaml: what the simulator expects; `rlplan report` compares it with measurements."""

from __future__ import annotations

import math
import operator
from typing import Annotated, Literal

from pydantic import Field

from ...rounds.round_spec import Mode
from .base import Count, Name, NonNegative, Positive, Strict, is_empty, is_none, is_zero
from .predicted_evidence import ByPhase, HardwareLimit, LengthBasis, LengthDrift

ROUGH_ROUNDS = 32
"""Figures from fewer simulated rounds are only about right."""


class FrontPoint(Strict):
    """A schedule that no other schedule beats in both speed and bias."""

    mode: Mode
    """Bias mode of the schedule."""

    seconds_per_sample: Positive
    """Seconds per trained sample."""

    usd_per_1k_samples: NonNegative
    """USD per 1000 trained samples."""

    length_ratio: Positive
    """Trained mean length over unconditioned mean length."""

    rounds: Count
    """Number of its rounds that were simulated; with few of them its figures are rough."""

    chosen: bool
    """Whether the plan is this schedule."""

    @property
    def rough(self) -> bool:
        """Whether its figures are only about right; those of the chosen schedule are the plan's own."""
        return not self.chosen and self.rounds < ROUGH_ROUNDS


Share = Annotated[float, Field(ge=0, le=1)]


class Quantiles(Strict):
    """A duration over steps."""

    p50: NonNegative
    """Median in seconds."""

    p95: NonNegative
    """95th percentile in seconds."""

    mean: NonNegative
    """Mean in seconds."""


class MemoryBar(Strict):
    """The most bytes that a memory must hold, and its capacity."""

    needed_bytes: NonNegative
    """Bytes needed at the worst moment."""

    capacity_bytes: Positive
    """Bytes that the memory has."""

    holds_bytes: dict[Name, NonNegative] = Field(default={}, exclude_if=operator.not_)
    """Bytes of each holder at that moment; empty if one holder has all of them."""

    @property
    def headroom(self) -> float:
        """Share of the memory that stays free; below 0 if the needed bytes do not fit."""
        return 1.0 - self.needed_bytes / self.capacity_bytes


class PredictedError(Strict):
    """Relative error to be expected of `step_s.mean` and `seconds_per_sample`; one standard deviation each."""

    costs: NonNegative
    """Error of the profile's costs, on values that they were not fitted on."""

    lengths: NonNegative
    """Error of the length trace: how much other prompts in its place would have changed the seconds."""

    sampling: NonNegative
    """Error of the simulation: the standard error of its mean."""

    assumed_lengths: Annotated[float, Field(ge=0, exclude_if=is_zero)] = 0.0
    """Error of lengths that come from a table (`inputs.lengths`); 0: they were measured on this job."""

    assumed_rewards: Annotated[float, Field(ge=0, exclude_if=is_zero)] = 0.0
    """Error of reward seconds that come from a table (`inputs.rewards`); 0: they are the profile's own."""

    extrapolation: Annotated[NonNegative | None, Field(exclude_if=is_none)] = None
    """Error of responses longer than any in the length trace: the share of the step that they take, since there may be
    none of them, or twice as many. Null: the trace shows all lengths up to the job's cap."""

    parts: dict[Name, float] = Field(default={}, exclude_if=is_empty)
    """By independent source of error, how far one standard deviation of it moves the logarithm of the seconds. Plans of
    the same inputs have the same errors, so `rlplan diff` takes only what the plans differ in. Empty: an older plan."""

    prompts: Annotated[
        tuple[Annotated[tuple[float, ...], Field(min_length=2, max_length=64, strict=False)], ...],
        Field(max_length=2, strict=False, exclude_if=is_empty),
    ] = ()
    """Logarithm of the seconds, over those predicted, with other prompts in place of the trace's: the same sets of
    prompts for every plan of a trace, on two independent sets of draws. Empty: an older plan."""

    @property
    def of_lengths(self) -> float:
        """All error of lengths: of the trace's prompts, of lengths beyond the trace, of assumed lengths."""
        return math.hypot(self.lengths, self.extrapolation or 0.0, self.assumed_lengths)

    @property
    def of_costs(self) -> float:
        """All error of costs: of the profile's costs, and of assumed reward seconds."""
        return math.hypot(self.costs, self.assumed_rewards)

    @property
    def total(self) -> float:
        """The total error; its parts are independent."""
        return math.hypot(self.of_costs, self.of_lengths, self.sampling)


class StepNoise(ByPhase[NonNegative]):
    """Noise of the machine: how far the seconds of a round's phases scatter around what its lengths give, as the
    profile has seen it. Standard deviations of logarithms, close to relative ones; 0: not measured."""


class PredictedBaseline(Strict):
    """The fastest plain synchronous rounds on at most as many nodes as the plan takes, simulated in the same way."""

    step_s: Quantiles
    """Seconds per step."""

    seconds_per_sample: Positive
    """Seconds per trained sample."""

    nodes: Annotated[Count | None, Field(exclude_if=is_none)] = None
    """Nodes of the pool that it takes; null: an older plan, whose baseline could take more nodes than the plan."""

    keeps_slo: Annotated[bool | None, Field(exclude_if=is_none)] = None
    """Whether it keeps the job's slo.step_p95_s; false where no plain rounds on these nodes do. Null: the job has no
    SLO."""


class PredictedPhases(ByPhase[NonNegative]):
    """Where the mean step goes, in seconds."""


class RoundMemory(Strict):
    """Memory of an accelerator while engines decode, and while it trains."""

    kv: MemoryBar
    """KV cache of the engine that needs the most."""

    train: MemoryBar | None
    """Memory of a trainer's accelerator; null: the profile does not know it."""


class PredictedRound(Strict):
    """Predictions for one kind of round. Its p50 and p95 cover the rounds' different lengths and the machine's
    `noise`."""

    share: Annotated[float, Field(ge=0, le=1)]
    """Share of the steps that are rounds of this kind."""

    noise: StepNoise
    """Noise of the machine in the seconds of a round."""

    step_s: Quantiles
    """Seconds of the whole step."""

    rollout_s: Quantiles
    """Seconds of the rollout."""

    reward_exposed_s: Quantiles
    """Seconds of waiting for rewards after the last token."""

    train_s: Quantiles
    """Seconds of gradients and update, without what was done beside the rollout."""

    sync_s: NonNegative
    """Mean seconds of getting the new weights to the engines, a change of layout included."""

    running: Annotated[tuple[Share, ...], Field(min_length=21, max_length=21, strict=False)]
    """Running sequences at each twentieth of the rollout, as a share of the most that run in it; mean over rounds."""

    tail_s: NonNegative
    """Mean seconds of the rollout's end in which fewer than a quarter of its most sequences run."""

    reward_slack_s: NonNegative
    """Mean seconds that scores could take longer, except for the samples decoded last, while the step does not grow."""

    memory: RoundMemory
    """Accelerator memory while it decodes, and while it trains; the two are never summed, since they take turns."""


class PredictedCheckpoint(Strict):
    """A checkpoint of the trainer: float32 weights and both moments of AdamW, each rank's share by itself."""

    bytes: Positive
    """Bytes on the disk, where two are kept and a third is written."""

    rank_bytes: Positive
    """Bytes of the copy in host memory that each rank keeps, from which it writes while training goes on."""

    frozen_rank_bytes: Annotated[NonNegative, Field(exclude_if=is_zero)] = 0.0
    """Bytes of frozen weights that a rank keeps beside the adapters that it trains (model.lora), on its accelerator or
    in host memory; they are in no checkpoint."""

    stood_s: NonNegative
    """Seconds for which training stands still, while the ranks copy; no part of `step_s`, since `rlplan execute` writes
    one every `--checkpoint-every` steps."""


class PredictedEvaluation(Strict):
    """An evaluation of the job's section `evaluate`, on the engines of short rounds, by the job's own lengths."""

    prompts: Count
    """Prompts of its file."""

    samples: Count
    """Responses to each."""

    seconds: NonNegative
    """Mean seconds; no part of `step_s`."""

    every_steps: Count
    """Steps between two evaluations."""


class PredictedRounds(Strict):
    """The kinds of round."""

    short: PredictedRound
    """Short rounds."""

    long: PredictedRound | None
    """Long rounds; null when the plan has none."""

    @property
    def kinds(self) -> list[tuple[Literal["short", "long"], PredictedRound]]:
        """The kinds that the plan has, by name."""
        return [("short", self.short)] if self.long is None else [("short", self.short), ("long", self.long)]


class PredictedCut(Strict):
    """Responses that the job's cap cuts, among those that are trained."""

    cap_tokens: Count
    """The job's rollout.max_response_tokens."""

    share: Share
    """Share of the trained samples that reach the cap: of the length model where the mode is unbiased, of the simulated
    rounds where it is not."""


class DecodeSpeed(Strict):
    """Seconds of a decode step as they were profiled, all engines of the short rounds busy."""

    sequences: Count
    """Sequences that run on each engine."""

    kv_tokens: Positive
    """KV tokens of each of them, its prompt and what it has decoded, mean over the steps."""

    step_s: Positive
    """Seconds of a decode step."""


class UpdateSpeed(Strict):
    """Seconds of an update of short rounds as the profile has them, on groups that are all alike."""

    groups: Count
    """Groups of the update."""

    prompt_tokens: Count
    """Tokens of each prompt."""

    response_tokens: Annotated[tuple[Count, ...], Field(min_length=1, strict=False)]
    """Tokens of the responses of a group."""

    seconds: Positive
    """Seconds of the update, without states that move between GPU and host memory."""


class PredictedSpeed(Strict):
    """What the machine took, when it was profiled, for what `rlplan execute` measures again at its start: how much
    slower or faster the machine is than then is no error of the predictions."""

    decode: Annotated[tuple[DecodeSpeed, ...], Field(min_length=1, max_length=8, strict=False)]
    """Decode steps."""

    update: UpdateSpeed
    """An update."""


NEAR_CAP = 0.99
"""A trace that reaches this share of the job's cap shows which responses the cap cuts."""


class PredictedWait(Strict):
    """How long deferred prompts wait in the queue of long rounds, by lengths alone."""

    mean_rounds: NonNegative
    """Long rounds that a deferred prompt waits, the one that trains it included, mean."""

    longest_rounds: NonNegative
    """The longest of these waits in the long rounds that were followed."""

    followed_rounds: Count
    """Long rounds that were followed."""

    untrained: Share
    """Share of P prompts that a long round lacks in the mean, since too few of those that it issues are long."""


Place = Literal["kv", "train", "host"]
"""Where memory is: in engines for KV cache, in trainers, in a node's host."""


class Predicted(Strict):
    """What the simulator expects of the plan."""

    step_s: Quantiles
    """Seconds per step."""

    first_epoch_s: Annotated[Positive | None, Field(exclude_if=is_none)] = None
    """Mean seconds of a step in the first epoch, when drafts have no earlier responses to come from; null: as later."""

    seconds_per_sample: Positive
    """Seconds per trained sample."""

    error: PredictedError
    """How far the seconds may be off."""

    baseline: PredictedBaseline
    """The plain synchronous plan, for comparison."""

    phases_s: PredictedPhases
    """Where the mean step goes."""

    rounds: PredictedRounds
    """Predictions for each kind of round."""

    wait: Annotated[PredictedWait | None, Field(exclude_if=is_none)] = None
    """How long prompts wait for a long round; null: its long rounds have no queue."""

    length_ratio: Positive
    """Trained mean length over unconditioned mean length; 1 is unbiased."""

    cut: Annotated[PredictedCut | None, Field(exclude_if=is_none)] = None
    """Trained samples that the job's cap cuts; null: an older plan, which does not state it."""

    nodes: Count
    """Nodes that the plan takes, of both pools where trainers have one of their own."""

    train_nodes: Annotated[Count | None, Field(exclude_if=is_none)] = None
    """Of these, the nodes of the pool that trainers have to themselves; null: they take turns with the engines."""

    usd_per_hour: NonNegative
    """Price of these nodes."""

    usd_per_1k_samples: NonNegative
    """USD per 1000 trained samples, for these nodes."""

    host_memory: MemoryBar
    """Host memory of the fullest node: engines of both kinds of round, those that sleep included, trainers and states
    that are offloaded to it, weights on their way. Where trainers have a pool of their own, of the fuller one."""

    checkpoint: Annotated[PredictedCheckpoint | None, Field(exclude_if=is_none)] = None
    """What a checkpoint takes; null: an older plan."""

    evaluation: Annotated[PredictedEvaluation | None, Field(exclude_if=is_none)] = None
    """What an evaluation takes; null: the job has none, or its file of prompts was not there."""

    limit: Annotated[HardwareLimit | None, Field(exclude_if=is_none)] = None
    """How far the step is from what the hardware can do; null: the peak of the accelerators is not known."""

    speed: Annotated[PredictedSpeed | None, Field(exclude_if=is_none)] = None
    """What tells how fast the machine is beside when it was profiled; null: the profile was not measured."""

    lengths_tokens: Annotated[tuple[Count, ...], Field(min_length=21, max_length=21, strict=False)]
    """Quantiles of an unconditioned response's length at 0, 5, …, 100 %."""

    @property
    def speedup(self) -> float:
        """Samples per second over those of plain synchronous rounds."""
        return self.baseline.seconds_per_sample / self.seconds_per_sample

    @property
    def memory_bars(self) -> list[tuple[Place, Literal["short", "long"] | None, MemoryBar]]:
        """(place, kind of round, bar) of every memory that is known: engines' and trainers' of each kind of round, then
        the host's, which has no kind."""
        bars: list[tuple[Place, Literal["short", "long"] | None, MemoryBar]] = []
        for kind, mean in self.rounds.kinds:
            bars.append(("kv", kind, mean.memory.kv))
            if mean.memory.train is not None:
                bars.append(("train", kind, mean.memory.train))
        return [*bars, ("host", None, self.host_memory)]

    @property
    def cut_share(self) -> float | None:
        """Share of the trained samples that the job's cap cuts; None if the plan does not state it."""
        return None if self.cut is None else self.cut.share

    @property
    def cut_extrapolated(self) -> bool:
        """Whether `cut` is of responses longer than any in the length trace."""
        cut, basis = self.cut, self.length_basis
        return bool(cut and cut.share and basis and basis.longest_seen_tokens < NEAR_CAP * cut.cap_tokens)

    length_basis: Annotated[LengthBasis | None, Field(exclude_if=is_none)] = None
    """Which of the simulated lengths the length trace shows; null: an older plan, which does not state it."""

    drift: LengthDrift | None
    """How lengths moved over the epochs of the trace; null: it has no two epochs of the same prompts. No prediction
    follows it: all hold for the policy that the lengths were measured on."""

    front: Annotated[tuple[FrontPoint, ...], Field(min_length=1, strict=False)]
    """Speed against bias: the fastest schedules for other bias budgets, least biased first."""
