"""The manifests of docs/cluster fit KubeRay's CRDs (v1.7.0, trimmed by trim_crds.py), each other, and the guide."""

import json
import re
import shlex
from pathlib import Path

import jsonschema
import pytest
import yaml

from rlplan.cli.execute import execute_command
from rlplan.executor.processes.host import must_be_tested
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.yaml.yaml_io import loads

from .cluster_files import FILES, ROOT, TRAIN, Commands

CRDS = json.loads((Path(__file__).parent / "kuberay_crds.json").read_text(encoding="utf-8"))
GIB = 2**30


def manifest(name):
    """A manifest of docs/cluster."""
    return dict(yaml.safe_load((FILES / name).read_text(encoding="utf-8")))


RAYCLUSTER, RAYJOB, STORAGE = (manifest(f"{name}.yaml") for name in ("raycluster", "rayjob", "storage"))
HEAD = RAYCLUSTER["spec"]["headGroupSpec"]
(WORKERS,) = RAYCLUSTER["spec"]["workerGroupSpecs"]
PODS = [group["template"]["spec"] for group in (HEAD, WORKERS)]


def faults(document):
    """What KubeRay's CRD says against a manifest."""
    errors = jsonschema.Draft7Validator(CRDS[document["kind"]]).iter_errors(document)
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in errors]


def test_a_manifest_fits_the_crd_of_its_kind():
    for document in (RAYCLUSTER, RAYJOB):
        assert document["apiVersion"] == "ray.io/v1" and faults(document) == []
    # The job runs on the cluster that one tries by hand.
    assert RAYJOB["spec"]["rayClusterSpec"] == RAYCLUSTER["spec"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "rayClusterSpec", "workerGroupSpecs", 0, "replicaCount"), 2),  # no such key
        (("spec", "rayClusterSpec", "workerGroupSpecs", 0, "replicas"), "2"),
        (("spec", "rayClusterSpec", "headGroupSpec", "rayStartParams", "num-cpus"), 0),  # Ray's options are text
        (("spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "containers", 0, "env", 0, "value"), 0),
        (("spec", "rayClusterSpec", "authOptions", "mode"), "on"),
        (("spec", "backoffLimits"), 3),
    ],
)
def test_a_mistake_in_a_manifest_does_not_fit_the_crd(path, value):
    document = json.loads(json.dumps(RAYJOB))  # without the objects that YAML aliases share
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert len(faults(document)) == 1


def test_every_pod_mounts_the_storage_of_plan_and_run():
    for pod in PODS:
        (container,) = pod["containers"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        assert mounts["/shared"]["persistentVolumeClaim"]["claimName"] == STORAGE["metadata"]["name"]
        assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
        resources = container["resources"]
        assert resources["requests"] == resources["limits"], "a pod that takes more than it asked for may be evicted"
    assert STORAGE["spec"]["accessModes"] == ["ReadWriteMany"]


def test_all_pods_have_the_same_image_and_its_ray():
    assert len({container["image"] for pod in PODS for container in pod["containers"]}) == 1
    dockerfile = (FILES / "Dockerfile").read_text(encoding="utf-8")
    version = re.search(r"^ARG RAY=(\S+)$", dockerfile, re.MULTILINE)
    assert version is not None and version[1] == RAYCLUSTER["spec"]["rayVersion"]
    must_be_tested([("ray", version[1])])


def test_the_job_calls_a_script_with_options_that_execute_has(tmp_path):
    shell, script, *arguments = shlex.split(RAYJOB["spec"]["entrypoint"])
    copied = re.search(r"^COPY .*\. (\S+)$", (FILES / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert copied is not None and script == f"{copied[1]}/{TRAIN.relative_to(ROOT).as_posix()}"
    commands = Commands(tmp_path / "bin")
    commands.add("rlplan")
    assert commands.ended(shell, TRAIN, *arguments, env={"RAY_ADDRESS": "10.0.0.1:6379"})[0] == 0
    for words in commands.made("rlplan"):
        params = execute_command.make_context("execute", words[1:]).params
        assert [path.parts[:2] for path in (*params["plans"], params["out"])] == [("/", "shared")] * 2


def test_ray_waits_for_a_stopped_run_longer_than_its_grace():
    (container,) = HEAD["template"]["spec"]["containers"]
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    words = shlex.split(RAYJOB["spec"]["entrypoint"])
    assert float(environment["RAY_JOB_STOP_WAIT_TIME_S"]) > float(words[words.index("--grace-s") + 1])


def test_the_cluster_of_the_guide_is_the_cluster_of_the_manifests():
    page = (FILES / "kubernetes.md").read_text(encoding="utf-8")
    text = re.search(r"```yaml\n(rlplan_cluster:.*?)```", page, re.DOTALL)
    assert text is not None
    (pool,) = loads(text[1], Cluster).pools.values()
    assert pool.nodes == WORKERS["replicas"] == WORKERS["minReplicas"] == WORKERS["maxReplicas"]
    (container,) = WORKERS["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    assert pool.accelerators.per_node == int(limits["nvidia.com/gpu"])
    assert pool.cores == int(limits["cpu"])
    assert pool.host_memory_bytes == int(limits["memory"].removesuffix("Gi")) * GIB
    assert HEAD["rayStartParams"]["num-cpus"] == "0", "the head is no node of the pool"
