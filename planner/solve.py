"""Solve one job: length trace and profile in, a plan out. `solve` is the whole method, a line for each part of it."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..plans.facts.digest import job_decisions
from ..plans.facts.executable import family_fault
from ..plans.facts.model_shape import shape_of_public
from ..plans.schema.cluster import Cluster
from ..plans.schema.job import Job
from ..plans.schema.levers import RewardJudge, SearchDrafts
from ..plans.schema.plan import Inputs, Plan
from ..plans.schema.predicted import Predicted
from ..plans.yaml.errors import Infeasible
from ..profiles.length_trace import LengthTrace
from ..profiles.profile_schema import Profile
from ..profiles.reward_tables import with_reward_times
from .choose.balance_choice import balanced
from .choose.candidate_search import Progress, Search
from .choose.candidates.pool_choice import Unplannable, engine_pools
from .choose.candidates.reward_choices import judge_text
from .choose.candidates.solve_options import DEFAULTS, SolveOptions
from .choose.cycle_cost import Cycle
from .choose.round_program import Solution
from .choose.schedule_choice import decide
from .explain.assumed_effects import assumed_why
from .explain.predictions import predict
from .explain.why import explain
from .search_inputs import places_of_judge, prepare, warn_of_few_prompts
from .write_plan import planned_job, solver_facts, write_plan

JUDGE_TIE = 0.01
"""Places of a judge whose seconds (or USD) a sample differ by no more than this share are as good as each other."""


JUDGE_WAIT = 0.03
"""Share of a step, waiting for rewards alone, below which further copies of a judge are not tried."""


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
    options: SolveOptions = DEFAULTS,
    progress: Progress = lambda text, share: None,
    others: Mapping[str, Profile] | None = None,
) -> Solved:
    """The plan with the fewest seconds (or USD) per trained sample, and the plain synchronous baseline beside it.

    It is one that `rlplan execute` can run, unless `options.for_any`: layouts and levers that the executor does not
    have are then no candidates, so that what is proven is proven of what it can run.

    Args:
        inputs: the files that the arguments were read from; goes into the plan as it is.
        progress: called with a text and the share that is done.
        others: profiles of pools that `profile` does not price, by their names; they are considered, too.

    The same arguments give the same plan but for `volatile`. Raises Infeasible when no schedule keeps the limits (it
    says so if one that only other frameworks can run would), and InputError when the trace does not fit the job, or the
    executor does not train its model's family.
    """
    if not options.for_any:
        _must_train_family(job, options)
    job = without_levers(job) if options.plain else job
    pools = engine_pools(cluster, job, profile) if options.pool is None else [options.pool]
    priced = {**dict.fromkeys(pools, profile), **(others or {})}
    if len(priced) > 1:

        def on(pool: str) -> Solved:
            return solve(cluster, job, priced[pool], trace, inputs, replace(options, pool=pool), progress)

        return _on_the_best_pool(sorted(priced), on)
    places = places_of_judge(cluster, job, profile, options)

    def at(judge: RewardJudge | None) -> Solved:
        return _solve_at(judge, cluster, job, profile, trace, inputs, options, progress)

    return at(places[0]) if len(places) == 1 else _with_the_best_judge(places, at)


def _on_the_best_pool(pools: Sequence[str], solve_on: Callable[[str], Solved]) -> Solved:
    """The plan on the pool where the objective is least, the first by name of those where it is the same. Its `why`
    says what the others would give. Raises Infeasible, by the first pool, if none has a schedule."""
    solved: dict[str, Solved] = {}
    failed: dict[str, Infeasible] = {}
    for pool in pools:
        try:
            solved[pool] = solve_on(pool)
        except Infeasible as error:
            failed[pool] = error
    if not solved:
        raise failed[pools[0]]
    best = min(solved, key=lambda pool: solved[pool].solution.objective)
    least = solved[best].solution.objective
    others = [
        f"{pool} {_percent_more(each.solution.objective / least - 1)}" for pool, each in solved.items() if pool != best
    ]
    others += [f"{pool}: {error}" for pool, error in failed.items()]
    return _of_several(solved[best], "rounds.short.rollout.pool", f"engines on pool {best}; {'; '.join(others)}")


def _of_several(solved: Solved, key: str, text: str) -> Solved:
    """The plan with a text in its `why`, as the best of several programs."""
    planned = solved.plan.job.model_copy(update={"why": {**solved.plan.job.why, key: text}})
    solver = solved.plan.solver.model_copy(update={"method": "enumeration"})
    digest = job_decisions(planned)
    update = {"job": planned, "solver": solver, "decisions_sha256": digest}
    return replace(solved, plan=solved.plan.model_copy(update=update))


def _with_the_best_judge(
    places: Sequence[RewardJudge | None], solve_at: Callable[[RewardJudge | None], Solved]
) -> Solved:
    """The plan with the judge where the objective is least; of places that are as good, the simplest.

    More copies are tried only where a plan with fewer still waits for verdicts. The plan's `why` says what the other
    places would give. Raises Infeasible, by the first place, if none has a schedule.
    """
    solved: list[Solved] = []
    failed: list[tuple[RewardJudge | None, Infeasible]] = []
    chosen: Solved | None = None
    for _, alike in itertools.groupby(places, key=lambda judge: judge.instances if judge else 0):
        for judge in alike:
            with warnings.catch_warnings():
                if solved or failed:  # the first solve has warned of all that is the same at every place
                    warnings.simplefilter("ignore")
                try:
                    solved.append(solve_at(judge))
                except Infeasible as error:
                    failed.append((judge, error))
        best = min((each.solution.objective for each in solved), default=0.0)
        chosen = next((each for each in solved if each.solution.objective <= best * (1 + JUDGE_TIE)), None)
        if chosen is not None and _waits_share(chosen.plan.predicted) <= JUDGE_WAIT:
            break
    if chosen is None:
        raise failed[0][1]
    judged = chosen.plan.job.reward.judge
    assert judged is not None, "one of several places of a judge"
    others = [
        f"{judge_text(other)} {_percent_more(each.solution.objective / chosen.solution.objective - 1)}"
        for each in solved
        if each is not chosen and (other := each.plan.job.reward.judge) is not None
    ]
    others += [f"{judge_text(judge)}: no room, or no schedule" for judge, _ in failed if judge is not None]
    text = f"{judge_text(judged)}; {'; '.join(others)}"
    return _of_several(chosen, "reward.judge", text)


def _waits_share(predicted: Predicted) -> float:
    """Share of a step in which only rewards are waited for."""
    return predicted.phases_s.reward_exposed / predicted.step_s.mean


def _percent_more(more: float) -> str:
    """By how much a place of the judge is slower (or dearer) than the chosen one."""
    return f"costs {100 * abs(more):.1f}% {'more' if more >= 0 else 'less, which is a tie'} a sample"


def _solve_at(
    judge: RewardJudge | None,
    cluster: Cluster,
    job: Job,
    profile: Profile,
    trace: LengthTrace,
    inputs: Inputs,
    options: SolveOptions,
    progress: Progress,
) -> Solved:
    """The plan with the job's judge at this place (None: the job has none)."""
    began = time.perf_counter()
    _, reward_table = with_reward_times(profile, job.reward.kind)
    search: Search | None = None
    try:
        search = prepare(cluster, job, profile, trace, options, judge=judge)  # length model, cost model, candidates
        search.run_passes(progress)
        decided = decide(search, options.max_nodes, progress)  # round program, ties, rounds not chosen on
    except Infeasible as error:
        if not options.for_any and _others_could(cluster, job, profile, trace, options, search):
            raise Infeasible(f"{error}; other frameworks could run a plan: rlplan solve --for any") from None
        raise
    if job.search.balance:
        progress("simulating rounds that are balanced by history", 0.987)
        decided = balanced(search, decided)
    warn_of_few_prompts(search, decided.cycle, options.prompts)
    progress("writing the plan", 0.99)
    predicted, assumed = predict(search, decided, job, trace, reward_table, options.seed, options.evaluated)
    why = explain(search, decided, job, predicted, assumed_why(assumed, trace, reward_table))
    planned = planned_job(search, decided.cycle, job, predicted, why)
    plan = write_plan(planned, predicted, solver_facts(search, decided, options), inputs, reward_table, began)
    progress("done", 1.0)
    return Solved(plan, search, decided.solution, decided.cycle, decided.baseline)


def without_levers(job: Job) -> Job:
    """The job with no lever for `solve` to consider: its rounds decode one token a step, are spread by count, and are
    trained when they have ended."""
    levers = {"drafts": SearchDrafts(tokens=()), "hand_over": (), "tail": (), "balance": False}
    changes: dict[str, object] = {"search": job.search.model_copy(update=levers)}
    if job.placement is not None:
        changes["placement"] = job.placement.model_copy(update={"streams": False})
    return job.model_copy(update=changes)


def _must_train_family(job: Job, options: SolveOptions) -> None:
    """Raise Unplannable if the executor does not train models of the family of the job's."""
    model = options.model or shape_of_public(job.model.path)
    fault = None if model is None else family_fault(model)
    if fault is not None:
        remedy = "plan it for other frameworks: rlplan solve --for any"
        raise Unplannable("job", ("model", "path"), f"{fault}; {remedy}")


def _others_could(
    cluster: Cluster, job: Job, profile: Profile, trace: LengthTrace, options: SolveOptions, tried: Search | None
) -> bool:
    """Whether a schedule that only other frameworks can run keeps the limits, where none for the executor does.

    `tried`: the search for the executor, None if it has no candidates. Warns of nothing: the solve before has.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            search = prepare(cluster, job, profile, trace, replace(options, for_any=True))
            if tried is not None and _choices(search) == _choices(tried):
                return False
            search.run_passes(lambda text, share: None)
            decide(search, options.max_nodes, lambda text, share: None)
        except Infeasible:
            return False
    return True


def _choices(search: Search) -> tuple[object, ...]:
    """What the program chooses from."""
    return search.space.train, search.space.short, search.space.long, search.limits.one_sharding
