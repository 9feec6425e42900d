"""Events that a round machine takes and actions that it returns.

A *draw* is one issued group of samples for one prompt; its number is its place in the round's order of issue.
A sample is named by (draw, sample). Both numbers start at 0 in each round, so a key is unique within its round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class SampleKey(NamedTuple):
    """One sample of one draw; sorts in the order of issue."""

    draw: int
    sample: int


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finished:
    """Decoding ended: `tokens` were generated; `truncated` if by the length limit of its issue, not by end-of-text."""

    key: SampleKey
    tokens: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class ReachedCutoff:
    """The sample has at least `cutoff_tokens` tokens and decodes on (sent at most once an issue, before `Finished`)."""

    key: SampleKey


@dataclass(frozen=True, slots=True)
class Scored:
    """The reward of a finished sample is known."""

    key: SampleKey
    reward: float


@dataclass(frozen=True, slots=True)
class Lost:
    """The engine that decoded the sample died, or gave it up, before its end; nothing that the policy did caused it."""

    key: SampleKey


@dataclass(frozen=True, slots=True)
class Failed:
    """The infrastructure failed on this sample for good (retries are used up); `reason` goes to the trace.

    Never for what the response caused, which has reward 0: a sample that failed is drawn again, and a draw that depends
    on what was drawn is no draw.
    """

    key: SampleKey
    reason: str


Event = Finished | ReachedCutoff | Scored | Lost | Failed


# -- actions -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Issue:
    """Start decoding a sample for `prompt`, at most `max_tokens` tokens; report `ReachedCutoff` at `cutoff_tokens`."""

    key: SampleKey
    prompt: str
    max_tokens: int
    cutoff_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """Compute the reward of a finished sample."""

    key: SampleKey


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop decoding the sample and cancel its reward; no event about this key will be looked at any more."""

    key: SampleKey


Action = Issue | Score | Abort
