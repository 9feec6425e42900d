"""Which plans are executed, in which folders, and how far: every check that needs no engine.

Nothing is written and nothing heavy is imported here. What of one plan can be run at all: plans/facts/executable.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from ..plans.check.plan_check import CheckedPlan, open_plan
from ..plans.facts.executable import unsupported
from ..plans.files.prompt_rows import data_file, enough_prompts, evaluation_file, read_prompts
from ..plans.files.reward_function import must_be_callable
from ..plans.schema.cluster import Pool
from ..plans.schema.job import missing_files
from ..plans.schema.plan import Plan, load_plan
from ..plans.yaml.errors import ErrorCollector, InputError
from ..plans.yaml.yaml_io import error_at, read_text
from .drafts.history_store import saved_history
from .placement.run_placement import DoesNotFit, Placement, run_placement
from .records.execution_folder import check_folder
from .records.plan_changes import must_be_same_job, plan_in_force, run_name, was_replaced
from .records.trackers import TrackerName

SHARED: tuple[tuple[str, ...], ...] = (
    ("job", "rounds", "short", "rollout", "pool"),
    ("job", "reward", "workers"),
    ("job", "reward", "further"),
    ("job", "reward", "judge"),
    ("job", "placement", "train_pool"),
)
"""Values beside job and cluster that plans which are executed in turns must have in common."""


@dataclass(frozen=True)
class Execution:
    """A plan that passed all checks, and where its run is kept."""

    name: str
    plan_path: Path
    run_dir: Path
    checked: CheckedPlan
    text: bytes = b""
    """Of the plan's file, as it was when it was read."""

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return self.checked.plan

    @property
    def planned_short_share(self) -> float | None:
        """Share of the steps that are short rounds by the plan; None in modes whose lengths do not decide it."""
        exact = self.plan.job.bias.mode == "exact"
        return self.plan.predicted.rounds.short.share if exact else None

    @property
    def pool(self) -> Pool:
        """The pool that the plan's engines run on."""
        return self.checked.cluster.pools[self.plan.job.rounds.short.rollout.pool]

    @property
    def train_pool(self) -> Pool:
        """The pool that its trainers run on."""
        placement = self.plan.job.placement
        return self.pool if placement is None else self.checked.cluster.pools[placement.train_pool]


class PlanSwitch(NamedTuple):
    """A plan by which a run is to go on with other engines or trainers, in place of that of `running`, and the request
    that asked for it."""

    execution: Execution
    running: Execution
    request_id: str


@dataclass(frozen=True)
class Options:
    """How far and how carefully to run.

    `stall_s`: seconds without a sign of life after which an engine or a trainer rank is replaced; `restarts_per_hour`:
    how often one of them, or a reward worker, may be replaced within any hour. `checkpoint_every`: in steps; more often
    where trainers die (records/run_checkpoints.Cadence). `grace_s`: seconds from SIGINT or SIGTERM until the round in
    progress is left and the trained steps are checkpointed; None: the round is waited for. `node_patience_s`: seconds
    that a trainer waits for a node in place of one that was lost. `history`: the checkpoint of another run whose
    responses drafts begin with; None: with none. `drain_queue`: after `steps` steps further long rounds train the
    prompts that wait for one. `speed_check`: how fast the machine is beside when it was profiled is measured before the
    first step, and every `speed_check_every` steps (None: not again). `keep_every`, `save_model_every`: of which steps
    checkpoints are kept, and models written (records/run_checkpoints.Saving). `samples`: how many responses of a step
    are kept for people to read (records/sample_keeper.py); None: all. `trackers` take the runs' figures beside the
    trace. `readmit`: take nodes that the run has excluded again. `unsafe_versions`: run with packages that rlplan was
    never run with.
    """

    steps: int
    resume: bool = False
    checkpoint_every: int = 10
    stall_s: float = 120.0
    grace_s: float | None = None
    restarts_per_hour: int = 12
    node_patience_s: float = 600.0
    history: Path | None = None
    drain_queue: bool = True
    speed_check: bool = True
    speed_check_every: int | None = None
    keep_every: int | None = None
    save_model_every: int | None = None
    samples: int | None = 16
    trackers: tuple[TrackerName, ...] = ("tensorboard",)
    readmit: bool = False
    unsafe_versions: bool = False


def prepare(
    plan_paths: Sequence[Path], out: Path, resume: bool, progress: Callable[[str, float], None] = lambda *_: None
) -> list[Execution]:
    """Load and check plans and decide their folders; nothing is written and nothing heavy imported but what reads
    answers. `progress` is told the share of the data's rows that is read.

    One plan runs in `out`; several run in `out/NAME` where NAME is the plan file's stem. Raises InputError with what is
    wrong with each of them.
    """
    stems = [path.stem for path in plan_paths]
    if len(set(stems)) != len(stems):
        raise InputError("two plans have the same file name, which names their runs; rename one", str(plan_paths[0]))
    faults = ErrorCollector()
    alone = len(plan_paths) == 1
    prepared = [_prepared(path, out if alone else out / path.stem, resume, alone, faults) for path in plan_paths]
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
    missing = dict(missing_files(first.checked.job, first.checked.job_path, to_train=True))
    if (why := missing.get(("model", "warm_start"))) is not None:
        raise error_at(first.checked.job_path, ("model", "warm_start"), f"model.warm_start: {why}")
    must_be_callable(first.checked.job, first.checked.job_path)
    enough_prompts(first.checked.job, data_file(first.checked.job, first.checked.job_path), progress=progress)
    if (held_out := evaluation_file(first.checked.job, first.checked.job_path)) is not None:
        read_prompts(held_out, first.checked.job.evaluated_reward)
    return executions


def in_force(plan_path: Path, run_dir: Path) -> Path:
    """The plan by which the run in `run_dir` is to be resumed if the one at `plan_path` is given: that one, or the one
    that took its place since, so that a scheduler's command line undoes no change. Raises InputError."""
    return plan_in_force(run_dir) if was_replaced(run_dir, plan_path) else plan_path


def _prepared(path: Path, run_dir: Path, resume: bool, alone: bool, faults: ErrorCollector) -> Execution | None:
    """The plan at `path` as it is to run in `run_dir`, `alone` or in turns; None, with all faults of plan and folder in
    `faults`."""
    text = faults.try_read(lambda: read_text(path)) or ""
    plan = faults.try_read(lambda: load_plan(path))
    checked = faults.try_read(lambda: open_plan(path)) if plan is not None else None
    faults.try_read(lambda: check_folder(run_dir, resume))
    model = None if checked is None else checked.model
    kind = None
    if checked is not None:
        kind = checked.cluster.pools[checked.plan.job.rounds.short.rollout.pool].accelerators.kind
    for loc, fault, remedy in unsupported(plan, model, kind) if plan is not None else ():
        faults.errors.append(error_at(path, loc, f"{'.'.join(map(str, loc))}: {fault}; {remedy}"))
    if checked is None:
        return None
    name = (run_name(run_dir) if resume and alone else None) or path.stem
    execution = Execution(name, path, run_dir, checked, text.encode())
    if resume and not faults.errors:
        faults.try_read(lambda: must_be_same_job(run_dir, path, checked))
    return execution


def history_of(run: Path, executions: Sequence[Execution], resume: bool) -> Path:
    """The checkpoint of another run whose responses drafts begin with. Raises InputError if it cannot be used."""
    checkpoint = saved_history(run)
    if resume:
        raise InputError("--resume goes on with what the run itself remembers; leave out --history", str(run))
    rounds = [kind for each in executions for kind in (each.plan.job.rounds.short, each.plan.job.rounds.long)]
    if not any(kind is not None and kind.rollout.drafts is not None for kind in rounds):
        path = str(executions[0].plan_path)
        raise InputError("none of its rounds decodes with drafts, which --history is for; leave it out", path)
    return checkpoint


def placement_of(executions: Sequence[Execution]) -> Placement:
    """Where the actors of plans that are executed together sit. Raises InputError if the pool has no room for them."""
    first = executions[0]
    try:
        pools = first.checked.cluster.pools
        return run_placement({execution.name: execution.plan for execution in executions}, pools)
    except DoesNotFit as lack:
        raise InputError(f"{lack}; solve again for this cluster", str(first.plan_path)) from None


def differences(first: CheckedPlan, other: CheckedPlan) -> Iterator[tuple[tuple[str, ...], str]]:
    """(location in `other`, difference) for each value that must be the same because its actors are started once.

    The name of `first`'s file completes the text. Job and cluster are compared as their files are now: plans that were
    solved before and after a change of a learning rate are of one job.
    """
    if first.job != other.job:
        yield ("inputs", "job", "sha256"), "is of another job than"
    if first.cluster != other.cluster:
        yield ("inputs", "cluster", "sha256"), "is of another cluster than"
    for path in SHARED:
        ours, theirs = _value(other.plan, path), _value(first.plan, path)
        if ours != theirs:
            if theirs is None:
                yield path, f"is {_as_yaml(ours)}, and there is none in"
            else:
                yield (
                    path,
                    f"{'there is none' if ours is None else f'is {_as_yaml(ours)}'}, not {_as_yaml(theirs)} as in",
                )


def _as_yaml(value: Any) -> str:
    """A value of a plan as its file has it; a section on one line."""
    if not isinstance(value, BaseModel):
        return str(value)
    return f"{{{', '.join(f'{key}: {_as_yaml(each)}' for key, each in value)}}}"


def _value(plan: Plan, path: tuple[str, ...]) -> Any:
    value: Any = plan
    for key in path:
        value = None if value is None else getattr(value, key)
    return value
