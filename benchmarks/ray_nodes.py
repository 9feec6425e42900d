"""Several Ray nodes on this machine, each with an address and devices of its own, which can be killed and added.

The nodes are real: a raylet and an object store each, in a process that this one starts and ends. Devices are the
resource `rlplan_core`. All nodes share the machine's cores; node K may run on core K modulo their number only. Or
devices are GPUs: each node offers the next ones of the machine, and those of a machine with fewer are shared.

    python -m benchmarks.ray_nodes   reads JSON commands, a line each; `RayNodes` writes them
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from rlplan.executor.processes.actors import RAY_SETTINGS, on_a_busy_machine

OBJECT_STORE_BYTES = 100 * 1024**2


class RayNodes:
    """A Ray cluster of a head without devices and one node for each entry of `devices`; a context.

    Args:
        devices: of each node.
        pinned: whether each node's processes run on one core.
        gpus: whether devices are GPUs.
    """

    def __init__(self, devices: Sequence[int], pinned: bool = False, gpus: bool = False) -> None:
        self._devices, self._pinned, self._gpus = devices, pinned, gpus
        self._folder = tempfile.TemporaryDirectory(prefix="rn")  # short: names of sockets lie below it
        self._log = tempfile.TemporaryFile("w+")  # what Ray prints  # noqa: SIM115
        self._process: subprocess.Popen[str] | None = None
        self.address = ""
        """For RAY_ADDRESS."""
        self.added: list[str] = []
        """Addresses of all nodes with devices, dead ones included."""

    def __enter__(self) -> RayNodes:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ray_nodes"],
            cwd=Path(__file__).resolve().parents[1],
            env={**os.environ, "RAY_TMPDIR": self._folder.name, **RAY_SETTINGS},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        try:
            self.address = self._ask(do="head")
            for devices in self._devices:
                self.add(devices)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._end()

    def add(self, devices: int) -> str:
        """Add a node; returns its address."""
        self.added.append(self._ask(do="add", devices=devices, pinned=self._pinned, gpus=self._gpus))
        return self.added[-1]

    def kill(self, address: str) -> None:
        """SIGKILL all of Ray's processes of a node, which takes those of its actors with it."""
        self._ask(do="kill", address=address)

    def drain(self, address: str, seconds: float) -> None:
        """Say, as `ray drain-node` does, that a node is to be taken away in so many seconds; it goes on until it is
        killed."""
        self._ask(do="drain", address=address, seconds=seconds)

    def _ask(self, **command: Any) -> str:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            self._log.seek(0)
            raise RuntimeError(f"the process of the Ray nodes has ended: {self._log.read()[-2000:]}")
        return str(json.loads(answer))

    def _end(self) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()
        self._folder.cleanup()


def _serve() -> None:
    """Carry out commands until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is no answer
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    nodes: dict[str, Any] = {}
    count = 0
    cores = sorted(os.sched_getaffinity(0))
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "kill":
            nodes.pop(command["address"]).kill_all_processes(check_alive=False, allow_graceful=False)
            answer = command["address"]
        elif command["do"] == "drain":
            answer = command["address"]
            _drain(cluster.address, nodes[answer].node_id, command["seconds"])
        else:
            head = command["do"] == "head"
            address = f"127.0.0.{count + 2}"  # none is used twice
            if command.get("pinned"):
                os.sched_setaffinity(0, {cores[(count - 1) % len(cores)]})
            count += 1
            devices, gpus = (0, False) if head else (command["devices"], command["gpus"])
            if gpus:  # read by Ray's node
                offered = [(len(nodes) - 1) * devices + number for number in range(devices)]
                os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(number % _gpus()) for number in offered)
            options: dict[str, Any] = {
                "num_cpus": 0,
                "num_gpus": devices if gpus else 0,
                "resources": {} if head or gpus else {"rlplan_core": devices},
                "node_ip_address": address,
                "object_store_memory": OBJECT_STORE_BYTES,
                **({"include_dashboard": False, "include_log_monitor": False} if head else {}),
            }
            nodes[address] = on_a_busy_machine(partial(cluster.add_node, **options))
            os.sched_setaffinity(0, set(cores))
            answer = cluster.address if head else address
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    cluster.shutdown()


def _gpus() -> int:
    import torch

    return max(torch.cuda.device_count(), 1)


def _drain(cluster: str, node_id: str, seconds: float) -> None:
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    end_ms = int(1e3 * (time.time() + seconds))
    accepted, why = GcsClient(address=cluster).drain_node(node_id, reason, "preempted", end_ms)
    assert accepted, why


if __name__ == "__main__":
    _serve()
