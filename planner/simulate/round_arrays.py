"""A round as arrays: its draws, and the fate of each draw, for the kernel and for the reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...rounds.balancing.length_estimates import NOTHING, Recorded
from ...rounds.compiled import kernel_state
from ...rounds.machines.outcome import Fate

FATES = {
    Fate.TRAINED: kernel_state.TRAINED,
    Fate.FILTERED: kernel_state.FILTERED,
    Fate.DEFERRED: kernel_state.DEFERRED,
    Fate.RETURNED: kernel_state.RETURNED,
    Fate.DISCARDED: kernel_state.DISCARDED,
}
"""Numbers of a draw's fates in `SimulatedRound.fate`."""


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Seconds from the round's start; tokens decoded, aborted ones included; preemptions.

    `freed_s` is when nothing decoded any more on the engines that stopped before the end, None if none did; `moved`
    samples went on elsewhere then, or because an engine had few.
    `cached_tokens` are prompt tokens that were not prefilled, since the engine held them.
    """

    end_s: float
    decode_end_s: float
    decoded_tokens: int
    preemptions: int
    freed_s: float | None = None
    moved: int = 0
    cached_tokens: int = 0

    @property
    def reward_exposed_s(self) -> float:
        """Seconds from the last token to the last reward."""
        return self.end_s - self.decode_end_s


@dataclass(frozen=True, slots=True, eq=False)
class RoundDraws:
    """All random draws of one round.

    Attributes:
        lengths: natural lengths, shape (rows, samples). Row k is the draw of the k-th prompt, those beyond the issued
            ones are the feed for refills; where prompts are redrawn, prompt k has its draws in rows offset[k] to
            offset[k + 1].
        prompt_tokens: shape (prompts,), those of the feed included.
        cap_tokens: the cap of the lengths.
        expected_tokens: what the balancer weighs a sample with.
        rewards: like `lengths`, or one number for all where no machine looks at them.
        reward_draws: likewise, in [0, 1): which of the equally likely seconds a sample's reward takes.
        prompt_draws: shape (prompts,), in [0, 1), or one number for all: the same for its prompt.
        offset: shape (prompts + 1,), where prompts are redrawn.
        recorded: what earlier rounds have recorded of the prompts, by their indices as text; read where samples are
            balanced by history.
        more: the feed has more prompts than there are rows.
    """

    lengths: NDArray[np.int32]
    prompt_tokens: NDArray[np.int32]
    cap_tokens: int
    expected_tokens: float
    rewards: NDArray[np.float64] | float = 0.0
    reward_draws: NDArray[np.float64] | float = 0.0
    prompt_draws: NDArray[np.float64] | float = 0.0
    offset: NDArray[np.int64] | None = None
    more: bool = False
    recorded: Recorded = NOTHING


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedRound:
    """A simulated round: its times, and the fate of each draw in order of issue.

    Attributes:
        times: of the round.
        row: the draw's row in the round's draws.
        prompt: index of the draw's prompt in the round's draws.
        fate: one of FATES' numbers.
        kept: shape (draws, samples): the sample is trained.
        exhausted: by prompt (rounds/machines/exact).
        ready_s: by draw, when it was certain to be trained and had all its rewards; NaN if it is not trained.
    """

    times: RoundTimes
    row: NDArray[np.int32]
    prompt: NDArray[np.int32]
    fate: NDArray[np.int8]
    kept: NDArray[np.bool_]
    exhausted: NDArray[np.bool_]
    ready_s: NDArray[np.float64]


class RanOut(Exception):
    """The round wants more draws than it was given rows for; give it more."""
