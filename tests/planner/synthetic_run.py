"""A run that was never executed: a plan simulated by costs and lengths that are the truth, written as the executor
writes a run (executor/records/run_record.py), so that what tuning finds can be held against what was put in."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlplan.planner.costs.draft_costs import DraftedCost
from rlplan.planner.costs.round_costs import round_costs, scoring
from rlplan.planner.lengths.draws import Draws, prompt_name
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.reference_round import simulate_round
from rlplan.planner.simulate.whole_run import RunDraws
from rlplan.planner.tune.executed_run import ExecutedRun, load_executed
from rlplan.planner.what_if import Documents
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.yaml_io import dump
from rlplan.profiles.length_trace import LengthTrace
from rlplan.profiles.profile_schema import Profile
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.schedule import Schedule
from rlplan.traces.run_log import PLAN_COPY, TRACE
from rlplan.traces.trace import TraceWriter

from ..profiles.counted import counts_of
from .conftest import heavy_trace, laptop, small_profile
from .solutions import QUICK as QUICK
from .solutions import eight_by_four, once, solution


@once
def solved(profile: Callable[[Profile], Profile] = lambda profile: profile, **options: Any) -> Documents:
    """A job of 8 x 4 on the small machine, which `profile` may change, with its plan; `options` go to the solver.

    Solved once for all tests, which change nothing in it.
    """
    costs = profile(small_profile())
    return Documents(solution(profile=costs, **options).plan, eight_by_four(), laptop(), costs, heavy_trace(), None)


def synthesize(
    folder: Path,
    plan: Plan,
    job: Job,
    profile: Profile,
    trace: LengthTrace,
    *,
    steps: int = 40,
    prompts: int = 600,
    noise: float = 0.03,
    seed: int = 5,
    plan_path: str | None = None,
) -> Path:
    """Run `plan` where costs are `profile` and lengths are `trace`; times carry relative noise of sigma `noise`."""
    folder.mkdir(parents=True, exist_ok=True)
    dump(plan, folder / PLAN_COPY)
    rng = np.random.default_rng(seed)
    spec = plan.job.round_spec(job.rollout.max_response_tokens, job.algorithm.dynamic_sampling)
    short, long = round_costs(plan.job, profile)
    reward = scoring(plan.job, profile)
    draws = Draws(fit_lengths(trace, job.rollout.max_response_tokens, seed), seed, spec.short_samples)
    run_draws = RunDraws(draws, True)
    schedule = Schedule(spec, [prompt_name(i, 0) for i in range(prompts)], seed)
    writer = TraceWriter(folder / TRACE)
    writer.write("run", 0.0, name="run", mode=spec.mode, **({"plan": plan_path} if plan_path else {}))
    for step in range(1, steps + 1):
        machine = schedule.begin()
        kind = long if machine.kind == "long" else short
        early = min(map(schedule.epoch_of, machine.taken)) == 0
        if isinstance(kind.decode, DraftedCost):
            drafted = kind.decode.in_first_epoch() if early else kind.decode
            kind = dataclasses.replace(kind, decode=drafted)
            writer.write("drafts", float(step), step=step, kind=machine.kind, epoch=1 + (not early), **_counts(drafted))
        run_draws.begin()
        times = simulate_round(machine, run_draws.lengths(), kind.decode, reward, kind.max_num_seqs)
        outcome = schedule.end(machine)
        decoded = 0
        for draw in machine.draws:
            trained = machine.trained_samples(draw) if draw.fate is Fate.TRAINED else []
            for sample, tokens in sorted(draw.tokens.items()):
                decoded += tokens
                fate = Fate.SURPLUS if draw.fate is Fate.TRAINED and sample not in trained else draw.fate
                writer.write(
                    "sample", float(step), step=step, prompt=draw.prompt, epoch=schedule.epoch_of(draw.prompt),
                    draw=draw.number, sample=sample, tokens=tokens, truncated=sample in draw.truncated,
                    prompt_tokens=draws.prompt_tokens(draw.prompt), reward=draw.rewards.get(sample),
                    fate=None if fate is None else fate.value,
                )  # fmt: skip
        lengths = [(draws.prompt_tokens(g.prompt), t) for g in outcome.trained for t in g.tokens]
        tokens = sum(p + t for p, t in lengths)

        def off(seconds: float) -> float:
            return seconds * float(np.exp(noise * rng.normal()))

        phases = {
            "sync_s": off(kind.decode.sync_s),
            "rollout_s": off(times.decode_end_s),
            "reward_exposed_s": off(times.reward_exposed_s),
            "train_s": off(kind.train.update_s(tokens, sum((p + t) ** 2 for p, t in lengths))),
        }
        writer.write(
            "step", float(step), step=step, kind=machine.kind, epochs=[0], **phases, other_s=0.0,
            total_s=sum(phases.values()), trained_samples=len(lengths), trained_tokens=sum(t for _, t in lengths),
            reward_mean=0.5, max_tokens=0, median_tokens=0.0, decoded_tokens=decoded, deferred=len(schedule.deferred),
            prompts={fate.value: len(ids) for fate, ids in outcome.prompts.items()},
            samples={fate.value: number for fate, number in outcome.samples.items()},
            conservation_violations=[], on_policy_violations=0, checksum_mismatches=0, exhausted=0, restarts=[],
            metrics={}, ages=list(schedule.ages), waits=list(schedule.waits),
        )  # fmt: skip
    writer.close()
    return folder


def ran(
    folder: Path, documents: Documents, profile: Profile | None = None, trace: LengthTrace | None = None, **how: Any
) -> ExecutedRun:
    """A run of the documents' plan, where costs and lengths are theirs unless others are given."""
    truth = profile or documents.profile, trace or documents.trace
    return load_executed(synthesize(folder, documents.plan, documents.job, *truth, **how))


def _counts(cost: DraftedCost) -> dict[str, Any]:
    """The event of a round whose drafts follow the costs' law, up to the plan's tokens."""
    drafts = cost.drafts
    assert drafts is not None
    law, g = drafts.law, drafts.tokens
    law = dataclasses.replace(law, drafted=law.drafted[:g], accepted=law.accepted[:g])

    def step_s(batch: float) -> float:
        return cost.a + cost.b * batch

    event = dataclasses.asdict(counts_of(law, {1: 500, 3: 1000, 7: 3000, 15: 6000}, step_s))
    # What is there for reports alone.
    batches = {str(size): {**one, "emitted": 1.0} for size, one in event.pop("batches").items()}
    return {**event, "batches": batches, "steps": 1000, "by_source": {}, "index_bytes": 0, "history_bytes": 0}


def slower(profile: Profile, decode: float = 1.0, train: float = 1.0):
    """The profile with decode steps and updates that take so many times as long."""

    def times(factor: float, entry: Any, *names: str) -> dict[str, float]:
        return {name: factor * getattr(entry, name) for name in names}

    steps = ("step_s", "step_s_per_sequence", "step_s_per_kv_token")
    steps += ("prefill_s", "prefill_s_per_token", "prefill_s_per_token_squared")
    rollout = tuple(
        r.model_copy(update=times(decode, r, *steps) | {"curve_s": tuple(decode * s for s in r.curve_s)})
        for r in profile.rollout
    )
    updates = tuple(
        t.model_copy(update=times(train, t, "step_s", "step_s_per_token", "step_s_per_token_squared"))
        for t in profile.train
    )
    law = profile.train_law
    if law is not None:
        # An expert's factor comes on top of `compute`.
        factors = {name: (1.0 if name == "experts" else train) * value for name, value in law.factors.items()}
        law = law.model_copy(update={"factors": factors})
    return profile.model_copy(update={"rollout": rollout, "train": updates, "train_law": law})
