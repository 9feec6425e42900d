"""The compiled search of pricing.py: depth first over jobs, then over the modes of each and over its nodes.

Jobs come in the order of value over fluid price, so that the first that cannot lift a partial group above the floor
ends its depth.

Nodes of one pool that the same phases hold are alike, so a partial group is a list of *kinds* of node: pool, who holds
it, how many there are. A phase takes so many nodes of each kind, and the rest of what it needs is new; which ones it
takes says nothing. A depth has two levels, one for a job's rollout and one for its training, and each level is a
counter over what is taken of each kind, the most shared first. So the width of a phase costs no memory, and no choice
of nodes is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .pricing_words import has, node_word


@njit(cache=True)  # type: ignore[untyped-decorator]
def _first(take: Any, room: Any, kinds: int, need: int) -> None:
    """The first choice: as many old nodes as there are, of the first kinds."""
    for c in range(kinds):
        take[c] = min(room[c], need)
        need -= take[c]


@njit(cache=True)  # type: ignore[untyped-decorator]
def _next(take: Any, room: Any, kinds: int, need: int) -> bool:
    """The next choice, with as many old nodes or fewer; whether there was one."""
    total = 0
    for c in range(kinds):
        total += take[c]
    # As many as before, in another way: one less of some kind, the rest moved to the kinds after it.
    tail, space = 0, 0
    for c in range(kinds - 1, -1, -1):
        if take[c] > 0 and space > tail:
            take[c] -= 1
            left = tail + 1
            for d in range(c + 1, kinds):
                take[d] = min(room[d], left)
                left -= take[d]
            return True
        tail += take[c]
        space += room[c]
    if total == 0:
        return False
    _first(take, room, kinds, total - 1)
    return True


@njit(cache=True)  # type: ignore[untyped-decorator]
def _joined(k: int, meets: Any, left: Any) -> int:
    """Number of connected parts of the first k members; `left` is scratch."""
    for i in range(k):
        left[i] = True
    parts = 0
    for first in range(k):
        if not left[first]:
            continue
        parts += 1
        left[first] = False
        grew = True
        while grew:
            grew = False
            for i in range(k):
                if not left[i]:
                    continue
                for j in range(k):
                    if not left[j] and meets[i, j]:
                        # A member of this part, or of one before; but those are complete, so it meets none of them.
                        left[i] = False
                        grew = True
                        break
    return parts


@njit(cache=True)
def search(  # type: ignore[no-untyped-def]
    order, first, tokens, pool, share, size, count, fluid, least, values, usd, memory, full, cap, floor, known, parts,
    max_steps, most_kinds, rows, profits, words,
):  # fmt: skip
    """Found, floor, steps, and whether every choice could be tried: no more than `most_kinds` kinds of node occurred.

    A row of `rows` is: members, kinds of node; the mode of each member; of each kind its pool, its number of nodes, and
    how each member holds it (1: rollout, 2: training, 3: both).
    """
    jobs = len(order)
    # By position in the order: the most that a job from there on is worth.
    top = np.zeros(jobs + 1)
    for q in range(jobs - 1, -1, -1):
        top[q] = max(top[q + 1], values[order[q]])
    # By level: what the group is before the level's phase is placed.
    levels = 2 * cap + 1
    kinds = np.zeros(levels, np.int64)
    pools, number = np.zeros((levels, most_kinds), np.int64), np.zeros((levels, most_kinds), np.int64)
    load, used = np.zeros((levels, most_kinds)), np.zeros((levels, most_kinds))
    holds = np.zeros((levels, most_kinds, cap), np.int64)
    cost = np.zeros(levels)
    take, room = np.zeros((levels, most_kinds), np.int64), np.zeros((levels, most_kinds), np.int64)
    begun = np.zeros(levels, np.bool_)
    # By depth.
    value, excess = np.zeros(cap + 1), np.zeros(cap + 1)
    position, mode = np.full(cap + 1, -1, np.int64), np.full(cap + 1, -1, np.int64)
    meets, scratch = np.zeros((cap, cap), np.bool_), np.zeros(cap, np.bool_)
    found, steps, complete = 0, 0, True
    level = 0
    while level >= 0:
        k, phase = level >> 1, level & 1
        left = cap - k
        if phase == 0 and not begun[level]:
            # The next mode of the job at this depth, or the next job.
            q = position[k]
            if q < 0 or mode[k] + 1 >= first[order[q] + 1]:
                q = position[k - 1] + 1 if q < 0 and k > 0 else q + 1
                position[k] = q
                if (
                    q >= jobs
                    or excess[k] + left * max(0.0, values[order[q]] - least[order[q]]) <= floor
                    or value[k] - cost[level] + left * top[q] <= floor
                ):
                    level -= 1
                    continue
                mode[k] = first[order[q]]
            else:
                mode[k] += 1
        q = position[k]
        j, m = order[q], mode[k]
        need = count[m, phase]
        new_value = value[k] + values[j]
        new_excess = excess[k] + values[j] - fluid[m]
        if not begun[level]:
            more = max(0.0, values[order[q + 1]] - least[order[q + 1]]) if q + 1 < jobs else 0.0
            if phase == 0 and new_excess + (left - 1) * more <= floor:
                continue
            for c in range(kinds[level]):
                fits = (
                    pools[level, c] == pool[m, phase]
                    and load[level, c] + share[m, phase] <= full
                    and used[level, c] + size[m, phase] < memory[pool[m, phase]]
                )
                room[level, c] = number[level, c] if fits else 0
            _first(take[level], room[level], kinds[level], need)
            begun[level] = True
        elif not _next(take[level], room[level], kinds[level], need):
            begun[level] = False
            if phase == 1:
                level -= 1
            continue
        steps += 1
        if steps >= max_steps:
            break
        # What the group is with this phase placed.
        new = need
        for c in range(kinds[level]):
            new -= take[level, c]
        after = level + 1
        cost[after] = cost[level] + new * usd[pool[m, phase]]
        if new_value - cost[after] + (left - 1) * top[q + 1] <= floor:
            # The choices to come take as many new nodes or more.
            begun[level] = False
            if phase == 1:
                level -= 1
            continue
        n = 0
        for c in range(kinds[level]):
            for taken in range(2):
                nodes = take[level, c] if taken else number[level, c] - take[level, c]
                if nodes == 0:
                    continue
                if n == most_kinds:
                    complete = False
                    break
                pools[after, n], number[after, n] = pools[level, c], nodes
                load[after, n] = load[level, c] + (share[m, phase] if taken else 0.0)
                used[after, n] = used[level, c] + (size[m, phase] if taken else 0.0)
                for i in range(k):
                    holds[after, n, i] = holds[level, c, i]
                holds[after, n, k] = (holds[level, c, k] if phase else 0) | (1 << phase if taken else 0)
                n += 1
        if new > 0:
            if n < most_kinds:
                pools[after, n], number[after, n] = pool[m, phase], new
                load[after, n], used[after, n] = share[m, phase], size[m, phase]
                for i in range(k):
                    holds[after, n, i] = 0
                holds[after, n, k] = 1 << phase
                n += 1
            else:
                complete = False
        if not complete:
            break
        kinds[after] = n
        if phase == 0:
            begun[after] = False
            level = after
            continue
        for i in range(k):
            meet = False
            for c in range(n):
                if holds[after, c, k] and holds[after, c, i]:
                    meet = True
                    break
            meets[k, i] = meet
            meets[i, k] = meet
        if k > 0 and _joined(k + 1, meets, scratch) > left:
            continue
        out = False
        if parts:
            for i in range(k):
                if meets[k, i] and has(known, _word(tokens, mode, number[after], holds[after], n, k, i, i)):
                    out = True
                    break
                for l in range(i):  # noqa: E741
                    links = int(meets[k, i]) + int(meets[k, l]) + int(meets[i, l])
                    if links > 1 and has(known, _word(tokens, mode, number[after], holds[after], n, k, i, l)):
                        out = True
                        break
                if out:
                    break
        if out:
            continue
        if new_value - cost[after] > floor and _joined(k + 1, meets, scratch) == 1:
            word = np.uint64(0)
            for c in range(n):
                held = np.uint64(0)
                for i in range(k + 1):
                    held += _held(tokens, mode[i], holds[after, c, i])
                word += np.uint64(number[after, c]) * node_word(held)
            if k == 0 or not has(known, word):
                profits[found], words[found] = new_value - cost[after], word
                row = rows[found]
                row[0], row[1] = k + 1, n
                for i in range(k + 1):
                    row[2 + i] = mode[i]
                at = 2 + cap
                for c in range(n):
                    row[at], row[at + 1] = pools[after, c], number[after, c]
                    for i in range(k + 1):
                        row[at + 2 + i] = holds[after, c, i]
                    at += 2 + cap
                found += 1
                if found == len(profits):
                    # Keep the better half, and look for nothing worse from here on.
                    half = found // 2
                    rank = np.argsort(-profits)
                    floor = profits[rank[half]]
                    # Of equals any will do: the floor says that what has its profit may be missing.
                    found = 0
                    for at in np.sort(rank[:half]):
                        profits[found], words[found] = profits[at], words[at]
                        rows[found] = rows[at]
                        found += 1
        if left == 1:
            continue
        value[k + 1], excess[k + 1] = new_value, new_excess
        position[k + 1], mode[k + 1] = -1, -1
        begun[after] = False
        level = after
    return found, floor, steps, complete


@njit(cache=True)  # type: ignore[untyped-decorator]
def _held(tokens: Any, mode: int, how: int) -> Any:
    """What a member adds to the word of a node that it holds so."""
    held = np.uint64(0)
    if how & 1:
        held += tokens[mode, 0]
    if how & 2:
        held += tokens[mode, 1]
    return held


@njit(cache=True)  # type: ignore[untyped-decorator]
def _word(tokens: Any, mode: Any, number: Any, holds: Any, kinds: int, a: int, b: int, c: int) -> Any:
    """Word of the part of a group that members a, b and c are (b may be c)."""
    word = np.uint64(0)
    for at in range(kinds):
        held = _held(tokens, mode[a], holds[at, a]) + _held(tokens, mode[b], holds[at, b])
        if c != b:
            held += _held(tokens, mode[c], holds[at, c])
        if held:
            word += np.uint64(number[at]) * node_word(held)
    return word
