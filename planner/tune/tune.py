"""From a run back to the plan: refit what it measured, solve again, and change the plan only where that is worth it.

A new plan is proposed if its gain (relative seconds per trained sample, or USD where the plan in force minimises these;
both plans simulated at the refitted costs and lengths, on the same draws) exceeds the error, the largest of
- the error of the refitted costs on blocks of the run that they were not fitted on;
- the error of the refitted model on the run as a whole, in seconds per trained sample;
- two standard errors of the simulated gain;
- the error of the correction in layouts and updates of either plan that the run did not use (refit.py);
- `LEAST_GAIN`: less is not worth a review.
So a plan does not flap (thresholds without hysteresis drift): the plan in force is kept unless the model beats it by
more than the model has just been seen to err, and solving again from what made the plan in force
finds that plan or one as good. A mode that was forced on the plan in force is forced on the new one, with the bias
budget that was given with it, if any was.

Where the machine's speed changed on the way, only the steps since then count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...plans.facts.executable import is_for_any
from ...plans.facts.plan_text import update_text
from ...plans.schema.plan import Plan
from ...plans.schema.planned_job import PlannedJob
from ...plans.schema.planned_rounds import LongRound, ShortRound
from ...plans.yaml.errors import Infeasible, InputError
from ...plans.yaml.yaml_io import WRITTEN_DIGITS, dump, loads
from ...profiles.length_trace import LengthTrace
from ...profiles.profile_schema import Profile
from ..choose.candidate_search import Progress
from ..choose.candidates.solve_options import PASSES, Pass, SolveOptions
from ..lengths.draws import Draws
from ..lengths.length_model import LengthModel, fit_lengths
from ..plan_gain import SEEDS, plan_gain, simulated_seconds
from ..refresh import refresh
from ..solve import solve
from ..what_if import Documents
from .executed_run import ExecutedRun, Replayed
from .phase_attribution import PhaseCauses, phases
from .refit import Refit, price, refit, replay_run, transfer_error, update_transfer_error
from .run_lengths import epoch_prompts, refit_lengths
from .run_rates import with_drafts_of

LEAST_GAIN = 0.02

LEAST_SPEED_CHANGE = 0.1
"""Least relative change of a step's seconds over those of its replay that counts as another speed of the machine."""
CHANGE_COSTS = 8.0
"""Deviations of a step by which one more change must explain the steps better: chance alone gains a few."""
FEWEST_SINCE = 3
"""Steps that tell a speed."""

_BLOCKS = 4
_FEWEST_STEPS = 4  # of a block
_LEAST_NOISE = 0.02  # of a step's seconds: few steps may agree by chance
_LOOK_BACK = 64  # steps


@dataclass(frozen=True)
class Tuned:
    """The result of tuning: a new plan, its gain over the plan in force, and the error.

    Attributes:
        plan: the best plan at refitted costs and lengths; proposed only if `change`.
        gain: 1 - what it costs per trained sample over what the plan in force does, in its objective.
        error: what the gain has to exceed; `errors` names its candidates.
        phases: predicted beside measured, with the reason.
        profile, trace: refitted.
        step_s, seconds_per_sample: of the run over its cycle, as `rlplan report` has them.
        length_factor: mean length over the old trace's.
        not_run: text on each layout and update of either plan that the run did not use.
        since_step: the first step that counts, where earlier ones were left out; None: all do.
        kept: the plan in force as it is predicted at refitted costs and lengths; None where it cannot be, or `change`.
    """

    plan: Plan
    change: bool
    gain: float
    error: float
    errors: dict[str, float]
    phases: dict[str, PhaseCauses]
    step_s: float
    seconds_per_sample: float
    profile: Profile
    trace: LengthTrace
    length_factor: float
    costs: Refit
    not_run: tuple[str, ...]
    since_step: int | None = None
    kept: Plan | None = None


def tune(
    run: ExecutedRun,
    executed: Documents,
    force: Documents,
    *,
    seed: int = 0,
    progress: Progress = lambda text, share: None,
    passes: Sequence[Pass] = PASSES,
    prompts: int | None = None,
    last: int | None = None,
    predict_kept: bool = False,
) -> Tuned:
    """Refit, solve and decide.

    Args:
        executed: the documents that the run's plan was solved from; its `plan` is not read.
        force: the plan in force, which may be later than the run's, and the documents that it was solved from.
        passes: how much the solve simulates.
        prompts: how many the job's data holds (solve.solve).
        last: only the run's last so many steps count; None: all since the machine's speed changed for the last time.
        predict_kept: where the plan in force stays, predict it anew.

    Raises InputError if the run and the documents do not belong together, Infeasible if nothing keeps the limits at the
    refitted costs.
    """
    _check(run, executed, force)
    run = replace(run, allowed=force.job.search.drafts)
    rollout, dynamic = force.job.rollout, force.job.algorithm.dynamic_sampling
    cap = rollout.max_response_tokens
    progress("replaying the run", 0.0)
    if last is not None:
        run = replace(run, steps=run.steps[-last:], speed_changed=True)
    replays = replay_run(run, cap, dynamic, executed.profile)
    if not replays:
        raise InputError("its trace holds no samples; there is nothing to learn from", str(run.home))
    since = None if last is not None else speed_change(replays)
    if since is not None:
        run = replace(run, steps=tuple(step for step in run.steps if step.step >= since), speed_changed=True)
        replays = [replayed for replayed in replays if replayed.step.step >= since]
    explained = phases(run, replays, price(run, executed.profile), refit(executed.profile, run, replays))
    # What drafts gave is counted in the trace; only what it does not explain is speed.
    base = with_drafts_of(run, force.profile)
    if base != executed.profile:
        replays = replay_run(run, cap, dynamic, base)
    refitted = refit(base, run, replays)
    # As the file will have it: what is solved now is what solving from the files gives.
    profile = loads(dump(refitted.profile, digits=WRITTEN_DIGITS), Profile)
    progress("refitting lengths", 0.1)
    trace, factor = refit_lengths(run, force.trace, price(run, profile), cap, dynamic, seed)
    model = _fitted(trace, cap, seed)
    errors = {
        "costs": cost_error(run, replays, base, cap, dynamic),
        "run": run_error(run, profile, model, dynamic, seed),
    }
    documents = replace(force, profile=profile, trace=trace)
    plan = _solved_again(documents, seed, prompts, passes, lambda text, share: progress(text, 0.2 + 0.7 * share))
    progress("comparing plans", 0.9)
    gain, noise = 0.0, 0.0
    if decisions(plan.job) != decisions(force.plan.job):
        gain, noise = plan_gain(plan.job, force.plan.job, force, profile, model, seed)
    errors |= {"simulation": 2 * noise, "transfer": transferred_error(refitted, plan, force.plan), "least": LEAST_GAIN}
    error = max(errors.values())
    kept = _predicted_again(documents, seed, prompts, passes) if predict_kept and gain <= error else None
    progress("done", 1.0)
    return Tuned(
        plan=plan,
        change=gain > error,
        gain=gain,
        error=error,
        errors=errors,
        phases=explained,
        step_s=run.over_cycle.seconds("total_s"),
        seconds_per_sample=run.over_cycle.seconds_per_sample,
        profile=profile,
        trace=trace,
        length_factor=factor,
        costs=refitted,
        not_run=not_run(refitted, plan, force.plan),
        since_step=run.steps[0].step if since is not None or last is not None else None,
        kept=kept,
    )


def speed_change(replays: Sequence[Replayed]) -> int | None:
    """The step with which the machine's speed changed for the last time; None if it did not.

    Looked at are the logarithms of measured over replayed seconds of the last `_LOOK_BACK` warm steps, by kind of round
    (the profile may be wrong about one). They are cut into stretches of `FEWEST_SINCE` steps or more such that the sum
    of distances from each stretch's median, in deviations of one step, plus `CHANGE_COSTS` for each cut is least; the
    medians do not heed single slow steps.
    """
    warm = [each for each in replays if each.step.warm and each.step.total_s > 0 and each.total_s > 0][-_LOOK_BACK:]
    if len(warm) < 2 * FEWEST_SINCE:
        return None
    logs = np.array([math.log(each.step.total_s / each.total_s) for each in warm])
    kinds = np.array([each.step.kind for each in warm])
    for kind in set(kinds):
        logs[kinds == kind] -= np.median(logs[kinds == kind])
    noise = max(_LEAST_NOISE, float(np.median(np.abs(np.diff(logs)))) * 1.4826 / math.sqrt(2))
    begins = _stretches(logs / noise)
    levels = [float(np.median(logs[a:b])) for a, b in zip(begins, [*begins[1:], len(logs)], strict=True)]
    for number in range(len(begins) - 1, 0, -1):
        if abs(levels[number] - levels[number - 1]) > math.log1p(LEAST_SPEED_CHANGE):
            return warm[begins[number]].step.step
    return None


def _stretches(values: NDArray[np.float64]) -> list[int]:
    """Where the stretches of `values` begin, which are cut as `speed_change` says."""
    count = len(values)
    least, begin_of = [0.0] + [math.inf] * count, [0] * (count + 1)
    for end in range(FEWEST_SINCE, count + 1):
        for begin in range(end - FEWEST_SINCE + 1):
            if not math.isfinite(least[begin]):
                continue
            stretch = values[begin:end]
            cost = least[begin] + float(np.abs(stretch - np.median(stretch)).sum()) + (CHANGE_COSTS if begin else 0.0)
            if cost < least[end]:
                least[end], begin_of[end] = cost, begin
    begins, end = list[int](), count
    while end:
        end = begin_of[end]
        begins.append(end)
    return begins[::-1]


def _predicted_again(documents: Documents, seed: int, prompts: int | None, passes: Sequence[Pass]) -> Plan | None:
    """The plan in force as it is predicted at refitted costs and lengths; None where it breaks a limit there."""
    plan, job = documents.plan, documents.job
    arguments = (plan, documents.cluster, job, documents.profile, documents.trace, plan.inputs, documents.model)
    try:
        return refresh(*arguments, seed=seed, passes=passes, prompts=prompts)
    except (Infeasible, InputError):
        return None


def _solved_again(force: Documents, seed: int, prompts: int | None, passes: Sequence[Pass], progress: Progress) -> Plan:
    """The best plan for these documents, by what the plan in force was asked for."""
    solver = force.plan.solver
    options = SolveOptions(
        mode=solver.forced_mode,
        bias_budget=_wanted_budget(force.plan),
        objective="usd" if solver.objective == "usd_per_sample" else "seconds",
        within_s=solver.within_s,
        seed=seed,
        prompts=prompts,
        for_any=is_for_any(force.plan, force.model),
        model=force.model,
        passes=passes,
    )
    return solve(force.cluster, force.job, force.profile, force.trace, force.plan.inputs, options, progress).plan


def decisions(planned: PlannedJob) -> dict[str, object]:
    """The decisions of a plan, without their reasons."""
    return planned.model_dump(exclude={"why"})


def _wanted_budget(plan: Plan) -> float | None:
    """The bias budget to solve with again. A forced mode without a budget has none: the plan's own is its predicted
    bias, and as a bound it would refuse that very plan."""
    return plan.job.bias.budget if plan.solver.forced_mode is None else plan.solver.forced_budget


def _check(run: ExecutedRun, executed: Documents, force: Documents) -> None:
    for documents in (executed, force):
        if documents.job.name != run.plan.job.name:
            raise InputError(
                f"is a run of job '{run.plan.job.name}', the plan is of '{documents.job.name}'; give its own plan",
                str(run.home),
            )
    size = (run.plan.job.issue.prompts_per_step, run.plan.job.issue.samples_per_prompt)
    rollout = force.job.rollout
    if size != (rollout.prompts_per_step, rollout.samples_per_prompt):
        raise InputError(
            f"trained {size[0]} prompts x {size[1]} samples a step, the job now has {rollout.prompts_per_step} x "
            f"{rollout.samples_per_prompt}; tune from a run of the job as it is",
            str(run.home),
        )


def _fitted(trace: LengthTrace, cap: int, seed: int) -> LengthModel:
    try:
        return fit_lengths(trace, cap, seed)
    except ValueError as error:
        raise InputError(str(error)) from None


def cost_error(run: ExecutedRun, replays: Sequence[Replayed], profile: Profile, cap: int, dynamic: bool) -> float:
    """Mean relative error of the seconds of a block of steps when costs are refitted on the other blocks.

    Steps in which something had to start are left out. Of a run too short for two blocks each step is a block; for one
    of fewer than `FEWEST_SINCE` it is the error of the profile before the refit, which has not seen the run.
    """
    warm = [r for r in replays if r.step.warm] or list(replays)
    measured = [r.step.total_s for r in warm]
    count = min(_BLOCKS, len(warm) // _FEWEST_STEPS)
    if count < 2 and len(warm) >= FEWEST_SINCE:
        count = len(warm)
    if count < 2:
        return abs(math.fsum(r.total_s for r in warm) / math.fsum(measured) - 1.0)
    errors = []
    for block in range(count):
        low, high = block * len(warm) // count, (block + 1) * len(warm) // count
        fitted = refit(profile, run, [*warm[:low], *warm[high:]])
        left_out = {r.step.step for r in warm[low:high]}
        steps = tuple(step for step in run.steps if step.step in left_out)
        part = replace(run, plan_path=None, steps=steps)
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
    measured = run.over_cycle.seconds_per_sample - _cold_seconds(run)
    return abs(math.fsum(simulated) / SEEDS / measured - 1.0)


def _cold_seconds(run: ExecutedRun) -> float:
    """Seconds per trained sample by which steps after a start took longer than warm steps of their kind of round."""
    extra = 0.0
    for kind in ("short", "long"):
        warm = [s.total_s for s in run.steps if s.kind == kind and s.warm]
        cold = [s.total_s for s in run.steps if s.kind == kind and not s.warm]
        if warm and cold:
            extra += max(0.0, math.fsum(cold) - len(cold) * math.fsum(warm) / len(warm))
    return extra / max(1, sum(s.trained_samples for s in run.steps))


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
