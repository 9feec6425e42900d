"""What a reward says of a response, and how scoring may fail: by the response's fault, the row's, or the machine's."""

from __future__ import annotations

from dataclasses import dataclass

MEMORY_BYTES = 1 << 30
"""Address space that a response may take where the job says nothing: of the process that runs its code, in which an
interpreter alone takes 20 MB; of the one that scores many, beyond what the function's imports take."""


@dataclass(frozen=True)
class Verdict:
    """The value of a response, and how the reward came to it: what `rlplan rewards try` prints.

    Attributes:
        reward: of the response.
        why: the reason in one line; empty where the reward is full.
        steps: (name, text) of each step on the way, in order: what was extracted, parsed, which tests ran.
        timed_out: whether the response used up the time that it had.
    """

    reward: float
    why: str = ""
    steps: tuple[tuple[str, str], ...] = ()
    timed_out: bool = False


class PolicyError(Exception):
    """The response itself made scoring fail; the sample's reward is 0 and its outcome `policy_error`."""


class PolicyTimeout(Exception):
    """The response used up the time that it had; the sample's reward is 0 and its outcome `policy_timeout`."""


class InfrastructureError(Exception):
    """Scoring failed for a reason that no response can have caused; the sample is drawn again."""


class RowError(InfrastructureError, ValueError):
    """The row's answer cannot be scored against, whatever the response."""
