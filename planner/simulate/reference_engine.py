"""One engine of the reference simulator: continuous batching under KV limits, in closed form between its events; and
reward workers.

reference_round.py says what is modelled; rounds/compiled/compiled_engines.py repeats this file function by function.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque

from ...rounds.balancing.placement import shared_tokens
from ...rounds.machines.events import Issue, SampleKey
from ..costs.decode_costs import DecodeCost
from ..costs.reward_costs import RewardCost

NOWHERE = -1
"""The engine of a sample that waits for one."""

FINISH, CUTOFF = 0, 1
"""Events of a sample on an engine: it ended, or it reached its cutoff."""


class EngineSample:
    """A sample on its way through an engine."""

    __slots__ = (
        "admitted", "base", "cutoff_tokens", "engine", "key", "life", "prompt", "prompt_tokens", "state", "tokens",
        "truncated",
    )  # fmt: skip

    def __init__(self, issue: Issue, prompt_tokens: int, tokens: int, truncated: bool) -> None:
        self.key = issue.key
        self.engine = NOWHERE
        self.prompt = issue.prompt
        self.prompt_tokens = prompt_tokens
        self.tokens = tokens  # that it will have when it ends
        self.truncated = truncated
        self.cutoff_tokens = issue.cutoff_tokens  # where the engine reports the cutoff; None: nowhere, or reported
        self.base = 0  # tokens that it had when it was last admitted
        self.admitted = 0  # engine step of that
        self.life = 0  # counts admissions; heap entries of an earlier one are stale
        self.state = "waiting"


class Prefix:
    """The whole blocks of a prompt in an engine's cache."""

    __slots__ = ("computed", "intact_until", "users")

    def __init__(self) -> None:
        self.users = 0  # running samples
        self.computed = -1  # engine step before which it was last prefilled
        self.intact_until = -1  # while no sample uses it: as long as the engine has filled no more KV tokens in all


class Engine:
    """One engine: steps are counted, time is known at step boundaries.

    A prompt's whole blocks are prefilled and held once for all its samples that run (vLLM caches a block when it is
    allocated, so two that come in at one boundary share already), and stay when the last of them leaves until what is
    filled since has taken all the space that was free then: free blocks are taken in the order in which they became
    so, a sample's last ones first.
    """

    def __init__(self, cost: DecodeCost, max_num_seqs: int) -> None:
        self.cost = cost
        self.max_num_seqs = max_num_seqs
        # Zeros are ints, so that tests can run on exact costs (fractions) without a float getting in.
        self.now: float = cost.round_s  # time of the boundary after `step` steps
        self.step = 0
        self.kv = 0  # tokens that the running samples attend to
        self.shared = 0  # of these, tokens that take no space of their own
        self.most_kv = 0  # tokens that it ever held
        self.filled = 0  # tokens whose KV was ever computed here
        self.cached = 0  # prompt tokens that needed no prefill
        self.prefixes: dict[str, Prefix] = {}
        self.prefill: float = 0  # seconds that the next step takes longer for admitted samples
        self.held_up: float = 0  # and for samples that ended
        self.running: dict[SampleKey, EngineSample] = {}  # in order of admission
        self.waiting: deque[EngineSample] = deque()
        self.decoded = self.preemptions = 0
        self.passes_of: Counter[int] = Counter()  # `passes` by sequences, in millionths
        self.passes = self.read = 0.0  # decode steps (fewer than `step` with drafts), KV tokens that they read
        self._heap: list[tuple[int, int, int, int, EngineSample]] = []
        self._pushed = 0

    def _time_after(self, steps: int) -> float:
        if steps <= 0:
            return self.now
        return self.now + self.prefill + self.held_up + self.cost.steps_s(steps, len(self.running), self.kv)

    def _advance(self, steps: int) -> None:
        if steps > 0:
            self.now = self._time_after(steps)
            self.step += steps
            count = len(self.running)
            grown, passes = steps * count, steps / self.cost.emitted(count)
            self.passes += passes
            self.passes_of[count] += round(1e6 * passes)
            self.read += passes * (self.kv + (grown - count) / 2)
            self.kv += grown
            self.most_kv = max(self.most_kv, self.kv - self.shared)
            self.filled += grown
            self.decoded += grown
            self.prefill = self.held_up = 0

    def _steps_to_event(self) -> int:
        """Steps until a sample is due or KV is full; there is a running sample."""
        while self._heap[0][3] != self._heap[0][4].life or self._heap[0][4].state != "running":
            heapq.heappop(self._heap)
        due = self._heap[0][0] - self.step
        count = len(self.running)
        room = (self.cost.kv_capacity_tokens - self.kv + self.shared) // count
        # A single sample is never preempted: candidates whose longest sample does not fit are not simulated.
        return due if due <= room or count == 1 else max(0, room)

    def next_event_s(self) -> float:
        """Time of the engine's next event, seconds; infinite if nothing runs."""
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
        begun = self.prefill + self.held_up > 0  # else it may be at that boundary already, but for rounding
        if ahead <= 0:
            steps = 1
        elif quadratic * ahead < 1e-12 * linear * linear:
            steps = math.ceil(ahead / linear - 1e-9)
        else:
            root = (math.sqrt(linear * linear + 4 * quadratic * ahead) - linear) / (2 * quadratic)
            steps = math.ceil(root - 1e-9)
        self._advance(min(max(steps, int(begun)), self._steps_to_event()))

    def take_event(self) -> tuple[int, EngineSample] | None:
        """Advance to the next event and take it; None if it was a preemption."""
        self._advance(self._steps_to_event())
        if self._heap[0][0] > self.step:
            _, sample = self.running.popitem()
            self._leave(sample)
            sample.base = self._generated(sample)
            sample.state = "waiting"
            self.waiting.appendleft(sample)
            self.preemptions += 1
            return None
        _, _, kind, _, sample = heapq.heappop(self._heap)
        if kind == FINISH:
            self.remove(sample)
            self.held_up += self.cost.finish_s
        else:
            sample.cutoff_tokens = None
        return kind, sample

    def _generated(self, sample: EngineSample) -> int:
        return sample.base + self.step - sample.admitted

    def remove(self, sample: EngineSample) -> None:
        """Take out a sample that ended or was aborted."""
        if sample.state == "running":
            del self.running[sample.key]
            if sample.admitted == self.step:
                # It was let in at this very boundary: its step has not begun, so its prefill is not paid.
                self.prefill -= self._prefill_s(sample)
            self._leave(sample)
        sample.state = "gone"

    def _leave(self, sample: EngineSample) -> None:
        """Free the KV of a sample that ran."""
        self.kv -= sample.prompt_tokens + self._generated(sample)
        if not (shared := self._shared_tokens(sample)):
            return
        prefix = self.prefixes[sample.prompt]
        prefix.users -= 1
        if prefix.users:
            self.shared -= shared
        elif prefix.computed == self.step:
            # All samples admitted for this step left before it began: nothing was computed.
            self.prefill -= self.cost.prefix_s(shared)
            prefix.intact_until = -1
        else:
            free = self.cost.kv_capacity_tokens - self.kv + self.shared
            prefix.intact_until = self.filled + free - shared

    def held(self) -> tuple[int, int]:
        """(tokens of the samples that run or wait, how many these are)."""
        waiting = [s for s in self.waiting if s.state == "waiting"]
        return self.kv + sum(s.prompt_tokens + s.base for s in waiting), len(self.running) + len(waiting)

    def give_up(self) -> list[EngineSample]:
        """Remove all samples, which keep their tokens; those that run first, in order of admission."""
        samples = [*self.running.values(), *(s for s in self.waiting if s.state == "waiting")]
        self.waiting.clear()
        for sample in samples:
            generated = self._generated(sample) if sample.state == "running" else sample.base
            self.remove(sample)
            sample.base = generated
            sample.state = "waiting"
        return samples

    def admit(self) -> None:
        """Admit waiting samples that fit, in order."""
        while self.waiting:
            sample = self.waiting[0]
            if sample.state != "waiting":
                self.waiting.popleft()
                continue
            count, needed = len(self.running), sample.prompt_tokens + sample.base
            shared = self._shared_tokens(sample)
            prefix = self.prefixes.setdefault(sample.prompt, Prefix()) if shared else None
            held = self.kv - self.shared + (needed - shared if prefix is not None and prefix.users else needed)
            if count and (count >= self.max_num_seqs or held + count + 1 > self.cost.kv_capacity_tokens):
                return
            self.waiting.popleft()
            if prefix is not None:
                if prefix.users:
                    self.shared += shared
                if prefix.users or self.filled <= prefix.intact_until:
                    self.cached += shared
                else:
                    self.prefill += self.cost.prefix_s(shared)
                    self.filled += shared
                    prefix.computed = self.step
                prefix.users += 1
            self.prefill += self._prefill_s(sample)
            self.kv += needed
            self.filled += needed - shared
            self.running[sample.key] = sample
            sample.state, sample.admitted = "running", self.step
            sample.life += 1
            self._push(sample.tokens, FINISH, sample)
            # A sample that was moved at the very step that reaches its cutoff has yet to tell it.
            if sample.cutoff_tokens is not None and sample.base <= sample.cutoff_tokens < sample.tokens:
                self._push(sample.cutoff_tokens, CUTOFF, sample)

    def _shared_tokens(self, sample: EngineSample) -> int:
        return shared_tokens(sample.prompt_tokens, self.cost.block_tokens)

    def _prefill_s(self, sample: EngineSample) -> float:
        """Prefill seconds of the tokens that the sample shares with no other."""
        return self.cost.admit_s(sample.prompt_tokens + sample.base, self._shared_tokens(sample))

    def _push(self, at_tokens: int, kind: int, sample: EngineSample) -> None:
        self._pushed += 1
        due = sample.admitted + at_tokens - sample.base
        heapq.heappush(self._heap, (due, self._pushed, kind, sample.life, sample))


class RewardQueue:
    """The reward workers: first come, first served; rounds/compiled/compiled_engines.py repeats them."""

    def __init__(self, cost: RewardCost) -> None:
        self._cost = cost
        self._free: list[float] = [0] * cost.workers
        self.due: list[tuple[float, int, SampleKey]] = []
        self.held: dict[SampleKey, float] = {}  # until the rollout is over, with their seconds
        self._count = 0

    def ask(self, key: SampleKey, now: float, seconds: float) -> None:
        """Queue a sample's reward, which takes a worker `seconds`."""
        if self._cost.after_rollout:
            self.held[key] = seconds
        else:
            self._submit(key, now, seconds)

    def release(self, now: float) -> None:
        """Queue the rewards that wait for the rollout's end."""
        for key, seconds in self.held.items():
            self._submit(key, now, seconds)
        self.held = {}

    def _submit(self, key: SampleKey, now: float, seconds: float) -> None:
        free = heapq.heappop(self._free)
        done = max(now, free) + seconds
        heapq.heappush(self._free, done)
        self._count += 1
        heapq.heappush(self.due, (done + self._cost.delay_s, self._count, key))
