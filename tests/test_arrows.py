"""Imports between the rooms go one way, and planning needs no torch, vLLM, Ray or transformers."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("cli", "executor", "planner", "profiles", "plans", "rounds", "traces")
ARROWS = {
    "cli": {"planner", "executor", "profiles", "plans", "traces"},
    "planner": {"profiles", "plans", "rounds", "traces"},
    "executor": {"plans", "rounds", "traces"},
    "profiles": {"plans"},
    "plans": set(),
    "traces": {"plans", "rounds"},
    "rounds": set(),
}
HEAVY = {"torch", "vllm", "ray", "transformers"}


def may_import(path: Path) -> set[str]:
    """Rooms that a module may import from, its own included."""
    room = path.parts[0]
    # Measuring is done with the executor's workers; everything else about profiles works without them.
    measures = room == "profiles" and any(part.startswith("measure") for part in path.parts[1:])
    return ARROWS[room] | {room} | ({"executor", "rounds"} if measures else set())


def imported_rooms(path: Path, source: str) -> list[tuple[int, str]]:
    """(line, room) of each import of ours in a module at `path` below the root; "?" is an absolute import."""
    package = ["rlplan", *path.parts[:-1]]
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, "?") for name in node.names if name.name.split(".")[0] == "rlplan"]
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                if (node.module or "").split(".")[0] == "rlplan":
                    found.append((node.lineno, "?"))
                continue
            base = package[: len(package) - node.level + 1]
            full = base + (node.module.split(".") if node.module else [])
            if len(full) > 1:
                found.append((node.lineno, full[1]))
            else:
                # From the root: rooms by name, or `__version__`.
                found += [(node.lineno, name.name) for name in node.names if name.name != "__version__"]
    return found


MODULES = sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_module_imports_relatively_and_only_along_the_arrows(path: Path) -> None:
    allowed = may_import(path)
    wrong = [
        f"{path}:{line}: imports {room if room != '?' else 'rlplan by its absolute name'}"
        for line, room in imported_rooms(path, (ROOT / path).read_text(encoding="utf-8"))
        if room not in allowed
    ]
    assert not wrong, f"{wrong}; allowed: {sorted(allowed)}"


def test_all_rooms_are_there_and_looked_at() -> None:
    assert {path.parts[0] for path in MODULES} == set(ROOMS)


@pytest.mark.parametrize(
    ("path", "source", "rooms"),
    [
        ("rounds/exact.py", "from .events import Abort\nfrom ..plans.job import Job\n", [(1, "rounds"), (2, "plans")]),
        (
            "executor/rewards/code.py",
            "from .. import engine\nfrom ... import planner\n",
            [(1, "executor"), (2, "planner")],
        ),
        ("cli/main.py", "from .. import __version__\nfrom ..planner.solve import x\n", [(2, "planner")]),
        (
            "planner/solve.py",
            "def f():\n    import rlplan.executor\n    from rlplan import cli\n",
            [(2, "?"), (3, "?")],
        ),
        (
            "planner/__init__.py",
            "from .solve import solve\nfrom ..executor import x\n",
            [(1, "planner"), (2, "executor")],
        ),
        ("plans/schema/job.py", "import rlplanner\nimport json\nfrom pathlib import Path\n", []),
    ],
)
def test_the_scan_sees_through_every_form_of_import(path: str, source: str, rooms: list[tuple[int, str]]) -> None:
    assert imported_rooms(Path(path), source) == rooms


def test_only_measuring_modules_of_profiles_may_use_the_executor() -> None:
    assert "executor" in may_import(Path("profiles/measure/measure_job.py"))
    assert "executor" in may_import(Path("profiles/measure_decode.py"))
    assert "executor" not in may_import(Path("profiles/profile_schema.py"))
    assert "executor" not in may_import(Path("planner/measure.py"))


IMPORT_ALL = """
import importlib, json, pkgutil, sys
loaded = []
for room in ("planner", "plans", "rounds", "traces"):
    package = importlib.import_module(f"rlplan.{room}")
    loaded.append(package.__name__)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
        loaded.append(module.name)
importlib.import_module("rlplan.profiles.profile_schema")
heavy = sorted({name.split(".")[0] for name in sys.modules} & set(json.loads(sys.argv[1])))
print(json.dumps({"loaded": loaded, "heavy": heavy}))
"""


def test_importing_all_of_planner_plans_rounds_and_the_profile_schema_loads_no_heavy_package(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, json.dumps(sorted(HEAVY))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["heavy"] == []
    assert {"rlplan.planner", "rlplan.plans", "rlplan.rounds", "rlplan.rounds.machines.exact"} <= set(report["loaded"])
