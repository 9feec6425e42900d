"""Whole runs in which groups are trained while the round's tail decodes."""

import pytest

from rlplan.executor.records.checkpoints import checkpoints
from rlplan.traces.run_log import TRACE, read_run

from ..loaded_runs import load_runs
from .tiny_job import make_plan, write_job, write_plan

pytestmark = pytest.mark.engine

STEPS = 3


@pytest.fixture
def runs(tiny_model, tmp_path, execute):
    """Folders of two runs that took turns: `off`, and `on`, in which one of two engines is handed over."""
    write_job(tmp_path, tiny_model, prompts=8, samples=4, longest=400)
    plan = make_plan(tmp_path, prompts=8, samples=4, cutoff=None, engines=2, micro_batch=512)
    short = plan["job"]["rounds"]["short"]
    short["train"]["dp"] = 2
    write_plan(plan, tmp_path / "off.yaml")
    short["hand_over"] = {"engines": 1, "at_finished": 0.5}
    write_plan(plan, tmp_path / "on.yaml")
    plans = [tmp_path / f"{name}.yaml" for name in ("off", "on")]
    assert execute(*plans, "--out", tmp_path / "runs", "--steps", STEPS) == 0
    return tmp_path / "runs"


def test_streaming_trains_the_same_while_the_tail_decodes(runs):
    off, on = (read_run(runs / name / TRACE) for name in ("off", "on"))
    groups_are_trained_before_their_round_ends(on)
    for step in range(1, STEPS + 1):
        samples = [
            {(row.prompt, row.sample): (row.tokens, row.reward, row.fate) for row in log.samples[step]}
            for log in (off, on)
        ]
        assert samples[0] == samples[1]
        for log, name in ((off, "off"), (on, "on")):
            assert {tuple(row.version) for row in log.samples[step]} == {(f"{name}:{step - 1}",) * 2}
    for log in (off, on):
        assert sum(step.on_policy_violations for step in log.steps) == 0
        assert all(step.conservation_violations == [] for step in log.steps)
        assert max(step.metrics["logprob_max_abs_diff"] for step in log.steps) < 1e-3
    trained_weights_differ_by_rounding_alone(runs)
    the_report_tells_what_was_hidden(runs)


def groups_are_trained_before_their_round_ends(log):
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
        assert portions[0][0] < step.rollout_s + step.reward_exposed_s
    turns = [event["turn"] for event in log.events if event["event"] == "turn"]
    assert turns.count("trainer_streams") == STEPS


def trained_weights_differ_by_rounding_alone(runs):
    import torch

    from benchmarks.faults.verdict import weights

    first, second = (weights(checkpoints(runs / name)[-1]) for name in ("off", "on"))
    start = weights(checkpoints(runs / "off")[0])
    moved = torch.cat([(first[name] - start[name]).flatten() for name in first])
    apart = torch.cat([(first[name] - second[name]).flatten() for name in first])
    # Adam divides a gradient by its own size: where that is rounding alone, so is the direction of the step.
    assert moved.norm() > 0.01
    assert apart.norm() < 0.02 * moved.norm()


def the_report_tells_what_was_hidden(runs):
    from rlplan.traces.report import run_report

    detail = run_report(next(run for run in load_runs(runs) if run.name == "on"), None)
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
