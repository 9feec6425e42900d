"""Runs real plain rounds with the real policy, each followed by real updates, as a training run would.

They give the length trace, and they show what whole rounds take beyond the sum of their phase costs. Updates are timed
here and not in a row by themselves: between rollouts, which leave cold caches behind, they took a fifth longer. Weights
come before each round on the way that a run takes, and engines and trainer take turns as in a run; both are timed.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from ...executor.configuration import update_settings
from ...executor.rollout.round_runner import RoundOptions, RoundRunner
from ...executor.rollout.round_samples import RolloutSample, train_groups
from ...executor.trainer.step_checks import logprob_limits
from ...executor.trainer.train_samples import Groups, TrainSample
from ...plans.schema.job import Job
from ...plans.schema.levers import EngineLayout
from ...rounds.machines.race import RaceRound
from ...rounds.seeds import RoundSeeds
from ..laws.measured_fit import MeasuredRound, TrainPoint
from ..laws.reward_fit import ScoredSample
from ..length_trace import LengthRow
from .measure_site import FIRST, Site
from .measure_updates import timed_update
from .measured_layouts import layout_name
from .time_budget import EngineTurns, TimeBudget, TurnSeconds

# A wide round has about this many samples: one tail then pays for the lengths of many.
WIDE_SAMPLES = 1024
# Rounds under the job's cap divided by this: they end early, so they tell what a round costs whatever its length.
CUT = 8
# Rounds of a layout under that low cap that are run however long they take.
LEAST = 2


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured, in plain rounds of the job's shape (but for `trace_rounds` and `second_epoch_rounds`); and
    in how many minutes, beyond which only the least is."""

    minutes: float = 15.0

    check_rounds: int = 6
    """In the first layout, to the end."""

    cut_rounds: int = 4
    """In the first layout, under a low cap; every other one of twice the prompts, as a round with over-issue."""

    other_check_rounds: int = 3
    """In each other layout, to the end."""

    other_cut_rounds: int = 2
    """In each other layout, likewise."""

    trace_rounds: int = 3
    """Wide ones, for lengths."""

    second_epoch_rounds: int = 1
    """Wide ones on prompts that were drawn before."""


@dataclass
class Sampled:
    """What all rounds gave: those of the job's shape, updates by micro-batch budget, lengths, groups to score, and what
    comes between the phases: weight transfers after an update, how long the last reward was waited for, and what each
    reward took, and for how long the engines decoded meanwhile."""

    rounds: list[MeasuredRound] = field(default_factory=list)
    updates: dict[int, list[TrainPoint]] = field(default_factory=dict)
    rows: list[LengthRow] = field(default_factory=list)
    groups: list[Sequence[TrainSample]] = field(default_factory=list)
    prompt_tokens: dict[str, int] = field(default_factory=dict)
    sync_s: dict[EngineLayout, list[float]] = field(default_factory=dict)
    reward_exposed_s: list[float] = field(default_factory=list)
    scored: list[ScoredSample] = field(default_factory=list)
    scored_rollout_s: float = 0.0  # of the rounds that `scored` is from


@dataclass(frozen=True, slots=True)
class _Task:
    layout: EngineLayout
    prompts: int
    cap: int
    wide: bool = False
    again: bool = False  # begins with the first prompts of the wide rounds once more


def wide_prompts(job: Job) -> int:
    """Prompts of a wide round: as many as make about `WIDE_SAMPLES` samples, and no fewer than a step's."""
    return max(job.rollout.prompts_per_step, WIDE_SAMPLES // job.rollout.samples_per_prompt)


class RoundSampler:
    """Runs the rounds of an `Effort`. The first trainer's learning rate must be 0: updates are timed and change
    nothing.

    Of each layout `least`, then `more`; of one layout `wide` once, beside it.
    """

    def __init__(
        self,
        job: Job,
        site: Site,
        runner: RoundRunner,
        weights: Path,
        prompts: Sequence[str],
        budgets: Sequence[int],
        effort: Effort,
        budget: TimeBudget,
        shares: Mapping[EngineLayout, float],
    ) -> None:
        self._job, self._site, self._runner = job, site, runner
        self._budgets, self._effort, self._budget, self._shares = list(budgets), effort, budget, shares
        self._logs: dict[EngineLayout, TurnSeconds] = {}
        self.weights = site.weights(weights)
        self._prompts = sorted(prompts)
        # Not the job's order: the prompts that are profiled should not be just the first that are trained.
        random.Random(f"profile:{job.data.seed}").shuffle(self._prompts)
        self._next = 0
        self._serial = count()
        self._seen: Counter[str] = Counter()  # how often a prompt was drawn for its lengths
        self._took_s: dict[_Task, list[float]] = {}
        self._wide_from: int | None = None  # where the prompts of the first wide round begin
        self.sampled = Sampled(updates={budget: [] for budget in self._budgets})

    @property
    def turns(self) -> dict[EngineLayout, EngineTurns]:
        """Seconds of a step in which the engines of each layout sleep and wake."""
        return {layout: log.of_engines for layout, log in self._logs.items()}

    def _log(self, layout: EngineLayout) -> TurnSeconds:
        return self._logs.setdefault(layout, TurnSeconds(FIRST))

    async def ready(self, layout: EngineLayout, version: str) -> float:
        """Have a layout's engines hold the trainer's weights as `version`, ready to decode; returns the seconds that
        the weights took."""
        engines = self._site.fleet.engines(layout)
        await self._site.turns.to_sending(self._log(layout), engines)
        began = time.perf_counter()
        await self.weights.sync(engines, version, False)
        sync_s = time.perf_counter() - began
        await self._site.turns.to_decoding(self._log(layout), engines)
        return sync_s

    async def least(self, layout: EngineLayout, first: bool) -> None:
        """The rounds of a layout that no profile does without: under a low cap, since one to the job's cap may take
        long. `first`: of all layouts."""
        if first:  # first calls of all parts, not measured
            await self._update(layout, await self._round(self._cut(layout, 0), record=False))
        for number in range(LEAST):
            await self._run(self._cut(layout, number))

    async def lengths(self, layout: EngineLayout) -> None:
        """The wide round that no profile does without."""
        await self._run(self._wide(layout))

    async def more(self, layout: EngineLayout, first: bool) -> None:
        """The other rounds of a layout, as long as there is time."""
        effort = self._effort
        full = effort.check_rounds if first else effort.other_check_rounds
        cut = effort.cut_rounds if first else effort.other_cut_rounds
        # One of each kind in turn: if time runs out, both are there.
        kinds = [[self._full(layout)] * full, [self._cut(layout, number) for number in range(LEAST, cut)]]
        for number in range(max(map(len, kinds))):
            for task in [kind[number] for kind in kinds if number < len(kind)]:
                await self._if_time(task, f"real rounds of {layout_name(layout)}")

    async def more_lengths(self, layout: EngineLayout) -> None:
        """The other wide rounds, as long as there is time."""
        wide, effort = self._wide(layout), self._effort
        again = [replace(wide, again=True)] + [wide] * (effort.second_epoch_rounds - 1)
        for task in [wide] * (effort.trace_rounds - 1) + again[: effort.second_epoch_rounds]:
            await self._if_time(task, "wide rounds, which give lengths")

    def _full(self, layout: EngineLayout) -> _Task:
        return _Task(layout, self._prompts_of(layout), self._job.rollout.max_response_tokens)

    def _cut(self, layout: EngineLayout, number: int) -> _Task:
        """Under a low cap; every other one of twice the prompts."""
        cap = max(1, self._job.rollout.max_response_tokens // CUT)
        return _Task(layout, self._prompts_of(layout) * (1 + number % 2), cap)

    def _prompts_of(self, layout: EngineLayout) -> int:
        return max(1, round(self._shares[layout] * self._job.rollout.prompts_per_step))

    def _wide(self, layout: EngineLayout) -> _Task:
        return _Task(layout, wide_prompts(self._job), self._job.rollout.max_response_tokens, wide=True)

    async def _if_time(self, task: _Task, what: str) -> None:
        # A round takes about as long as another to the same cap; there is a wide one to the job's.
        of_cap = [second for other, took_s in self._took_s.items() if other.cap == task.cap for second in took_s]
        if self._budget.allows(statistics.median(self._took_s.get(replace(task, again=False), of_cap)), what):
            await self._run(task)

    async def _run(self, task: _Task) -> None:
        """One round with its updates."""
        kind = "wide round" if task.wide else "real round"
        self._budget.tell(f"{layout_name(task.layout)}: {kind} of {task.prompts} prompts, cap {task.cap}")
        began = time.perf_counter()
        further = self._next
        if task.wide and self._wide_from is None:
            self._wide_from = further
        if task.again and self._wide_from is not None:
            self._next, self._wide_from = self._wide_from, self._wide_from + task.prompts
        groups = await self._round(task)
        if not task.wide:
            await self._update(task.layout, groups, self.sampled.updates)
        else:
            # Wide rounds train on the groups with the longest samples, whose attention costs most.
            groups.sort(key=lambda group: -max(sample.tokens for sample in group))
            size = self._job.rollout.prompts_per_step
            for place in range(len(self._budgets)):
                step = groups[place * size : (place + 1) * size] or groups
                await self._update(task.layout, step, self.sampled.updates)
        if task.again:
            self._next = max(further, self._next)
        self._took_s.setdefault(replace(task, again=False), []).append(time.perf_counter() - began)

    async def _round(self, task: _Task, record: bool = True) -> list[list[RolloutSample]]:
        """One plain round; its groups."""
        prompts = [self._prompts[(self._next + i) % len(self._prompts)] for i in range(task.prompts)]
        prompts = list(dict.fromkeys(prompts))  # a small data set may be shorter than a wide round
        self._next += task.prompts if record else 0
        serial = next(self._serial)
        version = f"profile-round:{serial}"
        sync_s = await self.ready(task.layout, version)
        size = self._job.rollout.samples_per_prompt
        round_ = RaceRound(prompts, len(prompts), size, size, task.cap)
        # Other seeds than a run has: a prediction should not know the run's draws.
        base = ~self._job.algorithm.seed
        seeds = RoundSeeds(base, lambda prompt: serial, None) if self._job.rollout.seed_per_sample else None
        result = await self._runner.run(round_, task.layout, version, self.weights.join, version, RoundOptions(seeds))
        groups = train_groups(round_.outcome(), result.samples)
        if not record:
            return groups
        self.sampled.sync_s.setdefault(task.layout, []).append(sync_s)
        self.sampled.prompt_tokens |= {s.prompt_id: len(s.prompt_tokens) for group in groups for s in group}
        if not task.wide and not result.restarts:  # a round that waited for a new engine tells nothing about costs
            lengths = {
                (key.draw, key.sample): (sample.prompt_id, len(sample.response_tokens), sample.truncated)
                for key, sample in sorted(result.samples.items())
            }
            self.sampled.rounds.append(MeasuredRound(task.layout, task.cap, lengths, result.rollout_s))
            self.sampled.reward_exposed_s.append(result.reward_exposed_s)
        if task.cap == self._job.rollout.max_response_tokens:
            self.sampled.scored_rollout_s += result.rollout_s
            self.sampled.scored += [
                ScoredSample(sample.prompt_id, part.value, part.seconds)
                for _, sample in sorted(result.samples.items())
                if sample.reward is not None and (part := sample.reward_parts.get(self._job.reward.label)) is not None
            ]
            self.sampled.groups.extend(groups)
            self.sampled.rows += [_row(s, self._seen[s.prompt_id]) for group in groups for s in group]
            self._seen.update(prompts)
        return groups

    async def _update(
        self, layout: EngineLayout, groups: Groups, into: Mapping[int, list[TrainPoint]] | None = None
    ) -> None:
        """One update, by the micro-batch budget whose turn it is: a second one would find the caches warm."""
        self._budgets.append(self._budgets.pop(0))
        budget = self._budgets[0]
        lengths = [sample.tokens for group in groups for sample in group]
        self.weights.retire()
        await self._site.turns.to_training(self._log(layout))
        settings = update_settings(self._site.updates[FIRST])._replace(micro_batch_tokens=budget)
        seconds = await timed_update(self._site.trainers[FIRST], groups, settings, logprob_limits(self._job))
        if into is not None:
            into[budget].append(TrainPoint(sum(lengths), sum(t * t for t in lengths), seconds))


def _row(sample: TrainSample, epoch: int) -> LengthRow:
    return LengthRow(
        prompt=sample.prompt_id,
        epoch=epoch,
        sample=sample.sample,
        tokens=len(sample.response_tokens),
        truncated=sample.truncated,
        reward=sample.reward,
        prompt_tokens=len(sample.prompt_tokens),
    )
