"""Predict a plan that somebody edited: its decisions stay, and all that is said of them is made anew.

The plan's kinds of round are simulated among the solver's own candidates, on the same luck, and then once more on
luck that no candidate has seen: what `solve` does with the schedule that it chooses is done with the one that is
written. So a plan that nobody edited is refreshed into itself; of an edited one, `why` holds each decision against what
the solver would do instead, and the gap is its distance from what the solver proved of its candidates.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from ..plans.facts.digest import job_decisions, job_predictions
from ..plans.schema.cluster import Cluster
from ..plans.schema.job import Job
from ..plans.schema.plan import LongRound, Plan, PlannedJob
from ..plans.schema.sections.origin import Inputs, Solver
from ..plans.yaml.errors import Infeasible, InputError
from ..profiles.length_trace import LengthTrace
from ..profiles.profile_schema import Profile
from ..profiles.reward_tables import with_reward_times
from .choose.candidate_search import ON_REQUEST, PASSES, UNBIASED, Pass, Progress, Search
from .choose.candidates import LongKey, ShortKey
from .choose.cycle_cost import Cycle, Objective, count_cycles
from .choose.plain_baseline import baseline_of
from .choose.round_program import Solution, solve_program
from .choose.schedule_choice import Decided
from .choose.ties import simplest, tolerance_of
from .costs.host_memory import trainer_share
from .costs.memory_bars import WEIGHT_BYTES
from .costs.phase_costs import TrainCost
from .costs.round_costs import Kind, kinds, scoring
from .explain.assumed_why import rewards_named
from .explain.holdout_rounds import Unseen, simulate_unseen
from .lengths.length_model import LengthModel
from .simulate.columns.column_setting import AsWritten, Setting
from .solve import prepare, said_of
from .volatile import volatile


def refresh(
    plan: Plan,
    cluster: Cluster,
    job: Job,
    profile: Profile,
    trace: LengthTrace,
    inputs: Inputs,
    *,
    seed: int = 0,
    progress: Progress = lambda text, share: None,
    passes: Sequence[Pass] = PASSES,
    prompts: int | None = None,
) -> Plan:
    """The plan with its decisions as they are and everything else of them.

    Args:
        plan: fits `cluster` and `job` (checks/fit.py).
        inputs: the files that the arguments were read from; goes into the plan as it is.
        seed: that of the solve; the same one makes the same predictions.
        passes: how much of the solver's candidates is simulated.
        prompts: how many the job's data holds; None: as many as any round wants.

    Raises InputError for decisions that are not priced (a layout that the profile lacks, a lever that no candidate
    has), and Infeasible if the plan does not keep the job's limits or its own bias budget.
    """
    began = time.perf_counter()
    planned = plan.job
    profile, rewards = with_reward_times(profile, job.reward.kind)
    search, mine = _search(plan, cluster, job, profile, trace, seed=seed, passes=passes, prompts=prompts)
    search.run_passes(progress)
    last = search.passes[-1]
    solution = _proven(search)
    if solution is not None:
        # What a solve looks at further before it chooses, so that its reasons are these reasons.
        simplest(search, solution.cycle, tolerance_of(search, solution.cycle, profile))
    progress("simulating the plan as it is written", 0.98)
    cycle = search.simulate(_cycle(search, mine), last.short_rounds, last.long_rounds)
    baseline = baseline_of(search, cycle)
    unseen = simulate_unseen(search, cycle, baseline)
    _must_keep(search, cycle, unseen)
    progress("writing the plan", 0.99)
    edited = job_decisions(planned) != plan.decisions_sha256 or plan.solver.refreshed
    cost = cycle.cost(search.limits)
    if edited or solution is None:
        bound = cost if solution is None else min(solution.bound, cost)
        # The plan's schedule is somebody's, and no choice between tied ones.
        gap = 0.0 if cost - bound <= 1e-7 * cost else (cost - bound) / cost
        solution = Solution(cycle, cost, bound, gap, False, plan.solver.name)
    decided = Decided(solution, cycle, tolerance_of(search, solution.cycle, profile), baseline, unseen)
    predicted, why = said_of(search, decided, cluster, job, profile, trace, rewards, seed)
    new = planned.model_copy(update={"why": why})
    progress("done", 1.0)
    return Plan(
        rlplan=1,
        inputs=inputs.model_copy(update={"rewards": rewards_named(rewards)}),
        solver=Solver(
            name=plan.solver.name,
            status=plan.solver.status if not edited else "feasible",
            gap=solution.gap,
            bound=solution.bound,
            reached=solution.objective,
            given_up=decided.given_up(search) or None,
            objective=plan.solver.objective,
            forced_mode=search.mode,
            forced_budget=plan.solver.forced_budget if search.mode == plan.solver.forced_mode else None,
            candidates=count_cycles(*search.columns(), search.needs_long),
            refreshed=edited,
        ),
        decisions_sha256=job_decisions(new),
        predicted_sha256=job_predictions(predicted),
        job=new,
        predicted=predicted,
        volatile=volatile(began),
    )


@dataclasses.dataclass(frozen=True)
class _Mine:
    """The plan's kinds of round as the search has them; `train`, `long_train`: places in the space's updates."""

    short: ShortKey
    long: LongKey | None
    train: int
    long_train: int


def _search(
    plan: Plan,
    cluster: Cluster,
    job: Job,
    profile: Profile,
    trace: LengthTrace,
    *,
    seed: int,
    passes: Sequence[Pass],
    prompts: int | None,
) -> tuple[Search, _Mine]:
    """The solver's candidates with the plan's among them; nothing is simulated yet."""
    planned, mode = plan.job, plan.job.bias.mode
    asked = plan.solver.forced_mode == mode
    # A mode that nobody forced is the solver's to choose from, unless only force brings it in.
    alone = asked or mode in ON_REQUEST or (planned.bias.budget == 0 and mode not in UNBIASED)
    objective: Objective = "usd" if plan.solver.objective == "usd_per_sample" else "seconds"
    search = prepare(
        cluster,
        job,
        profile,
        trace,
        mode=mode if alone else None,
        bias_budget=plan.solver.forced_budget if asked else planned.bias.budget,
        objective=objective,
        seed=seed,
        passes=passes,
        prompts=prompts,
    )
    _must_be_of_a_candidates_form(planned, search, search.setting.draws.model)
    priced = kinds(planned, profile, job.search.drafts)
    short = _short_key(planned)
    long = _long_key(short, planned.rounds.long) if planned.rounds.long is not None else None
    keys: list[tuple[ShortKey | LongKey, Kind]] = [(short, priced[0])] + ([(long, priced[1])] if long else [])
    space, limits, pool = search.space, search.limits, cluster.pools[search.space.pool]
    # Plain rounds on the plan's own engines, to compare it with and, of `predict`, for its first epoch.
    plain = {
        ShortKey("sync", prompts, samples, None, short.layout)
        for prompts, samples in (
            (planned.issue.prompts_per_step, planned.issue.samples_per_prompt),
            *([(short.prompts, short.samples)] if mode == "predict" else []),
        )
    }
    train, weight_bytes = list(space.train), WEIGHT_BYTES[job.model.dtype]
    places = [_place(train, kind.train) for _, kind in keys]
    layouts = {key.layout: kind.decode for key, kind in keys}
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
        nodes={**limits.nodes, **{key: pool.nodes_of(key.engines, key.tp) for key in layouts}},
        sharding=space.sharding,
        train_nodes=tuple(pool.nodes_of(1, update.layout.accelerators) for update in train),
        train_host=tuple(trainer_share(profile, pool, weight_bytes, update.layout) for update in train),
    )
    setting = dataclasses.replace(search.setting, decode=space.decode, reward=scoring(planned, profile))
    written = {key: AsWritten(kind.decode, kind.max_num_seqs) for key, kind in keys if _differs(setting, key, kind)}
    # A cell has keys of its own, under which nothing is written: such a plan is simulated whole, however large.
    setting = dataclasses.replace(setting, as_written=written, cell_prompts=0 if written else setting.cell_prompts)
    found = Search(setting, space, limits, job.slo.step_p95_s, search.mode, passes)
    return found, _Mine(short, long, places[0], places[-1])


def _differs(setting: Setting, key: ShortKey | LongKey, kind: Kind) -> bool:
    """Whether a kind of round is not what a candidate of its key would be."""
    if key.draft_tokens and (key.layout, key.draft_tokens) not in setting.drafted:
        return True
    return (setting.cost_of(key), setting.at_once(key)) != (kind.decode, kind.max_num_seqs)


def _must_be_of_a_candidates_form(planned: PlannedJob, search: Search, model: LengthModel) -> None:
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
    )


def _long_key(short: ShortKey, long: LongRound) -> LongKey:
    return LongKey(
        law=short.law,
        copies=long.issue.copies,
        layout=long.rollout.layout,
        draft_tokens=long.rollout.drafts.tokens if long.rollout.drafts else 0,
        hand_over=long.hand_over.at_finished if long.hand_over else 0.0,
    )


def _place(train: list[TrainCost], update: TrainCost) -> int:
    """Index of the update among the candidates', to which it is appended if it is none of them."""
    if all(cost.layout != update.layout for cost in train):
        train.append(update)
    return [cost.layout for cost in train].index(update.layout)


def _cycle(search: Search, mine: _Mine) -> Cycle:
    """The plan's schedule with nothing simulated of it: only keys and updates are read of it (Search.simulate)."""
    any_cycle = search.plain_cycles()[0]
    short = dataclasses.replace(any_cycle.short, key=mine.short)
    long = dataclasses.replace(any_cycle.short, key=mine.long) if mine.long is not None else None
    return Cycle(short, long, mine.train, mine.long_train)


def _must_keep(search: Search, cycle: Cycle, unseen: Unseen) -> None:
    """Raise Infeasible, naming each, if limits of the job or of the plan are broken."""
    broken = cycle.violations(search.limits)
    if "slo" in unseen.cycle.violations(unseen.search.limits) and "slo" not in broken:
        broken.append("slo")
    if not broken and unseen.keeps_the_limits:
        return
    ratio = unseen.search.measured_ratio(unseen.cycle)[0]
    words = {
        "bias": f"its trained mean length is {ratio:.3f} of the unconditioned one, and bias.budget allows "
        f"{search.limits.bias_budget:.1%} off",
        "slo": f"{unseen.cycle.slow_share():.0%} of its steps are slower than the job's slo.step_p95_s, and 5% may be",
        "sharding": "short and long rounds shard the model differently, and the executor starts trainers once",
        "memory": "its engines, those that sleep included, do not fit into the pool's host memory",
    }
    raise Infeasible("; ".join(words[name] for name in broken or ["bias"]) + "; edit the plan again, or solve")


def _proven(search: Search) -> Solution | None:
    """The schedule of the search that costs least, with its proof; None where none keeps the limits."""
    last = search.passes[-1]
    short, long = search.columns()
    if search.mode is not None:
        short = [c for c in short if c.law.mode == search.mode]
    else:
        short = [c for c in short if c.law.mode not in ON_REQUEST]
    finalists = [c for c in short if c.rounds >= last.short_rounds]
    partners = [c for c in long if c.rounds >= last.long_rounds]
    try:
        return solve_program(finalists, partners, search.needs_long, search.limits, search.setting.target)
    except Infeasible:
        return None
