"""A Ray cluster in this process, as executor/placement sees it: its nodes come, go and drain when the test says so."""

from types import SimpleNamespace

import pytest
import ray
from ray._private import state

from rlplan.executor.groups import job_process
from rlplan.executor.memory import free_memory
from rlplan.executor.placement import live_checks, live_nodes
from rlplan.executor.placement.live_nodes import CORE_RESOURCE, POOL_LABEL, NodeFacts
from rlplan.executor.processes.faults import ActorFailed

from ..engines.engine_fakes import Ref


def id_of(address):
    """Ray's id of a node."""
    return f"{int(address.rpartition('.')[2]):056x}"


class FakeNodes:
    """Nodes of so many devices; this process is on the first. `versions`, `free_bytes`, `faults` of devices and what is
    added to the name of a model's folder (`copies`): by address."""

    def __init__(self, devices, resource=CORE_RESOURCE):
        self.resource, self.all, self.versions, self.free_bytes, self.private = resource, {}, {}, {}, set()
        self.copies, self.faults, self.actors, self.jobs, self.slow = {}, {}, {}, [], 0
        for each in devices:
            self.add(each)

    # -- what happens to nodes, as benchmarks/ray_nodes.py has it ------------------------------------------------------

    def add(self, devices, pool=""):
        address = f"127.0.0.{len(self.all) + 3}"
        labels = {POOL_LABEL: pool} if pool else {}
        self.all[id_of(address)] = SimpleNamespace(
            address=address, devices=devices, free=devices, alive=True, drains=None, labels=labels
        )
        return address

    def node(self, address):
        return self.all[id_of(address)]

    def kill(self, address):
        self.node(address).alive = False

    def drain(self, address, seconds):
        self.node(address).drains = seconds

    # -- what Ray tells ------------------------------------------------------------------------------------------------

    def nodes(self):
        return [
            {"NodeID": name, "NodeManagerAddress": node.address, "Alive": node.alive, "Labels": node.labels,
             "Resources": {self.resource: node.devices}} for name, node in self.all.items()
        ]  # fmt: skip

    def draining(self):
        ends = {name: node.drains for name, node in self.all.items() if node.drains is not None and node.alive}
        return {
            name: int(1000 * (seconds + live_nodes.time.time())) if seconds else 0 for name, seconds in ends.items()
        }

    def group(self, bundles):
        (bundle,) = bundles
        address = next(key.partition(":")[2] for key in bundle if key.startswith("node:"))
        node, devices = self.node(address), bundle[self.resource]
        fits = node.alive and node.free >= devices and not self.slow
        self.slow -= bool(self.slow)
        node.free -= devices if fits else 0
        return SimpleNamespace(id=id_of(address), held=devices if fits else 0, wait=lambda seconds: fits)

    def give_back(self, group):
        self.all[group.id].free += group.held
        group.held = 0

    def remote(self, body):
        """A remote function with this body, called with the node's id before its arguments."""

        def options(scheduling_strategy=None, num_gpus=0):
            group = getattr(scheduling_strategy, "placement_group", None)
            node_id = scheduling_strategy.node_id if group is None else group.id

            async def run(arguments):
                if not self.all[node_id].alive:
                    raise ActorFailed(node_id, "it is gone")
                return body(node_id, *arguments)

            return SimpleNamespace(remote=lambda *arguments: Ref(run(arguments)))

        return SimpleNamespace(options=options)

    def facts(self, node_id, *tried):
        node = self.all[node_id]
        if isinstance(version := self.versions.get(node.address, "2.13"), Exception):
            raise ray.exceptions.RayTaskError("_probe", "", version).as_instanceof_cause()
        cores = tuple(range(10, 10 + node.devices))
        gpus, faults = tuple(map(str, range(node.devices))), self.faults.get(node.address, ()) if tried else ()
        return NodeFacts(node.address, node.address, cores, gpus, (("torch", version),), faults)


@pytest.fixture
def cluster(monkeypatch):
    """Makes FakeNodes what Ray is connected to."""

    def connected(devices, resource=CORE_RESOURCE):
        nodes = FakeNodes(devices, resource)
        here = SimpleNamespace(get_node_id=lambda: next(iter(nodes.all)), get_accelerator_ids=lambda: {"GPU": ["4"]})
        fake = SimpleNamespace(
            nodes=nodes.nodes, exceptions=ray.exceptions, get_runtime_context=lambda: here,
            util=SimpleNamespace(get_node_ip_address=lambda: "127.0.0.3"),
        )  # fmt: skip
        for module in (live_nodes, live_checks, free_memory, job_process):
            monkeypatch.setattr(module, "ray", fake)
        free = lambda: {name: {nodes.resource: node.free} for name, node in nodes.all.items()}  # noqa: E731
        monkeypatch.setattr(state, "available_resources_per_node", free)
        monkeypatch.setattr(state.state, "get_draining_nodes", nodes.draining, raising=False)
        monkeypatch.setattr(state, "jobs", lambda: nodes.jobs)
        monkeypatch.setattr(state, "actors", lambda: nodes.actors)
        monkeypatch.setattr(live_nodes, "placement_group", nodes.group)
        monkeypatch.setattr(live_nodes, "remove_placement_group", nodes.give_back)
        monkeypatch.setattr(live_nodes, "_probe", nodes.remote(nodes.facts))
        answer = live_checks._answer._function
        away = lambda node, *given: "no such folder" if nodes.all[node].address in nodes.private else answer(*given)  # noqa: E731
        monkeypatch.setattr(live_checks, "_answer", nodes.remote(away))
        copies = lambda node, model: live_checks.model_files(f"{model}{nodes.copies.get(nodes.all[node].address, '')}")  # noqa: E731
        monkeypatch.setattr(live_checks, "_model_files", nodes.remote(copies))
        free_bytes = nodes.remote(lambda node: nodes.free_bytes.get(nodes.all[node].address))
        monkeypatch.setattr(free_memory, "_free", free_bytes)
        monkeypatch.setattr(job_process, "_left", nodes.remote(lambda node, pids, seconds: pids[1:]))
        return nodes

    return connected
