"""A fake rollout: drives a round machine to its end and checks, as an executor would see it, that its actions make
sense.

What is pending stands in a heap. With an `order` (a seeded Random) the priorities are random, so events come in any
order that keeps each sample's own order; without one the clock is token time (each sample decodes one token per unit).
"""

import heapq
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.plans.schema.levers import RoundBalance
from rlplan.rounds.machines.events import (
    Abort,
    Action,
    Event,
    Failed,
    Finished,
    Issue,
    Lost,
    ReachedCutoff,
    SampleKey,
    Score,
    Scored,
)
from rlplan.rounds.machines.exact import ExactQueueRound
from rlplan.rounds.machines.outcome import Fate, Outcome
from rlplan.rounds.machines.round import Round
from rlplan.rounds.round_spec import QueueRule, RoundSpec
from rlplan.rounds.schedule import Schedule


class Sample(NamedTuple):
    """A sample by what it is, not by when it was issued: `redraw` counts the prompt's draws within the round."""

    round_number: int
    prompt: str
    redraw: int
    sample: int


def round_balance(
    step_s: float,
    per_sequence_s: float,
    per_kv_token_s: float,
    kv_capacity_tokens: int,
) -> RoundBalance:
    """What a plan says of a balanced round, by its numbers in their order."""
    return RoundBalance(
        by="history", step_s=step_s, step_s_per_sequence=per_sequence_s, step_s_per_kv_token=per_kv_token_s,
        kv_capacity_tokens=kv_capacity_tokens,
    )  # fmt: skip


SETTLED = (Fate.TRAINED, Fate.FILTERED, Fate.FAILED)

Lengths = Callable[[Sample], int]
Rewards = Callable[[Sample], float]


def live_keys(machine: Round) -> list[SampleKey]:
    """Samples that decode or wait for a reward, in order of issue."""
    return [SampleKey(draw.number, sample) for draw in machine.draws for sample in sorted(draw.live)]


@dataclass
class Chaos:
    """What goes wrong: probabilities per event."""

    loss: float = 0.0  # the engine dies under a decoding sample
    failure: float = 0.0  # the infrastructure fails on a sample
    noise: float = 0.0  # an old event is repeated; half of the events of aborted samples still arrive
    silence: float = 0.0  # the cutoff is not reported before the end


@dataclass
class Run:
    """A driven round: events in the order of delivery, actions that each returned (`actions[0]` is `start()`)."""

    machine: Round
    number: int
    events: list[Event] = field(default_factory=list)
    actions: list[list[Action]] = field(default_factory=list)
    samples: dict[SampleKey, Sample] = field(default_factory=dict)
    effective: list[Event] = field(default_factory=list)  # without repeated and late ones


def drive(
    machine: Round,
    lengths: Lengths,
    rewards: Rewards,
    *,
    order: random.Random | None = None,
    chaos: Chaos | None = None,
    number: int = 0,
    checked: bool = True,
) -> Run:
    """Run `machine` to its end. Raises AssertionError if it hangs or asks for something senseless."""
    chaos, dice, run = chaos or Chaos(), order or random.Random(0), Run(machine, number)
    heap: list[tuple[float, SampleKey, Event]] = []
    ends: dict[SampleKey, Finished] = {}
    cutoffs: dict[SampleKey, int] = {}
    live, finished, scored = set[SampleKey](), set[SampleKey](), set[SampleKey]()
    redraws: dict[int, int] = {}
    drawn: Counter[str] = Counter()

    def push(at: float, event: Event) -> None:
        heapq.heappush(heap, (dice.random() if order else at, event.key, event))

    def issue(action: Issue, now: float) -> None:
        key, watch = action.key, action.cutoff_tokens
        assert key not in ends, f"{key} was issued twice"
        live.add(key)
        if key.draw not in redraws:
            redraws[key.draw] = drawn[action.prompt]
            drawn[action.prompt] += 1
        run.samples[key] = Sample(number, action.prompt, redraws[key.draw], key.sample)
        tokens = lengths(run.samples[key])
        ends[key] = end = Finished(key, min(tokens, action.max_tokens), tokens > action.max_tokens)
        if watch is not None and end.tokens > watch and not (chaos.silence and dice.random() < chaos.silence):
            cutoffs[key] = watch
            push(now + watch, ReachedCutoff(key))
        else:
            push(now + end.tokens, end)

    def obey(actions: list[Action], now: float) -> None:
        run.actions.append(actions)
        for action in actions:
            key = action.key
            match action:
                case Issue():
                    issue(action, now)
                case Score():
                    assert key in live and key in finished, f"{key} is to be scored and has not finished"
                    assert key not in scored, f"{key} is to be scored twice"
                    scored.add(key)
                    push(now, Scored(key, rewards(run.samples[key])))
                case Abort():
                    assert key in live, f"{key} is aborted and was not live"
                    live.discard(key)
        if checked and (machine.done or len(run.actions) % 4 == 0):
            machine.check_invariants()

    def deliver(event: Event, now: float) -> None:
        run.events.append(event)
        obey(machine.handle(event), now)

    obey(machine.start(), 0.0)
    while heap:
        now, key, event = heapq.heappop(heap)
        if key not in live:
            if chaos.noise and dice.random() < 0.5:
                deliver(event, now)
            continue
        if chaos.loss and not isinstance(event, Scored) and dice.random() < chaos.loss:
            event = Lost(key)
        elif chaos.failure and dice.random() < chaos.failure:
            event = Failed(key, "the sandbox host is gone")
        match event:
            case Lost() | Failed() | Scored():
                live.discard(key)
            case Finished():
                finished.add(key)
            case ReachedCutoff():
                push(now + ends[key].tokens - cutoffs[key], ends[key])
        run.effective.append(event)
        deliver(event, now)
        if chaos.noise and dice.random() < chaos.noise:
            deliver(dice.choice(run.events), now)
    assert machine.done, f"the round hangs; it waits for {live_keys(machine)[:5]}"
    assert not live, f"the round is done and these still run: {sorted(live)[:5]}"
    return run


class Step(NamedTuple):
    """One round of a schedule and what came of it; `epochs`: of each prompt that it took, the epoch that issued it."""

    run: Run
    outcome: Outcome
    epochs: dict[str, int]

    @property
    def settled(self) -> list[tuple[int, str]]:
        """(epoch, prompt) of what was trained, filtered or failed for good."""
        return [(self.epochs[p], p) for fate in SETTLED for p in self.outcome.prompts[fate]]


def steps(schedule: Schedule, lengths: Lengths, rewards: Rewards = lambda sample: 1.0, **how: Any) -> Iterator[Step]:
    """Rounds without end; `how`: as `drive` takes it."""
    while True:
        number = schedule.round_number
        machine = schedule.begin()
        run = drive(machine, lengths, rewards, number=number, **how)
        outcome = schedule.end(machine)
        yield Step(run, outcome, {prompt: schedule.epoch_of(prompt) for prompt in outcome.taken})


# -- what the properties range over ------------------------------------------------------------------------------------

CAP = 40


def uniform(seed: int, sample: Sample, what: str) -> float:
    """A number in [0, 1) that is a function of the sample's name."""
    return zlib.crc32(f"{seed}:{what}:{sample}".encode()) / 2**32


def keyed_lengths(seed: int, longest: int = CAP + 9) -> Lengths:
    """Lengths from 1 to `longest` (the cap may lie below), few of them long, as a function of the sample's name."""
    return lambda sample: 1 + int(longest * uniform(seed, sample, "length") ** 3)


def keyed_rewards(seed: int) -> Rewards:
    """0 or 1; half of the prompts are so easy that all their rewards are mostly equal."""

    def reward(sample: Sample) -> float:
        easy = zlib.crc32(sample.prompt.encode()) % 2
        return float(uniform(seed, sample, "reward") < (0.95 if easy else 0.5))

    return reward


def keyed_steps(schedule: Schedule, seed: int, chaos: Chaos | None = None, checked: bool = True) -> Iterator[Step]:
    """Rounds in which lengths and rewards are functions of the sample's name, and events come in any order."""
    order = random.Random(seed)
    return steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=order, chaos=chaos, checked=checked)


def prompt_ids(count: int) -> list[str]:
    """Ids of a data set."""
    return [f"k{i:03d}" for i in range(count)]


def waves(prompts: list[str], size: int, cutoff_tokens: int, copies: int, cap: int, **options: Any) -> ExactQueueRound:
    """A long round that draws each of its prompts until a draw is long."""
    each = {"copies": [copies] * len(prompts), "until_long": [True] * len(prompts)}
    return ExactQueueRound(prompts, len(prompts), size, cutoff_tokens, cap, **each, **options)


MODES = ("sync", "race", "defer", "exact", "predict")


def queue_rules(target: int) -> st.SearchStrategy[QueueRule]:
    """Rules of queues that issue P prompts or more."""
    return st.builds(QueueRule, st.integers(target, 3 * target), st.integers(1, 3), st.integers(1, 4))


@st.composite
def specs(draw: st.DrawFn, modes: tuple[str, ...] = MODES) -> RoundSpec:
    """Jobs of any mode; P, n and what is issued differ, so that one cannot stand in for another."""
    mode = draw(st.sampled_from(modes))
    target = draw(st.integers(1, 6))
    size = draw(st.integers(1, 5).filter(lambda n: n != target))
    return RoundSpec(
        mode=mode,  # type: ignore[arg-type]
        prompts_per_step=target,
        samples_per_prompt=size,
        max_tokens=CAP,
        short_prompts=target + (0 if mode in ("sync", "predict") else draw(st.integers(0, 4))),
        short_samples=size + (draw(st.integers(0, 3)) if mode == "race" else 0),
        cutoff_tokens=draw(st.integers(1, CAP - 1)) if mode == "exact" else None,
        copies=draw(st.integers(1, 4)) if mode == "exact" else 1,
        dynamic_sampling=draw(st.booleans()),
        long_share=draw(st.sampled_from([0.1, 0.4, 0.9])) if mode == "predict" else 0.0,
        queue=draw(st.none() | queue_rules(target)) if mode == "exact" else None,
    )


def chaoses() -> st.SearchStrategy[Chaos]:
    """Calm or stormy weather."""
    of = st.sampled_from
    return st.builds(Chaos, of([0.0, 0.02, 0.2]), of([0.0, 0.02, 0.3]), of([0.0, 0.2]), of([0.0, 0.5]))


SEEDS = st.integers(0, 2**32 - 1)


def over(*modes: str, prompts: tuple[int, int], examples: int = 40, **more: st.SearchStrategy[Any]) -> Any:
    """A property of drawn jobs of these modes (of any, if none is named) with so many prompts, and of `more`."""
    drawn = given(spec=specs(modes or MODES), prompts=st.integers(*prompts), seed=SEEDS, **more)
    return lambda test: settings(max_examples=examples)(drawn(test))
