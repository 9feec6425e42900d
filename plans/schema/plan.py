"""plan.yaml: what the executor runs and the planner predicts; the only thing that passes from one to the other.

A `Plan` that exists is consistent in itself: its rounds are what its bias mode needs, and its shares add up. Whether it
fits the cluster, the job and the files that it was solved from is `check.check_plan`'s question.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypedDict

from pydantic import Field, model_validator

from .base import Count, Mode, Name, Strict, cross_error, cross_errors, is_false, is_none
from .limits import MOST_ISSUED, MOST_PROMPTS_PER_STEP, MOST_SAMPLES_PER_STEP
from .predicted import Predicted
from .sections.layouts import EngineLayout, UpdateLayout
from .sections.levers import (
    AdaptiveTimeout,
    RewardJudge,
    RoundDrafts,
    RoundHandOver,
    RoundPrefix,
    TimeoutNumbers,
    timeout_fault,
    timeout_numbers,
)
from .sections.origin import Inputs, Sha256, Solver, Volatile


class Bias(Strict):
    """How far the trained lengths may be from unconditioned ones."""

    mode: Mode
    """Which samples are trained."""

    budget: Annotated[float, Field(ge=0, lt=1)]
    """Allowed |1 - length ratio| beyond statistical noise."""


class StepIssue(Strict):
    """What one step trains."""

    prompts_per_step: Annotated[int, Field(ge=1, le=MOST_PROMPTS_PER_STEP)]
    """P, as in the job."""

    samples_per_prompt: Annotated[int, Field(ge=2, le=MOST_SAMPLES_PER_STEP)]
    """n, as in the job."""


class RoundIssue(Strict):
    """What a short round issues."""

    prompts: Count
    """Prompts issued; what exceeds P is over-issue."""

    samples: Count
    """Samples issued per prompt; what exceeds n is over-issue."""

    @property
    def issued(self) -> int:
        """Samples that are issued when the round begins."""
        return self.prompts * self.samples

    @model_validator(mode="after")
    def _can_be_simulated(self) -> RoundIssue:
        if self.issued > MOST_ISSUED:
            raise cross_error(
                f"a round issues {self.issued} samples, and at most {MOST_ISSUED} can be simulated; write fewer",
                "prompts",
            )
        return self


class LongIssue(RoundIssue):
    """What a long round issues."""

    copies: Count = 1
    """Draws started at once for each deferred group until one is long; mode exact only, 1 elsewhere."""

    @property
    def issued(self) -> int:
        """Samples that are issued when the round begins, all copies together."""
        return self.copies * super().issued


class RoundRollout(Strict):
    """The engines of a round."""

    pool: Name
    """Pool of the cluster that the engines run on."""

    engines: Count
    """Number of engines."""

    tp: Count
    """Accelerators per engine (tensor parallelism)."""

    max_num_seqs: Count
    """Sequences that one engine decodes at once in this kind of round; more wait in their order."""

    drafts: RoundDrafts | None = None
    """Speculative decoding; null for none."""

    prefix: Annotated[RoundPrefix | None, Field(exclude_if=is_none)] = None
    """How far a prompt's samples are kept on one engine; null: they are spread, each to the least loaded engine."""

    @property
    def layout(self) -> EngineLayout:
        """The engines' layout, as costs are looked up by it."""
        return EngineLayout(self.tp, self.engines)


class ShortRound(Strict):
    """The round that most steps are; in mode sync, every step."""

    issue: RoundIssue
    """What the round issues."""

    cutoff_tokens: Count | None
    """Response length in tokens at which a running group is deferred; mode exact only, null elsewhere."""

    long_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the prompts, those with the longest history, that get long rounds; mode predict only, null elsewhere."""

    rollout: RoundRollout
    """The engines."""

    train: UpdateLayout
    """The trainers."""

    hand_over: RoundHandOver | None = None
    """Engines that train while the tail decodes; null for none."""


class LongRound(Strict):
    """The round that runs deferred prompts, or those that are expected to be long, to their end."""

    issue: LongIssue
    """What the round issues."""

    rollout: RoundRollout
    """The engines."""

    train: UpdateLayout
    """The trainers."""

    hand_over: RoundHandOver | None = None
    """Engines that train while the tail decodes; null for none."""


class Rounds(Strict):
    """The kinds of round."""

    short: ShortRound
    """The round that most steps are."""

    long: LongRound | None
    """The round for deferred prompts; null when the mode defers none."""


class RewardPlan(Strict):
    """The reward workers."""

    workers: Count
    """Reward worker processes."""

    deadline_s: Annotated[float, Field(gt=0, le=3600)]
    """Seconds until one call is given up."""

    adaptive_timeout: Annotated[AdaptiveTimeout | None, Field(exclude_if=is_none)] = None
    """Shorter deadlines for prompts whose correct answers are fast; null: `deadline_s` for all."""

    judge: Annotated[RewardJudge | None, Field(exclude_if=is_none)] = None
    """A model that scores instead of the workers; null for none. `solve` plans none yet, `simulate` says its cost."""

    synchronous: Annotated[bool, Field(exclude_if=is_false)] = False
    """Score when the round's last sample is decoded, as plain trainers do, and not beside the rollout; to compare."""

    def timeout_numbers(self) -> TimeoutNumbers:
        """The keyword arguments of a `TimeoutSpec` (rounds/timeouts.py)."""
        return timeout_numbers(self.deadline_s, self.adaptive_timeout)

    @model_validator(mode="after")
    def _deadlines_agree(self) -> RewardPlan:
        fault = timeout_fault(self.deadline_s, self.adaptive_timeout)
        if fault is not None:
            raise cross_error(f"adaptive_timeout.min_s {fault}", "adaptive_timeout.min_s")
        return self


class LossPlan(Strict):
    """What a step's loss is divided by: constants, so that a token weighs the same in short, long and partial rounds.

    They are those of a plain synchronous step by the length model, whatever the mode. Old plans lack them: solve again.
    """

    samples: Annotated[float, Field(gt=0, le=1e12)]
    """Samples in the loss of a synchronous step: P n, less what `mask_truncated` is expected to leave out."""

    tokens: Count
    """Response tokens that these samples are expected to have; the divisor of `token-mean`."""


class SyncPlan(Strict):
    """How new weights reach the engines."""

    checksum_every: Count
    """Checksums of all tensors are compared on the first step and then on every k-th."""


WhyKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,120}$")]


class RoundNumbers(TypedDict):
    """A plan's rounds as numbers: what both the simulated and the executed schedule are made from."""

    mode: Mode
    prompts_per_step: int
    samples_per_prompt: int
    short_prompts: int
    short_samples: int
    cutoff_tokens: int | None
    copies: int
    long_share: float


class PlannedJob(Strict):
    """The decisions for one job."""

    name: Name
    """The job's name."""

    bias: Bias
    """How far the trained lengths may be from unconditioned ones."""

    issue: StepIssue
    """What one step trains."""

    rounds: Rounds
    """The kinds of round."""

    reward: RewardPlan
    """The reward workers."""

    loss: LossPlan
    """What a step's loss is divided by."""

    sync: SyncPlan
    """How new weights reach the engines."""

    why: dict[WhyKey, str]
    """For each decision, by dotted key: what it gains and what the next best choice would cost."""

    def round_numbers(self) -> RoundNumbers:
        """The keyword arguments of a `RoundSpec` (rounds/schedule.py), but for the two that only the job knows."""
        short, long = self.rounds.short, self.rounds.long
        return RoundNumbers(
            mode=self.bias.mode,
            prompts_per_step=self.issue.prompts_per_step,
            samples_per_prompt=self.issue.samples_per_prompt,
            short_prompts=short.issue.prompts,
            short_samples=short.issue.samples,
            cutoff_tokens=short.cutoff_tokens,
            copies=1 if long is None else long.issue.copies,
            long_share=short.long_share or 0.0,
        )

    @model_validator(mode="after")
    def _rounds_are_what_the_mode_needs(self) -> PlannedJob:
        faults = [(*fault, "mode-contradiction") for fault in mode_faults(self)]
        faults += [(*fault, "hand-over-contradiction") for fault in hand_over_faults(self.rounds)]
        if faults:
            raise cross_errors("PlannedJob", faults)
        return self


def hand_over_faults(rounds: Rounds) -> list[tuple[str, str]]:
    """Hand-overs that leave no engine to go on decoding, as (message, dotted field below the job)."""
    kinds = [("short", rounds.short)] + ([("long", rounds.long)] if rounds.long else [])
    return [
        (
            f"frees {kind.hand_over.engines} of {kind.rollout.engines} engine(s), and one must go on decoding; "
            + (f"write at most {kind.rollout.engines - 1}" if kind.rollout.engines > 1 else "write hand_over: null"),
            f"rounds.{name}.hand_over.engines",
        )
        for name, kind in kinds
        if kind.hand_over is not None and kind.hand_over.engines >= kind.rollout.engines
    ]


def mode_faults(job: PlannedJob) -> list[tuple[str, str]]:
    """What in `job.rounds` contradicts `job.bias.mode`, as (message, dotted field below the job); empty when sound."""
    mode, short, long = job.bias.mode, job.rounds.short, job.rounds.long
    p, n = job.issue.prompts_per_step, job.issue.samples_per_prompt
    faults: list[tuple[str, str]] = []
    plain = mode in ("sync", "predict")
    if short.issue.prompts < p or (plain and short.issue.prompts != p):
        rule = f"exactly {p}" if plain else f"at least {p}"
        faults.append(
            (
                f"a short round of mode {mode} issues {rule} prompts (prompts_per_step), not {short.issue.prompts}",
                "rounds.short.issue.prompts",
            )
        )
    if short.issue.samples < n or (mode != "race" and short.issue.samples != n):
        rule = f"at least {n}" if mode == "race" else f"exactly {n}"
        faults.append(
            (
                f"mode {mode} issues {rule} samples per prompt (samples_per_prompt), not {short.issue.samples}",
                "rounds.short.issue.samples",
            )
        )
    if mode == "exact" and short.cutoff_tokens is None:
        faults.append(("mode exact needs cutoff_tokens", "rounds.short.cutoff_tokens"))
    if mode != "exact" and short.cutoff_tokens is not None:
        faults.append(
            (f"cutoff_tokens belongs to mode exact; write null for mode {mode}", "rounds.short.cutoff_tokens")
        )
    if mode == "predict" and short.long_share is None:
        faults.append(("mode predict needs long_share, between 0 and 1", "rounds.short.long_share"))
    if mode != "predict" and short.long_share is not None:
        faults.append((f"long_share belongs to mode predict; write null for mode {mode}", "rounds.short.long_share"))
    # A race over samples alone defers no prompt, so it never has a long round.
    defers = mode in ("defer", "exact", "predict") or (mode == "race" and short.issue.prompts > p)
    if defers and long is None:
        faults.append(
            (f"mode {mode} defers prompts but the plan has no long round; add the section rounds.long", "rounds.long")
        )
    if long is not None:
        if not defers:
            faults.append((f"mode {mode} defers no prompt here; write long: null", "rounds.long"))
        if long.issue.prompts != p:
            faults.append(
                (
                    f"a long round trains {p} prompts (prompts_per_step), not {long.issue.prompts}",
                    "rounds.long.issue.prompts",
                )
            )
        if long.issue.samples != n:
            faults.append(
                (
                    f"a long round trains {n} samples per prompt (samples_per_prompt), not {long.issue.samples}",
                    "rounds.long.issue.samples",
                )
            )
        if mode != "exact" and long.issue.copies != 1:
            faults.append((f"copies belongs to mode exact; write 1 for mode {mode}", "rounds.long.issue.copies"))
    return faults


class Plan(Strict):
    """The document plan.yaml."""

    rlplan: Literal[1]
    """Version of the format."""

    inputs: Inputs
    """The files that the plan was solved from."""

    solver: Solver
    """How the plan was found."""

    decisions_sha256: Sha256
    """Digest of the decisions as they were solved. Once somebody edits a decision, the digest no longer fits, and the
    predictions are of other decisions."""

    job: PlannedJob
    """The decisions."""

    predicted: Predicted
    """What the simulator expects of the decisions."""

    predicted_sha256: Annotated[Sha256 | None, Field(exclude_if=is_none)] = None
    """Digest of `predicted` as it was solved, so that an edited figure is found. Null: an older plan that has none;
    solve it again."""

    volatile: Volatile
    """Facts about the solve itself."""

    @model_validator(mode="after")
    def _predictions_cover_the_rounds(self) -> Plan:
        if (self.job.rounds.long is None) != (self.predicted.rounds.long is None):
            raise cross_error(
                "predicted.rounds.long and job.rounds.long must both be null or both be given", "predicted.rounds.long"
            )
        return self


def load_plan(path: str | Path) -> Plan:
    """Read plan.yaml. Raises InputError. Digests and the fit to the cluster are `check_plan`'s."""
    from ..yaml.yaml_io import load

    return load(path, Plan)
