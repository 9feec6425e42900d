"""What is looked at before a run starts, or goes on: the cluster's address, shared folders, free memory, processes that
a killed driver left."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import ray
import torch
from safetensors.torch import save_file

from rlplan.executor.groups.job_process import GONE_S, left_by, still_running
from rlplan.executor.memory.free_memory import Sleeping, check_host_memory, free_host_bytes, lacking
from rlplan.executor.placement import live_checks
from rlplan.executor.placement.live_checks import (
    LiveCheck,
    check_shared,
    live_check,
    same_models,
)
from rlplan.executor.placement.live_nodes import (
    LeasedNode,
    NodeFacts,
    cluster_nodes,
    device_resource,
    free_address,
)
from rlplan.executor.placement.run_placement import Room
from rlplan.executor.processes import actors
from rlplan.executor.processes.actors import start_ray
from rlplan.executor.processes.host import cluster_address
from rlplan.plans.yaml.errors import InputError

from ..conftest import runs
from .cluster_fakes import cluster as cluster
from .cluster_fakes import id_of


@pytest.mark.parametrize(
    ("given", "address"),
    [(text, text) for text in ("10.0.0.1:6379", "head.example:6379", "[::1]:6379", "auto")]
    + [(None, None), ("", None), ("local", None)],
)
def test_a_cluster_is_named_by_host_and_port_or_is_this_machine(given, address, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if given is not None:
        monkeypatch.setenv("RAY_ADDRESS", given)
    assert cluster_address() == address


@pytest.mark.parametrize(
    "address",
    ["foo", "10.0.0.1", ":6379", "10.0.0.1:", "10.0.0.1:abc", " ", "10.0.0.1:0", "10.0.0.1:99999", "::1:6379",
     "ray://10.0.0.1:10001", "10.0.0.1:6379\n"],
)  # fmt: skip
def test_what_is_no_address_is_refused_with_what_to_write(address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError) as caught:
        cluster_address()
    assert str(caught.value).startswith(f"RAY_ADDRESS: is {address!r}; write HOST:PORT ")


def test_a_placement_is_compared_with_the_cluster_that_is_there(cluster, monkeypatch):
    nodes = cluster([2, 1], resource="CPU")
    monkeypatch.setattr(actors, "start_ray", lambda: False)
    monkeypatch.setattr(live_checks, "cluster_address", lambda: None)
    two = [Room("p", 1, 2, 2)] * 2
    needs = "needs 2 nodes: set RAY_ADDRESS to the head of a Ray cluster that has them"
    assert live_check(two, "cpu") == LiveCheck([], needs, False)
    assert live_check(two[:1], "cpu") == LiveCheck([], None, False)
    monkeypatch.setattr(live_checks, "cluster_address", lambda: "10.0.0.1:6379")
    found = live_check(two, "cpu")
    assert found.addresses == ["127.0.0.3", None] and found.in_cluster and found.lack.startswith("pool 'p' needs 2")
    nodes.add(2)
    assert live_check(two, "cpu") == LiveCheck(["127.0.0.3", "127.0.0.5"], None, True)
    nodes.add(0)
    assert [node.address for node in cluster_nodes("CPU")] == ["127.0.0.3", "127.0.0.4", "127.0.0.5"]
    assert device_resource("cpu") == "CPU" and device_resource("cuda") == "GPU"
    host, _, port = free_address().rpartition(":")
    assert host == "127.0.0.3" and 0 < int(port) < 65536


def test_a_folder_is_written_and_read_by_all_nodes(cluster, tmp_path):
    nodes = cluster([1, 1])
    leased = [LeasedNode(name, NodeFacts(node.address, "h", (), (), ())) for name, node in nodes.all.items()]
    asyncio.run(check_shared(tmp_path / "run", leased[:1]))
    assert not (tmp_path / "run").exists(), "one node shares with nobody"
    asyncio.run(check_shared(tmp_path / "run", leased))
    nodes.private.add("127.0.0.4")
    with pytest.raises(
        InputError, match=r"node 127.0.0.4 does not share this folder: no such folder; .*, since trainer"
    ):
        asyncio.run(check_shared(tmp_path / "run", leased))
    assert list((tmp_path / "run").iterdir()) == []


def test_two_fine_tunes_of_one_model_on_two_nodes_are_refused(cluster, tmp_path):
    """Their configuration and their headers are equal; the models themselves are told by blocks of their weights."""
    nodes = cluster([1, 1, 1])
    leased = [LeasedNode(name, NodeFacts(node.address, "h", (), (), ())) for name, node in nodes.all.items()]
    model = tmp_path / "model"
    for copy, added in (("", 0.0), ("-b", 0.0), ("-c", 1.0)):
        folder = Path(f"{model}{copy}")
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        save_file({"w": torch.arange(10**5, dtype=torch.float32) + added}, folder / "model.safetensors")
    nodes.copies = {"127.0.0.4": "-b"}
    asyncio.run(same_models(str(model), leased))
    nodes.copies["127.0.0.5"] = "-c"
    says = r"is another model on node 127.0.0.5 than on node 127.0.0.3: model.safetensors; copy the same model to both"
    with pytest.raises(InputError, match=says) as caught:
        asyncio.run(same_models(str(model), leased))
    assert caught.value.path == str(model)
    (tmp_path / "model-b" / "config.json").write_text('{"rope_theta": 1}')
    with pytest.raises(InputError, match=r"on node 127.0.0.4 than on node 127.0.0.3: config.json; copy"):
        asyncio.run(same_models(str(model), leased))
    nodes.copies["127.0.0.4"] = "-nowhere"
    with pytest.raises(InputError, match=r"node 127.0.0.4 has no model there; copy it to all nodes"):
        asyncio.run(same_models(str(model), leased))
    nodes.copies = {}
    asyncio.run(same_models("owner/never-fetched@v1", leased))


def node(name, address="10.0.0.1"):
    return LeasedNode(name, NodeFacts(address, "host", (0,), (), ()))


def test_states_of_all_nodes_of_one_machine_sleep_in_the_same_memory():
    asleep = [Sleeping("h20", node("a"), 30e9), Sleeping("h800", node("a"), 50e9), Sleeping("h20", node("b"), 70e9)]
    assert lacking(asleep, {"a": 80 * 10**9, "b": 70 * 10**9}) is None
    text = lacking(asleep, {"a": 79 * 10**9, "b": 70 * 10**9})
    assert text.startswith("node 10.0.0.1 (pool 'h20', 'h800') has 79 GB of host memory free") and "80 GB" in text
    assert "\n" not in text and "rules.group_cap" in text
    assert lacking([Sleeping("h20", node("a"), 1e15)], {"a": None}) is None, "a platform that does not tell is believed"


def test_each_node_is_asked_for_its_own_memory(cluster):
    nodes = cluster([1, 1])
    here, there = (node(id_of(f"127.0.0.{number}"), f"127.0.0.{number}") for number in (3, 4))
    nodes.free_bytes["127.0.0.4"] = 10**9
    asyncio.run(check_host_memory([Sleeping("p", here, 1.0), Sleeping("p", there, 1e9)]))
    with pytest.raises(InputError, match=r"node 127.0.0.4 .* has 1 GB"):
        asyncio.run(check_host_memory([Sleeping("p", there, 1e9), Sleeping("p", there, 2.0)]))
    asyncio.run(check_host_memory([Sleeping("p", node(id_of("127.0.0.9")), 0.0)]))  # nothing sleeps there


def test_a_container_has_what_its_control_group_leaves_it(tmp_path):
    memory, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
    assert free_host_bytes(memory, cgroup) is None
    memory.write_text("MemTotal:       64000 kB\nMemAvailable:   50000 kB\nHugePages_Total:  0\n")
    assert free_host_bytes(memory, cgroup) == 1024 * 50_000, "no control group"
    cgroup.mkdir()
    (cgroup / "memory.max").write_text("max\n")
    assert free_host_bytes(memory, cgroup) == 1024 * 50_000, "one without a limit"
    (cgroup / "memory.max").write_text("9000000\n")
    (cgroup / "memory.current").write_text("7000000\n")
    (cgroup / "memory.stat").write_text("anon 4000000\ninactive_file 1500000\n")
    assert free_host_bytes(memory, cgroup) == 3_500_000
    (cgroup / "memory.current").write_text("19000000\n")
    assert free_host_bytes(memory, cgroup) == 0
    assert free_host_bytes() is None or free_host_bytes() > 0


def test_what_a_driver_left_is_waited_for_on_every_node(cluster):
    nodes, here, there, gone = cluster([1, 1, 1]), *(id_of(f"127.0.0.{number}") for number in (3, 4, 5))
    nodes.kill("127.0.0.5")
    nodes.jobs += [
        {"DriverIPAddress": address, "DriverPid": pid, "StartTime": start, "JobID": name}
        for address, pid, start, name in (
            ("127.0.0.3", 7, 1, "old"), ("127.0.0.3", 7, 2, "new"),
            ("127.0.0.4", 7, 3, "away"), ("127.0.0.3", 8, 9, "b"),
        )
    ]  # fmt: skip
    actors_ = (("new", 2**22 + 1, here), ("new", 41, there), ("new", 42, there), ("new", 0, there), ("old", 43, there),
               ("away", 44, there), ("new", 45, gone))  # fmt: skip
    for number, (job, pid, at) in enumerate(actors_):
        nodes.actors[number] = {"JobID": job, "Pid": pid, "Address": {"NodeID": at}}
    assert asyncio.run(left_by(7, 5.0)) == {there: [42]}, "of the last driver of this number, where nodes are alive"
    assert asyncio.run(left_by(99)) == {}, "it ended before it had connected"
    assert GONE_S == 30.0


def test_zombies_hold_no_memory_and_a_process_that_runs_on_is_named():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert still_running([process.pid, 2**22 + 1], 0.2) == [process.pid]
        process.kill()
        deadline = time.monotonic() + 30
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.01)
        assert still_running([process.pid], 30.0) == []
    finally:
        process.kill()
        process.wait()


DRIVER = """
import ray, time
ray.init(address={address!r}, logging_level="ERROR", log_to_driver=False)

@ray.remote(num_cpus=0)
class Busy:
    def pid(self):
        import os
        return os.getpid()
    def compute(self):
        while True:
            pass

actors = [Busy.remote() for _ in range(2)]
print(*ray.get([actor.pid.remote() for actor in actors]), flush=True)
actors[0].compute.remote()
time.sleep(600)
"""


@pytest.mark.search
def test_a_killed_drivers_actors_are_waited_for_until_gone(loop):
    start_ray()
    address = ray.get_runtime_context().gcs_address
    driver = subprocess.Popen([sys.executable, "-c", DRIVER.format(address=address)], stdout=subprocess.PIPE, text=True)
    try:
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(pids) == 2 and all(runs(psutil.Process(pid)) for pid in pids)
        here = ray.get_runtime_context().get_node_id()
        assert loop.run_until_complete(left_by(driver.pid, deadline_s=0.3)) == {here: sorted(pids)}, "it still runs"
    finally:
        driver.kill()
        driver.wait()
    assert loop.run_until_complete(left_by(driver.pid)) == loop.run_until_complete(left_by(2**22 + 1)) == {}
    assert not any(psutil.pid_exists(pid) and runs(psutil.Process(pid)) for pid in pids)
