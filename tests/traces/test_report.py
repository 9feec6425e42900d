"""The report's figures on runs made by hand: debts are charged, ratios and distances are what their names say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rlplan.plans.schema.plan import Plan, load_plan
from rlplan.plans.yaml.errors import InputError
from rlplan.traces.report import run_report
from rlplan.traces.report_bias import ks_distance, length_ratio
from rlplan.traces.report_runs import RunTrace, load_runs
from rlplan.traces.report_steps import checkpoint_costs, missing_engines

SIZE = 2
EXAMPLE = Path(__file__).parents[2] / "plans" / "examples" / "cpu-demo.yaml"


class _Issue:
    samples_per_prompt, prompts_per_step = SIZE, 4


class _Mean:
    mean = 9.0


class _Rollout:
    mean = 6.0


class _Long:
    step_s = _Mean
    rollout_s = _Rollout


class FakePlan:
    """What `RunTrace.means` reads of a plan."""

    class job:
        issue = _Issue

    class predicted:
        class rounds:
            long = _Long


def step(kind, seconds, samples, tokens, deferred=0):
    return {
        "kind": kind,
        "total_s": seconds,
        "rollout_s": 0.6 * seconds,
        "reward_exposed_s": 0.0,
        "train_s": 0.3 * seconds,
        "sync_s": 0.1 * seconds,
        "trained_samples": samples,
        "trained_tokens": tokens,
        "deferred": deferred,
    }


def run(steps, trained=None, long_trained=None):
    return RunTrace("r", FakePlan, steps, trained or {}, long_trained or {})


def test_a_run_that_owes_nothing_is_its_own_mean():
    means = run([step("short", 2.0, 8, 100), step("short", 4.0, 8, 200)]).means
    assert (means.seconds("total_s"), means.owed_prompts) == (3.0, 0)
    assert means.seconds_per_sample == pytest.approx(6.0 / 16)


def test_owed_prompts_are_charged_what_a_prompt_of_the_runs_long_rounds_took():
    # A long round trained 4 prompts (8 samples) in 12 s: 3 s a prompt, 1/4 of a step each.
    owing = run([step("short", 2.0, 8, 100), step("long", 12.0, 8, 900), step("short", 2.0, 8, 100, deferred=2)])
    means = owing.means
    step_s = means.seconds("total_s")
    assert means.owed_prompts == 2
    assert means.seconds_per_sample == pytest.approx((16.0 + 2 * 3.0) / (24 + 2 * SIZE))
    assert step_s == pytest.approx((16.0 + 2 * 3.0) / 3.5)
    # Phases are charged alike, so that they add up to the step.
    phases = [means.seconds(f"{phase}_s") for phase in ("rollout", "reward_exposed", "train", "sync")]
    assert phases[0] == pytest.approx(0.6 * step_s)
    assert sum(phases) == pytest.approx(step_s)


def test_without_a_long_round_yet_the_plans_expectation_is_charged():
    means = run([step("short", 2.0, 8, 100, deferred=2)]).means
    assert means.seconds_per_sample == pytest.approx((2.0 + 2 * 9.0 / 4) / (8 + 2 * SIZE))
    assert means.seconds("total_s") == pytest.approx((2.0 + 4.5) / 1.5)
    assert means.expected_s("total_s") / means.steps == pytest.approx(4.5 / 1.5)
    for steps in ([step("long", 12.0, 8, 900), step("short", 2.0, 8, 100, deferred=2)], [step("short", 2.0, 8, 100)]):
        assert run(steps).means.expected_s("total_s") == 0.0


def test_a_speed_up_is_predicted_against_the_run_that_it_is_measured_against():
    document = load_plan(EXAMPLE).model_dump(mode="json")
    ours = RunTrace("ours", Plan.model_validate(document), [])
    document["predicted"]["seconds_per_sample"] *= 1.25
    drafting = RunTrace("sync", Plan.model_validate(document), [])
    assert run_report(ours, None)["speedup_predicted"] == ours.plan.predicted.speedup != pytest.approx(1.25)
    assert run_report(ours, drafting)["speedup_predicted"] == pytest.approx(1.25)
    assert run_report(drafting, drafting)["speedup_predicted"] == 1.0


def test_the_length_ratio_compares_the_same_prompts_and_its_error_is_of_their_differences():
    steps = [step("short", 1.0, 8, 0)]
    plain = run(steps, {"a": [10, 20], "b": [100, 300], "c": [40, 40], "x": [9999]})
    same = run(steps, {"a": [20, 10], "b": [300, 100], "c": [40, 40], "y": [1]})
    assert length_ratio(same, plain) == (pytest.approx(1.0), pytest.approx(0.0))
    short = run(steps, {"a": [5, 10], "b": [50, 150], "c": [20, 20]})
    assert length_ratio(short, plain) == (pytest.approx(0.5), pytest.approx(0.0))
    mixed = run(steps, {"a": [15], "b": [100], "c": [40]})
    ratio, error = length_ratio(mixed, plain)
    assert ratio == pytest.approx((15 + 100 + 40) / (15 + 200 + 40)) and error > 0.1


def test_a_long_trained_prompt_stands_for_the_owed_ones_too():
    steps = [step("short", 1.0, 8, 0), step("long", 1.0, 8, 0), step("short", 1.0, 8, 0, deferred=2)]
    plain = run(steps, {"a": [10], "b": [100]})
    exact = run(steps, {"a": [10], "b": [150]}, {"b": [150]})
    # b counts three times: for itself and for the two that are owed.
    assert length_ratio(exact, plain)[0] == pytest.approx((10 + 3 * 150) / (10 + 3 * 100))


def test_prompts_in_common_are_needed():
    steps = [step("short", 1.0, 8, 0)]
    assert math.isnan(length_ratio(run(steps, {"a": [1]}), run(steps, {"b": [1]}))[0])


def test_the_ks_distance_is_the_largest_gap_between_two_distributions():
    assert ks_distance([1, 2, 3, 4], [1, 2, 3, 4]) == 0.0
    assert ks_distance([1, 1], [5, 5]) == 1.0
    assert ks_distance([1, 2, 3, 4], [1, 2, 30, 40]) == pytest.approx(0.5)
    assert math.isnan(ks_distance([], [1]))


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such run folder"):
        load_runs(tmp_path / "none")
    with pytest.raises(InputError, match=r"no trace\.jsonl"):
        load_runs(tmp_path)


COMPLETE = {
    **dict.fromkeys(
        ("sync_s", "rollout_s", "reward_exposed_s", "train_s", "reward_mean", "max_tokens", "median_tokens",
         "decoded_tokens", "on_policy_violations", "checksum_mismatches", "exhausted"), 0
    ),
    "restarts": [], "conservation_violations": [], "metrics": {}, "event": "step",
}  # fmt: skip


@pytest.mark.parametrize("fault", [{"total_s": "x"}, {"restarts": 3}, {"metrics": None}, {"total_s": None}])
def test_a_step_that_is_none_is_refused_with_its_file(fault, tmp_path, monkeypatch):
    monkeypatch.setattr("rlplan.traces.report_runs.load_plan", lambda path: FakePlan)
    event = {**COMPLETE, **step("short", 1.0, 8, 100), "step": 1, "t_s": 0.0, **fault}
    (tmp_path / "trace.jsonl").write_text(json.dumps(event) + "\n")
    with pytest.raises(InputError, match=r"trace\.jsonl.*damaged"):
        load_runs(tmp_path)
    del event["total_s"]
    (tmp_path / "trace.jsonl").write_text(json.dumps(event) + "\n")
    with pytest.raises(InputError, match="damaged"):
        load_runs(tmp_path)


def test_steps_that_a_resume_went_back_over_are_not_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("rlplan.traces.report_runs.load_plan", lambda path: FakePlan)
    numbered = [{**COMPLETE, **step("short", float(n), 8, 100), "step": n} for n in (1, 2, 3)]
    again = {**COMPLETE, **step("short", 7.0, 8, 100), "step": 2}
    events = [*numbered, {"event": "resume", "step": 1}, again]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps({"t_s": 0.0, **event}) + "\n" for event in events))
    [found] = load_runs(tmp_path)
    assert [s["total_s"] for s in found.steps] == [1.0, 7.0]
    assert found.resumes == 1


def test_the_costs_of_checkpoints_are_those_between_steps_and_of_events_that_have_them():
    def written(step, **costs):
        return {"event": "checkpoint", "t_s": 1.0, "step": step, **costs}

    first = written(0, stage_s=50.0, write_s=9.0, bytes=500)
    later = [
        written(2, stage_s=0.5, write_s=4.0, bytes=1000),
        written(4, stage_s=1.5, write_s=6.0, bytes=2000),
    ]
    costs = checkpoint_costs([first, *later, {"event": "end", "t_s": 2.0}], 5)
    assert costs == {"count": 2, "stood_s_per_step": 0.4, "write_s": 5.0, "bytes": 2000.0}
    assert checkpoint_costs([first], 5) is None
    assert checkpoint_costs([written(2), written(4, stage_s="1", write_s=None, bytes=3)], 5) is None, "an older trace"


def test_what_missing_engines_cost_is_seen_beside_steps_of_the_same_kind_that_had_all():
    def step(kind, total_s, missing, engines=4):
        return {"kind": kind, "total_s": total_s, "engines": engines - missing, "engines_missing": missing}

    whole = [step("short", total_s, 0) for total_s in (9.0, 10.0, 11.0)] + [step("long", 20.0, 0, engines=2)]
    assert missing_engines(whole) is None
    assert missing_engines([{"kind": "short", "total_s": 1.0}]) is None, "an older trace"
    fewer = [step("short", 13.0, 1), step("short", 17.0, 2), step("long", 29.0, 1, engines=2)]
    costs = missing_engines([*whole, *fewer])
    assert costs == {"steps": 3, "engine_steps": 4, "of_engine_steps": 24, "cost_s": 19.0}
    unknown = missing_engines([*whole[:3], *fewer])
    assert unknown is not None and unknown["cost_s"] is None, "no long round had all engines"
