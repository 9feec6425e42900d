"""Every command on an install of the planner alone: what the extras of the executor bring cannot be imported."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

import rlplan as package

from .solved_folder import code_rows, edit

PROJECT = tomllib.loads((Path(package.__file__).parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

PLANNER_ONLY = """
import json, sys
from importlib.machinery import PathFinder

left_out = frozenset(json.loads({names!r}))

class PlannerOnly(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in left_out else super().find_spec(name, path, target)

sys.meta_path[:] = [PlannerOnly if finder is PathFinder else finder for finder in sys.meta_path]
"""
"""The `sitecustomize.py` of an interpreter, and of those that it starts, without some modules."""

RUN = """
import contextlib, io, json, sys, traceback
from rlplan.cli.main import main

ended = []
for call in json.load(sys.stdin):
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv, sys.stdin = ["rlplan", *call], io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
        except BaseException:
            code = traceback.format_exc()
    ended.append([code, err.getvalue()])
json.dump(ended, sys.__stdout__)
"""


def closure(requirements: Iterable[str]) -> set[str]:
    """Names of distributions that installing these brings, as far as they are installed here."""
    found: set[str] = set()
    open_ones = list(requirements)
    while open_ones:
        requirement = open_ones.pop()
        name = normal(re.match(r"[\w.-]+", requirement)[0])
        if "extra ==" not in requirement and name not in found:
            found.add(name)
            try:
                open_ones += importlib.metadata.requires(name) or []
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def of_extras_alone() -> list[str]:
    """Names of modules that only the executor's extras bring."""
    extras = closure(r for extra in ("cpu", "gpu") for r in PROJECT["optional-dependencies"][extra])
    extras -= closure(PROJECT["dependencies"])
    modules = importlib.metadata.packages_distributions().items()
    return sorted(top for top, of in modules if all(normal(name) in extras for name in of))


@pytest.fixture
def other_rewards(solved, tmp_path):
    """A folder of a job, and of two whose rows are scored by tests of code and by a function of their own."""
    for name in ("code", "function"):
        (tmp_path / name).mkdir()
        for file in ("job.yaml", "data.jsonl"):
            (tmp_path / name / file).write_bytes((solved / file).read_bytes())
    code_rows(tmp_path / "code")
    edit(tmp_path / "code/job.yaml", "kind: math", "kind: code")
    edit(tmp_path / "function/job.yaml", "kind: math", 'kind: function, function: "mine:score"')
    (tmp_path / "function/mine.py").write_text("def score(prompt, response, answer):\n    return 1.0\n")
    return tmp_path


def test_every_command_ends_with_a_line_and_a_code(other_rewards, solved_groups, reported, runs, tmp_path_factory):
    """Plans, reviews and rewards as with the executor; what runs or measures says what to install."""
    folder, groups, out = str(other_rewards), f"{solved_groups}/groups.yaml", str(tmp_path_factory.mktemp("out"))
    Path(out, "times.csv").write_text("seconds,correct\n" + "0.3,1\n0.1,0\n" * 20)
    Path(out, "lengths.csv").write_text("prompt,tokens\n" + "a,3\na,5\nb,7\n")
    plan, profile = f"{folder}/plan.yaml", f"{folder}/profile.yaml"
    done = [
        ["init", f"{out}/job", "--gpus", "1x8xH100", "--model", "Qwen2.5-7B"],
        ["profile", f"{out}/job", "--shipped", "Qwen2.5-7B"],
        ["lengths", "import", f"{out}/lengths.csv", "-o", f"{out}/lengths.jsonl"],
        ["rewards", "import", f"{out}/times.csv", "--profile", profile, "-o", f"{out}/p.yaml"],
        ["rewards", "try", f"{folder}/function", "--response", "def"],
        ["rewards", "audit", f"{folder}/code", "--rows", "1"], ["rewards", "show", "code"], ["lengths", "list"],
        ["solve", folder, "--mode", "sync", "-o", f"{out}/plan.yaml"], ["check", plan, groups], ["diff", plan, plan],
        ["show", plan], ["show", groups], ["simulate", plan, "--steps", "2"], ["status", str(runs)],
        ["report", f"{reported}/sync"],
        ["schema", "plan"], ["completion", "bash"],
    ]  # fmt: skip
    lacking = [
        ["init", f"{out}/tiny"], ["profile", folder, "--out", f"{out}/q.yaml"],
        *(["execute", plan, option, "--out", f"{out}/run"] for option in ("--dry-run", "--show-placement", "--resume")),
        ["rewards", "try", folder], ["rewards", "audit", folder, "--rows", "1"],
    ]  # fmt: skip
    refused = [*lacking, ["execute", groups, "--dry-run"], ["apply", plan, "--out", out], ["tune", f"{reported}/sync"]]
    site = Path(out, "site")
    site.mkdir()
    (site / "sitecustomize.py").write_text(PLANNER_ONLY.format(names=json.dumps(of_extras_alone())))
    ended = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(done + refused), capture_output=True, text=True, check=True,
        cwd="/", env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    for call, (code, said) in zip(done + refused, json.loads(ended.stdout), strict=True):
        lines = [line for line in said.splitlines() if line.startswith(("error: ", "run failed: "))]
        assert isinstance(code, int) and "Traceback" not in said, (call, code, said)
        if call in done:
            assert code in (0, 1) and not lines, (call, code, said)
        else:
            assert code == 2 and lines, (call, code, said)
        if call in lacking:
            assert len(lines) == 1 and re.search("needs .*install", said), (call, said)
