"""An actor placer on three nodes, some of which are killed; as a script, on Ray nodes of this machine; prints JSON."""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import ray

from benchmarks.ray_nodes import RayNodes
from rlplan.executor.placement.actor_placer import ActorPlacer, NodeNews
from rlplan.executor.placement.live_checks import check_shared
from rlplan.executor.placement.run_placement import Room, place
from rlplan.executor.processes.actors import start_ray
from rlplan.plans.yaml.errors import InputError, RunFailed

ROOM, TRAIN_ROOM = Room("rollout", nodes=2, devices=2, cores=2), Room("train", nodes=1, devices=2, cores=2)


async def newly(keeper: ActorPlacer) -> list[tuple[int, float | None]]:
    """The nodes that drain; Ray's tables may need a moment to say so."""
    for _ in range(100):
        if new := keeper.newly_draining():
            return list(new.items())
        await asyncio.sleep(0.1)
    return []


async def observe(nodes: Any) -> dict[str, Any]:
    placement = place(ROOM, {1: ["one", "two"]}, {"plan": 2}, 2, TRAIN_ROOM)
    news: list[NodeNews] = []
    keeper, rival = ActorPlacer(placement, "cpu", news.append), ActorPlacer(placement, "cpu")
    seen: dict[str, Any] = {}
    await keeper.open(own_machine=False)
    one, two = await keeper.engine("one"), await keeper.engine("two")
    ranks = await keeper.ranks("plan", 60.0)
    seen["before"] = [one.address, two.address, *(rank.address for rank in ranks)]
    seen["cores"] = [len(one.cores), len(ranks[0].cores)]
    with tempfile.TemporaryDirectory() as folder:
        await check_shared(Path(folder), keeper.nodes)
        seen["left_in_folder"] = [path.name for path in Path(folder).iterdir()]
    try:
        await rival.open(own_machine=False)
    except InputError as error:
        seen["rival"] = str(error)
    worker = placement.reward_workers.index(0)
    seen["worker"] = (await keeper.worker(worker)).address
    nodes.kill(one.address)
    waiting = asyncio.create_task(keeper.engine("one"))
    seen["two_after_death"] = (await keeper.engine("two")).address
    seen["worker_after_death"] = (await keeper.worker(worker)).address
    await asyncio.sleep(3.0)
    seen["waits"] = not waiting.done()
    seen["added"] = nodes.add(2)
    seen["one_after_death"] = (await asyncio.wait_for(waiting, 60.0)).address
    nodes.drain(two.address, 600)
    seen["drains"] = {number: left_s is not None and 500 < left_s <= 600 for number, left_s in await newly(keeper)}
    seen["drains_again"] = len(keeper.newly_draining())
    seen["left_without_room"] = keeper.leave(1)
    seen["second_added"] = nodes.add(2)
    seen["left"] = keeper.leave(1)
    seen["two_after_drain"] = (await keeper.engine("two")).address
    nodes.kill(ranks[0].address)
    try:
        await keeper.ranks("plan", 30.0)
    except RunFailed as error:
        seen["gave_up"] = str(error)
    seen["news"] = [f"{each.event} {each.node} {each.address}" for each in news]
    keeper.close()
    return seen


if __name__ == "__main__":  # test_actor_placer.py runs it in a process of its own
    with RayNodes([2, 2, 2]) as nodes:
        os.environ["RAY_ADDRESS"] = nodes.address
        start_ray()
        print(json.dumps(asyncio.run(observe(nodes))))
        ray.shutdown()
