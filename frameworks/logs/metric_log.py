"""Metrics by step, as verl, slime and TRL log them: console logs, TensorBoard, exports of W&B, JSON.

A log says what its keys say and nothing else: a field that no key of it holds is None. The phases of a step follow
from sums of keys alone (`_FIELDS`), never from what a framework is known to do between them.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...plans.yaml.errors import InputError

Row = dict[str, float]
EVENT_FILES = "events.out.tfevents.*"


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One step of a log. Seconds of phases and tokens of responses; None: the log does not say.

    `train_s`: everything between rollout and the new weights (log-probs of the old policy and the reference included);
    `reward_exposed_s`: rewards after the rollout; `samples`: those that were trained; `deferred`: prompts that wait for
    a long round, in rounds of a plan; `filtered`: groups that dynamic sampling dropped (slime logs them by reason).
    """

    step: int
    total_s: float | None = None
    rollout_s: float | None = None
    train_s: float | None = None
    sync_s: float | None = None
    reward_exposed_s: float | None = None
    mean_tokens: float | None = None
    median_tokens: float | None = None
    max_tokens: float | None = None
    truncated_share: float | None = None
    mean_prompt_tokens: float | None = None
    batch_tokens: float | None = None
    reward_mean: float | None = None
    long_round: float | None = None
    deferred: float | None = None
    filtered: float | None = None

    @property
    def samples(self) -> int | None:
        """Sequences of the step: its tokens by their mean, where both are logged."""
        if not self.batch_tokens or not self.mean_tokens or self.mean_prompt_tokens is None:
            return None
        return round(self.batch_tokens / (self.mean_tokens + self.mean_prompt_tokens))


@dataclass(frozen=True)
class MetricLog:
    """The steps of a log, in order, by their numbers."""

    path: Path
    framework: str
    form: str
    steps: tuple[LoggedStep, ...]


# By framework and field the keys that are summed; of alternatives (tuples) the first that is logged.
_FIELDS: dict[str, dict[str, tuple[str | tuple[str, ...], ...]]] = {
    "verl": {
        "total_s": (("timing_s/step", "perf/time_per_step"),),
        "rollout_s": (("timing_s/gen", "timing_s/generate_sequences"),),
        "train_s": (
            "timing_s/old_log_prob", ("timing_s/ref", "timing_s/ref_log_prob"), "timing_s/values", "timing_s/adv",
            "timing_s/update_critic", "timing_s/update_actor",
        ),
        "sync_s": ("timing_s/update_weights",),
        "reward_exposed_s": ("timing_s/reward",),
        "mean_tokens": ("response_length/mean",),
        "max_tokens": ("response_length/max",),
        "truncated_share": ("response_length/clip_ratio",),
        "mean_prompt_tokens": ("prompt_length/mean",),
        "batch_tokens": ("perf/total_num_tokens",),
        "reward_mean": (("critic/score/mean", "critic/rewards/mean"),),
        "long_round": ("rlplan/long_round",),
        "deferred": ("rlplan/deferred_prompts",),
    },
    "slime": {
        "total_s": ("perf/step_time",),
        "rollout_s": ("perf/rollout_time",),
        "train_s": (("perf/train_time", "perf/actor_train_time"),),
        "sync_s": ("perf/update_weights_time",),
        "mean_tokens": (("rollout/response_len/mean", "rollout/response_lengths"),),
        "median_tokens": ("rollout/response_len/median",),
        "max_tokens": ("rollout/response_len/max",),
        "truncated_share": (("rollout/truncated_ratio", "rollout/truncated"),),
        "reward_mean": (("rollout/raw_reward", "rollout/rewards"),),
        "long_round": ("rollout/rlplan/long_round",),
        "deferred": ("rollout/rlplan/deferred_prompts",),
    },
    "trl": {
        "total_s": ("step_time",),
        "rollout_s": (
            (
                "profiling/Time taken: GRPOTrainer.vLLM.generate",
                "profiling/Time taken: GRPOTrainer.transformers.generate",
                "profiling/Time taken: GRPOTrainer.transformers.generate_batch",
            ),
        ),
        "sync_s": ("profiling/Time taken: GRPOTrainer.sync_weights",),
        "reward_exposed_s": ("profiling/Time taken: GRPOTrainer._calculate_rewards",),
        "mean_tokens": ("completions/mean_length",),
        "max_tokens": ("completions/max_length",),
        "truncated_share": ("completions/clipped_ratio",),
        "reward_mean": ("reward",),
    },
}  # fmt: skip
_ALL_KEYS = {
    name: {key for parts in table.values() for part in parts for key in ((part,) if isinstance(part, str) else part)}
    for name, table in _FIELDS.items()
}
# Without one of these a file is no log of that framework's training steps.
_MARKS = {
    "verl": ("timing_s/step", "timing_s/gen", "response_length/mean"),
    "slime": ("perf/rollout_time", "perf/train_time", "perf/actor_train_time", "rollout/response_len/mean"),
    "trl": ("step_time", "completions/mean_length"),
}
_FILTERED = "rollout/dynamic_filter/drop_"
_STEP_KEYS = ("training/global_step", "train/global_step", "rollout/step", "step", "global_step", "Step", "_step")


def read_metric_log(path: Path) -> MetricLog | None:
    """The steps of the log at `path`, a file or a folder of TensorBoard's; None if it is a log of none of these.

    Raises InputError if it cannot be read, and ModuleNotFoundError where TensorBoard's files need its package.
    """
    if path.is_dir():
        folders = sorted({file.parent for file in path.rglob(EVENT_FILES)})
        return _log(path, "TensorBoard", (row for folder in folders for row in _board(folder)))
    if "tfevents" in path.name:
        return _log(path, "TensorBoard", _board(path))
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            head = file.read(4096).lstrip()
            file.seek(0)
            if head.startswith("{") and path.suffix == ".json":
                return _log(path, "trainer state", _history(json.load(file)))
            if head.startswith("{"):
                return _log(path, "JSON Lines", _json_lines(file))
            if path.suffix in (".csv", ".tsv"):
                sign = "\t" if path.suffix == ".tsv" else ","
                return _log(path, "export", _export(csv.DictReader(file, delimiter=sign)))
            return _log(path, "console log", _console(file))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", str(path)) from None
    except (csv.Error, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"cannot be read as a log of metrics: {error}", str(path)) from None


def _log(path: Path, form: str, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> MetricLog | None:
    """Rows of one step are put together; of a key that is there twice the last finite value counts."""
    by_step: dict[int, Row] = {}
    for step, row in rows:
        into = by_step.setdefault(step, {})
        for key, value in row.items():
            try:
                number = float(value)
            except (TypeError, ValueError, OverflowError):
                continue
            if math.isfinite(number):
                into[key.removeprefix("train/") if key.startswith("train/") else key] = number
    rows_of_steps = by_step.values()
    marked = {name: sum(any(mark in row for mark in marks) for row in rows_of_steps) for name, marks in _MARKS.items()}
    framework = max(marked, key=lambda name: marked[name])
    if not marked[framework]:
        return None
    table = _FIELDS[framework]
    steps = []
    for number, row in sorted(by_step.items()):
        if any(mark in row for mark in _MARKS[framework]):
            found = {field: _sum(row, keys) for field, keys in table.items()}
            if framework == "trl" and found["total_s"] is not None and found["rollout_s"] is not None:
                # step_time is of a whole step: generation, rewards, forward and backward passes.
                rest = sum(found[phase] or 0.0 for phase in ("rollout_s", "sync_s", "reward_exposed_s"))
                found["train_s"] = max(0.0, found["total_s"] - rest)
            if framework == "slime" and found["rollout_s"] is not None:
                found["filtered"] = math.fsum(row[key] for key in row if key.startswith(_FILTERED))
            steps.append(LoggedStep(number, **found))
    return MetricLog(path, framework, form, tuple(steps))


def _sum(row: Row, keys: tuple[str | tuple[str, ...], ...]) -> float | None:
    found = [
        next((row[key] for key in ((part,) if isinstance(part, str) else part) if key in row), None) for part in keys
    ]
    logged = [value for value in found if value is not None]
    return math.fsum(logged) if logged else None


def missing_fields(steps: Iterable[LoggedStep]) -> list[str]:
    """Fields that no step has, by name."""
    found = list(steps)
    return [field.name for field in fields(LoggedStep) if all(getattr(step, field.name) is None for step in found)]


# -- forms ---------------------------------------------------------------------------------------------------------

_NUMBER = r"(?:np\.\w+\()?'?(-?(?:\d+\.?\d*(?:e[+-]?\d+)?|nan|inf))"
_VERL_LINE = re.compile(r"(?:^|\s)step:(\d+) - (.+)")
_SLIME_LINE = re.compile(r"(?:^|\s)(?:perf|rollout|step) (\d+): \{(.+)\}")
_DICT_PAIR = re.compile(r"'([^']+)': " + _NUMBER, re.I)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _console(lines: Iterable[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """`step:12 - timing_s/gen:3.1 - ...` of verl, `perf 12: {'perf/rollout_time': 3.1, ...}` of slime; Ray's and
    logging's words before them are passed over."""
    for raw in lines:
        if "step:" not in raw and ": {" not in raw:
            continue
        line = _COLOUR.sub("", raw)
        if match := _VERL_LINE.search(line):
            pairs = (part.rpartition(":") for part in match[2].strip().split(" - "))
            yield int(match[1]), {key: re.sub(r"^np\.\w+\((.*)\)$", r"\1", value) for key, _, value in pairs}
        elif match := _SLIME_LINE.search(line):
            yield int(match[1]), dict(_DICT_PAIR.findall(match[2]))


def _history(document: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """transformers' trainer_state.json."""
    history = document.get("log_history") if isinstance(document, dict) else None
    for row in history if isinstance(history, list) else ():
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            yield row["step"], row


def _json_lines(lines: Iterable[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """verl's file logger, `{"step": 1, "data": {...}}`, or rows of metrics with their step."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number} is no JSON ({error})") from None
        if isinstance(row, dict):
            data = row["data"] if isinstance(row.get("data"), dict) else row
            if (step := _step_of({**data, **row})) is not None:
                yield step, data


def _export(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """A history of W&B as CSV, or a chart's export, whose columns are `RUN - METRIC`, `RUN - METRIC__MIN`, ..."""
    for row in rows:
        named = {
            str(key).rpartition(" - ")[2]: value
            for key, value in row.items()
            if key is not None and not str(key).endswith(("__MIN", "__MAX"))
        }
        if (step := _step_of(named)) is not None:
            yield step, named


def _step_of(row: Mapping[str, Any]) -> int | None:
    for key in _STEP_KEYS:
        try:
            return int(float(row[key]))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return None


def _board(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Scalars of TensorBoard's files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path), size_guidance={"scalars": 0})
    events.Reload()
    known = {key for keys in _ALL_KEYS.values() for key in keys}
    for tag in events.Tags()["scalars"]:
        if tag in known or tag.removeprefix("train/") in known or tag.startswith(_FILTERED):
            for point in events.Scalars(tag):
                yield point.step, {tag: point.value}
