"""The actions of machines, done at once: issue, abort, score, settle (the reference's `apply`).

The reference collects a machine's actions and then applies them in order. Doing each where the machine returns it is
the same, because no machine looks at the engines; engines that were touched are noted and let in who waits afterwards.
"""

from __future__ import annotations

import math
from typing import Any

from ..hand_over import MARGIN
from .compiled_engines import admit, look_ahead, pass_to, queue, remove
from .compiled_rewards import submit
from .kernel_state import GONE, OPEN, TRAINED, WAITING
from .numba_options import compiled
from .tournaments import bring_in, leave_out, note_load


@compiled
def assign(W: Any, i: int) -> int:
    """Pick the engine of a sample: the least loaded, or one that holds its prompt (rounds/balance)."""
    R, E, P, S, X = W.R[0], W.E, W.P, W.S, W.X
    prompt = S[i].prompt_number
    e, lead = W.B[1], P[prompt].lead
    if lead > 0:
        # The least loaded engine counts as more loaded by the lead, unless it is among those that hold the prompt.
        best, holder = math.inf, -1
        x = P[prompt].holders
        while x >= 0:
            other = X[x].engine
            alive = not R.freed or R.first_on <= other < R.last_on
            if alive and (E[other].load < best or (E[other].load == best and other < holder)):
                best, holder = E[other].load, other
            x = X[x].other
        if best <= E[e].load + lead:
            e = holder
    S[i].held = _held(W, prompt, e) if lead > 0 or P[prompt].shared > 0 else -1
    E[e].load += R.expected
    note_load(E, W.B, e)
    S[i].engine = e
    return int(e)


@compiled
def _held(W: Any, prompt: int, e: int) -> int:
    """Index of the record of the prompt's blocks on engine `e`; the record is made if there is none."""
    R, P, X = W.R[0], W.P, W.X
    x = P[prompt].holders
    while x >= 0:
        if X[x].engine == e:
            return int(x)
        x = X[x].other
    x = R.prefixes
    R.prefixes += 1
    X[x].engine, X[x].other = e, P[prompt].holders
    X[x].users, X[x].computed, X[x].intact_until = 0, -1, -1
    P[prompt].holders = x
    return int(x)


@compiled
def drop_load(W: Any, e: int) -> None:
    """Take a sample that left the engine off its load."""
    W.E[e].load -= W.R[0].expected
    note_load(W.E, W.B, e)


@compiled
def _touch(W: Any, e: int) -> None:
    """Note that the engine must admit waiting samples."""
    if not W.E[e].touched:
        W.E[e].touched = True
        W.touched[W.R[0].touched] = e
        W.R[0].touched += 1


@compiled
def issue(W: Any, prompt: int, row: int, now: float) -> int:
    """Issue a draw of the prompt, its lengths in row `row`; the draw's number."""
    R, E, S, D, P, L = W.R[0], W.E, W.S, W.D, W.P, W.L
    d = R.draws
    R.draws += 1
    R.open += 1
    D[d].row, D[d].prompt, D[d].first, D[d].later = row, prompt, R.samples, -1
    D[d].finished = D[d].rewarded = 0
    D[d].ready_s = -1.0
    D[d].fate, D[d].past = OPEN, False
    for k in range(R.issue):
        i = R.samples
        R.samples += 1
        natural = L[row, k].natural
        S[i].draw, S[i].place = d, k
        S[i].prompt, S[i].shared, S[i].prompt_number = P[prompt].tokens, P[prompt].shared, prompt
        S[i].tokens = min(natural, min(R.limit, R.cap))
        S[i].cutoff_tokens = R.cutoff_tokens if R.watched else 0
        S[i].base = 0
        S[i].state, S[i].live, S[i].finished, S[i].rewarded = WAITING, True, False, False
        e = assign(W, i)
        pass_to(S, E, R, W.heaps, e, now, W.steps_s)
        queue(S, E, e, i)
        _touch(W, e)
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
                remove(S, E, R, W.X, W.heaps, i)
                drop_load(W, e)
                R.decode_end = now
                _touch(W, e)


@compiled
def score(W: Any, i: int, now: float) -> None:
    """Ask for the reward of a finished sample."""
    R, E, S, D, L = W.R[0], W.E, W.S, W.D, W.L
    R.finished += 1
    if R.changes and not R.freed and R.finished >= R.milestone:
        R.decision_due = True
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
    """The rollout is over: send the held samples to the reward workers, without those aborted since."""
    R, S, D, L = W.R[0], W.S, W.D, W.L
    i = R.held
    while i >= 0:
        if S[i].live:
            submit(R, W.Q, W.free, i, now, L[D[S[i].draw].row, S[i].place].reward_s)
        i = S[i].behind
    R.held = -1


@compiled
def mark_ready(W: Any, d: int, now: float) -> None:
    """The draw is certain to be trained and has all its rewards."""
    if W.D[d].ready_s < 0:
        W.D[d].ready_s = now


@compiled
def settle(W: Any, d: int, fate: int, now: float) -> None:
    """Give a draw its fate."""
    abort_live(W, d, now)
    W.D[d].fate = fate
    W.R[0].open -= 1
    if fate == TRAINED:
        mark_ready(W, d, now)


@compiled
def _give_up(W: Any, e: int) -> None:
    """All samples of an engine go on elsewhere, with the tokens that they have."""
    R, E, S = W.R[0], W.E, W.S
    i = E[e].youngest
    while i >= 0 and S[i].older >= 0:
        i = S[i].older
    while i >= 0:
        after, generated = S[i].younger, S[i].base + (E[e].step - S[i].admitted)
        remove(S, E, R, W.X, W.heaps, i)
        S[i].base = generated
        _move(W, i, e)
        i = after
    i = E[e].first
    while i >= 0:
        after = S[i].behind
        if S[i].state == WAITING:
            _move(W, i, e)
        i = after
    E[e].first = E[e].last = -1


@compiled
def _move(W: Any, i: int, e: int) -> None:
    drop_load(W, e)
    W.S[i].state = WAITING
    queue(W.S, W.E, assign(W, i), i)
    W.R[0].moved += 1


@compiled
def _change(W: Any) -> None:
    """Engines stop, and pass their samples on to those that decode on, at the costs of these."""
    R, E = W.R[0], W.E
    for e in range(R.before):
        if not R.first_on <= e < R.last_on:
            R.freed_s = max(R.freed_s, E[e].now)
            leave_out(E, W.B, e)
    for e in range(max(R.before, R.first_on), R.last_on):
        E[e].now = max(E[e].now, R.freed_s + R.takes_s)
        bring_in(E, W.B, e)
    R.finish_s, R.prefill_s, R.capacity = R.after_finish_s, R.after_prefill_s, R.after_capacity
    R.prefill_s_per_token = R.after_prefill_s_per_token
    R.prefill_s_per_token_squared = R.after_prefill_s_per_token_squared
    for count in range(len(W.steps_s)):
        W.steps_s[count].base_s, W.steps_s[count].kv_s = W.after_s[count].base_s, W.after_s[count].kv_s
    for e in range(R.before):
        if not R.first_on <= e < R.last_on:
            _give_up(W, e)


@compiled
def free(W: Any, now: float) -> None:
    """Change engines if what runs fits on those that decode on (rounds/hand_over)."""
    R, E, S = W.R[0], W.E, W.S
    held = sequences = 0
    for e in range(len(E)):
        pass_to(S, E, R, W.heaps, e, now, W.steps_s)
        held += E[e].kv
        sequences += E[e].running
        i = E[e].first
        while i >= 0:
            if S[i].state == WAITING:
                held += S[i].prompt + S[i].base
                sequences += 1
            i = S[i].behind
    R.milestone = R.finished + R.stride
    share = 1.0 - MARGIN if R.refused else 1.0
    R.freed = held + sequences * R.growth <= share * ((R.last_on - R.first_on) * R.after_capacity)
    R.refused = not R.freed
    if R.freed:
        _change(W)
    for e in range(len(E)):
        admit(S, E, R, W.X, W.heaps, e)
        look_ahead(S, E, R, W.T, W.heaps, e, W.steps_s)


@compiled
def catch_up(W: Any, now: float) -> None:
    """Touched engines admit waiting samples; a hand-over that is due is decided."""
    R, E, S = W.R[0], W.E, W.S
    for k in range(R.touched):
        e = W.touched[k]
        E[e].touched = False
        admit(S, E, R, W.X, W.heaps, e)
        look_ahead(S, E, R, W.T, W.heaps, e, W.steps_s)
    R.touched = 0
    if R.decision_due:
        R.decision_due = False
        free(W, now)


@compiled
def flat(W: Any, d: int) -> bool:
    """Whether the rewards that a draw has are all equal."""
    R, S, D, L = W.R[0], W.S, W.D, W.L
    low, high = 0.0, 0.0
    seen = False
    for i in range(D[d].first, D[d].first + R.issue):
        if S[i].rewarded:
            reward = L[D[d].row, S[i].place].reward
            if not seen:
                low = high = reward
                seen = True
            low, high = min(low, reward), max(high, reward)
    return bool(low == high)
