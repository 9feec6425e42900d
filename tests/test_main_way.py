"""The main way with real parts, on a Ray cluster of two nodes of this machine: profile, solve, check, execute, report.

The only engines that `make test` starts.
"""

import json
import os
import subprocess
import sys
import time

import pytest

pytest.importorskip("ray")
pytest.importorskip("vllm")

from rlplan.plans.schema.job import load_job
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.yaml_io import load
from rlplan.profiles.profile_schema import Profile
from rlplan.traces.run_log import TRACE, read_run

from .executor.conftest import make_tiny_model
from .executor.tiny_job import ONE_CORE, check_steps, write_job

pytestmark = [pytest.mark.engine, pytest.mark.walk, pytest.mark.timeout(1200)]

LIMIT_S = 900
STEPS = 4
CLUSTER = ONE_CORE.replace("nodes: 1", "nodes: 2")
SEATS = """
import json, ray, sys
from ray._private.state import actors, available_resources_per_node
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
for _ in sys.stdin:
    alive = [(a["ActorClassName"], a["Address"]["NodeID"]) for a in actors().values() if a["State"] == "ALIVE"]
    free = sum(resources.get("rlplan_core", 0) for resources in available_resources_per_node().values())
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    seats = [(kind, nodes[node]) for kind, node in alive if kind in ("RolloutEngine", "TrainerRank")]
    print(json.dumps({"seats": seats, "free": free, "nodes": sorted(nodes.values())[1:]}), flush=True)
"""
"""Says, for each line that it reads, who sits where and how many devices are free; the first node is the head."""


class Way:
    """The folder of a job, and the commands that were run there."""

    def __init__(self, folder, address):
        self.folder, self.address = folder, address
        self._env = {**os.environ, "RAY_ADDRESS": address}

    def start(self, command, *options):
        """A command of `rlplan`, as a process."""
        words = [sys.executable, "-m", "rlplan.cli.main", command, *map(str, options)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self._env)

    def run(self, command, *options, code=0):
        """What a command prints that ends with `code`: on standard error if it was refused."""
        process = self.start(command, *options)
        output, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == code, output[-2000:] + errors[-2000:]
        return errors if code == 2 else output


@pytest.fixture(scope="module")
def way(tmp_path_factory):
    from benchmarks.ray_nodes import RayNodes

    home = tmp_path_factory.mktemp("way")
    folder = home / "job"
    folder.mkdir()
    write_job(folder, make_tiny_model(home / "model"), prompts=8, samples=4, longest=256, cluster=CLUSTER, rows=256)
    for name in ("profile.yaml", "lengths.jsonl"):
        (folder / name).unlink()
    with RayNodes([1, 1]) as nodes:
        yield Way(folder, nodes.address)


@pytest.fixture(scope="module")
def profiled(way):
    """What `profile` said, in no time, and who sat where when most actors were there."""
    watcher = subprocess.Popen(
        [sys.executable, "-c", SEATS, way.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process = way.start("profile", way.folder, "--minutes", 0.05, "--json")
    most = {"seats": []}
    while process.poll() is None:
        watcher.stdin.write("\n")
        watcher.stdin.flush()
        now = json.loads(watcher.stdout.readline())
        if len(now["seats"]) > len(most["seats"]):
            most = now
        time.sleep(1.0)
    watcher.communicate()
    output, progress = process.communicate()
    assert process.returncode == 0, progress[-3000:]
    return most | json.loads(output.splitlines()[-1]) | {"progress": progress.splitlines()}


def test_profile_measures_the_least_though_its_minutes_are_over(way, profiled):
    profile = load(way.folder / "profile.yaml", Profile)
    assert [(entry.tp, entry.engines) for entry in profile.rollout] == [(1, 1), (1, 2)]
    assert all(entry.sync.repeats >= 2 and len(entry.points) >= 3 for entry in profile.rollout)
    assert [(check.engines, check.rounds) for check in profile.checks] == [(1, 2), (2, 2)]
    assert profile.lengths is not None and profile.lengths.samples >= 1024
    assert [(entry.dp, entry.recompute) for entry in profile.train[:2]] == [(1, "none"), (1, "full")]
    assert all(entry.peak_bytes > 10**8 for entry in profile.train)
    longest = load_job(way.folder / "job.yaml").rollout.longest_tokens
    for entry in profile.rollout:
        reached = max(point.kv_tokens / point.sequences for point in entry.points)
        assert reached > longest - 128 - 72, "a block of the cache and the tokens that are decoded on top of it"


def test_profile_says_what_it_left_out_and_the_minutes_left(profiled):
    assert profiled["left_out"].startswith("left out, since --minutes 0.05 were over: ")
    for what in ("real rounds of 1 engine, TP 1", "real rounds of 2 engines, TP 1", "updates with dp 2"):
        assert what in profiled["left_out"]
    assert "; the least that a plan needs takes about " in profiled["left_out"]
    assert any(line.endswith("(no time left)") for line in profiled["progress"])


def test_engines_sit_on_a_node_each_whose_devices_are_reserved(profiled):
    engines, trainer = (
        [node for kind, node in profiled["seats"] if kind == wanted] for wanted in ("RolloutEngine", "TrainerRank")
    )
    assert sorted(engines) == profiled["nodes"] and len(set(engines)) == 2
    assert trainer == [profiled["nodes"][0]] and profiled["free"] == 0


def test_too_few_nodes_are_refused_by_profile_and_execute(way, profiled):
    three = way.folder / "three.yaml"
    three.write_text(CLUSTER.replace("nodes: 2", "nodes: 3"))
    refused = way.run("profile", way.folder, "--cluster", three, "--force", code=2)
    assert "pool 'main' needs 3 nodes with 1 free rlplan_core each, and the cluster has 2" in refused


def test_the_profile_is_solved_executed_and_reported(way, profiled):
    plan, out = way.folder / "plan.yaml", way.folder / "run"
    # Nodes of one core each stand for a machine with more, and that is all that there is to find.
    way.run("solve", way.folder, "--force")
    checked = json.loads(way.run("check", plan, "--json", code=1))
    assert [finding["rule"] for finding in checked["files"][0]["findings"]] == ["profile-of-other-machine"]
    solved = load_plan(plan)
    done = json.loads(way.run("execute", plan, "--out", out, "--steps", STEPS, "--json").splitlines()[-1])
    assert done == {"out": str(out), "runs": ["plan"], "finished": True}
    log = read_run(out / TRACE)
    check_steps(log.steps, STEPS)
    assert {step.trained_samples for step in log.steps[:STEPS]} <= {0, 32}
    assert not any(step.restarts for step in log.steps)
    assert {step.weights_way for step in log.steps} == {"broadcast"}
    for step in log.steps:
        parts = ("rollout_s", "reward_exposed_s", "train_s", "sync_s", "other_s")
        assert sum(getattr(step, part) for part in parts) == pytest.approx(step.total_s, rel=0.01)
    report = json.loads(way.run("report", out, "--json"))
    (detail,) = report["runs"].values()
    assert detail["on_policy_violations"] == detail["conservation_violations"] == detail["checksum_mismatches"] == 0
    assert 0 < detail["logprob_max_abs_diff"] < 1e-2
    assert solved.predicted.step_s.p50 > 0 and detail["steps"] == len(log.steps)
