"""The report of runs: every figure of a folder stands in golden/report.txt; ratios and distances by hand."""

import json
import math
import re
from pathlib import Path

import pytest

from rlplan.plans.phrases.sentences import as_trained_text
from rlplan.plans.schema.plan import Plan, load_plan
from rlplan.plans.schema.planned_job import KindNorms
from rlplan.plans.yaml.errors import InputError
from rlplan.traces.report import ks_distance, length_ratio, ratio_as_trained, report, run_report
from rlplan.traces.report_steps import checkpoint_costs, missing_engines, waits
from rlplan.traces.run_log import run_files

from ..golden import flat, same_as_golden
from ..loaded_runs import load_runs
from ..plans.conftest import PLAN
from ..plans.page.runs import write_run
from .events import run_of, sample, step, step_of, write

GOLDEN = Path(__file__).parent / "golden"
TEXT = re.sub(r"[A-Z]+_SHA|DECISIONS", "a" * 64, PLAN)
EXAMPLE = load_plan(Path(__file__).parents[2] / "plans" / "examples" / "cpu-demo.yaml")


def run(trained=None, long_trained=None, deferred=0):
    """A run of two prompts a step that owes `deferred` prompts."""
    made = run_of(EXAMPLE, step(1, deferred=deferred))
    made.trained, made.long_trained = (
        {prompt: (sum(tokens), len(tokens)) for prompt, tokens in (lengths or {}).items()}
        for lengths in (trained, long_trained)
    )
    return made


@pytest.mark.filterwarnings("ignore:.*torn last line")
def test_every_figure_of_a_folder_of_runs(tmp_path):
    """One run with all levers and faults, one that was killed, a plain one that never stepped,
    and one without a plan."""
    for name, mode, steps in (("plan", "exact", 6), ("killed", "race", 5), ("plain", "sync", 4), ("begun", "sync", 0)):
        write_run(tmp_path / name, TEXT, mode, steps=steps, killed=name == "killed", full=name == "plan")
    (tmp_path / "no plan").mkdir()
    write(tmp_path / "no plan" / "trace.jsonl")
    found = report(tmp_path)
    assert found["runs"]["killed"].pop("quiet_s") > 1e6
    lines = [line.replace(str(tmp_path), "FOLDER") for line in flat(found) if ".predicted." not in line]
    same_as_golden(lines, GOLDEN / "report.txt")
    assert found["runs"]["plan"]["predicted"]["seconds_per_sample"] == 0.05


def test_a_speed_up_is_predicted_against_the_run_it_is_compared_with():
    document = EXAMPLE.model_dump(mode="json")
    ours = run_of(Plan.model_validate(document))
    document["predicted"]["seconds_per_sample"] *= 1.25
    drafting = run_of(Plan.model_validate(document))
    assert run_report(ours, None)["speedup_predicted"] == ours.plan.predicted.speedup != pytest.approx(1.25)
    assert run_report(ours, drafting)["speedup_predicted"] == pytest.approx(1.25)


def test_a_run_reaches_a_share_of_what_its_plan_could():
    """The limits of one example beside the seconds of a step: what decoding and training need over what they took."""
    limit = load_plan(Path(__file__).parents[2] / "plans" / "examples" / "math-32b.yaml").predicted.limit
    limited = EXAMPLE.model_copy(update={"predicted": EXAMPLE.predicted.model_copy(update={"limit": limit})})
    found = run_report(run_of(limited, step(1)), None)
    of, seconds = found["limit"], found["phases_s"]
    assert of["of_bandwidth"] == pytest.approx(limit.phases.rollout.limit_s / seconds["rollout"]["measured"])
    assert of["mfu"] == pytest.approx(limit.phases.train.limit_s / seconds["train"]["measured"])
    assert of["ratio"] == pytest.approx(limit.step_s / found["step_s"])
    assert (of["mfu_predicted"], of["of_bandwidth_predicted"]) == (limit.phases.train.ratio, limit.phases.rollout.ratio)
    assert run_report(run(), None)["limit"] is None
    rows = [sample(1, tokens=300, prompt_tokens=100), sample(1, fate="surplus", tokens=9999)]
    own = run_report(run_of(limited, *rows, step(1)), None)["limit"]
    operations = 6 * 32762757120 * 400 + 6 * 327680 * 400**2  # 32B on 64 H100s, 1 s of training
    assert own["mfu"] == pytest.approx(operations / (64 * 989e12), rel=0.01), "of the tokens that it trained"


@pytest.mark.parametrize(
    ("without", "lever"),
    [("hand_over: null", "hand_over: {engines: 1, at_finished: 0.5}"),
     ("drafts: null", "drafts: {tokens: 2, up_to_sequences: 8}")],
)  # fmt: skip
def test_the_plain_run_without_levers_is_the_baseline(tmp_path, without, lever):
    for name in ("a", "b"):
        write_run(tmp_path / name, TEXT, "sync", steps=1)
    plan = tmp_path / "a" / "plan.yaml"
    plan.write_text(plan.read_text().replace(without, lever, 1))
    trace = tmp_path / "b" / "trace.jsonl"
    trace.write_text(re.sub(r'"total_s": [\d.]+', '"total_s": 1000.0', trace.read_text()))
    assert report(tmp_path)["runs"]["a"]["speedup"] > 100 and report(tmp_path)["runs"]["b"]["speedup"] == 1.0


def test_of_like_sync_runs_plain_is_the_baseline(tmp_path):
    for name in ("drafts", "plain"):
        write_run(tmp_path / name, TEXT, "sync", steps=1)
    assert report(tmp_path)["plain"] == "plain"


def test_a_slower_machine_is_told_from_a_wrong_prediction():
    phases = EXAMPLE.predicted.phases_s
    ours = 1.25 * (phases.rollout + phases.sync + phases.reward_exposed) + 2.0 * phases.train
    factor = ours / (phases.rollout + phases.sync + phases.reward_exposed + phases.train)
    measured = 1.04 * factor * EXAMPLE.predicted.step_s.mean
    speeds = [{"event": "speed", "t_s": 1.0, "rollout": rollout, "train": 2.0} for rollout in (1.0, 1.5)]
    broken = {"event": "speed", "t_s": 1.0, "rollout": "fast", "train": 9.0}
    steps = [step(1, total_s=measured, rollout_s=1.5 * phases.rollout, deferred=0)]
    found = run_report(run_of(EXAMPLE, *speeds, broken, *steps), None)
    assert found["machine_factor"] == pytest.approx(factor) and found["model_error"] == pytest.approx(0.04)
    assert found["model_error_standard_error"] is None, "of one step nobody knows"
    assert found["machine"]["rollout"]["factor"] == 1.25 and found["machine"]["train"]["factor"] == 2.0
    steps = [step(n, total_s=factor_ * measured, deferred=0) for n, factor_ in ((1, 0.9), (2, 1.1))]
    more = run_report(run_of(EXAMPLE, *speeds, *steps), None)
    of_lengths = EXAMPLE.predicted.error.lengths, EXAMPLE.predicted.error.assumed_lengths
    assert more["model_error_standard_error"] == pytest.approx(1.04 * math.hypot(0.1, *of_lengths))
    unknown = run_report(run_of(EXAMPLE, broken, *steps), None)
    assert (unknown["machine_factor"], unknown["model_error"], unknown["machine"]) == (None, None, None)


def test_waits_are_those_of_prompts_that_long_rounds_settled():
    queue = step_of(2, kind="long", waits=[1, 4, 1], ages=[3, 0, 0, 0])
    found = waits([step_of(1), queue, step_of(3, kind="long", waits=[2, 2])])
    assert found == {"prompts": 5, "mean": 2.0, "longest": 4, "long_rounds": 2, "by_queue": 1}
    assert waits([step_of(1), step_of(2, kind="long")]) is None, "a trace of an earlier version"


def test_the_length_ratio_compares_prompt_by_prompt():
    plain = run({"a": [10, 20], "b": [100, 300], "c": [40, 40], "x": [9999]})
    same = run({"a": [20, 10], "b": [300, 100], "c": [40, 40], "y": [1]})
    assert length_ratio(same, plain) == (pytest.approx(1.0), pytest.approx(0.0))
    short = run({"a": [5, 10], "b": [50, 150], "c": [20, 20]})
    assert length_ratio(short, plain) == (pytest.approx(0.5), pytest.approx(0.0))
    ratio, error = length_ratio(run({"a": [15], "b": [100], "c": [40]}), plain)
    assert ratio == pytest.approx(155 / 255)
    # The root of the summed squares of what each prompt's mean differs from the ratio times its own.
    assert error == pytest.approx(math.hypot(15 - ratio * 15, 100 - ratio * 200, 40 - ratio * 40) / 255)
    assert math.isnan(length_ratio(run({"a": [1], "b": [1]}), run({"b": [1]}))[0]), "one prompt in common"


def test_a_prompt_of_a_long_round_stands_for_the_owed_ones_too():
    exact = run({"a": [10], "b": [150]}, {"b": [150]}, deferred=2)
    # b counts three times: for itself and for the two that are owed.
    assert length_ratio(exact, run({"a": [10], "b": [100]}))[0] == pytest.approx((10 + 3 * 150) / (10 + 3 * 100))


def test_the_ratio_as_trained_lacks_what_is_owed():
    plain = run({"a": [10], "b": [100]})
    owing, drained = (run({"a": [10], "b": [100]}, {"b": [100]}, deferred=owed) for owed in (2, 0))
    assert length_ratio(owing, plain)[0] == length_ratio(drained, plain)[0] == ratio_as_trained(drained, plain) == 1.0
    # Four were drawn, of which three as long as b.
    assert ratio_as_trained(owing, plain) == pytest.approx((10 + 100) / 2 / ((10 + 3 * 100) / 4))
    assert math.isnan(ratio_as_trained(run({"a": [1]}), plain))
    detail = {"owed_prompts": 2, "length_ratio_as_trained": ratio_as_trained(owing, plain)}
    assert as_trained_text(detail) == "; 0.710 as trained, without 2 deferred prompts that a long round would train"
    assert as_trained_text(detail | {"owed_prompts": 0}) == ""


def test_gradient_norms_of_both_kinds_stand_beside_the_planned_ones():
    planned = EXAMPLE.model_copy(deep=True)
    object.__setattr__(planned.job.loss, "grad_norms", KindNorms(short=0.8, long=1.2))
    rows = [
        step(number, kind=kind, metrics={"grad_norm": norm, "grad_scale": scale})
        for number, (kind, norm, scale) in enumerate([("short", 3.0, 1.0), ("short", 5.0, 0.5), ("long", 6.0, 0.9)], 1)
    ]
    detail = run_report(run_of(planned, *rows), None)["gradients"]
    assert detail["short"] == {"norm": pytest.approx(17**0.5), "scale": 0.75} and detail["long"]["norm"] == 6.0
    assert detail["ratio"] == pytest.approx(6 / 17**0.5) and detail["ratio_planned"] == pytest.approx(1.5)
    assert run_report(run_of(planned, *rows[:2]), None)["gradients"] is None, "no long round ran"


def test_the_share_cut_at_the_cap_counts_owed_long_rounds():
    rows = [sample(1, truncated=True), sample(1), sample(1), sample(1, fate="deferred", truncated=True)]
    short = run_of(EXAMPLE, *rows, step(1, deferred=0))
    assert run_report(short, None)["cut_share"] == pytest.approx(1 / 3), "of trained samples alone"
    owing = run_of(EXAMPLE, *rows, step(1, deferred=1))
    assert math.isnan(run_report(owing, None)["cut_share"]), "the first long round is to come"
    long = step(2, kind="long", trained_samples=8, deferred=2)
    both = run_of(EXAMPLE, *rows, step(1), sample(2, truncated=True), long)
    weight = both.means.long_weight
    assert weight > 1 and run_report(both, None)["cut_share"] == pytest.approx((1 + weight) / (3 + weight))


def test_the_ks_distance_is_the_largest_gap_between_two_distributions():
    assert ks_distance([1, 2, 3, 4], [1, 2, 3, 4]) == 0.0
    assert ks_distance([1, 1], [5, 5]) == ks_distance([5, 5], [1, 1]) == 1.0
    assert ks_distance([1, 2, 3, 4], [1, 2, 30, 40]) == pytest.approx(0.5)
    assert ks_distance([1, 1, 2], [1, 2, 2]) == pytest.approx(1 / 3)
    assert math.isnan(ks_distance([], [1])) and math.isnan(ks_distance([1], []))


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such run folder"):
        load_runs(tmp_path / "none")
    with pytest.raises(InputError, match=r"no trace\.jsonl"):
        load_runs(tmp_path)


def test_a_run_whose_plan_or_trace_is_damaged_is_refused(tmp_path):
    home = write_run(tmp_path / "a", TEXT, "sync", steps=1)
    assert [path.name for path in run_files(tmp_path)] == ["trace.jsonl"] * 2 + ["plan.yaml"] * 2
    plan, trace = home / "plan.yaml", home / "trace.jsonl"
    text = plan.read_text()
    plan.write_text("rlplan: 1\nnew_key: 2\n")
    with pytest.raises(InputError, match=r"plan\.yaml:2: .*of another version of rlplan, or was edited"):
        load_runs(tmp_path)
    plan.unlink()
    with pytest.raises(InputError, match=r"plan\.yaml: no such file$"):
        load_runs(tmp_path)
    plan.write_text(text)
    trace.write_text(json.dumps(step(1, total_s="x")) + "\n")
    with pytest.raises(InputError, match=r"trace\.jsonl.*damaged"):
        load_runs(home)


def test_a_checkpoint_costs_what_its_event_says():
    def written(step, **costs):
        return {"event": "checkpoint", "t_s": 1.0, "step": step, **costs}

    first = written(0, stage_s=50.0, write_s=9.0, bytes=500)
    later = [written(2, stage_s=0.5, write_s=4.0, bytes=1000), written(4, stage_s=1.5, write_s=6.0, bytes=2000)]
    costs = checkpoint_costs([first, *later, {"event": "end", "t_s": 2.0}], 5)
    assert costs == {"count": 2, "stood_s_per_step": 0.4, "write_s": 5.0, "bytes": 2000.0}
    assert checkpoint_costs([first], 5) is None and checkpoint_costs(later, 0) is None
    assert checkpoint_costs([written(2), written(4, stage_s="1", write_s=None, bytes=3)], 5) is None, "an older trace"


def test_missing_engines_cost_what_whole_steps_of_the_kind_did_not_take():
    def step(kind, total_s, missing, engines=4):
        return step_of(1, kind=kind, total_s=total_s, engines=engines - missing, engines_missing=missing)

    whole = [step("short", total_s, 0) for total_s in (9.0, 10.0, 14.0)] + [step("long", 20.0, 0, engines=2)]
    assert missing_engines(whole) is None
    assert missing_engines([step_of(1)]) is None, "an older trace"
    fewer = [step("short", 13.0, 1), step("short", 17.0, 2), step("long", 29.0, 1, engines=2)]
    costs = missing_engines([*whole, *fewer])
    assert costs == {"steps": 3, "engine_steps": 4, "of_engine_steps": 24, "cost_s": 19.0}
    assert missing_engines([*whole[:3], *fewer])["cost_s"] is None, "no long round had all engines"
