"""Tuning from runs whose truth is known: what was wrong is found, and the plan changes only for good reason."""

import dataclasses
import math
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import structs

from rlplan.planner import plan_gain
from rlplan.planner.costs.job_pools import JobPools
from rlplan.planner.costs.memory_table import JobMemory
from rlplan.planner.costs.round_costs import nodes_of
from rlplan.planner.tune import tune as tuning
from rlplan.planner.tune.refit import TRANSFER
from rlplan.planner.tune.run_lengths import scaled
from rlplan.plans.schema.levers import UpdateLayout
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, loads

from ...golden import flat, same_as_golden
from ..conftest import CAP, heavy_trace
from ..gpu_run import gpu_cluster, solved_on_gpus
from ..solutions import QUICK, few_prompt_sets
from ..synthetic_run import ran, slower, solved


@pytest.fixture(autouse=True, scope="module")
def short_comparisons():
    with few_prompt_sets(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_gain, "_GAIN_SAMPLES", 12_000)
        yield


def tuned(folder, documents, profile=None, *, factor=1.0, force=None, **how):
    """Tune on a run of the documents' plan in a world with other costs and lengths."""
    trace = scaled(documents.trace, factor, CAP)
    run = ran(folder, documents, profile, trace, **{"steps": 12, **how})
    return tuning.tune(run, documents, force or documents, passes=QUICK)


def changed(plan, solver=None, **short):
    """The plan with other options of the solver, and other parts of its short rounds."""
    kind = plan.job.rounds.short
    parts = {name: getattr(kind, name).model_copy(update=part) for name, part in short.items()}
    rounds = plan.job.rounds.model_copy(update={"short": kind.model_copy(update=parts)})
    job = plan.job.model_copy(update={"rounds": rounds})
    return plan.model_copy(update={"job": job, "solver": plan.solver.model_copy(update=solver or {})})


# -- as it was ---------------------------------------------------------------------------------------------------------


WORLDS = {
    "slower": {"mode": "exact", "decode": 1.7, "train": 3.0, "why": "mostly decode speed: "},
    "longer": {"mode": "sync", "factor": 1.8, "why": "mostly lengths: "},
    "race": {"mode": "race", "factor": 1.3, "seed": 3, "why": "mostly lengths: "},
    "history": {"mode": "predict", "decode": 0.8, "factor": 0.8, "prompts": 90, "why": "mostly decode speed: "},
}
"""What a run of a plan of `mode` is off by, and which reason is then given first for the seconds of its rollouts."""


@pytest.mark.parametrize("world", WORLDS)
def test_what_a_run_teaches_is_whole_as_it_was(world, tmp_path):
    off = dict(WORLDS[world])
    why, documents = off.pop("why"), solved(mode=off.pop("mode"))
    truth = slower(documents.profile, off.pop("decode", 1.0), off.pop("train", 1.0))
    result = tuned(tmp_path / "r", documents, truth, steps=24, **off)
    assert result.phases["rollout"].why.startswith(why) and result.phases["sync"].why == "as predicted"
    for phase in result.phases.values():
        assert sum(phase.parts_s.values()) == pytest.approx(phase.measured_s - phase.predicted_s, abs=1e-9)
    told = {
        **{name: getattr(result, name) for name in ("change", "gain", "error", "errors", "step_s", "not_run")},
        **{name: getattr(result, name) for name in ("seconds_per_sample", "length_factor")},
        "phases": {name: dataclasses.asdict(phase) for name, phase in result.phases.items()},
        "lines": {
            name: {str(key): dataclasses.asdict(line) for key, line in getattr(result.costs, name).items()}
            for name in ("rollout", "sync")
        },
        "updates": [dataclasses.asdict(line) for line in result.costs.updates.values()],
        "reward": dataclasses.asdict(result.costs.reward),
        "checks": [check.model_dump(mode="json") for check in result.profile.checks],
        "train": [entry.model_dump(mode="json", exclude_none=True) for entry in result.profile.train],
        "rewards": result.profile.reward.model_dump(mode="json", exclude_none=True),
        "lengths": dataclasses.asdict(result.trace.summary()),
        "rounds": result.plan.job.rounds.model_dump(mode="json", exclude_none=True),
    }
    same_as_golden(list(flat(told)), Path(__file__).with_name("golden") / f"{world}.txt")


# -- what was wrong ----------------------------------------------------------------------------------------------------


def test_a_run_that_went_as_predicted_changes_nothing(tmp_path):
    result = tuned(tmp_path / "r", solved(mode="exact"), steps=36)
    assert not result.change
    assert result.error == max(result.errors.values()) >= tuning.LEAST_GAIN
    assert set(result.errors) == {"costs", "run", "simulation", "transfer", "least"}
    assert result.phases["rollout"].why == result.phases["train"].why == "as predicted"
    assert result.errors["costs"] < 0.04
    assert all(line.factor == pytest.approx(1.0, abs=0.03) for line in result.costs.rollout.values())


def test_a_plan_changes_where_it_gains_enough_and_then_stays(tmp_path):
    # Answers twice as long: the old cutoff defers most of the prompts. What gains less than the costs' error goes
    # to the simpler plan.
    old, how = solved(mode="exact"), {"factor": 2.0, "steps": 24}
    first = tuned(tmp_path / "r", old, **how)
    assert first.change and first.gain > first.error
    assert first.plan.job.rounds.short.cutoff_tokens > old.plan.job.rounds.short.cutoff_tokens
    new = dataclasses.replace(old, plan=first.plan, profile=first.profile, trace=first.trace)
    again = tuned(tmp_path / "same run", old, force=new, **how)
    assert not again.change and again.gain <= again.error
    assert again.costs.train.factor == pytest.approx(1.0, abs=0.02)
    lived = dataclasses.replace(new, profile=old.profile, trace=heavy_trace())
    after = tuned(tmp_path / "new plan", lived, force=new, seed=7, **how)
    assert not after.change, (after.gain, after.errors)


def slow(profile):
    return slower(profile, decode=50, train=50)  # 24 steps take an hour


@pytest.mark.search
def test_twenty_hours_of_drift_are_planned_again_each_hour(tmp_path):
    # Lengths grow by 4 % an hour; from hour 8 on decoding takes half as long again.
    first = lived = solved(profile=slow, mode="exact")
    seconds, changes = {"kept": 0.0, "tuned": 0.0}, 0
    for hour in range(20):
        costs, truth = slower(first.profile, decode=1.5 if hour >= 8 else 1.0), scaled(heavy_trace(), 1.04**hour, CAP)
        runs = {
            name: ran(tmp_path / f"{name}-{hour}", documents, costs, truth, steps=24, seed=hour)
            for name, documents in (("kept", first), ("tuned", lived))
        }
        for name, run in runs.items():
            total_s = sum(step.total_s for step in run.steps)
            seconds[name] += total_s / sum(step.trained_samples for step in run.steps)
        found = tuning.tune(runs["tuned"], lived, lived, passes=QUICK)
        if found.change:
            lived, changes = (
                dataclasses.replace(lived, plan=found.plan, profile=found.profile, trace=found.trace),
                changes + 1,
            )
    assert 1 <= changes <= 6, changes
    assert seconds["tuned"] < 0.95 * seconds["kept"], seconds


def test_runs_of_other_jobs_and_other_sizes_are_refused(tmp_path):
    documents = solved(mode="exact")
    run = ran(tmp_path / "r", documents, steps=1)
    other = dataclasses.replace(documents, job=documents.job.model_copy(update={"name": "other"}))
    with pytest.raises(InputError, match="'toy', the plan is of 'other'"):
        tuning.tune(run, other, other, passes=QUICK)
    rollout = documents.job.rollout.model_copy(update={"prompts_per_step": 16})
    grown = dataclasses.replace(documents, job=documents.job.model_copy(update={"rollout": rollout}))
    with pytest.raises(InputError, match="8 prompts x 4 samples a step, the job now has 16 x 4"):
        tuning.tune(run, documents, grown, passes=QUICK)


def test_tuning_says_how_far_what_was_not_run_may_be_off(tmp_path):
    base = solved_on_gpus()
    train = UpdateLayout(dp=1, tp=8, micro_batch_tokens=4096).model_dump() | {"sp": 1}
    plan = changed(base.plan, rollout={"engines": 4, "tp": 2, "max_num_seqs": 8}, train=train)
    documents = dataclasses.replace(base, plan=plan)
    result = tuned(tmp_path / "r", documents, slower(base.profile, decode=1.5, train=1.5), steps=16)
    rollout, predicted = result.plan.job.rounds.short.rollout, result.plan.predicted
    assert (rollout.engines, rollout.tp) == (2, 4)
    assert result.not_run == ("2 x tp 4", "dp 8, recompute full, micro-batches of 4096 tokens")
    parts = ((predicted.phases_s.rollout, result.costs.rollout[2, 4]), (predicted.phases_s.train, result.costs.train))
    off_s = sum(seconds * (1 - TRANSFER) * math.log(line.factor) for seconds, line in parts)
    assert (
        result.errors["transfer"] == pytest.approx(off_s / predicted.step_s.mean) and result.errors["transfer"] > 0.02
    )


# -- what it judges by -------------------------------------------------------------------------------------------------


def test_nodes_do_not_depend_on_the_size_of_planned_caches():
    base = solved_on_gpus()
    plans = [
        changed(base.plan, rollout={"engines": 4, "tp": 4, "max_num_seqs": 8, "kv_tokens": n}) for n in (512, None)
    ]
    for gigabytes in range(50, 400, 10):
        pools = JobPools(gpu_cluster(nodes=4, host_memory_bytes=gigabytes * 10**9).pools["main"])
        few, many = (nodes_of(plan.job, JobMemory(base.profile, pools, "bfloat16")) for plan in plans)
        assert few == many, gigabytes


def test_a_plan_for_the_fewest_usd_is_tuned_by_usd(tmp_path):
    base = solved_on_gpus()
    plan = changed(base.plan, {"objective": "usd_per_sample"}, rollout={"engines": 4, "tp": 4, "max_num_seqs": 8})
    documents = dataclasses.replace(base, plan=plan, cluster=gpu_cluster(nodes=2))
    assert nodes_of(plan.job, JobMemory(base.profile, JobPools(documents.cluster.pools["main"]), "bfloat16")) == (2, 0)
    result = tuned(tmp_path / "r", documents)
    assert result.plan.predicted.nodes == 1 and result.plan.solver.objective == "usd_per_sample"
    # Two nodes are quicker, and not twice as quick.
    assert result.change and 0.3 < result.gain < 0.5
    in_seconds = dataclasses.replace(documents, plan=changed(plan, {"objective": "seconds_per_sample"}))
    model = tuning._fitted(base.trace, CAP, 0)
    assert plan_gain.plan_gain(result.plan.job, plan.job, in_seconds, base.profile, model, 0)[0] < 0.0


@pytest.mark.parametrize(
    ("solved_with", "mode", "budget"),
    [
        ({"mode": "sync"}, "sync", None),
        # What was predicted is no bound: by the refitted lengths the plan may well be over it.
        ({"mode": "race"}, "race", None),
        ({"mode": "race", "bias_budget": 0.5}, "race", 0.5),
        ({"bias_budget": 0.1}, None, 0.1),
        ({"mode": "sync", "for_any": True}, "sync", None),
    ],
)
def test_tuning_solves_as_the_plan_in_force_was_solved(solved_with, mode, budget, tmp_path, monkeypatch):
    documents, asked = solved(**solved_with), []
    written = loads(dump(documents.plan), Plan)
    assert (written.solver.forced_mode, written.solver.forced_budget) == (mode, budget if mode else None)
    documents = dataclasses.replace(documents, plan=written)

    def recorded(*args):
        asked.append(args[5])
        return dataclasses.make_dataclass("Solved", ["plan"])(documents.plan)

    monkeypatch.setattr(tuning, "solve", recorded)
    result = tuned(tmp_path / "r", documents, steps=6)
    [options] = asked
    assert (options.mode, options.bias_budget, options.objective) == (mode, budget, "seconds")
    assert options.for_any == solved_with.get("for_any", False) and options.passes == QUICK
    assert result.gain == result.errors["simulation"] == 0.0 and not result.change, "the same plan gains nothing"


# -- a machine whose speed changes -------------------------------------------------------------------------------------


def replays(*stretches, noise=0.03, kinds=("short",) * 4 + ("long",), seed=0):
    """Replayed steps; each stretch is (steps, measured over replayed seconds)."""
    dice, made = random.Random(seed), []
    for steps, factor in stretches:
        for _ in range(steps):
            number = len(made) + 1
            kind, warm = kinds[number % len(kinds)], number > 1
            replayed_s = (2.0 if kind == "short" else 9.0) * dice.uniform(0.5, 2.0)
            bias = 1.3 if kind == "long" else 1.0  # a profile may be wrong about one kind
            total_s = replayed_s * bias * factor * math.exp(dice.gauss(0, noise))
            step = SimpleNamespace(step=number, kind=kind, warm=warm, total_s=total_s)
            made.append(SimpleNamespace(step=step, total_s=replayed_s))
    return made


@pytest.mark.parametrize(
    ("stretches", "noise", "since"),
    [
        ([(14, 1.0)], 0.03, None),
        ([(14, 1.7)], 0.1, None),
        ([(14, 1.0), (1, 3.0)], 0.03, None),
        ([(14, 1.0), (3, 2.0)], 0.05, 15),
        ([(14, 1.0), (6, 2.0)], 0.1, 15),
        ([(14, 1.0), (6, 1.05)], 0.005, None),
        ([(10, 1.0), (10, 2.0), (10, 1.0)], 0.05, 21),
        ([(10, 1.0), (1, 3.0), (10, 1.0)], 0.05, None),
    ],
    ids=["steady", "wrong profile", "one slow step", "soon", "noisy", "too little", "back again", "one in the middle"],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_machine_that_changes_its_speed_is_noticed_after_three_steps(stretches, noise, since, seed):
    assert tuning.speed_change(replays(*stretches, noise=noise, seed=seed)) == since


def test_only_steps_since_the_machine_changed_count(tmp_path):
    documents = solved(mode="sync")
    before = ran(tmp_path / "a", documents, steps=12)
    after = ran(tmp_path / "b", documents, slower(documents.profile, 3.0, 1.0), steps=5)
    later = [structs.replace(step, step=step.step + 12, warm=True) for step in after.steps]
    run = dataclasses.replace(before, steps=(*before.steps, *later))
    result = tuning.tune(run, documents, documents, passes=QUICK)
    assert result.since_step == 13 and result.errors["costs"] < 0.2, "each of the five steps is told from the others"
    assert result.step_s > 1.8 * documents.plan.predicted.step_s.mean
    assert result.errors["run"] < 0.25
    whole = tuning.tune(run, documents, documents, passes=QUICK, last=17)
    assert whole.since_step == 1 and whole.step_s < 0.8 * result.step_s


def test_a_plan_that_stays_is_predicted_anew(tmp_path):
    documents = solved(mode="sync")
    run = ran(tmp_path / "r", documents, slower(documents.profile, 2.0, 2.0), steps=12)
    result = tuning.tune(run, documents, documents, passes=QUICK, predict_kept=True)
    assert not result.change and result.kept is not None
    assert tuning.decisions(result.kept.job) == tuning.decisions(documents.plan.job)
    ratio = result.kept.predicted.seconds_per_sample / documents.plan.predicted.seconds_per_sample
    assert ratio == pytest.approx(result.seconds_per_sample / documents.plan.predicted.seconds_per_sample, rel=0.15)
    assert ratio > 1.5


def test_an_owed_long_round_is_as_slow_as_the_machine_now(tmp_path):
    documents = solved(mode="exact")
    run = ran(tmp_path / "r", documents, slower(documents.profile, 3.0, 3.0), steps=4)
    steps = tuple(structs.replace(step, warm=True) for step in run.steps if step.kind == "short")
    assert steps[-1].deferred > 0
    slow, plain = (dataclasses.replace(run, steps=steps, speed_changed=changed).over_cycle for changed in (True, False))
    ratio = slow.planned_long_s["total_s"] / plain.planned_long_s["total_s"]
    assert ratio == pytest.approx(3.0, rel=0.25) and slow.seconds("total_s") > plain.seconds("total_s")
