"""Folders that were solved once, and copies of them for tests that change something."""

import shutil
from pathlib import Path

import pytest

import rlplan as package

from ..planner.check.edits import edit as edit_keys
from ..planner.check.edits import resign
from ..plans.page.runs import write_run
from ..workloads import write_workload
from .command_line import printed
from .few_candidates import few_candidates
from .run_folders import REPORTED, write_run_of_tail, write_runs
from .solved_folder import harmed, write_shipped, write_solved

EXAMPLES = Path(package.__file__).parent / "plans" / "examples"


@pytest.fixture(scope="module", autouse=True)
def little_is_simulated():
    """What commands do does not depend on how well they choose."""
    with few_candidates():
        yield


@pytest.fixture(scope="session")
def solved_once(tmp_path_factory):
    """A folder with a job that was profiled and solved; nobody changes it."""
    return write_solved(tmp_path_factory.mktemp("solved"))


@pytest.fixture
def solved(solved_once, tmp_path):
    """A copy of it, to be changed."""
    return shutil.copytree(solved_once, tmp_path, dirs_exist_ok=True)


@pytest.fixture(scope="session")
def solved_groups(tmp_path_factory):
    """A folder with a workload and its plan groups.yaml; nobody changes it."""
    folder = tmp_path_factory.mktemp("groups")
    printed("solve", write_workload(folder))
    return folder


@pytest.fixture
def groups(solved_groups, tmp_path):
    """A copy of it, to be changed."""
    return shutil.copytree(solved_groups, tmp_path, dirs_exist_ok=True)


@pytest.fixture(scope="session")
def shipped_once(tmp_path_factory):
    """A 7B job on H800s with a shipped profile and a length trace, solved by mode exact; nobody changes it."""
    folder = write_shipped(tmp_path_factory.mktemp("shipped"))
    with few_candidates():
        printed("profile", folder, "--shipped", "Qwen2.5-7B")
        printed("solve", folder, "--trace", folder / "lengths.jsonl", "--mode", "exact")
    return folder


@pytest.fixture
def shipped(shipped_once, tmp_path):
    """A copy of it, to be changed."""
    return shutil.copytree(shipped_once, tmp_path, dirs_exist_ok=True)


def plan_with_trainers(folder: Path, **sizes) -> Path:
    """Write the shipped plan of a 32B model as plan.yaml, signed, with trainers of these sizes; the folder."""
    plan = Path(shutil.copy(EXAMPLES / "math-32b.yaml", folder / "plan.yaml"))
    edit_keys(plan, {f"job.rounds.{kind}.train": lambda t: {**t, **sizes} for kind in ("short", "long")})
    resign(folder)
    return folder


@pytest.fixture
def impossible(tmp_path):
    """A 32B model trained by data parallelism alone, without recomputation: hundreds of GB on an accelerator."""
    inputs = Path(shutil.copytree(EXAMPLES / "math-32b", tmp_path / "math-32b"))
    rows = (f'{{"id": "p{k}", "prompt": "{k} + 1", "answer": "{k + 1}"}}\n' for k in range(20_000))
    (inputs / "data.jsonl").write_text("".join(rows))  # the user's own; executing needs it
    return plan_with_trainers(tmp_path, dp=64, tp=1, pp=1, recompute="none")


@pytest.fixture
def pipeline(impossible):
    """The shipped plan with trainers that have a pipeline: memory holds them, and only other frameworks run them."""
    return plan_with_trainers(impossible, dp=1, tp=8, pp=8, recompute="full", micro_batch_tokens=16896)


@pytest.fixture
def examples(tmp_path):
    """The documents that ship, to be changed."""
    return shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)


@pytest.fixture(scope="session")
def begun_once(shipped_once, tmp_path_factory):
    """A folder as `init` writes it, with the shipped profile and lengths, of a small step; nobody changes it."""
    folder = tmp_path_factory.mktemp("begun") / "job"
    printed("init", folder, "--gpus", "1x8xH100", "--model", "Qwen2.5-7B-Instruct")
    printed("check", folder / "cluster.yaml", folder / "job.yaml")
    changes = {"prompts_per_step: 128": "prompts_per_step: 16", "tp: [1, 2, 4]": "tp: [1]",
               "max_response_tokens: 16384": "max_response_tokens: 4096", "[18432, 36864]": "[8192]"}  # fmt: skip
    harmed(folder, [("job.yaml", old, new) for old, new in changes.items()])
    shutil.copy(shipped_once / "lengths.jsonl", folder)
    with few_candidates():
        printed("profile", folder, "--shipped", "Qwen/Qwen2.5-7B-Instruct")
        printed("solve", folder, "--trace", folder / "lengths.jsonl", "--mode", "sync")
    return folder


@pytest.fixture
def begun(begun_once, tmp_path):
    """A copy of it, to be changed."""
    return shutil.copytree(begun_once, tmp_path, dirs_exist_ok=True)


@pytest.fixture(scope="session")
def tuned_once(solved_once, tmp_path_factory):
    """A job with a heavy tail and a plain plan, and a run of it in `run`; nobody changes it."""
    folder = shutil.copytree(solved_once, tmp_path_factory.mktemp("tuned"), dirs_exist_ok=True)
    with few_candidates():
        write_run_of_tail(folder)
    return folder


@pytest.fixture
def tuned(tuned_once, tmp_path):
    """A copy of it, to be changed."""
    return shutil.copytree(tuned_once, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def reported(tmp_path):
    """A folder of two runs that ended, by mode exact and plain."""
    for mode in ("exact", "sync"):
        write_run(tmp_path / mode, REPORTED, mode, steps=12)
    return tmp_path


@pytest.fixture
def runs(tmp_path):
    """A folder of a group whose job a decodes and whose job b joined; the driver is gone."""
    return write_runs(tmp_path / "runs")
