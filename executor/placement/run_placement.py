"""The placement of the plans that are executed together, from the plans alone."""

from __future__ import annotations

from collections.abc import Sequence

from ...plans.schema.cluster import Pool
from ...plans.schema.sections.planned_job import PlannedJob
from ..configuration import Configuration
from .seats import Placement, Room, place


def run_placement(
    settings: Configuration, names: Sequence[str], plans: Sequence[PlannedJob], pool: Pool
) -> Placement:
    """Seats of the engines, trainer ranks and reward workers of `settings`, made of these `plans`, called `names`.

    Plans that take turns on the same engines agree on their nodes. Raises DoesNotFit.
    """
    own = plans[0].placement
    room = Room(
        nodes=pool.nodes,
        devices=pool.accelerators.per_node,
        cores=pool.cores,
        device_is_core=pool.accelerators.kind == "cpu",
        train_nodes=0 if own is None else own.train_nodes,
    )
    engines = {tp: [engine.name for engine in configs] for tp, configs in settings.fleet.engines().items()}
    ranks = {name: trainer.ranks for name, trainer in zip(names, settings.trainers, strict=True)}
    return place(room, engines, ranks, settings.reward_workers)
