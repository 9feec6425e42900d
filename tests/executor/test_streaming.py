"""Whole runs with real parts in which groups are trained while the round's tail decodes."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("vllm")

from rlplan.executor.records.checkpoints import checkpoints
from rlplan.plans.yaml.yaml_io import dump
from rlplan.traces.report_runs import load_runs
from rlplan.traces.run_log import TRACE, read_run

from .test_execute import JOB, plan_document, write_files

pytestmark = pytest.mark.engine

STEPS, WAIT_S = 3, 400


@pytest.fixture(scope="module")
def runs(tiny_model, tmp_path_factory):
    """Folders of two runs that took turns: `off`, and `on`, in which one of two engines is handed over."""
    folder = tmp_path_factory.mktemp("streaming")
    job = JOB.replace("prompts_per_step: 4, samples_per_prompt: 2", "prompts_per_step: 8, samples_per_prompt: 4")
    job = job.replace("max_response_tokens: 48}", "max_response_tokens: 400, seed_per_sample: true}")
    write_files(folder, tiny_model, job.replace("[64, 256]", "[512]"))
    plan = plan_document(folder).model_dump(mode="json")
    planned = plan["job"]
    planned["bias"]["mode"] = "sync"
    planned["issue"] = {"prompts_per_step": 8, "samples_per_prompt": 4}
    planned["loss"] = {"samples": 32.0, "tokens": 2000}
    planned["rounds"]["long"] = None
    short = planned["rounds"]["short"]
    short |= {"issue": {"prompts": 8, "samples": 4}, "cutoff_tokens": None}
    short["rollout"]["engines"] = short["train"]["dp"] = 2
    short["train"]["micro_batch_tokens"] = 512
    plan["predicted"]["rounds"]["long"] = None
    for name in ("off", "on"):
        short["hand_over"] = {"engines": 1, "at_finished": 0.5} if name == "on" else None
        dump(type(plan_document(folder)).model_validate(plan), folder / f"{name}.yaml")
    plans = [str(folder / f"{name}.yaml") for name in ("off", "on")]
    command = [sys.executable, "-m", "rlplan.cli.main", "execute", *plans, "--out", str(folder / "runs")]
    done = subprocess.run(
        [*command, "--steps", str(STEPS)], capture_output=True, text=True, timeout=WAIT_S, cwd="/", check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder / "runs"


def test_engines_are_handed_over_their_samples_move_and_groups_are_trained_before_the_round_ends(runs):
    log = read_run(runs / "on" / TRACE)
    streamed = [event for event in log.events if event["event"] == "streamed"]
    assert len(streamed) == STEPS
    assert all(event["freed"] == ["rollout-tp1-1"] and event["replicas"] == [1] for event in streamed)
    assert sum(event["groups"] for event in streamed) > STEPS
    assert sum(event["moved"] for event in streamed) > 0
    for event, step in zip(streamed, log.steps, strict=True):
        portions = event["portions"]
        assert sum(groups for _, _, groups in portions) == event["groups"] <= 8
        assert all(event["begun_s"] <= began <= ended for began, ended, _ in portions)
        assert [began for began, _, _ in portions] == sorted(began for began, _, _ in portions)
        assert portions[0][0] < step["rollout_s"] + step["reward_exposed_s"]
    turns = [event["turn"] for event in log.events if event["event"] == "turn"]
    assert turns.count("trainer_streams") == STEPS


def test_what_is_trained_is_the_same_and_of_the_weights_of_its_step(runs):
    off, on = (read_run(runs / name / TRACE) for name in ("off", "on"))
    for step in range(1, STEPS + 1):
        samples = [
            {(row["prompt"], row["sample"]): (row["tokens"], row["reward"], row["fate"]) for row in log.samples[step]}
            for log in (off, on)
        ]
        assert samples[0] == samples[1]
        for log, name in ((off, "off"), (on, "on")):
            assert {tuple(row["version"]) for row in log.samples[step]} == {(f"{name}:{step - 1}",) * 2}
    for log in (off, on):
        assert sum(step["on_policy_violations"] for step in log.steps) == 0
        assert all(step["conservation_violations"] == [] for step in log.steps)
        assert max(step["metrics"]["logprob_max_abs_diff"] for step in log.steps) < 1e-3


def test_the_trained_weights_are_the_same_but_for_rounding(runs):
    import torch

    from benchmarks.faults.verdict import weights

    first, second = (weights(checkpoints(runs / name)[-1]) for name in ("off", "on"))
    start = weights(checkpoints(runs / "off")[0])
    moved = torch.cat([(first[name] - start[name]).flatten() for name in first])
    apart = torch.cat([(first[name] - second[name]).flatten() for name in first])
    # Adam divides a gradient by its own size: where that is rounding alone, so is the direction of the step.
    assert moved.norm() > 0.01
    assert apart.norm() < 0.02 * moved.norm()


def test_the_report_says_what_was_hidden_and_who_did_what_when(runs):
    on = next(run for run in load_runs(runs) if run.name == "on")
    from rlplan.traces.report import run_report

    detail = run_report(on, None)
    train = detail["overlap"]["train"]
    assert 0 < train["exposed_s"] < train["alone_s"]
    assert detail["overlap"]["streamed"]["rounds"] == STEPS
    rows = {row["name"]: row for row in detail["timeline"]["rows"]}
    assert {"rollout-tp1-0", "rollout-tp1-1", "scores", "trainer"} < set(rows)
    early = next(row for row in rows.values() if row["what"] == "stream")
    freed, staying = (rows[f"rollout-tp1-{number}"]["spans"] for number in (1, 0))
    assert early["spans"] and freed[-1][1] <= staying[-1][1]
    for row in rows.values():
        assert all(a < b for a, b in row["spans"])
