"""Logs and dumps of one run, put together: its steps and samples, and the run's folder that report and tune read.

A folder is written of steps whose seconds of rollout, training and whole step are logged. What the source does not
say is not made up: a reward is NaN, a length is left out, a phase that is not told apart is part of the rest of the
step, and `missing` names all of these.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...plans.phrases.numbers import count
from ...plans.phrases.sentences import listed
from ...plans.schema.plan import Plan
from ...plans.yaml.errors import InputError
from ...traces.run_log import PLAN_COPY, TRACE
from ...traces.trace import TraceWriter, read_trace
from .metric_log import LoggedStep, MetricLog, missing_fields, read_metric_log
from .sample_dump import Count, DumpedSample, SampleDump, placed, read_sample_dump

_NAMES = {
    "total_s": "seconds of a whole step",
    "rollout_s": "seconds of the rollout",
    "train_s": "seconds of training",
    "sync_s": "seconds of the weights' way to the engines (part of the rest)",
    "reward_exposed_s": "seconds of rewards (part of the rollout or the rest)",
    "mean_tokens": "mean length",
    "median_tokens": "median length",
    "max_tokens": "longest response",
    "truncated_share": "share of responses that the cap cut",
    "reward_mean": "mean reward",
}
_REMEDIES = {"trl": "TRL sends them to W&B alone (profiling/...): add an export of its history as CSV"}
# A run by another trainer is synchronous if its phases fit into its steps.
_OVERLAP = 1.05


@dataclass(frozen=True)
class ImportedRun:
    """What logs and dumps of one run say. `tables`: sources that are neither, and may be tables of responses."""

    logs: tuple[MetricLog, ...]
    dumps: tuple[SampleDump, ...]
    tables: tuple[Path, ...]

    @property
    def sources(self) -> list[MetricLog | SampleDump]:
        """Logs, then dumps."""
        return [*self.logs, *self.dumps]

    @property
    def framework(self) -> str:
        """verl, slime or trl; empty without logs and dumps."""
        return next((source.framework for source in self.sources), "")

    @cached_property
    def steps(self) -> tuple[LoggedStep, ...]:
        """The steps of the logs; of a step that several have, each field by the first that says it."""
        merged: dict[int, dict[str, Any]] = {}
        for log in self.logs:
            for step in log.steps:
                into = merged.setdefault(step.step, {})
                for name in LoggedStep.__dataclass_fields__:
                    if into.get(name) is None:
                        into[name] = getattr(step, name)
        return tuple(LoggedStep(**merged[number]) for number in sorted(merged))

    @cached_property
    def samples(self) -> tuple[DumpedSample, ...]:
        """The samples of the dumps, by step."""
        return tuple(sorted((s for dump in self.dumps for s in dump.samples), key=lambda sample: sample.step))

    @property
    def has_lengths(self) -> bool:
        """Whether each sample's length is known."""
        return bool(self.dumps) and all(dump.has_lengths for dump in self.dumps)

    @cached_property
    def missing(self) -> list[str]:
        """What the sources do not say, in words."""
        found = []
        if not self.has_lengths:
            found.append(
                "each response's length (name its tokenizer: --tokenizer)" if self.dumps else "each response's length"
            )
        found += [_NAMES[name] for name in missing_fields(self.steps) if self.logs and name in self._wanted]
        if self.samples and all(sample.truncated is None for sample in self.samples):
            found.append("which responses the cap cut (give --cap)")
        if self.samples and all(sample.reward is None for sample in self.samples):
            found.append("each response's reward")
        if self.logs and not self.has_lengths and all(step.samples is None for step in self.steps):
            found.append("samples of a step (taken from the plan)")
        if not self.logs:
            found.append("seconds of steps and phases")
        return found

    @property
    def _wanted(self) -> set[str]:
        """Fields that are told missing, but for those that samples say anyway."""
        of_samples = {"mean_tokens", "median_tokens", "max_tokens", "truncated_share", "reward_mean"}
        return set(_NAMES) - (of_samples if self.has_lengths else set())


def read_run_sources(paths: Sequence[Path], tokens_of: Count | None = None) -> ImportedRun:
    """What the files and folders say. Raises InputError if one cannot be read, or if they are of several frameworks."""
    logs: list[MetricLog] = []
    dumps: list[SampleDump] = []
    tables: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InputError("no such file or folder", str(path))
        if (dump := read_sample_dump(path, tokens_of)) is not None:
            dumps.append(dump)
        elif (log := read_metric_log(path)) is not None:
            logs.append(log)
        elif path.is_dir():
            raise InputError("holds no dump of slime, verl or TRL, and no TensorBoard files; name a log", str(path))
        else:
            tables.append(path)
    run = ImportedRun(tuple(logs), tuple(dumps), tuple(tables))
    kinds = {source.framework: str(source.path) for source in run.sources}
    if len(kinds) > 1:
        told = listed([f"{path} is of {name}" for name, path in kinds.items()])
        raise InputError(f"{told}; give the logs and dumps of one run")
    return run


def write_imported_run(
    folder: Path, plan: Plan, plan_path: Path, run: ImportedRun, cap_tokens: int | None = None
) -> list[str]:
    """Write trace and copy of the plan into `folder`; returns cautions. `check_run_folder` says whether it may be
    written.

    Raises InputError if no step has the seconds of its phases.
    """
    rows = _rows_by_step(run.samples) if run.has_lengths else {}
    whole = [
        step
        for step in run.steps
        if None not in (step.rollout_s, step.train_s) and (step.mean_tokens is not None or step.step in rows)
    ]
    if not whole:
        absent = [name for name in ("rollout_s", "train_s", "mean_tokens") if name in missing_fields(run.steps)]
        lacking = listed([_NAMES[name] for name in absent]) or "step with all of these"
        source = ", ".join(str(each.path) for each in run.sources)
        remedy = _REMEDIES.get(run.framework, "add a log or dump that has")
        raise InputError(f"no run can be made of this, it has no {lacking}; {remedy}", source)
    cautions = _cautions(run, whole, plan)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(plan_path, folder / PLAN_COPY)
    (folder / TRACE).unlink(missing_ok=True)
    writer = TraceWriter(folder / TRACE)
    first = int(run.framework == "slime")  # its rollouts are counted from 0, steps of a trace from 1
    forms = ", ".join(dict.fromkeys([*(log.form for log in run.logs), *(["its dumps"] if run.dumps else [])]))
    writer.write(
        "run", 0.0, name=folder.resolve().name, mode=plan.job.bias.mode, steps=whole[-1].step + first,
        plan=os.path.relpath(plan_path, folder), imported=f"{run.framework} ({forms})", missing=run.missing,
    )  # fmt: skip
    t_s = 0.0
    for step in whole:
        event = _step_event(step, rows.get(step.step, []), plan)
        t_s += event["total_s"]
        for row in rows.get(step.step, []):
            writer.write("sample", t_s, step=step.step + first, **_sample_event(*row, cap_tokens))
        writer.write("step", t_s, step=step.step + first, **event)
    writer.write("end", t_s, step=whole[-1].step + first, finished=True)
    writer.close()
    return cautions


def check_run_folder(folder: Path, force: bool) -> None:
    """Raise InputError unless a run may be written there: a new or empty folder, or, with `force`, an imported run."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError("is a file, and the folder of a run is written; choose another name", str(folder))
    if not any(folder.iterdir()):
        return
    first = next(read_trace(folder / TRACE), {}) if (folder / TRACE).is_file() else {}
    if "imported" not in first:
        raise InputError("is not empty; name a new folder", str(folder))
    if not force:
        raise InputError("holds an imported run; --force writes it anew", str(folder))


Placed = tuple[DumpedSample, Any]


def _rows_by_step(samples: Iterable[DumpedSample]) -> dict[int, list[Placed]]:
    rows: dict[int, list[Placed]] = {}
    for sample, place in placed(samples):
        if sample.prompt_tokens is not None:
            rows.setdefault(sample.step, []).append((sample, place))
    return rows


def _sample_event(sample: DumpedSample, place: Any, cap_tokens: int | None) -> dict[str, Any]:
    tokens = sample.tokens or 0
    cut = sample.truncated if sample.truncated is not None else cap_tokens is not None and tokens >= cap_tokens
    return {
        "prompt": sample.prompt, "epoch": place.epoch, "draw": place.draw, "sample": place.sample,
        "tokens": tokens, "prompt_tokens": sample.prompt_tokens, "truncated": cut, "reward": sample.reward,
        "fate": "trained",
    }  # fmt: skip


def _step_event(step: LoggedStep, rows: Sequence[Placed], plan: Plan) -> dict[str, Any]:
    """The event of a step, by its samples where they are known."""
    assert step.rollout_s is not None and step.train_s is not None
    phases = {
        "sync_s": step.sync_s or 0.0, "rollout_s": step.rollout_s, "reward_exposed_s": step.reward_exposed_s or 0.0,
        "train_s": step.train_s,
    }  # fmt: skip
    total_s = step.total_s if step.total_s is not None else math.fsum(phases.values())
    lengths = [sample.tokens or 0 for sample, _ in rows]
    rewards = [sample.reward for sample, _ in rows if sample.reward is not None]
    issue = plan.job.issue
    samples = len(rows) or step.samples or issue.prompts_per_step * issue.samples_per_prompt
    groups = len({place.draw for _, place in rows})
    mean = statistics.fmean(lengths) if lengths else step.mean_tokens
    long = step.long_round if step.long_round is not None else any(sample.long_round for sample, _ in rows)
    reward = step.reward_mean if step.reward_mean is not None else statistics.fmean(rewards) if rewards else math.nan
    event: dict[str, Any] = {
        "kind": "long" if long else "short", "epochs": sorted({place.epoch for _, place in rows}),
        **phases, "other_s": total_s - math.fsum(phases.values()), "total_s": total_s, "trained_samples": samples,
        "trained_tokens": sum(lengths) if lengths else round((mean or 0.0) * samples), "reward_mean": reward,
        "max_tokens": max(lengths) if lengths else step.max_tokens,
        "median_tokens": statistics.median(lengths) if lengths else step.median_tokens,
        "deferred": int(step.deferred or 0), "conservation_violations": [], "on_policy_violations": 0,
        "checksum_mismatches": 0, "exhausted": 0, "restarts": [], "metrics": {},
    }  # fmt: skip
    return event | ({"prompts": {"trained": groups}, "samples": {"trained": samples}} if rows else {})


def _cautions(run: ImportedRun, whole: Sequence[LoggedStep], plan: Plan) -> list[str]:
    cautions = []
    if left := len(run.steps) - len(whole):
        cautions.append(f"{count(left, 'step')} left out, without seconds of rollout or training, or without lengths")
    longer = [
        step.step
        for step in whole
        if step.total_s is not None
        and _OVERLAP * step.total_s
        < math.fsum(s or 0.0 for s in (step.rollout_s, step.train_s, step.sync_s, step.reward_exposed_s))
    ]
    if longer:
        cautions.append(
            f"in {count(len(longer), 'step')} the phases take longer than the step: they overlap, and report and tune "
            "take steps for synchronous"
        )
    issue = plan.job.issue
    planned = issue.prompts_per_step * issue.samples_per_prompt
    by_step: dict[int, int] = {}
    for sample in run.samples:
        by_step[sample.step] = by_step.get(sample.step, 0) + 1
    sizes = list(by_step.values()) or [step.samples for step in whole if step.samples is not None]
    if sizes and (usual := statistics.mode(sizes)) != planned:
        cautions.append(f"a step trained {usual} samples, and one of the plan {planned}: is it the plan of this run?")
    return cautions
