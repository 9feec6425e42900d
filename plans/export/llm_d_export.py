"""A plan of groups as what a person applies to a Kubernetes cluster with llm-d's RL time-slicing.

The export has three parts: `nodes`, for each node of the plan its labels and the commands that set them; `claims`, one
resource claim for the accelerators of each node, which the pods of all its jobs share; `pods`, for each job and phase
what goes into the template of its pod on each node (llm_d_labels.py has the source of every key).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..schema.cluster import Cluster
from ..schema.groups_plan import GroupsPlan
from ..yaml.yaml_write import write
from .llm_d_labels import DEVICE_CLASS, ENABLED, GROUP_OF_NODE, GROUP_OF_POD, JOB_OF_POD, PLANNED_NODE, SOURCE, TAINT
from .node_locks import PHASES, NodeLock, lock_of, node_locks, nodes_held

FIRST_WORDS = "# Labels for llm-d's RL time-slicing"
"""How the text of an export begins, by which a later export knows that it may overwrite it."""

Locks = Mapping[str, tuple[NodeLock, ...]]
"""By group of the plan, its locks; each becomes a group of llm-d."""


def all_locks(plan: GroupsPlan) -> Locks:
    """Return the locks of every group of the plan."""
    return {key: node_locks(key, group) for key, group in plan.groups.items()}


def nodes_needed(plan: GroupsPlan, locks: Locks) -> dict[str, int]:
    """Return by pool how many nodes the export labels."""
    held = (plan.groups[key].nodes[node].pool for key in locks for lock in locks[key] for node in lock.nodes)
    return dict(sorted(Counter(held).items()))


def llm_d_export(
    plan: GroupsPlan, locks: Locks, cluster: Cluster, names: Mapping[str, tuple[str, ...]]
) -> dict[str, Any]:
    """Return the export of a plan.

    Args:
        locks: of the plan's groups (`all_locks`).
        cluster: the plan's cluster; a claim has as many devices as a node of its pool has accelerators.
        names: by pool, names of its nodes, at least as many as the plan takes; a pool that is not there gets
            placeholders (`<h20-node-1>`) to fill in, which no shell takes for a name.
    """
    nodes: list[dict[str, Any]] = []
    claims: list[dict[str, Any]] = []
    taken: Counter[str] = Counter()
    for key, group in plan.groups.items():
        for lock in locks[key]:
            for node in lock.nodes:
                pool = group.nodes[node].pool
                known = names.get(pool)
                name = known[taken[pool]] if known else f"<{pool}-node-{taken[pool] + 1}>"
                taken[pool] += 1
                labels = {ENABLED: "true", f"{GROUP_OF_NODE}{lock.name}": "true", PLANNED_NODE: f"{key}-{node}"}
                assignments = " ".join(f"{label}={value}" for label, value in labels.items())
                nodes.append(
                    {
                        "node": f"{key}-{node}",
                        "pool": pool,
                        "lock": lock.name,
                        "name": name if known else None,
                        "label": f"kubectl label nodes {name} --overwrite {assignments}",
                        "taint": f"kubectl taint nodes {name} --overwrite {TAINT}=true:NoSchedule",
                    }
                )
                claims.append(_claim(f"{key}-{node}", cluster.pools[pool].accelerators.per_node))
    pods = {
        name: _pods_of_job(plan, key, name, locks[key])
        for key, group in plan.groups.items()
        for name in sorted(group.jobs)
    }
    return {"nodes": nodes, "claims": {"apiVersion": "v1", "kind": "List", "items": claims}, "pods": pods}


def _claim(node: str, devices: int) -> dict[str, Any]:
    """The resource claim of all accelerators of a planned node."""
    request = {
        "name": "gpu",
        "exactly": {"deviceClassName": DEVICE_CLASS, "allocationMode": "ExactCount", "count": devices},
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"{node}-gpus"},
        "spec": {"devices": {"requests": [request]}},
    }


def _pods_of_job(plan: GroupsPlan, key: str, job: str, locks: tuple[NodeLock, ...]) -> dict[str, Any]:
    """What the pods of a job need: environment of its driver, and the fields of a pod on each node of a phase."""
    group = plan.groups[key]
    member = group.jobs[job]
    lock_names = {phase: lock_of(locks, job, phase).name for phase in PHASES}
    parts: dict[str, Any] = {
        "env": {
            "TIMESLICE_JOB_ID": job,
            "TIMESLICE_TRAINER_GROUP": lock_names["train"],
            "TIMESLICE_SAMPLER_GROUP": lock_names["rollout"],
        }
    }
    for phase in PHASES:
        pinned = member.rollout if phase == "rollout" else member.train
        parts[phase] = [
            {
                "metadata": {"labels": {JOB_OF_POD: job, GROUP_OF_POD: lock_names[phase]}},
                "spec": {
                    "nodeSelector": {f"{GROUP_OF_NODE}{lock_names[phase]}": "true", PLANNED_NODE: f"{key}-{node}"},
                    "tolerations": [{"key": TAINT, "operator": "Equal", "value": "true", "effect": "NoSchedule"}],
                    "resourceClaims": [{"name": "accelerator", "resourceClaimName": f"{key}-{node}-gpus"}],
                },
            }
            for node in nodes_held(group, pinned)
        ]
    return parts


def export_text(export: Mapping[str, Any], plan_name: str, file_name: str) -> str:
    """Return the export as YAML, with the steps to apply it as comments at its top."""
    to_fill = any(node["name"] is None for node in export["nodes"])
    how = "fill in the names of nodes in <>, then " if to_fill else ""
    head = (
        f"{FIRST_WORDS} ({SOURCE}),",
        f"# from {plan_name}. Before the jobs start:",
        f"#   {how}yq -r '.nodes[] | .label, .taint' {file_name} | sh",
        f"#   yq .claims {file_name} | kubectl apply -f -",
        "# and merge each entry of `pods` into the template of the job's pod on that node, its env into the driver's;",
        "# its container claims the accelerators with resources: {claims: [{name: accelerator}]}.",
    )
    return "".join(f"{line}\n" for line in head) + write(dict(export))
