"""Schedules of simulated columns: every pair of a short and a long column, with the updates that can be best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .candidates.round_kinds import DeferralRule
from .cycle_cost import Column, Cycle, make_cycle
from .plan_limits import Limits


def all_cycles(
    short: Sequence[Column],
    long: Sequence[Column],
    needs_long: set[DeferralRule],
    limits: Limits,
    every_train: bool = False,
) -> list[Cycle]:
    """Every choice that is a schedule: a column whose rule defers goes with long columns of it that are scored alike,
    others with none.

    Of the pairs of update choices those are taken that can be part of a best cycle (`_train_pairs`), or all of them.
    """
    by_rule = partners_of(long)
    rivals = _rivals(range(len(short[0].step_s)), limits) if short else {}
    best = {c.name: _best_trains(c, limits, rivals) for c in [*short, *long]}
    cycles = []
    for column in short:
        partners: Sequence[Column | None] = (
            by_rule.get((column.deferral, column.reward), []) if column.deferral in needs_long else [None]
        )
        for partner in partners:
            if every_train:
                choices = range(len(column.step_s))
                pairs = {(m, w) for m in choices for w in (choices if partner else [m])}
            else:
                pairs = _train_pairs(best[column.name], best[partner.name] if partner else None)
            cycles += [make_cycle(column, partner, *pair, limits) for pair in sorted(pairs)]
    return cycles


def partners_of(long: Sequence[Column]) -> dict[tuple[DeferralRule, int], list[Column]]:
    """Long columns by what a short column must have in common with them: the deferral rule, and the number of its
    reward choice, since both kinds of round have the same workers."""
    partners: dict[tuple[DeferralRule, int], list[Column]] = {}
    for column in long:
        partners.setdefault((column.deferral, column.reward), []).append(column)
    return partners


def train_pairs(short: Column, long: Column, limits: Limits) -> set[tuple[int, int]]:
    """Pairs of update choices of a short and a long column that can be part of a best cycle."""
    rivals = _rivals(range(len(short.step_s)), limits)
    return _train_pairs(_best_trains(short, limits, rivals), _best_trains(long, limits, rivals))


def _rivals(choices: Sequence[int], limits: Limits) -> dict[tuple[int, int], list[int]]:
    """Update choices by (nodes at most, sharding).

    Sharding -1 is any: what a cycle takes that changes shards between its kinds of round, where it may.
    """
    levels = sorted({limits.train_nodes_of(m) for m in choices}) if limits.objective == "usd" else [0]
    shardings = set() if limits.one_sharding else {-1}
    if limits.one_sharding or limits.reshard_s > 0:
        shardings |= {limits.sharding_of(m) for m in choices}
    fits = {
        (level, sharding): [
            m
            for m in choices
            if (level == 0 or limits.train_nodes_of(m) <= level) and sharding in (-1, limits.sharding_of(m))
        ]
        for level in levels
        for sharding in shardings
    }
    return {key: choices for key, choices in fits.items() if choices}


def _best_trains(
    column: Column, limits: Limits, rivals: dict[tuple[int, int], list[int]]
) -> dict[tuple[int, int], list[int]]:
    """Of each of `rivals` the fastest update choice, and, under an SLO, the one with the fewest slow steps."""
    fastest: dict[tuple[int, int], list[int]] = {}
    for key, fits in rivals.items():
        fastest[key] = [min(fits, key=lambda m: (column.step_s[m], m))]
        if limits.slo:
            fastest[key].append(min(fits, key=lambda m: (column.slow[m], column.step_s[m], m)))
    return fastest


def _train_pairs(
    short: dict[tuple[int, int], list[int]], long: dict[tuple[int, int], list[int]] | None
) -> set[tuple[int, int]]:
    """Pairs that no other pair beats: costs and slow shares of a cycle are sums over its columns, and what a change of
    shards costs does not depend on which. Exact but for cycles that trade speed of one kind for calm of the other.
    """
    if long is None:
        return {(m, m) for choices in short.values() for m in choices}
    return {(m, w) for key, choices in short.items() if key in long for m in choices for w in long[key]}


def count_cycles(short: Sequence[Column], long: Sequence[Column], needs_long: set[DeferralRule], limits: Limits) -> int:
    """How many schedules there are, all update choices counted that may go together."""
    partners = Counter((c.deferral, c.reward) for c in long)
    updates = len(short[0].step_s) if short else 0
    pairs = updates**2
    if limits.one_sharding:
        pairs = sum(count**2 for count in Counter(map(limits.sharding_of, range(updates))).values())
    return sum(pairs * partners[c.deferral, c.reward] if c.deferral in needs_long else updates for c in short)
