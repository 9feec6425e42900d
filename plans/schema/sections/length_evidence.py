"""How far a length trace shows the lengths that a plan was simulated with, and what to say where it does not."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..base import Count, Positive, Strict

FEWEST_PROMPTS = 20
"""Below so many prompts a bootstrap over them says nothing of 1 % of the samples."""

MUCH = 0.1
"""Share of the step, or of the gain over plain rounds, from which on lengths that were never seen decide a plan; of a
gain below 0.5 (1.5x) the share of 0.5."""


MUCH_AT_CAP = 0.2
"""Share of the responses at the cap from which on the cap, and not the lengths, says how long rounds last."""


class LengthBasis(Strict):
    """Which of the simulated lengths the trace shows, and what rests on lengths that are extrapolated."""

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

    def thin(self, speedup: float) -> list[str]:
        """Why the trace is too thin for a plan of this speed-up, in words that stand alone; empty if it is not."""
        found = []
        if few := few_lengths(self.prompts, self.samples):
            found.append(few)
        rests = abs(speedup - self.speedup_within) >= MUCH * max(speedup - 1.0, 0.5)
        if self.extrapolated and (self.step_share >= MUCH or rests):
            found.append(self.words(speedup))
        return found

    def words(self, speedup: float) -> str:
        """What is extrapolated, and what rests on it."""
        if not self.extrapolated:
            # The trace may go on: what it has beyond the job's cap counts as the cap.
            return (
                f"the length trace reaches {self.longest_seen_tokens:,} tokens or more, and no longer ones are "
                "simulated"
            )
        within, whole = f"{self.speedup_within:.2f}x", f"{speedup:.2f}x"
        gain = f"stays {whole}" if within == whole else f"is {within} instead of {whole}"
        return (
            f"the longest response in the length trace has {self.longest_seen_tokens:,} tokens; responses of up to "
            f"{self.longest_simulated_tokens:,} tokens are extrapolated "
            f"({self.beyond_share:.2%} of all); without them the step takes {self.step_share:.1%} less and the "
            f"speed-up {gain}"
        )


def few_lengths(prompts: int, samples: int) -> str | None:
    """What a reader must know if a trace holds too few lengths to tell rare ones; None if it holds enough."""
    if prompts >= FEWEST_PROMPTS and samples >= 2 * prompts:
        return None
    return (
        f"the length trace holds {samples} samples of {prompts} prompts; with fewer than {FEWEST_PROMPTS} prompts, or "
        "one sample of each, how long the longest of a step are, and how alike the samples of a prompt are, is a guess"
    )
