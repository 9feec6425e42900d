"""The gain of a new plan over the plan in force: both simulated on the same prompts and draws, at refitted costs."""

from __future__ import annotations

import math

from ...plans.schema.sections.levers import SearchDrafts
from ...plans.schema.sections.planned_job import PlannedJob
from ...profiles.profile_schema import Profile
from ..costs.memory_bars import WEIGHT_BYTES
from ..costs.round_costs import nodes_of, round_costs, scoring
from ..lengths.draws import Draws
from ..lengths.length_model import LengthModel
from ..simulate.whole_run import round_spec, simulate_run
from ..what_if import Documents

SEEDS = 4
"""Sets of draws that plans are simulated on."""
_GAIN_SAMPLES = 24_000  # samples that each plan trains when two are compared


def plan_gain(
    new: PlannedJob, old: PlannedJob, force: Documents, profile: Profile, model: LengthModel, seed: int
) -> tuple[float, float]:
    """(gain of `new` over `old`, its standard error): both train the same prompts on the same draws, but for the last
    step's.

    Where a plan learns from the first epoch, the second is compared. In USD where the plan in force minimises these:
    seconds, times the nodes that a plan takes.
    """
    job, pool = force.job, force.cluster.pools[old.rounds.short.rollout.pool]
    price = 1.0
    if force.plan.solver.objective == "usd_per_sample":
        weight_bytes = WEIGHT_BYTES[job.model.dtype]
        price = nodes_of(new, profile, pool, weight_bytes) / nodes_of(old, profile, pool, weight_bytes)
    epoch = int("predict" in (new.bias.mode, old.bias.mode))
    target, size = old.issue.prompts_per_step, old.issue.samples_per_prompt
    width = max(new.rounds.short.issue.samples, old.rounds.short.issue.samples)
    prompts = max(8 * target, _GAIN_SAMPLES // size // SEEDS)
    gains = []
    for k in range(SEEDS):
        draws = Draws(model, seed + k, width)
        ours, theirs = (
            simulated_seconds(
                planned, profile, draws, job.algorithm.dynamic_sampling, 0, prompts, epoch, job.search.drafts
            )
            for planned in (new, old)
        )
        gains.append(1.0 - price * ours / theirs)
    middle = math.fsum(gains) / SEEDS
    return middle, math.sqrt(math.fsum((g - middle) ** 2 for g in gains) / (SEEDS - 1) / SEEDS)


def simulated_seconds(
    planned: PlannedJob,
    profile: Profile,
    draws: Draws,
    dynamic: bool,
    steps: int,
    prompts: int,
    epoch: int = 0,
    allowed: SearchDrafts | None = None,
) -> float:
    """Seconds per trained sample from `epoch` on; `steps` 0: until all `prompts` of that epoch were issued.

    `allowed`: the drafts that the job considers.
    """
    short, long = round_costs(planned, profile, allowed)
    reward = scoring(planned, profile)
    spec = round_spec(planned, draws.model.cap_tokens, dynamic)
    run = simulate_run(spec, short, long, reward, draws, steps, prompts, epochs=epoch + 1)
    return run.seconds_per_sample(epoch)
