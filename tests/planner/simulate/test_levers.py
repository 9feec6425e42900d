"""Drafts, hand-overs and tails from the job to the plan: candidates, columns, reasons, and runs of what was planned."""

import dataclasses
import math

import pytest

from rlplan.planner.choose.candidates.round_kinds import LongKey, column_name
from rlplan.planner.choose.candidates.solve_options import Pass, SolveOptions
from rlplan.planner.choose.candidates.update_layouts import feasible_train
from rlplan.planner.costs.job_pools import JobPools
from rlplan.planner.costs.update_costs import TrainCost, train_costs
from rlplan.planner.lengths.table_lengths import named_lengths
from rlplan.planner.search_inputs import prepare
from rlplan.planner.simulate.columns.round_log import mean
from rlplan.planner.simulate.streamed_updates import Window, exposed_update_s
from rlplan.planner.simulate.whole_run import simulate_plan
from rlplan.planner.solve import solve
from rlplan.plans.phrases.sentences import levers_of
from rlplan.plans.schema.levers import RoundDrafts
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.draft_schema import ProfiledDrafts
from rlplan.profiles.library import library_profile
from rlplan.profiles.phase_schema import DecodePoint

from ..conftest import heavy_trace, laptop, small_job, small_profile, some_inputs
from ..gpu_run import gpu_cluster
from .columns.settings import EXACT, LAYOUT, TRAIN, long_of, make_setting

H200 = {"kind": "cuda", "name": "H200", "per_node": 8, "memory_bytes": 141 * 10**9}
SMALL = {"prompts_per_step": 8, "samples_per_prompt": 4}
OPTIONS = SolveOptions(passes=(Pass(4, 2, math.inf), Pass(20, 8, 0.1)), mode="exact")


def test_a_hand_over_hides_update_time_and_trains_the_same() -> None:
    # An update that takes about as long as a long round's tail.
    layout = TRAIN.layout.model_copy(update={"dp": 2, "micro_batch_tokens": 2048})
    train = dataclasses.replace(TRAIN, layout=layout, per_token_s=20 * TRAIN.per_token_s)
    plain, freed = (
        long_of(make_setting(), LongKey(EXACT.deferral, 1, LAYOUT, 0, share), 24).log for share in (0.0, 0.5)
    )
    assert not plain.windows and len(freed.windows) == len(freed)
    assert freed.tokens == plain.tokens and freed.excess == plain.excess
    assert mean(freed.rollout_s) > mean(plain.rollout_s)
    assert freed.train_s(train) < 0.95 * plain.train_s(train)
    early, late = (freed.phases_s(train, rounds)["train"] for rounds in (6, len(freed)))
    assert early == pytest.approx(mean(freed.updates_s(train)[:6])) and late == freed.train_s(train)
    steps, updates = freed.step_s(train), freed.updates_s(train)
    assert steps[0] == pytest.approx(freed.rollout_s[0] + freed.reward_s[0] + freed.sync_s + updates[0])


def test_names_of_columns_with_levers_sort_behind_the_others() -> None:
    keys = [LongKey(EXACT.deferral, 1, LAYOUT, g, share) for g in (0, 2, 4) for share in (0.0, 0.05, 0.5)]
    names = [column_name(key) for key in keys]
    assert names == sorted(set(names)) and keys == sorted(keys)
    assert names[0] == "exact:p00000:n0000:c000200:m01:tp001x002"
    shorts = [column_name(EXACT._replace(draft_tokens=g)) for g in (0, 2, 16)]
    assert shorts == sorted(set(shorts)) and shorts[0].endswith(":tp001x002")


def planned(search: dict, profile, options: SolveOptions = OPTIONS):
    """(plan, a function that simulates it or a changed one) of a job of 8 x 4 with these levers."""
    job = small_job(SMALL, search={"tp": [1, 2], "micro_batch_tokens": [4096], **search})
    plan = solve(laptop(), job, profile, heavy_trace(), some_inputs(), options).plan

    def seconds(steps: int, of=plan, costs=profile) -> float:
        return simulate_plan(of, job, costs, heavy_trace(), steps=steps).seconds_per_sample()

    return plan, seconds


def one_layout(train_factor: float = 1.0, **changes):
    """Two engines of TP 1, and updates that take so many times as long a token."""
    profile = small_profile(**changes)
    train = [t.model_copy(update={"step_s_per_token": train_factor * t.step_s_per_token}) for t in profile.train]
    return profile.model_copy(update={"train": tuple(train), "rollout": profile.rollout[:1]})


@pytest.fixture(scope="module")
def plain():
    return planned({}, one_layout())


def test_a_job_that_allows_drafts_gets_them_where_they_pay(plain) -> None:
    without, _ = plain
    plan, seconds = planned({"drafts": {"tokens": [3], "acceptance": 0.6}}, one_layout())
    rounds, why, predicted = plan.job.rounds, plan.job.why, plan.predicted
    assert without.job.rounds.short.rollout.drafts is None
    assert rounds.long is not None and rounds.long.rollout.drafts is not None
    assert "drafts of" in why["rounds.long.rollout.drafts"] and "next best" in why["rounds.short.rollout.drafts"]
    assert predicted.seconds_per_sample < 0.9 * without.predicted.seconds_per_sample
    assert predicted.baseline.seconds_per_sample == without.predicted.baseline.seconds_per_sample, "a plain one"
    assert seconds(150) == pytest.approx(predicted.seconds_per_sample, rel=0.15)
    saved_s = levers_of(why["levers"])
    assert set(saved_s) == {"long_rounds", "drafts"} and min(saved_s.values()) > 0
    kinds = {"short": rounds.short, "long": rounds.long}
    bare = {name: kind.model_copy(update={"rollout": kind.rollout.model_copy(update={"drafts": None})})
            for name, kind in kinds.items()}  # fmt: skip
    undrafted = plan.model_copy(update={"job": plan.job.model_copy(update={"rounds": rounds.model_copy(update=bare)})})
    more = saved_s["drafts"] / (SMALL["prompts_per_step"] * SMALL["samples_per_prompt"])
    assert seconds(150, undrafted) == pytest.approx(predicted.seconds_per_sample + more, rel=0.1)


LATER = {"drafted": (0.9, 0.8), "accepted": (0.7, 0.5), "sequence_steps": 1000}
FIRST = {"drafted": (0.6, 0.3), "accepted": (0.3, 0.1), "sequence_steps": 1000}
MEASURED = ProfiledDrafts.model_validate(
    {"first": FIRST, "later": LATER, "step_s": 0.0, "step_s_per_sequence": 0.0, "provenance": "measured"}
)


def test_measured_drafts_are_planned_unasked_and_the_first_epoch_is_told() -> None:
    plan, _ = planned({}, one_layout(drafts=MEASURED))
    drafts, predicted, why = plan.job.rounds.long.rollout.drafts, plan.predicted, plan.job.why
    assert drafts is not None and drafts.source == "history" and drafts.tokens <= 2
    assert predicted.first_epoch_s is not None and predicted.first_epoch_s > 1.02 * predicted.step_s.mean
    assert predicted.first_epoch_s < predicted.baseline.step_s.mean and "earlier responses" in why["drafts"]
    assert why["rounds.long.rollout.drafts.gain"].startswith(
        "a sample alone on its engine gets 2.20 tokens from a decoding step"
    )


@pytest.mark.parametrize(
    ("search", "step_s", "told"), [({"drafts": {"tokens": []}}, 0.0, 0), ({}, 10.0, 1)], ids=["not asked", "slow"]
)
def test_measured_drafts_that_are_refused_or_do_not_pay_are_left_out(search, step_s, told) -> None:
    profile = one_layout(drafts=MEASURED.model_copy(update={"step_s": step_s}))
    plan, _ = planned(search, profile, SolveOptions(passes=OPTIONS.passes[:1], mode="sync"))
    assert plan.job.rounds.short.rollout.drafts is None
    assert plan.predicted.first_epoch_s is None and "drafts" not in plan.job.why
    assert sum(text.startswith("drafts of 2 tokens do not pay on ") for text in plan.job.why.values()) == told


def test_a_plain_plan_takes_no_lever_and_states_the_machines_speed() -> None:
    points = [DecodePoint(sequences=n, kv_tokens=kv * n, step_s=0.01 * n, spread=0.0)
              for n, kv in ((1, 56.0), (4, 56.0), (16, 56.0), (4, 900.0))]  # fmt: skip
    profile = one_layout(drafts=MEASURED)
    entry = profile.rollout[0].model_copy(update={"points": tuple(points)})
    search = {"balance": True, "hand_over": [0.5], "drafts": {"tokens": [2]}}
    plan, _ = planned(
        search,
        profile.model_copy(update={"rollout": (entry,)}),
        SolveOptions(passes=OPTIONS.passes[:1], mode="sync", plain=True),
    )
    rollout, speed = plan.job.rounds.short.rollout, plan.predicted.speed
    assert (rollout.drafts, rollout.balance, plan.job.rounds.short.hand_over) == (None, None, None)
    assert plan.job.rounds.long is None and speed is not None
    assert [(each.sequences, each.kv_tokens, each.step_s) for each in speed.decode] == [(1, 56, 0.01), (4, 56, 0.04)]
    update = speed.update
    assert len(update.response_tokens) == SMALL["samples_per_prompt"] and update.groups <= SMALL["prompts_per_step"]
    tokens = update.groups * sum(update.prompt_tokens + length for length in update.response_tokens)
    assert update.seconds == pytest.approx(0.05 + 3e-5 * tokens, rel=0.01)
    derived = profile.model_copy(update={"rollout": (entry.model_copy(update={"points": ()}),)})
    assert planned({}, derived, SolveOptions(passes=OPTIONS.passes[:1], mode="sync"))[0].predicted.speed is None


def test_drafts_are_priced_by_the_profile_or_by_the_job(plain) -> None:
    plan, seconds = plain
    rounds, profile = plan.job.rounds, one_layout()
    rollout = rounds.short.rollout.model_copy(update={"drafts": RoundDrafts(tokens=2, up_to_sequences=8)})
    short = rounds.short.model_copy(update={"rollout": rollout})
    job = plan.job.model_copy(update={"rounds": rounds.model_copy(update={"short": short})})
    edited = plan.model_copy(update={"job": job})
    with pytest.raises(InputError, match=r"search\.drafts"):
        seconds(2, edited)
    assert seconds(20, edited, profile.model_copy(update={"drafts": MEASURED})) < seconds(20)


def test_hand_overs_are_planned_where_the_update_is_dear() -> None:
    def handing_over(factor: float):
        profile = one_layout(factor)
        replicas = tuple(t.model_copy(update={"dp": 2}) for t in profile.train)  # one on each of two engines
        return planned({"hand_over": [0.6]}, profile.model_copy(update={"train": replicas}))

    (dear, seconds), (cheap, _) = handing_over(20.0), handing_over(0.1)
    freed = dear.job.rounds.long.hand_over
    assert freed is not None and (freed.engines, freed.at_finished) == (1, 0.6)
    assert dear.job.rounds.short.hand_over is None and cheap.job.rounds.long.hand_over is None
    assert "free 1 of 2 engines at 60%" in dear.job.why["rounds.long.hand_over"]
    assert levers_of(dear.job.why["levers"])["hand_over"] > 0 and "hand-over" not in cheap.job.why.get("levers", "")
    assert seconds(150) == pytest.approx(dear.predicted.seconds_per_sample, rel=0.15)


def with_tail(alone: float, sync_s: float = 0.0, each: float = 2e-3, **search: object):
    """A plan where a step of few samples takes `alone` seconds on an engine of TP 2, and 10 ms on each of two of TP 1;
    of many samples both take longer, that of TP 2 far longer."""
    narrow, wide = small_profile().rollout
    narrow = narrow.model_copy(update={"step_s": 10e-3, "step_s_per_sequence": 1e-4})
    sync = wide.sync.model_copy(update={"p50": sync_s})
    wide = wide.model_copy(update={"step_s": alone, "step_s_per_sequence": each, "sync": sync})
    return planned({"tail": [0.8], **search}, small_profile(rollout=(narrow, wide)))


def test_other_engines_decode_the_tail_where_they_are_faster() -> None:
    plan, seconds = with_tail(1e-3)
    tail, rollout, why = plan.job.rounds.long.tail, plan.job.rounds.long.rollout, plan.job.why
    assert tail is not None, why
    assert rollout.tp == 1 and (tail.engines, tail.tp) == (1, 2)
    assert tail.at_finished == 0.8 and tail.growth_tokens > 0
    assert "on 1 x tp 2; next best: long rounds decode their tail on the same engines" in why["rounds.long.tail"]
    assert seconds(150) == pytest.approx(plan.predicted.seconds_per_sample, rel=0.15)


def test_the_tails_own_engines_draft_as_the_rounds_engines_do() -> None:
    plan, seconds = with_tail(3e-3, each=5e-4, drafts={"tokens": [3], "acceptance": 0.6})
    long, saved_s = plan.job.rounds.long, levers_of(plan.job.why["levers"])
    assert long.tail is not None and long.rollout.drafts is not None
    assert set(saved_s) == {"long_rounds", "queue", "drafts", "tail"} and min(saved_s["tail"], saved_s["drafts"]) > 0
    assert seconds(150) == pytest.approx(plan.predicted.seconds_per_sample, rel=0.15)


@pytest.mark.parametrize(("alone", "sync_s"), [(20e-3, 0.0), (1e-3, 100.0)])
def test_the_tail_stays_where_others_or_their_weights_are_slower(alone, sync_s) -> None:
    plan, _ = with_tail(alone, sync_s)
    assert plan.job.rounds.long is not None and plan.job.rounds.long.tail is None


def test_levers_of_long_rounds_are_told_beside_races_that_have_none() -> None:
    # A race over samples alone defers nobody.
    levers = {"hand_over": [0.5], "drafts": {"tokens": [2], "acceptance": 0.6}}
    plan, _ = planned(levers, small_profile(), dataclasses.replace(OPTIONS, mode="race"))
    assert plan.job.bias.mode == "race" and "bias.mode" in plan.job.why


def test_every_update_that_is_best_for_some_hand_over_is_kept() -> None:
    profile, budgets = library_profile("H800", "Qwen3-30B-A3B"), (16896,)
    pools = JobPools(gpu_cluster(nodes=4).pools["main"])
    search = {"tp": [2, 4], "micro_batch_tokens": list(budgets), "hand_over": [0.5]}
    sizes = {**SMALL, "max_prompt_tokens": 512, "max_response_tokens": 16384}
    kept = feasible_train(pools, small_job(sizes, search=search), profile, SolveOptions(for_any=True))
    every = train_costs(profile, 32, budgets)
    assert len(kept) < len(every)
    groups = tuple((10.0 * at, 60_000, 60_000 * 9_000) for at in range(20))
    tokens, squares = (sum(group[k] for group in groups) for k in (1, 2))
    for staying in range(4, 33, 4):
        window = Window(20.0, 2000.0, groups, staying)

        def exposed(train: TrainCost, window: Window = window) -> float:
            return exposed_update_s(train, tokens, squares, window.streamed(train))

        assert min(map(exposed, kept)) == pytest.approx(min(map(exposed, every)))


def test_updates_without_room_beside_engines_do_not_forbid_hand_overs() -> None:
    profile, cluster = library_profile("H200", "Qwen2.5-7B"), gpu_cluster(nodes=4, accelerators=H200)
    sizes = {**SMALL, "max_prompt_tokens": 2048, "max_response_tokens": 16384}
    model = {"path": "Qwen/Qwen2.5-7B", "dtype": "bfloat16"}

    def space(**search: object):
        job = small_job(sizes, model=model, search={"tp": [4], "micro_batch_tokens": [18432], **search})
        return prepare(cluster, job, profile, named_lengths("math-16k")[0], OPTIONS).space

    found = space(hand_over=[0.9])
    assert {cost.early for cost in found.train} == {True, False} and any(key.hand_over for key in found.long)
    window = Window(1.0, 100.0, ((0.5, 20_000, 10**8),), 16)
    copies = [cost for cost in found.train if cost.layout.replica <= 16]
    assert {window.streamed(cost).groups for cost in copies if cost.early} == {1}
    assert {window.streamed(cost).groups for cost in copies if not cost.early} == {0}
    assert all(cost.early for cost in space().train), "nothing was asked for"
