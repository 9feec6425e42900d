"""The placement of a large plan, with an actor that does nothing in each seat."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import ray

import rlplan.plans
from rlplan.executor.placement.live_nodes import on_node
from rlplan.executor.placement.seat_keeper import LiveSeat, SeatKeeper
from rlplan.executor.placement.seats import run_placement
from rlplan.executor.processes.actors import ACTOR_OPTIONS, start_ray
from rlplan.plans.schema.cluster import Cluster, load_cluster
from rlplan.plans.schema.plan import Plan, load_plan
from rlplan.plans.schema.planned_job import PlannedJob
from rlplan.plans.yaml.errors import InputError

from ..ray_nodes import RayNodes

EXAMPLE = Path(rlplan.plans.__file__).parent / "examples" / "math-32b.yaml"
NAME = "math-32b"


class Sitter:
    """An actor that says where it is."""

    def node(self) -> tuple[str, str]:
        """(Ray's id of its node, the node's address)."""
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()


def example() -> tuple[Plan, Cluster]:
    """The plan of the 32B example with engines of TP 4 in short rounds and of TP 8 in long ones; its cluster."""
    plan = load_plan(EXAMPLE)
    cluster = load_cluster(EXAMPLE.parent / plan.inputs.cluster.path)
    document = plan.job.model_dump(mode="json")
    document["rounds"]["short"]["rollout"] |= {"engines": 16, "tp": 4}
    document["rounds"]["long"]["rollout"] |= {"engines": 8, "tp": 8}
    return plan.model_copy(update={"job": PlannedJob.model_validate(document)}), cluster


async def _seated(plan: Plan, cluster: Cluster) -> dict[str, Any]:
    placement = run_placement({NAME: plan}, cluster.pools)
    keeper = SeatKeeper(placement, "cpu")
    await keeper.open(own_machine=False)
    try:
        seats: list[tuple[str, LiveSeat, int]] = []
        for name, planned_seat in placement.engines.items():
            seats.append((name, await keeper.engine(name), len(planned_seat.devices)))
        ranks = await keeper.ranks(NAME, 60.0)
        seats += [(f"rank {rank}", seat, 1) for rank, seat in enumerate(ranks)]
        sitter: Any = ray.remote(Sitter)
        actors = [sitter.options(**ACTOR_OPTIONS, **on_node(seat.node_id)).remote() for _, seat, _ in seats]
        answers = await asyncio.gather(*(actor.node.remote() for actor in actors))
        misplaced = [
            name
            for (name, seat, _), (node_id, address) in zip(seats, answers, strict=True)
            if (node_id, address) != (seat.node_id, seat.address)
        ]
        addresses = {seat.address for _, seat, _ in seats}
        of_engines = placement.engines.values()
        return {
            "nodes": len(addresses),
            "devices": len({(seat.node, device) for seat in of_engines for device in seat.devices}),
            "engines": {str(tp): len(names) for tp, names in placement.engine_sets.items()},
            "ranks": len(ranks),
            "actors": len(actors),
            "double_booked": len(placement.double_booked()),
            "split": sum(len(seat.devices) != tp for tp, names in placement.engine_sets.items()
                         for seat in (placement.engines[name] for name in names)),
            "misplaced": len(misplaced),
        }  # fmt: skip
    finally:
        keeper.close()


async def _refusal(plan: Plan, cluster: Cluster) -> str | None:
    keeper = SeatKeeper(run_placement({NAME: plan}, cluster.pools), "cpu")
    try:
        await keeper.open(own_machine=False)
    except InputError as error:
        return str(error)
    finally:
        keeper.close()
    return None


def sit() -> dict[str, Any]:
    """The result of the first part."""
    plan, cluster = example()
    pool = cluster.pools[plan.job.rounds.short.rollout.pool]
    with RayNodes([pool.accelerators.per_node] * (pool.nodes - 1)) as nodes:
        os.environ["RAY_ADDRESS"] = nodes.address
        try:
            start_ray()
            refused = asyncio.run(_refusal(plan, cluster))
            nodes.add(pool.accelerators.per_node)
            return asyncio.run(_seated(plan, cluster)) | {"refused": refused}
        finally:
            ray.shutdown()
            del os.environ["RAY_ADDRESS"]
