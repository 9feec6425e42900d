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

from ..plans.facts.digest import job_decisions
from ..plans.facts.executable import is_for_any
from ..plans.facts.model_shape import ModelShape
from ..plans.schema.cluster import Cluster
from ..plans.schema.job import Job
from ..plans.schema.plan import Inputs, Plan
from ..plans.schema.predicted import PredictedError
from ..plans.yaml.errors import Infeasible
from ..profiles.length_trace import LengthTrace
from ..profiles.profile_schema import Profile
from ..profiles.reward_tables import with_reward_times
from .choose.candidate_search import PASSES, Pass, Progress, Search
from .choose.candidates.round_kinds import is_plain_key
from .choose.cycle_cost import Cycle
from .choose.plain_baseline import baseline_of
from .choose.round_program import Solution
from .choose.schedule_choice import Decided, solve_all
from .choose.ties import simplest, tolerance_of
from .explain.assumed_effects import assumed_why
from .explain.holdout_rounds import Holdout, simulate_holdout
from .explain.predictions import error_of, predict
from .explain.why import explain
from .highs import MAX_NODES
from .solve_options import SolveOptions
from .what_if import Documents
from .write_plan import norms_of, solver_facts, write_plan
from .written_rounds import WrittenRounds, search_with_plan

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
        simplest(search, solution.cycle, tolerance_of(search, solution.cycle, profile))
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
    decided = Decided(solution, cycle, tolerance_of(search, solution.cycle, profile), baseline, holdout)
    predicted, assumed = predict(search, decided, job, profile, trace, reward_table, seed)
    why = explain(search, decided, job, profile, predicted, assumed_why(assumed, trace, reward_table))
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


def error_with(plan: Plan, documents: Documents, seed: int = 0) -> PredictedError:
    """The error that the plan's decisions have under other documents than those that it was solved from.

    Raises InputError for decisions that are not priced there, and Infeasible where no plan can be.
    """
    job, trace = documents.job, documents.trace
    profile, reward_table = with_reward_times(documents.profile, job.reward.kind)
    search, written = search_with_plan(
        plan, documents.cluster, job, profile, trace, documents.model, seed=seed, passes=PASSES, prompts=None
    )
    cycle = search.simulate(_cycle(search, written), *FEW_ROUNDS)
    return error_of(simulate_holdout(search, cycle, cycle, FEW_ROUNDS), job, profile, trace, reward_table, seed)


def _cycle(search: Search, written: WrittenRounds) -> Cycle:
    """The plan's schedule with nothing simulated of it: only keys and updates are read of it (Search.simulate)."""
    if not search.plain_cycles():
        next(column for key, column in search.short.items() if is_plain_key(key)).extend(1)
    any_cycle = search.plain_cycles()[0]
    short = dataclasses.replace(any_cycle.short, key=written.short)
    long = dataclasses.replace(any_cycle.short, key=written.long) if written.long is not None else None
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
