"""`rlplan profile` on the nodes of a Ray cluster: engines on a node each, the least in no time, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("vllm")

from rlplan.plans.schema.job import load_job
from rlplan.plans.yaml.yaml_io import load
from rlplan.profiles.profile_schema import Profile

from .groups.group_runs import ONE_CORE
from .test_execute import JOB, write_files

pytestmark = pytest.mark.engine

SCRIPT = Path(__file__).with_name("profile_on_nodes.py")
LIMIT_S = 900


@pytest.fixture(scope="module")
def profiled(tiny_model, tmp_path_factory):
    """(folder of the job, what was printed and where actors were) of a profile of a short job on two nodes."""
    folder = tmp_path_factory.mktemp("profile") / "job"
    folder.mkdir()
    job = JOB.replace("prompts_per_step: 4, samples_per_prompt: 2", "prompts_per_step: 8, samples_per_prompt: 4")
    job = job.replace("max_response_tokens: 48", "max_response_tokens: 256").replace("[64, 256]", "[1024]")
    write_files(folder, tiny_model, job, ONE_CORE.replace("nodes: 1", "nodes: 2"), prompts=256)
    for name in ("profile.yaml", "lengths.jsonl"):
        (folder / name).unlink()
    done = subprocess.run([sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder, json.loads(done.stdout.splitlines()[-1])


def test_each_number_of_engines_is_measured_though_the_minutes_are_over_from_the_start(profiled):
    folder, _ = profiled
    profile = load(folder / "profile.yaml", Profile)
    assert [(entry.tp, entry.engines) for entry in profile.rollout] == [(1, 1), (1, 2)]
    assert all(entry.sync.repeats >= 2 and len(entry.points) >= 3 for entry in profile.rollout)
    assert [(check.engines, check.rounds) for check in profile.checks] == [(1, 2), (2, 2)]
    assert profile.lengths is not None and profile.lengths.samples >= 1024
    assert [(entry.dp, entry.recompute) for entry in profile.train] == [(1, "none"), (1, "full")]
    assert all(entry.peak_bytes > 10**8 for entry in profile.train)


def test_one_line_says_what_was_left_out_and_the_minutes_that_the_least_needs(profiled):
    _, answer = profiled
    assert answer["left_out"].startswith("left out, since --minutes 0.05 were over: ")
    for what in ("real rounds of 1 engine, TP 1", "real rounds of 2 engines, TP 1", "updates with dp 2"):
        assert what in answer["left_out"]
    assert "; the least that a plan needs takes about " in answer["left_out"]


def test_contexts_are_measured_up_to_the_jobs_cap(profiled):
    folder, _ = profiled
    longest = load_job(folder / "job.yaml").rollout.longest_tokens
    for entry in load(folder / "profile.yaml", Profile).rollout:
        reached = max(point.kv_tokens / point.sequences for point in entry.points)
        assert reached > longest - 128 - 72, "a block of the cache and the tokens that are decoded on top of it"


def test_engines_sit_on_a_node_each_and_their_devices_are_reserved(profiled):
    _, answer = profiled
    assert len(set(answer["engines"])) == len(answer["engines"]) == 2
    assert answer["trainer"] == [answer["nodes"][0]] and sorted(answer["engines"]) == answer["nodes"]
    assert answer["free"] == 0


def test_too_few_nodes_are_refused_as_by_execute(profiled):
    _, answer = profiled
    assert answer["refused_code"] == 2
    assert "pool 'main' needs 3 nodes with 1 free rlplan_core each, and the cluster has 2" in answer["refused"]


def test_progress_says_the_minutes_left(profiled):
    _, answer = profiled
    assert any(line.endswith("(no time left)") for line in answer["progress"])
