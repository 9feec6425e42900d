"""Plans and the documents beside them: schemas, canonical YAML, checks. Imports nothing else of rlplan.

    errors     InputError, Infeasible
    yaml_io    load, dump, sha256_file, atomic_write (over yaml_doc, yaml_write, explain)
    cluster    cluster.yaml          job     job.yaml, its paths, its model's heads
    plan       plan.yaml             data    the prompts
    workload   workload.yaml: jobs that share nodes          groups_plan   groups.yaml: which share which
    check      whether a plan fits its inputs, its cluster and its job; over checks/, the rules of `rlplan check`
    policy     rlplan.policy.yaml: what a team does not merge
    solver_read  digests of what the solver reads of a plan's inputs    phase_words   what phases are called in prose
    digest     of the decisions      critical_path, round_bars   a step as a graph, a round as bars
    diff       two plans by meaning  page    plans and runs as HTML
    editor     JSON Schemas for editors, and documents written with them    fmt   canonical form of edited documents

The names below are loaded when first used, so that importing `rlplan.plans.errors` does not load pydantic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .check import check_plan as check_plan
    from .check import open_plan as open_plan
    from .cluster import Cluster as Cluster
    from .cluster import load_cluster as load_cluster
    from .data import Prompt as Prompt
    from .data import read_prompts as read_prompts
    from .errors import Infeasible as Infeasible
    from .errors import InputError as InputError
    from .groups_plan import GroupsPlan as GroupsPlan
    from .groups_plan import load_groups_plan as load_groups_plan
    from .job import Job as Job
    from .job import job_paths as job_paths
    from .job import load_job as load_job
    from .job import model_heads as model_heads
    from .plan import Plan as Plan
    from .plan import load_plan as load_plan
    from .workload import Workload as Workload
    from .workload import load_workload as load_workload
    from .yaml_io import dump as dump
    from .yaml_io import load as load

_HOME = {
    "check_plan": "check",
    "open_plan": "check",
    "Cluster": "cluster",
    "load_cluster": "cluster",
    "Prompt": "data",
    "read_prompts": "data",
    "Infeasible": "errors",
    "InputError": "errors",
    "GroupsPlan": "groups_plan",
    "load_groups_plan": "groups_plan",
    "Job": "job",
    "job_paths": "job",
    "load_job": "job",
    "model_heads": "job",
    "Plan": "plan",
    "load_plan": "plan",
    "Workload": "workload",
    "load_workload": "workload",
    "dump": "yaml_io",
    "load": "yaml_io",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
