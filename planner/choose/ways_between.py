"""How weights get from trainers to engines in a schedule, and what pools of their own cost and save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...plans.phrases.numbers import count
from ...plans.schema.predicted import PredictedPhases
from ...plans.schema.sections.layouts import UpdateLayout
from ...profiles.profile_schema import Profile
from ..costs.colocation import shares_gpus, sleep_and_wake_s, state_moves_s
from ..costs.decode_costs import DecodeCost
from .candidate_search import Search
from .cycle_cost import Cycle


class Transfers(NamedTuple):
    """Seconds of a weight transfer, of each kind of round: directly, and with a relay."""

    direct_s: tuple[float, ...]
    relayed_s: tuple[float, ...]

    @property
    def relay_pays(self) -> bool:
        """Whether a relay is faster in any kind of round."""
        return any(relayed < direct for direct, relayed in zip(self.direct_s, self.relayed_s, strict=True))


def transfers_of(search: Search, cycle: Cycle) -> Transfers | None:
    """The transfers of a schedule over a link between its pools; None without pools of their own, or without a link."""
    ways = [(cost.travel, layout) for cost, layout in _kinds(search, cycle) if cost.travel is not None]
    if not search.space.pools.apart or not ways:
        return None
    direct, relayed = (tuple(way.seconds(layout, relay) for way, layout in ways) for relay in (False, True))
    return Transfers(direct, relayed)


def relays(search: Search, cycle: Cycle) -> bool:
    """Whether the schedule's plan relays: its pools do (JobPools.relay), and that is faster for its own layouts."""
    transfers = transfers_of(search, cycle)
    return search.space.pools.relay and transfers is not None and transfers.relay_pays


def transfer_text(search: Search, cycle: Cycle) -> str | None:
    """Text on both ways of weights over the link between two pools, with the seconds of each; None where they do not
    differ."""
    transfers = transfers_of(search, cycle)
    if transfers is None or transfers.direct_s == transfers.relayed_s:
        return None
    relay = (
        f"one copy of the weights crosses the link between the pools and is relayed: {_seconds(transfers.relayed_s)}"
    )
    direct = f"a broadcast to each node with engines: {_seconds(transfers.direct_s)}"
    return f"{relay}; {direct}" if relays(search, cycle) else f"{direct}; {relay}"


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


def _seconds(values: Sequence[float]) -> str:
    """Text: one figure, or one for each kind of round if they differ."""
    texts = list(dict.fromkeys(f"{value:.3g} s" for value in values))
    return texts[0] if len(texts) == 1 else f"{texts[0]} (short rounds) or {texts[-1]} (long rounds)"
