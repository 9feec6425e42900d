"""Decisions of a plan for one job; a `PlannedJob` object always has the rounds that its bias mode needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, model_validator

from ...rounds.round_spec import Mode, RoundSpec
from .base import (
    MOST_PROMPTS_PER_STEP,
    MOST_SAMPLES_PER_STEP,
    Count,
    Name,
    Strict,
    cross_errors,
    is_empty,
    is_false,
    is_none,
)
from .levers import AdaptiveTimeout, Deadlines, RewardJudge
from .planned_rounds import Rounds, hand_over_faults, tail_faults
from .reward_spec import MOST_PARTS, WorkerKind


class Bias(Strict):
    """How far the trained lengths may be from unconditioned ones."""

    mode: Mode
    """Which samples are trained."""

    budget: Annotated[float, Field(ge=0, lt=1)]
    """Allowed |1 - length ratio| beyond statistical noise."""


class StepIssue(Strict):
    """Size of one step."""

    prompts_per_step: Annotated[int, Field(ge=1, le=MOST_PROMPTS_PER_STEP)]
    """P, as in the job."""

    samples_per_prompt: Annotated[int, Field(ge=2, le=MOST_SAMPLES_PER_STEP)]
    """n, as in the job."""


class PooledReward(Deadlines):
    """Reward workers of one further part of the job's reward."""

    kind: Annotated[WorkerKind | None, Field(exclude_if=is_none)] = None
    """The part's kind, by which its seconds are predicted: those that ship; null: they are not."""

    workers: Count
    """Reward worker processes."""

    deadline_s: Annotated[float, Field(gt=0, le=3600)]
    """Seconds until one call is given up."""

    adaptive_timeout: Annotated[AdaptiveTimeout | None, Field(exclude_if=is_none)] = None
    """Shorter deadlines for prompts whose correct answers are fast; null: `deadline_s` for all."""


class RewardPlan(Deadlines):
    """The reward workers. Of several parts of a reward, these are the first's that needs workers (a pattern last)."""

    workers: Annotated[int, Field(ge=0, le=10**12)]
    """Reward worker processes; 0 where no part of the job's reward needs any."""

    deadline_s: Annotated[float, Field(gt=0, le=3600)]
    """Seconds until one call is given up."""

    adaptive_timeout: Annotated[AdaptiveTimeout | None, Field(exclude_if=is_none)] = None
    """Shorter deadlines for prompts whose correct answers are fast; null: `deadline_s` for all."""

    judge: Annotated[RewardJudge | None, Field(exclude_if=is_none)] = None
    """A model that scores samples beside the workers, if there are any; null for none. `solve` decides where it is."""

    synchronous: Annotated[bool, Field(exclude_if=is_false)] = False
    """Score when the round's last sample is decoded, as plain trainers do, and not beside the rollout; to compare."""

    further: dict[Name, PooledReward] = Field(default={}, max_length=MOST_PARTS, exclude_if=is_empty)
    """By name of the part: workers of the job's further parts that need some, each with a pool of its own."""

    @property
    def all_workers(self) -> int:
        """Worker processes of all parts."""
        return self.workers + sum(pool.workers for pool in self.further.values())


class KindNorms(Strict):
    """Gradient norms of the kinds of round, each over that of a synchronous step."""

    short: Annotated[float, Field(gt=0, le=1e3)]
    """Of a short round's step."""

    long: Annotated[float, Field(gt=0, le=1e3)]
    """Of a long round's step."""


class LossPlan(Strict):
    """Divisors of a step's loss: constants, so that a token weighs the same in short, long and partial rounds.

    They are those of a plain synchronous step by the length model, whatever the mode. Old plans lack them: solve again.
    """

    samples: Annotated[float, Field(gt=0, le=1e12)]
    """Samples in the loss of a synchronous step: P n, less what `mask_truncated` is expected to leave out."""

    tokens: Count
    """Response tokens that these samples are expected to have; the divisor of `token-mean`."""

    grad_norms: Annotated[KindNorms | None, Field(exclude_if=is_none)] = None
    """Clipping (`max_grad_norm`) and AdamW's second moment take a step's gradients over its kind's norm: so a token of
    a long round moves weights as far as one of a short round; null: as they are (one kind of round, or modes `race`
    and `defer`)."""


class SyncPlan(Strict):
    """How new weights reach the engines."""

    checksum_every: Count
    """Checksums of all tensors are compared on the first step and then on every k-th."""


class PlacementSpec(Strict):
    """Engines and trainers on pools of their own."""

    train_pool: Name
    """The pool that trainers have to themselves; engines are on that of the rounds' `rollout.pool`."""

    streams: Annotated[bool, Field(exclude_if=is_false)] = False
    """Trainers train complete groups while the others of the round decode; the optimizer steps after the round."""


WhyKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,120}$")]


class PlannedJob(Strict):
    """The decisions for one job."""

    name: Name
    """The job's name."""

    bias: Bias
    """How far the trained lengths may be from unconditioned ones."""

    issue: StepIssue
    """Size of one step."""

    rounds: Rounds
    """The kinds of round."""

    reward: RewardPlan
    """The reward workers."""

    loss: LossPlan
    """Divisors of a step's loss."""

    sync: SyncPlan
    """How new weights reach the engines."""

    placement: Annotated[PlacementSpec | None, Field(exclude_if=is_none)] = None
    """A pool of their own for trainers; null: engines and trainers take turns on the same accelerators."""

    why: dict[WhyKey, str]
    """For each decision, by dotted key: what it gains and what the next best choice would cost."""

    @property
    def streams(self) -> bool:
        """Whether trainers on a pool of their own train while the round decodes."""
        return self.placement is not None and self.placement.streams

    def round_spec(self, max_tokens: int, dynamic_sampling: bool = False) -> RoundSpec:
        """Return the plan's rounds as simulated and executed schedules take them; the arguments are the job's."""
        short, long = self.rounds.short, self.rounds.long
        return RoundSpec(
            mode=self.bias.mode,
            prompts_per_step=self.issue.prompts_per_step,
            samples_per_prompt=self.issue.samples_per_prompt,
            max_tokens=max_tokens,
            short_prompts=short.issue.prompts,
            short_samples=short.issue.samples,
            cutoff_tokens=short.cutoff_tokens,
            copies=1 if long is None else long.issue.copies,
            dynamic_sampling=dynamic_sampling,
            long_share=short.long_share or 0.0,
            keeps_history=any(kind is not None and kind.rollout.balance is not None for kind in (short, long)),
            queue=None if long is None else long.rule,
        )

    @model_validator(mode="after")
    def _rounds_are_what_the_mode_needs(self) -> PlannedJob:
        faults = [(*fault, "mode-contradiction") for fault in mode_faults(self)]
        faults += [(*fault, "hand-over-contradiction") for fault in hand_over_faults(self.rounds)]
        faults += [(*fault, "tail-contradiction") for fault in tail_faults(self.rounds)]
        if faults:
            raise cross_errors("PlannedJob", faults)
        return self


def mode_faults(job: PlannedJob) -> Iterator[tuple[str, str]]:
    """Yield contradictions between `job.rounds` and `job.bias.mode`, as (message, dotted field below the job)."""
    mode, short, long = job.bias.mode, job.rounds.short, job.rounds.long
    p, n = job.issue.prompts_per_step, job.issue.samples_per_prompt
    plain = mode in ("sync", "predict")
    if short.issue.prompts < p or (plain and short.issue.prompts != p):
        rule, issued = f"exactly {p}" if plain else f"at least {p}", short.issue.prompts
        text = f"a short round of mode {mode} issues {rule} prompts (prompts_per_step), not {issued}"
        yield text, "rounds.short.issue.prompts"
    if short.issue.samples < n or (mode != "race" and short.issue.samples != n):
        rule, issued = f"at least {n}" if mode == "race" else f"exactly {n}", short.issue.samples
        text = f"mode {mode} issues {rule} samples per prompt (samples_per_prompt), not {issued}"
        yield text, "rounds.short.issue.samples"
    if mode == "exact" and short.cutoff_tokens is None:
        yield "mode exact needs cutoff_tokens", "rounds.short.cutoff_tokens"
    if mode != "exact" and short.cutoff_tokens is not None:
        yield f"cutoff_tokens belongs to mode exact; write null for mode {mode}", "rounds.short.cutoff_tokens"
    for name, kind in (("short", short), ("long", long)):
        # There who ends first is trained, so the order in which samples start would decide what is learnt from.
        if mode in ("race", "defer") and kind is not None and kind.rollout.balance is not None:
            text = f"balance belongs to modes sync, exact and predict; write null for mode {mode}"
            yield text, f"rounds.{name}.rollout.balance"
    if mode == "predict" and short.long_share is None:
        yield "mode predict needs long_share, between 0 and 1", "rounds.short.long_share"
    if mode != "predict" and short.long_share is not None:
        yield f"long_share belongs to mode predict; write null for mode {mode}", "rounds.short.long_share"
    # A race over samples alone defers no prompt, so it never has a long round.
    defers = mode in ("defer", "exact", "predict") or (mode == "race" and short.issue.prompts > p)
    if long is None:
        text = f"mode {mode} defers prompts but the plan has no long round; add the section rounds.long"
        if defers:
            yield text, "rounds.long"
        return
    if not defers:
        yield f"mode {mode} defers no prompt here; write long: null", "rounds.long"
    if long.queue is not None and (mode != "exact" or long.issue.prompts < p):
        remedy = f"write at least {p}" if mode == "exact" else "write queue: null"
        text = f"queue belongs to mode exact and issues at least {p} prompts (prompts_per_step); {remedy}"
        yield text, "rounds.long.issue.prompts" if mode == "exact" else "rounds.long.queue"
    elif long.queue is None and long.issue.prompts != p:
        of = "a long round without a queue" if mode == "exact" else "a long round"
        yield f"{of} trains {p} prompts (prompts_per_step), not {long.issue.prompts}", "rounds.long.issue.prompts"
    if long.issue.samples != n:
        text = f"a long round trains {n} samples per prompt (samples_per_prompt), not {long.issue.samples}"
        yield text, "rounds.long.issue.samples"
    if mode != "exact" and long.issue.copies != 1:
        yield f"copies belongs to mode exact; write 1 for mode {mode}", "rounds.long.issue.copies"
