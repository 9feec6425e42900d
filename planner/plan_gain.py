"""The gain of a new plan over the plan in force: both simulated on the same prompts and draws, at refitted costs."""

from __future__ import annotations

import math

from ..plans.schema.cluster import Cluster
from ..plans.schema.levers import SearchDrafts
from ..plans.schema.planned_job import PlannedJob
from ..profiles.profile_schema import Profile
from .costs.job_pools import pools_of_plan
from .costs.memory_table import JobMemory
from .costs.round_costs import nodes_of, round_costs, scoring
from .lengths.draws import Draws
from .lengths.length_model import LengthModel
from .simulate.whole_run import simulate_run
from .what_if import Documents

SEEDS = 4
"""Sets of draws that plans are simulated on."""
_GAIN_SAMPLES = 24_000  # samples that each plan trains at least when two are compared
_GAIN_STEPS = 32  # steps of each set of draws at least: a queue of long prompts takes several to fill


def plan_gain(
    new: PlannedJob, old: PlannedJob, force: Documents, profile: Profile, model: LengthModel, seed: int
) -> tuple[float, float]:
    """(gain of `new` over `old`, its standard error): both train the same prompts on the same draws, but for the last
    step's.

    In USD where the plan in force minimises these: seconds, times the nodes that a plan takes.
    """
    ratio, error = seconds_ratio(new, old, force, profile, model, seed)
    in_usd = force.plan.solver.objective == "usd_per_sample"
    price = price_ratio(new, old, force, profile) if in_usd else 1.0
    return 1.0 - price * ratio, price * error


def price_ratio(new: PlannedJob, old: PlannedJob, force: Documents, profile: Profile) -> float:
    """Price of the nodes that `new` takes over that of those that `old` takes; 1 where nodes cost nothing."""
    of_old = _usd_per_hour(old, force, profile)
    return _usd_per_hour(new, force, profile) / of_old if of_old else 1.0


def seconds_ratio(
    new: PlannedJob, old: PlannedJob, force: Documents, profile: Profile, model: LengthModel, seed: int
) -> tuple[float, float]:
    """(seconds per trained sample of `new` over those of `old`, its standard error), as `plan_gain` compares them.

    Where a plan learns from the first epoch, the second is compared.
    """
    job = force.job
    epoch = int("predict" in (new.bias.mode, old.bias.mode))
    target, size = old.issue.prompts_per_step, old.issue.samples_per_prompt
    width = max(new.rounds.short.issue.samples, old.rounds.short.issue.samples)
    prompts = max(_GAIN_STEPS * target, _GAIN_SAMPLES // size // SEEDS)
    ratios = []
    for k in range(SEEDS):
        draws = Draws(model, seed + k, width)
        ours, theirs = (
            simulated_seconds(
                planned,
                profile,
                draws,
                job.algorithm.dynamic_sampling,
                0,
                prompts,
                epoch,
                job.search.drafts,
                force.cluster,
            )
            for planned in (new, old)
        )
        ratios.append(ours / theirs)
    middle = math.fsum(ratios) / SEEDS
    return middle, math.sqrt(math.fsum((ratio - middle) ** 2 for ratio in ratios) / (SEEDS - 1) / SEEDS)


def _usd_per_hour(planned: PlannedJob, force: Documents, profile: Profile) -> float:
    """Price of the nodes that a plan of the job takes."""
    pools = pools_of_plan(planned, force.cluster)
    assert pools is not None, "both plans are of the cluster"
    return pools.usd_per_hour(nodes_of(planned, JobMemory(profile, pools, force.job.model.dtype)))


def simulated_seconds(
    planned: PlannedJob,
    profile: Profile,
    draws: Draws,
    dynamic: bool,
    steps: int,
    prompts: int,
    epoch: int = 0,
    allowed: SearchDrafts | None = None,
    cluster: Cluster | None = None,
    first_epoch: bool = False,
) -> float:
    """Seconds per trained sample from `epoch` on; `steps` 0: until all `prompts` of that epoch were issued.

    `allowed`: the drafts that the job considers; `cluster`: names the networks that weights cross; `first_epoch`:
    drafts have no earlier responses to come from.
    """
    short, long = round_costs(planned, profile, allowed, cluster)
    if first_epoch:
        short, long = short.in_first_epoch(), long.in_first_epoch()
    reward = scoring(planned, profile)
    spec = planned.round_spec(draws.model.cap_tokens, dynamic)
    run = simulate_run(spec, short, long, reward, draws, steps, prompts, epochs=epoch + 1)
    return run.seconds_per_sample(epoch)
