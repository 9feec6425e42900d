"""The numbers by which a plan balances a round's samples by history (rounds/balancing/), from a layout's costs."""

from __future__ import annotations

from ....plans.schema.levers import RoundBalance
from ...costs.decode_costs import DecodeCost

DIGITS = 4


def balance_of(cost: DecodeCost) -> RoundBalance:
    """The numbers of rounds on a layout. Where its decode steps bend with the batch, the line through their ends."""
    b = (cost.base_s(cost.max_sequences) - cost.base_s(1)) / max(cost.max_sequences - 1, 1)
    return RoundBalance(
        by="history",
        step_s=_rounded(max(cost.base_s(1) - b, 1e-9)),
        step_s_per_sequence=_rounded(b),
        step_s_per_kv_token=_rounded(cost.kv_s(1)),
        kv_capacity_tokens=cost.kv_capacity_tokens,
    )


def _rounded(value: float) -> float:
    """To as many digits as costs are known to, so that plans are easy to read."""
    return float(f"{value:.{DIGITS}g}")
