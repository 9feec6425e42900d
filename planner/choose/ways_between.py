"""What pools of their own for engines and trainers cost and save in a schedule."""

from __future__ import annotations

from ...plans.phrases.numbers import count
from ...plans.schema.levers import UpdateLayout
from ...plans.schema.predicted import PredictedPhases
from ...profiles.profile_schema import Profile
from ..costs.colocation import shares_gpus, sleep_and_wake_s, state_moves_s
from ..costs.decode_costs import DecodeCost
from .candidate_search import Search
from .cycle_cost import Cycle


def placement_text(search: Search, cycle: Cycle, profile: Profile, phases: PredictedPhases) -> str | None:
    """Text on pools of their own for engines and trainers, beside taking turns; None where they take turns."""
    if search.space.train_pool is None:
        return None
    nodes, step_s = cycle.taken(search.limits), phases.rollout + phases.reward_exposed + phases.train + phases.sync
    text = (
        f"engines on {count(nodes.rollout, 'node')} of pool '{search.space.pool}', trainers on "
        f"{count(nodes.train, 'node')} of pool '{search.space.train_pool}'; in the mean step engines idle "
        f"{100 * (phases.train + phases.reward_exposed) / step_s:.0f}% and trainers "
        f"{100 * (phases.rollout + phases.reward_exposed) / step_s:.0f}% of the time"
    )
    if not shares_gpus(profile):
        return text
    kinds = _kinds(search, cycle)
    turns = max(sleep_and_wake_s(profile, cost.key.tp) for cost, _ in kinds)
    moves = max(state_moves_s(profile, layout) for _, layout in kinds)
    return f"{text}; on one pool, turns would take {turns + moves:.2g} s of each step (sleep, wake, optimizer states)"


def _kinds(search: Search, cycle: Cycle) -> list[tuple[DecodeCost, UpdateLayout]]:
    """Engines and trainers of the schedule's kinds of round, short first."""
    space = search.space
    kinds = [(space.decode[cycle.short.layout], space.train[cycle.train].layout)]
    if cycle.long is not None:
        kinds.append((space.decode[cycle.long.layout], space.train[cycle.long_train].layout))
    return kinds
