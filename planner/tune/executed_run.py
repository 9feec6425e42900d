"""An executed run, step by step, and its replay in the simulator: with the run's own lengths, so that only errors of
the costs make them differ.

A replayed round issues the prompts that were issued, in their order, and each sample has the length that it had. A
sample that was aborted while it decoded has no length in the trace, only a reason: it was longer than the round let it
be. In the replay it gets the cap, so the machine aborts it again, for the same reason, at the replay's own time.

Where samples are balanced by history, a step is replayed with what the steps before it recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from msgspec import structs

from ...plans.schema.levers import SearchDrafts
from ...plans.schema.plan import Plan
from ...plans.yaml.errors import InputError
from ...rounds.balancing.length_estimates import NOTHING
from ...rounds.machines.events import SampleKey
from ...rounds.machines.round import Round
from ...rounds.predict import LengthHistory
from ...rounds.round_spec import RoundKind, RoundSpec
from ...traces.cycle_means import CycleMeans, means_by_plan
from ...traces.run_log import PLAN_COPY, TRACE, load_run, must_be_run_folder
from ...traces.sample_columns import Samples
from ...traces.trace_events import Drafts, Sample, StepEvent
from ..costs.reward_costs import RewardCost
from ..costs.round_costs import RoundCosts
from ..simulate.reference_round import RoundLengths, simulate_round
from ..simulate.round_arrays import RoundTimes
from ..simulate.streamed_updates import exposed_update_s, round_window


class ExecutedStep(StepEvent, kw_only=True):
    """One step that was run, with its samples. `warm` is false where something had to start; `drafts` is the event of a
    round that drafted."""

    rows: Samples
    warm: bool
    drafts: Drafts | None = None

    @property
    def first_epoch(self) -> bool:
        """Whether the round drafted while some of its prompts had no earlier responses."""
        return self.drafts is not None and self.drafts.epoch <= 1

    @property
    def issued_samples(self) -> int:
        """Samples that the round issued, those included that left no event."""
        return len(self.rows) if self.samples is None else sum(self.samples.values())

    @property
    def round_s(self) -> float:
        """Seconds of the round and of what a step waits for around it (messages, book-keeping)."""
        return self.rollout_s + self.outside_s

    def update_tokens(self) -> tuple[int, int]:
        """(sum, sum of squares) over the trained samples' tokens, prompts included."""
        tokens = self.rows["tokens"].astype(np.int64)[self.rows.trained] + self.rows["prompt_tokens"][self.rows.trained]
        return int(tokens.sum()), int(tokens @ tokens)


@dataclass(frozen=True)
class ExecutedRun:
    """A run folder. `plan_path`, the plan it was started with, and `cold_s`, mean seconds of a start, are None in older
    traces. `allowed`: what its job says of drafts. `speed_changed`: its steps are those since the machine's speed
    changed."""

    home: Path
    plan: Plan
    steps: tuple[ExecutedStep, ...]
    plan_path: Path | None = None
    allowed: SearchDrafts | None = None
    cold_s: float | None = None
    speed_changed: bool = False

    @property
    def plan_copy(self) -> Path:
        """The copy of its plan in the run's folder."""
        return self.home / PLAN_COPY

    @cached_property
    def over_cycle(self) -> CycleMeans:
        """Means over the cycle, as `rlplan report` states them. Where the machine's speed changed, a long round that is
        owed takes as many times its prediction as the steps since then took of theirs."""
        means = means_by_plan(self.steps, self.plan)
        if not self.speed_changed:
            return means
        rounds = self.plan.predicted.rounds
        planned_s = [
            (rounds.long or rounds.short if s.kind == "long" else rounds.short).step_s.mean for s in self.steps
        ]
        factor = math.fsum(step.total_s for step in self.steps) / math.fsum(planned_s)
        return replace(means, planned_long_s={key: factor * value for key, value in means.planned_long_s.items()})


def load_executed(folder: Path) -> ExecutedRun:
    """Read the `--out` folder of one executed plan. Raises InputError if it is none, damaged or without a step."""
    must_be_run_folder(folder)
    if not (folder / TRACE).is_file():
        runs = sorted(p.parent.name for p in folder.glob(f"*/{TRACE}"))
        hint = f"it holds the runs {', '.join(runs)}: name one" if runs else "give the --out of rlplan execute"
        raise InputError(f"holds no {TRACE}; {hint}", str(folder))
    run = load_run(folder)
    log = run.log
    if not log.steps:
        raise InputError("no step was finished; there is nothing to learn from", str(folder))
    if log.steps[-1].step <= log.plan_from:
        raise InputError("no step was finished by the plan in force; there is nothing to learn from", str(folder))
    named = log.plan_named
    steps = (
        ExecutedStep(
            **structs.asdict(step),
            rows=log.samples.get(step.step) or Samples(()),
            warm=step.step not in log.first_steps and not step.restarts,
            drafts=log.drafts.get(step.step),
        )
        for step in log.in_force
    )
    plan_path = folder / named if isinstance(named, str) else None
    return ExecutedRun(folder, run.plan, tuple(steps), plan_path, cold_s=log.cold_s)


@dataclass(frozen=True, slots=True)
class Replayed:
    """An executed step and its replay, in seconds, by the costs of the replay.

    `update_s` is the update's after the round, on the tokens that were trained; less where groups were trained before.
    """

    step: ExecutedStep
    times: RoundTimes
    update_s: float
    sync_s: float

    @property
    def total_s(self) -> float:
        """The whole step."""
        return self.times.end_s + self.update_s + self.sync_s


def replay(
    step: ExecutedStep, spec: RoundSpec, kind: RoundCosts, reward: RewardCost, history: LengthHistory | None = None
) -> Replayed:
    """Simulate the round of `step` with its own lengths; `history` of the steps before, which then has this one too."""
    rows = list(step.rows)
    drawn = _draws(step, rows, spec)
    order = list(drawn)
    mean_prompt = round(sum(row.prompt_tokens for row in rows) / max(1, len(rows))) or 1
    prompt_tokens = {row.prompt: row.prompt_tokens for row in rows}
    machine = _machine(step, spec, order)
    counts: dict[str, int] = {}
    number_of: dict[int, int] = {}

    def row_of(key: SampleKey, prompt: str) -> Sample | None:
        if key.draw not in number_of:
            number_of[key.draw] = counts.get(prompt, 0)
            counts[prompt] = number_of[key.draw] + 1
        prompt_draws = drawn.get(prompt, [])
        number = number_of[key.draw]
        return prompt_draws[number].get(key.sample) if number < len(prompt_draws) else None

    def natural(key: SampleKey, prompt: str) -> int:
        row = row_of(key, prompt)
        if row is None:
            return spec.max_tokens
        # What the limit cut went on beyond it.
        return row.tokens + int(row.truncated)

    def score(key: SampleKey, prompt: str) -> float:
        row = row_of(key, prompt)
        return 0.0 if row is None or row.reward is None else row.reward

    expected = sum(row.tokens for row in rows) / max(1, len(rows))

    def score_s(key: SampleKey, prompt: str, tokens: int) -> float:
        row = row_of(key, prompt)
        return reward.per_sample_s if row is None or row.reward_s is None else row.reward_s

    lengths = RoundLengths(
        natural,
        lambda p: prompt_tokens.get(p, mean_prompt),
        score,
        spec.max_tokens,
        expected,
        # Where samples differ, each took what it took; elsewhere the constant is what is looked at.
        reward_s=score_s if reward.executions else None,
        recorded=NOTHING if history is None else history.recorded(order),
    )
    ready: dict[int, float] = {}
    times = simulate_round(
        machine,
        lengths,
        kind.decode,
        reward,
        kind.max_num_seqs,
        change=kind.change,
        samples_to_train=machine.samples_to_train(spec.prompts_per_step),
        on_ready=ready.__setitem__,
    )
    if history is not None:
        history.learn(machine)
    update_s = kind.train.update_s(*step.update_tokens())
    if kind.streams or times.freed_s is not None:
        window = round_window(kind, times.freed_s, times.end_s, machine.outcome(), ready, lengths.prompt_tokens)
        tokens, squares = sum(group[1] for group in window.groups), sum(group[2] for group in window.groups)
        update_s = exposed_update_s(kind.train, tokens, squares, window.streamed(kind.train))
    return Replayed(step, times, update_s, kind.decode.sync_beside(kind.train.layout))


def _draws(step: ExecutedStep, rows: list[Sample], spec: RoundSpec) -> dict[str, list[dict[int, Sample]]]:
    """For each prompt, in order of issue, its draws in order: of each the trace rows of the samples that ended.

    A draw without an ended sample left only its number. In a long round copies are issued prompt by prompt, lap by lap,
    so its number tells the prompt, or the place of one that left nothing. Elsewhere its prompt is unknown.
    """
    by_draw: dict[int, dict[int, Sample]] = {}
    for row in rows:
        by_draw.setdefault(row.draw, {})[row.sample] = row
    names = {number: next(iter(draw.values())).prompt for number, draw in by_draw.items()}
    laps = step.kind == "long" and spec.mode == "exact"
    copies = _long_kind(step, spec, sum(step.prompts.values())).copies if laps else ()
    places = [place for lap in range(max(copies, default=0)) for place, most in enumerate(copies) if lap < most]
    of_place = {places[number]: name for number, name in names.items() if number < len(places)}
    width = spec.short_samples if step.kind == "short" else spec.samples_per_prompt
    draws: dict[str, list[dict[int, Sample]]] = {}
    for number in range(max(max(names, default=-1) + 1, step.issued_samples // width)):
        name = names.get(number)
        if name is None and laps:
            if number >= len(places):
                continue  # a later copy of a prompt that was settled: the replay draws it only if it comes to that
            name = of_place.get(places[number], f"?{places[number]}")
        draws.setdefault(name or f"?{number}", []).append(by_draw.get(number, {}))
    return draws


def _long_kind(step: ExecutedStep, spec: RoundSpec, prompts: int) -> RoundKind:
    return spec.long_by_queue(step.ages) if step.ages and spec.queue else spec.long(prompts)


def _machine(step: ExecutedStep, spec: RoundSpec, order: list[str]) -> Round:
    if step.kind == "long":
        return _long_kind(step, spec, len(order)).machine(order)
    feed = order[spec.short_prompts :][::-1]

    def take(count: int) -> list[str]:
        return [feed.pop() for _ in range(min(count, len(feed)))]

    return spec.short().machine(order[: spec.short_prompts], take)


def replay_all(
    steps: Iterable[ExecutedStep], spec: RoundSpec, short: RoundCosts, long: RoundCosts, reward: RewardCost
) -> list[Replayed]:
    """Replay steps whose samples are in the trace; a step without any has nothing to replay."""
    history = LengthHistory()

    def costs(step: ExecutedStep) -> RoundCosts:
        kind = long if step.kind == "long" else short
        return kind.in_first_epoch() if step.first_epoch else kind

    return [
        replay(step, spec, costs(step), reward, history if spec.keeps_history else None)
        for step in steps
        if len(step.rows)
    ]
