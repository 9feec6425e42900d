"""What the wheel holds: every package of ours, and every file that is no code but is read by it."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import rlplan

ROOT = Path(rlplan.__file__).parent
ROOMS = ("api", "cli", "executor", "frameworks", "planner", "plans", "profiles", "rounds", "traces")
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]


def test_every_folder_with_code_is_a_listed_package():
    folders = {path.parent for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert [str(f) for f in sorted(folders) if not (f / "__init__.py").exists()] == []
    names = {".".join(("rlplan", *folder.relative_to(ROOT).parts)) for folder in folders}
    assert names | {"rlplan"} == set(SETUP["packages"])


def test_every_file_that_is_no_code_is_listed():
    shipped = {
        path
        for package, patterns in SETUP["package-data"].items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")[1:]).glob(pattern)
    }
    beside = {
        path
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and path.suffix != ".py" and not {"__pycache__", ".rlplan"} & set(path.parts)
    }
    assert sorted(beside - shipped) == []
    assert ROOT / "py.typed" in shipped


USER = """\
from rlplan import Checked, Difference, InputError, Job, Plan, Simulated, check, diff, load, simulate, solve

plan: Plan = solve(load("job.yaml", Job), lengths="math-16k", mode="exact", out="plan.yaml")
run: Simulated = simulate(plan, set={"plan.job.issue.prompts_per_step": 8})
checked: Checked = check(plan, "cluster.yaml", policy="team.policy.yaml")
change: Difference = diff(None, plan)
reveal_type((plan.predicted.step_s.mean, checked.findings[0].line, run.ok, change.markdown()))
try:
    solve("job", mode="fast")
except InputError as error:
    reveal_type((error.file, error.line, error.message, error.exit_code))
solve("job", objectiv="usd")
"""


@pytest.mark.search
def test_a_type_checker_sees_the_types_of_the_wheel(tmp_path):
    shutil.copytree(ROOT, tmp_path / "source", ignore=shutil.ignore_patterns(".*", "build", "runs", "__pycache__"))
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", tmp_path]
    run([sys.executable, "-m", "pip", "wheel", "--quiet", *options, tmp_path / "source"], tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    run([sys.executable, "-m", "venv", "--without-pip", "user"], tmp_path)
    (site,) = tmp_path.glob("user/lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    (site / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    (tmp_path / "user.py").write_text(USER)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--python-executable", "user/bin/python"]
    found = run([*command, "user.py"], tmp_path, code=1).stdout.splitlines()
    told = [line.removeprefix("user.py:").partition(" [")[0] for line in found]
    assert told[0] == '7: note: Revealed type is "tuple[float, int | None, bool, str]"'
    assert '9: error: Argument "mode" to "solve" has incompatible type "Literal[\'fast\']"' in told[1]
    assert told[2] == '11: note: Revealed type is "tuple[str | None, int | None, str, int]"'
    assert told[3].startswith('12: error: Unexpected keyword argument "objectiv" for "solve"')


def run(command, folder, code=0):
    """What a command prints, outside the checkout and with none of its paths."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done
