"""Plans of `rlplan solve` for the published job on the published GPUs, beside the published systems.

Weight sync and reward latency are the published ones. Engines may have any TP; updates are planned by the shipped
profile's law (packed micro-batches), which is much of the gain, so the result also has each plan with the published
seconds of updates.
"""

from __future__ import annotations

from typing import Any

from rlplan.planner.search_inputs import SolveOptions
from rlplan.planner.solve import solve
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.plan import Plan
from rlplan.profiles.length_trace import LengthTrace
from rlplan.profiles.profile_schema import Profile

from .case import RoundPhases
from .solve_inputs import no_inputs


def plan_of(cluster: Cluster, job: Job, profile: Profile, trace: LengthTrace, bias_budget: float | None) -> Plan:
    """The plan of `rlplan solve`; without a bias budget it chooses among unbiased modes only."""
    return solve(cluster, job, profile, trace, no_inputs(), SolveOptions(bias_budget=bias_budget)).plan


def summary(plan: Plan, verl_s: float, rollpacker_s: float, short: RoundPhases, long: RoundPhases) -> dict[str, Any]:
    """A plan beside the two published systems, all as simulated. Seconds are of a step of P x n trained samples."""
    samples = plan.job.issue.prompts_per_step * plan.job.issue.samples_per_prompt
    step_s = plan.predicted.seconds_per_sample * samples
    phases = plan.predicted.phases_s
    share = plan.predicted.rounds.long.share if plan.predicted.rounds.long else 0.0
    their_train_s = (1 - share) * short.train_s + share * long.train_s
    with_theirs_s = step_s - phases.train + their_train_s
    rounds = plan.job.rounds
    return {
        "mode": plan.job.bias.mode,
        "step_s": step_s,
        "speedup_over_verl": verl_s / step_s,
        "speedup_over_rollpacker": rollpacker_s / step_s,
        "length_ratio": plan.predicted.length_ratio,
        "phases_s": phases.model_dump(),
        "best_sync_step_s": plan.predicted.baseline.seconds_per_sample * samples,
        "published_train": {
            "step_s": with_theirs_s,
            "speedup_over_verl": verl_s / with_theirs_s,
            "speedup_over_rollpacker": rollpacker_s / with_theirs_s,
        },
        "short": {
            "prompts": rounds.short.issue.prompts,
            "samples": rounds.short.issue.samples,
            "cutoff_tokens": rounds.short.cutoff_tokens,
            "tp": rounds.short.rollout.tp,
            "train": rounds.short.train.model_dump(),
        },
        "long": rounds.long
        and {
            "share": share,
            "issue": rounds.long.issue.model_dump() | {"queue": rounds.long.queue is not None},
            "tp": rounds.long.rollout.tp,
            "train": rounds.long.train.model_dump(),
        },
        "gap": plan.solver.gap,
        "candidates": plan.solver.candidates,
    }
