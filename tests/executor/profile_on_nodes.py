"""Run by test_profile_on_nodes.py in a process of its own: `rlplan profile` on two Ray nodes of this machine, of a
device each, of the job in the folder that is named; prints JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import ray
from ray._private.state import actors, available_resources_per_node

from benchmarks.ray_nodes import RayNodes
from rlplan.plans.schema.cluster import Cluster, load_cluster
from rlplan.plans.yaml.yaml_io import dump

KINDS = {"RolloutEngine": "engines", "TrainerRank": "trainer"}
LOOK_S = 1.0


def profile(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "rlplan.cli.main", "profile", str(folder), "--minutes", "0.05", "--json", *options]


def seats() -> dict[str, Any]:
    """Addresses of actors that are alive, by kind, and the devices that are free."""
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    found: dict[str, Any] = {"engines": [], "trainer": []}
    for actor in actors().values():
        kind = KINDS.get(actor["ActorClassName"])
        if kind is not None and actor["State"] == "ALIVE":
            found[kind].append(addresses[actor["Address"]["NodeID"]])
    free = sum(resources.get("rlplan_core", 0) for resources in available_resources_per_node().values())
    return found | {"free": free, "nodes": sorted(addresses.values())[1:]}  # the first is the head's


def watched(folder: Path, log: Path) -> dict[str, Any]:
    """Run a profile; what it printed, and the seats when most actors were there."""
    with log.open("w") as errors:
        process = subprocess.Popen(profile(folder), stdout=subprocess.PIPE, stderr=errors, text=True)
        most: dict[str, Any] = {"engines": [], "trainer": []}
        while process.poll() is None:
            now = seats()
            if len(now["engines"]) + len(now["trainer"]) > len(most["engines"]) + len(most["trainer"]):
                most = now
            time.sleep(LOOK_S)
    assert process.stdout is not None
    output = process.stdout.read()
    assert process.returncode == 0, log.read_text()[-3000:]
    return most | json.loads(output.splitlines()[-1]) | {"progress": log.read_text().splitlines()}


def main(folder: Path) -> None:
    with RayNodes([1, 1]) as nodes:
        os.environ["RAY_ADDRESS"] = nodes.address
        ray.init(address=nodes.address, logging_level="ERROR", log_to_driver=False)
        answer = watched(folder, folder / "profile.log")
        cluster = load_cluster(folder / "cluster.yaml").model_dump(mode="json")
        cluster["pools"]["main"]["nodes"] = 3
        dump(Cluster.model_validate(cluster), folder / "three.yaml")
        options = ("--cluster", str(folder / "three.yaml"), "--force")
        refused = subprocess.run(profile(folder, *options), capture_output=True, text=True, timeout=300)
        print(json.dumps(answer | {"refused": refused.stderr, "refused_code": refused.returncode}))
        ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
