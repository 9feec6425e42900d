"""The shipped plans: they load, are canonical, hold, and solving their inputs again gives their bytes."""

import re
import shlex
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

import rlplan as package
from rlplan.cli.main import cli

EXAMPLES = Path(package.__file__).parent / "plans" / "examples"
PLANS = sorted(path.name for path in EXAMPLES.glob("*.yaml"))
SOLVES = re.findall(r"^rlplan (solve .*)$", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
QUICK = "groups.yaml"


def test_every_example_holds(monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    result = CliRunner().invoke(cli, ["check", *PLANS])
    assert result.exit_code == 0, result.output


def test_every_shipped_plan_has_its_command_in_the_readme():
    assert {shlex.split(line)[-1] for line in SOLVES} == set(PLANS) and len(PLANS) == 3


@pytest.mark.parametrize(
    "command",
    [pytest.param(line, marks=() if line.endswith(QUICK) else pytest.mark.search) for line in SOLVES],
    ids=lambda line: shlex.split(line)[-1],
)
def test_solving_again_gives_the_same_bytes(command, tmp_path, monkeypatch):
    copy = shutil.copytree(EXAMPLES, tmp_path / "examples")
    name = shlex.split(command)[-1]
    shipped = (copy / name).read_text(encoding="utf-8")
    (copy / name).unlink()
    monkeypatch.chdir(copy)
    result = CliRunner().invoke(cli, shlex.split(command))
    assert result.exit_code == 0, result.output
    assert _decided((copy / name).read_text(encoding="utf-8")) == _decided(shipped)


def _decided(text):
    """All but the volatile block. A plan names its solver's version, which is whatever is installed here."""
    return re.sub(r"HiGHS [0-9.]+", f"HiGHS {version('highspy')}", text).partition("\nvolatile:")[0]
