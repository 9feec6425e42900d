"""Plans of three kinds, each solved once: a job on a laptop, a job on GPUs by a shipped profile, two jobs in groups."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from rlplan.cli.main import cli
from rlplan.planner.copula_lengths import copula_lengths
from rlplan.plans.job import job_paths, load_job
from rlplan.profiles.lengths import write_lengths
from rlplan.profiles.subject import subject_digest

from ...cli.solved_folder import JOB, PROFILE
from ...cli.test_shipped import CLUSTER as GPU_CLUSTER
from ...cli.test_shipped import JOB as GPU_JOB
from ...documents import CLUSTER
from ...workloads import write_workload


def run(*arguments):
    """A command in this process; fails if it does."""
    assert not cli.main([str(argument) for argument in arguments], standalone_mode=False)


def write_data(folder: Path) -> None:
    (folder / "data.jsonl").write_text('{"id": "a", "prompt": "1+1", "answer": 2}\n')


def laptop(folder: Path) -> None:
    """A job that was profiled on a laptop, not solved yet."""
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "job.yaml").write_text(JOB)
    write_data(folder)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"num_attention_heads": 3, "num_key_value_heads": 3}')
    rows = [
        {"prompt": f"p{p}", "epoch": 0, "sample": s, "tokens": 3 + (7 * p * (s + 1)) % 60, "truncated": False,
         "reward": 1.0, "prompt_tokens": 5}
        for p in range(24) for s in range(4)
    ]  # fmt: skip
    lengths = folder / "lengths.jsonl"
    lengths.write_text("".join(json.dumps(row) + "\n" for row in rows))
    subject = subject_digest(
        load_job(folder / "job.yaml"), job_paths(load_job(folder / "job.yaml"), folder / "job.yaml")
    )
    digest = hashlib.sha256(lengths.read_bytes()).hexdigest()
    (folder / "profile.yaml").write_text(PROFILE.replace("LENGTHS", digest).replace("SUBJECT", subject))


def gpus(folder: Path) -> None:
    """A job on GPUs with a shipped profile and a length trace, not solved yet."""
    (folder / "cluster.yaml").write_text(GPU_CLUSTER)
    (folder / "job.yaml").write_text(GPU_JOB)
    write_data(folder)
    rows = copula_lengths([(10, 0.05), (200, 0.6), (4096, 0.99)], 0.4, 4096, 48, 8).rows
    write_lengths(folder / "lengths.jsonl", rows)
    run("profile", folder, "--shipped", "Qwen2.5-7B")


@pytest.fixture(scope="session")
def solved_once(tmp_path_factory):
    """By name, a folder with a plan.yaml: `laptop`, `gpus`, `groups`."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("laptop", "gpus", "groups")}
    laptop(folders["laptop"])
    run("solve", folders["laptop"], "--mode", "exact")
    gpus(folders["gpus"])
    run("solve", folders["gpus"], "--mode", "exact", "--trace", folders["gpus"] / "lengths.jsonl")
    write_workload(folders["groups"])
    run("solve", folders["groups"] / "workload.yaml", "-o", folders["groups"] / "plan.yaml")
    return folders


@pytest.fixture
def solved(solved_once, tmp_path):
    """`solved(name)`: a copy of such a folder, to break something in."""
    return lambda name: Path(shutil.copytree(solved_once[name], tmp_path / name))
