"""Plans and the documents beside them: schemas, canonical YAML, checks. Imports nothing else of rlplan.

    errors     InputError, Infeasible
    yaml_io    load, dump, sha256_file, atomic_write (over yaml_doc, yaml_write, explain)
    cluster    cluster.yaml          job     job.yaml, its paths, its model's heads
    plan       plan.yaml             data    the prompts
    check      whether a plan fits its inputs, its cluster and its job
    schema     JSON Schema of plan.yaml for editors

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
    from .job import Job as Job
    from .job import job_paths as job_paths
    from .job import load_job as load_job
    from .job import model_heads as model_heads
    from .plan import Plan as Plan
    from .plan import load_plan as load_plan
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
    "Job": "job",
    "job_paths": "job",
    "load_job": "job",
    "model_heads": "job",
    "Plan": "plan",
    "load_plan": "plan",
    "dump": "yaml_io",
    "load": "yaml_io",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
