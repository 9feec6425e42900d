"""The fewest reward workers with which a schedule costs as much, as far as is known."""

from __future__ import annotations

from dataclasses import replace

from ..candidate_search import Search
from ..cycle_cost import Cycle


def with_fewest_workers(search: Search, cycle: Cycle, alike: float) -> Cycle:
    """The schedule with the fewest reward workers of the search's choices with which it costs at most a share `alike`
    more; `cycle` itself if there are none.

    The passes of a search try a few counts. Those between are simulated here, for one schedule, on as many of the same
    rounds. Fewer workers never make it cheaper but for what they leave to engines on the same cores, so that halving
    the counts finds the least.
    """
    rewards, limits = search.space.rewards, search.limits
    if len(rewards) < 2:
        return cycle
    chosen = rewards[cycle.short.reward]
    fewer = [number for number, choice in enumerate(rewards) if choice.as_slow_as(chosen)]
    fewer = [number for number in fewer if rewards[number].all_workers < chosen.all_workers]
    fewer.sort(key=lambda number: rewards[number].all_workers)
    rounds = cycle.short.rounds, cycle.long.rounds if cycle.long else 0
    bar, low, high, least = (1.0 + alike) * cycle.cost(limits), 0, len(fewer), cycle
    while low < high:
        middle = (low + high) // 2
        other = search.simulate(_scored_by(cycle, fewer[middle]), *rounds)
        if other.trains and other.cost(limits) <= bar and not other.violations(limits):
            high, least = middle, other
        else:
            low = middle + 1
    return least


def _scored_by(cycle: Cycle, reward: int) -> Cycle:
    """The keys of a schedule with another reward choice; only keys and updates are read of it (Search.simulate)."""
    short = replace(cycle.short, key=cycle.short.key._replace(reward=reward))
    long = cycle.long and replace(cycle.long, key=cycle.long.key._replace(reward=reward))
    return replace(cycle, short=short, long=long)
