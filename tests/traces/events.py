"""Events of a run's trace, with what a test does not care about filled in."""

import json
import tempfile
from pathlib import Path
from typing import Any

from msgspec import convert

from rlplan.plans.schema.plan import Plan
from rlplan.traces.run_log import Run, RunLog, read_run
from rlplan.traces.trace_events import StepEvent

_ONES = (
    "total_s", "sync_s", "rollout_s", "reward_exposed_s", "train_s", "trained_samples", "trained_tokens",
    "reward_mean", "max_tokens", "median_tokens", "decoded_tokens", "deferred", "on_policy_violations",
    "checksum_mismatches", "exhausted",
)  # fmt: skip


def step(number: int, **changes: Any) -> dict[str, Any]:
    fixed = {"event": "step", "t_s": 1.0, "step": number, "kind": "short", "restarts": [], "metrics": {}}
    return {**fixed, "conservation_violations": [], **dict.fromkeys(_ONES, 1), **changes}


def sample(number: int, **changes: Any) -> dict[str, Any]:
    fields = {"event": "sample", "t_s": 1.0, "step": number, "prompt": "p", "epoch": 0, "draw": 0, "sample": 0}
    return {**fields, "tokens": 3, "prompt_tokens": 2, "truncated": False, "fate": "trained", **changes}


STREAMED = {
    "event": "streamed", "t_s": 1.0, "step": 4, "begun_s": 6.0, "freed": ["b"], "replicas": [1], "groups": 3,
    "moved": 1, "portions": [[6.0, 7.0, 1], [7.0, 8.5, 1], [9.0, 9.5, 1]],
}  # fmt: skip
TAIL = {"event": "tail", "t_s": 1.0, "step": 4, "engines": 1, "tp": 2, "at_s": 4.0, "seconds": 1.5, "moved": 1}
BALANCED = {"event": "balanced", "t_s": 1.0, "step": 4, "prompts": 8, "known": 6}
BATCH = {"plain_s": 0.02, "drafted_s": 0.025, "emitted": 1.5, "verified": 40, "saved_s": 0.2}
DRAFTS = {
    "event": "drafts", "t_s": 1.0, "step": 1, "kind": "short", "epoch": 1, "steps": 50, "sequence_steps": 200,
    "drafted_at": [100, 40], "accepted_at": [80, 10], "by_source": {"own": 30, "sibling": 60},
    "batches": {"3": BATCH, "15": {**BATCH, "verified": 0, "saved_s": -0.05}}, "ahead": [3, 120],
    "index_bytes": 5000, "history_bytes": 700,
}  # fmt: skip


def write(path: Path, *events: dict[str, Any]) -> Path:
    """Write a trace; returns its path."""
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def step_of(number: int, **changes: Any) -> StepEvent:
    """A step as a reader has it."""
    return convert(step(number, **changes), StepEvent)


def log_of(*events: dict[str, Any]) -> RunLog:
    """What is read from a trace of these events."""
    with tempfile.TemporaryDirectory() as folder:
        return read_run(write(Path(folder) / "trace.jsonl", *events))


def run_of(plan: Plan, *events: dict[str, Any]) -> Run:
    """A run of a plan with these events."""
    return Run(Path("r"), plan, log_of(*events))
