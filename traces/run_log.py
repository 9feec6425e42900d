"""Reads a run's trace: its steps, the samples of each step, and all other events.

Invariants of a `RunLog`: steps are in order and each number is there once. After a resume, or after the trainer was
restarted, steps are done again; then only the later step and its samples are there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from .trace import TraceError, read_trace

TRACE = "trace.jsonl"
PLAN_COPY = "plan.yaml"
"""Files of a run's folder: its trace, and a copy of the plan that it was started with."""

LOCK = ".lock"
"""The file whose lock the driver of a run, or of groups, holds (executor/records/execution_folder.py)."""

LONGEST_S, MOST = 1e9, 1e15
"""Largest believable seconds (30 years) and counts; a trace with larger ones is damaged."""

MOST_TOKENS, MOST_DRAWS = 10_000_000, 100_000_000
"""Largest believable tokens of one sample, and number of a draw within its round."""

_SECONDS = ("total_s", "sync_s", "rollout_s", "reward_exposed_s", "train_s")
_COUNTS = (
    "step", "trained_samples", "trained_tokens", "max_tokens", "median_tokens", "decoded_tokens", "deferred",
    "on_policy_violations", "checksum_mismatches", "exhausted",
)  # fmt: skip


@dataclass
class RunLog:
    """The events of a run's trace.

    Attributes:
        steps: the `step` events.
        samples: the `sample` events by step; a sample that was aborted while it decoded has no event.
        started: the `run` event; empty if the trace has none.
        first_steps: numbers of the first step after the start and after each resume, when engines are not warm.
        restarts: number of replaced engines and trainers.
        resumes: number of resumes.
        events: all events but steps and samples, in order: starts, resumes, ends, restarts, failures.
        last_t_s: time of the last event, in seconds since the run's first start; None if there is no event.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    samples: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    started: dict[str, Any] = field(default_factory=dict)
    first_steps: set[int] = field(default_factory=set)
    restarts: int = 0
    resumes: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    last_t_s: float | None = None

    @property
    def cold_s(self) -> float | None:
        """Mean seconds from the start of a process until it was ready for its first round; None in older traces."""
        seconds = [float(event["process_s"]) for event in self.events if "process_s" in event]
        return fmean(seconds) if seconds else None


def read_run(path: Path) -> RunLog:
    """Read a run's trace file.

    Raises TraceError for a damaged line or an event that lacks what it should have, FileNotFoundError if it is absent.
    """
    log = RunLog()
    cold = True
    try:
        for event in read_trace(path):
            _check_number(event, "t_s", LONGEST_S)
            log.last_t_s = float(event["t_s"])
            if event["event"] not in ("step", "sample"):
                log.events.append(event)
            match event["event"]:
                case "step":
                    _check_step(event)
                    log.steps.append(event)
                    log.restarts += len(event["restarts"])
                    if cold:
                        log.first_steps.add(event["step"])
                        cold = False
                case "sample":
                    _check_sample(event)
                    log.samples.setdefault(event["step"], []).append(event)
                case "streamed":
                    _check_streamed(event)
                case "tail":
                    _check_tail(event)
                case "drafts":
                    _check_drafts(event)
                case "balanced":
                    _check_whole(event, "step", "prompts", "known")
                case "restart":
                    log.restarts += 1
                case "run":
                    log.started = event
                case "resume":
                    _check_whole(event, "step")
                    log.resumes += 1
                    cold = True
                    log.steps = [step for step in log.steps if step["step"] <= event["step"]]
                    log.samples = {step: rows for step, rows in log.samples.items() if step <= event["step"]}
    except (KeyError, TypeError) as error:
        reason = f"an event lacks {error}" if isinstance(error, KeyError) else str(error)
        raise TraceError(path, None, f"{reason}; the trace is damaged or of another version") from error
    return log


def _check_number(event: dict[str, Any], name: str, most: float) -> None:
    """Raise KeyError or TypeError unless event[name] is a number from 0 to `most`."""
    value = event[name]
    if not isinstance(value, int | float) or not 0 <= value <= most:
        raise TypeError(f"{name} of a {event['event']} is {_shown(value)}, which is no number from 0 to {most:g}")


def _check_whole(event: dict[str, Any], *names: str) -> None:
    """Raise KeyError or TypeError unless the named values of an event are whole numbers of at least 0."""
    for name in names:
        value = event[name]
        if not isinstance(value, int) or not 0 <= value <= MOST:
            raise TypeError(f"{name} of a {event['event']} is {_shown(value)}, which is no whole number")


def _check_counts(event: dict[str, Any], name: str) -> None:
    """Raise TypeError unless event[name] is absent, null, or a mapping of names to counts."""
    counts = event.get(name)
    if counts is not None and not (
        isinstance(counts, dict) and all(isinstance(value, int) and 0 <= value <= MOST for value in counts.values())
    ):
        raise TypeError(f"{name} of a {event['event']} is {_shown(counts)}, which does not count anything")


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _check_step(event: dict[str, Any]) -> None:
    """Raise KeyError or TypeError if a `step` event lacks a value or has one of another type.

    Rewards and metrics may be NaN: so they are in a run that diverged.
    """
    for name in _SECONDS:
        _check_number(event, name, LONGEST_S)
    # Seconds of the step outside its phases; rounding can make them slightly negative.
    other_s = event.get("other_s", 0.0)
    if other_s is not None and not (isinstance(other_s, int | float) and abs(other_s) <= LONGEST_S):
        raise TypeError(f"other_s of a step is {_shown(other_s)}, which is no number")
    for name in _COUNTS:
        _check_number(event, name, MOST)
    _check_whole(event, "step", "deferred")
    for name, kind in (("restarts", list), ("conservation_violations", list), ("metrics", dict), ("kind", str)):
        if not isinstance(event[name], kind):
            raise TypeError(f"{name} of a step is {_shown(event[name])}")
    for name in ("samples", "timeouts", "reward_failures"):
        _check_counts(event, name)
    for name, value in [("reward_mean", event["reward_mean"]), *event["metrics"].items()]:
        if not isinstance(value, int | float):
            raise TypeError(f"{name} of a step is {_shown(value)}, which is no number")


def _check_streamed(event: dict[str, Any]) -> None:
    """Raise KeyError or TypeError if a `streamed` event lacks a value or has one of another type."""
    _check_whole(event, "step", "groups", "moved")
    if event["begun_s"] is not None:
        _check_number(event, "begun_s", LONGEST_S)
    for name in ("freed", "replicas", "portions"):
        if not isinstance(event[name], list):
            raise TypeError(f"{name} of a round's streaming is {_shown(event[name])}, which is no list")
    for portion in event["portions"]:
        if not (isinstance(portion, list) and len(portion) == 3 and all(isinstance(x, int | float) for x in portion)):
            raise TypeError(f"a portion of a round's streaming is {_shown(portion)}, which is not three numbers")


def _check_tail(event: dict[str, Any]) -> None:
    """Raise KeyError or TypeError if a `tail` event lacks a value or has one of another type."""
    _check_whole(event, "step", "engines", "tp", "moved")
    for name in ("at_s", "seconds"):
        if event[name] is not None:
            _check_number(event, name, LONGEST_S)
    if event["at_s"] is None and event["seconds"] is not None:
        raise TypeError(f"a tail began after {_shown(event['seconds'])} seconds of a change that never was")


def _check_drafts(event: dict[str, Any]) -> None:
    """Raise KeyError or TypeError if a `drafts` event lacks a value or has one of another type."""
    _check_whole(event, "step", "epoch", "steps", "sequence_steps", "index_bytes", "history_bytes")
    for name in ("drafted_at", "accepted_at"):
        values = event[name]
        if not isinstance(values, list) or not all(isinstance(value, int) and 0 <= value <= MOST for value in values):
            raise TypeError(f"{name} of a round's drafts is {_shown(values)}, which does not count anything")
    if len(event["drafted_at"]) != len(event["accepted_at"]) or not isinstance(event["by_source"], dict):
        raise TypeError(f"drafts of step {event['step']} have no counts by place and source")
    _check_counts(event, "by_source")
    batches = event["batches"]
    if not isinstance(batches, dict) or not all(
        size.isdigit() and isinstance(batch, dict) and _are_numbers(batch.values()) for size, batch in batches.items()
    ):
        raise TypeError(f"batches of a round's drafts are {_shown(batches)}, which are no means by batch")
    for batch in batches.values():
        for name in ("plain_s", "drafted_s", "emitted"):
            _check_number({"event": "round's drafts", **batch}, name, LONGEST_S)
    if not (isinstance(ahead := event.get("ahead", [0, 0]), list) and len(ahead) == 2 and _are_numbers(ahead)):
        raise TypeError(f"ahead of a round's drafts is {_shown(ahead)}, which is not two counts")


def _are_numbers(values: Iterable[object]) -> bool:
    return all(isinstance(value, int | float) and abs(value) <= MOST for value in values)


def _check_sample(event: dict[str, Any]) -> None:
    """Raise KeyError or TypeError if a `sample` event lacks a value or has one of another type."""
    _check_whole(event, "step", "epoch", "draw", "sample", "tokens", "prompt_tokens")
    for name, most in (("tokens", MOST_TOKENS), ("prompt_tokens", MOST_TOKENS), ("draw", MOST_DRAWS)):
        if event[name] > most:
            raise TypeError(f"{name} of a sample is {_shown(event[name])}, and at most {most} is believed")
    for name in ("reward", "reward_s"):
        value = event.get(name)
        if value is not None and not isinstance(value, int | float):
            raise TypeError(f"{name} of a sample is {_shown(value)}, which is no number")
    if not isinstance(event["prompt"], str) or not isinstance(event["truncated"], bool):
        raise TypeError(f"a sample has prompt {_shown(event['prompt'])} and truncated {_shown(event['truncated'])}")
    if event["fate"] is not None and not isinstance(event["fate"], str):
        raise TypeError(f"fate of a sample is {_shown(event['fate'])}")
