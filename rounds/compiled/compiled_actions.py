"""The actions of machines, done at once: issue, abort, score, settle (the reference's `apply`).

The reference collects a machine's actions and then applies them in order. Doing each where the machine returns it is
the same, because no machine looks at the engines; engines that were touched are noted and let in who waits afterwards.
"""

from __future__ import annotations

import math
from typing import Any

from ..hand_over import MARGIN
from .compiled_engines import admit, bring_in, leave_out, look_ahead, note_load, pass_to, queue, remove, submit
from .kernel_state import GONE, OPEN, TRAINED, WAITING
from .numba_options import compiled


@compiled
def assign(world: Any, i: int) -> int:
    """Pick the engine of a sample: the least loaded, or one that holds its prompt (rounds/balance)."""
    state, engines, samples = world.state[0], world.engines, world.samples
    prompts, prefixes = world.prompts, world.prefixes
    prompt = samples[i].prompt_number
    e, lead = world.least_loaded[1], prompts[prompt].lead
    if lead > 0:
        # The least loaded engine counts as more loaded by the lead, unless it is among those that hold the prompt.
        best, holder = math.inf, -1
        x = prompts[prompt].holders
        while x >= 0:
            other = prefixes[x].engine
            alive = not state.freed or state.first_on <= other < state.last_on
            if alive and (engines[other].load < best or (engines[other].load == best and other < holder)):
                best, holder = engines[other].load, other
            x = prefixes[x].other
        if best <= engines[e].load + lead:
            e = holder
    samples[i].held = _held(world, prompt, e) if lead > 0 or prompts[prompt].shared > 0 else -1
    engines[e].load += state.expected
    note_load(engines, world.least_loaded, e)
    samples[i].engine = e
    return int(e)


@compiled
def _held(world: Any, prompt: int, e: int) -> int:
    """Index of the record of the prompt's blocks on engine `e`; the record is made if there is none."""
    state, prompts, prefixes = world.state[0], world.prompts, world.prefixes
    x = prompts[prompt].holders
    while x >= 0:
        if prefixes[x].engine == e:
            return int(x)
        x = prefixes[x].other
    x = state.prefixes
    state.prefixes += 1
    prefixes[x].engine, prefixes[x].other = e, prompts[prompt].holders
    prefixes[x].users, prefixes[x].computed, prefixes[x].intact_until = 0, -1, -1
    prompts[prompt].holders = x
    return int(x)


@compiled
def drop_load(world: Any, e: int) -> None:
    """Take a sample that left the engine off its load."""
    world.engines[e].load -= world.state[0].expected
    note_load(world.engines, world.least_loaded, e)


@compiled
def _touch(world: Any, e: int) -> None:
    """Note that the engine must admit waiting samples."""
    if not world.engines[e].touched:
        world.engines[e].touched = True
        world.touched[world.state[0].touched] = e
        world.state[0].touched += 1


@compiled
def issue(world: Any, prompt: int, row: int, now: float) -> int:
    """Issue a draw of the prompt, its lengths in row `row`; the draw's number."""
    state, engines, samples, draws = world.state[0], world.engines, world.samples, world.draws
    prompts, drawn = world.prompts, world.drawn
    d = state.draws
    state.draws += 1
    state.open += 1
    draws[d].row, draws[d].prompt, draws[d].first, draws[d].later = row, prompt, state.samples, -1
    draws[d].finished = draws[d].rewarded = 0
    draws[d].ready_s = -1.0
    draws[d].fate, draws[d].past = OPEN, False
    for k in range(state.issue):
        i = state.samples
        state.samples += 1
        natural = drawn[row, k].natural
        samples[i].draw, samples[i].place = d, k
        samples[i].prompt_number = prompt
        samples[i].prompt, samples[i].shared = prompts[prompt].tokens, prompts[prompt].shared
        samples[i].tokens = min(natural, min(state.limit, state.cap))
        samples[i].cutoff_tokens = state.cutoff_tokens if state.watched else 0
        samples[i].base = 0
        samples[i].state, samples[i].live, samples[i].finished, samples[i].rewarded = WAITING, True, False, False
        e = assign(world, i)
        pass_to(samples, engines, state, world.heaps, e, now, world.steps_s)
        queue(samples, engines, e, i)
        _touch(world, e)
    return int(d)


@compiled
def abort_live(world: Any, d: int, now: float) -> None:
    """Abort the samples of a draw that decode or wait for their rewards."""
    state, engines, samples, draws = world.state[0], world.engines, world.samples, world.draws
    for i in range(draws[d].first, draws[d].first + state.issue):
        if samples[i].live:
            samples[i].live = False
            if samples[i].state != GONE:
                e = samples[i].engine
                pass_to(samples, engines, state, world.heaps, e, now, world.steps_s)
                remove(samples, engines, state, world.prefixes, world.heaps, i)
                drop_load(world, e)
                state.decode_end = now
                _touch(world, e)


@compiled
def score(world: Any, i: int, now: float) -> None:
    """Ask for the reward of a finished sample."""
    state, engines, samples, draws, drawn = world.state[0], world.engines, world.samples, world.draws, world.drawn
    state.finished += 1
    if state.changes and not state.freed and state.finished >= state.milestone:
        state.decision_due = True
    if state.after_rollout:
        samples[i].behind = -1
        if state.held < 0:
            state.held = i
        else:
            samples[state.held_last].behind = i
        state.held_last = i
    else:
        reward_s = drawn[draws[samples[i].draw].row, samples[i].place].reward_s
        submit(state, world.rewards, world.free, i, now + engines[samples[i].engine].held_up, reward_s)


@compiled
def release(world: Any, now: float) -> None:
    """The rollout is over: send the held samples to the reward workers, without those aborted since."""
    state, samples, draws, drawn = world.state[0], world.samples, world.draws, world.drawn
    i = state.held
    while i >= 0:
        if samples[i].live:
            reward_s = drawn[draws[samples[i].draw].row, samples[i].place].reward_s
            submit(state, world.rewards, world.free, i, now, reward_s)
        i = samples[i].behind
    state.held = -1


@compiled
def mark_ready(world: Any, d: int, now: float) -> None:
    """The draw is certain to be trained and has all its rewards."""
    if world.draws[d].ready_s < 0:
        world.draws[d].ready_s = now


@compiled
def settle(world: Any, d: int, fate: int, now: float) -> None:
    """Give a draw its fate."""
    abort_live(world, d, now)
    world.draws[d].fate = fate
    world.state[0].open -= 1
    if fate == TRAINED:
        mark_ready(world, d, now)


@compiled
def _give_up(world: Any, e: int) -> None:
    """All samples of an engine go on elsewhere, with the tokens that they have."""
    state, engines, samples = world.state[0], world.engines, world.samples
    i = engines[e].youngest
    while i >= 0 and samples[i].older >= 0:
        i = samples[i].older
    while i >= 0:
        after, generated = samples[i].younger, samples[i].base + (engines[e].step - samples[i].admitted)
        remove(samples, engines, state, world.prefixes, world.heaps, i)
        samples[i].base = generated
        _move(world, i, e)
        i = after
    i = engines[e].first
    while i >= 0:
        after = samples[i].behind
        if samples[i].state == WAITING:
            _move(world, i, e)
        i = after
    engines[e].first = engines[e].last = -1


@compiled
def _move(world: Any, i: int, e: int) -> None:
    drop_load(world, e)
    world.samples[i].state = WAITING
    queue(world.samples, world.engines, assign(world, i), i)
    world.state[0].moved += 1


@compiled
def _change(world: Any) -> None:
    """Engines stop, and pass their samples on to those that decode on, at the costs of these."""
    state, engines = world.state[0], world.engines
    for e in range(state.before):
        if not state.first_on <= e < state.last_on:
            state.freed_s = max(state.freed_s, engines[e].now)
            leave_out(engines, world.least_loaded, e)
    for e in range(max(state.before, state.first_on), state.last_on):
        engines[e].now = max(engines[e].now, state.freed_s + state.takes_s)
        bring_in(engines, world.least_loaded, e)
    state.finish_s, state.prefill_s, state.capacity = state.after_finish_s, state.after_prefill_s, state.after_capacity
    state.prefill_s_per_token = state.after_prefill_s_per_token
    state.prefill_s_per_token_squared = state.after_prefill_s_per_token_squared
    for count in range(len(world.steps_s)):
        world.steps_s[count].base_s, world.steps_s[count].kv_s = world.after_s[count].base_s, world.after_s[count].kv_s
    for e in range(state.before):
        if not state.first_on <= e < state.last_on:
            _give_up(world, e)


@compiled
def free(world: Any, now: float) -> None:
    """Change engines if what runs fits on those that decode on (rounds/hand_over)."""
    state, engines, samples = world.state[0], world.engines, world.samples
    held = sequences = 0
    for e in range(len(engines)):
        pass_to(samples, engines, state, world.heaps, e, now, world.steps_s)
        held += engines[e].kv
        sequences += engines[e].running
        i = engines[e].first
        while i >= 0:
            if samples[i].state == WAITING:
                held += samples[i].prompt + samples[i].base
                sequences += 1
            i = samples[i].behind
    state.milestone = state.finished + state.stride
    share = 1.0 - MARGIN if state.refused else 1.0
    state.freed = held + sequences * state.growth <= share * ((state.last_on - state.first_on) * state.after_capacity)
    state.refused = not state.freed
    if state.freed:
        _change(world)
    for e in range(len(engines)):
        admit(samples, engines, state, world.prefixes, world.heaps, e)
        look_ahead(samples, engines, state, world.soonest, world.heaps, e, world.steps_s)


@compiled
def catch_up(world: Any, now: float) -> None:
    """Touched engines admit waiting samples; a hand-over that is due is decided."""
    state, engines, samples = world.state[0], world.engines, world.samples
    for k in range(state.touched):
        e = world.touched[k]
        engines[e].touched = False
        admit(samples, engines, state, world.prefixes, world.heaps, e)
        look_ahead(samples, engines, state, world.soonest, world.heaps, e, world.steps_s)
    state.touched = 0
    if state.decision_due:
        state.decision_due = False
        free(world, now)


@compiled
def flat(world: Any, d: int) -> bool:
    """Whether the rewards that a draw has are all equal."""
    state, samples, draws, drawn = world.state[0], world.samples, world.draws, world.drawn
    low, high = 0.0, 0.0
    seen = False
    for i in range(draws[d].first, draws[d].first + state.issue):
        if samples[i].rewarded:
            reward = drawn[draws[d].row, samples[i].place].reward
            if not seen:
                low = high = reward
                seen = True
            low, high = min(low, reward), max(high, reward)
    return bool(low == high)
