"""The engines and reward workers of the compiled simulator: planner/simulate/reference_engine.py, function by function.

An engine's heap holds its running samples, each once, by (step at which it has something to tell, order of admission).
The reference keeps two entries for a watched sample and stale ones of preempted samples; the order that results is the
same, because entries of one step are taken in order of admission there too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .kernel_state import GONE, RUNNING, WAITING
from .numba_options import compiled

# -- which engine is first ---------------------------------------------------------------------------------------------
#
# Which engine has something to tell first, and which is the least loaded: two tournaments over a round's engines.
#
# A tournament is a binary tree of winners: node k has the better of nodes 2k and 2k + 1, the leaves are the engines in
# order, and -1 is none. Of equals the engine with the lower number wins, as in a walk over all engines in order; but an
# engine that changes costs as many steps as the tree is high, and a round of thousands of engines has millions of
# events.


def tournament(engines: int, first: int | None = None) -> Any:
    """A tournament of engines that are all alike, shape (2 x leaves,); with `first`, only so many of them take part."""
    leaves = 1
    while leaves < engines:
        leaves *= 2
    tree = np.full(2 * leaves, -1, dtype=np.int32)
    taking_part = engines if first is None else first
    tree[leaves : leaves + taking_part] = np.arange(taking_part)
    for node in range(leaves - 1, 0, -1):
        tree[node] = tree[2 * node]
    return tree


@compiled
def note_upcoming(engines: Any, tree: Any, e: int) -> None:
    """The engine's `upcoming` may have changed."""
    node = (len(tree) // 2 + e) >> 1
    while node >= 1:
        a, b = tree[2 * node], tree[2 * node + 1]
        winner = a
        if a < 0 or (b >= 0 and engines[b].upcoming < engines[a].upcoming):
            winner = b
        # An engine that neither was nor is the winner here changes nothing above.
        if tree[node] == winner and winner != e:
            return
        tree[node] = winner
        node >>= 1


@compiled
def note_load(engines: Any, tree: Any, e: int) -> None:
    """The engine's `load` may have changed."""
    node = (len(tree) // 2 + e) >> 1
    while node >= 1:
        a, b = tree[2 * node], tree[2 * node + 1]
        winner = a
        if a < 0 or (b >= 0 and engines[b].load < engines[a].load):
            winner = b
        if tree[node] == winner and winner != e:
            return
        tree[node] = winner
        node >>= 1


@compiled
def leave_out(engines: Any, tree: Any, e: int) -> None:
    """The engine gets no more samples."""
    tree[len(tree) // 2 + e] = -1
    note_load(engines, tree, e)


@compiled
def bring_in(engines: Any, tree: Any, e: int) -> None:
    """The engine gets samples from now on."""
    tree[len(tree) // 2 + e] = e
    note_load(engines, tree, e)


# -- reward workers ----------------------------------------------------------------------------------------------------


@compiled
def _sooner(a: Any, b: Any) -> bool:
    if a.due_s != b.due_s:
        return bool(a.due_s < b.due_s)
    return bool(a.count < b.count)


@compiled
def _free_at(free: Any, until: float) -> None:
    """The worker that is free first is busy until then."""
    size, spot = len(free), 0
    while True:
        child = 2 * spot + 1
        if child >= size:
            break
        if child + 1 < size and free[child + 1] < free[child]:
            child += 1
        if free[child] >= until:
            break
        free[spot] = free[child]
        spot = child
    free[spot] = until


@compiled
def _put(rewards: Any, spot: int, due_s: float, count: int, sample: int) -> None:
    rewards[spot].due_s, rewards[spot].count, rewards[spot].sample = due_s, count, sample


@compiled
def submit(state: Any, rewards: Any, free: Any, i: int, now: float, seconds: float) -> None:
    """Queue the reward of sample `i`, which takes a worker `seconds`."""
    done = max(now, free[0]) + seconds
    _free_at(free, done)
    state.rewards_count += 1
    spot = state.rewards_due
    state.rewards_due += 1
    due_s, count = done + state.delay_s, state.rewards_count
    while spot > 0:
        parent = (spot - 1) >> 1
        if rewards[parent].due_s < due_s or (rewards[parent].due_s == due_s and rewards[parent].count < count):
            break
        _put(rewards, spot, rewards[parent].due_s, rewards[parent].count, rewards[parent].sample)
        spot = parent
    _put(rewards, spot, due_s, count, i)


@compiled
def take_due(state: Any, rewards: Any) -> int:
    """Take the reward that is due first off the queue; its sample."""
    taken = rewards[0].sample
    state.rewards_due -= 1
    size = state.rewards_due
    due_s, count, sample = rewards[size].due_s, rewards[size].count, rewards[size].sample
    spot = 0
    while True:
        child = 2 * spot + 1
        if child >= size:
            break
        if child + 1 < size and _sooner(rewards[child + 1], rewards[child]):
            child += 1
        if due_s < rewards[child].due_s or (due_s == rewards[child].due_s and count < rewards[child].count):
            break
        _put(rewards, spot, rewards[child].due_s, rewards[child].count, rewards[child].sample)
        spot = child
    _put(rewards, spot, due_s, count, sample)
    return int(taken)


@compiled
def _before(samples: Any, a: int, b: int) -> bool:
    if samples[a].due != samples[b].due:
        return bool(samples[a].due < samples[b].due)
    return bool(samples[a].order < samples[b].order)


@compiled
def _sift_up(samples: Any, heap: Any, spot: int) -> None:
    sample = heap[spot]
    while spot > 0:
        parent = (spot - 1) >> 1
        if not _before(samples, sample, heap[parent]):
            break
        heap[spot] = heap[parent]
        samples[heap[spot]].spot = spot
        spot = parent
    heap[spot] = sample
    samples[sample].spot = spot


@compiled
def _sift_down(samples: Any, heap: Any, spot: int, size: int) -> None:
    sample = heap[spot]
    while True:
        child = 2 * spot + 1
        if child >= size:
            break
        if child + 1 < size and _before(samples, heap[child + 1], heap[child]):
            child += 1
        if not _before(samples, heap[child], sample):
            break
        heap[spot] = heap[child]
        samples[heap[spot]].spot = spot
        spot = child
    heap[spot] = sample
    samples[sample].spot = spot


@compiled
def _leave(samples: Any, engines: Any, state: Any, prefixes: Any, heap: Any, e: int, i: int) -> None:
    """Take a running sample out of the heap, the row of admissions and the KV."""
    size = engines[e].running - 1
    spot = samples[i].spot
    if spot != size:
        moved = heap[size]
        heap[spot] = moved
        samples[moved].spot = spot
        _sift_up(samples, heap, spot)
        _sift_down(samples, heap, samples[moved].spot, size)
    engines[e].running = size
    older, younger = samples[i].older, samples[i].younger
    if younger >= 0:
        samples[younger].older = older
    else:
        engines[e].youngest = older
    if older >= 0:
        samples[older].younger = younger
    engines[e].kv -= samples[i].prompt + samples[i].base + (engines[e].step - samples[i].admitted)
    shared = samples[i].shared
    if shared == 0:
        return
    x = samples[i].held
    prefixes[x].users -= 1
    if prefixes[x].users > 0:
        engines[e].shared -= shared
    elif prefixes[x].computed == engines[e].step:
        engines[e].prefill -= _prefix_s(state, shared)
        prefixes[x].intact_until = -1
    else:
        prefixes[x].intact_until = engines[e].filled + (state.capacity - engines[e].kv + engines[e].shared) - shared


@compiled
def _prefix_s(state: Any, tokens: int) -> float:
    return float(tokens * (state.prefill_s_per_token + state.prefill_s_per_token_squared * tokens))


@compiled
def _time_after(engines: Any, e: int, steps: int, steps_s: Any) -> float:
    if steps <= 0:
        return float(engines[e].now)
    count = engines[e].running
    grown = steps * engines[e].kv + count * (steps * (steps - 1) // 2)
    return float(
        engines[e].now
        + engines[e].prefill
        + engines[e].held_up
        + (steps * steps_s[count].base_s + steps_s[count].kv_s * grown)
    )


@compiled
def _advance(engines: Any, e: int, steps: int, steps_s: Any) -> None:
    if steps > 0:
        engines[e].now = _time_after(engines, e, steps, steps_s)
        engines[e].step += steps
        grown = steps * engines[e].running
        engines[e].kv += grown
        engines[e].filled += grown
        engines[e].decoded += grown
        engines[e].prefill = 0.0
        engines[e].held_up = 0.0


@compiled
def _steps_to_event(samples: Any, engines: Any, state: Any, heap: Any, e: int) -> int:
    due = samples[heap[0]].due - engines[e].step
    count = engines[e].running
    if count == 1:
        return int(due)
    room = (state.capacity - engines[e].kv + engines[e].shared) // count
    if due <= room:
        return int(due)
    return int(max(0, room))


@compiled
def look_ahead(samples: Any, engines: Any, state: Any, soonest: Any, heaps: Any, e: int, steps_s: Any) -> None:
    """Note when the engine has something to tell next, also in the tournament `T`."""
    if engines[e].running > 0:
        engines[e].upcoming = _time_after(engines, e, _steps_to_event(samples, engines, state, heaps[e], e), steps_s)
    else:
        engines[e].upcoming = math.inf
    note_upcoming(engines, soonest, e)


@compiled
def pass_to(samples: Any, engines: Any, state: Any, heaps: Any, e: int, time_s: float, steps_s: Any) -> None:
    """Go to the first step boundary at or after `time_s`, which is not later than the next event."""
    if engines[e].running == 0:
        if time_s > engines[e].now:
            engines[e].held_up = max(0.0, engines[e].held_up - (time_s - engines[e].now))
            engines[e].now = time_s
        return
    if time_s <= engines[e].now:
        return
    ahead = time_s - engines[e].now - engines[e].prefill - engines[e].held_up
    count = engines[e].running
    quadratic = steps_s[count].kv_s * count / 2
    linear = steps_s[count].base_s + steps_s[count].kv_s * engines[e].kv - quadratic
    begun = engines[e].prefill + engines[e].held_up > 0  # else it may be at that boundary already, but for rounding
    if ahead <= 0:
        steps = 1
    elif quadratic * ahead < 1e-12 * linear * linear:
        steps = math.ceil(ahead / linear - 1e-9)
    else:
        root = (math.sqrt(linear * linear + 4 * quadratic * ahead) - linear) / (2 * quadratic)
        steps = math.ceil(root - 1e-9)
    _advance(engines, e, min(max(steps, int(begun)), _steps_to_event(samples, engines, state, heaps[e], e)), steps_s)


@compiled
def _prefill_s(samples: Any, state: Any, i: int) -> float:
    tokens, cached = samples[i].prompt + samples[i].base, samples[i].shared
    per_token = state.prefill_s_per_token + state.prefill_s_per_token_squared * (tokens + cached)
    return float(state.prefill_s + (tokens - cached) * per_token)


@compiled
def remove(samples: Any, engines: Any, state: Any, prefixes: Any, heaps: Any, i: int) -> None:
    """The sample leaves: it ended or was aborted."""
    if samples[i].state == RUNNING:
        e = samples[i].engine
        if samples[i].admitted == engines[e].step:
            engines[e].prefill -= _prefill_s(samples, state, i)
        _leave(samples, engines, state, prefixes, heaps[e], e, i)
    samples[i].state = GONE


@compiled
def take_event(samples: Any, engines: Any, state: Any, prefixes: Any, heaps: Any, e: int, steps_s: Any) -> int:
    """Advance to the next event; the sample that has something to tell, or -1 if one was preempted instead."""
    heap = heaps[e]
    _advance(engines, e, _steps_to_event(samples, engines, state, heap, e), steps_s)
    i = heap[0]
    if samples[i].due > engines[e].step:
        i = engines[e].youngest
        _leave(samples, engines, state, prefixes, heap, e, i)
        samples[i].base += engines[e].step - samples[i].admitted
        samples[i].state = WAITING
        samples[i].behind = engines[e].first
        engines[e].first = i
        if engines[e].last < 0:
            engines[e].last = i
        engines[e].preemptions += 1
        return -1
    if samples[i].base + (engines[e].step - samples[i].admitted) < samples[i].tokens:
        samples[i].cutoff_tokens = 0
        samples[i].due = samples[i].admitted + samples[i].tokens - samples[i].base
        _sift_down(samples, heap, 0, engines[e].running)
    else:
        remove(samples, engines, state, prefixes, heaps, i)
        engines[e].held_up += state.finish_s
    return int(i)


@compiled
def queue(samples: Any, engines: Any, e: int, i: int) -> None:
    """Put a sample at the end of an engine's queue."""
    samples[i].behind = -1
    if engines[e].first < 0:
        engines[e].first = i
    else:
        samples[engines[e].last].behind = i
    engines[e].last = i


@compiled
def admit(samples: Any, engines: Any, state: Any, prefixes: Any, heaps: Any, e: int) -> None:
    """Admit waiting samples that fit, in order."""
    while engines[e].first >= 0:
        i = engines[e].first
        if samples[i].state == WAITING:
            count, needed = engines[e].running, samples[i].prompt + samples[i].base
            shared, x = samples[i].shared, samples[i].held
            users = prefixes[x].users if shared > 0 else 0
            held = engines[e].kv - engines[e].shared + (needed - shared if users > 0 else needed)
            if count > 0 and (count >= state.most or held + count + 1 > state.capacity):
                return
            if shared > 0:
                if users > 0:
                    engines[e].shared += shared
                if users > 0 or engines[e].filled <= prefixes[x].intact_until:
                    engines[e].cached += shared
                else:
                    engines[e].prefill += _prefix_s(state, shared)
                    engines[e].filled += shared
                    prefixes[x].computed = engines[e].step
                prefixes[x].users = users + 1
            engines[e].prefill += _prefill_s(samples, state, i)
            engines[e].kv += needed
            engines[e].filled += needed - shared
            samples[i].state = RUNNING
            samples[i].admitted = engines[e].step
            samples[i].order = engines[e].admissions
            engines[e].admissions += 1
            cutoff_tokens = samples[i].cutoff_tokens
            reports = cutoff_tokens > 0 and samples[i].base <= cutoff_tokens < samples[i].tokens
            until = cutoff_tokens if reports else samples[i].tokens
            samples[i].due = engines[e].step + until - samples[i].base
            samples[i].older, samples[i].younger = engines[e].youngest, -1
            if engines[e].youngest >= 0:
                samples[engines[e].youngest].younger = i
            engines[e].youngest = i
            heaps[e, count] = i
            engines[e].running = count + 1
            _sift_up(samples, heaps[e], count)
        engines[e].first = samples[i].behind
        if engines[e].first < 0:
            engines[e].last = -1
