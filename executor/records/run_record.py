"""The record of a run: of each step, and how it goes into the JSONL trace and to trackers."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from ...plans.yaml.errors import InputError
from ...rounds.machines.outcome import Fate, Outcome
from ...rounds.schedule import Schedule
from ...rounds.timeouts import PoolTimeouts
from ...traces.run_log import TRACE
from ...traces.trace import TraceWriter, trace_lines
from ...traces.trace_events import Evaluation, Step
from ..rollout.round_samples import RolloutResult
from ..rollout.round_scoring import unscored
from ..weights.transfer import Sent
from .execution_folder import written
from .sample_keeper import Ended, parts_record
from .trackers import Trackers, evaluation_figures, step_figures


class StepSeconds(NamedTuple):
    """Seconds of the phases of a step; `other_s`: of the rollout, without decoding and exposed rewards."""

    sync_s: float
    rollout_s: float
    reward_exposed_s: float
    train_s: float
    other_s: float
    total_s: float


def step_record(
    step: int, round_kind: str, schedule: Schedule, timeouts: PoolTimeouts, outcome: Outcome, result: RolloutResult,
    metrics: dict[str, float], seconds: StepSeconds, *, on_policy_violations: int, sent: Sent, engines: int,
) -> Step:  # fmt: skip
    """The record of a step, from what its round and its update left; `engines`: those of the round in the plan."""
    lengths = [len(sample.response_tokens) for sample in result.samples.values() if sample.finished_s is not None]
    rewards = [reward for group in outcome.trained for reward in group.rewards]
    failures = sorted(unscored(result.samples.values()).items())
    return Step(
        step=step,
        kind=round_kind,
        epochs=sorted({schedule.epoch_of(prompt) for prompt in outcome.taken}),
        **seconds._asdict(),
        trained_samples=len(rewards),
        trained_tokens=sum(sum(group.tokens) for group in outcome.trained),
        reward_mean=sum(rewards) / len(rewards) if rewards else 0.0,
        max_tokens=max(lengths, default=0),
        median_tokens=statistics.median(lengths) if lengths else 0.0,
        decoded_tokens=sum(lengths),
        deferred=len(schedule.deferred),
        prompts={fate.value: len(ids) for fate, ids in outcome.prompts.items()},
        samples={fate.value: number for fate, number in outcome.samples.items()},
        conservation_violations=outcome.check(),
        on_policy_violations=on_policy_violations,
        checksum_mismatches=sent.mismatches,
        exhausted=len(outcome.exhausted),
        restarts=result.restarts,
        reward_failures={name: failed.samples for name, failed in failures},
        timeouts=asdict(timeouts.counts),
        metrics=metrics,
        weights_way=sent.way,
        weights_bytes=sent.nbytes,
        weights_slots=sent.slots,
        engines=sent.engines,
        engines_missing=engines - sent.engines,
        ages=list(schedule.ages),
        waits=list(schedule.waits),
    )


class ShareDrift(NamedTuple):
    """Short rounds' share of the steps, as planned and by the last rounds, and how many these are."""

    planned: float
    measured: float
    rounds: int


class DriftWatch:
    """Says when lengths have left what a plan of mode `exact` was solved for: its cutoff then splits them elsewhere.

    The share of a cycle's steps that are short rounds follows from what short rounds train and defer. It is compared
    with the plan's over the last `ROUNDS` of them, and told once whenever it leaves the plan's by four standard errors,
    and by more than `FAR` or half of what is left to 1. (A cutoff may depend on rounds before alone, so the remedy is
    another plan, not this round.)
    """

    ROUNDS, FAR = 20, 0.1

    def __init__(self, planned_short_share: float | None) -> None:
        self._planned, self._told = planned_short_share, False
        self._rounds: deque[tuple[int, int]] = deque(maxlen=self.ROUNDS)

    def step(self, record: Step) -> ShareDrift | None:
        """What is to be told if the plan's share was left with this step."""
        trained, deferred = (record.prompts.get(fate.value, 0) for fate in (Fate.TRAINED, Fate.DEFERRED))
        if self._planned is None or record.kind != "short" or not trained + deferred:
            return None
        self._rounds.append((trained, deferred))
        short, long = (sum(column) for column in zip(*self._rounds, strict=True))
        measured, error = short / (short + long), math.sqrt(self._planned * (1.0 - self._planned) / (short + long))
        far = max(min(self.FAR, (1.0 - self._planned) / 2.0), 4.0 * error)
        before, self._told = self._told, abs(measured - self._planned) > far
        if not self._told or before:
            return None
        return ShareDrift(self._planned, round(measured, 4), len(self._rounds))


def excluded_nodes(run_dir: Path) -> dict[str, str]:
    """Addresses of the nodes that a run has excluded and not taken again since, by its trace, and why. Raises
    InputError for a damaged line of them."""
    excluded: dict[str, str] = {}
    path = run_dir / TRACE
    for number, line in trace_lines(path) if path.exists() else ():
        if not line.startswith(b'{"event":"node_'):
            continue
        try:
            event = json.loads(line)
            if event["event"] == "node_excluded":
                excluded[event["address"]] = event["reason"]
            elif event["event"] == "node_readmitted":
                excluded.pop(event["address"], None)
        except (ValueError, KeyError) as error:
            why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(
                f"not a trace event ({why}); restore the file or cut it here", str(path), number
            ) from error
    return excluded


class Recorder:
    """Writes a run's trace under its folder, and gives its figures to `trackers`."""

    def __init__(self, run_dir: Path, trackers: Trackers) -> None:
        self._trackers, self._path = trackers, run_dir / TRACE
        with self._written():
            self._trace = TraceWriter(self._path)

    def event(self, event: str, t_s: float, /, **fields: Any) -> None:
        """Append one event and make it durable. Raises RunFailed if the disk does not take it."""
        with self._written():
            self._trace.write(event, t_s, **fields)
            self._trace.flush()

    def trace_bytes(self) -> int:
        """How long the trace is on disk."""
        return self._path.stat().st_size

    def _written(self) -> contextlib.AbstractContextManager[None]:
        return written(self._path, "go on with --resume")

    def samples(self, t_s: float, step: int, epoch_of: Callable[[str], int], ended: Sequence[Ended]) -> None:
        """Append one event per sample that finished decoding; `epoch_of` gives the epoch that issued a prompt."""
        with self._written():
            for sample, fate in ended:
                self._trace.write(
                    "sample",
                    t_s,
                    step=step,
                    prompt=sample.prompt_id,
                    epoch=epoch_of(sample.prompt_id),
                    draw=sample.draw,
                    sample=sample.sample,
                    tokens=len(sample.response_tokens),
                    truncated=sample.truncated,
                    prompt_tokens=len(sample.prompt_tokens),
                    reward=sample.reward,
                    reward_outcome=sample.reward_outcome,
                    reward_s=round(sample.reward_s, 6),
                    reward_deadline_s=sample.reward_deadline_s,
                    reward_parts=parts_record(sample.reward_parts),
                    fate=None if fate is None else fate.value,
                    issued_s=round(sample.issued_s, 6),
                    finished_s=round(sample.finished_s or 0.0, 6),
                    engine=sample.engine,
                    moves=sample.moves,
                    version=[sample.version_start, sample.version_end],
                )

    def step(self, t_s: float, record: Step) -> None:
        """Append a step and its scalars, durably."""
        self.event("step", t_s, **structs.asdict(record))
        self._trackers.log(record.step, step_figures(record))

    def evaluation(self, t_s: float, evaluation: Evaluation) -> None:
        """Append an evaluation and its scalars, durably."""
        self.event("evaluation", t_s, **structs.asdict(evaluation))
        self._trackers.log(evaluation.step, evaluation_figures(evaluation))

    def close(self) -> None:
        """Close both. What matters was made durable when it was written; a full disk may keep the rest."""
        self._trackers.close()
        with contextlib.suppress(OSError):
            self._trace.close()
