"""A chosen schedule as a plan document: the decisions of its rounds, the proof, the digests."""

from __future__ import annotations

import math
import time
import warnings
from datetime import UTC, datetime

from .. import __version__
from ..plans.facts.digest import job_decisions, job_predictions
from ..plans.schema.job import Job
from ..plans.schema.levers import RoundDrafts, RoundHandOver, RoundTail
from ..plans.schema.plan import Inputs, LibraryInput, Plan, Solver, Volatile
from ..plans.schema.planned_job import Bias, KindNorms, PlacementSpec, PlannedJob, RewardPlan, StepIssue, SyncPlan
from ..plans.schema.planned_rounds import LongIssue, LongQueue, LongRound, RoundIssue, RoundRollout, Rounds, ShortRound
from ..plans.schema.predicted import Predicted
from ..profiles.reward_tables import RewardTable, reward_sha256
from ..rounds.round_spec import UNBIASED, QueueRule
from .choose.candidate_search import Search
from .choose.candidates.round_kinds import LongKey, ShortKey
from .choose.candidates.solve_options import SolveOptions
from .choose.cycle_cost import Cycle, count_cycles
from .choose.schedule_choice import Decided
from .lengths.loss_divisors import expected_loss, kind_norms

# Checksums cost a pass over all weights; a sync that corrupts one tensor corrupts every later step the same way.
CHECKSUM_EVERY = 10


def write_plan(
    planned: PlannedJob,
    predicted: Predicted,
    solver: Solver,
    inputs: Inputs,
    reward_table: RewardTable | None,
    began: float,
) -> Plan:
    """The plan document. `reward_table`: the reward seconds that were assumed, if any; `began`: see `volatile`."""
    return Plan(
        rlplan=1,
        inputs=inputs.model_copy(update={"rewards": _library_rewards(reward_table)}),
        solver=solver,
        decisions_sha256=job_decisions(planned),
        job=planned,
        predicted=predicted,
        predicted_sha256=job_predictions(predicted),
        volatile=volatile(began),
    )


def solver_facts(search: Search, decided: Decided, options: SolveOptions) -> Solver:
    """The plan's `solver` block: what was proven of the chosen schedule, and what was forced."""
    solution = decided.solution
    return Solver(
        name=solution.solver,
        method=solution.method,
        status="optimal" if solution.optimal else "feasible",
        gap=solution.gap,
        bound=solution.bound,
        reached=solution.objective,
        given_up=decided.given_up(search) or None,
        objective="usd_per_sample" if options.objective == "usd" else "seconds_per_sample",
        within_s=options.within_s,
        forced_mode=options.mode,
        forced_budget=None if options.mode is None else options.bias_budget,
        for_any=options.for_any,
        candidates=count_cycles(*search.columns(), search.needs_long, search.limits),
    )


def volatile(began: float) -> Volatile:
    """The plan's `volatile` block: facts about a solve that began at `began` (of `time.perf_counter`) and ends now."""
    return Volatile(
        solved_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        solve_s=time.perf_counter() - began,
        rlplan=__version__,
    )


def planned_job(search: Search, cycle: Cycle, job: Job, predicted: Predicted, why: dict[str, str]) -> PlannedJob:
    """The plan's `job` block: the decisions of the schedule `cycle`, with their reasons."""
    budget, apart = search.limits.bias_budget, search.space.train_pool
    mode = cycle.short.deferral.mode
    if math.isinf(budget):
        budget = 0.0 if mode in UNBIASED else min(0.99, math.ceil(100 * abs(1 - predicted.length_ratio)) / 100)
    reward, model = search.space.rewards[cycle.short.reward], search.setting.draws.model
    return PlannedJob(
        name=job.name,
        bias=Bias(mode=mode, budget=budget),
        issue=StepIssue(
            prompts_per_step=job.rollout.prompts_per_step, samples_per_prompt=job.rollout.samples_per_prompt
        ),
        rounds=_planned_rounds(search, cycle, job),
        reward=RewardPlan(
            workers=reward.workers,
            deadline_s=reward.deadline_s,
            adaptive_timeout=reward.adaptive,
            judge=search.space.judge,
            further=dict(reward.further),
        ),
        loss=expected_loss(model, job).model_copy(update={"grad_norms": norms_of(search, cycle, job)}),
        sync=SyncPlan(checksum_every=CHECKSUM_EVERY),
        placement=PlacementSpec(train_pool=apart, streams=search.setting.streams) if apart else None,
        why=why,
    )


def norms_of(search: Search, cycle: Cycle, job: Job) -> KindNorms | None:
    """Norms of the gradients of the kinds of round of `cycle`; None where a step of each is taken as it is."""
    if cycle.long is None:
        return None
    key = cycle.short.key
    return kind_norms(search.setting.draws.model, job, key.cutoff_tokens, key.long_share)


def _planned_rounds(search: Search, cycle: Cycle, job: Job) -> Rounds:
    """Both kinds of round of the schedule: issue, rollout, update, hand-over."""
    short = cycle.short.key
    long = cycle.long.key if cycle.long is not None else None
    size, target = job.rollout.samples_per_prompt, job.rollout.prompts_per_step
    change = None if long is None else search.setting.change_of(long)
    spec = None if change is None else change.spec
    return Rounds(
        short=ShortRound(
            issue=RoundIssue(prompts=short.prompts, samples=short.samples),
            cutoff_tokens=short.cutoff_tokens,
            long_share=short.long_share or None,
            rollout=_planned_rollout(search, short),
            train=search.space.train[cycle.train].layout,
        ),
        long=None
        if long is None
        else LongRound(
            issue=LongIssue(prompts=long.queue[0] if long.queue else target, samples=size, copies=long.copies),
            queue=_planned_queue(long.queue_rule),
            rollout=_planned_rollout(search, long),
            train=search.space.train[cycle.long_train].layout,
            hand_over=spec if isinstance(spec, RoundHandOver) else None,
            tail=spec if isinstance(spec, RoundTail) else None,
        ),
    )


def _planned_queue(rule: QueueRule | None) -> LongQueue | None:
    if rule is None:
        return None
    return LongQueue(more_copies_every=rule.more_copies_every, until_long_after=rule.until_long_after)


def _planned_rollout(search: Search, key: ShortKey | LongKey) -> RoundRollout:
    """Engines of a kind of round, with drafts and shared prefixes where they are chosen."""
    space, layout, at_once = search.space, key.layout, search.setting.at_once(key)
    drafts = None
    if key.draft_tokens:
        up_to = min(at_once, space.drafted[layout, key.draft_tokens].up_to_sequences)
        drafts = RoundDrafts(tokens=key.draft_tokens, up_to_sequences=up_to)
    balance = search.setting.cost_of(key).balance
    return RoundRollout(
        pool=space.pool,
        engines=layout.engines,
        tp=layout.tp,
        max_num_seqs=at_once,
        kv_tokens=search.setting.kv_tokens(key),
        drafts=drafts,
        prefix=None if balance is not None else space.decode[layout].sharing,
        balance=balance,
    )


def _library_rewards(table: RewardTable | None) -> LibraryInput | None:
    """The plan's entry for the table of reward seconds that it assumes; None without one. Warns if the table is a guess
    at a user's own function."""
    if table is None:
        return None
    if table.kind == "function":
        warnings.warn(
            f"the job's reward function was not measured; {table.per_sample_s:g} s a sample are assumed; "
            "measure it (rlplan profile), or import its times (rlplan rewards import)",
            stacklevel=4,
        )
    return LibraryInput(library=table.kind, sha256=reward_sha256(table.kind))
