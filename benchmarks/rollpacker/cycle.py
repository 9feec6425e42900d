"""Step seconds of veRL and RollPacker, and the ablation: rollouts are simulated, other phases are as published.

RollPacker's parts, added one by one as in its table 2:
    tail     its rounds with quotas (quotas.py) instead of plain ones; rewards and updates after the rollout
    reward   rewards during the rollout: the published seconds after the last token remain
    planner  its rule: a kind of round in which sequences are preempted gets twice the TP, until none are
    trainer  streaming: the published part of a long round's update that its rollout does not hide remains
"""

from __future__ import annotations

from collections.abc import Callable

from rlplan.planner.costs.decode_costs import DecodeCost

from .case import Case, RoundPhases
from .quotas import Operated, OperatingPoint


def planned(
    point: OperatingPoint, cost_of: Callable[[int], DecodeCost | None], tp: int, operated: Operated
) -> Operated:
    """The operating point `operated` at `tp`, after RollPacker's TP rule; `cost_of(tp)` is None for no such engine."""
    while operated.preemptions > 0 and (wider := cost_of(2 * tp)) is not None:
        tp, operated = 2 * tp, point.operate(wider)
    return operated


def ablation(
    case: Case,
    plain_rollout_s: float,
    fixed: Operated,
    switched: Operated,
    share: float,
    short: RoundPhases,
    long: RoundPhases,
) -> dict[str, float]:
    """Mean seconds of a step with RollPacker's parts added one by one, "verl" first, "trainer" with all parts.

    Args:
        plain_rollout_s: rollout of a plain round.
        fixed, switched: the operating point on the published engines, and after the TP rule.
        share: of long rounds among the steps.
        short, long: the published phases.
    """
    plain = case.plain
    unhidden_s = case.race.long_train_unhidden_s
    if unhidden_s is None:
        unhidden_s = max(plain.train_s, long.train_s)

    def cycle_s(rollout: Operated, reward_s: tuple[float, float], long_train_s: float) -> float:
        in_short = rollout.short_s + reward_s[0] + short.train_s + short.sync_s
        in_long = rollout.long_s + reward_s[1] + long_train_s + long.sync_s
        return (1 - share) * in_short + share * in_long + case.race.other_s

    waited, beside = (plain.reward_s, plain.reward_s), (short.reward_s, long.reward_s)
    return {
        "verl": plain_rollout_s + plain.reward_s + plain.train_s + plain.sync_s,
        "tail": cycle_s(fixed, waited, unhidden_s),
        "reward": cycle_s(fixed, beside, unhidden_s),
        "planner": cycle_s(switched, beside, unhidden_s),
        "trainer": cycle_s(switched, beside, long.train_s),
    }
