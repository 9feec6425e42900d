"""The nodes that a plan takes, by pool."""

from __future__ import annotations

from ..schema.plan import Plan
from .numbers import count


def nodes_text(plan: Plan) -> str:
    """Return `8 nodes of pool main`; of each pool its own where trainers have one to themselves."""
    nodes, trainers, placement = plan.predicted.nodes, plan.predicted.train_nodes or 0, plan.job.placement
    text = f"{count(nodes - trainers, 'node')} of pool {plan.job.rounds.short.rollout.pool}"
    if placement is None:
        return text
    return f"{text} and {trainers} of pool {placement.train_pool} (trainers)"
