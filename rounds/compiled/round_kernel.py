"""The kernel: one round from its first issue to its end."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .compiled_actions import catch_up, drop_load, issue, release
from .compiled_engines import admit, look_ahead, take_event
from .compiled_machines import draw_again, finished, judge, judge_queue, reached_cutoff, scored
from .compiled_rewards import take_due
from .kernel_state import EXACT_LONG, EXACT_SHORT, GONE, RAN_OUT, STUCK
from .numba_options import compiled, entry, sources_digest


class World(NamedTuple):
    """Everything, as one argument: records of kernel_state.py."""

    R: Any  # (1,) the round
    E: Any  # by engine
    S: Any  # by sample
    D: Any  # by draw
    P: Any  # by prompt
    X: Any  # blocks of prompts that engines hold
    T: Any  # tournament of engines, whose next event is first (tournaments.py)
    B: Any  # tournament of engines, for the least loaded
    touched: Any  # by engine: those that must admit waiting samples
    L: Any  # (row, place) what is drawn; short rounds: row k is the k-th prompt's
    Q: Any  # heap of rewards that are due
    free: Any  # heap: when each reward worker is free
    heaps: Any  # (engine, spot) running samples
    steps_s: Any  # by running sequences
    after_s: Any  # the same, of the engines that decode on after a change


@compiled
def _start(W: World, copies: int) -> None:
    R = W.R[0]
    if R.kind == EXACT_LONG:
        for copy in range(copies):
            for prompt in range(R.prompts):
                if copy < W.P[prompt].copies:
                    draw_again(W, prompt, 0.0)
        if R.status == RAN_OUT:
            return
        judge_queue(W, 0.0)
    else:
        for prompt in range(R.prompts):
            issue(W, prompt, prompt, 0.0)
        if R.kind == EXACT_SHORT:
            judge(W, 0.0)
    catch_up(W, 0.0)


@compiled
def _run(W: World, copies: int) -> float:
    R, E, S, Q = W.R[0], W.E, W.S, W.Q
    _start(W, copies)
    now = 0.0
    while not R.done and R.status != RAN_OUT:
        e = W.T[1]
        if R.held >= 0 and E[e].upcoming == math.inf:
            release(W, R.decode_end)
        due = Q[0].due_s if R.rewards_due > 0 else math.inf
        if min(due, E[e].upcoming) == math.inf:
            R.status = STUCK
            return now
        if due <= E[e].upcoming:
            now = due
            scored(W, take_due(R, Q), now)
            catch_up(W, now)
        else:
            i = take_event(S, E, R, W.X, W.heaps, e, W.steps_s)
            now = E[e].now
            if i >= 0:
                if S[i].state == GONE:
                    drop_load(W, e)
                    R.decode_end = now + E[e].held_up
                    finished(W, i, now)
                else:
                    reached_cutoff(W, i, now)
                catch_up(W, now)
                admit(S, E, R, W.X, W.heaps, e)
            look_ahead(S, E, R, W.T, W.heaps, e, W.steps_s)
    return now


def _make_entry(digest: str) -> Any:
    def simulate(world: Any, copies: int) -> float:
        # The digest is part of the key under which numba keeps the machine code (numba_options.py).
        assert len(digest) > 0
        return _run(world, copies)

    return entry(simulate)


simulate = _make_entry(sources_digest())
"""(world, the most copies of a prompt) -> seconds at the end; `R[0].status` says how it ended."""
