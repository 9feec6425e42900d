"""Plans of three kinds, each solved once: a job on a laptop, a job on GPUs by a shipped profile, two jobs in groups."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.copula_trace import copula_lengths
from rlplan.cli.main import cli
from rlplan.profiles.length_trace import write_lengths

from ...cli.solved_folder import write_profiled
from ...cli.test_shipped import CLUSTER as GPU_CLUSTER
from ...cli.test_shipped import JOB as GPU_JOB
from ...workloads import write_workload
from .edits import edit


def run(*arguments):
    """A command in this process; fails if it does."""
    assert not cli.main([str(argument) for argument in arguments], standalone_mode=False)


def gpus(folder: Path) -> None:
    """A job on GPUs with a shipped profile and a length trace, not solved yet."""
    (folder / "cluster.yaml").write_text(GPU_CLUSTER)
    (folder / "job.yaml").write_text(GPU_JOB)
    (folder / "data.jsonl").write_text(
        '{"id": "a", "prompt": "1+1", "answer": 2}\n'
        + "".join(f'{{"id": "b{k}", "prompt": "{k}+2", "answer": {k + 2}}}\n' for k in range(511))
    )
    rows = copula_lengths([(10, 0.05), (200, 0.6), (4096, 0.99)], 0.4, 4096, 48, 8).rows
    write_lengths(folder / "lengths.jsonl", rows)
    run("profile", folder, "--shipped", "Qwen2.5-7B")


@pytest.fixture(scope="session")
def solved_once(tmp_path_factory):
    """By name, a folder with a plan.yaml: `laptop`, `gpus`, `groups`."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("laptop", "gpus", "groups")}
    write_profiled(folders["laptop"])
    run("solve", folders["laptop"], "--mode", "exact")
    gpus(folders["gpus"])
    run("solve", folders["gpus"], "--mode", "exact", "--trace", folders["gpus"] / "lengths.jsonl")
    write_workload(folders["groups"])
    run("solve", folders["groups"] / "workload.yaml", "-o", folders["groups"] / "plan.yaml")
    for folder in folders.values():  # at the time that the tests call now
        edit(folder / "plan.yaml", {"volatile.solved_at": "2026-01-11T00:00:00Z"})
    return folders


@pytest.fixture
def solved(solved_once, tmp_path):
    """`solved(name)`: a copy of such a folder, to break something in."""
    return lambda name: Path(shutil.copytree(solved_once[name], tmp_path / name))
