"""The section `predicted.limit` of plan.yaml: the least seconds of the plan's step on its hardware, and what they are
calculated from (profiles/laws/hardware_peaks.py; by hand in docs/planning.md)."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from pydantic import Field

from .base import Count, NonNegative, Positive, Strict, is_none

Figure = TypeVar("Figure")


class ByPhase(Strict, Generic[Figure]):
    """A figure for each phase of a step."""

    rollout: Figure
    """Decoding."""

    reward_exposed: Figure
    """Waiting for rewards after the last token."""

    train: Figure
    """Gradients and update."""

    sync: Figure
    """Getting the new weights to the engines."""


class PhaseLimit(Strict):
    """A phase of the mean step."""

    limit_s: NonNegative
    """The least seconds that it can take."""

    predicted_s: NonNegative
    """The predicted seconds (`predicted.phases_s`); of training those of whole updates."""

    ratio: NonNegative
    """The one over the other: of decoding the share of the bandwidth that is used, of training the MFU."""


class LimitPhases(ByPhase[PhaseLimit]):
    """The phases of the mean step. Rewards and weights are waited for, so their least is 0."""


class RoundLimit(Strict):
    """The work of one kind of round, mean over simulated rounds, and the least seconds that it can take."""

    decode_steps: NonNegative
    """Decode steps of the engine that makes the most; with drafts, in which one gives several tokens, fewer."""

    step_parameters: Annotated[NonNegative | None, Field(exclude_if=is_none)] = None
    """Of a mixture of experts, parameters that a decode step reads, mean over steps; null: `parameters`."""

    read_kv_tokens: NonNegative
    """KV tokens that decode steps read, each step those of its sequences, over all engines."""

    trained_tokens: NonNegative
    """Tokens of the samples that are trained, prompts included."""

    trained_squares: NonNegative
    """Sum over these samples of their squared tokens."""

    rollout_s: NonNegative
    """The least seconds of decoding."""

    train_s: NonNegative
    """The least seconds of the whole update."""

    update_s: Annotated[NonNegative | None, Field(exclude_if=is_none)] = None
    """Predicted seconds of the whole update where some of it is done beside the rollout; null: nothing is."""


class HardwareLimit(Strict):
    """The plan's step if weights were read once a decode step, KV once, updates ran at peak and nothing waited."""

    step_s: NonNegative
    """The least seconds of the mean step."""

    ratio: NonNegative
    """`step_s` over the predicted seconds (`predicted.step_s.mean`)."""

    phases: LimitPhases
    """The same by phase."""

    parameters: Count
    """Parameters that a token uses (N), embeddings counted; of a mixture of experts with those that it visits."""

    weight_bytes: Annotated[int, Field(ge=1, le=8)]
    """Bytes of a parameter in the engines."""

    attention_width: Annotated[int, Field(ge=0, le=10**12)]
    """Layers x heads x head size (A); 0: not known, and attention is left out."""

    kv_bytes_per_token: Count
    """KV bytes of a token, over a whole engine."""

    peak_flops: Positive
    """Dense operations a second of an accelerator in the job's dtype."""

    peak_bytes_per_s: Positive
    """Bytes a second of its memory."""

    short: RoundLimit
    """Short rounds."""

    long: RoundLimit | None
    """Long rounds; null when the plan has none."""

    @property
    def tokens_by_token(self) -> float:
        """Tokens of a trained sample of short rounds, mean over all trained tokens."""
        return self.short.trained_squares / self.short.trained_tokens if self.short.trained_tokens else 0.0
