"""`rlplan export GROUPS --to llm-d`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .shared.options import force_option

if TYPE_CHECKING:
    from ..plans.export.llm_d_export import Locks
    from ..plans.schema.cluster import Cluster
    from ..plans.schema.groups_plan import GroupsPlan


@click.command("export")
@click.argument("plan_path", metavar="GROUPS", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "system",
    type=click.Choice(["llm-d"]),
    required=True,
    help="The system: llm-d, whose RL time-slicing lets jobs share nodes on Kubernetes.",
)
@click.option(
    "--nodes",
    "names_path",
    type=click.Path(path_type=Path),
    help="YAML with the names of each pool's nodes, as in `h20: [gpu-node-1, gpu-node-2]`. Default: placeholders.",
)
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), help="Write the whole export, as YAML; -: standard output."
)
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON line.")
def export_command(
    plan_path: Path, system: str, names_path: Path | None, out: Path | None, overwrite: bool, as_json: bool
) -> int:
    """Export the plan of groups GROUPS to a system that runs jobs in turns, as what a person applies to a cluster.

    For llm-d: the labels and taints of the nodes, as kubectl commands; a resource claim for the accelerators of each
    node; and for each job and phase the labels, node selector, toleration and claim of its pods. The rollout nodes of a
    group become one group of llm-d and its training nodes another; each is a lock that one job has at a time.

    What llm-d does otherwise than the plan is printed as warnings, and each job's slowdown under llm-d's locks is
    simulated, beside its bound.
    """
    from ..api.input_paths import check_target
    from ..plans.check.input_rules import input_files, input_path
    from ..plans.export.llm_d_export import all_locks, export_text, llm_d_export, nodes_needed
    from ..plans.export.llm_d_labels import label_faults
    from ..plans.export.llm_d_notes import llm_d_notes
    from ..plans.export.node_names import load_node_names
    from ..plans.phrases.sentences import listed
    from ..plans.schema.cluster import load_cluster
    from ..plans.schema.groups_plan import load_groups_plan
    from ..plans.yaml.errors import InputError, joined
    from ..plans.yaml.yaml_io import STDOUT, atomic_write, document_kind, error_at
    from .shared.paths import check_stdout, tell

    if document_kind(plan_path) == "rlplan":
        raise InputError(f"is a plan of one job, which has no nodes to share; {system} takes groups", str(plan_path))
    plan = load_groups_plan(plan_path)
    check_stdout(out, "--out", as_json)
    if out is not None:
        inputs = [plan_path, *(input_path(file, plan_path) for _, file in input_files(plan))]
        check_target(out, *inputs, *([names_path] if names_path else []), kind="export", force=overwrite)
    if faults := list(label_faults(plan)):
        raise joined([error_at(plan_path, location, message) for location, message in faults])
    cluster = load_cluster(input_path(plan.inputs.cluster, plan_path))
    locks = all_locks(plan)
    needed = nodes_needed(plan, locks)
    _must_be_gpus(plan, cluster, input_path(plan.inputs.cluster, plan_path))
    names = load_node_names(names_path, needed) if names_path else {}
    export = llm_d_export(plan, locks, cluster, names)
    notes = list(llm_d_notes(plan, locks))
    jobs, unread = _under_locks(plan, plan_path, locks)
    if broken := [name for name, row in jobs.items() if not row["keeps"]]:
        notes.append(f"under llm-d's locks {listed(broken)} would become slower than the bounds allow")
    notes += [unread] if unread else []
    for note in notes:
        click.echo(f"warning: {note}", err=True)
    result = {"plan": str(plan_path), "to": system, "nodes_needed": needed, **export, "jobs": jobs, "warnings": notes}
    if out is not None:
        shown = "llm-d.yaml" if out == STDOUT else out.name
        atomic_write(out, export_text(export, plan_path.name, shown))
        result["out"] = str(out)
    tell(json.dumps(result) if as_json else _text(result), out)
    return 0


def _must_be_gpus(plan: GroupsPlan, cluster: Cluster, path: Path) -> None:
    """Raise InputError, with the line of the cluster, for a pool of cores (llm-d shares GPUs), or one that is gone."""
    from ..plans.yaml.yaml_io import error_at

    for pool in sorted({node.pool for group in plan.groups.values() for node in group.nodes}):
        if pool not in cluster.pools:
            raise error_at(path, ("pools",), f"has no pool '{pool}', which the plan uses; solve again")
        if cluster.pools[pool].accelerators.kind == "cpu":
            location = ("pools", pool, "accelerators")
            raise error_at(path, location, f"pool '{pool}' is of kind cpu, and llm-d shares GPUs; name a plan of GPUs")


def _under_locks(plan: GroupsPlan, plan_path: Path, locks: Locks) -> tuple[dict[str, dict[str, Any]], str | None]:
    """Slowdowns of the jobs under llm-d's locks, and, if they cannot be simulated, why."""
    from ..planner.groups.inputs.workload_jobs import problem_of
    from ..planner.groups.simulate.lock_slowdowns import lock_slowdowns
    from ..plans.check.input_rules import input_path
    from ..plans.check.plan_check import changed_inputs
    from ..plans.check.solved_rules import has_edited_decisions
    from ..plans.schema.workload import load_workload
    from ..plans.yaml.errors import InputError

    unsure = "so slowdowns under llm-d's locks are not simulated"
    if changed := changed_inputs(plan, plan_path):
        return {}, f"{', '.join(changed)} is missing or has changed since the plan was solved, {unsure}; solve again"
    if has_edited_decisions(plan):
        return {}, f"the plan's decisions were edited since it was solved, {unsure}"
    path = input_path(plan.inputs.workload, plan_path)
    try:
        workload, cluster = load_workload(path)
        problem = problem_of(workload, path, cluster)
    except InputError as error:
        return {}, f"{error}, {unsure}"
    rows = {}
    for key, group in plan.groups.items():
        for name, job in lock_slowdowns(group, locks[key], problem).items():
            planned = group.jobs[name].slowdown
            rows[name] = {
                "group": key,
                "planned_mean": planned.mean,
                "planned_p95": planned.p95,
                "mean": job.slowdown.mean,
                "p50": job.slowdown.p50,
                "p95": job.slowdown.p95,
                "slo": planned.slo,
                "keeps": job.keeps,
            }
    return dict(sorted(rows.items())), None


def _text(result: dict[str, Any]) -> str:
    """The export for a terminal: commands for nodes, where pods go, slowdowns."""
    from ..plans.export.llm_d_labels import GROUP_OF_POD, PLANNED_NODE

    nodes = ", ".join(f"{number} {pool}" for pool, number in result["nodes_needed"].items())
    lines = [f"nodes to label: {nodes}"]
    for node in result["nodes"]:
        lines += [f"# {node['node']} of pool {node['pool']}, for {node['lock']}", node["label"], node["taint"]]
    wide = max(8, *(len(name) for name in result["pods"])) + 2
    lines.append(f"{'pods of':{wide}}{'phase':8}{GROUP_OF_POD}, on nodes")
    for name, pods in result["pods"].items():
        for phase in ("rollout", "train"):
            group = pods[phase][0]["metadata"]["labels"][GROUP_OF_POD]
            where = ", ".join(pod["spec"]["nodeSelector"][PLANNED_NODE] for pod in pods[phase])
            lines.append(f"{name:{wide}}{phase:8}{group}, on {where}")
    if result["jobs"]:
        lines.append(f"{'slowdown':{wide}}{'planned':>8}{'p95':>8}{'llm-d':>8}{'p95':>8}{'at most':>9}")
    for name, row in result["jobs"].items():
        lines.append(
            f"{name:{wide}}{row['planned_mean']:8.3f}{row['planned_p95']:8.3f}"
            f"{row['mean']:8.3f}{row['p95']:8.3f}{row['slo']:9.3f}" + ("" if row["keeps"] else "  breaks its bound")
        )
    if "out" in result:
        lines.append(f"labels, resource claims and fields of pods: {result['out']}")
    return "\n".join(lines)
