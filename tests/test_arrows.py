"""Imports between the rooms go one way, and planning needs no torch, vLLM, Ray or transformers."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("api", "cli", "executor", "frameworks", "planner", "profiles", "plans", "rounds", "traces")
ARROWS = {
    "api": {"planner", "profiles", "plans", "traces"},
    "cli": {"api", "planner", "executor", "frameworks", "profiles", "plans", "traces"},
    "planner": {"profiles", "plans", "rounds", "traces"},
    "executor": {"plans", "rounds", "traces"},
    "frameworks": {"plans", "rounds", "traces"},
    "profiles": {"plans"},
    "plans": {"rounds"},
    "traces": {"plans", "rounds"},
    "rounds": set(),
}
HEAVY = {"torch", "vllm", "ray", "transformers"}


def may_import(path):
    """Rooms that a module may import from, its own included."""
    room = path.parts[0]
    # Measuring is done with the executor's workers; everything else about profiles works without them.
    measures = room == "profiles" and any(part.startswith("measure") for part in path.parts[1:])
    return ARROWS[room] | {room} | ({"executor", "rounds"} if measures else set())


def imported_rooms(path, source):
    """(line, room) of each import of ours in a module at `path` below the root; "?" is an absolute import."""
    package = ["rlplan", *path.parts[:-1]]
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, "?") for name in node.names if name.name.split(".")[0] == "rlplan"]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found += [(node.lineno, "?")] if (node.module or "").split(".")[0] == "rlplan" else []
        elif isinstance(node, ast.ImportFrom):
            full = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            # From the root: rooms by name, or `__version__`.
            names = [full[1]] if len(full) > 1 else [name.name for name in node.names if name.name != "__version__"]
            found += [(node.lineno, name) for name in names]
    return found


def test_modules_import_relatively_and_only_along_the_arrows():
    modules = sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    assert {path.parts[0] for path in modules} == set(ROOMS)
    wrong = [
        f"{path}:{line}: imports {room if room != '?' else 'rlplan by its absolute name'}"
        for path in modules
        for line, room in imported_rooms(path, (ROOT / path).read_text(encoding="utf-8"))
        if room not in may_import(path)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("path", "source", "rooms"),
    [
        ("rounds/exact.py", "from .events import Abort\nfrom ..plans.job import Job\n", [(1, "rounds"), (2, "plans")]),
        ("executor/rewards/code.py", "from .. import x\nfrom ... import planner\n", [(1, "executor"), (2, "planner")]),
        ("cli/main.py", "from .. import __version__\nfrom ..planner.solve import x\n", [(2, "planner")]),
        ("planner/solve.py", "def f():\n import rlplan.executor\n from rlplan import cli\n", [(2, "?"), (3, "?")]),
        (
            "planner/__init__.py",
            "from .solve import x\nfrom ..executor import x",
            [(1, "planner"), (2, "executor")],
        ),
        ("plans/schema/job.py", "import rlplanner\nimport json\nfrom pathlib import Path\n", []),
    ],
)
def test_the_scan_sees_through_every_form_of_import(path, source, rooms):
    assert imported_rooms(Path(path), source) == rooms


def test_only_measuring_modules_of_profiles_may_use_the_executor():
    using = [
        path
        for path in ("profiles/measure/measure_job.py", "profiles/profile_schema.py", "planner/measure.py")
        if "executor" in may_import(Path(path))
    ]
    assert using == ["profiles/measure/measure_job.py"]


IMPORT_ALL = """
import importlib, json, pkgutil, sys
for room in ("api", "planner", "plans", "rounds", "traces"):
    package = importlib.import_module(f"rlplan.{room}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
importlib.import_module("rlplan.profiles.profile_schema")
print(json.dumps(sorted(sys.modules)))
"""


def test_importing_what_plans_loads_no_heavy_package(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert {"rlplan.planner", "rlplan.plans", "rlplan.rounds.machines.exact"} <= loaded
    assert not {name.split(".")[0] for name in loaded} & HEAVY
