"""Responses scored on this machine without Ray, each verdict with its steps: `rlplan rewards try` and `audit`.

The processes that score are those of a run's workers (`worker`): each response has its own deadline, and one
that hangs, dies or takes all memory costs its process, never the responses beside it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ...plans.files.prompt_rows import Prompt
from ...plans.schema.job import Job, JobPaths, RewardSpec
from ...plans.yaml.errors import InputError, RunFailed
from .functions import ScorerConfig
from .kinds.function_reward import WrongReturn
from .scoring import ScoringResult
from .worker import RewardWorker, Row

MOST_TOGETHER = 16
"""Responses that a process is handed at once: few, so that all cores have some to the end."""


@dataclass(frozen=True)
class Tried:
    """What a reward says of a response.

    Attributes:
        parts: (part of the reward, how it was scored), in the job's order; only those that can be scored without a
            model.
        reward: the weighted sum of these; None where the row is refused, or the machine failed.
        refused: the row cannot be scored, whatever the response.
        why: one line: of a refusal or a reward that is not full the reason.
    """

    parts: tuple[tuple[RewardSpec, ScoringResult], ...]
    reward: float | None
    refused: bool
    why: str


def scored_here(job: Job) -> list[RewardSpec]:
    """The parts of a job's reward that need nothing but the response: no tokens, no judge."""
    return [part for part in job.reward.parts if part in job.reward.pooled]


def prompt_text(row: Prompt) -> str:
    """A row's prompt as text; of messages each with its role, since no model's chat template is at hand."""
    if isinstance(row.prompt, str):
        return row.prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in row.prompt)


def tried(job: Job, paths: JobPaths, rows: Sequence[tuple[Prompt, str]]) -> Iterator[Tried]:
    """Score (row, response) each on all cores; what each part of the reward says, in order.

    Raises InputError for a reward function that cannot be used, RunFailed where no process that scores can be started.
    """
    parts = scored_here(job)
    streams = []
    for part in parts:
        own = [(prompt_text(row), response, row.answer) for row, response in rows if part.scores(row.sources)]
        streams.append(scored(ScorerConfig.of_part(part, paths, part.deadline_s), own))
    try:
        for row, _ in rows:
            pairs = zip(parts, streams, strict=True)
            yield _together([(part, next(stream)) for part, stream in pairs if part.scores(row.sources)])
    finally:
        for stream in streams:
            stream.close()


def try_functions(job: Job, paths: JobPaths, rows: Sequence[tuple[str, Any, tuple[str, ...]]]) -> None:
    """Call the job's reward functions once, with the answer of the first of some rows (prompt, answer, sources) that it
    scores as the response, before anything is started for them.

    Raises InputError for one that cannot be called or returns no reward. One that raises or is late may do so for this
    response alone.
    """
    for part in job.reward.parts:
        row = next((row for row in rows if part.scores(row[2])), None)
        if part.kind == "function" and row is not None:
            prompt, answer, _ = row
            response = answer if isinstance(answer, str) else ""
            list(scored(ScorerConfig.of_part(part, paths, part.deadline_s), [(prompt, response, answer)]))


def _together(parts: list[tuple[RewardSpec, ScoringResult]]) -> Tried:
    refused = [(part, scored) for part, scored in parts if scored.refused]
    failed = [(part, scored) for part, scored in parts if scored.outcome == "infra_failed"]
    total = None if failed else sum(part.weight * scored.reward for part, scored in parts)
    told = [(part, scored) for part, scored in refused or failed or parts if scored.detail]
    whose = "{}: {}" if len(parts) > 1 else "{1}"
    why = "; ".join(whose.format(part.label, " ".join(scored.detail.split())) for part, scored in told)
    return Tried(tuple(parts), total, bool(refused), why)


def scored(config: ScorerConfig, rows: Sequence[tuple[str, str, Any]]) -> Generator[ScoringResult, None, None]:
    """Score (prompt, response, answer) each in a process of its own for each core, in order. Raises as `tried`;
    InputError also for what a reward function returns if that is no reward, whatever the response."""
    cores = max(1, min(len(os.sched_getaffinity(0)), len(rows)))
    size = max(1, min(MOST_TOGETHER, len(rows) // (4 * cores)))
    batches = [[(*row, config.deadline_s) for row in rows[at : at + size]] for at in range(0, len(rows), size)]
    local, processes, left = threading.local(), list[RewardWorker](), threading.Event()

    def score(batch: list[Row]) -> list[ScoringResult]:
        if not hasattr(local, "process"):
            local.process = RewardWorker(config, explains=True)
            processes.append(local.process)
        return _all_of(local.process, batch, left)

    # A process that scores dies with the thread that started it, so the threads must outlive all batches.
    pool = ThreadPoolExecutor(cores)
    try:
        for results in pool.map(score, batches):
            for result in results:
                if result.outcome == "function_error" and result.detail.startswith(f"{WrongReturn.__name__}: "):
                    fault = _PLACE.sub("", result.detail.partition(": ")[2])
                    raise InputError(f"reward.function {config.function!r}: {fault}")
                yield result
    finally:
        left.set()
        for process in processes:
            if (pid := process.pid) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # its thread, which still waits for it, sees that it is gone
        pool.shutdown(cancel_futures=True)
        for process in processes:
            process.kill()


_PLACE = re.compile(r" \(\w+\.py:\d+\)$")
"""The line that raised, at the end of a detail. For a wrong return it is a line of rlplan, which helps no user."""

TRIES = 3
"""Tries to score a response when the machine fails: a host may not let the process run."""


def _all_of(process: RewardWorker, batch: list[Row], left: threading.Event) -> list[ScoringResult]:
    results: list[ScoringResult] = []
    failures = 0
    while len(results) < len(batch) and not left.is_set():
        facts = process.ready()
        if facts.problem is not None:
            raise InputError(facts.problem)
        if facts.failure is not None:
            raise RunFailed(f"the process that scores cannot be started: {facts.failure}")
        for scored in process.score(batch[len(results) :], float("inf")):
            failures = failures + 1 if scored.outcome == "infra_failed" and not scored.refused else 0
            if 0 < failures < TRIES:
                break
            failures = 0
            results.append(scored)
    return results
