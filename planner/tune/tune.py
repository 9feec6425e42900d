"""From a run back to the plan: refit what it measured, solve again, and change the plan only where that is worth it.

A new plan is proposed if its gain (relative seconds per trained sample, or USD where the plan in force minimises these;
both plans simulated at the refitted costs and lengths, on the same luck) exceeds the error, the largest of
- what the refitted costs are wrong by on blocks of the run that they were not fitted on;
- what the refitted model is wrong by on the run as a whole, in seconds per trained sample;
- two standard errors of the simulated gain;
- what of the correction may not hold in layouts and updates of either plan that the run did not use
  (profile_correction.py);
- `LEAST_GAIN`: less is not worth a review.
So a plan does not flap (refs/rollpacker.md 2: thresholds without hysteresis drift): the plan in force is kept unless
the model beats it by more than the model has just been seen to err, and solving again from what made the plan in force
finds that plan or one as good. A mode that was forced on the plan in force is forced on the new one, with the bias
budget that was given with it, if any was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...plans.schema.plan import LongRound, Plan, PlannedJob, ShortRound
from ...plans.schema.sections.levers import SearchDrafts
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_io import WRITTEN_DIGITS, dump, loads
from ...profiles.length_trace import LengthTrace
from ...profiles.profile_schema import Profile
from ..choose.candidate_search import PASSES, Pass, Progress
from ..costs.memory_bars import WEIGHT_BYTES
from ..costs.round_costs import nodes_of, round_costs, scoring
from ..lengths.draws import Draws
from ..lengths.length_model import LengthModel, fit_lengths
from ..simulate.whole_run import round_spec, simulate_run
from ..solve import solve
from ..solve_options import SolveOptions
from ..what_if import Documents
from .executed_run import MeasuredRun, Replayed
from .phase_attribution import Phase, phases
from .refit import Refit, price, refit, replay_run, transfer_error, update_transfer_error
from .run_lengths import epoch_prompts, refit_lengths

LEAST_GAIN = 0.02
_BLOCKS = 4
_FEWEST_STEPS = 4  # of a block
_SEEDS = 4
_GAIN_SAMPLES = 24_000  # trained by either plan, when two are compared


@dataclass(frozen=True)
class Tuned:
    """What a run says about its plan.

    Attributes:
        plan: the best plan at refitted costs and lengths; proposed only if `change`.
        gain: 1 - what it costs per trained sample over what the plan in force does, in its objective.
        error: what the gain has to exceed; `errors` names its candidates.
        phases: predicted beside measured, with the reason.
        profile, trace: refitted.
        step_s, seconds_per_sample: of the run over its cycle, as `rlplan report` has them.
        length_factor: mean length over the old trace's.
        not_run: layouts and updates of either plan that the run did not use, in words.
    """

    plan: Plan
    change: bool
    gain: float
    error: float
    errors: dict[str, float]
    phases: dict[str, Phase]
    step_s: float
    seconds_per_sample: float
    profile: Profile
    trace: LengthTrace
    length_factor: float
    costs: Refit
    not_run: tuple[str, ...]


def tune(
    run: MeasuredRun,
    executed: Documents,
    force: Documents,
    *,
    seed: int = 0,
    progress: Progress = lambda text, share: None,
    passes: Sequence[Pass] = PASSES,
    prompts: int | None = None,
) -> Tuned:
    """Refit, solve and decide.

    Args:
        executed: what the run's plan was solved from; its `plan` is not looked at.
        force: the plan in force, which may be a later one than the run's, and what that was solved from.
        passes: how much the solve simulates.
        prompts: how many the job's data holds (solve.solve).

    Raises InputError if the run and the documents do not belong together, Infeasible if nothing keeps the limits at the
    refitted costs.
    """
    _check(run, executed, force)
    rollout, dynamic = force.job.rollout, force.job.algorithm.dynamic_sampling
    cap = rollout.max_response_tokens
    progress("replaying the run", 0.0)
    replays = replay_run(run, cap, dynamic, executed.profile)
    if not replays:
        raise InputError("its trace holds no samples; there is nothing to learn from", str(run.home))
    explained = phases(run, replays, price(run, executed.profile), refit(executed.profile, run, replays))
    if force.profile != executed.profile:
        replays = replay_run(run, cap, dynamic, force.profile)
    found = refit(force.profile, run, replays)
    # As the file will have it: what is solved now is what solving from the files gives.
    profile = loads(dump(found.profile, digits=WRITTEN_DIGITS), Profile)
    progress("refitting lengths", 0.1)
    trace, factor = refit_lengths(run, force.trace, price(run, profile), cap, dynamic, seed)
    model = _fitted(trace, cap, seed)
    errors = {
        "costs": _cost_error(run, replays, force.profile, cap, dynamic),
        "run": _run_error(run, profile, model, dynamic, seed),
    }
    options = SolveOptions(
        mode=force.plan.solver.forced_mode,
        bias_budget=_asked_budget(force.plan),
        objective="usd" if force.plan.solver.objective == "usd_per_sample" else "seconds",
        seed=seed,
        prompts=prompts,
        passes=passes,
    )
    plan = solve(
        force.cluster,
        force.job,
        profile,
        trace,
        force.plan.inputs,
        options,
        lambda text, share: progress(text, 0.2 + 0.7 * share),
    ).plan
    progress("comparing plans", 0.9)
    gain, noise = 0.0, 0.0
    if decisions(plan.job) != decisions(force.plan.job):
        gain, noise = _gain(plan.job, force.plan.job, force, profile, model, seed)
    errors |= {"simulation": 2 * noise, "transfer": _transfer(found, plan, force.plan), "least": LEAST_GAIN}
    error = max(errors.values())
    progress("done", 1.0)
    others = _not_run(found, plan, force.plan)
    return Tuned(
        plan=plan,
        change=gain > error,
        gain=gain,
        error=error,
        errors=errors,
        phases=explained,
        step_s=run.over_cycle.seconds("total_s"),
        seconds_per_sample=run.seconds_per_sample,
        profile=profile,
        trace=trace,
        length_factor=factor,
        costs=found,
        not_run=others,
    )


def decisions(planned: PlannedJob) -> dict[str, object]:
    """What a plan decides, without its reasons."""
    return planned.model_dump(exclude={"why"})


def _asked_budget(plan: Plan) -> float | None:
    """The budget to solve with again. That of a forced mode without one is what was predicted, which nobody asked for;
    as a bound it would refuse the very plan that it is of."""
    return plan.job.bias.budget if plan.solver.forced_mode is None else plan.solver.forced_budget


def _check(run: MeasuredRun, executed: Documents, force: Documents) -> None:
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


def _cost_error(run: MeasuredRun, replays: Sequence[Replayed], profile: Profile, cap: int, dynamic: bool) -> float:
    """Mean relative error of the seconds of a block of steps when costs are refitted on the other blocks.

    Steps in which something had to start are left out. A run too short for two blocks is judged by the unrefitted
    profile, which has not seen it.
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
        part = MeasuredRun(run.home, run.plan, None, tuple(s for s in run.steps if s.number in left_out), 0)
        again = replay_run(part, cap, dynamic, fitted.profile)
        errors.append(abs(math.fsum(r.total_s for r in again) / math.fsum(measured[low:high]) - 1.0))
    return math.fsum(errors) / count


def _run_error(run: MeasuredRun, profile: Profile, model: LengthModel, dynamic: bool, seed: int) -> float:
    """Relative error of the refitted model in the run's seconds per trained sample, its own luck included."""
    planned, count, prompts = run.plan.job, len(run.steps), epoch_prompts(run, 4096)
    simulated = [
        _simulate(planned, profile, Draws(model, seed + k, planned.rounds.short.issue.samples), dynamic, count, prompts)
        for k in range(_SEEDS)
    ]
    measured = run.seconds_per_sample - _cold_seconds(run)
    return abs(math.fsum(simulated) / _SEEDS / measured - 1.0)


def _cold_seconds(run: MeasuredRun) -> float:
    """Seconds per trained sample that steps after a start took longer than the warm ones of their kind."""
    extra = 0.0
    for kind in ("short", "long"):
        warm = [s.total_s for s in run.steps if s.kind == kind and s.warm]
        cold = [s.total_s for s in run.steps if s.kind == kind and not s.warm]
        if warm and cold:
            extra += max(0.0, math.fsum(cold) - len(cold) * math.fsum(warm) / len(warm))
    return extra / max(1, sum(s.samples for s in run.steps))


def _simulate(
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


def _kinds(*plans: Plan) -> list[ShortRound | LongRound]:
    return [r for p in plans for r in (p.job.rounds.short, p.job.rounds.long) if r is not None]


def _not_run(found: Refit, *plans: Plan) -> tuple[str, ...]:
    rounds, known = _kinds(*plans), {train.layout for train in found.updates}
    layouts = [r.rollout.layout for r in rounds if r.rollout.layout not in found.rollout]
    updates = [r.train for r in rounds if r.train not in known]
    names = [str(layout) for layout in layouts]
    names += [f"dp {t.dp} x tp {t.tp} with micro-batches of {t.micro_batch_tokens} tokens" for t in updates]
    return tuple(dict.fromkeys(names))


def _transfer(found: Refit, plan: Plan, force: Plan) -> float:
    """Relative error of a step of `plan` or `force` for what the run did not use, by the shares of the new plan's."""
    phases_s, step_s = plan.predicted.phases_s, plan.predicted.step_s.mean
    rounds = _kinds(plan, force)
    rollout = phases_s.rollout * transfer_error(found, [r.rollout for r in rounds])
    return (rollout + phases_s.train * update_transfer_error(found, [r.train for r in rounds])) / step_s


def _gain(
    new: PlannedJob, old: PlannedJob, force: Documents, profile: Profile, model: LengthModel, seed: int
) -> tuple[float, float]:
    """(gain, its standard error): each plan trains the same prompts with the same luck, but for those of the last step.

    In the second one where a plan learns from the first. In USD where the plan in force minimises these: seconds, times
    the nodes that a plan takes.
    """
    job, pool = force.job, force.cluster.pools[old.rounds.short.rollout.pool]
    price = 1.0
    if force.plan.solver.objective == "usd_per_sample":
        weight_bytes = WEIGHT_BYTES[job.model.dtype]
        price = nodes_of(new, profile, pool, weight_bytes) / nodes_of(old, profile, pool, weight_bytes)
    epoch = int("predict" in (new.bias.mode, old.bias.mode))
    target, size = old.issue.prompts_per_step, old.issue.samples_per_prompt
    width = max(new.rounds.short.issue.samples, old.rounds.short.issue.samples)
    prompts = max(8 * target, _GAIN_SAMPLES // size // _SEEDS)
    gains = []
    for k in range(_SEEDS):
        draws = Draws(model, seed + k, width)
        ours, theirs = (
            _simulate(planned, profile, draws, job.algorithm.dynamic_sampling, 0, prompts, epoch, job.search.drafts)
            for planned in (new, old)
        )
        gains.append(1.0 - price * ours / theirs)
    middle = math.fsum(gains) / _SEEDS
    return middle, math.sqrt(math.fsum((g - middle) ** 2 for g in gains) / (_SEEDS - 1) / _SEEDS)


def _fitted(trace: LengthTrace, cap: int, seed: int) -> LengthModel:
    try:
        return fit_lengths(trace, cap, seed)
    except ValueError as error:
        raise InputError(str(error)) from None
