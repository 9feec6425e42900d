"""The demo on one node and on three, with and without the death of nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlplan.executor.example.write import write_example
from rlplan.plans.schema.cluster import Cluster, load_cluster
from rlplan.plans.schema.job import Job, load_job
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.yaml_io import dump
from rlplan.traces.run_log import TRACE, read_run

from ..faults.driver import START_DEADLINE_S, Driver
from ..faults.example import shipped_plan, with_layout
from ..faults.verdict import off_policy, trained, weights_difference, weights_moved
from ..ray_nodes import RayNodes

PER_NODE = 2
TRAIN_NODE = 2  # the last of three
NOTICE_S = 600.0
PROMPTS_PER_STEP, MAX_RESPONSE_TOKENS = 8, 256


def write_plan(folder: Path, nodes: int) -> Path:
    """Write the demo's example, shortened, and a plan of two engines and two trainer ranks on so many nodes; returns
    the plan's path."""
    write_example(folder)
    job = load_job(folder / "job.yaml").model_dump(mode="json")
    job["rollout"] |= {
        "prompts_per_step": PROMPTS_PER_STEP,
        "max_response_tokens": MAX_RESPONSE_TOKENS,
        "seed_per_sample": True,
    }
    dump(Job.model_validate(job), folder / "job.yaml")
    cluster = load_cluster(folder / "cluster.yaml").model_dump(mode="json")
    pool = cluster["pools"]["main"]
    pool |= {"nodes": max(nodes - 1, 1), "cores": max(PER_NODE, pool["cores"])}
    pool["accelerators"]["per_node"] = PER_NODE
    if nodes > 1:
        cluster["pools"]["train"] = pool | {"nodes": 1}
    dump(Cluster.model_validate(cluster), folder / "cluster.yaml")
    document = with_layout(shipped_plan(folder, "exact")).model_dump(mode="json")
    if nodes > 1:
        document["job"]["placement"] = {"train_pool": "train"}
    dump(Plan.model_validate(document), folder / "plan.yaml")
    return folder / "plan.yaml"


@contextmanager
def connected(nodes: RayNodes) -> Iterator[None]:
    """Within the block new processes connect to these nodes."""
    os.environ["RAY_ADDRESS"] = nodes.address
    try:
        yield
    finally:
        del os.environ["RAY_ADDRESS"]


def run(plan: Path, out: Path, steps: int) -> float:
    """Run a plan without faults; returns seconds."""
    began = time.monotonic()
    with Driver(plan, out, steps) as driver:
        if not driver.wait_until_done(START_DEADLINE_S) or driver.starts > 1:
            raise RuntimeError(f"{out.name} failed; the end of its log:\n{driver.end_of_log()}")
    return time.monotonic() - began


def run_with_deaths(plan: Path, out: Path, steps: int, nodes: RayNodes) -> dict[str, Any]:
    """Run a plan on three nodes, of which two are killed in a round and one is drained; returns what happened.

    An engine's node is killed in the round of step 4, and two others join; the trainer's node is drained at half of the
    steps; the node that the trainer moves to is killed in the round after three quarters, and another one joins.
    """
    began = time.monotonic()
    kills, addresses = 0, list(nodes.added)  # a run takes them in this order
    with Driver(plan, out, steps) as driver:

        def reach(step: int) -> None:
            if not driver.wait_for_step(step, START_DEADLINE_S):
                raise RuntimeError(f"{out.name} got no further; the end of its log:\n{driver.end_of_log()}")
            time.sleep(0.2)  # into the round that follows

        reach(3)
        nodes.kill(addresses[0])
        kills += 1
        for _ in range(2):
            nodes.add(PER_NODE)
        reach(steps // 2)
        nodes.drain(addresses[TRAIN_NODE], NOTICE_S)
        reach(3 * steps // 4)
        nodes.kill(trainers_node(out, addresses[TRAIN_NODE]))
        kills += 1
        nodes.add(PER_NODE)
        done = driver.wait_until_done(START_DEADLINE_S)
        events = read_run(out / TRACE).events
        named = [event for event in events if event["event"] in ("node_draining", "node_lost", "node_back")]
        draining = next((event["step"] for event in events if event["event"] == "node_draining"), None)
        moved = next((event["step"] for event in events if event["event"] == "resume"), None)
        return {
            "done": done,
            "driver_starts": driver.starts,
            "node_kills": kills,
            "drains": sum(event["event"] == "node_draining" for event in named),
            "steps_lost_by_drain": None if None in (draining, moved) else draining - moved,
            "node_events": [f"{event['event']} {event['node']}" for event in named],
            "seconds": round(time.monotonic() - began, 1),
        }


def trainers_node(out: Path, first: str) -> str:
    """Address of the node that the trainer is on: `first`, unless it has moved."""
    moves = [event for event in read_run(out / TRACE).events if event["event"] == "node_back"]
    return str(next((event["address"] for event in reversed(moves) if event["node"] == TRAIN_NODE), first))


def compare(reference: Path, other: Path) -> dict[str, Any]:
    """Samples and weights of a run beside those of the reference."""
    wanted, actual = (trained(read_run(run / TRACE)) for run in (reference, other))
    return {
        "lost": sum((wanted - actual).values()),
        "double": sum((actual - wanted).values()),
        "off_policy": off_policy(read_run(other / TRACE)),
        "samples": sum(actual.values()),
        "weights_max_difference": weights_difference(reference, other),
        "weights_moved": weights_moved(reference),
    }
