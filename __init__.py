"""rlplan: plan, tune and execute synchronous RL post-training of language models.

    from rlplan import check, diff, simulate, solve

    plan = solve("job", lengths="math-16k", out="job/plan.yaml")  # a Plan; job is a folder, job.yaml or a Job
    run = simulate("job/plan.yaml", set={"plan.job.issue.prompts_per_step": 64})  # seconds, USD, findings
    checked = check("job/plan.yaml", policy="team.policy.yaml")  # findings, each with rule, file, line and message
    change = diff("origin/main:job/plan.yaml", "job/plan.yaml")  # what differs, and its cost

What is bad input to the command line raises `InputError`, no feasible plan `Infeasible`; both are a `RlplanError`.
Names are imported when they are asked for: `import rlplan` loads nothing.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api.check_files import Checked, check
    from .api.diff_plans import Difference, diff
    from .api.given_documents import load
    from .api.simulate_run import Simulated, simulate
    from .api.solve_job import solve
    from .plans.check.finding import Finding
    from .plans.schema.cluster import Cluster
    from .plans.schema.groups_plan import GroupsPlan
    from .plans.schema.job import Job
    from .plans.schema.plan import Plan
    from .plans.yaml.errors import Infeasible, InputError, RlplanError, RunFailed
    from .plans.yaml.yaml_io import dump
    from .profiles.length_trace import LengthTrace, read_lengths
    from .profiles.profile_schema import Profile

__version__ = "0.1.0"

_HOMES = {
    "api.check_files": ("Checked", "check"),
    "api.diff_plans": ("Difference", "diff"),
    "api.given_documents": ("load",),
    "api.simulate_run": ("Simulated", "simulate"),
    "api.solve_job": ("solve",),
    "plans.check.finding": ("Finding",),
    "plans.schema.cluster": ("Cluster",),
    "plans.schema.groups_plan": ("GroupsPlan",),
    "plans.schema.job": ("Job",),
    "plans.schema.plan": ("Plan",),
    "plans.yaml.errors": ("Infeasible", "InputError", "RlplanError", "RunFailed"),
    "plans.yaml.yaml_io": ("dump",),
    "profiles.length_trace": ("LengthTrace", "read_lengths"),
    "profiles.profile_schema": ("Profile",),
}

__all__ = (
    "Checked", "Cluster", "Difference", "Finding", "GroupsPlan", "Infeasible", "InputError", "Job", "LengthTrace",
    "Plan", "Profile", "RlplanError", "RunFailed", "Simulated", "check", "diff", "dump", "load", "read_lengths",
    "simulate", "solve",
)  # fmt: skip


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f".{home}", __name__), name)
            return value
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
