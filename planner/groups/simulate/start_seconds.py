"""Seconds of a job's start beside the jobs that run on its nodes.

On GPUs a start computes on host cores that phases leave idle. Where accelerators are host cores (pools of kind `cpu`),
the start and the running phases share them. Linux gives both the same share of a core, so a phase takes twice as long
while a start goes on. Phases that hold a core for a share b of the time then hold it for 2b / (1 + b), and the start
proceeds at half its rate in that time: it takes 1 + b times as long.
"""

from __future__ import annotations

from dataclasses import replace

from ..inputs.group_model import Group, Jobs, NodeTypes, Rules
from .steady_state import steady_state


def start_s(name: str, group: Group, jobs: Jobs, node_types: NodeTypes, rules: Rules) -> float:
    """Seconds from nothing to the first phase of job `name` of `group`, while the group's other jobs run.

    A phase that starts on cores of a busier node than the other phase decides.
    """
    cold_s = jobs[name].cold_s
    others = tuple(pin for pin in group.pins if pin.job != name)
    if not others or not any(node_types[pool].host_cores for pool in group.nodes):
        return cold_s
    slots = {pool: node_type.slots for pool, node_type in node_types.items()}
    busy = steady_state(replace(group, pins=others), jobs, rules, slots).busy
    cores = [node_types[pool].host_cores for pool in group.nodes for _ in range(slots[pool])]
    [own] = [pin for pin in group.pins if pin.job == name]
    units = (*own.rollout_units, *own.train_units)
    return cold_s * (1.0 + max((busy[unit] for unit in units if cores[unit]), default=0.0))
