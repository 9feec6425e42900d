"""Timelines of a job's plan, simulated from its input files: shared by `simulate` and `show --timeline`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..planner.simulate.run_timeline import Timeline
    from ..planner.what_if import Documents

TIMELINE_STEPS = 12
"""Steps that a timeline shows."""

_EPOCH = 4096


def data_prompts(documents: Documents, plan_path: Path) -> int | None:
    """Number of prompts in the job's data, or, without the file, the number that the job states; None if unknown.

    Raises InputError if the data cannot be read, or holds fewer prompts than a step trains.
    """
    from ..plans.check.plan_check import input_path
    from ..plans.files.prompt_rows import rows_to_plan
    from ..plans.schema.job import job_paths
    from ..plans.yaml.errors import InputError

    try:
        data = job_paths(documents.job, input_path(documents.plan.inputs.job, plan_path)).data
    except InputError:
        return None
    return documents.job.data.trained_prompts if data is None else rows_to_plan(documents.job, data)


def epoch_prompts(documents: Documents, plan_path: Path) -> int:
    """Number of prompts of an epoch: of the job's data if known, else 4096 or one step, whichever is more."""
    prompts = data_prompts(documents, plan_path)
    return max(documents.plan.job.issue.prompts_per_step, _EPOCH) if prompts is None else prompts


def timeline_of(plan_path: Path) -> Timeline:
    """The timeline of a plan's first steps, simulated. Raises InputError if an input is missing."""
    from ..planner.simulate.run_timeline import Timeline
    from ..planner.simulate.whole_run import simulate_plan
    from ..planner.what_if import load_documents
    from ..plans.yaml.errors import InputError

    try:
        documents = load_documents(plan_path)
    except InputError as error:
        raise InputError(
            f"--timeline simulates the plan from its inputs: {error}; put the file back, or leave --timeline out"
        ) from None
    drawn = Timeline(TIMELINE_STEPS)
    prompts = epoch_prompts(documents, plan_path)
    simulate_plan(
        documents.plan,
        documents.job,
        documents.profile,
        documents.trace,
        steps=TIMELINE_STEPS,
        prompts=prompts,
        watch=drawn,
        cluster=documents.cluster,
    )
    return drawn


def compact(document: Any) -> str:
    """A Chrome trace as the compact JSON text of its file."""
    return json.dumps(document, separators=(",", ":")) + "\n"
