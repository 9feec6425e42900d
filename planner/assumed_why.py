"""The plan's words on what it rests on and nobody measured on its job."""

from __future__ import annotations

import math

from ..profiles.reward_tables import RewardTable
from .assumed import AssumedEffects
from .table_lengths import TableTrace


def assumed_why(effects: AssumedEffects, trace: object, rewards: RewardTable | None) -> dict[str, str]:
    """By key of `why`: whose figures they are, and what is left of the speed-up where they are off."""
    found = {}
    if isinstance(trace, TableTrace):
        table = trace.table
        factor = math.exp(table.error.scale)
        of = f"{table.model} on {table.task}" if table.model else table.source
        off = table.error.icc
        told = effects.words("scale", f"lengths {1 / factor:.2g}x", f"lengths {factor:.2g}x")
        dependence = effects.words("icc", f"ICC {off:g} lower", f"ICC {off:g} higher")
        found["lengths"] = (
            f"assumed, not of this job: '{table.name}', {of}, cap {table.cap_tokens} tokens, ICC {table.icc:g}; {told}"
            f"; {dependence}"
        )
    if rewards is not None:
        factor = math.exp(rewards.error.scale)
        if rewards.per_sample_s is not None:
            law = f"{rewards.per_sample_s:g} s a sample"
        else:
            assert rewards.right_s is not None and rewards.wrong_s is not None, "it has one of the two"
            law = (
                f"a right answer takes {_middle(rewards.right_s):g} s and a wrong one {_middle(rewards.wrong_s):g} s "
                f"in the median, and {rewards.hanging:.0%} of the wrong ones run until the deadline"
            )
        told = effects.words("seconds", f"rewards {1 / factor:.2g}x", f"rewards {factor:.2g}x")
        found["reward.seconds"] = f"assumed, not of this job, for kind {rewards.kind}: {law}; {told}"
    return found


def _middle(values: tuple[float, ...]) -> float:
    return values[len(values) // 2]
