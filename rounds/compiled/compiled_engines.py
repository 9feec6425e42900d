"""The engines of the compiled simulator: `reference_engine.Engine`, function by function.

An engine's heap holds its running samples, each once, by (step at which it has something to tell, order of admission).
The reference keeps two entries for a watched sample and stale ones of preempted samples; the order that results is the
same, because entries of one step are taken in order of admission there too.
"""

from __future__ import annotations

import math
from typing import Any

from .kernel_state import GONE, RUNNING, WAITING
from .numba_options import compiled
from .tournaments import note_upcoming


@compiled
def _before(S: Any, a: int, b: int) -> bool:
    if S[a].due != S[b].due:
        return bool(S[a].due < S[b].due)
    return bool(S[a].order < S[b].order)


@compiled
def _sift_up(S: Any, heap: Any, spot: int) -> None:
    sample = heap[spot]
    while spot > 0:
        parent = (spot - 1) >> 1
        if not _before(S, sample, heap[parent]):
            break
        heap[spot] = heap[parent]
        S[heap[spot]].spot = spot
        spot = parent
    heap[spot] = sample
    S[sample].spot = spot


@compiled
def _sift_down(S: Any, heap: Any, spot: int, size: int) -> None:
    sample = heap[spot]
    while True:
        child = 2 * spot + 1
        if child >= size:
            break
        if child + 1 < size and _before(S, heap[child + 1], heap[child]):
            child += 1
        if not _before(S, heap[child], sample):
            break
        heap[spot] = heap[child]
        S[heap[spot]].spot = spot
        spot = child
    heap[spot] = sample
    S[sample].spot = spot


@compiled
def _leave(S: Any, E: Any, R: Any, X: Any, heap: Any, e: int, i: int) -> None:
    """Take a running sample out of the heap, the row of admissions and the KV."""
    size = E[e].running - 1
    spot = S[i].spot
    if spot != size:
        moved = heap[size]
        heap[spot] = moved
        S[moved].spot = spot
        _sift_up(S, heap, spot)
        _sift_down(S, heap, S[moved].spot, size)
    E[e].running = size
    older, younger = S[i].older, S[i].younger
    if younger >= 0:
        S[younger].older = older
    else:
        E[e].youngest = older
    if older >= 0:
        S[older].younger = younger
    E[e].kv -= S[i].prompt + S[i].base + (E[e].step - S[i].admitted)
    shared = S[i].shared
    if shared == 0:
        return
    x = S[i].held
    X[x].users -= 1
    if X[x].users > 0:
        E[e].shared -= shared
    elif X[x].computed == E[e].step:
        E[e].prefill -= _prefix_s(R, shared)
        X[x].intact_until = -1
    else:
        X[x].intact_until = E[e].filled + (R.capacity - E[e].kv + E[e].shared) - shared


@compiled
def _prefix_s(R: Any, tokens: int) -> float:
    return float(tokens * (R.prefill_s_per_token + R.prefill_s_per_token_squared * tokens))


@compiled
def _time_after(E: Any, e: int, steps: int, steps_s: Any) -> float:
    if steps <= 0:
        return float(E[e].now)
    count = E[e].running
    grown = steps * E[e].kv + count * (steps * (steps - 1) // 2)
    return float(E[e].now + E[e].prefill + E[e].held_up + (steps * steps_s[count].base_s + steps_s[count].kv_s * grown))


@compiled
def _advance(E: Any, e: int, steps: int, steps_s: Any) -> None:
    if steps > 0:
        E[e].now = _time_after(E, e, steps, steps_s)
        E[e].step += steps
        grown = steps * E[e].running
        E[e].kv += grown
        E[e].filled += grown
        E[e].decoded += grown
        E[e].prefill = 0.0
        E[e].held_up = 0.0


@compiled
def _steps_to_event(S: Any, E: Any, R: Any, heap: Any, e: int) -> int:
    due = S[heap[0]].due - E[e].step
    count = E[e].running
    if count == 1:
        return int(due)
    room = (R.capacity - E[e].kv + E[e].shared) // count
    if due <= room:
        return int(due)
    return int(max(0, room))


@compiled
def look_ahead(S: Any, E: Any, R: Any, T: Any, heaps: Any, e: int, steps_s: Any) -> None:
    """Note when the engine has something to tell next, also in the tournament `T`."""
    if E[e].running > 0:
        E[e].upcoming = _time_after(E, e, _steps_to_event(S, E, R, heaps[e], e), steps_s)
    else:
        E[e].upcoming = math.inf
    note_upcoming(E, T, e)


@compiled
def pass_to(S: Any, E: Any, R: Any, heaps: Any, e: int, time_s: float, steps_s: Any) -> None:
    """Go to the first step boundary at or after `time_s`, which is not later than the next event."""
    if E[e].running == 0:
        if time_s > E[e].now:
            E[e].held_up = max(0.0, E[e].held_up - (time_s - E[e].now))
            E[e].now = time_s
        return
    if time_s <= E[e].now:
        return
    ahead = time_s - E[e].now - E[e].prefill - E[e].held_up
    count = E[e].running
    quadratic = steps_s[count].kv_s * count / 2
    linear = steps_s[count].base_s + steps_s[count].kv_s * E[e].kv - quadratic
    begun = E[e].prefill + E[e].held_up > 0  # else it may be at that boundary already, but for rounding
    if ahead <= 0:
        steps = 1
    elif quadratic * ahead < 1e-12 * linear * linear:
        steps = math.ceil(ahead / linear - 1e-9)
    else:
        root = (math.sqrt(linear * linear + 4 * quadratic * ahead) - linear) / (2 * quadratic)
        steps = math.ceil(root - 1e-9)
    _advance(E, e, min(max(steps, int(begun)), _steps_to_event(S, E, R, heaps[e], e)), steps_s)


@compiled
def _prefill_s(S: Any, R: Any, i: int) -> float:
    tokens, cached = S[i].prompt + S[i].base, S[i].shared
    per_token = R.prefill_s_per_token + R.prefill_s_per_token_squared * (tokens + cached)
    return float(R.prefill_s + (tokens - cached) * per_token)


@compiled
def remove(S: Any, E: Any, R: Any, X: Any, heaps: Any, i: int) -> None:
    """The sample leaves: it ended or was aborted."""
    if S[i].state == RUNNING:
        e = S[i].engine
        if S[i].admitted == E[e].step:
            E[e].prefill -= _prefill_s(S, R, i)
        _leave(S, E, R, X, heaps[e], e, i)
    S[i].state = GONE


@compiled
def take_event(S: Any, E: Any, R: Any, X: Any, heaps: Any, e: int, steps_s: Any) -> int:
    """Advance to the next event; the sample that has something to tell, or -1 if one was preempted instead."""
    heap = heaps[e]
    _advance(E, e, _steps_to_event(S, E, R, heap, e), steps_s)
    i = heap[0]
    if S[i].due > E[e].step:
        i = E[e].youngest
        _leave(S, E, R, X, heap, e, i)
        S[i].base += E[e].step - S[i].admitted
        S[i].state = WAITING
        S[i].behind = E[e].first
        E[e].first = i
        if E[e].last < 0:
            E[e].last = i
        E[e].preemptions += 1
        return -1
    if S[i].base + (E[e].step - S[i].admitted) < S[i].tokens:
        S[i].cutoff_tokens = 0
        S[i].due = S[i].admitted + S[i].tokens - S[i].base
        _sift_down(S, heap, 0, E[e].running)
    else:
        remove(S, E, R, X, heaps, i)
        E[e].held_up += R.finish_s
    return int(i)


@compiled
def queue(S: Any, E: Any, e: int, i: int) -> None:
    """Put a sample at the end of an engine's queue."""
    S[i].behind = -1
    if E[e].first < 0:
        E[e].first = i
    else:
        S[E[e].last].behind = i
    E[e].last = i


@compiled
def admit(S: Any, E: Any, R: Any, X: Any, heaps: Any, e: int) -> None:
    """Admit waiting samples that fit, in order."""
    while E[e].first >= 0:
        i = E[e].first
        if S[i].state == WAITING:
            count, needed = E[e].running, S[i].prompt + S[i].base
            shared, x = S[i].shared, S[i].held
            users = X[x].users if shared > 0 else 0
            held = E[e].kv - E[e].shared + (needed - shared if users > 0 else needed)
            if count > 0 and (count >= R.most or held + count + 1 > R.capacity):
                return
            if shared > 0:
                if users > 0:
                    E[e].shared += shared
                if users > 0 or E[e].filled <= X[x].intact_until:
                    E[e].cached += shared
                else:
                    E[e].prefill += _prefix_s(R, shared)
                    E[e].filled += shared
                    X[x].computed = E[e].step
                X[x].users = users + 1
            E[e].prefill += _prefill_s(S, R, i)
            E[e].kv += needed
            E[e].filled += needed - shared
            S[i].state = RUNNING
            S[i].admitted = E[e].step
            S[i].order = E[e].admissions
            E[e].admissions += 1
            cutoff_tokens = S[i].cutoff_tokens
            reports = cutoff_tokens > 0 and S[i].base <= cutoff_tokens < S[i].tokens
            until = cutoff_tokens if reports else S[i].tokens
            S[i].due = E[e].step + until - S[i].base
            S[i].older, S[i].younger = E[e].youngest, -1
            if E[e].youngest >= 0:
                S[E[e].youngest].younger = i
            E[e].youngest = i
            heaps[e, count] = i
            E[e].running = count + 1
            _sift_up(S, heaps[e], count)
        E[e].first = S[i].behind
        if E[e].first < 0:
            E[e].last = -1
