"""Trackers: the figures that they are given, under which names, and that a broken one ends no run."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlplan.executor.records import trackers
from rlplan.executor.records.trackers import Trackers, evaluation_figures, must_be_installed, step_figures
from rlplan.plans.yaml.errors import InputError
from rlplan.traces.trace_events import Evaluation

from ..run_stage import in_a_run

EVALUATION = Evaluation(
    step=4, prompts=8, samples=2, reward=(0.5, 0.1), pass_at={1: (0.5, 0.1), 2: (0.75, None)}, mean_tokens=30.0,
    truncated=0.0, failed=0, seconds=2.5,
)  # fmt: skip


def scalars(folder):
    board = EventAccumulator(str(folder))
    board.Reload()
    return {name: [(each.step, each.value) for each in board.Scalars(name)] for name in board.Tags()["scalars"]}


def test_a_step_and_an_evaluation_have_the_names_that_verls_users_know(tmp_path):
    async def nothing(run, trainer): ...

    events = in_a_run(tmp_path, nothing, steps=2, trackers=["tensorboard"])
    board = scalars(tmp_path / "tensorboard")
    steps = [event for event in events if event["event"] == "step"]
    assert board["reward/mean"] == [(s["step"], pytest.approx(s["reward_mean"])) for s in steps]
    assert board["timing_s/gen"] == [(s["step"], pytest.approx(s["rollout_s"])) for s in steps]
    assert board["response_length/mean"] == [(1, 3.0), (2, 3.0)]
    assert {"timing_s/step", "timing_s/update_actor", "actor/grad_norm", "actor/loss"} <= set(board)
    assert evaluation_figures(EVALUATION) == {
        "val/reward/mean@2": 0.5, "val/pass@1": 0.5, "val/pass@2": 0.75, "val/response_length/mean": 30.0,
        "timing_s/testing": 2.5,
    }  # fmt: skip


def test_a_tracker_that_fails_is_told_once_and_left_out(tmp_path, monkeypatch):
    class Broken:
        def __init__(self, *_): ...
        def log(self, step, figures):
            raise ConnectionError("no route to the service\nand more")

        def close(self):
            raise AssertionError("it was left out")

    told = []
    monkeypatch.setattr(trackers, "_MAKERS", {**trackers._MAKERS, "wandb": Broken})
    both = Trackers(["wandb", "tensorboard"], tmp_path, "toy", told.append)
    both.log(1, {"reward/mean": 0.5})
    both.log(2, {"reward/mean": 0.6})
    both.close()
    assert told == ["tracker wandb is left out from now on: ConnectionError: no route to the service"]
    assert [step for step, _ in scalars(tmp_path / "tensorboard")["reward/mean"]] == [1, 2]


def test_wandb_goes_on_with_its_run_after_a_resume_and_is_offline_without_a_key(tmp_path, monkeypatch):
    begun = []

    class Run:
        def define_metric(self, *_, **__): ...
        def log(self, figures):
            begun[-1]["logged"] = figures

        def finish(self): ...

    fake = ModuleType("wandb")
    fake.Settings = dict
    fake.init = lambda **options: begun.append(options) or Run()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for key in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT"):
        monkeypatch.delenv(key, raising=False)
    for step in (1, 2):
        tracker = Trackers(["wandb"], tmp_path, "toy", pytest.fail)
        tracker.log(step, {"reward/mean": 0.5})
        tracker.close()
    assert begun[0]["id"] == begun[1]["id"] and {each["mode"] for each in begun} == {"offline"}
    assert [each["logged"] for each in begun] == [{"reward/mean": 0.5, "step": step} for step in (1, 2)]


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None if name == "mlflow" else True)
    must_be_installed(["tensorboard", "wandb"])
    with pytest.raises(InputError, match="--tracker mlflow needs the package mlflow, which is not installed"):
        must_be_installed(["tensorboard", "mlflow"])


def test_figures_that_a_step_does_not_have_are_left_out():
    def nothing_trained(**known):
        return SimpleNamespace(
            **{"trained_samples": 0, "trained_tokens": 0, "reward_mean": 0.0, "max_tokens": None, "kind": "long",
               "median_tokens": None, "timeouts": None, "metrics": {}, "deferred": 3, "total_s": 2.0, "rollout_s": 1.0,
               "reward_exposed_s": 0.0, "train_s": 0.5, "sync_s": 0.5, **known}
        )  # fmt: skip

    figures = step_figures(nothing_trained())
    assert figures["rounds/deferred"] == 3 and figures["rounds/long"] == 1
    assert not {"reward/mean", "response_length/mean", "response_length/max"} & set(figures)
