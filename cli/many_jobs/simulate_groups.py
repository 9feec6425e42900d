"""`rlplan simulate GROUPS`: slowdowns of the jobs of a plan of groups, with the phases that the workload has now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


def simulate_groups_command(plan_path: Path, as_json: bool) -> int:
    """Simulate the groups of the plan with the phases that its workload has now; nothing is solved. Exit code 1 where
    the plan breaks the site's policy."""
    from ...planner.groups.inputs.running_plan import running_state
    from ...planner.groups.inputs.workload_jobs import problem_of
    from ...planner.groups.simulate.slowdowns import bounds_kept, slowdowns
    from ...plans.check.plan_check import changed_inputs, input_path
    from ...plans.check.rules import RULES
    from ...plans.schema.groups_plan import load_groups_plan
    from ...plans.schema.workload import load_workload
    from ..main import EXIT_FAILED
    from ..shared.findings import reports, tell

    plan = load_groups_plan(plan_path)
    for name in changed_inputs(plan, plan_path):
        click.echo(f"note: {name} has changed since the plan was solved", err=True)
    workload_path = input_path(plan.inputs.workload, plan_path)
    workload, cluster = load_workload(workload_path)
    problem = problem_of(workload, workload_path, cluster)
    state = running_state(plan, plan_path, problem.jobs, problem.node_types)
    rows: dict[str, dict[str, Any]] = {}
    for key, group in state.groups.items():
        simulated = slowdowns(group, state.jobs, problem.rules)
        kept = bounds_kept(group, state.jobs, simulated, problem.rules)
        for name, now in simulated.items():
            planned = plan.groups[key].jobs[name].slowdown
            rows[name] = {
                "group": key,
                "planned_mean": planned.mean,
                "planned_p95": planned.p95,
                "mean": now.mean,
                "p50": now.p50,
                "p95": now.p95,
                "slo": problem.jobs[name].slo,
                "keeps": kept[name],
            }
    waiting = sorted(set(problem.jobs) - set(rows))
    # Other findings are of the workload as it was: what a changed one does to the jobs is what is simulated.
    findings = [f for report in reports([plan_path]) for f in report.findings if RULES[f.rule].family == "policy"]
    tell(findings)
    result: dict[str, Any] = {"plan": str(plan_path), "jobs": dict(sorted(rows.items())), "not_placed": waiting}
    result["findings"] = [finding.data() for finding in findings]
    click.echo(json.dumps(result) if as_json else _text(result))
    return EXIT_FAILED if findings else 0


def _text(result: dict[str, Any]) -> str:
    wide = max([8, *map(len, result["jobs"]), *map(len, result["not_placed"])]) + 2
    lines = [
        f"{'slowdown':{wide}}{'':6}{'planned':>16}{'now':>24}",
        f"{'job':{wide}}{'group':6}{'mean':>8}{'p95':>8}{'mean':>8}{'p50':>8}{'p95':>8}{'at most':>9}",
    ]
    for name, row in result["jobs"].items():
        lines.append(
            f"{name:{wide}}{row['group']:6}{row['planned_mean']:8.3f}{row['planned_p95']:8.3f}"
            f"{row['mean']:8.3f}{row['p50']:8.3f}{row['p95']:8.3f}{row['slo']:9.3f}"
            + ("" if row["keeps"] else "  breaks its bound")
        )
    lines += [f"{name:{wide}}has no place in the plan; rlplan solve --from it" for name in result["not_placed"]]
    return "\n".join(lines)
