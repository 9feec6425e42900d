"""Predict a plan that somebody edited: its decisions stay, and its predictions and reasons are made anew.

The plan's kinds of round are simulated among the solver's own candidates, on the same draws, and then once more on
draws that no candidate has seen: what `solve` does with the schedule that it chooses is done with the one that is
written. So a plan that was not edited is refreshed into itself; of an edited one, `why` holds each decision against
what the solver would do instead, and the gap is its distance from what the solver proved of its candidates.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from ..plans.facts.digest import job_decisions
from ..plans.facts.executable import is_for_any
from ..plans.facts.model_shape import ModelShape
from ..plans.schema.cluster import Cluster
from ..plans.schema.job import Job
from ..plans.schema.plan import Inputs, Plan
from ..plans.schema.planned_job import PlannedJob
from ..plans.schema.planned_rounds import LongRound
from ..plans.schema.predicted import PredictedError
from ..plans.yaml.errors import Infeasible, InputError
from ..profiles.length_trace import LengthTrace
from ..profiles.profile_schema import Profile
from ..profiles.reward_tables import with_reward_times
from ..rounds.round_spec import UNBIASED
from .choose.candidate_search import ON_REQUEST, Progress, Search
from .choose.candidates.reward_choices import room_beside
from .choose.candidates.round_kinds import LongKey, ShortKey, is_plain_key
from .choose.candidates.solve_options import MAX_NODES, PASSES, Objective, Pass, SolveOptions
from .choose.cycle_cost import Column, Cycle
from .choose.holdout_rounds import Holdout, simulate_holdout
from .choose.round_program import Solution
from .choose.schedule_choice import Decided, baseline_of, solve_all
from .choose.ties import simplest, tolerance_of
from .costs.round_costs import RoundCosts, round_costs, scoring
from .costs.update_costs import TrainCost
from .explain.assumed_effects import assumed_why
from .explain.predictions import error_of, predict
from .explain.why import explain
from .lengths.length_model import LengthModel
from .search_inputs import prepare
from .simulate.columns.column_setting import Setting
from .what_if import Documents
from .write_plan import norms_of, solver_facts, write_plan

# The rounds that a plan has written, as candidates of a search: what `refresh` simulates beside the solver's own.


@dataclasses.dataclass(frozen=True)
class WrittenRounds:
    """The plan's kinds of round as candidates; `train`, `long_train`: their updates' indices in the search's."""

    short: ShortKey
    long: LongKey | None
    train: int
    long_train: int


def search_with_plan(
    plan: Plan,
    cluster: Cluster,
    job: Job,
    profile: Profile,
    trace: LengthTrace,
    model: ModelShape | None,
    *,
    seed: int,
    passes: Sequence[Pass],
    prompts: int | None,
) -> tuple[Search, WrittenRounds]:
    """(the solver's search with the plan's kinds of round among its candidates, those kinds); nothing is simulated yet.

    `model`: the shape of the job's model; None: unknown. Raises InputError for decisions that are not priced, or that
    no candidate has.
    """
    planned, mode = plan.job, plan.job.bias.mode
    forced = plan.solver.forced_mode == mode
    # A mode that was not forced is the solver's to choose from, unless only force brings it in.
    only = forced or mode in ON_REQUEST or (planned.bias.budget == 0 and mode not in UNBIASED)
    objective: Objective = "usd" if plan.solver.objective == "usd_per_sample" else "seconds"
    options = SolveOptions(
        mode=mode if only else None,
        bias_budget=plan.solver.forced_budget if forced else planned.bias.budget,
        objective=objective,
        within_s=plan.solver.within_s,
        seed=seed,
        prompts=prompts,
        for_any=is_for_any(plan, model),
        passes=passes,
    )
    search = prepare(cluster, job, profile, trace, options, planned)
    _must_be_a_candidate(planned, search, search.setting.draws.model)
    priced = round_costs(planned, profile, job.search.drafts, cluster)
    short = _short_key(planned)
    long = _long_key(short, planned.rounds.long) if planned.rounds.long is not None else None
    keys: list[tuple[ShortKey | LongKey, RoundCosts]] = [(short, priced[0])] + ([(long, priced[1])] if long else [])
    space, limits, pools = search.space, search.limits, search.space.pools
    # Plain rounds on the plan's own engines, to compare it with and, of `predict`, for its first epoch.
    plain = {
        ShortKey("sync", issued, samples, None, short.layout)
        for issued, samples in (
            (planned.issue.prompts_per_step, planned.issue.samples_per_prompt),
            *([(short.prompts, short.samples)] if mode == "predict" else []),
        )
    }
    train, memory = list(space.train), space.memory
    updates = [_update_index(train, kind.train) for _, kind in keys]
    layouts = {key.layout: kind.decode for key, kind in keys}
    layouts |= {kind.change.after.key: kind.change.after for _, kind in keys if kind.change and kind.change.is_tail}
    space = dataclasses.replace(
        space,
        short=tuple(sorted({*space.short, short, *plain})),
        long=tuple(sorted({*space.long, *([long] if long else [])})),
        decode={**{key: cost for key, cost in layouts.items() if key not in space.decode}, **space.decode},
        train=tuple(train),
    )
    limits = dataclasses.replace(
        limits,
        host_bytes={**{key: cost.host_bytes for key, cost in layouts.items()}, **limits.host_bytes},
        nodes={**limits.nodes, **{key: pools.rollout.nodes_of(key.engines, key.tp) for key in layouts}},
        worker_room={**limits.worker_room, **{key: room_beside(key, pools.rollout, job.reward) for key in layouts}},
        sharding=space.sharding,
        train_nodes=tuple(pools.of_trainers.nodes_of(1, update.layout.accelerators) for update in train),
        train_host=tuple(memory.trainer_share(update.layout) for update in train),
    )
    setting = dataclasses.replace(search.setting, decode=space.decode, reward=scoring(planned, profile))
    written = {key: kind for key, kind in keys if _differs(setting, key, kind)}
    # A cell has keys of its own, under which nothing is written: such a plan is simulated whole, however large.
    setting = dataclasses.replace(setting, as_written=written, cell_prompts=0 if written else setting.cell_prompts)
    whole = Search(setting, space, limits, job.slo.step_p95_s, search.mode, passes)
    return whole, WrittenRounds(short, long, updates[0], updates[-1])


def _differs(setting: Setting, key: ShortKey | LongKey, kind: RoundCosts) -> bool:
    """Whether a kind of round is not what a candidate of its key would be."""
    if key.draft_tokens and (key.layout, key.draft_tokens) not in setting.drafted:
        return True
    return (setting.cost_of(key), setting.at_once(key)) != (kind.decode, kind.max_num_seqs)


def _must_be_a_candidate(planned: PlannedJob, search: Search, model: LengthModel) -> None:
    """Raise InputError for what can be written into a plan and no round of the search has."""
    short, long, pool = planned.rounds.short, planned.rounds.long, search.space.pool
    if short.rollout.pool != pool:
        raise InputError(
            f"job.rounds.short.rollout.pool: is {short.rollout.pool}, and the profile prices pool {pool}; write that, "
            "or solve with a profile of the other pool"
        )
    if short.hand_over is not None:
        raise InputError("job.rounds.short.hand_over: only long rounds hand engines over; write null")
    if long is not None and long.hand_over is not None and long.hand_over.engines != long.rollout.engines // 2:
        raise InputError(
            f"job.rounds.long.hand_over.engines: is {long.hand_over.engines}, and half of the engines are handed over; "
            f"write {long.rollout.engines // 2}"
        )
    if long is not None and long.tail is not None:
        most = long.rollout.engines * long.rollout.tp // long.tail.tp
        if long.tail.engines != most:
            raise InputError(
                f"job.rounds.long.tail.engines: is {long.tail.engines}, and a tail takes all devices of the round's "
                f"engines; write {most}"
            )
    size = planned.issue.samples_per_prompt
    if short.cutoff_tokens is not None and not 0 < model.short_groups(short.cutoff_tokens, size) < 1:
        raise InputError(
            f"job.rounds.short.cutoff_tokens: is {short.cutoff_tokens}, and by the length trace either no group of "
            f"{size} samples ends within it or all do; write a length that some groups stay below"
        )


def _short_key(planned: PlannedJob) -> ShortKey:
    short = planned.rounds.short
    return ShortKey(
        mode=planned.bias.mode,
        prompts=short.issue.prompts,
        samples=short.issue.samples,
        cutoff_tokens=short.cutoff_tokens,
        layout=short.rollout.layout,
        long_share=short.long_share or 0.0,
        draft_tokens=short.rollout.drafts.tokens if short.rollout.drafts else 0,
        balanced=short.rollout.balance is not None,
    )


def _long_key(short: ShortKey, long: LongRound) -> LongKey:
    return LongKey(
        deferral=short.deferral,
        copies=long.issue.copies,
        layout=long.rollout.layout,
        draft_tokens=long.rollout.drafts.tokens if long.rollout.drafts else 0,
        hand_over=long.hand_over.at_finished if long.hand_over else 0.0,
        tail=long.tail.at_finished if long.tail else 0.0,
        tail_tp=long.tail.tp if long.tail else 0,
        balanced=long.rollout.balance is not None,
        queue=()
        if long.queue is None
        else (long.issue.prompts, long.queue.more_copies_every, long.queue.until_long_after),
    )


def _update_index(train: list[TrainCost], update: TrainCost) -> int:
    """Index of the update among the candidates', to which it is appended if it is none of them."""
    if all(cost.layout != update.layout for cost in train):
        train.append(update)
    return [cost.layout for cost in train].index(update.layout)


FEW_ROUNDS = (48, 24)
"""Short and long rounds by which the error of a plan is told of which nothing else is predicted."""


def refresh(
    plan: Plan,
    cluster: Cluster,
    job: Job,
    profile: Profile,
    trace: LengthTrace,
    inputs: Inputs,
    model: ModelShape | None,
    *,
    seed: int = 0,
    progress: Progress = lambda text, share: None,
    passes: Sequence[Pass] = PASSES,
    prompts: int | None = None,
) -> Plan:
    """The plan with its decisions as they are and everything else of them, norms of gradients (`loss`) included.

    Args:
        plan: fits `cluster` and `job` (plans/check/plan_fit.py).
        inputs: the files that the arguments were read from; goes into the plan as it is.
        model: the shape of the job's model; None: unknown.
        seed: that of the solve; the same one makes the same predictions.
        passes: how much of the solver's candidates is simulated.
        prompts: how many the job's data holds; None: as many as any round wants.

    Raises InputError for decisions that are not priced (a layout that the profile lacks, a lever that no candidate
    has), and Infeasible if the plan does not keep the job's limits or its own bias budget.
    """
    began = time.perf_counter()
    profile, reward_table = with_reward_times(profile, job.reward.kind)
    search, written = search_with_plan(
        plan, cluster, job, profile, trace, model, seed=seed, passes=passes, prompts=prompts
    )
    search.run_passes(progress)
    last = search.passes[-1]
    solution = _proven(search)
    if solution is not None:
        # Simulate the same candidates further as a solve does, so that the reasons are those of a solve.
        simplest(search, solution.cycle, tolerance_of(search, solution.cycle))
    progress("simulating the plan as it is written", 0.98)
    cycle = search.simulate(_cycle(search, written), last.short_rounds, last.long_rounds)
    baseline = baseline_of(search, cycle)
    holdout = simulate_holdout(search, cycle, baseline)
    _must_keep(search, cycle, holdout)
    progress("writing the plan", 0.99)
    edited = job_decisions(plan.job) != plan.decisions_sha256 or plan.solver.refreshed
    cost = cycle.cost(search.limits)
    if edited or solution is None:
        bound = cost if solution is None else min(solution.bound, cost)
        # The schedule is given, so there is no choice between tied schedules.
        gap = 0.0 if cost - bound <= 1e-7 * cost else (cost - bound) / cost
        solution = Solution(cycle, cost, bound, gap, False, plan.solver.name)
    decided = Decided(solution, cycle, tolerance_of(search, solution.cycle), baseline, holdout)
    predicted, assumed = predict(search, decided, job, trace, reward_table, seed)
    why = explain(search, decided, job, predicted, assumed_why(assumed, trace, reward_table))
    options = SolveOptions(
        search.mode,
        objective=search.limits.objective,
        within_s=search.limits.within_s,
        for_any=is_for_any(plan, model),
    )
    solver = solver_facts(search, decided, options).model_copy(
        update={
            "name": plan.solver.name,
            "method": plan.solver.method,
            "status": plan.solver.status if not edited else "feasible",
            "forced_budget": plan.solver.forced_budget if search.mode == plan.solver.forced_mode else None,
            "refreshed": edited,
        }
    )
    progress("done", 1.0)
    # They follow from the cutoff, which may have been edited.
    loss = plan.job.loss.model_copy(update={"grad_norms": norms_of(search, cycle, job)})
    return write_plan(
        plan.job.model_copy(update={"why": why, "loss": loss}), predicted, solver, inputs, reward_table, began
    )


def error_with(plan: Plan, documents: Documents) -> PredictedError:
    """The error that the plan's decisions have under other documents than those that it was solved from.

    Raises InputError for decisions that are not priced there, and Infeasible where no plan can be.
    """
    job, trace = documents.job, documents.trace
    profile, reward_table = with_reward_times(documents.profile, job.reward.kind)
    search, written = search_with_plan(
        plan, documents.cluster, job, profile, trace, documents.model, seed=0, passes=PASSES, prompts=None
    )
    cycle = search.simulate(_cycle(search, written), *FEW_ROUNDS)
    return error_of(simulate_holdout(search, cycle, cycle, FEW_ROUNDS), job, trace, reward_table, 0)


def _cycle(search: Search, written: WrittenRounds) -> Cycle:
    """The plan's schedule with nothing simulated of it: only keys and updates are read of it (Search.simulate)."""
    if not search.plain_cycles():
        next(column for key, column in search.short.items() if is_plain_key(key)).extend(1)
    column: Column[Any] = search.plain_cycles()[0].short
    short = dataclasses.replace(column, key=written.short)
    long = dataclasses.replace(column, key=written.long) if written.long is not None else None
    return Cycle(short, long, written.train, written.long_train)


def _must_keep(search: Search, cycle: Cycle, holdout: Holdout) -> None:
    """Raise Infeasible, naming each, if limits of the job or of the plan are broken."""
    broken = cycle.violations(search.limits)
    unseen = holdout.cycle.violations(holdout.search.limits)
    broken += [limit for limit in ("slo", "within") if limit in unseen and limit not in broken]
    if not broken and holdout.keeps_the_limits:
        return
    ratio = holdout.search.measured_ratio(holdout.cycle)[0]
    texts = {
        "bias": f"its trained mean length is {ratio:.3f} of the unconditioned one, and bias.budget allows "
        f"{search.limits.bias_budget:.1%} off",
        "slo": f"{holdout.cycle.slow_share():.0%} of its steps are slower than the job's slo.step_p95_s, and 5% may be",
        "within": f"its mean step takes {cycle.step_s():.3g} s, and the objective allows {search.limits.within_s} s",
        "sharding": "short and long rounds shard the model differently, and the executor starts trainers once",
        "cores": "its reward workers are more than the host cores that its engines leave them",
        "memory": "its engines, those that sleep included, do not fit into the pool's host memory",
    }
    raise Infeasible("; ".join(texts[name] for name in broken or ["bias"]) + "; edit the plan again, or solve")


def _proven(search: Search) -> Solution | None:
    """The schedule of the search that costs least, with its proof; None where none keeps the limits."""
    try:
        return solve_all(search, MAX_NODES)
    except Infeasible:
        return None
