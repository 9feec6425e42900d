"""The error of the refitted model: what a gain has to exceed to be believed (tune.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...plans.phrases.update_text import update_text
from ...plans.schema.plan import Plan
from ...plans.schema.planned_rounds import LongRound, ShortRound
from ...profiles.profile_schema import Profile
from ..lengths.draws import Draws
from ..lengths.length_model import LengthModel
from .executed_run import ExecutedRun, Replayed
from .plan_gain import SEEDS, simulated_seconds
from .refit import Refit, refit, replay_run, transfer_error, update_transfer_error
from .run_lengths import epoch_prompts

_BLOCKS = 4
_FEWEST_STEPS = 4  # of a block


def cost_error(run: ExecutedRun, replays: Sequence[Replayed], profile: Profile, cap: int, dynamic: bool) -> float:
    """Mean relative error of the seconds of a block of steps when costs are refitted on the other blocks.

    Steps in which something had to start are left out. For a run too short for two blocks it is the error of the
    profile before the refit, which has not seen the run.
    """
    warm = [r for r in replays if r.step.warm] or list(replays)
    measured = [r.step.total_s for r in warm]
    count = min(_BLOCKS, len(warm) // _FEWEST_STEPS)
    if count < 2:
        return abs(math.fsum(r.total_s for r in warm) / math.fsum(measured) - 1.0)
    errors = []
    for block in range(count):
        low, high = block * len(warm) // count, (block + 1) * len(warm) // count
        fitted = refit(profile, run, [*warm[:low], *warm[high:]])
        left_out = {r.step.number for r in warm[low:high]}
        steps = tuple(step for step in run.steps if step.number in left_out)
        part = replace(run, plan_path=None, steps=steps, restarts=0)
        again = replay_run(part, cap, dynamic, fitted.profile)
        errors.append(abs(math.fsum(r.total_s for r in again) / math.fsum(measured[low:high]) - 1.0))
    return math.fsum(errors) / count


def run_error(run: ExecutedRun, profile: Profile, model: LengthModel, dynamic: bool, seed: int) -> float:
    """Relative error of the refitted model in the run's seconds per trained sample, the run's random draws included."""
    planned, count, prompts = run.plan.job, len(run.steps), epoch_prompts(run, 4096)
    early = sum(step.first_epoch for step in run.steps) / count  # drafts give less there

    def seconds(k: int, first_epoch: bool) -> float:
        draws = Draws(model, seed + k, planned.rounds.short.issue.samples)
        return simulated_seconds(
            planned, profile, draws, dynamic, count, prompts, allowed=run.allowed, first_epoch=first_epoch
        )

    simulated = [
        (seconds(k, True) * early if early else 0.0) + (seconds(k, False) * (1.0 - early) if early < 1.0 else 0.0)
        for k in range(SEEDS)
    ]
    measured = run.seconds_per_sample - _cold_seconds(run)
    return abs(math.fsum(simulated) / SEEDS / measured - 1.0)


def _cold_seconds(run: ExecutedRun) -> float:
    """Seconds per trained sample by which steps after a start took longer than warm steps of their kind of round."""
    extra = 0.0
    for kind in ("short", "long"):
        warm = [s.total_s for s in run.steps if s.kind == kind and s.warm]
        cold = [s.total_s for s in run.steps if s.kind == kind and not s.warm]
        if warm and cold:
            extra += max(0.0, math.fsum(cold) - len(cold) * math.fsum(warm) / len(warm))
    return extra / max(1, sum(s.samples for s in run.steps))


def _rounds(*plans: Plan) -> list[ShortRound | LongRound]:
    return [r for p in plans for r in (p.job.rounds.short, p.job.rounds.long) if r is not None]


def not_run(refitted: Refit, *plans: Plan) -> tuple[str, ...]:
    """Text on each layout and update of the plans that the run did not use."""
    rounds, updated = _rounds(*plans), {train.layout for train in refitted.updates}
    layouts = [r.rollout.layout for r in rounds if r.rollout.layout not in refitted.rollout]
    updates = [r.train for r in rounds if r.train not in updated]
    names = [str(layout) for layout in layouts]
    names += [update_text(t) for t in updates]
    return tuple(dict.fromkeys(names))


def transferred_error(refitted: Refit, plan: Plan, force: Plan) -> float:
    """Relative error of a step of `plan` or `force` because of layouts and updates that the run did not use, weighed by
    the phases of the new plan."""
    phases_s, step_s = plan.predicted.phases_s, plan.predicted.step_s.mean
    rounds = _rounds(plan, force)
    rollout = phases_s.rollout * transfer_error(refitted, [r.rollout for r in rounds])
    return (rollout + phases_s.train * update_transfer_error(refitted, [r.train for r in rounds])) / step_s
