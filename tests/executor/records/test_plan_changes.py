"""Which plan a run may go on by, what its folder keeps of both, and what readers of the trace make of it."""

import json
from types import SimpleNamespace

import pytest

from rlplan.executor.prepare import in_force, prepare
from rlplan.executor.records.execution_folder import begin_folder
from rlplan.executor.records.plan_changes import (
    keep_facts,
    plan_change,
    plan_in_force,
    put_in_force,
    stage_plan,
    was_replaced,
)
from rlplan.plans.yaml.errors import InputError
from rlplan.traces.report_state import plan_changes
from rlplan.traces.run_log import read_run

from ..test_prepare import MODEL
from ..tiny_job import make_plan, write_job, write_plan


@pytest.fixture
def run(tmp_path):
    """A run at step 4, its plan's folder, and `plan(name, change)`, which writes a plan of its job."""
    model, folder, home = tmp_path / "model", tmp_path / "job", tmp_path / "run"
    for each in (model, folder):
        each.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL))
    write_job(folder, model)

    def plan(name="plan", change=lambda plan: None):
        document = make_plan(folder)
        change(document)
        return write_plan(document, folder / f"{name}.yaml")

    (first,) = prepare([plan("first")], home, resume=False)
    begin_folder(home, first.text, resume=False)
    keep_facts(home, first.checked)
    (home / "checkpoints" / "step-000004").mkdir(parents=True)
    (home / "trace.jsonl").write_text('{"event":"run","t_s":0.0,"name":"called"}\n')
    return SimpleNamespace(home=home, folder=folder, plan=plan, job=folder / "job.yaml")


def cutoff_20(plan):
    plan["job"]["rounds"]["short"]["cutoff_tokens"] = 20


def test_a_run_goes_on_by_another_plan_of_its_job(run):
    (execution,) = prepare([run.plan("second", cutoff_20)], run.home, resume=True)
    assert execution.name == "called", "trackers and versions of weights go on under it"
    change = plan_change(run.home, execution.text, execution.plan)
    assert change is not None and change.changes == {"rounds.short.cutoff_tokens": ("30", "20")}
    first = (run.home / "plan.yaml").read_bytes()
    assert plan_change(run.home, first, execution.plan) is None
    execution.plan_path.write_text("edited while engines start")
    stage_plan(run.home, change, step=4)
    assert (run.home / "plan.yaml").read_bytes() == first, "until the trace says so"
    put_in_force(run.home)
    assert (run.home / "plan.yaml").read_bytes() == execution.text, "what was checked"
    first = first.decode()
    assert (run.home / "plans" / "until-step-000004.yaml").read_text() == first
    stage_plan(run.home, change, step=4)
    assert (run.home / "plans" / "until-step-000004.yaml").read_text() == first, "what the steps until then went by"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("dtype: float32", "dtype: bfloat16", "model.dtype: is bfloat16, and the run in .* has float32"),
        ("max_prompt_tokens: 8", "max_prompt_tokens: 7", "rollout.max_prompt_tokens: is 7, and the run in .* has 8"),
        ("name: tiny", "name: small", "name: is small, and the run in .* has tiny"),
    ],
)
def test_what_checkpoints_are_of_cannot_change_under_a_run(run, old, new, told):
    text = run.job.read_text()
    assert old in text

    def named(plan):
        plan["job"]["name"] = "small" if "small" in new else "tiny"

    run.job.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=told) as refused:
        prepare([run.plan("second", named)], run.home, resume=True)
    assert refused.value.path.endswith("job.yaml") and refused.value.line is not None


def test_a_model_of_another_shape_is_another_job(run):
    config = run.folder / "model" / "config.json"
    config.write_text(json.dumps(MODEL | {"hidden_size": 32}))
    with pytest.raises(
        InputError, match=r"model.path: is a model whose config.json is \w+, and the run in .* has a model"
    ):
        prepare([run.plan("second")], run.home, resume=True)


def test_a_schedulers_command_line_undoes_no_change(run):
    first, second = run.folder / "first.yaml", run.plan("second", cutoff_20)
    assert in_force(first, run.home) == first
    (execution,) = prepare([second], run.home, resume=True)
    change = plan_change(run.home, execution.text, execution.plan)
    stage_plan(run.home, change, step=4)
    put_in_force(run.home)
    with (run.home / "trace.jsonl").open("a") as trace:
        trace.write(json.dumps(plan_event(4, 0, "../job/second.yaml"), separators=(",", ":")) + "\n")
    assert was_replaced(run.home, first) and not was_replaced(run.home, second)
    assert in_force(first, run.home).samefile(second) and in_force(second, run.home) == second
    other = run.plan("other", lambda plan: plan["job"]["rounds"]["short"].update(cutoff_tokens=25))
    assert in_force(other, run.home) == other
    second.write_text("edited")
    with pytest.raises(InputError, match=r"goes by another plan by now .*which is gone or was edited since"):
        plan_in_force(run.home)


def test_what_decides_no_plan_may_change_under_a_run(run):
    text = run.job.read_text()
    assert "learning_rate: 0.001" in text
    run.job.write_text(text.replace("learning_rate: 0.001", "learning_rate: 0.002", 1))
    assert prepare([run.plan("second")], run.home, resume=True)


def test_older_runs_go_on_by_plans_of_the_same_job_file(run):
    (run.home / "plans" / "kept.json").unlink()
    assert prepare([run.plan("second", cutoff_20)], run.home, resume=True)
    text = run.job.read_text()
    run.job.write_text(text.replace("max_prompt_tokens: 8", "max_prompt_tokens: 7", 1))
    with pytest.raises(InputError, match="was started with another job than"):
        prepare([run.plan("third")], run.home, resume=True)


def step(number, kind="short", total_s=2.0, deferred=0):
    return {
        "event": "step", "t_s": float(number), "step": number, "kind": kind, "sync_s": 0, "rollout_s": 1,
        "reward_exposed_s": 0, "train_s": 1, "total_s": total_s, "trained_samples": 4, "trained_tokens": 9,
        "reward_mean": 0.5, "deferred": deferred, "conservation_violations": [], "on_policy_violations": 0,
        "checksum_mismatches": 0, "exhausted": 0, "restarts": [], "metrics": {},
    }  # fmt: skip


def plan_event(number, owed, plan="second.yaml"):
    changes = [{"key": "bias.mode", "old": "exact", "new": "sync"}]
    return {"event": "plan", "t_s": number + 0.5, "step": number, "plan": plan, "owed": owed, "changes": changes}


def resume(number, owed=0):
    return {"event": "resume", "t_s": number + 0.4, "step": number, "owed": owed}


@pytest.mark.parametrize(
    ("events", "in_force", "changes"),
    [
        pytest.param([step(1), step(2)], [1, 2], [], id="one plan"),
        pytest.param([step(1), plan_event(1, 0), step(2), step(3)], [2, 3], [2], id="rounds"),
        pytest.param(
            [step(1, deferred=5), plan_event(1, 5), step(2, "long", deferred=1), step(3, "long"), step(4)],
            [4], [2], id="owed prompts first",
        ),
        pytest.param(
            [
                step(1, deferred=5), plan_event(1, 5), step(2, "long", deferred=1), resume(2, 1), step(3, "long"),
                step(4),
            ],
            [4], [2], id="killed while it owes",
        ),
        pytest.param(
            [step(1), step(2), plan_event(2, 0), resume(1), step(2), step(3)], [2, 3], [2], id="back before the change"
        ),
        pytest.param([step(1), plan_event(1, 0)], [1], [2], id="no step yet"),
        pytest.param(
            [step(1), plan_event(1, 0), step(2), plan_event(2, 0, "third.yaml"), step(3)], [3], [2, 3], id="two changes"
        ),
    ],
)  # fmt: skip
def test_figures_are_of_the_plan_in_force(tmp_path, events, in_force, changes):
    trace = tmp_path / "trace.jsonl"
    started = {"event": "run", "t_s": 0.0, "name": "a"}
    trace.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in [started, *events]))
    log = read_run(trace)
    assert [each.step for each in log.in_force] == in_force
    assert [change["from_step"] for change in plan_changes(log)] == changes


def test_a_change_has_seconds_before_and_after(tmp_path):
    trace = tmp_path / "trace.jsonl"
    events = [step(1, total_s=3.0), step(2, total_s=5.0), plan_event(2, 0), step(3, total_s=1.0)]
    trace.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events))
    (change,) = plan_changes(read_run(trace))
    assert (change["step_s_before"], change["step_s_after"]) == (4.0, 1.0)
    assert change["changes"] == [{"key": "bias.mode", "old": "exact", "new": "sync"}]
