"""What the wheel holds: every package of ours, and every file that is no code but is read by it."""

import tomllib
from pathlib import Path

import rlplan

ROOT = Path(rlplan.__file__).parent
ROOMS = ("api", "cli", "executor", "planner", "plans", "profiles", "rounds", "traces")
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
