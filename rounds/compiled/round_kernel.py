"""The kernel: one round from its first issue to its end.

It has the machines of rounds/machines (RaceRound, ExactShortRound, ExactQueueRound) without losses and failures. Each
function bears its machine method's name; the docstrings there say why.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from .. import hand_over
from ..machines import exact
from ..machines.exact import MAX_DRAWS
from .compiled_actions import abort_live, catch_up, drop_load, flat, issue, mark_ready, release, score, settle
from .compiled_engines import admit, look_ahead, take_due, take_event
from .kernel_state import (
    DEFERRED,
    DISCARDED,
    EXACT_LONG,
    EXACT_SHORT,
    FILTERED,
    GONE,
    OPEN,
    RACE,
    RAN_OUT,
    RETURNED,
    STUCK,
    TRAINED,
)
from .numba_options import compiled, entry, sources_digest


@compiled
def take(world: Any, wanted: int, now: float) -> int:
    """Issue up to `wanted` fresh prompts; how many there were."""
    state = world.state[0]
    fresh = min(wanted, state.rows - state.draws)
    if fresh < wanted and state.more:
        state.status = RAN_OUT
        return 0
    for _ in range(fresh):
        issue(world, state.draws, state.draws, now)
    return int(fresh)


# -- race, defer, sync -------------------------------------------------------------------------------------------------


@compiled
def _race_scored(world: Any, d: int, now: float) -> None:
    state, draws = world.state[0], world.draws
    if draws[d].rewarded < state.group:
        return
    if state.dynamic and flat(world, d):
        settle(world, d, FILTERED, now)
        wanted = math.ceil((state.target - state.accepted) * state.over) - state.open
        if wanted > 0 and state.refills:
            take(world, wanted, now)
    else:
        settle(world, d, TRAINED, now)
        state.accepted += 1
    if state.accepted < state.target and state.open > 0:
        return
    for other in range(state.draws):
        if draws[other].fate == OPEN:
            settle(world, other, DEFERRED, now)
    state.done = True


# -- exact, short ------------------------------------------------------------------------------------------------------


@compiled
def judge(world: Any, now: float) -> None:
    """Walk the row as far as it is classified; close the round when enough are accepted."""
    state, draws = world.state[0], world.draws
    while state.accepted < state.target:
        if state.next == state.draws and take(world, math.ceil((state.target - state.accepted) * state.over), now) == 0:
            if state.status == RAN_OUT:
                return
            break
        d = state.next
        if draws[d].past:
            settle(world, d, DEFERRED, now)
        else:
            if draws[d].finished < state.group:
                return
            if state.dynamic:
                if draws[d].rewarded < state.group:
                    return
                if flat(world, d):
                    settle(world, d, FILTERED, now)
                    state.next += 1
                    continue
            state.accepted += 1
            if draws[d].rewarded == state.group:
                mark_ready(world, d, now)
        state.next += 1
    if state.pending < 0:
        state.pending = 0
        for d in range(state.draws):
            if draws[d].fate == OPEN:
                if d >= state.next:
                    settle(world, d, RETURNED, now)
                elif draws[d].rewarded < state.group:
                    state.pending += 1
    if state.pending > 0:
        return
    for d in range(state.next):
        if draws[d].fate == OPEN:
            settle(world, d, FILTERED if state.dynamic and flat(world, d) else TRAINED, now)
    state.done = True


@compiled
def _is_long(world: Any, i: int) -> bool:
    state, samples = world.state[0], world.samples
    natural = world.drawn[world.draws[samples[i].draw].row, samples[i].place].natural
    cut = natural > min(state.limit, state.cap) or natural >= state.cap
    return bool(samples[i].tokens > state.cutoff_tokens or (samples[i].tokens == state.cutoff_tokens and cut))


@compiled
def _short_finished(world: Any, i: int, now: float) -> None:
    state, samples, draws = world.state[0], world.samples, world.draws
    d = samples[i].draw
    if _is_long(world, i):
        draws[d].past = True
        abort_live(world, d, now)
        judge(world, now)
    else:
        score(world, i, now)
        if draws[d].finished == state.group:
            judge(world, now)


@compiled
def _short_scored(world: Any, d: int, now: float) -> None:
    state, draws = world.state[0], world.draws
    if draws[d].rewarded == state.group:
        if d < state.next:
            mark_ready(world, d, now)
        if state.pending > 0 and d < state.next:
            state.pending -= 1
        judge(world, now)


# -- exact, long -------------------------------------------------------------------------------------------------------


@compiled
def draw_again(world: Any, prompt: int, now: float) -> None:
    """Draw a prompt once more."""
    prompts, draws = world.prompts, world.draws
    if prompts[prompt].drawn == prompts[prompt].given:
        world.state[0].status = RAN_OUT
        return
    d = issue(world, prompt, prompts[prompt].offset + prompts[prompt].drawn, now)
    if prompts[prompt].drawn == 0:
        prompts[prompt].first = d
    else:
        draws[prompts[prompt].last].later = d
    prompts[prompt].last = d
    prompts[prompt].drawn += 1


@compiled
def _short_up_to(world: Any, prompt: int, end: int) -> bool:
    """Whether the prompt's draws before `end` are short; -1: all."""
    draws = world.draws
    d = world.prompts[prompt].first
    while d != end:
        if draws[d].past or draws[d].finished < world.state[0].group:
            return False
        d = draws[d].later
    return True


@compiled
def _discard(world: Any, d: int, end: int, now: float) -> None:
    """Discard a draw and its juniors before `end`."""
    draws = world.draws
    while d != end:
        if draws[d].fate == OPEN:
            settle(world, d, DISCARDED, now)
        d = draws[d].later


@compiled
def _choose(world: Any, prompt: int, now: float) -> None:
    state, samples, draws, prompts = world.state[0], world.samples, world.draws, world.prompts
    last = prompts[prompt].last
    if not _short_up_to(world, prompt, last):
        return
    if not draws[last].past:
        if draws[last].finished < state.group or not prompts[prompt].counts or not prompts[prompt].until_long:
            return
        more = min(prompts[prompt].drawn, MAX_DRAWS - prompts[prompt].drawn)
        for _ in range(more):
            draw_again(world, prompt, now)
        if more > 0:
            return
        prompts[prompt].exhausted = True
    prompts[prompt].chosen = last
    _discard(world, prompts[prompt].first, last, now)
    if prompts[prompt].counts:
        for i in range(draws[last].first, draws[last].first + state.issue):
            if samples[i].finished:
                score(world, i, now)


@compiled
def judge_queue(world: Any, now: float) -> None:
    """Walk the queue as far as it is decided; what is behind the last prompt that counts is returned."""
    state, prompts = world.state[0], world.prompts
    while state.accepted < state.target and state.next < state.prompts:
        prompt = state.next
        if prompts[prompt].chosen >= 0 or prompts[prompt].until_long:
            state.accepted += 1
            state.pending += 1
            prompts[prompt].counts = True
            _choose(world, prompt, now)
        else:
            if not _short_up_to(world, prompt, -1):
                return
            _discard(world, prompts[prompt].first, prompts[prompt].last, now)
            settle(world, prompts[prompt].last, DEFERRED, now)
        state.next += 1
    for prompt in range(state.next, state.prompts):
        _discard(world, prompts[prompt].first, prompts[prompt].last, now)
        settle(world, prompts[prompt].last, RETURNED, now)
    state.next = state.prompts
    state.done = state.pending == 0


@compiled
def reached_cutoff(world: Any, i: int, now: float) -> None:
    """Sample `i` decodes on beyond the cutoff (long rounds of `exact` watch it)."""
    samples, draws, prompts = world.samples, world.draws, world.prompts
    d = samples[i].draw
    if draws[d].fate == OPEN and samples[i].live and not draws[d].past:
        draws[d].past = True
        _discard(world, draws[d].later, -1, now)
        draws[d].later = -1
        prompts[draws[d].prompt].last = d
        _choose(world, draws[d].prompt, now)
        judge_queue(world, now)


@compiled
def _long_finished(world: Any, i: int, now: float) -> None:
    samples, draws, prompts = world.samples, world.draws, world.prompts
    d = samples[i].draw
    prompt = draws[d].prompt
    if prompts[prompt].chosen == d:
        if prompts[prompt].counts:
            score(world, i, now)
    elif _is_long(world, i):
        reached_cutoff(world, i, now)
    elif not draws[d].past and draws[d].finished == world.state[0].group:
        _choose(world, prompt, now)
        judge_queue(world, now)


@compiled
def _long_scored(world: Any, d: int, now: float) -> None:
    state, draws = world.state[0], world.draws
    if draws[d].rewarded < state.group:
        return
    settle(world, d, FILTERED if state.dynamic and flat(world, d) else TRAINED, now)
    state.pending -= 1
    judge_queue(world, now)


# -- what the loop tells -----------------------------------------------------------------------------------------------


@compiled
def finished(world: Any, i: int, now: float) -> None:
    """Sample `i` has its last token."""
    state, samples, draws = world.state[0], world.samples, world.draws
    d = samples[i].draw
    if draws[d].fate != OPEN or not samples[i].live:
        return
    samples[i].finished = True
    draws[d].finished += 1
    if state.kind == RACE:
        score(world, i, now)
    elif state.kind == EXACT_LONG:
        _long_finished(world, i, now)
    else:
        _short_finished(world, i, now)


@compiled
def scored(world: Any, i: int, now: float) -> None:
    """The reward of sample `i` is known."""
    state, samples, draws = world.state[0], world.samples, world.draws
    d = samples[i].draw
    if draws[d].fate != OPEN or not samples[i].live:
        return
    samples[i].live = False
    samples[i].rewarded = True
    draws[d].rewarded += 1
    if state.kind == RACE:
        _race_scored(world, d, now)
    elif state.kind == EXACT_LONG:
        _long_scored(world, d, now)
    else:
        _short_scored(world, d, now)


class World(NamedTuple):
    """Everything, as one argument: records of kernel_state.py."""

    state: Any  # (1,) the round
    engines: Any  # by engine
    samples: Any  # by sample
    draws: Any  # by draw
    prompts: Any  # by prompt
    prefixes: Any  # blocks of prompts that engines hold
    soonest: Any  # tournament of engines, whose next event is first (compiled_engines.py)
    least_loaded: Any  # tournament of engines, for the least loaded
    touched: Any  # by engine: those that must admit waiting samples
    drawn: Any  # (row, place) what is drawn; short rounds: row k is the k-th prompt's
    rewards: Any  # heap of rewards that are due
    free: Any  # heap: when each reward worker is free
    heaps: Any  # (engine, spot) running samples
    steps_s: Any  # by running sequences
    after_s: Any  # the same, of the engines that decode on after a change


@compiled
def _start(world: World, copies: int) -> None:
    state = world.state[0]
    if state.kind == EXACT_LONG:
        for copy in range(copies):
            for prompt in range(state.prompts):
                if copy < world.prompts[prompt].copies:
                    draw_again(world, prompt, 0.0)
        if state.status == RAN_OUT:
            return
        judge_queue(world, 0.0)
    else:
        for prompt in range(state.prompts):
            issue(world, prompt, prompt, 0.0)
        if state.kind == EXACT_SHORT:
            judge(world, 0.0)
    catch_up(world, 0.0)


@compiled
def _run(world: World, copies: int) -> float:
    state, engines, samples, rewards = world.state[0], world.engines, world.samples, world.rewards
    _start(world, copies)
    now = 0.0
    while not state.done and state.status != RAN_OUT:
        e = world.soonest[1]
        if state.held >= 0 and engines[e].upcoming == math.inf:
            release(world, state.decode_end)
        due = rewards[0].due_s if state.rewards_due > 0 else math.inf
        if min(due, engines[e].upcoming) == math.inf:
            state.status = STUCK
            return now
        if due <= engines[e].upcoming:
            now = due
            scored(world, take_due(state, rewards), now)
            catch_up(world, now)
        else:
            i = take_event(samples, engines, state, world.prefixes, world.heaps, e, world.steps_s)
            now = engines[e].now
            if i >= 0:
                if samples[i].state == GONE:
                    drop_load(world, e)
                    state.decode_end = now + engines[e].held_up
                    finished(world, i, now)
                else:
                    reached_cutoff(world, i, now)
                catch_up(world, now)
                admit(samples, engines, state, world.prefixes, world.heaps, e)
            look_ahead(samples, engines, state, world.soonest, world.heaps, e, world.steps_s)
    return now


def _make_entry(digest: str) -> Any:
    def simulate(world: Any, copies: int) -> float:
        # The digest is part of the key under which numba keeps the machine code (numba_options.py).
        assert len(digest) > 0
        return _run(world, copies)

    return entry(simulate)


simulate = _make_entry(sources_digest(Path(exact.__file__), Path(hand_over.__file__)))
"""(world, the most copies of a prompt) -> seconds at the end; `world.state[0].status` says how it ended."""
