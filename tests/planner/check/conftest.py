"""Plans of three kinds, each solved once: a job on a laptop, a job on GPUs by a shipped profile, two jobs in groups."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from rlplan.api import solve_job
from rlplan.cli.main import cli

from ...cli.solved_folder import write_profiled, write_shipped
from ...workloads import write_workload
from ..solutions import QUICK, few_prompt_sets
from .edits import edit


def run(*arguments):
    """A command in this process, which simulates little; fails if it does."""
    with few_prompt_sets(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(solve_job, "SolveOptions", partial(solve_job.SolveOptions, passes=QUICK))
        assert not cli.main([str(argument) for argument in arguments], standalone_mode=False)


def gpus(folder: Path) -> None:
    """A job on GPUs with a shipped profile and a length trace, not solved yet."""
    write_shipped(folder)
    run("profile", folder, "--shipped", "Qwen2.5-7B")


WRITTEN = {"laptop": write_profiled, "gpus": gpus, "groups": write_workload}


@pytest.fixture(scope="session")
def solved_once(tmp_path_factory):
    """`solved_once(name)`: a folder with a plan.yaml: `laptop`, `gpus`, `groups`."""
    folders: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in folders:
            folder = folders[name] = tmp_path_factory.mktemp(name)
            WRITTEN[name](folder)
            if name == "groups":
                run("solve", folder / "workload.yaml", "-o", folder / "plan.yaml")
            else:
                run("solve", folder, "--mode", "exact", "--trace", folder / "lengths.jsonl")
            # At the time that the tests call now.
            edit(folder / "plan.yaml", {"volatile.solved_at": "2026-01-11T00:00:00Z"})
        return folders[name]

    return folder_of


@pytest.fixture
def solved(solved_once, tmp_path):
    """`solved(name)`: a copy of such a folder, to break something in."""
    return lambda name: Path(shutil.copytree(solved_once(name), tmp_path / name))
