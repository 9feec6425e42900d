"""Two jobs that share nodes, as a workload and the plan that runs, and re-plans from journals of given speeds."""

from pathlib import Path

from rlplan.planner.groups.inputs.running_plan import solved_from
from rlplan.planner.groups.inputs.workload_jobs import problem_of
from rlplan.planner.groups.propose_replan import propose_replan
from rlplan.planner.groups.solve_workload import solve_workload
from rlplan.plans.schema.groups_plan import GroupsPlan, load_groups_plan
from rlplan.plans.schema.workload import load_workload
from rlplan.plans.yaml.yaml_io import dump

from .group_journals import journal_of
from .workloads import LAB

WORKLOAD = """\
rlplan_workload: 1
cluster: cluster.yaml
jobs:
  a:
    slo: 1.15
    model: Qwen2.5-7B
    phases:
      rollout: {pool: roll, mean_s: 100.0}
      train: {pool: train, tp: 2, mean_s: 100.0}
  b:
    slo: 1.5
    model: Qwen2.5-7B
    phases:
      rollout: {pool: roll, mean_s: 95.0}
      train: {pool: train, tp: 2, mean_s: 90.0}
"""


class Running:
    """A folder with a workload and the plan that runs."""

    def __init__(self, folder: Path) -> None:
        (folder / "cluster.yaml").write_text(LAB)
        self.workload, self.plan_path = folder / "workload.yaml", folder / "groups.yaml"
        self.workload.write_text(WORKLOAD)
        document, cluster = load_workload(self.workload)
        problem = problem_of(document, self.workload, cluster)
        inputs = solved_from(self.workload, document, problem, None, self.plan_path)
        dump(solve_workload(document, problem, inputs), self.plan_path)
        self.out = folder / "new.yaml"

    @property
    def plan(self) -> GroupsPlan:
        return load_groups_plan(self.plan_path)

    def journals(self, factors: dict[str, tuple[float, float]], turns: int = 80):
        """Journals in which turns take so many times the planned seconds."""
        plan = self.plan
        return {key: journal_of(key, group, plan.rules.policy, factors, turns) for key, group in plan.groups.items()}

    def propose(self, factors: dict[str, tuple[float, float]], turns: int = 80, **options):
        journals = self.journals(factors, turns)
        return propose_replan(self.workload, self.plan_path, self.out, journals, options.pop("ahead_s", {}), **options)
