"""The compiled round machines: RaceRound, ExactShortRound and ExactQueueRound of rounds/, without losses and failures.

Each function bears its machine method's name; the docstrings there say why. `W` holds the records (kernel_state.py) and
the tables (round_kernel.py).
"""

from __future__ import annotations

import math
from typing import Any

from .compiled_actions import abort_live, flat, issue, mark_ready, score, settle
from .kernel_state import DEFERRED, DISCARDED, EXACT_LONG, FILTERED, OPEN, RACE, RAN_OUT, RETURNED, TRAINED
from .numba_options import compiled

MAX_DRAWS = 64
"""rounds.machines.exact_queue.MAX_DRAWS; a test holds them equal."""


@compiled
def take(W: Any, wanted: int, now: float) -> int:
    """Issue up to `wanted` fresh prompts; how many there were."""
    R = W.R[0]
    fresh = min(wanted, R.rows - R.draws)
    if fresh < wanted and R.more:
        R.status = RAN_OUT
        return 0
    for _ in range(fresh):
        issue(W, R.draws, R.draws, now)
    return int(fresh)


# -- race, defer, sync -------------------------------------------------------------------------------------------------


@compiled
def _race_scored(W: Any, d: int, now: float) -> None:
    R, D = W.R[0], W.D
    if D[d].rewarded < R.group:
        return
    if R.dynamic and flat(W, d):
        settle(W, d, FILTERED, now)
        wanted = math.ceil((R.target - R.accepted) * R.over) - R.open
        if wanted > 0 and R.refills:
            take(W, wanted, now)
    else:
        settle(W, d, TRAINED, now)
        R.accepted += 1
    if R.accepted < R.target and R.open > 0:
        return
    for other in range(R.draws):
        if D[other].fate == OPEN:
            settle(W, other, DEFERRED, now)
    R.done = True


# -- exact, short ------------------------------------------------------------------------------------------------------


@compiled
def judge(W: Any, now: float) -> None:
    """Walk the row as far as it is classified; close the round when enough are accepted."""
    R, D = W.R[0], W.D
    while R.accepted < R.target:
        if R.next == R.draws and take(W, math.ceil((R.target - R.accepted) * R.over), now) == 0:
            if R.status == RAN_OUT:
                return
            break
        d = R.next
        if D[d].past:
            settle(W, d, DEFERRED, now)
        else:
            if D[d].finished < R.group:
                return
            if R.dynamic:
                if D[d].rewarded < R.group:
                    return
                if flat(W, d):
                    settle(W, d, FILTERED, now)
                    R.next += 1
                    continue
            R.accepted += 1
            if D[d].rewarded == R.group:
                mark_ready(W, d, now)
        R.next += 1
    if R.pending < 0:
        R.pending = 0
        for d in range(R.draws):
            if D[d].fate == OPEN:
                if d >= R.next:
                    settle(W, d, RETURNED, now)
                elif D[d].rewarded < R.group:
                    R.pending += 1
    if R.pending > 0:
        return
    for d in range(R.next):
        if D[d].fate == OPEN:
            settle(W, d, FILTERED if R.dynamic and flat(W, d) else TRAINED, now)
    R.done = True


@compiled
def _is_long(W: Any, i: int) -> bool:
    R, S = W.R[0], W.S
    natural = W.L[W.D[S[i].draw].row, S[i].place].natural
    cut = natural > min(R.limit, R.cap) or natural >= R.cap
    return bool(S[i].tokens > R.cutoff_tokens or (S[i].tokens == R.cutoff_tokens and cut))


@compiled
def _short_finished(W: Any, i: int, now: float) -> None:
    R, S, D = W.R[0], W.S, W.D
    d = S[i].draw
    if _is_long(W, i):
        D[d].past = True
        abort_live(W, d, now)
        judge(W, now)
    else:
        score(W, i, now)
        if D[d].finished == R.group:
            judge(W, now)


@compiled
def _short_scored(W: Any, d: int, now: float) -> None:
    R, D = W.R[0], W.D
    if D[d].rewarded == R.group:
        if d < R.next:
            mark_ready(W, d, now)
        if R.pending > 0 and d < R.next:
            R.pending -= 1
        judge(W, now)


# -- exact, long -------------------------------------------------------------------------------------------------------


@compiled
def draw_again(W: Any, prompt: int, now: float) -> None:
    """Draw a prompt once more."""
    P, D = W.P, W.D
    if P[prompt].drawn == P[prompt].given:
        W.R[0].status = RAN_OUT
        return
    d = issue(W, prompt, P[prompt].offset + P[prompt].drawn, now)
    if P[prompt].drawn == 0:
        P[prompt].first = d
    else:
        D[P[prompt].last].later = d
    P[prompt].last = d
    P[prompt].drawn += 1


@compiled
def _short_up_to(W: Any, prompt: int, end: int) -> bool:
    """Whether the prompt's draws before `end` are short; -1: all."""
    D = W.D
    d = W.P[prompt].first
    while d != end:
        if D[d].past or D[d].finished < W.R[0].group:
            return False
        d = D[d].later
    return True


@compiled
def _discard(W: Any, d: int, end: int, now: float) -> None:
    """Discard a draw and its juniors before `end`."""
    D = W.D
    while d != end:
        if D[d].fate == OPEN:
            settle(W, d, DISCARDED, now)
        d = D[d].later


@compiled
def _choose(W: Any, prompt: int, now: float) -> None:
    R, S, D, P = W.R[0], W.S, W.D, W.P
    last = P[prompt].last
    if not _short_up_to(W, prompt, last):
        return
    if not D[last].past:
        if D[last].finished < R.group or not P[prompt].counts or not P[prompt].until_long:
            return
        more = min(P[prompt].drawn, MAX_DRAWS - P[prompt].drawn)
        for _ in range(more):
            draw_again(W, prompt, now)
        if more > 0:
            return
        P[prompt].exhausted = True
    P[prompt].chosen = last
    _discard(W, P[prompt].first, last, now)
    if P[prompt].counts:
        for i in range(D[last].first, D[last].first + R.issue):
            if S[i].finished:
                score(W, i, now)


@compiled
def judge_queue(W: Any, now: float) -> None:
    """Walk the queue as far as it is decided; what is behind the last prompt that counts is returned."""
    R, P = W.R[0], W.P
    while R.accepted < R.target and R.next < R.prompts:
        prompt = R.next
        if P[prompt].chosen >= 0 or P[prompt].until_long:
            R.accepted += 1
            R.pending += 1
            P[prompt].counts = True
            _choose(W, prompt, now)
        else:
            if not _short_up_to(W, prompt, -1):
                return
            _discard(W, P[prompt].first, P[prompt].last, now)
            settle(W, P[prompt].last, DEFERRED, now)
        R.next += 1
    for prompt in range(R.next, R.prompts):
        _discard(W, P[prompt].first, P[prompt].last, now)
        settle(W, P[prompt].last, RETURNED, now)
    R.next = R.prompts
    R.done = R.pending == 0


@compiled
def reached_cutoff(W: Any, i: int, now: float) -> None:
    """Sample `i` decodes on beyond the cutoff (long rounds of `exact` watch it)."""
    S, D, P = W.S, W.D, W.P
    d = S[i].draw
    if D[d].fate == OPEN and S[i].live and not D[d].past:
        D[d].past = True
        _discard(W, D[d].later, -1, now)
        D[d].later = -1
        P[D[d].prompt].last = d
        _choose(W, D[d].prompt, now)
        judge_queue(W, now)


@compiled
def _long_finished(W: Any, i: int, now: float) -> None:
    S, D, P = W.S, W.D, W.P
    d = S[i].draw
    prompt = D[d].prompt
    if P[prompt].chosen == d:
        if P[prompt].counts:
            score(W, i, now)
    elif _is_long(W, i):
        reached_cutoff(W, i, now)
    elif not D[d].past and D[d].finished == W.R[0].group:
        _choose(W, prompt, now)
        judge_queue(W, now)


@compiled
def _long_scored(W: Any, d: int, now: float) -> None:
    R, D = W.R[0], W.D
    if D[d].rewarded < R.group:
        return
    settle(W, d, FILTERED if R.dynamic and flat(W, d) else TRAINED, now)
    R.pending -= 1
    judge_queue(W, now)


# -- what the loop tells -----------------------------------------------------------------------------------------------


@compiled
def finished(W: Any, i: int, now: float) -> None:
    """Sample `i` has its last token."""
    R, S, D = W.R[0], W.S, W.D
    d = S[i].draw
    if D[d].fate != OPEN or not S[i].live:
        return
    S[i].finished = True
    D[d].finished += 1
    if R.kind == RACE:
        score(W, i, now)
    elif R.kind == EXACT_LONG:
        _long_finished(W, i, now)
    else:
        _short_finished(W, i, now)


@compiled
def scored(W: Any, i: int, now: float) -> None:
    """The reward of sample `i` is known."""
    R, S, D = W.R[0], W.S, W.D
    d = S[i].draw
    if D[d].fate != OPEN or not S[i].live:
        return
    S[i].live = False
    S[i].rewarded = True
    D[d].rewarded += 1
    if R.kind == RACE:
        _race_scored(W, d, now)
    elif R.kind == EXACT_LONG:
        _long_scored(W, d, now)
    else:
        _short_scored(W, d, now)
