"""Ties go to the simplest: of schedules that cost the same as far as is known, the one that is easiest to run.

The program proves which schedule costs least by the simulation. A difference that is smaller than the error of the
costs proves nothing, and a team would rather run one kind of round than two, and one layout than two. So every schedule
that keeps the limits and costs at most `tolerance` more than the proven best is tied with it, and of those the first in
this order is the plan:

    1. mode sync before exact and predict, and these before the biased defer and race
    2. one kind of round before two
    3. one layout of engines and one of trainers for both kinds of round before two
    4. trainers: data parallel before tensor before sequence before context parallel before a pipeline; one copy of the
       states before several
    5. engines: the smaller tensor parallel size
    6. what the executor can run before what it cannot, where that is considered (`--for any`)
    7. fewer engines
    8. the lower cost; of those within `ALIKE` of the lowest, the fewest samples issued for each that is trained, then
       the fewest reward workers

`tolerance` is the error of the costs, one standard deviation, but never above `MOST`: an error says that a difference
may be none, and the best guess of it stays what was simulated. Schedules of one mode in the same layouts (8) stand on
the same coefficients, and an error of these changes the costs of all of them alike. So their difference is known better
than the cost of any of them, and only the sampling error of the simulation makes them tie.

What is not plain synchronous has to earn its place: of mode sync with drafts only those schedules are planned that are
faster by `ALIKE` than the fastest plain rounds on the same nodes, and of another mode those that are faster by the
tolerance, `ALIKE` at least, than the fastest ones of mode sync. So no tie goes from a mode that gains to one that does
not. The same layouts do not make two modes alike: what a mode gains rests on the tail of the lengths and on how alike a
prompt's samples are, it is paid for in samples that are decoded in vain and in steps of two lengths, and it does not
cancel as costs do. A forced mode has nothing to earn, but no tie makes it slower than plain rounds.

Candidates that lost early have few rounds. They are compared with the best schedule on the rounds that both have, which
are on the same draws, and the one that wins the tie is simulated further before it is believed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ...plans.facts.executable import SAME_IN_BOTH_KINDS, update_faults
from ...rounds.round_spec import UNBIASED
from ..costs.update_costs import TrainCost
from .candidate_search import Search, is_plain
from .candidates.candidate_rounds import over_issue
from .candidates.round_kinds import LongKey, ShortKey
from .cost_error import step_error
from .cycle_cost import Column, Cycle, make_cycle, partners_of, train_pairs
from .holdout_rounds import scheduled_rounds

# The fewest reward workers with which a schedule costs as much, as far as is known.


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


MOST = 0.05
"""Share of the cost that is given up for a simpler schedule at most."""

ALIKE = 0.01
"""Share of the cost that is given up for fewer issued samples at most, among schedules of the same layouts."""

CostOn = Callable[[int, int], float]
"""The best schedule's cost on its first so many short and long rounds."""

TRAINER_SIZES = ("pp", "cp", "sp", "ep", "tp", "state_copies")
"""Sizes of an update, the least simple first."""

TRIES = 8
"""Schedules that are simulated further because they win a tie on few rounds; then only those with enough rounds win."""

ENOUGH = 0.5
"""Share of a last pass's rounds that a schedule needs to win a tie; on the same draws as the best, fewer tell
enough."""


def tolerance_of(search: Search, best: Cycle) -> float:
    """Share of its cost up to which others are tied with `best`."""
    return min(MOST, step_error(search.space.profile, scheduled_rounds(search, best)))


def simplest(search: Search, best: Cycle, tolerance: float) -> Cycle:
    """The simplest schedule tied with `best`, which may be `best` itself.

    May simulate candidates further, which leaves `best` and all rounds that there are as they were.
    """
    enough, tried, cost = _enough(search), 0, _cost_on(search, best)
    short_columns, long_columns = search.columns()
    short, long = {c.name: c for c in short_columns}, {c.name: c for c in long_columns}
    while True:
        tied = _tied(search, best, cost, tolerance, list(short.values()), list(long.values()), tried >= TRIES)
        chosen = _first(search, best, cost, _earning(search, best, cost, tied, tolerance))
        if chosen is best or _solid(search, chosen):
            return with_fewest_workers(search, chosen, ALIKE)
        further = search.simulate(chosen, *enough)
        short[further.short.name] = further.short
        if further.long is not None:
            long[further.long.name] = further.long
        tried += 1


def least_gain(cycle: Cycle, tolerance: float) -> float:
    """Share by which a schedule that is not plain must be faster than what is simpler, to be planned by default."""
    return ALIKE if cycle.short.deferral.mode == "sync" else max(ALIKE, tolerance)


def _earning(search: Search, best: Cycle, cost: CostOn, tied: list[Cycle], tolerance: float) -> list[Cycle]:
    """Of the schedules that are tied with `best` those that gain enough over simpler ones on its nodes: over plain
    rounds, and what is of another mode than sync also over sync. If none does, the fastest simpler one.

    Of a forced mode those that are not slower than the simpler ones; if all are, all."""
    limits, nodes, free = search.limits, best.taken(search.limits), search.chooses_plain
    price = best.cost(limits) / best.seconds_per_sample(limits.group_size)

    def slow(cycle: Cycle) -> float:
        """Seconds of a sample over those of `best` on the rounds that both have."""
        of_best = cost(cycle.short.rounds, cycle.long.rounds if cycle.long else 0) / price
        return cycle.seconds_per_sample(limits.group_size) / of_best

    def fastest_sync(only_plain: bool) -> Cycle | None:
        """The fastest schedule of mode sync; one that was simulated on few rounds is simulated further first."""
        for _ in range(TRIES):
            fitting = [c for c in search.sync_cycles() if c.taken(limits).within(nodes) and not c.violations(limits)]
            first = min(
                (c for c in fitting if is_plain(c) or not only_plain), key=lambda c: (slow(c), c.name), default=None
            )
            if first is None or _solid(search, first):
                break
            search.simulate(first, *_enough(search))
        return first

    any_sync, plain = fastest_sync(only_plain=False), fastest_sync(only_plain=True)

    def earns(cycle: Cycle) -> bool:
        simpler = plain if cycle.short.deferral.mode == "sync" else any_sync
        if is_plain(cycle) or simpler is None:
            return True
        return (1.0 + free * least_gain(cycle, tolerance)) * slow(cycle) <= (1.0 + 1e-9) * slow(simpler)

    earning = [c for c in tied if earns(c)]
    if free and not earning:
        return [next(c for c in (any_sync, plain) if c is not None and earns(c))]
    return earning or tied


def _first(search: Search, best: Cycle, cost: CostOn, tied: list[Cycle]) -> Cycle:
    """The first of the schedules that are tied with `best`, in the order of the module's docstring."""
    keyed = [(simplicity(search, cycle), cycle) for cycle in tied]
    layouts = min(key for key, _ in keyed)
    costs = [(_above(search, best, cost, cycle), cycle) for key, cycle in keyed if key == layouts]
    bar = (1.0 + ALIKE) * (1.0 + min(above for above, _ in costs)) - 1.0
    target, group_size = search.setting.target, search.setting.group_size
    alike = [cycle for above, cycle in costs if above <= bar]
    return min(
        alike,
        key=lambda c: (
            issued_per_trained(c, target, group_size),
            search.space.rewards[c.short.reward].all_workers if search.space.rewards else 0,
            c.cost(search.limits),
            c.name,
        ),
    )


def simplicity(search: Search, cycle: Cycle) -> tuple[float, ...]:
    """The sort key of points 1 to 7 of the module's docstring, most important first; a smaller key is simpler."""
    kinds: list[Column[Any]] = [cycle.short, *([cycle.long] if cycle.long else [])]
    trains = [search.space.train[cycle.train], *([search.space.train[cycle.long_train]] if cycle.long else [])]
    layouts, mode = {layout for kind in kinds for layout in kind.key.layouts}, cycle.short.deferral.mode
    return (
        (mode != "sync") + (mode not in UNBIASED),
        len(kinds),
        (len(layouts) - 1) + (len(set(trains)) - 1),
        *(max(getattr(train.layout, size) for train in trains) for size in TRAINER_SIZES),
        max(layout.tp for layout in layouts),
        not executable(cycle, trains),
        sum(layout.engines for layout in layouts),
    )


def executable(cycle: Cycle, trains: list[TrainCost]) -> bool:
    """Whether the executor can run the cycle (plans/facts/executable.py)."""
    alike = all(len({getattr(t.layout, size) for t in trains}) == 1 for size in SAME_IN_BOTH_KINDS)
    return alike and not any(any(update_faults(t.layout, None)) for t in trains)


def issued_per_trained(cycle: Cycle, target: int, group_size: int) -> float:
    """Samples that rounds issue at their start for each that they train, mean over the cycle's steps."""
    key = cycle.short.key
    share, short = cycle.long_share(), over_issue(key.prompts, key.samples, target, group_size)
    if cycle.long is None:
        return short
    long = cycle.long.key
    return (1.0 - share) * short + share * (long.queue[0] / target if long.queue else long.copies)


def cost_above(search: Search, best: Cycle, cycle: Cycle) -> float:
    """Share by which `cycle` costs more than `best` on the rounds that both have; 0 if it is `best`."""
    return _above(search, best, _cost_on(search, best), cycle)


def _above(search: Search, best: Cycle, cost: CostOn, cycle: Cycle) -> float:
    """`cost_above`, where `cost` is the cost of `best` on its first rounds."""
    if cycle.name == best.name:
        return 0.0
    common = cost(cycle.short.rounds, cycle.long.rounds if cycle.long else 0)
    return max(0.0, cycle.cost(search.limits) / common - 1.0)


def _enough(search: Search) -> tuple[int, int]:
    """(short, long) rounds that a schedule needs to win a tie."""
    last = search.passes[-1]
    return math.ceil(ENOUGH * last.short_rounds), math.ceil(ENOUGH * last.long_rounds)


def _solid(search: Search, cycle: Cycle) -> bool:
    """Whether the cycle has enough rounds to win a tie."""
    short, long = _enough(search)
    return cycle.short.rounds >= short and (cycle.long is None or cycle.long.rounds >= long)


def _tied(
    search: Search,
    best: Cycle,
    cost: CostOn,
    tolerance: float,
    short: list[Column[ShortKey]],
    long: list[Column[LongKey]],
    solid_only: bool,
) -> list[Cycle]:
    """Schedules of as many nodes that keep the limits and cost at most `tolerance` more than `best`, `best` included.

    Of the pairs of updates those in which both kinds of round update alike, which are the simpler ones, and those that
    can be part of a best cycle.
    """
    limits, nodes = search.limits, best.taken(search.limits)
    partners = partners_of(long)
    schedules = [best]
    for column in short:
        if not search.may_choose(column.deferral.mode):
            continue
        wanted = (column.deferral, column.reward)
        for partner in partners.get(wanted, []) if column.deferral in search.needs_long else [None]:
            bar = (1.0 + tolerance) * cost(column.rounds, partner.rounds if partner else 0)
            for cycle in _within(column, partner, bar, search):
                tied = cycle.taken(limits) == nodes and not cycle.violations(limits)
                if tied and cycle.name != best.name and (_solid(search, cycle) or not solid_only):
                    schedules.append(cycle)
    return schedules


def _within(short: Column[ShortKey], long: Column[LongKey] | None, bar: float, search: Search) -> Iterator[Cycle]:
    """Schedules of these two kinds of round that cost at most `bar`."""
    limits, trains = search.limits, range(len(search.space.train))
    fastest = [min(trains, key=lambda m: (c.step_s[m], m)) for c in (short, long or short)]
    least = make_cycle(short, long, fastest[0], fastest[1], dataclasses.replace(limits, reshard_s=0.0))
    # Fewer nodes than both layouts take there are none, whatever updates are chosen: most pairs need no closer look.
    price = limits.usd_per_node_s * max(map(limits.nodes_of, {short.layout, (long or short).layout}))
    unit = price if limits.objective == "usd" else 1.0
    if not least.trains or unit * least.seconds_per_sample(limits.group_size) > bar:
        return
    pairs = {(m, m) for m in trains} | (train_pairs(short, long, limits) if long else set())
    for pair in sorted(pairs):
        cycle = make_cycle(short, long, *pair, limits)
        if cycle.cost(limits) <= bar:
            yield cycle


def _cost_on(search: Search, best: Cycle) -> CostOn:
    """Cost of `best` on its first so many short and long rounds; 0 long rounds: on all of them."""
    costs: dict[tuple[int, int], float] = {}
    limits = search.limits
    scale = best.cost(limits) / best.seconds_per_sample(limits.group_size)

    def cost(short: int, long: int) -> float:
        key = min(short, best.short.rounds), min(long or best.long.rounds, best.long.rounds) if best.long else 1
        if key not in costs:
            costs[key] = scale * sum(search.phase_seconds(best, *key).values())
        return costs[key]

    return cost
