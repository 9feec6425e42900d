"""Labels, taint and limits of llm-d's RL time-slicing (Snapshot Agent and TimeSlice Orchestrator).

Source: github.com/llm-d-incubation/llm-d-rl-time-slicing at 6cf8e9b (2026-08-22):
- the keys that the orchestrator reads: pkg/timeslice-orchestrator/infrastructure/kubernetes.go (a node belongs to group
  `x` if it has the label `group.timeslice.io/x` with the value `true`; a pod names its group and its job);
- `timeslice.io/enabled`, the taint, tolerations, resource claims: guides/timeslice-orchestrator/README.md;
- one job at a time on all nodes of a group, in the order of asking: the same guide, "Key Concepts";
- `TIMESLICE_*` and 600 s: pkg/integrations/slime/timeslice_slime/locks.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..schema.groups_plan import GroupsPlan
from ..yaml.yaml_doc import Loc

SOURCE = "github.com/llm-d-incubation/llm-d-rl-time-slicing, 2026-08"

GROUP_OF_NODE = "group.timeslice.io/"
GROUP_OF_POD = "timeslice.io/group"
JOB_OF_POD = "timeslice.io/job-id"
ENABLED = "timeslice.io/enabled"
TAINT = "timeslice.io/shared"

DEVICE_CLASS = "gpu.nvidia.com"
"""Class of devices of the resource claims, of NVIDIA's DRA driver."""

LONGEST_WAIT_S = 600.0
"""Seconds after which llm-d's integration into slime gives up waiting for a lock."""

PLANNED_NODE = "rlplan-node"
"""A label of ours: which node of the plan a node stands for. Pods of all jobs that the plan puts onto one node find
the same one by it."""

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
MOST_CHARACTERS = 63


def is_label_value(text: str) -> bool:
    """Return whether Kubernetes takes `text` as the value of a label, and as a key's name after its prefix."""
    return len(text) <= MOST_CHARACTERS and LABEL_VALUE.fullmatch(text) is not None


def label_faults(plan: GroupsPlan) -> Iterator[tuple[Loc, str]]:
    """Yield (location in the plan, what is wrong and what to do) for each job whose name can be no label."""
    for key, group in plan.groups.items():
        for name in sorted(group.jobs):
            if not is_label_value(name):
                yield (
                    ("groups", key, "jobs", name),
                    f"'{name}' cannot be a Kubernetes label, which has at most {MOST_CHARACTERS} characters and ends "
                    "with a letter or a digit; name the job otherwise in the workload, and solve again",
                )
