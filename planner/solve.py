"""Solve one job: length trace and profile in, a plan out. `solve` is the whole method, a line for each part of it."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace

from ..plans.facts.executable import family_fault
from ..plans.facts.model_shape import shape_of_public
from ..plans.schema.cluster import Cluster
from ..plans.schema.job import Job
from ..plans.schema.plan import Plan
from ..plans.schema.sections.origin import Inputs
from ..plans.yaml.errors import Infeasible
from ..profiles.length_trace import LengthTrace
from ..profiles.profile_schema import Profile
from ..profiles.reward_tables import with_reward_times
from .choose.candidate_search import Progress, Search
from .choose.candidates.job_limits import Unplannable
from .choose.cycle_cost import Cycle
from .choose.round_program import Solution
from .choose.schedule_choice import decide
from .explain.assumed_effects import assumed_why
from .explain.predictions import predict
from .explain.why import explain
from .search_inputs import prepare, warn_of_few_prompts
from .solve_options import DEFAULTS, SolveOptions
from .write_plan import planned_job, solver_facts, write_plan


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
) -> Solved:
    """The plan with the fewest seconds (or USD) per trained sample, and the plain synchronous baseline beside it.

    It is one that `rlplan execute` can run, unless `options.for_any`: layouts and levers that the executor does not
    have are then no candidates, so that what is proven is proven of what it can run.

    Args:
        inputs: the files that the arguments were read from; goes into the plan as it is.
        progress: called with a text and the share that is done.

    The same arguments give the same plan but for `volatile`. Raises Infeasible when no schedule keeps the limits (it
    says so if one that only other frameworks can run would), and InputError when the trace does not fit the job, or the
    executor does not train its model's family.
    """
    began = time.perf_counter()
    if not options.for_any:
        _must_train_family(job, options)
    profile, reward_table = with_reward_times(profile, job.reward.kind)
    search: Search | None = None
    try:
        search = prepare(cluster, job, profile, trace, options)  # length model, cost model, candidates
        search.run_passes(progress)
        decided = decide(search, profile, options.max_nodes, progress)  # round program, ties, rounds not chosen on
    except Infeasible as error:
        if not options.for_any and _others_could(cluster, job, profile, trace, options, search):
            raise Infeasible(f"{error}; other frameworks could run a plan: rlplan solve --for any") from None
        raise
    warn_of_few_prompts(search, decided.cycle, options.prompts)
    progress("writing the plan", 0.99)
    predicted, assumed = predict(search, decided, job, profile, trace, reward_table, options.seed)
    why = explain(search, decided, job, profile, predicted, assumed_why(assumed, trace, reward_table))
    planned = planned_job(search, decided.cycle, job, predicted, why)
    plan = write_plan(planned, predicted, solver_facts(search, decided, options), inputs, reward_table, began)
    progress("done", 1.0)
    return Solved(plan, search, decided.solution, decided.cycle, decided.baseline)


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
            decide(search, profile, options.max_nodes, lambda text, share: None)
        except Infeasible:
            return False
    return True


def _choices(search: Search) -> tuple[object, ...]:
    """What the program chooses from."""
    return search.space.train, search.space.short, search.space.long, search.limits.one_sharding
