"""One round on a virtual clock: the real machine of rounds/, engines with continuous batching, reward workers.

What is modelled, and how simply:
- a sample joins its engine at the first step boundary at which it fits (first come, first served; at most
  `max_num_seqs`, KV within capacity), pays its prefill there and gets one token from each step from then on;
- decode steps between two events of an engine are one closed form (DecodeCost.steps_s), so work is per event and
  never per token; actions take effect at the next step boundary of the engine;
- an engine prefills and holds the whole blocks of a prompt once for all its samples (reference_engine.Engine);
- when KV is full, the sample admitted last is preempted: it keeps its tokens, waits at the head of the queue and pays
  a prefill over prompt and tokens when it comes back (as vLLM does);
- a watched sample's `ReachedCutoff` comes with the token that reaches it;
- a sample that ends holds its engine's next step up by `finish_s`, and is scored that much later, or, where rewards
  come after the rollout, when no engine has anything left to decode;
- at a hand-over the last engines pass on their samples, which keep their tokens and pay a prefill over them elsewhere;
  where a tail has engines of its own all engines do, and those of the tail begin `takes_s` later;
- where samples are balanced by history, they wait for an engine as the plan has it; one that moves to an engine that
  has few leaves at its engine's next step boundary, and is there the seconds of a move later;
- an abort of a sample whose reward was already asked for does not give the reward worker's time back.

The order of simultaneous events is fixed (rewards, then engines by number, then order of issue): same inputs, same run.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...rounds.balancing.length_estimates import NOTHING, Recorded
from ...rounds.balancing.longest_first import Balance, LongestFirst
from ...rounds.balancing.placement import ByLoad, ToPlace
from ...rounds.machines.events import Abort, Action, Finished, Issue, ReachedCutoff, SampleKey, Scored
from ...rounds.machines.round import Round
from ..costs.decode_costs import ChangeCost, DecodeCost
from ..costs.reward_costs import RewardCost
from .reference_engine import FINISH, Engine, EngineSample, RewardQueue
from .round_arrays import RoundTimes


@dataclass(frozen=True, slots=True)
class RoundLengths:
    """The samples of a round, as the simulator reads them: `natural(key, prompt)` is a sample's number of tokens if
    the issue had no limit (the job's cap applies: `cap_tokens` means cut by it), `prompt_tokens(prompt)` its prompt,
    `reward` its score, `reward_s(key, prompt, tokens)` how long that takes a worker, the tokens counting the prompt's;
    None: as long as the cost says of so many tokens. `recorded`: what earlier rounds have recorded of the
    prompts; read where samples are balanced by it.
    """

    natural: Callable[[SampleKey, str], int]
    prompt_tokens: Callable[[str], int]
    reward: Callable[[SampleKey, str], float]
    cap_tokens: int
    expected_tokens: float = 1.0
    reward_s: Callable[[SampleKey, str, int], float] | None = None
    recorded: Recorded = NOTHING


NOWHERE = -1
"""The engine of a sample that waits for one."""


def weight(expected_tokens: float) -> float:
    """The weight of a sample for the balancer, in whole tokens.

    Sums of them are exact, so that equal loads compare equal and samples go where the executor, which weighs a round's
    samples alike with another number, sends them.
    """
    return float(max(1, round(expected_tokens)))


Observe = Callable[[float, str, int, int, int], None]
"""What `simulate_round` tells an observer: (seconds from the round's start, what, three numbers).

- "engine": engine, running sequences, KV tokens held, whenever they changed other than by decoding;
- "preempted": engine, draw, sample; "cutoff", "finished", "submitted" (to the reward workers), "scored", "aborted":
  draw, sample, engine;
- "held", at the end of the round: engine, how often it preempted, the most KV tokens that it held;
- "worked", likewise: engine, its decode steps, KV tokens that these read;
- "stepped", likewise: engine, a number of sequences, millionths of decode steps with so many.
"""


def simulate_round(
    machine: Round,
    lengths: RoundLengths,
    decode: DecodeCost,
    reward: RewardCost,
    max_num_seqs: int,
    observe: Observe | None = None,
    *,
    change: ChangeCost | None = None,
    samples_to_train: int = 0,
    on_ready: Callable[[int, float], None] | None = None,
) -> RoundTimes:
    """Drive `machine` from its start until it is done. The weight transfer is not in it.

    `change`: of the engines, once a share of `samples_to_train` has ended; `on_ready` is told each draw that is ready
    to be trained, and when.
    `observe` is told what happens on the way, for timelines and for counting idle engines; it changes nothing.
    Raises AssertionError if the machine waits for something that cannot come.
    """
    first = decode.key.engines
    engines = [Engine(decode, max_num_seqs) for _ in range(first)]
    decision = change.machine(samples_to_train, first) if change is not None else None
    if change is not None and change.is_tail:
        engines += [Engine(change.after, max_num_seqs) for _ in change.numbers(first)]
    placement: ByLoad | LongestFirst = ByLoad(len(engines), decode.sharing)
    if decode.balance is not None:
        placement = LongestFirst(len(engines), Balance(decode.balance, lengths.recorded), max_num_seqs)
    rewards = RewardQueue(reward)
    samples: dict[SampleKey, EngineSample] = {}
    upcoming = [math.inf] * len(engines)
    asked: dict[SampleKey, ToPlace] = {}
    decode_end: float = 0
    freed: float | None = None
    moved = told = 0
    alive = set(range(first))

    def tell(place: int) -> None:
        assert observe is not None
        engine = engines[place]
        observe(engine.now, "engine", place, len(engine.running), engine.kv - engine.shared)

    def apply(actions: list[Action], now: float) -> None:
        nonlocal decode_end, told
        touched: set[int] = set()
        hands_over = False
        for action in actions:
            key = action.key
            if isinstance(action, Issue):
                tokens = lengths.prompt_tokens(action.prompt)
                natural = lengths.natural(key, action.prompt)
                limit = min(action.max_tokens, lengths.cap_tokens)
                truncated = natural > limit or natural >= lengths.cap_tokens
                ends = min(natural, limit)
                samples[key] = EngineSample(key, NOWHERE, action.prompt, tokens, ends, truncated, action.cutoff_tokens)
                asked[key] = ToPlace(key, action.prompt, tokens, limit)
                placement.add(asked[key])
                if isinstance(placement, ByLoad):  # before the next action
                    touched |= start(now)
            elif isinstance(action, Abort):
                sample = samples[key]
                rewards.held.pop(key, None)
                if sample.engine == NOWHERE:
                    sample.state = "gone"
                    placement.remove(key)
                elif sample.state != "gone":
                    engine = engines[sample.engine]
                    engine.pass_to(now)
                    engine.remove(sample)
                    placement.remove(key)
                    decode_end = now
                    touched.add(sample.engine)
                    if observe:
                        observe(now, "aborted", *key, sample.engine)
            else:
                sample = samples[key]
                tokens = sample.prompt_tokens + sample.tokens
                seconds = (
                    lengths.reward_s(key, asked[key].prompt, tokens) if lengths.reward_s else reward.read_s(tokens)
                )
                rewards.ask(key, now + engines[sample.engine].held_up, seconds)
                if observe:
                    observe(now, "submitted", *key, samples[key].engine)
                hands_over = (decision is not None and decision.sample_finished()) or hands_over
        if on_ready:
            for draw in machine.ready[told:]:
                on_ready(draw, now)
            told = len(machine.ready)
        touched |= start(now)
        for place in touched:
            go_on(place)
        if hands_over:
            free(now)
        if isinstance(placement, LongestFirst) and placement.to_relieve(alive):
            relieve(placement, now)

    def start(now: float) -> set[int]:
        """Have those samples start that are to start now; returns their engines."""
        places = set()
        for key, place in placement.place(alive):
            samples[key].engine = place
            engines[place].pass_to(now)
            engines[place].waiting.append(samples[key])
            places.add(place)
        return places

    def go_on(place: int) -> None:
        engines[place].admit()
        upcoming[place] = engines[place].next_event_s()
        if observe:
            tell(place)

    def free(now: float) -> None:
        """Change the engines if the samples fit on those that decode on."""
        nonlocal freed, moved
        assert change is not None and decision is not None
        for engine in engines:
            engine.pass_to(now)
        held = [engine.held() for engine in engines]
        if decision.decide(sum(t for t, _ in held), sum(n for _, n in held), change.after.kv_capacity_tokens):
            stopped = [number for number in range(first) if number not in change.numbers(first)]
            freed = max(engines[number].now for number in stopped)
            alive.clear()
            alive.update(change.numbers(first))
            for number in alive:
                engines[number].cost = change.after
                if change.is_tail:
                    engines[number].now = max(engines[number].now, freed + change.takes_s)
            for number in stopped:
                for sample in engines[number].give_up():
                    wait_again(sample)
                    if isinstance(placement, ByLoad):
                        start(now)
            start(now)
        for place in range(len(engines)):
            go_on(place)

    def wait_again(sample: EngineSample) -> None:
        nonlocal moved
        placement.add(replace(asked[sample.key], kept=sample.base))
        sample.engine = NOWHERE
        moved += 1

    def relieve(longest: LongestFirst, now: float) -> None:
        """Move samples to engines that have few, where that pays."""
        assert decode.balance is not None
        loaded = [place for place in sorted(alive) if longest.running(place)]
        for place in loaded:
            engines[place].pass_to(now)
        tokens = {key: engines[place].tokens_of(samples[key]) for place in loaded for key in longest.running(place)}
        left_s = now
        for key, source in longest.relieve(alive, tokens):
            engines[source].give_up_one(samples[key])
            left_s = max(left_s, engines[source].now)
            wait_again(samples[key])
        start(left_s + decode.balance.move_s)
        for place in sorted(alive):
            go_on(place)

    now: float = 0
    apply(machine.start(), now)
    while not machine.done:
        place = min(range(len(engines)), key=upcoming.__getitem__)
        if rewards.held and upcoming[place] == math.inf:
            rewards.release(decode_end)
        scored = rewards.due[0][0] if rewards.due else math.inf
        assert min(scored, upcoming[place]) < math.inf, "the round waits for nothing"
        if scored <= upcoming[place]:
            now, _, key = heapq.heappop(rewards.due)
            if observe:
                observe(now, "scored", *key, samples[key].engine)
            apply(machine.handle(Scored(key, lengths.reward(key, asked[key].prompt))), now)
            continue
        engine = engines[place]
        event = engine.take_event()
        now = engine.now
        if event is not None:
            kind, sample = event
            if kind == FINISH:
                placement.ended(sample.key, sample.tokens)
                decode_end = now + engine.held_up
                if observe:
                    observe(now, "finished", *sample.key, place)
                actions = machine.handle(Finished(sample.key, sample.tokens, sample.truncated))
            else:
                if observe:
                    observe(now, "cutoff", *sample.key, place)
                actions = machine.handle(ReachedCutoff(sample.key))
            apply(actions, now)
            if engine.waiting:
                engine.admit()
        elif observe:
            observe(now, "preempted", place, *engine.waiting[0].key)
        upcoming[place] = engine.next_event_s()
        if observe:
            tell(place)
    if observe:
        for place, engine in enumerate(engines):
            observe(now, "held", place, engine.preemptions, engine.most_kv)
            observe(now, "worked", place, round(engine.passes), round(engine.read))
            for sequences, steps in engine.passes_of.items():
                observe(now, "stepped", place, sequences, steps)
    return RoundTimes(
        end_s=now,
        decode_end_s=min(decode_end, now),
        decoded_tokens=sum(e.decoded for e in engines),
        preemptions=sum(e.preemptions for e in engines),
        freed_s=freed,
        moved=moved,
        cached_tokens=sum(e.cached for e in engines),
    )
