"""Executes one or several plans of one job: builds the actors, takes the plans' steps in turns, ends cleanly.

Several plans are executed round by round in turns on the same engines, so that all of them see the same machine; each
has its own trainer, folder, trace and checkpoints. The caller shows progress through `Watcher`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..plans.check.plan_check import CheckedPlan, open_plan
from ..plans.facts.executable import unsupported
from ..plans.files.prompt_rows import data_file, enough_prompts
from ..plans.schema.cluster import Pool
from ..plans.schema.plan import Plan, load_plan
from ..plans.yaml.errors import Faults, InputError, RunFailed
from ..plans.yaml.input_files import opened
from ..plans.yaml.output_files import must_take_folder
from ..plans.yaml.yaml_io import error_at, sha256_file
from ..traces.run_log import PLAN_COPY
from .records.disk import written
from .records.run_lock import run_lock
from .stopping import StopRequests, stop_requests
from .supported import differences


@dataclass(frozen=True)
class Execution:
    """A plan that passed all checks, and where its run is kept."""

    name: str
    plan_path: Path
    run_dir: Path
    checked: CheckedPlan

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return self.checked.plan

    @property
    def pool(self) -> Pool:
        """The pool that the plan's engines run on."""
        return self.checked.cluster.pools[self.plan.job.rounds.short.rollout.pool]


class Watcher(Protocol):
    """What the live view implements; all calls come on the event loop."""

    def phase(self, text: str) -> None:
        """Something slow begins."""

    def round_begins(self, name: str, kind: str, step: int, progress: Any) -> None:
        """A round begins; `progress()` gives its counts."""

    def step_done(self, name: str, record: Any) -> None:
        """A step ended with this `StepRecord`."""

    def note(self, text: str) -> None:
        """A line for the person who watches."""


def prepare(plan_paths: Sequence[Path], out: Path, resume: bool) -> list[Execution]:
    """Load and check plans and decide their folders; nothing is written and nothing heavy imported.

    One plan runs in `out`; several run in `out/NAME` where NAME is the plan file's stem. Raises InputError with what is
    wrong with each of them.
    """
    stems = [path.stem for path in plan_paths]
    if len(set(stems)) != len(stems):
        raise InputError("two plans have the same file name, which names their runs; rename one", str(plan_paths[0]))
    faults = Faults()
    prepared = [
        _prepared(path, out if len(plan_paths) == 1 else out / path.stem, resume, faults) for path in plan_paths
    ]
    faults.raise_any()
    executions = [execution for execution in prepared if execution is not None]
    first = executions[0]
    for other in executions[1:]:
        for loc, fault in differences(first.checked, other.checked):
            raise error_at(
                other.plan_path,
                loc,
                f"{'.'.join(loc)}: {fault} {first.plan_path.name}; plans that are executed in turns share engines and "
                "reward workers, so they must agree on it; write the same, or execute one after the other",
            )
    enough_prompts(first.checked.job, data_file(first.checked.job, first.checked.job_path))
    return executions


def _prepared(path: Path, run_dir: Path, resume: bool, faults: Faults) -> Execution | None:
    """The plan at `path` as it is to run in `run_dir`; None, with all that is wrong with both in `faults`."""
    plan = faults.of(lambda: load_plan(path))
    checked = faults.of(lambda: open_plan(path)) if plan is not None else None
    faults.of(lambda: _check_folder(run_dir, path, resume))
    for loc, what, remedy in unsupported(plan.job) if plan is not None else ():
        faults.found.append(error_at(path, loc, f"{'.'.join(map(str, loc))}: {what}; {remedy}"))
    return None if checked is None else Execution(path.stem, path, run_dir, checked)


def _check_folder(run_dir: Path, plan_path: Path, resume: bool) -> None:
    must_take_folder(run_dir)
    exists = holds_run(run_dir)
    if exists and not resume:
        raise InputError("holds a run already; continue it with --resume or choose another --out", str(run_dir))
    if resume and not exists:
        raise InputError("holds no run to resume; run without --resume", str(run_dir))
    if resume and sha256_file(run_dir / PLAN_COPY) != sha256_file(plan_path):
        raise InputError(
            f"was started with another plan than {plan_path} is now (a copy is {PLAN_COPY} in the run's folder); "
            "put that back, or start a new run with another --out",
            str(run_dir),
        )


def _begin_folder(execution: Execution, resume: bool) -> None:
    """Make a run's folder ready for its first events. Raises RunFailed if the disk does not take them."""
    run_dir, copy = execution.run_dir, execution.run_dir / PLAN_COPY
    with written(copy):
        (run_dir / "weights").mkdir(parents=True, exist_ok=True)
        if not resume:
            (run_dir / "trace.jsonl").unlink(missing_ok=True)  # of a start that came to no checkpoint
            shutil.copyfile(execution.plan_path, copy)


def holds_run(run_dir: Path) -> bool:
    """Whether a run in this folder came as far as its first checkpoint or step; one that did not is begun anew."""
    if any((run_dir / "checkpoints").glob("*step-*")):
        return True
    trace = run_dir / "trace.jsonl"
    if not trace.exists():
        return False
    with opened(trace) as file, io.BufferedReader(file) as lines:
        return any(b'"event":"step"' in line for line in lines)


@dataclass(frozen=True)
class Options:
    """How far and how carefully to run.

    `stall_s`: seconds without a sign of life after which an engine or a trainer rank is replaced; `restarts_per_hour`:
    how often one, or a reward worker, may be, within any hour. `checkpoint_every`: in steps; more often where trainers
    die (`cadence`). `grace_s`: seconds from SIGINT or SIGTERM until the round at hand is left and what was trained is
    checkpointed; None: the round is waited for.
    """

    steps: int
    resume: bool = False
    checkpoint_every: int = 10
    stall_s: float = 120.0
    grace_s: float | None = None
    restarts_per_hour: int = 12


def execute(executions: Sequence[Execution], options: Options, watcher: Watcher) -> bool:
    """Run all plans for `options.steps` steps each, in turns.

    Returns True when all steps are done, False when a signal ended the run before, with checkpoints.
    Raises InputError for data that does not fit the job or a folder that another process runs in, RunFailed when the
    infrastructure failed for good.
    """
    with contextlib.ExitStack() as locks:
        for execution in executions:
            locks.enter_context(run_lock(execution.run_dir))
            # Once more: another driver may have begun or ended here since `prepare`.
            _check_folder(execution.run_dir, execution.plan_path, options.resume)
        return asyncio.run(_execute(executions, options, watcher))


async def _execute(executions: Sequence[Execution], options: Options, watcher: Watcher) -> bool:
    from .configuration import configuration
    from .engines.fleet import Fleet, start_ray
    from .prompts import load_prompts, load_tokenizer
    from .rewards.pool import RewardPool
    from .rollout import RoundRunner
    from .supervision import Patience, Supervisor, together
    from .trainer.trainer_group import TrainerGroup
    from .training_run import TrainingRun

    first = executions[0]
    job, pool, paths = first.checked.job, first.pool, first.checked.paths
    tokenizer = load_tokenizer(paths.model)
    assert paths.data is not None, "prepare has looked for it"
    prompts = load_prompts(paths.data, tokenizer, job.rollout.max_prompt_tokens)

    watcher.phase("starting Ray")
    start_ray()
    supervisor = Supervisor(Patience(options.stall_s, options.restarts_per_hour))
    settings = configuration([e.plan.job for e in executions], job, paths, pool)
    fleet = Fleet(**settings.fleet, supervisor=supervisor)
    rewards = RewardPool.of_job(job, paths, settings.reward_workers, settings.reward_deadline_s, supervisor)
    runner = RoundRunner(
        fleet,
        rewards,
        prompts,
        lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=True)),
        temperature=job.rollout.temperature,
        stall_s=options.stall_s,
    )
    trainers = [
        TrainerGroup(execution.name, **trainer, supervisor=supervisor)
        for execution, trainer in zip(executions, settings.trainers, strict=True)
    ]
    runs = [
        TrainingRun(
            execution.name,
            execution.plan.job,
            job,
            execution.run_dir,
            fleet=fleet,
            runner=runner,
            trainer=trainer,
            prompt_ids=list(prompts),
        )
        for execution, trainer in zip(executions, trainers, strict=True)
    ]
    try:
        names = ", ".join(engine.name for engine in fleet.all_engines())
        watcher.phase(f"starting reward workers, trainers and engines {names}")
        began = time.monotonic()
        if pool.accelerators.kind == "cpu":
            await together(rewards.start(), fleet.start(), *(trainer.start() for trainer in trainers))
        else:  # vLLM measures how much memory of a GPU is free, so nobody else may start there meanwhile
            await together(rewards.start(), fleet.start())
            await together(*(trainer.start() for trainer in trainers))
        start_s = time.monotonic() - began
        for execution, run in zip(executions, runs, strict=True):
            _begin_folder(execution, options.resume)
            # Relative, so that a folder that is moved as a whole still finds its plan.
            plan = Path(os.path.relpath(execution.plan_path, execution.run_dir)).as_posix()
            await run.start(options.resume, {"start_s": round(start_s, 3), "steps": options.steps, "plan": plan})
            _tell_faults(run, watcher)
        return await _turns(runs, options, watcher, runner)
    finally:
        watcher.phase("stopping")
        for run in runs:
            await run.close()
        await rewards.close()
        await fleet.close()


async def _turns(runs: Sequence[Any], options: Options, watcher: Watcher, runner: Any) -> bool:
    """True if all steps are done, False if a signal ended the runs before. Each run's trace says how it ended.

    Either way what was trained is saved. Raises RunFailed if it is not.
    """
    with stop_requests(options.grace_s) as stop:
        try:
            while True:
                await _until(runs, options, watcher, runner, stop)
                for run in runs:
                    await (run.rescue() if stop.at_round_end.is_set() else run.checkpoint())
                    _tell_faults(run, watcher)
                # A trainer that died while it wrote the last checkpoint took its run back: then there is more to do.
                if stop.at_round_end.is_set() or all(run.step_number >= options.steps for run in runs):
                    break
            for run in runs:
                if run.checkpoint_fault is not None:
                    raise RunFailed(f"{run.name}: {run.checkpoint_fault}; what was trained since is not saved")
        except Exception as failure:
            reason = str(failure) or type(failure).__name__
            for run in runs:  # so that a report can tell a run that failed from one that was killed
                await run.rescue()
                _tell_faults(run, watcher)
                with contextlib.suppress(RunFailed):  # a disk that is full takes no events; the failure is told anyway
                    run.event("end", step=run.step_number, finished=False, reason=reason)
            raise
        for run in runs:
            run.event("end", step=run.step_number, finished=run.step_number >= options.steps)
        return all(run.step_number >= options.steps for run in runs)


async def _until(runs: Sequence[Any], options: Options, watcher: Watcher, runner: Any, stop: StopRequests) -> None:
    """Steps in turns until all are done or a signal came."""
    while any(run.step_number < options.steps for run in runs) and not stop.at_round_end.is_set():
        for run in runs:
            if run.step_number >= options.steps or stop.at_round_end.is_set():
                continue
            watcher.round_begins(run.name, run.schedule.next_kind(), run.step_number + 1, lambda: runner.progress)
            left, record = await _step_unless_left(run, stop)
            if left:
                watcher.note(f"{run.name}: left the round of step {run.step_number + 1}")
            elif record is None:
                watcher.note(f"{run.name}: trainer died; back at step {run.step_number}")
                _tell_faults(run, watcher)
            else:
                watcher.step_done(run.name, record)
                if record.metrics.get("skipped"):
                    watcher.note(f"{run.name}: step {record.step} was skipped; its weights are those before it")
                # What could not be written is tried again after each step.
                if run.checkpoint_due(options.checkpoint_every) or run.checkpoint_fault is not None:
                    await run.checkpoint()
                    _tell_faults(run, watcher)


async def _step_unless_left(run: Any, stop: StopRequests) -> tuple[bool, Any]:
    """(whether the round was left because of a signal, what `step` returned)."""
    step = asyncio.ensure_future(run.step())
    leave = asyncio.ensure_future(stop.at_once.wait())
    try:
        await asyncio.wait({step, leave}, return_when=asyncio.FIRST_COMPLETED)
        if step.done() or not run.round_can_be_left:
            return False, await step  # an update that has begun is seconds from its end
        step.cancel()
        await asyncio.wait({step})
        if step.cancelled():
            return True, None
        return False, step.result()
    finally:
        leave.cancel()


def _tell_faults(run: Any, watcher: Watcher) -> None:
    """Notes about checkpoints that could not be written or read."""
    if run.checkpoint_fault is not None:
        watcher.note(f"{run.name}: no checkpoint of step {run.step_number}: {run.checkpoint_fault}")
    for fault in run.damaged_checkpoints:
        watcher.note(f"{run.name}: checkpoint set aside, {fault}; back at step {run.step_number}")
    run.damaged_checkpoints.clear()
