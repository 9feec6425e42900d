"""Drafts and hand-overs from the job to the plan: candidates, columns, reasons, and runs of what was planned."""

import dataclasses
import math

import pytest

from rlplan.planner.choose.candidate_search import Pass
from rlplan.planner.choose.candidates.round_kinds import LongKey, ShortKey, column_name
from rlplan.planner.choose.candidates.update_layouts import feasible_train
from rlplan.planner.costs.decode_costs import ChangeCost, decode_cost
from rlplan.planner.costs.draft_costs import drafted
from rlplan.planner.costs.job_pools import JobPools
from rlplan.planner.costs.reward_costs import reward_cost
from rlplan.planner.costs.round_costs import RoundCosts
from rlplan.planner.costs.update_costs import TrainCost, train_cost, train_costs
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.columns.round_log import RoundLog, mean
from rlplan.planner.simulate.columns.whole_columns import LongColumn, Setting, ShortColumn, long_draws
from rlplan.planner.simulate.streamed_updates import Window, exposed_update_s
from rlplan.planner.simulate.whole_run import simulate_plan, simulate_run
from rlplan.planner.solve import solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.plans.schema.sections.levers import RoundDrafts
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.drafts.draft_schema import ProfiledDrafts
from rlplan.profiles.library import library_profile
from rlplan.rounds.hand_over import HandOverSpec
from rlplan.rounds.round_spec import RoundSpec

from ..assumed_drafts import assumed
from ..conftest import small_job

TARGET, GROUP, CAP, CUTOFF = 4, 4, 1024, 200
LAYOUT = EngineLayout(1, 2)
SHORT = ShortKey("exact", 7, GROUP, CUTOFF, LAYOUT)
SIZES = {"tp": [1, 2], "micro_batch_tokens": [1024, 2048, 4096, 8192]}
SMALL = {"prompts_per_step": 8, "samples_per_prompt": 4}
OPTIONS = SolveOptions(passes=(Pass(5, 2, math.inf), Pass(20, 8, 0.1)))


@pytest.fixture
def setting(make_trace, make_profile) -> Setting:
    profile = make_profile()
    decode = {r.layout: decode_cost(profile, r) for r in profile.rollout}
    draws = Draws(fit_lengths(make_trace()), 0, 8)
    fast = {(LAYOUT, 3): drafted(decode[LAYOUT], assumed(3, 0.7, 16))}
    return Setting(TARGET, GROUP, CAP, False, decode, reward_cost(profile.reward, 1), draws, drafted=fast)


@pytest.fixture
def slow_train(make_profile) -> TrainCost:
    """An update that takes about as long as a long round's tail."""
    cost = train_cost(make_profile().train[2])
    layout = cost.layout.model_copy(update={"dp": 2, "micro_batch_tokens": 2048})
    return dataclasses.replace(cost, layout=layout, per_token_s=20 * cost.per_token_s)


def long_log(setting: Setting, key: LongKey, rounds: int = 24) -> RoundLog:
    column = LongColumn(setting, key)
    column.extend(rounds, long_draws(setting.draws, GROUP, CUTOFF, rounds * TARGET))
    return column.log


def test_a_hand_over_hides_a_part_of_the_update_and_trains_the_same(setting: Setting, slow_train) -> None:
    plain, freed = (long_log(setting, LongKey(SHORT.deferral, 1, LAYOUT, 0, share)) for share in (0.0, 0.5))
    assert not plain.windows and len(freed.windows) == len(freed)
    assert freed.tokens == plain.tokens and freed.excess == plain.excess
    assert mean(freed.rollout_s) > mean(plain.rollout_s)
    assert freed.train_s(slow_train) < 0.95 * plain.train_s(slow_train)
    early, late = (freed.phases_s(slow_train, rounds)["train"] for rounds in (6, len(freed)))
    assert early == pytest.approx(mean(freed.updates_s(slow_train)[:6])) and late == freed.train_s(slow_train)
    steps, updates = freed.step_s(slow_train), freed.updates_s(slow_train)
    assert steps[0] == pytest.approx(freed.rollout_s[0] + freed.reward_s[0] + freed.sync_s + updates[0])


def test_asking_between_extensions_changes_nothing(setting: Setting, slow_train) -> None:
    key = LongKey(SHORT.deferral, 2, LAYOUT, 0, 0.5)
    pool = long_draws(setting.draws, GROUP, CUTOFF, 40)
    once, parts = LongColumn(setting, key), LongColumn(setting, key)
    once.extend(8, pool)
    for rounds in (3, 8):
        parts.extend(rounds, pool)
        assert len(parts.log.step_s(slow_train)) == rounds
    assert once.log == parts.log and once.log.step_s(slow_train) == parts.log.step_s(slow_train)


def test_drafts_speed_a_column_up_and_change_nothing_that_it_trains(setting: Setting) -> None:
    plain, fast = ShortColumn(setting, SHORT), ShortColumn(setting, SHORT._replace(draft_tokens=3))
    for column in (plain, fast):
        column.extend(20)
    assert mean(fast.log.rollout_s) < mean(plain.log.rollout_s)
    assert fast.log.tokens == plain.log.tokens


def test_columns_with_levers_are_the_same_by_the_machines_and_compiled(setting: Setting) -> None:
    key = LongKey(SHORT.deferral, 2, LAYOUT, 3, 0.5)
    reference = dataclasses.replace(setting, reference=True)
    assert long_log(setting, key, 8) == long_log(reference, key, 8)


def test_a_whole_run_with_levers_agrees_with_the_columns_that_it_is_made_of(setting: Setting, slow_train) -> None:
    key = LongKey(SHORT.deferral, 1, LAYOUT, 3, 0.5)
    short = ShortColumn(setting, SHORT)
    short.extend(150)
    log = long_log(setting, key, 80)
    spec = RoundSpec("exact", TARGET, GROUP, CAP, short_prompts=7, short_samples=GROUP, cutoff_tokens=CUTOFF)
    cost, fast = setting.decode[LAYOUT], setting.drafted[LAYOUT, 3]
    kinds = (
        RoundCosts(cost, cost.max_sequences, slow_train),
        RoundCosts(
            fast, fast.max_sequences, slow_train, ChangeCost(HandOverSpec(key.freed_engines, key.hand_over), fast)
        ),
    )
    run = simulate_run(spec, *kinds, setting.reward, setting.draws, steps=300, prompts=1200)
    steps = [s for s in run.steps if s.kind == "long" and s.groups == TARGET]
    assert mean([s.step_s for s in steps]) == pytest.approx(mean(log.step_s(slow_train)), rel=0.1)
    assert mean([s.train_s for s in steps]) == pytest.approx(log.train_s(slow_train), rel=0.15)
    assert all(s.early_accelerator_s == 0 for s in run.steps if s.kind == "short")
    assert any(s.early_accelerator_s > 0 for s in steps)


def test_names_of_columns_without_levers_stay_and_the_others_sort_behind_them() -> None:
    keys = [LongKey(SHORT.deferral, 1, LAYOUT, g, share) for g in (0, 2, 4) for share in (0.0, 0.05, 0.5)]
    names = [column_name(key) for key in keys]
    assert names == sorted(set(names)) and keys == sorted(keys)
    assert names[0] == "exact:p00000:n0000:c000200:m01:tp001x002"
    shorts = [column_name(SHORT._replace(draft_tokens=g)) for g in (0, 2, 16)]
    assert shorts == sorted(set(shorts)) and shorts[0].endswith(":tp001x002")


@pytest.fixture
def solved(make_cluster, make_profile, make_trace, make_job, inputs):
    def solve_with(search: dict, train_factor: float = 1.0, drafts: ProfiledDrafts | None = None):
        profile = make_profile(drafts=drafts)
        change = {"dp": 2} if search.get("hand_over") else {}  # a replica on each of two engines
        slower = [
            t.model_copy(update=change | {"step_s_per_token": train_factor * t.step_s_per_token}) for t in profile.train
        ]
        profile = profile.model_copy(update={"train": tuple(slower), "rollout": profile.rollout[:1]})
        job = make_job(SMALL, search={**SIZES, **search})
        return solve(make_cluster(), job, profile, make_trace(), inputs, OPTIONS), job, profile

    return solve_with


def test_levers_of_long_rounds_are_told_beside_races_that_have_none(
    make_job, make_cluster, make_profile, make_trace, inputs
):
    # A race over samples alone defers nobody.
    levers = {"hand_over": [0.5], "drafts": {"tokens": [2], "acceptance": 0.6}}
    job = make_job(SMALL, search={**SIZES, **levers})
    plan = solve(
        make_cluster(), job, make_profile(), make_trace(), inputs, dataclasses.replace(OPTIONS, mode="race")
    ).plan
    assert plan.job.bias.mode == "race" and "bias.mode" in plan.job.why


def test_a_job_that_allows_drafts_gets_them_where_they_pay_and_a_plain_baseline(solved, make_trace) -> None:
    plain, _, _ = solved({})
    fast, job, profile = solved({"drafts": {"tokens": [2, 4], "acceptance": 0.6}})
    rounds, why = fast.plan.job.rounds, fast.plan.job.why
    assert plain.plan.job.rounds.short.rollout.drafts is None
    assert rounds.long is not None and rounds.long.rollout.drafts is not None
    assert "drafts of" in why["rounds.long.rollout.drafts"] and "next best" in why["rounds.short.rollout.drafts"]
    assert fast.plan.predicted.seconds_per_sample < 0.9 * plain.plan.predicted.seconds_per_sample
    assert fast.plan.predicted.baseline.seconds_per_sample == plain.plan.predicted.baseline.seconds_per_sample
    run = simulate_plan(fast.plan, job, profile, make_trace(), steps=150)
    assert run.seconds_per_sample() == pytest.approx(fast.plan.predicted.seconds_per_sample, rel=0.15)


def test_measured_drafts_are_planned_unasked_and_the_first_epoch_is_told_apart(solved, make_profile) -> None:
    later = {"drafted": (0.9, 0.8), "accepted": (0.7, 0.5), "sequence_steps": 1000}
    first = {"drafted": (0.6, 0.3), "accepted": (0.3, 0.1), "sequence_steps": 1000}
    section = {"first": first, "later": later, "step_s": 0.0, "step_s_per_sequence": 0.0, "provenance": "measured"}
    measured = ProfiledDrafts.model_validate(section)
    done, _, _ = solved({}, drafts=measured)
    rounds, predicted, why = done.plan.job.rounds, done.plan.predicted, done.plan.job.why
    assert rounds.long is not None and rounds.long.rollout.drafts is not None
    assert rounds.long.rollout.drafts.source == "history" and rounds.long.rollout.drafts.tokens <= 2
    assert predicted.first_epoch_s is not None and predicted.first_epoch_s > 1.02 * predicted.step_s.mean
    assert predicted.first_epoch_s < predicted.baseline.step_s.mean and "earlier responses" in why["drafts"]
    assert why["rounds.long.rollout.drafts.gain"].startswith("a sample that decodes alone gets 2.20 tokens a step")
    never, _, _ = solved({"drafts": {"tokens": []}}, drafts=measured)
    assert never.plan.job.rounds.long is not None and never.plan.job.rounds.long.rollout.drafts is None
    assert never.plan.predicted.first_epoch_s is None and "drafts" not in never.plan.job.why
    slow = measured.model_copy(update={"step_s": 10.0})
    told, _, _ = solved({}, drafts=slow)
    assert any(text.startswith("drafts of 2 tokens do not pay on ") for text in told.plan.job.why.values())


def test_a_job_that_allows_hand_overs_gets_them_where_the_update_is_dear(solved, make_trace) -> None:
    dear, job, profile = solved({"hand_over": [0.6]}, train_factor=20.0)
    cheap, _, _ = solved({"hand_over": [0.6]}, train_factor=0.1)
    assert dear.plan.job.rounds.long is not None and cheap.plan.job.rounds.long is not None
    freed = dear.plan.job.rounds.long.hand_over
    assert freed is not None and (freed.engines, freed.at_finished) == (1, 0.6)
    assert dear.plan.job.rounds.short.hand_over is None and cheap.plan.job.rounds.long.hand_over is None
    assert "free 1 of 2 engines at 60%" in dear.plan.job.why["rounds.long.hand_over"]
    run = simulate_plan(dear.plan, job, profile, make_trace(), steps=150)
    assert run.seconds_per_sample() == pytest.approx(dear.plan.predicted.seconds_per_sample, rel=0.15)


@pytest.fixture
def with_tail(make_cluster, make_profile, make_trace, inputs):
    """A solve where a step of few samples takes `alone` seconds on an engine of TP 2, and 10 ms on each of two of TP 1;
    of many samples both take longer, that of TP 2 far longer."""

    def solve_with(alone: float, sync_s: float = 0.0):
        narrow, wide = make_profile().rollout
        narrow = narrow.model_copy(update={"step_s": 10e-3, "step_s_per_sequence": 1e-4})
        sync = wide.sync.model_copy(update={"p50": sync_s})
        wide = wide.model_copy(update={"step_s": alone, "step_s_per_sequence": 2e-3, "sync": sync})
        profile = make_profile(rollout=(narrow, wide))
        job = small_job(SMALL, search={**SIZES, "tail": [0.7, 0.9]})
        return solve(make_cluster(), job, profile, make_trace(), inputs, OPTIONS), job, profile

    return solve_with


def test_a_job_that_allows_other_engines_in_the_tail_gets_them_where_they_are_faster(with_tail, make_trace) -> None:
    done, job, profile = with_tail(3e-3)
    rounds = done.plan.job.rounds
    assert rounds.long is not None and rounds.long.tail is not None, done.plan.job.why
    assert rounds.long.rollout.tp == 1 and (rounds.long.tail.engines, rounds.long.tail.tp) == (1, 2)
    assert rounds.long.tail.at_finished in (0.7, 0.9) and rounds.long.tail.growth_tokens > 0
    assert (
        "on 1 x tp 2; next best: long rounds decode their tail on the same engines"
        in done.plan.job.why["rounds.long.tail"]
    )
    run = simulate_plan(done.plan, job, profile, make_trace(), steps=150)
    assert run.seconds_per_sample() == pytest.approx(done.plan.predicted.seconds_per_sample, rel=0.15)


@pytest.mark.parametrize(("alone", "sync_s"), [(20e-3, 0.0), (3e-3, 100.0)])
def test_where_they_are_slower_or_their_weights_take_too_long_the_tail_stays(with_tail, alone, sync_s) -> None:
    done, _, _ = with_tail(alone, sync_s)
    assert done.plan.job.rounds.long is not None and done.plan.job.rounds.long.tail is None


def test_drafts_in_a_plan_are_priced_by_the_profile_or_by_the_job(solved, make_trace) -> None:
    done, job, profile = solved({})
    rounds = done.plan.job.rounds
    rollout = rounds.short.rollout.model_copy(update={"drafts": RoundDrafts(tokens=2, up_to_sequences=8)})
    short = rounds.short.model_copy(update={"rollout": rollout})
    planned = done.plan.job.model_copy(update={"rounds": rounds.model_copy(update={"short": short})})
    edited = done.plan.model_copy(update={"job": planned})
    with pytest.raises(InputError, match=r"search\.drafts"):
        simulate_plan(edited, job, profile, make_trace(), steps=2)
    rates = {"drafted": (0.9, 0.8), "accepted": (0.6, 0.4), "sequence_steps": 1000}
    section = {"first": rates, "step_s": 0.0, "step_s_per_sequence": 0.0, "provenance": "measured"}
    measured = profile.model_copy(update={"drafts": ProfiledDrafts.model_validate(section)})
    plain, fast = (
        simulate_plan(plan, job, measured, make_trace(), steps=20).seconds_per_sample() for plan in (done.plan, edited)
    )
    assert fast < plain


def test_no_update_is_left_out_that_is_the_best_for_some_engines_that_are_handed_over(make_cluster) -> None:
    profile, budgets = library_profile("H800", "Qwen3-30B-A3B"), (16896,)
    pool = {"nodes": 4, "cores": 96, "host_memory_bytes": 2 * 10**12, "usd_per_node_hour": 40.0}
    pool["accelerators"] = {"kind": "cuda", "name": "H800", "per_node": 8, "memory_bytes": 80 * 10**9}
    sizes = {**SMALL, "max_prompt_tokens": 512, "max_response_tokens": 16384}
    search = {"tp": [2, 4], "micro_batch_tokens": list(budgets), "hand_over": [0.5]}
    pools = JobPools(make_cluster(**pool).pools["main"])
    kept = feasible_train(pools, small_job(sizes, search=search), profile, for_any=True)
    every = train_costs(profile, 32, budgets)
    assert len(kept) < len(every)
    groups = tuple((10.0 * at, 60_000, 60_000 * 9_000, 8) for at in range(40))
    tokens, squares, samples = (sum(group[k] for group in groups) for k in (1, 2, 3))
    for staying in range(2, 33, 2):
        window = Window(20.0, 2000.0, groups, staying)

        def exposed(train: TrainCost, window: Window = window) -> float:
            return exposed_update_s(train, tokens, squares, samples, window.streamed(train))

        assert min(map(exposed, kept)) == pytest.approx(min(map(exposed, every)))
