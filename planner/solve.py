"""Solve: trace and profile in, plan out."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from ..plans.facts.critical_path import path_of
from ..plans.facts.digest import job_decisions, job_predictions
from ..plans.facts.node_price import usd_per_node_hour
from ..plans.schema.base import Mode
from ..plans.schema.cluster import Cluster
from ..plans.schema.job import Job
from ..plans.schema.plan import (
    Bias,
    LongIssue,
    LongRound,
    Plan,
    PlannedJob,
    RewardPlan,
    RoundIssue,
    RoundRollout,
    Rounds,
    ShortRound,
    StepIssue,
    SyncPlan,
)
from ..plans.schema.predicted import Predicted
from ..plans.schema.sections.length_evidence import few_lengths
from ..plans.schema.sections.levers import RoundDrafts, RoundHandOver, RoundPrefix
from ..plans.schema.sections.origin import Inputs, Solver
from ..plans.yaml.errors import Infeasible, InputError
from ..profiles.length_trace import LengthTrace
from ..profiles.profile_schema import Profile
from ..profiles.reward_tables import RewardTable, with_reward_times
from .choose.candidate_search import PASSES, Pass, Progress, Search
from .choose.candidates import MODES, LongKey, ShortKey, enumerate_space
from .choose.cycle_cost import Cycle, Limits, Objective, count_cycles
from .choose.prefix_placement import place
from .choose.prompt_supply import few_for_refills
from .choose.round_program import Solution
from .choose.schedule_choice import Decided, choice_words, decide
from .costs.memory_bars import WEIGHT_BYTES
from .costs.phase_costs import reward_cost
from .explain.assumed_why import rewards_named, with_assumed
from .explain.cost_error import noise_of
from .explain.length_basis import length_basis
from .explain.pareto_front import front
from .explain.predictions import predict
from .explain.why import explain
from .highs import MAX_NODES
from .lengths.draws import Draws
from .lengths.length_cautions import at_cap, extrapolated
from .lengths.length_drift import Drift, fit_drift
from .lengths.length_model import fit_lengths
from .lengths.loss_divisors import expected_loss
from .simulate.columns.whole_columns import Setting
from .volatile import volatile

# Checksums cost a pass over all weights; a sync that corrupts one tensor corrupts every later step the same way.
CHECKSUM_EVERY = 10


@dataclass(frozen=True)
class Solved:
    """A plan, and the search that it came from (for tests and for reports that want more than the plan's `why`).

    `solution.cycle` is the proven best schedule, `cycle` the plan's: the simplest that is tied with it (ties.py).
    """

    plan: Plan
    search: Search
    solution: Solution
    cycle: Cycle
    baseline: Cycle


def solve(
    cluster: Cluster,
    job: Job,
    profile: Profile,
    trace: LengthTrace,
    inputs: Inputs,
    *,
    mode: Mode | None = None,
    bias_budget: float | None = None,
    objective: Objective = "seconds",
    seed: int = 0,
    max_nodes: int = MAX_NODES,
    progress: Progress = lambda text, share: None,
    prompts: int | None = None,
) -> Plan:
    """The plan with the fewest seconds (or USD) per trained sample, and the plain synchronous baseline beside it.

    Args:
        inputs: the files that the arguments were read from; goes into the plan as it is.
        mode: forces this mode; None lets the program choose.
        bias_budget: allowed |1 - trained / unconditioned mean length|; None means 0 when the mode is free, and no bound
            when a mode is forced (the plan then carries the bias that is predicted, rounded up to whole percents).
        objective: "seconds" of the whole pool, or "usd" for the nodes that the plan takes of it.
        max_nodes: limit of the integer program's branch and bound.
        progress: called with a text and the share that is done.
        prompts: how many the job's data holds; None: as many as any round wants.

    The same arguments give the same plan but for `volatile`. Raises Infeasible when nothing keeps the limits, and
    InputError when the trace does not fit the job.
    """
    return solve_fully(
        cluster,
        job,
        profile,
        trace,
        inputs,
        mode=mode,
        bias_budget=bias_budget,
        objective=objective,
        seed=seed,
        max_nodes=max_nodes,
        progress=progress,
        prompts=prompts,
    ).plan


def solve_fully(
    cluster: Cluster,
    job: Job,
    profile: Profile,
    trace: LengthTrace,
    inputs: Inputs,
    *,
    mode: Mode | None = None,
    bias_budget: float | None = None,
    objective: Objective = "seconds",
    seed: int = 0,
    max_nodes: int = MAX_NODES,
    progress: Progress = lambda text, share: None,
    passes: Sequence[Pass] = PASSES,
    prompts: int | None = None,
) -> Solved:
    """Like `solve`, with what it was decided on, and with a say in how much is simulated (`passes`)."""
    began = time.perf_counter()
    profile, rewards = with_reward_times(profile, job.reward.kind)
    search = prepare(
        cluster,
        job,
        profile,
        trace,
        mode=mode,
        bias_budget=bias_budget,
        objective=objective,
        seed=seed,
        passes=passes,
        prompts=prompts,
    )
    search.run_passes(progress)
    decided = decide(search, profile, max_nodes, progress)
    solution, cycle = decided.solution, decided.cycle
    _warn_of_refills(search, cycle, prompts)
    progress("writing the plan", 0.99)
    predicted, why = said_of(search, decided, cluster, job, profile, trace, rewards, seed)
    budget = search.limits.bias_budget
    if math.isinf(budget):
        budget = min(0.99, math.ceil(100 * abs(1 - predicted.length_ratio)) / 100)
    planned = PlannedJob(
        name=job.name,
        bias=Bias(mode=cycle.short.law.mode, budget=budget),
        issue=StepIssue(
            prompts_per_step=job.rollout.prompts_per_step, samples_per_prompt=job.rollout.samples_per_prompt
        ),
        rounds=_rounds(search, cycle, job),
        reward=RewardPlan(
            workers=job.reward.workers,
            deadline_s=job.reward.deadline_s,
            adaptive_timeout=job.reward.adaptive_timeout,
        ),
        loss=expected_loss(search.setting.draws.model, job),
        sync=SyncPlan(checksum_every=CHECKSUM_EVERY),
        why=why,
    )
    plan = Plan(
        rlplan=1,
        inputs=inputs.model_copy(update={"rewards": rewards_named(rewards)}),
        solver=Solver(
            name=solution.solver,
            status="optimal" if solution.optimal else "feasible",
            gap=solution.gap,
            bound=solution.bound,
            reached=solution.objective,
            given_up=decided.given_up(search) or None,
            objective="usd_per_sample" if objective == "usd" else "seconds_per_sample",
            forced_mode=mode,
            forced_budget=None if mode is None else bias_budget,
            candidates=count_cycles(*search.columns(), search.needs_long),
        ),
        decisions_sha256=job_decisions(planned),
        job=planned,
        predicted=predicted,
        predicted_sha256=job_predictions(predicted),
        volatile=volatile(began),
    )
    progress("done", 1.0)
    return Solved(plan, search, solution, cycle, decided.baseline)


def said_of(
    search: Search,
    decided: Decided,
    cluster: Cluster,
    job: Job,
    profile: Profile,
    trace: LengthTrace,
    rewards: RewardTable | None,
    seed: int,
) -> tuple[Predicted, dict[str, str]]:
    """(`predicted`, `why`) of a plan. `rewards`: the table of reward seconds that were assumed, if any."""
    cycle, unseen = decided.cycle, decided.unseen
    pool, points = cluster.pools[search.space.pool], front(search, cycle, unseen)
    weight_bytes, basis = WEIGHT_BYTES[job.model.dtype], length_basis(unseen, trace)
    predicted = predict(unseen, profile, pool, points, drift_of(trace, seed), weight_bytes, basis)
    predicted, assumed = with_assumed(predicted, unseen, job, trace, rewards, seed)
    why = explain(search, cycle, decided.baseline, unseen, path_of(predicted))
    return predicted, why | choice_words(decided, search, profile) | overridden(job) | assumed


def prepare(
    cluster: Cluster,
    job: Job,
    profile: Profile,
    trace: LengthTrace,
    *,
    mode: Mode | None = None,
    bias_budget: float | None = None,
    objective: Objective = "seconds",
    seed: int = 0,
    passes: Sequence[Pass] = PASSES,
    prompts: int | None = None,
) -> Search:
    """Length model, candidates and limits; nothing is simulated yet. An assumed reward is replaced by its kind's."""
    profile, _ = with_reward_times(profile, job.reward.kind)
    rollout = job.rollout
    model = fit_lengths(trace, rollout.max_response_tokens, seed)
    few = few_lengths(len(trace.prompts), len(trace.rows))
    for caution in (extrapolated(model, trace), at_cap(model), few, _unpriced_timeouts(job, profile)):
        if caution is not None:
            warnings.warn(caution, stacklevel=2)
    if job.algorithm.dynamic_sampling and all(len(set(rewards)) == 1 for rewards in model.rewards):
        raise Infeasible(
            "in the length trace all samples of a prompt have one reward, so dynamic sampling would filter every "
            "group; profile a policy that is right now and then, or turn algorithm.dynamic_sampling off"
        )
    modes: tuple[Mode, ...] = MODES if mode is None else tuple(m for m in MODES if m in ("sync", mode))
    space = enumerate_space(cluster, job, profile, model, modes, fewer_nodes=objective == "usd", prompts=prompts)
    pool = cluster.pools[space.pool]
    if objective == "usd" and usd_per_node_hour(pool) == 0:
        raise InputError(
            f"pool '{space.pool}' costs nothing (usd_per_node_hour or usd_per_gpu_hour is 0), so no plan is cheaper "
            "than another; give its price or minimise seconds"
        )
    width = max(key.samples for key in space.short)
    # As wide as any candidate whatever the mode, so that a forced mode is simulated on the same luck as a free one.
    draws = Draws(model, seed, max(width, 2 * rollout.samples_per_prompt))
    space = place(space, draws, rollout.prompts_per_step, rollout.samples_per_prompt, rollout.max_response_tokens)
    setting = Setting(
        target=rollout.prompts_per_step,
        group_size=rollout.samples_per_prompt,
        cap_tokens=rollout.max_response_tokens,
        dynamic_sampling=job.algorithm.dynamic_sampling,
        decode=space.decode,
        reward=reward_cost(profile.reward, job.reward.workers, job.reward.timeout_numbers()),
        draws=draws,
        drafted=space.drafted,
        noise=partial(noise_of, profile),
        max_prompt_tokens=rollout.max_prompt_tokens,
    )
    if bias_budget is None:
        bias_budget = 0.0 if mode is None else math.inf
    limits = Limits(
        group_size=rollout.samples_per_prompt,
        mean_tokens=model.mean_tokens,
        bias_budget=bias_budget,
        slo=job.slo.step_p95_s is not None,
        host_memory_bytes=space.host_memory_bytes,
        host_bytes={key: cost.host_bytes for key, cost in space.decode.items()},
        train_host=space.train_host,
        sharding=space.sharding,
        reshard_s=space.reshard_s,
        layout_switch_s=space.layout_switch_s,
        objective=objective,
        nodes={key: pool.nodes_of(key.engines, key.tp) for key in space.decode},
        train_nodes=tuple(pool.nodes_of(1, t.layout.accelerators) for t in space.train),
        usd_per_node_s=usd_per_node_hour(pool) / 3600,
        pool_nodes=pool.nodes,
        # Layouts that were measured are the executor's own, and it starts trainers once, for both kinds of round.
        one_sharding=profile.train_law is None,
    )
    return Search(setting, space, limits, job.slo.step_p95_s, mode, passes)


def overridden(job: Job) -> dict[str, str]:
    """What of its algorithm the job sets otherwise; a plan's reader should not take the name for the paper's."""
    overrides = job.algorithm.overrides()
    return {"algorithm": f"the job overrides its algorithm: {', '.join(overrides)}"} if overrides else {}


def _unpriced_timeouts(job: Job, profile: Profile) -> str | None:
    """What a reader must know if the job's deadlines adapt and the profile cannot tell what that saves."""
    if job.reward.adaptive_timeout is None or profile.reward.executions is not None:
        return None
    return (
        "reward.adaptive_timeout is planned, but what it saves is not predicted: the profile holds one reward time for "
        "all samples; profile the job anew, or write reward.executions into the profile"
    )


def _warn_of_refills(search: Search, cycle: Cycle, prompts: int | None) -> None:
    """Say so where the data holds too few prompts for the plan's steps to be whole."""
    if prompts is None:
        return
    setting, key = search.setting, cast(ShortKey, cycle.short.key)
    caution = few_for_refills(
        setting.draws.model, key, setting.target, setting.group_size, setting.dynamic_sampling, prompts
    )
    if caution is not None:
        warnings.warn(caution, stacklevel=3)


def drift_of(trace: LengthTrace, seed: int) -> Drift | None:
    """How the trace's lengths move from epoch to epoch; None if no two prompts were drawn in two of them."""
    try:
        return fit_drift(trace, seed)
    except ValueError:
        return None


def _rounds(search: Search, cycle: Cycle, job: Job) -> Rounds:
    space, short, long = search.space, cast(ShortKey, cycle.short.key), cycle.long
    size, target = job.rollout.samples_per_prompt, job.rollout.prompts_per_step

    def rollout(key: ShortKey | LongKey) -> RoundRollout:
        layout, at_once = key.layout, search.setting.at_once(key)
        drafts = None
        if key.draft_tokens:
            up_to = min(at_once, space.drafted[layout, key.draft_tokens].up_to_sequences)
            drafts = RoundDrafts(tokens=key.draft_tokens, up_to_sequences=up_to)
        sharing = space.decode[layout].sharing
        prefix = None
        if sharing is not None:
            prefix = RoundPrefix(block_tokens=sharing.block_tokens, tokens_per_sample=sharing.tokens_per_sample)
        return RoundRollout(
            pool=space.pool,
            engines=layout.engines,
            tp=layout.tp,
            max_num_seqs=at_once,
            drafts=drafts,
            prefix=prefix,
        )

    def hand_over(key: LongKey) -> RoundHandOver | None:
        return RoundHandOver(engines=key.freed_engines, at_finished=key.hand_over) if key.hand_over else None

    return Rounds(
        short=ShortRound(
            issue=RoundIssue(prompts=short.prompts, samples=short.samples),
            cutoff_tokens=short.cutoff_tokens,
            long_share=short.long_share or None,
            rollout=rollout(short),
            train=space.train[cycle.train].layout,
        ),
        long=None
        if long is None
        else LongRound(
            issue=LongIssue(prompts=target, samples=size, copies=cast(LongKey, long.key).copies),
            rollout=rollout(long.key),
            train=space.train[cycle.long_train].layout,
            hand_over=hand_over(cast(LongKey, long.key)),
        ),
    )
