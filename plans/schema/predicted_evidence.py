"""Sections of `predicted` in plan.yaml: `limit`, the least seconds of the plan's step on its hardware, and what they
are calculated from (profiles/laws/hardware_peaks.py; by hand in docs/planning.md); and which of the simulated lengths
the length trace shows, with the warnings about lengths that it does not show."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from pydantic import Field

from ..phrases.numbers import MATTERS
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


LEAST_PROMPTS = 4
"""With fewer prompts nothing is solved: their lengths would say less than those of any other job of the kind."""

FEWEST_PROMPTS = 20
"""With fewer prompts a bootstrap over them cannot estimate the longest 1 % of the samples."""

MUCH = 0.1
"""Lengths that no response of the trace has decide a plan if they make up this share of the step, or of the gain over
plain rounds (a gain below 0.5, which is 1.5x, counts as 0.5)."""


MUCH_AT_CAP = 0.2
"""If this share of the responses reaches the cap, then the cap, and not the lengths, decides how long rounds last."""


class LengthBasis(Strict):
    """Which of the simulated lengths the trace shows, and the figures that depend on extrapolated lengths."""

    prompts: Count
    """Different prompts in the trace."""

    samples: Count
    """Responses in the trace."""

    longest_seen_tokens: Count
    """The longest response in the trace, the job's cap if that cut it."""

    longest_simulated_tokens: Count
    """The longest response that is simulated; above `longest_seen_tokens` it is extrapolated."""

    beyond_share: Annotated[float, Field(ge=0, le=1)]
    """Share of the simulated responses that are longer than the longest seen."""

    step_share: Annotated[float, Field(ge=0, le=1)]
    """Share of the mean step's seconds that is saved if no response is longer than the longest seen."""

    speedup_within: Positive
    """Speed-up over plain rounds if no response is longer than the longest seen."""

    @property
    def extrapolated(self) -> bool:
        """Whether some simulated responses are longer than any in the trace."""
        return self.longest_simulated_tokens > self.longest_seen_tokens

    def thin_reasons(self, speedup: float) -> list[str]:
        """Return why the trace is too thin for a plan of this speed-up, a sentence each; empty if it is not."""
        reasons = []
        if few := few_lengths(self.prompts, self.samples):
            reasons.append(few)
        decides_gain = abs(speedup - self.speedup_within) >= MUCH * max(speedup - 1.0, 0.5)
        if self.extrapolated and (self.step_share >= MUCH or decides_gain):
            reasons.append(self.sentence(speedup))
        return reasons

    def sentence(self, speedup: float) -> str:
        """Return a sentence on which lengths are extrapolated, and on how much of the step and the gain they decide."""
        if not self.extrapolated:
            # The trace may go on: what it has beyond the job's cap counts as the cap.
            return (
                f"the length trace reaches {self.longest_seen_tokens:,} tokens or more, and no longer ones are "
                "simulated"
            )
        without, full = f"{self.speedup_within:.2f}x", f"{speedup:.2f}x"
        gain = f"stays {full}" if without == full else f"is {without} instead of {full}"
        effect = f"without them the step takes {self.step_share:.1%} less and the speed-up {gain}"
        if without == full and self.step_share < MATTERS:
            effect = f"they take less than {MATTERS:.0%} of the step"
        return (
            f"the longest response in the length trace has {self.longest_seen_tokens:,} tokens; longer ones, of up to "
            f"{self.longest_simulated_tokens:,}, are extrapolated and are {self.beyond_share:.2%} of all; {effect}"
        )


def few_lengths(prompts: int, samples: int) -> str | None:
    """Return a warning if a trace holds too few responses to estimate rare lengths; None if it holds enough."""
    if prompts >= FEWEST_PROMPTS and samples >= 2 * prompts:
        return None
    return (
        f"the length trace holds {samples} samples of {prompts} prompts; with fewer than {FEWEST_PROMPTS} prompts, or "
        "one sample of each, how long the longest of a step are, and how alike the samples of a prompt are, is a guess"
    )


class LengthDrift(Strict):
    """How lengths moved from epoch to epoch of the length trace: change of their logarithm per epoch."""

    body: float
    """Change of a prompt's mean log length, per epoch."""

    body_error: NonNegative
    """Standard error of `body`."""

    tail: float
    """Change of the 95th percentile of log lengths over all responses, per epoch."""

    tail_error: NonNegative
    """Standard error of `tail`."""

    first: Annotated[int, Field(ge=0)]
    """First epoch of the trace."""

    last: Annotated[int, Field(ge=0)]
    """Last epoch of the trace."""
