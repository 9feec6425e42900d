"""How scoring may fail, and who is to blame: the response, the row, or the machine."""

from __future__ import annotations

MEMORY_BYTES = 1 << 30
"""Address space that a response may take where the job says nothing: of the process that runs its code, in which an
interpreter alone takes 20 MB; of the one that scores many, beyond what the function's imports take."""


class PolicyError(Exception):
    """The response itself made scoring fail; the sample's reward is 0 and its outcome `policy_error`."""


class PolicyTimeout(Exception):
    """The response used up the time that it had; the sample's reward is 0 and its outcome `policy_timeout`."""


class InfrastructureError(Exception):
    """Scoring failed for a reason that no response can have caused; the sample is drawn again."""


class RowError(InfrastructureError, ValueError):
    """The row's answer cannot be scored against, whatever the response."""
