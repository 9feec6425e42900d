"""Seconds of a job's start beside the jobs that run on its nodes.

On GPUs a start computes on host cores that phases leave idle. Where accelerators are host cores (pools of kind `cpu`),
the start and the running phases share them. Linux gives both the same share of a core, so a phase takes twice as long
while a start goes on. Phases that hold a core for a share b of the time then hold it for 2b / (1 + b), and the start
proceeds at half its rate in that time: it takes 1 + b times as long.
"""

from __future__ import annotations

from dataclasses import replace

from ..inputs.group_model import Group, Jobs, NodeTypes, Rules, node_of_units
from .steady_state import steady_state


def start_s(name: str, group: Group, jobs: Jobs, node_types: NodeTypes, rules: Rules) -> float:
    """Seconds from nothing to the first phase of job `name` of `group`, while the group's other jobs run.

    Rollout and training start at once; the one whose cores are busier takes longer, and decides.
    """
    cold_s = jobs[name].cold_s
    others = tuple(pin for pin in group.pins if pin.job != name)
    if not others or not any(node_types[pool].host_cores for pool in group.nodes):
        return cold_s
    slots = {pool: node_type.slots for pool, node_type in node_types.items()}
    busy = steady_state(replace(group, pins=others), jobs, rules, slots).busy
    node_of = node_of_units(group, node_types)
    [own] = [pin for pin in group.pins if pin.job == name]
    on_cores = (
        unit for unit in (*own.rollout_units, *own.train_units) if node_types[group.nodes[node_of[unit]]].host_cores
    )
    return cold_s * (1.0 + max((busy[unit] for unit in on_cores), default=0.0))
