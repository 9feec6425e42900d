"""The compiled search of pricing.py: depth first over jobs, then over the modes and nodes of each.

Jobs come in the order of value over fluid price, so that the first that cannot lift a partial group above the floor
ends its depth. Nodes are bit sets; a new node is the next number, so that no two orders of new nodes are both tried.
At a depth all choices of one job (mode, rollout nodes, train nodes) are listed in `scratch`, then tried one by one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .pricing_words import has, ones, pair_word

MOST_NODES = 24


@njit(cache=True)
def _node_sets(p, need, share, size, pools, load, memory_used, memory, full, used, out):  # type: ignore[no-untyped-def]
    """Sets of `need` nodes of pool p with room, as bit sets; new nodes are the next numbers. How many."""
    n = 0
    if need == 1:
        for at in range(used):
            if pools[at] == p and load[at] + share <= full and memory_used[at] + size < memory[p]:
                out[n] = 1 << at
                n += 1
        if used < MOST_NODES:
            out[n] = 1 << used
            n += 1
        return n
    fits = 0
    for at in range(used):
        if pools[at] == p and load[at] + share <= full and memory_used[at] + size < memory[p]:
            fits |= 1 << at
    old = fits
    while True:
        new = need - ones(old)
        if new >= 0 and used + new <= MOST_NODES and n < len(out):
            out[n] = old | (((1 << new) - 1) << used)
            n += 1
        if old == 0:
            break
        old = (old - 1) & fits
    return n


@njit(cache=True)
def _joined(k, a, b):  # type: ignore[no-untyped-def]
    """Number of connected parts of k members on nodes a, b."""
    left = (1 << k) - 1
    parts = 0
    while left:
        parts += 1
        reach = 0
        grew = True
        for i in range(k):
            if left >> i & 1:
                reach = a[i] | b[i]
                left &= ~(1 << i)
                break
        while grew:
            grew = False
            for i in range(k):
                if left >> i & 1 and reach & (a[i] | b[i]):
                    reach |= a[i] | b[i]
                    left &= ~(1 << i)
                    grew = True
    return parts


@njit(cache=True)
def search(  # type: ignore[no-untyped-def]
    order, first, ids, pool, share, size, count, fluid, least, values, usd, memory, full, cap, floor, known, parts,
    max_steps, scratch, rows, node_pools, profits, words,
):  # fmt: skip
    jobs = len(order)
    # By position in the order: the most that a job from there on is worth, and is worth above its fluid price.
    top = np.zeros(jobs + 1)
    for q in range(jobs - 1, -1, -1):
        top[q] = max(top[q + 1], values[order[q]])
    load, used_bytes = np.zeros((cap + 1, MOST_NODES)), np.zeros((cap + 1, MOST_NODES))
    pools = np.zeros((cap + 1, MOST_NODES), np.int64)
    used, cost = np.zeros(cap + 1, np.int64), np.zeros(cap + 1)
    value, excess = np.zeros(cap + 1), np.zeros(cap + 1)
    options, tried, position = np.zeros(cap + 1, np.int64), np.zeros(cap + 1, np.int64), np.full(cap + 1, -1, np.int64)
    mode, a, b = np.zeros(cap, np.int64), np.zeros(cap, np.int64), np.zeros(cap, np.int64)
    pair = np.zeros((cap, cap), np.uint64)
    whole = np.zeros(cap + 1, np.uint64)
    sets, sets2 = np.zeros(256, np.int64), np.zeros(256, np.int64)
    found, steps, k = 0, 0, 0
    t_load, t_bytes, t_pools = np.zeros(MOST_NODES), np.zeros(MOST_NODES), np.zeros(MOST_NODES, np.int64)
    while k >= 0:
        if tried[k] >= options[k]:
            # The next job at this depth, with all its modes and nodes.
            position[k] += 1
            q = position[k]
            left = cap - k
            if (
                q >= jobs
                or excess[k] + left * max(0.0, values[order[q]] - least[order[q]]) <= floor
                or value[k] - cost[k] + left * top[q] <= floor
            ):
                k -= 1
                continue
            j = order[q]
            options[k] = 0
            tried[k] = 0
            for m in range(first[j], first[j + 1]):
                n = _node_sets(
                    pool[m, 0],
                    count[m, 0],
                    share[m, 0],
                    size[m, 0],
                    pools[k],
                    load[k],
                    used_bytes[k],
                    memory,
                    full,
                    used[k],
                    sets,
                )
                for s in range(n):
                    top_node = used[k]
                    for at in range(MOST_NODES):
                        t_load[at], t_bytes[at], t_pools[at] = load[k, at], used_bytes[k, at], pools[k, at]
                    for at in range(MOST_NODES):
                        if sets[s] >> at & 1:
                            t_load[at] += share[m, 0]
                            t_bytes[at] += size[m, 0]
                            t_pools[at] = pool[m, 0]
                            if at >= top_node:
                                top_node = at + 1
                    n2 = _node_sets(
                        pool[m, 1],
                        count[m, 1],
                        share[m, 1],
                        size[m, 1],
                        t_pools,
                        t_load,
                        t_bytes,
                        memory,
                        full,
                        top_node,
                        sets2,
                    )
                    for s2 in range(n2):
                        if options[k] < len(scratch[k]):
                            scratch[k, options[k], 0] = m
                            scratch[k, options[k], 1] = sets[s]
                            scratch[k, options[k], 2] = sets2[s2]
                            options[k] += 1
            continue
        m, x, y = scratch[k, tried[k], 0], scratch[k, tried[k], 1], scratch[k, tried[k], 2]
        tried[k] += 1
        steps += 1
        if steps >= max_steps:
            break
        j = order[position[k]]
        left = cap - k - 1
        new_cost = cost[k]
        at = used[k]
        while (x | y) >> at:
            new_cost += usd[pool[m, 0]] if x >> at & 1 else usd[pool[m, 1]]
            at += 1
        new_value = value[k] + values[j]
        new_excess = excess[k] + values[j] - fluid[m]
        q = position[k] + 1
        more = max(0.0, values[order[q]] - least[order[q]]) if q < jobs else 0.0
        if new_excess + left * more <= floor or new_value - new_cost + left * top[q] <= floor:
            continue
        mode[k], a[k], b[k] = m, x, y
        if k > 0 and _joined(k + 1, a, b) - 1 > left:
            continue
        out = False
        whole[k + 1] = whole[k]
        for i in range(k):
            meets = (a[i] | b[i]) & (x | y)
            pair[k, i] = pair_word(ids[m], x, y, ids[mode[i]], a[i], b[i])
            whole[k + 1] += pair[k, i]
            if parts and meets and has(known, pair[k, i]):
                out = True
                break
        if not out and parts and k > 1:
            for i in range(k):
                for l in range(i):  # noqa: E741
                    links = 0
                    links += 1 if (a[i] | b[i]) & (x | y) else 0
                    links += 1 if (a[l] | b[l]) & (x | y) else 0
                    links += 1 if (a[i] | b[i]) & (a[l] | b[l]) else 0
                    if links > 1 and has(known, pair[k, i] + pair[k, l] + pair[i, l]):
                        out = True
                        break
                if out:
                    break
        if out:
            continue
        connected = _joined(k + 1, a, b) == 1
        if connected and new_value - new_cost > floor and not (k > 0 and has(known, whole[k + 1])):
            profits[found] = new_value - new_cost
            words[found] = whole[k + 1]
            rows[found, 0] = k + 1
            for i in range(k + 1):
                rows[found, 1 + i] = mode[i]
                rows[found, 1 + cap + i] = a[i]
                rows[found, 1 + 2 * cap + i] = b[i]
            for at in range(MOST_NODES):
                node_pools[found, at] = pools[k, at]
                if at >= used[k]:
                    node_pools[found, at] = pool[m, 0] if x >> at & 1 else pool[m, 1]
            found += 1
            if found == len(profits):
                # Keep the better half, and look for nothing worse from here on.
                half = found // 2
                rank = np.argsort(-profits)
                floor = profits[rank[half]]
                # Of equals any will do: the floor says that what has its profit may be missing.
                n = 0
                for at in np.sort(rank[:half]):
                    profits[n], words[n] = profits[at], words[at]
                    rows[n] = rows[at]
                    node_pools[n] = node_pools[at]
                    n += 1
                found = n
        if left == 0:
            continue
        for at in range(MOST_NODES):
            load[k + 1, at], used_bytes[k + 1, at], pools[k + 1, at] = load[k, at], used_bytes[k, at], pools[k, at]
        used[k + 1] = used[k]
        for at in range(MOST_NODES):
            if x >> at & 1:
                load[k + 1, at] += share[m, 0]
                used_bytes[k + 1, at] += size[m, 0]
                pools[k + 1, at] = pool[m, 0]
            if y >> at & 1:
                load[k + 1, at] += share[m, 1]
                used_bytes[k + 1, at] += size[m, 1]
                pools[k + 1, at] = pool[m, 1]
            if (x | y) >> at & 1 and at >= used[k + 1]:
                used[k + 1] = at + 1
        cost[k + 1], value[k + 1], excess[k + 1] = new_cost, new_value, new_excess
        position[k + 1] = position[k]
        options[k + 1] = 0
        tried[k + 1] = 0
        k += 1
    return found, floor, steps
