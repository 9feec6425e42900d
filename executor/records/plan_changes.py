"""A run that goes on by another plan of its job: whether it may, what changes, and what its folder keeps of both.

`plan.yaml` of a run's folder is the plan in force; those before it are `plans/until-step-NNNNNN.yaml`, and
`plans/kept.json` has what no plan may change: weights, epochs and deferred prompts of the run's checkpoints are of its
model, its prompts and the sizes of its steps. All else may change: rounds, layouts, nodes, drafts, the loss's
constants, and what of the job decides no plan (a learning rate).

What the old plan deferred is trained first, by the old plan's rule (rounds/schedule.py).
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...plans.check.plan_check import CheckedPlan
from ...plans.diff.change import changes, key_values
from ...plans.schema.plan import Plan, load_plan
from ...plans.schema.planned_job import PlannedJob
from ...plans.yaml.errors import InputError
from ...plans.yaml.input_files import opened
from ...plans.yaml.yaml_doc import Loc
from ...plans.yaml.yaml_io import error_at, sha256_file
from ...traces.run_log import PLAN_COPY, TRACE
from .execution_folder import written

PLANS = "plans"
_KEPT = "kept.json"


@dataclass(frozen=True)
class PlanChange:
    """The plan that a run goes on by, in the place of the one in its folder.

    Attributes:
        text: of the new plan's file, as it was when it was checked.
        sha256: its digest.
        changes: decisions that differ, by dotted key below `job`: (old, new) as text.
    """

    text: bytes
    sha256: str
    changes: dict[str, tuple[str, str]]


class PlanRefusal(NamedTuple):
    """Why a run does not go on by the plan of a request."""

    request_id: str
    plan: str
    reason: str


def kept_facts(checked: CheckedPlan) -> dict[str, Any]:
    """By dotted key of job.yaml, what a run keeps whatever its plan is. A model's folder may be moved, so it stands for
    its config."""
    job, paths = checked.job, checked.paths
    lora = (
        None if job.model.lora is None else job.model.lora.model_dump(mode="json", include={"rank", "target_modules"})
    )
    model = job.model.hub_name
    if paths.model_folder is not None and (config := paths.model_folder / "config.json").is_file():
        model = f"a model whose config.json is {sha256_file(config)[:12]}"
    rollout = ("prompts_per_step", "samples_per_prompt", "max_prompt_tokens", "max_response_tokens")
    sizes = {f"rollout.{name}": getattr(job.rollout, name) for name in rollout}
    return {"name": job.name, "model.path": model, "model.dtype": job.model.dtype, "model.lora": lora, **sizes}


def must_be_same_job(run_dir: Path, plan_path: Path, checked: CheckedPlan) -> None:
    """Raise InputError, with the line of job.yaml, unless the run in a folder can go on by the plan at `plan_path`."""
    facts = run_dir / PLANS / _KEPT
    if not facts.is_file():
        _must_be_of_one_file(run_dir, plan_path, checked)
        return
    try:
        before: dict[str, Any] = json.loads(facts.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # its checkpoints are looked at when they are loaded
    for key, new in kept_facts(checked).items():
        if key in before and before[key] != new:
            was, now = (value if isinstance(value, str) else json.dumps(value) for value in (before[key], new))
            location: Loc = tuple(key.split("."))
            raise error_at(
                checked.job_path,
                location,
                f"{key}: is {now}, and the run in {run_dir} has {was}: its checkpoints are of that; write it back and "
                "solve again, or start a new run with another --out",
            )


def _must_be_of_one_file(run_dir: Path, plan_path: Path, checked: CheckedPlan) -> None:
    """Raise InputError unless the new plan was solved from the same job as the plan of the run in `run_dir`; for runs
    of older versions, which did not write down what they keep."""
    try:
        old = load_plan(run_dir / PLAN_COPY).inputs
    except InputError:  # of another version of rlplan
        return
    if not checked.plan.inputs.of_same_job(old):
        raise InputError(
            f"was started with another job than {plan_path} was solved for; give a plan of its own job, or start a new "
            "run with another --out",
            str(run_dir),
        )


def keep_facts(run_dir: Path, checked: CheckedPlan) -> None:
    """Write down what the run in a folder keeps. Raises RunFailed if the disk does not take it."""
    facts = run_dir / PLANS / _KEPT
    if not facts.is_file():
        with written(facts):
            facts.parent.mkdir(parents=True, exist_ok=True)
            facts.write_text(json.dumps(kept_facts(checked)), encoding="utf-8")


def plan_change(run_dir: Path, text: bytes, plan: Plan) -> PlanChange | None:
    """What changes if the run in a folder goes on by a plan, with the text of its file; None: it is the plan in
    force."""
    digest = hashlib.sha256(text).hexdigest()
    if sha256_file(run_dir / PLAN_COPY) == digest:
        return None
    try:
        old: Plan | None = load_plan(run_dir / PLAN_COPY)
    except InputError:  # of another version of rlplan: the run goes on, and nobody can say what changed
        old = None
    return PlanChange(text, digest, {} if old is None else changed_decisions(old.job, plan.job))


def changed_decisions(old: PlannedJob, new: PlannedJob) -> dict[str, tuple[str, str]]:
    """By dotted key, decisions that differ, (old, new) as text."""
    before, after = (planned.model_dump(mode="json", exclude={"why"}) for planned in (old, new))
    return {change.key: key_values(change) for change in changes(before, after)}


def stage_plan(run_dir: Path, change: PlanChange, step: int) -> None:
    """Keep the plan that a run at `step` went by, and write the new one beside it; `put_in_force` makes it the one in
    force. Raises RunFailed if the disk does not take them."""
    copy, earlier = run_dir / PLAN_COPY, run_dir / PLANS / f"until-step-{step:06d}.yaml"
    with written(copy):
        earlier.parent.mkdir(exist_ok=True)
        if not earlier.exists():  # else two changes at one step: the first of the plans between took no step
            shutil.copyfile(copy, earlier)
        _staged(run_dir).write_bytes(change.text)


def put_in_force(run_dir: Path) -> None:
    """Make the plan that was staged the one in force. Raises RunFailed if the disk does not take it."""
    with written(run_dir / PLAN_COPY):
        _staged(run_dir).replace(run_dir / PLAN_COPY)


def _staged(run_dir: Path) -> Path:
    return run_dir / f".{PLAN_COPY}.partial"


def was_replaced(run_dir: Path, plan_path: Path) -> bool:
    """Whether the plan at `plan_path` is one that the run in a folder went by before another one took its place."""
    digest = sha256_file(plan_path)
    if not (run_dir / PLAN_COPY).is_file() or sha256_file(run_dir / PLAN_COPY) == digest:
        return False
    return any(sha256_file(path) == digest for path in sorted((run_dir / PLANS).glob("until-step-*.yaml")))


def plan_in_force(run_dir: Path) -> Path:
    """The file of the plan in force of a run whose plan was replaced, from which its inputs can be read. Raises
    InputError if it is gone or was edited."""
    named: str | None = None
    with opened(run_dir / TRACE) as file, io.BufferedReader(file) as lines:
        for line in lines:
            if line.startswith(b'{"event":"plan"') and line.endswith(b"\n"):
                named = json.loads(line).get("plan")
    path = None if named is None else run_dir / named
    if path is None or not path.is_file() or sha256_file(path) != sha256_file(run_dir / PLAN_COPY):
        where = "" if path is None else f" ({path}, which is gone or was edited since)"
        raise InputError(
            f"goes by another plan by now{where}; put that back and give it, or give another plan", str(run_dir)
        )
    return path


def run_name(run_dir: Path) -> str | None:
    """The name that the run in a folder was started with, whatever its plan is now; None where no trace says so."""
    if not (run_dir / TRACE).is_file():
        return None
    with opened(run_dir / TRACE) as file, io.BufferedReader(file) as lines:
        first = lines.readline()
    try:
        name = json.loads(first).get("name")
    except (ValueError, AttributeError):
        return None
    return name if isinstance(name, str) else None
