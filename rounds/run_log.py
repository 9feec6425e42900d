"""A run's folder as its trace tells it: steps, and what each step's round sampled.

Invariants of a `RunLog`: steps are in order and each number is there once; steps that a resume or a restarted trainer
went back over are not in it, nor are their samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .trace import TraceError, read_trace

TRACE = "trace.jsonl"
PLAN_COPY = "plan.yaml"
"""Files of a run's folder: what happened, and the plan that it was started with."""

_NUMBERS = (
    "step", "total_s", "sync_s", "rollout_s", "reward_exposed_s", "train_s", "trained_samples", "trained_tokens",
    "reward_mean", "max_tokens", "median_tokens", "decoded_tokens", "deferred", "on_policy_violations",
    "checksum_mismatches", "exhausted",
)  # fmt: skip


@dataclass
class RunLog:
    """What a run did.

    Attributes:
        steps: the `step` events.
        samples: the `sample` events of each step; samples that were aborted while they decoded have none.
        started: the `run` event; empty if the trace has none.
        first_steps: numbers of the steps that came first after a start or a resume, when nothing is warm yet.
        restarts: engines and trainers that were replaced.
        resumes: how often it was taken up again.
        events: all other events in order, those before a resume included: starts, resumes, ends, restarts, failures.
        last_t_s: when the last event of all was written, seconds since the run's first start; None before the first.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    samples: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    started: dict[str, Any] = field(default_factory=dict)
    first_steps: set[int] = field(default_factory=set)
    restarts: int = 0
    resumes: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    last_t_s: float | None = None


def read_run(path: Path) -> RunLog:
    """Read a run's trace file.

    Raises TraceError for a damaged line or an event that lacks what it should have, FileNotFoundError if it is absent.
    """
    log = RunLog()
    cold = True
    try:
        for event in read_trace(path):
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
                case "restart":
                    log.restarts += 1
                case "run":
                    log.started = event
                case "resume":
                    log.resumes += 1
                    cold = True
                    log.steps = [step for step in log.steps if step["step"] <= event["step"]]
                    log.samples = {step: rows for step, rows in log.samples.items() if step <= event["step"]}
    except (KeyError, TypeError) as error:
        reason = f"an event lacks {error}" if isinstance(error, KeyError) else str(error)
        raise TraceError(path, None, f"{reason}; the trace is damaged or of another version") from error
    return log


def _check_step(event: dict[str, Any]) -> None:
    """Raise KeyError or TypeError if a step event is not what readers take it for."""
    for name in _NUMBERS:
        if not isinstance(event[name], int | float):
            raise TypeError(f"{name} of a step is {event[name]!r}, which is no number")
    for name, kind in (("restarts", list), ("conservation_violations", list), ("metrics", dict), ("kind", str)):
        if not isinstance(event[name], kind):
            raise TypeError(f"{name} of a step is {event[name]!r}")


def _check_sample(event: dict[str, Any]) -> None:
    """Likewise for a sample event."""
    for name in ("step", "epoch", "draw", "sample", "tokens", "prompt_tokens"):
        if not isinstance(event[name], int):
            raise TypeError(f"{name} of a sample is {event[name]!r}, which is no whole number")
    if not isinstance(event["prompt"], str) or not isinstance(event["truncated"], bool):
        raise TypeError(f"a sample has prompt {event['prompt']!r} and truncated {event['truncated']!r}")
    if event["fate"] is not None and not isinstance(event["fate"], str):
        raise TypeError(f"fate of a sample is {event['fate']!r}")
