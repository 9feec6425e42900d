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
- where samples are balanced by history, they wait for an engine as the plan has it;
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
from ...rounds.hand_over import HandOver
from ...rounds.machines.events import Abort, Action, Finished, Issue, ReachedCutoff, SampleKey, Scored
from ...rounds.machines.round import Round
from ..costs.decode_costs import ChangeCost, DecodeCost
from ..costs.reward_costs import RewardCost
from .reference_engine import FINISH, NOWHERE, Engine, EngineSample, RewardQueue
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
    simulated = _SimulatedRound(machine, lengths, decode, reward, max_num_seqs, observe, change, on_ready)
    return simulated.run(samples_to_train)


class _SimulatedRound:
    """A round under way: its machine, its engines and reward workers, and where its samples are."""

    def __init__(
        self,
        machine: Round,
        lengths: RoundLengths,
        decode: DecodeCost,
        reward: RewardCost,
        max_num_seqs: int,
        observe: Observe | None,
        change: ChangeCost | None,
        on_ready: Callable[[int, float], None] | None,
    ) -> None:
        self._machine, self._lengths, self._decode, self._reward = machine, lengths, decode, reward
        self._observe = observe or (lambda t_s, what, a, b, c: None)
        self._change, self._on_ready = change, on_ready
        self._first = first = decode.key.engines
        self._engines = [Engine(decode, max_num_seqs) for _ in range(first)]
        if change is not None and change.is_tail:
            self._engines += [Engine(change.after, max_num_seqs) for _ in change.numbers(first)]
        self._upcoming = [math.inf] * len(self._engines)
        self._alive = set(range(first))  # engines that are given samples
        self._placement: ByLoad | LongestFirst = ByLoad(len(self._engines), decode.sharing)
        if decode.balance is not None:
            balance = Balance(decode.balance, lengths.recorded)
            self._placement = LongestFirst(len(self._engines), balance, max_num_seqs)
        self._rewards = RewardQueue(reward)
        self._samples: dict[SampleKey, EngineSample] = {}
        self._asked: dict[SampleKey, ToPlace] = {}
        self._decision: HandOver | None = None
        self._decode_end: float = 0
        self._freed: float | None = None
        self._moved = self._told = 0

    def run(self, samples_to_train: int) -> RoundTimes:
        """Take events in order of time until the machine is done."""
        machine, rewards = self._machine, self._rewards
        now: float = 0
        if self._change is not None:
            self._decision = self._change.machine(samples_to_train, self._first)
        self._apply(machine.start(), 0)
        while not machine.done:
            place = min(range(len(self._engines)), key=self._upcoming.__getitem__)
            if rewards.held and self._upcoming[place] == math.inf:
                rewards.release(self._decode_end)
            scored = rewards.due[0][0] if rewards.due else math.inf
            assert min(scored, self._upcoming[place]) < math.inf, "the round waits for nothing"
            if scored <= self._upcoming[place]:
                now, _, key = heapq.heappop(rewards.due)
                self._observe(now, "scored", *key, self._samples[key].engine)
                self._apply(machine.handle(Scored(key, self._lengths.reward(key, self._asked[key].prompt))), now)
            else:
                now = self._engine_event(place)
        for place, engine in enumerate(self._engines):
            self._observe(now, "held", place, engine.preemptions, engine.most_kv)
            self._observe(now, "worked", place, round(engine.passes), round(engine.read))
            for sequences, steps in engine.passes_of.items():
                self._observe(now, "stepped", place, sequences, steps)
        return RoundTimes(
            end_s=now,
            decode_end_s=min(self._decode_end, now),
            decoded_tokens=sum(e.decoded for e in self._engines),
            preemptions=sum(e.preemptions for e in self._engines),
            freed_s=self._freed,
            moved=self._moved,
            cached_tokens=sum(e.cached for e in self._engines),
        )

    def _engine_event(self, place: int) -> float:
        """Take the next event of an engine: a sample ends, reaches its cutoff or is preempted. Returns its time."""
        engine, machine = self._engines[place], self._machine
        event = engine.take_event()
        now = engine.now
        if event is None:
            self._observe(now, "preempted", place, *engine.waiting[0].key)
        else:
            kind, sample = event
            if kind == FINISH:
                self._placement.ended(sample.key, sample.tokens)
                self._decode_end = now + engine.held_up
                self._observe(now, "finished", *sample.key, place)
                actions = machine.handle(Finished(sample.key, sample.tokens, sample.truncated))
            else:
                self._observe(now, "cutoff", *sample.key, place)
                actions = machine.handle(ReachedCutoff(sample.key))
            self._apply(actions, now)
            if engine.waiting:
                engine.admit()
        self._look_ahead(place)
        return now

    # -- what the machine asks for -------------------------------------------------------------------------------------

    def _apply(self, actions: list[Action], now: float) -> None:
        touched: set[int] = set()
        decision_due = False
        for action in actions:
            if isinstance(action, Issue):
                touched |= self._issue(action, now)
            elif isinstance(action, Abort):
                touched |= self._abort(action.key, now)
            else:
                self._score(action.key, now)
                decision_due = (self._decision is not None and self._decision.sample_finished()) or decision_due
        if self._on_ready:
            for draw in self._machine.ready[self._told :]:
                self._on_ready(draw, now)
            self._told = len(self._machine.ready)
        touched |= self._start(now)
        for place in touched:
            self._go_on(place)
        if decision_due:
            self._change_engines(now)

    def _issue(self, issue: Issue, now: float) -> set[int]:
        """Have a sample wait for an engine; returns the engines of those that start."""
        key, lengths = issue.key, self._lengths
        tokens = lengths.prompt_tokens(issue.prompt)
        natural = lengths.natural(key, issue.prompt)
        limit = min(issue.max_tokens, lengths.cap_tokens)
        truncated = natural > limit or natural >= lengths.cap_tokens
        self._samples[key] = EngineSample(issue, tokens, min(natural, limit), truncated)
        self._asked[key] = ToPlace(key, issue.prompt, tokens, limit)
        self._placement.add(self._asked[key])
        # By load each sample starts before the next action.
        return self._start(now) if isinstance(self._placement, ByLoad) else set()

    def _abort(self, key: SampleKey, now: float) -> set[int]:
        """Take a sample out; returns its engine if it was on one."""
        sample = self._samples[key]
        self._rewards.held.pop(key, None)
        if sample.state == "gone":
            return set()
        self._placement.remove(key)
        if sample.engine == NOWHERE:
            sample.state = "gone"
            return set()
        engine = self._engines[sample.engine]
        engine.pass_to(now)
        engine.remove(sample)
        self._decode_end = now
        self._observe(now, "aborted", *key, sample.engine)
        return {sample.engine}

    def _score(self, key: SampleKey, now: float) -> None:
        sample, prompt = self._samples[key], self._asked[key].prompt
        tokens, reward_s = sample.prompt_tokens + sample.tokens, self._lengths.reward_s
        seconds = reward_s(key, prompt, tokens) if reward_s else self._reward.read_s(tokens)
        self._rewards.ask(key, now + self._engines[sample.engine].held_up, seconds)
        self._observe(now, "submitted", *key, sample.engine)

    # -- engines -------------------------------------------------------------------------------------------------------

    def _start(self, now: float) -> set[int]:
        """Have those samples start that are to start now; returns their engines."""
        places = set()
        for key, place in self._placement.place(self._alive):
            self._samples[key].engine = place
            self._engines[place].pass_to(now)
            self._engines[place].waiting.append(self._samples[key])
            places.add(place)
        return places

    def _go_on(self, place: int) -> None:
        self._engines[place].admit()
        self._look_ahead(place)

    def _look_ahead(self, place: int) -> None:
        engine = self._engines[place]
        self._upcoming[place] = engine.next_event_s()
        self._observe(engine.now, "engine", place, len(engine.running), engine.kv - engine.shared)

    def _change_engines(self, now: float) -> None:
        """Change the engines if the samples fit on those that decode on."""
        change, decision, first = self._change, self._decision, self._first
        assert change is not None and decision is not None
        for engine in self._engines:
            engine.pass_to(now)
        held = [engine.held() for engine in self._engines]
        if decision.decide(sum(t for t, _ in held), sum(n for _, n in held), change.after.kv_capacity_tokens):
            stopped = [number for number in range(first) if number not in change.numbers(first)]
            self._freed = freed = max(self._engines[number].now for number in stopped)
            self._alive = set(change.numbers(first))
            for number in self._alive:
                self._engines[number].cost = change.after
                if change.is_tail:
                    self._engines[number].now = max(self._engines[number].now, freed + change.takes_s)
            for number in stopped:
                for sample in self._engines[number].give_up():
                    self._wait_again(sample)
                    if isinstance(self._placement, ByLoad):
                        self._start(now)
            self._start(now)
        for place in range(len(self._engines)):
            self._go_on(place)

    def _wait_again(self, sample: EngineSample) -> None:
        self._placement.add(replace(self._asked[sample.key], kept=sample.base))
        sample.engine = NOWHERE
        self._moved += 1
