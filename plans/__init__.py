"""Plans and the documents beside them, the contract from planner to executor. Imports nothing of rlplan but rounds.

schema/    the documents as models: cluster, job, plan, workload, groups_plan, policy
yaml/      text to models and back: positions, a line for each fault, canonical text, files to read and to write
check/     rules that documents are held to; plan_check raises what a plan may not start with
diff/      what changes between two plans, by meaning; whether a re-plan needs a person
facts/     what follows from a plan: digests, bars, the critical path, whether the executor can run it
phrases/   numbers, names and sentences for people: the same in terminal, diff, pages and messages
files/     files beside the documents: prompts, a model's folder, the folder of a run
page/      plans and runs as HTML
schemas/, examples/   JSON Schemas for editors, and plans with all that they were solved from

The names below are loaded when first used, so that importing `rlplan.plans.yaml.errors` does not load pydantic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .check.plan_check import check_plan as check_plan
    from .check.plan_check import open_plan as open_plan
    from .facts.model_shape import ModelShape as ModelShape
    from .facts.model_shape import shape_of as shape_of
    from .files.prompt_rows import Prompt as Prompt
    from .files.prompt_rows import read_prompts as read_prompts
    from .schema.cluster import Cluster as Cluster
    from .schema.cluster import load_cluster as load_cluster
    from .schema.groups_plan import GroupsPlan as GroupsPlan
    from .schema.groups_plan import load_groups_plan as load_groups_plan
    from .schema.job import Job as Job
    from .schema.job import job_paths as job_paths
    from .schema.job import load_job as load_job
    from .schema.plan import Plan as Plan
    from .schema.plan import load_plan as load_plan
    from .schema.workload import Workload as Workload
    from .schema.workload import load_workload as load_workload
    from .yaml.errors import Infeasible as Infeasible
    from .yaml.errors import InputError as InputError
    from .yaml.yaml_io import dump as dump
    from .yaml.yaml_io import load as load


_HOME = {
    "check_plan": "check.plan_check",
    "open_plan": "check.plan_check",
    "Cluster": "schema.cluster",
    "load_cluster": "schema.cluster",
    "Prompt": "files.prompt_rows",
    "read_prompts": "files.prompt_rows",
    "Infeasible": "yaml.errors",
    "InputError": "yaml.errors",
    "GroupsPlan": "schema.groups_plan",
    "load_groups_plan": "schema.groups_plan",
    "Job": "schema.job",
    "job_paths": "schema.job",
    "load_job": "schema.job",
    "ModelShape": "facts.model_shape",
    "shape_of": "facts.model_shape",
    "Plan": "schema.plan",
    "load_plan": "schema.plan",
    "Workload": "schema.workload",
    "load_workload": "schema.workload",
    "dump": "yaml.yaml_io",
    "load": "yaml.yaml_io",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
