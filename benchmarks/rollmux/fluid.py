"""The fluid bound: a price below which no placer can be, with fractional nodes and each job exactly at its bound.

At any time a job in the system must finish an iteration within its bound times its solo seconds, on average, so
it holds node-seconds at that rate at least. With fractional nodes, and no phase waiting for another job, each
phase takes its cheapest way: one minimum for each phase of each job.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlplan.planner.groups.inputs.group_model import GroupJob, NodeTypes, PhaseWay

from .published_jobs import Arrival


def job_usd_per_hour(job: GroupJob, node_types: NodeTypes) -> float:
    """Least price of one job under its bound."""

    def least(ways: tuple[PhaseWay, ...]) -> float:
        return min(
            way.mean_s * way.nodes * way.slots / node_types[way.pool].slots * node_types[way.pool].usd_per_hour
            for way in ways
        )

    return (least(job.rollout) + least(job.train)) / (job.slo * job.solo_s)


def fluid_bound(arrivals: Sequence[Arrival], node_types: NodeTypes) -> float:
    """USD per hour, averaged from the first arrival to the last departure."""
    hours = max(a.stay.end_h for a in arrivals) - min(a.stay.start_h for a in arrivals)
    usd = sum(job_usd_per_hour(a.job, node_types) * (a.stay.end_h - a.stay.start_h) for a in arrivals)
    return usd / hours
