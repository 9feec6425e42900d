"""The shipped plans: they load, are canonical, hold, and solving their inputs again gives their bytes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import rlplan as package

EXAMPLES = Path(package.__file__).parent / "plans" / "examples"
PLANS = sorted(EXAMPLES.glob("*.yaml"))
DOCUMENTS = sorted(EXAMPLES.rglob("*.yaml"))
SOLVES = re.findall(r"^rlplan (solve .*)$", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


def rlplan(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlplan.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_every_shipped_plan_has_its_command_in_the_readme() -> None:
    solved = {shlex.split(line)[-1] for line in SOLVES}
    assert solved == {plan.name for plan in PLANS} and len(PLANS) == 3


def test_every_example_is_canonical() -> None:
    result = rlplan("fmt", "--check", *map(str, DOCUMENTS), cwd=EXAMPLES)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_example_holds() -> None:
    result = rlplan("check", *(plan.name for plan in PLANS), cwd=EXAMPLES)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("command", SOLVES, ids=lambda line: shlex.split(line)[-1])
def test_solving_again_gives_the_same_bytes(command: str, tmp_path: Path) -> None:
    copy = shutil.copytree(EXAMPLES, tmp_path / "examples")
    name = shlex.split(command)[-1]
    shipped = (copy / name).read_text(encoding="utf-8")
    (copy / name).unlink()
    result = rlplan(*shlex.split(command), cwd=copy)
    assert result.returncode == 0, result.stderr
    again = (copy / name).read_text(encoding="utf-8")
    assert _decided(again) == _decided(shipped)


def _decided(text: str) -> str:
    """All but the volatile block. A plan names its solver's version, which is whatever is installed here."""
    return re.sub(r"HiGHS [0-9.]+", f"HiGHS {version('highspy')}", text).partition("\nvolatile:")[0]
