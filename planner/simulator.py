"""One round on a virtual clock: the real machine of rounds/, engines with continuous batching, reward workers.

What is modelled, and how simply:
- a sample joins its engine at the first step boundary at which it fits (first come, first served; at most
  `max_num_seqs`, KV within capacity), pays its prefill there and gets one token from each step from then on;
- decode steps between two events of an engine are one closed form (costs.DecodeCost.steps_s), so work is per event and
  never per token; actions take effect at the next step boundary of the engine;
- when KV is full, the sample admitted last is preempted: it keeps its tokens, waits at the head of the queue and pays
  a prefill over prompt and tokens when it comes back (as vLLM does);
- a watched sample's `ReachedCutoff` comes with the token that reaches it;
- a sample that ends holds its engine's next step up by `finish_s`, and is scored that much later, or, where rewards
  come after the rollout, when no engine has anything left to decode;
- at a hand-over the last engines pass on their samples, which keep their tokens and pay a prefill over them elsewhere;
- an abort of a sample whose reward was already asked for does not give the reward worker's time back.

The order of simultaneous events is fixed (rewards, then engines by number, then order of issue): same inputs, same run.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..rounds.balance import Balancer
from ..rounds.events import Abort, Action, Finished, Issue, ReachedCutoff, SampleKey, Scored
from ..rounds.hand_over import HandOver
from ..rounds.round import Round
from .costs import DecodeCost, RewardCost

_FINISH, _WATCH = 0, 1


@dataclass(frozen=True, slots=True)
class Lengths:
    """What the simulator asks about a sample: `natural(key, prompt)` is how many tokens it would get uncapped by the
    issue (the job's cap applies: `cap_tokens` means cut by it), `prompt_tokens(prompt)` its prompt, `reward` its score,
    `reward_luck`, in [0, 1), how long that takes.
    """

    natural: Callable[[SampleKey, str], int]
    prompt_tokens: Callable[[str], int]
    reward: Callable[[SampleKey, str], float]
    cap_tokens: int
    expected_tokens: float = 1.0
    reward_luck: Callable[[SampleKey, str], float] = lambda key, prompt: 0.0


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Seconds from the round's start; tokens decoded, aborted ones included; preemptions.

    `freed_s` is when engines were handed over to training, None if none were; `moved` samples went on elsewhere then.
    """

    end_s: float
    decode_end_s: float
    decoded_tokens: int
    preemptions: int
    freed_s: float | None = None
    moved: int = 0

    @property
    def reward_exposed_s(self) -> float:
        """Seconds spent on rewards alone, after the last token."""
        return self.end_s - self.decode_end_s


Observe = Callable[[float, str, int, int, int], None]
"""What `simulate_round` tells an observer: (seconds from the round's start, what, three numbers).

- "engine": engine, running sequences, KV tokens, whenever they changed other than by decoding;
- "preempted": engine, draw, sample; "cutoff", "finished", "submitted" (to the reward workers), "scored", "aborted":
  draw, sample, engine.
"""


class _Sample:
    __slots__ = ("admitted", "base", "engine", "key", "life", "prompt_tokens", "state", "tokens", "truncated", "watch")

    def __init__(self, key: SampleKey, engine: int, prompt_tokens: int, tokens: int, truncated: bool, watch: int):
        self.key = key
        self.engine = engine
        self.prompt_tokens = prompt_tokens
        self.tokens = tokens  # that it will have when it ends
        self.truncated = truncated
        self.watch = watch  # tokens at which the cutoff is told; 0: not watched, or told already
        self.base = 0  # tokens that it had when it was last admitted
        self.admitted = 0  # engine step of that
        self.life = 0  # counts admissions; heap entries of an earlier one are stale
        self.state = "waiting"


class Engine:
    """One engine: steps are counted, time is known at step boundaries."""

    def __init__(self, cost: DecodeCost, max_num_seqs: int) -> None:
        self.cost = cost
        self.max_num_seqs = max_num_seqs
        # Zeros are ints, so that tests can run on exact costs (fractions) without a float getting in.
        self.now: float = cost.round_s  # time of the boundary after `step` steps
        self.step = 0
        self.kv = 0  # tokens held by the running samples
        self.prefill: float = 0  # seconds that the next step takes longer for those who came in
        self.held_up: float = 0  # and for those who ended
        self.running: dict[SampleKey, _Sample] = {}  # in order of admission
        self.waiting: deque[_Sample] = deque()
        self.decoded = 0
        self.preemptions = 0
        self._heap: list[tuple[int, int, int, int, _Sample]] = []
        self._pushed = 0

    def _time_after(self, steps: int) -> float:
        if steps <= 0:
            return self.now
        return self.now + self.prefill + self.held_up + self.cost.steps_s(steps, len(self.running), self.kv)

    def _advance(self, steps: int) -> None:
        if steps > 0:
            self.now = self._time_after(steps)
            self.step += steps
            self.kv += steps * len(self.running)
            self.decoded += steps * len(self.running)
            self.prefill = self.held_up = 0

    def _steps_to_event(self) -> int:
        """Steps until a sample is due or KV is full; there is a running sample."""
        heap = self._heap
        while heap[0][3] != heap[0][4].life or heap[0][4].state != "running":
            heapq.heappop(heap)
        due = heap[0][0] - self.step
        count = len(self.running)
        room = (self.cost.kv_capacity_tokens - self.kv) // count
        # A single sample is never preempted: candidates whose longest sample does not fit are not simulated.
        return due if due <= room or count == 1 else max(0, room)

    def next_event_s(self) -> float:
        """When this engine has something to tell next; infinite if nothing runs."""
        return self._time_after(self._steps_to_event()) if self.running else math.inf

    def pass_to(self, time_s: float) -> None:
        """Go to the first step boundary at or after `time_s`, which is not later than the next event."""
        if not self.running:
            if time_s > self.now:
                self.held_up = max(0, self.held_up - (time_s - self.now))  # it passes while the engine is idle
                self.now = time_s
            return
        ahead = time_s - self.now - self.prefill - self.held_up
        if time_s <= self.now:
            return
        cost, count = self.cost, len(self.running)
        quadratic = cost.kv_s(count) * count / 2
        linear = cost.base_s(count) + cost.kv_s(count) * self.kv - quadratic
        if ahead <= 0:
            steps = 1
        elif quadratic * ahead < 1e-12 * linear * linear:
            steps = math.ceil(ahead / linear - 1e-9)
        else:
            root = (math.sqrt(linear * linear + 4 * quadratic * ahead) - linear) / (2 * quadratic)
            steps = math.ceil(root - 1e-9)
        self._advance(min(max(steps, 1), self._steps_to_event()))

    def take_event(self) -> tuple[int, _Sample] | None:
        """Advance to the next event and take it; None if it was a preemption."""
        self._advance(self._steps_to_event())
        if self._heap[0][0] > self.step:
            _, sample = self.running.popitem()
            self.kv -= sample.prompt_tokens + self._generated(sample)
            sample.base = self._generated(sample)
            sample.state = "waiting"
            self.waiting.appendleft(sample)
            self.preemptions += 1
            return None
        _, _, kind, _, sample = heapq.heappop(self._heap)
        if kind == _FINISH:
            self.remove(sample)
            self.held_up += self.cost.finish_s
        else:
            sample.watch = 0
        return kind, sample

    def _generated(self, sample: _Sample) -> int:
        return sample.base + self.step - sample.admitted

    def remove(self, sample: _Sample) -> None:
        """The sample leaves: it ended or was aborted."""
        if sample.state == "running":
            del self.running[sample.key]
            self.kv -= sample.prompt_tokens + self._generated(sample)
            if sample.admitted == self.step:
                # It was let in at this very boundary: its step has not begun, so its prefill is not paid.
                self.prefill -= self._prefill_s(sample)
        sample.state = "gone"

    def held(self) -> tuple[int, int]:
        """(tokens of the samples that run or wait, how many these are)."""
        waiting = [s for s in self.waiting if s.state == "waiting"]
        return self.kv + sum(s.prompt_tokens + s.base for s in waiting), len(self.running) + len(waiting)

    def give_up(self) -> list[_Sample]:
        """All samples leave, with the tokens that they have; those that run first, in order of admission."""
        found = [*self.running.values(), *(s for s in self.waiting if s.state == "waiting")]
        self.waiting.clear()
        for sample in found:
            generated = self._generated(sample) if sample.state == "running" else sample.base
            self.remove(sample)
            sample.base = generated
            sample.state = "waiting"
        return found

    def admit(self) -> None:
        """Let in whoever waits and fits, in order."""
        while self.waiting:
            sample = self.waiting[0]
            if sample.state != "waiting":
                self.waiting.popleft()
                continue
            count, needed = len(self.running), sample.prompt_tokens + sample.base
            if count and (count >= self.max_num_seqs or self.kv + needed + count + 1 > self.cost.kv_capacity_tokens):
                return
            self.waiting.popleft()
            self.prefill += self._prefill_s(sample)
            self.kv += needed
            self.running[sample.key] = sample
            sample.state = "running"
            sample.admitted = self.step
            sample.life += 1
            self._push(sample.tokens, _FINISH, sample)
            # A sample that was moved at the very step that reaches its cutoff has yet to tell it.
            if sample.watch and sample.base <= sample.watch < sample.tokens:
                self._push(sample.watch, _WATCH, sample)

    def _prefill_s(self, sample: _Sample) -> float:
        return self.cost.admit_s(sample.prompt_tokens + sample.base)

    def _push(self, at_tokens: int, kind: int, sample: _Sample) -> None:
        self._pushed += 1
        due = sample.admitted + at_tokens - sample.base
        heapq.heappush(self._heap, (due, self._pushed, kind, sample.life, sample))


class _Rewards:
    """First come, first served over the workers."""

    def __init__(self, cost: RewardCost) -> None:
        self._cost = cost
        self._free: list[float] = [0] * cost.workers
        self.due: list[tuple[float, int, SampleKey]] = []
        self.held: dict[SampleKey, float] = {}  # until the rollout is over, with their seconds
        self._count = 0

    def ask(self, key: SampleKey, now: float, luck: float) -> None:
        """A sample is to be scored."""
        seconds = self._cost.sample_s(luck)
        if self._cost.after_rollout:
            self.held[key] = seconds
        else:
            self._submit(key, now, seconds)

    def release(self, now: float) -> None:
        """The rollout is over."""
        for key, seconds in self.held.items():
            self._submit(key, now, seconds)
        self.held = {}

    def _submit(self, key: SampleKey, now: float, seconds: float) -> None:
        free = heapq.heappop(self._free)
        done = max(now, free) + seconds
        heapq.heappush(self._free, done)
        self._count += 1
        heapq.heappush(self.due, (done + self._cost.delay_s, self._count, key))


def simulate_round(
    machine: Round,
    lengths: Lengths,
    decode: DecodeCost,
    reward: RewardCost,
    max_num_seqs: int,
    observe: Observe | None = None,
    *,
    hand_over: HandOver | None = None,
    on_ready: Callable[[int, float], None] | None = None,
) -> RoundTimes:
    """Drive `machine` from its start until it is done. The sync is not in it.

    `hand_over` decides whether and when engines go to training; `on_ready` is told each draw that is ready to be
    trained, and when.
    `observe` is told what happens on the way, for timelines and for counting idle engines; it changes nothing.
    Raises AssertionError if the machine waits for something that cannot come.
    """
    engines = [Engine(decode, max_num_seqs) for _ in range(decode.key.engines)]
    balancer = Balancer(len(engines))
    rewards = _Rewards(reward)
    samples: dict[SampleKey, _Sample] = {}
    upcoming = [math.inf] * len(engines)
    prompts: dict[SampleKey, str] = {}
    decode_end: float = 0
    freed: float | None = None
    moved = told = 0
    alive = set(range(len(engines)))

    def tell(place: int) -> None:
        assert observe is not None
        engine = engines[place]
        observe(engine.now, "engine", place, len(engine.running), engine.kv)

    def apply(actions: list[Action], now: float) -> None:
        nonlocal decode_end, told
        touched: set[int] = set()
        asked = False
        for action in actions:
            key = action.key
            if isinstance(action, Issue):
                place = balancer.assign(key, lengths.expected_tokens, alive)
                natural = lengths.natural(key, action.prompt)
                limit = min(action.max_tokens, lengths.cap_tokens)
                truncated = natural > limit or natural >= lengths.cap_tokens
                watch = action.watch_tokens or 0
                sample = _Sample(
                    key, place, lengths.prompt_tokens(action.prompt), min(natural, limit), truncated, watch
                )
                samples[key] = sample
                prompts[key] = action.prompt
                engines[place].pass_to(now)
                engines[place].waiting.append(sample)
                touched.add(place)
            elif isinstance(action, Abort):
                sample = samples[key]
                rewards.held.pop(key, None)
                if sample.state != "gone":
                    engine = engines[sample.engine]
                    engine.pass_to(now)
                    engine.remove(sample)
                    balancer.release(key)
                    decode_end = now
                    touched.add(sample.engine)
                    if observe:
                        observe(now, "aborted", *key, sample.engine)
            else:
                luck = lengths.reward_luck(key, prompts[key])
                rewards.ask(key, now + engines[samples[key].engine].held_up, luck)
                if observe:
                    observe(now, "submitted", *key, samples[key].engine)
                asked = (hand_over is not None and hand_over.sample_finished()) or asked
        if on_ready:
            for draw in machine.ready[told:]:
                on_ready(draw, now)
            told = len(machine.ready)
        for place in touched:
            go_on(place)
        if asked:
            free(now)

    def go_on(place: int) -> None:
        engines[place].admit()
        upcoming[place] = engines[place].next_event_s()
        if observe:
            tell(place)

    def free(now: float) -> None:
        """Hand the last engines over if their samples fit on the others."""
        nonlocal freed, moved
        assert hand_over is not None
        for engine in engines:
            engine.pass_to(now)
        held = [engine.held() for engine in engines]
        if hand_over.decide(sum(t for t, _ in held), sum(n for _, n in held), decode.kv_capacity_tokens):
            alive.difference_update(range(hand_over.stay, len(engines)))
            freed = max(engine.now for engine in engines[hand_over.stay :])
            for engine in engines[hand_over.stay :]:
                for sample in engine.give_up():
                    balancer.release(sample.key)
                    sample.engine = balancer.assign(sample.key, lengths.expected_tokens, alive)
                    engines[sample.engine].waiting.append(sample)
                    moved += 1
        for place in range(len(engines)):
            go_on(place)

    now: float = 0
    apply(machine.start(), now)
    while not machine.done:
        place = min(range(len(engines)), key=upcoming.__getitem__)
        if rewards.held and upcoming[place] == math.inf:
            rewards.release(decode_end)
        scored = rewards.due[0][0] if rewards.due else math.inf
        assert min(scored, upcoming[place]) < math.inf, "the round waits for nobody"
        if scored <= upcoming[place]:
            now, _, key = heapq.heappop(rewards.due)
            if observe:
                observe(now, "scored", *key, samples[key].engine)
            apply(machine.handle(Scored(key, lengths.reward(key, prompts[key]))), now)
            continue
        engine = engines[place]
        event = engine.take_event()
        now = engine.now
        if event is not None:
            kind, sample = event
            if kind == _FINISH:
                balancer.release(sample.key)
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
    return RoundTimes(
        end_s=now,
        decode_end_s=min(decode_end, now),
        decoded_tokens=sum(e.decoded for e in engines),
        preemptions=sum(e.preemptions for e in engines),
        freed_s=freed,
        moved=moved,
    )
