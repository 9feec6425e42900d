"""A run's figures for those who watch many runs: TensorBoard, Weights & Biases, MLflow, under verl's names.

The trace is the record; a tracker is for looking at. So a tracker that fails (a full disk, a service that is down) is
left out for the rest of the run, which says so once and goes on. Steps that a run takes again after it lost its
trainer are logged again under their number.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from ...plans.yaml.errors import InputError
from ...traces.trace_events import Evaluation, Step

TrackerName = Literal["tensorboard", "wandb", "mlflow"]
TRACKERS: tuple[TrackerName, ...] = get_args(TrackerName)
_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


def step_figures(record: Step) -> dict[str, float]:
    """Figures of a step by name, those that it has: rewards, lengths in tokens, times in seconds, the trainer's."""
    samples, timeouts = record.trained_samples, record.timeouts or {}
    known = {
        "reward/mean": record.reward_mean if samples else None,
        "response_length/mean": record.trained_tokens / samples if samples else None,
        "response_length/max": record.max_tokens,
        "response_length/median": record.median_tokens,
        "timing_s/step": record.total_s,
        "timing_s/gen": record.rollout_s,
        "timing_s/reward": record.reward_exposed_s,
        "timing_s/update_actor": record.train_s,
        "timing_s/update_weights": record.sync_s,
        "perf/total_num_tokens": record.trained_tokens,
        "rounds/deferred": record.deferred,
        "rounds/long": float(record.kind == "long"),
        **{f"reward/{name}": timeouts[name] for name in ("timeouts", "cut") if name in timeouts},
        **{f"actor/{name}": value for name, value in record.metrics.items()},
    }
    return {name: float(value) for name, value in known.items() if value is not None}


def evaluation_figures(evaluation: Evaluation) -> dict[str, float]:
    """Figures of an evaluation by name."""
    return {
        f"val/reward/mean@{evaluation.samples}": float(evaluation.reward[0]),
        **{f"val/pass@{k}": float(chance) for k, (chance, _) in evaluation.pass_at.items()},
        "val/response_length/mean": float(evaluation.mean_tokens),
        "timing_s/testing": float(evaluation.seconds),
    }


class Tracker(Protocol):
    """What takes figures of steps. Its methods may raise what they like."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Take figures of a step."""

    def close(self) -> None:
        """Write what is left."""


class _TensorBoard:
    def __init__(self, run_dir: Path, _name: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(log_dir=str(run_dir / "tensorboard"))

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """A run of W&B in RUN/wandb; offline unless WANDB_MODE or WANDB_API_KEY are set. A resumed run goes on with it."""

    def __init__(self, run_dir: Path, name: str) -> None:
        import wandb

        given = run_dir / "wandb" / "rlplan-run-id"
        given.parent.mkdir(parents=True, exist_ok=True)
        if not given.is_file():
            given.write_text(uuid.uuid4().hex[:8], encoding="utf-8")
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "rlplan"),
            name=name,
            id=given.read_text(encoding="utf-8").strip(),
            resume="allow",
            dir=str(run_dir),
            mode=os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline"),
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")  # W&B's own step never goes back, and a run's may

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log({**figures, "step": step})

    def close(self) -> None:
        self._run.finish()


class _Mlflow:
    """A run of MLflow at MLFLOW_TRACKING_URI, else in files of RUN/mlflow. A resumed run goes on with it."""

    def __init__(self, run_dir: Path, name: str) -> None:
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 asks for it
        from mlflow import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI") or (run_dir / "mlflow").resolve().as_uri()
        self._client: Any = MlflowClient(tracking_uri=uri)
        given = run_dir / "mlflow-run-id"
        if not given.is_file():
            project = os.environ.get("MLFLOW_EXPERIMENT_NAME", "rlplan")
            found = self._client.get_experiment_by_name(project)
            experiment = self._client.create_experiment(project) if found is None else found.experiment_id
            given.write_text(self._client.create_run(experiment, run_name=name).info.run_id, encoding="utf-8")
        self._run_id = given.read_text(encoding="utf-8").strip()

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        # One request a step: the service may be far, and training waits for it.
        now_ms = int(1000 * time.time())
        metrics = [Metric(name.replace("@", "_at_"), value, now_ms, step) for name, value in figures.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


_MAKERS: Mapping[str, Callable[[Path, str], Tracker]] = {
    "tensorboard": _TensorBoard, "wandb": _Wandb, "mlflow": _Mlflow,
}  # fmt: skip


def must_be_installed(names: Sequence[TrackerName]) -> None:
    """Raise InputError for a tracker whose package is not installed."""
    for name in names:
        if find_spec(_PACKAGES[name]) is None:
            raise InputError(
                f"--tracker {name} needs the package {_PACKAGES[name]}, which is not installed; install it"
            )


class Trackers:
    """Those that a run was asked for; `tell` takes a line on each that fails."""

    def __init__(self, names: Sequence[TrackerName], run_dir: Path, run_name: str, tell: Callable[[str], None]) -> None:
        self._tell, self._trackers = tell, dict[str, Tracker]()
        for name in names:
            self._guarded(name, partial(self._make, name, run_dir, run_name))

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Give figures of a step to all of them."""
        for name, tracker in list(self._trackers.items()):
            self._guarded(name, partial(tracker.log, step, figures))

    def close(self) -> None:
        """Close all of them."""
        for name, tracker in list(self._trackers.items()):
            self._guarded(name, tracker.close)

    def _make(self, name: str, run_dir: Path, run_name: str) -> None:
        self._trackers[name] = _MAKERS[name](run_dir, run_name)

    def _guarded(self, name: str, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 (whatever a tracker's code or service raises, training goes on)
            self._trackers.pop(name, None)
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            self._tell(f"tracker {name} is left out from now on: {reason}")
