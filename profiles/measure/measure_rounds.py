"""Runs real plain rounds with the real policy, each followed by real updates, as a training run would.

They give the length trace, and they show what whole rounds take beyond the sum of their phase costs. Updates are timed
here and not in a row by themselves: between rollouts, which leave cold caches behind, they took a fifth longer.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from ...executor.engines.fleet import Fleet
from ...executor.rollout.round_runner import RoundRunner
from ...executor.rollout.round_samples import train_groups
from ...executor.trainer.samples import TrainSample
from ...executor.trainer.trainer_config import UpdateSettings
from ...executor.trainer.trainer_group import TrainerGroup
from ...executor.weights.sync import WeightSync
from ...plans.schema.job import Job
from ...plans.schema.sections.layouts import EngineLayout
from ...rounds.machines.race import RaceRound
from ...rounds.seeds import RoundSeeds
from ..laws.measured_fit import TrainPoint
from ..laws.reward_fit import ScoredSample
from ..length_trace import LengthRow
from .measure_updates import timed_update

# A wide round has about this many samples: one tail then pays for the lengths of many.
WIDE_SAMPLES = 1024

# Rounds under the job's cap divided by this: they end early, so they tell what a round costs whatever its length.
CUT = 8

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured, in plain rounds of the job's shape (but for `trace_rounds` and `second_epoch_rounds`)."""

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


@dataclass(frozen=True, slots=True)
class MeasuredRound:
    """A real plain round: its layout, what was decoded, in order of issue, under which cap, and how long it took."""

    layout: EngineLayout
    cap_tokens: int
    lengths: dict[tuple[int, int], tuple[str, int, bool]]  # (draw, sample) -> (prompt, tokens, truncated)
    rollout_s: float


@dataclass
class Sampled:
    """What all rounds gave: those of the job's shape, updates by micro-batch budget, lengths, groups to score, and what
    comes between the phases: weight transfers after an update, how long the last reward was waited for, and what each
    reward took."""

    rounds: list[MeasuredRound] = field(default_factory=list)
    updates: dict[int, list[TrainPoint]] = field(default_factory=dict)
    rows: list[LengthRow] = field(default_factory=list)
    groups: list[list[TrainSample]] = field(default_factory=list)
    prompt_tokens: dict[str, int] = field(default_factory=dict)
    sync_s: dict[EngineLayout, list[float]] = field(default_factory=dict)
    reward_exposed_s: list[float] = field(default_factory=list)
    scored: list[ScoredSample] = field(default_factory=list)


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
    """Runs the rounds of an `Effort`. The trainer's learning rate must be 0: updates are timed and change nothing."""

    def __init__(
        self,
        job: Job,
        fleet: Fleet,
        runner: RoundRunner,
        trainer: TrainerGroup,
        weights: Path,
        prompts: Sequence[str],
        budgets: Sequence[int],
    ) -> None:
        self._job, self._fleet, self._runner = job, fleet, runner
        self._trainer, self._budgets = trainer, list(budgets)
        self._weights = WeightSync(trainer, fleet, weights)
        self._prompts = sorted(prompts)
        # Not the job's order: the prompts that are profiled should not be just the first that are trained.
        random.Random(f"profile:{job.data.seed}").shuffle(self._prompts)
        self._next = 0
        self._serial = count()
        self._seen: Counter[str] = Counter()  # how often a prompt was drawn for its lengths
        self._sampled = Sampled(updates={budget: [] for budget in self._budgets})

    async def sample(self, layouts: Sequence[EngineLayout], effort: Effort, notify: Notify) -> Sampled:
        """Run all rounds."""
        size, cap = self._job.rollout.prompts_per_step, self._job.rollout.max_response_tokens
        low = max(1, cap // CUT)
        tasks: list[_Task] = []
        for number, layout in enumerate(layouts):
            full = effort.other_check_rounds if number else effort.check_rounds
            cut = effort.other_cut_rounds if number else effort.cut_rounds
            tasks += [_Task(layout, size, cap)] * full
            tasks += [_Task(layout, size * (1 + i % 2), low) for i in range(cut)]
        wide = _Task(layouts[0], wide_prompts(self._job), cap, wide=True)
        tasks += [wide] * effort.trace_rounds
        if effort.second_epoch_rounds:
            tasks += [replace(wide, again=True)] + [wide] * (effort.second_epoch_rounds - 1)
        await self._update(await self._round(tasks[0], record=False))  # first calls of all parts, not measured
        for number, task in enumerate(tasks, start=1):
            notify(f"real rounds: {number} of {len(tasks)}")
            if task.again:
                self._next -= effort.trace_rounds * task.prompts
            groups = await self._round(task)
            if not task.wide:
                await self._update(groups, self._sampled.updates)
                continue
            # Long rounds train on the groups with the longest samples, whose attention costs most.
            groups.sort(key=lambda group: -max(sample.tokens for sample in group))
            for place in range(len(self._budgets)):
                await self._update(groups[place * size : (place + 1) * size] or groups, self._sampled.updates)
        return self._sampled

    async def _round(self, task: _Task, record: bool = True) -> list[list[TrainSample]]:
        """One plain round; its groups."""
        prompts = [self._prompts[(self._next + i) % len(self._prompts)] for i in range(task.prompts)]
        prompts = list(dict.fromkeys(prompts))  # a small data set may be shorter than a wide round
        self._next += task.prompts if record else 0
        serial = next(self._serial)
        version = f"profile-round:{serial}"
        began = time.perf_counter()
        await self._weights.sync(self._fleet.engines(task.layout), version, False)
        sync_s = time.perf_counter() - began
        size = self._job.rollout.samples_per_prompt
        round_ = RaceRound(prompts, len(prompts), size, size, task.cap)
        # Other seeds than a run has: a prediction should not know the run's draws.
        base = ~self._job.algorithm.seed
        seeds = RoundSeeds(base, lambda prompt: serial, None) if self._job.rollout.seed_per_sample else None
        result = await self._runner.run(round_, task.layout, version, self._weights.join, version, seeds)
        groups = train_groups(round_.outcome(), result.samples)
        if not record:
            return groups
        self._sampled.sync_s.setdefault(task.layout, []).append(sync_s)
        self._sampled.prompt_tokens |= {s.prompt_id: len(s.prompt_tokens) for group in groups for s in group}
        if not task.wide and not result.restarts:  # a round that waited for a new engine tells nothing about costs
            lengths = {
                (key.draw, key.sample): (sample.prompt, len(sample.tokens), sample.truncated)
                for key, sample in sorted(result.samples.items())
            }
            self._sampled.rounds.append(MeasuredRound(task.layout, task.cap, lengths, result.rollout_s))
            self._sampled.reward_exposed_s.append(result.reward_exposed_s)
        if task.cap == self._job.rollout.max_response_tokens:
            self._sampled.scored += [
                ScoredSample(sample.prompt, sample.reward, sample.reward_s)
                for _, sample in sorted(result.samples.items())
                if sample.reward is not None
            ]
            self._sampled.groups.extend(groups)
            self._sampled.rows += [_row(s, self._seen[s.prompt_id]) for group in groups for s in group]
            self._seen.update(prompts)
        return groups

    async def _update(
        self, groups: list[list[TrainSample]], into: Mapping[int, list[TrainPoint]] | None = None
    ) -> None:
        """One update, by the micro-batch budget whose turn it is: a second one would find the caches warm."""
        self._budgets.append(self._budgets.pop(0))
        budget = self._budgets[0]
        lengths = [sample.tokens for group in groups for sample in group]
        seconds = await timed_update(self._trainer, groups, UpdateSettings(budget), self._job.model.dtype)
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
