"""What machines ask for, done at once: issue, abort, score, settle (the reference's `apply`).

The reference collects a machine's actions and then applies them in order. Doing each where the machine returns it is
the same, because no machine looks at the engines; engines that were touched are noted and let in who waits afterwards.
"""

from __future__ import annotations

from typing import Any

from .compiled import compiled
from .engines import admit, look_ahead, pass_to, queue, remove
from .rewards import submit
from .state import GONE, OPEN, WAITING


@compiled
def issue(W: Any, prompt: int, row: int, now: float) -> int:
    """Issue a draw of the prompt, its lengths in row `row`; the draw's number."""
    R, E, S, D, P, L = W.R[0], W.E, W.S, W.D, W.P, W.L
    d = R.draws
    R.draws += 1
    R.open += 1
    D[d].row, D[d].prompt, D[d].first, D[d].later = row, prompt, R.samples, -1
    D[d].finished = D[d].rewarded = 0
    D[d].fate, D[d].past = OPEN, False
    for k in range(R.issue):
        i = R.samples
        R.samples += 1
        natural = L[row, k].natural
        S[i].draw, S[i].place = d, k
        S[i].prompt = P[prompt].tokens
        S[i].tokens = min(natural, min(R.limit, R.cap))
        S[i].watch = R.cutoff if R.watched else 0
        S[i].base = 0
        S[i].state, S[i].live, S[i].finished, S[i].rewarded = WAITING, True, False, False
        e = 0
        for other in range(1, len(E)):
            if E[other].load < E[e].load:
                e = other
        E[e].load += R.expected
        S[i].engine = e
        pass_to(S, E, R, W.heaps, e, now, W.steps_s)
        queue(S, E, e, i)
        E[e].touched = True
    return int(d)


@compiled
def abort_live(W: Any, d: int, now: float) -> None:
    """Abort the samples of a draw that decode or wait for their rewards."""
    R, E, S, D = W.R[0], W.E, W.S, W.D
    for i in range(D[d].first, D[d].first + R.issue):
        if S[i].live:
            S[i].live = False
            if S[i].state != GONE:
                e = S[i].engine
                pass_to(S, E, R, W.heaps, e, now, W.steps_s)
                remove(S, E, R, W.heaps, i)
                E[e].load -= R.expected
                R.decode_end = now
                E[e].touched = True


@compiled
def score(W: Any, i: int, now: float) -> None:
    """Ask for the reward of a finished sample."""
    R, E, S, D, L = W.R[0], W.E, W.S, W.D, W.L
    if R.after_rollout:
        S[i].behind = -1
        if R.held < 0:
            R.held = i
        else:
            S[R.held_last].behind = i
        R.held_last = i
    else:
        submit(R, W.Q, W.free, i, now + E[S[i].engine].held_up, L[D[S[i].draw].row, S[i].place].reward_s)


@compiled
def release(W: Any, now: float) -> None:
    """The rollout is over: what was held goes to the workers, but for what was aborted since."""
    R, S, D, L = W.R[0], W.S, W.D, W.L
    i = R.held
    while i >= 0:
        if S[i].live:
            submit(R, W.Q, W.free, i, now, L[D[S[i].draw].row, S[i].place].reward_s)
        i = S[i].behind
    R.held = -1


@compiled
def settle(W: Any, d: int, fate: int, now: float) -> None:
    """Give a draw its fate."""
    abort_live(W, d, now)
    W.D[d].fate = fate
    W.R[0].open -= 1
    W.D[d].settled_s = now


@compiled
def catch_up(W: Any) -> None:
    """Engines that were touched let in who waits."""
    R, E, S = W.R[0], W.E, W.S
    for e in range(len(E)):
        if E[e].touched:
            E[e].touched = False
            admit(S, E, R, W.heaps, e)
            look_ahead(S, E, R, W.heaps, e, W.steps_s)


@compiled
def flat(W: Any, d: int) -> bool:
    """Whether the rewards that a draw has are all equal."""
    R, S, D, L = W.R[0], W.S, W.D, W.L
    low, high = 0.0, 0.0
    found = False
    for i in range(D[d].first, D[d].first + R.issue):
        if S[i].rewarded:
            reward = L[D[d].row, S[i].place].reward
            if not found:
                low = high = reward
                found = True
            low, high = min(low, reward), max(high, reward)
    return bool(low == high)
