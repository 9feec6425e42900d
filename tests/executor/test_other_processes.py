"""What other processes hold of GPUs is told before anything starts, and the plan goes on if it fits beside them."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray._private.thirdparty import pynvml

import rlplan
from rlplan.cli.execute import _dry_run
from rlplan.executor.engines.fleet import FleetConfig
from rlplan.executor.memory import free_memory
from rlplan.executor.memory.device_holds import device_ledger
from rlplan.executor.memory.free_memory import HeldMemory, beside_others, held_here, held_text
from rlplan.executor.prepare import placement_of, prepare
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.errors import RunFailed

from .test_prepare import MODEL
from .tiny_job import CLUSTER, make_plan, write_job, write_plan

EXAMPLES = Path(rlplan.__file__).parent / "plans" / "examples"
GB = 10**9


@pytest.fixture
def nvml(monkeypatch):
    """NVML of a machine with GPUs 0 (10.2 GB held by two processes), 1 (0.4 GB by its driver) and a slice of one."""
    held = {0: (10.2e9, [85, 71]), 1: (0.4e9, []), "MIG-1": (2e9, [])}
    closed = []

    def memory(handle, version):
        assert version == pynvml.nvmlMemory_v2, "the first one counts what the driver keeps"
        return SimpleNamespace(used=held[handle][0])

    def handle(of):
        if of not in held:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return of

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: closed.append(True))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", handle)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", handle)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", memory)
    monkeypatch.setattr(
        pynvml,
        "nvmlDeviceGetComputeRunningProcesses",
        lambda handle: [SimpleNamespace(pid=pid) for pid in held[handle][1]],
    )
    return closed


def test_what_others_hold_is_told_with_who_they_are(nvml):
    found = held_here(["0", "1", "MIG-1", "7"])
    assert found == [HeldMemory(10.2e9, "pid 71, pid 85"), None, HeldMemory(2e9, ""), None] and nvml == [True]
    names = {f"GPU {number} of node 0": HeldMemory(2e9, "pid 3" * (number == 1)) for number in range(5)}
    assert held_text(names) == (
        "other processes hold 2 GB of GPU 0 of node 0, 2 GB of GPU 1 of node 0 (pid 3), 2 GB of GPU 2 of node 0, and "
        "memory of 2 more GPUs"
    )


def test_a_machine_without_nvml_counts_as_free(monkeypatch):
    def fails():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fails)
    assert held_here(["0", "1"]) == [None, None]


@pytest.fixture(scope="module")
def shipped():
    """What makes the ledger of the 32B example, whose engines have caches of 10 GB on each GPU; and its fleet."""
    plan = load_plan(EXAMPLES / "math-32b.yaml")
    pool = load_cluster(EXAMPLES / "math-32b" / "cluster.yaml").pools["h100"]
    layout = plan.job.rounds.short.rollout.layout
    layouts = (layout,) if plan.job.rounds.long is None else (layout, plan.job.rounds.long.rollout.layout)
    kv = {each.tp: 10 * GB for each in layouts}
    fleet = FleetConfig(tuple(dict.fromkeys(layouts)), "", "bfloat16", "cuda", 8, 8, 80 * GB, kv_bytes=kv)
    return partial(device_ledger, fleet, {"math": plan}, pool), fleet


def held(size):
    return {"GPU 3": HeldMemory(size, "pid 71")}


def test_a_plan_that_fits_beside_another_process_goes_on(shipped):
    build, fleet = shipped
    ledger = beside_others(build, fleet, ["math"], held(2 * GB))
    assert [ledger.devices[f"GPU {n}"].capacity_bytes for n in (2, 3)] == [80e9, 78e9]
    assert set(ledger.states.values()) == {"absent"}, "nothing was started"
    parts = build().holders["trainer math"].on_device["offloaded"]
    assert sum(ledger.holders["trainer math"].on_device["offloaded"].values()) <= sum(parts.values())


@pytest.mark.parametrize("size", [45 * GB, 79 * GB])
def test_a_plan_that_does_not_fit_beside_others_is_refused(shipped, size):
    build, fleet = shipped
    refused = rf"hold {size / GB:g} GB of GPU 3 \(pid 71\), and the plan does not fit beside them: GPU 3: .*; end them"
    with pytest.raises(RunFailed, match=refused):
        beside_others(build, fleet, ["math"], held(size))


def test_engines_without_a_planned_cache_need_all_of_their_share(shipped):
    build, fleet = shipped
    plan_build = partial(build.func, FleetConfig(fleet.layouts, "", "bfloat16", "cuda", 8, 8, 80 * GB), *build.args[1:])
    with pytest.raises(RunFailed, match="does not fit beside them: GPU 3: engine starts would take"):
        beside_others(plan_build, fleet, ["math"], held(10 * GB))


@pytest.mark.parametrize(("size", "code"), [(2e9, 0), (79e9, 1)])
def test_a_dry_run_looks_at_the_gpus_of_this_machine(size, code, tmp_path, monkeypatch, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
    folder = tmp_path / "job"
    folder.mkdir()
    on_gpus = CLUSTER.replace("kind: cpu", "kind: cuda").replace("memory_bytes: 100000000", "memory_bytes: 80000000000")
    write_job(folder, tmp_path / "model", cluster=on_gpus)
    plan = write_plan(make_plan(folder), folder / "plan.yaml")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(free_memory, "held_here", lambda gpus: [HeldMemory(size, "pid 71"), None])
    executions = prepare([plan], tmp_path / "out", False)
    monkeypatch.setattr("rlplan.cli.shared.findings.reports", lambda plans: [])
    done = _dry_run((plan,), executions, placement_of(executions), False, False)
    said = capsys.readouterr().out
    assert done == code and f"other processes hold {size / 1e9:g} GB of GPU 0 of node 0 (pid 71)" in said
    assert ("; the plan fits beside them" in said) == (code == 0) and ("can be started" in said) == (code == 0)
    done = _dry_run((plan,), executions, placement_of(executions), False, True)
    told_json = json.loads(capsys.readouterr().out)
    assert done == code and told_json["ok"] == (code == 0) and "pid 71" in told_json["beside"]
