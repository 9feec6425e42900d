"""Reward seconds from another tool's log of executions: one scored sample a row, columns as in log_columns.py."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from ...plans.yaml.errors import InputError
from ..laws.reward_fit import ScoredSample, equally_likely, fit_executions, is_right
from ..phase_schema import Evidence, Reward, RewardExecutions, Spread
from ..profile_schema import Profile
from ..reward_tables import HANGS_S
from .log_columns import Field, number, read_rows, truth

FIELDS = (
    Field("seconds", ("exec_s", "duration_s", "time_s", "elapsed"), needed=True),
    Field("correct", ("passed", "reward", "score")),
    Field("prompt", ("prompt_id", "prompt_hash", "uid")),
)
"""The fields of a row, and the usual names of their columns."""

FEWEST = 20
"""Fewer executions do not show a share of 5 % that hangs."""

_SOURCE = "imported"


def import_rewards(path: Path, columns: Mapping[str, str]) -> list[ScoredSample]:
    """The rows of a table as scored samples, in the table's order; without a column for them, prompts and rewards are
    not known: deadlines that adapt are then predicted to save nothing.

    Raises InputError, with the line where one is at fault, and for fewer than `FEWEST` rows.
    """
    samples, prompts_known = [], False
    for line, row in read_rows(path, FIELDS, columns):
        seconds = number(row, "seconds", path, line)
        if not 0 <= seconds <= HANGS_S:
            raise InputError(f"seconds must be from 0 to {HANGS_S:g}, not {seconds:g}; correct it", str(path), line)
        reward = float(truth(row, "correct", path, line)) if "correct" in row else None
        prompt = row.get("prompt")
        named = f":{line}" if prompt in (None, "") else str(prompt)
        prompts_known |= prompt not in (None, "")
        samples.append(ScoredSample(named, reward, seconds))
    if len(samples) < FEWEST:
        raise InputError(f"has {len(samples)} rows; at least {FEWEST} executions are needed", str(path))
    return samples if prompts_known else [sample._replace(prompt=None) for sample in samples]


def executions_of(samples: list[ScoredSample]) -> RewardExecutions:
    """The distribution of scored samples' seconds; one for all if none is known to be right, or all are."""
    executions = fit_executions(samples)
    if executions is not None:
        return executions
    seconds = equally_likely([sample.seconds for sample in samples])
    if all(is_right(sample) for sample in samples):
        return RewardExecutions(correct_s=seconds, wrong_s=seconds, correct=1.0, unsolved=0.0)
    return RewardExecutions(wrong_s=seconds, unsolved=None if any(sample.reward is None for sample in samples) else 1.0)


def with_imported(profile: Profile, samples: list[ScoredSample], name: str) -> Profile:
    """The profile with these executions in place of its own; its evidence says so. `name`: of the table."""
    seconds = sorted(sample.seconds for sample in samples)
    mean_s = math.fsum(seconds) / len(seconds)
    deviation = math.sqrt(math.fsum((s - mean_s) ** 2 for s in seconds) / max(1, len(seconds) - 1))
    error = deviation / math.sqrt(len(seconds)) / mean_s if mean_s > 0 else 0.0
    reward = Reward(
        workers=profile.reward.workers,
        latency=Spread(p50=_quantile(seconds, 0.5), p95=_quantile(seconds, 0.95), repeats=0),
        per_sample_s=mean_s,
        executions=executions_of(samples),
        evidence={"per_sample_s": Evidence(source=_SOURCE, error=error)},
    )
    source_text = f"{len(samples)} executions imported from {name}; error: of their mean"
    return profile.model_copy(update={"reward": reward, "sources": {**profile.sources, _SOURCE: source_text}})


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
