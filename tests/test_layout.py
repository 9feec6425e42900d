"""The shape of the code: no import circles, folders and modules of a size to find one's way in, no file name twice.

What is beyond a limit is listed here by name, so that it can only get better: an entry that is no longer needed fails.
"""

import ast
from collections import Counter
from pathlib import Path

import networkx as nx

import rlplan
from benchmarks.house import House

ROOT = Path(rlplan.__file__).parent
ROOMS = ("api", "cli", "executor", "frameworks", "planner", "plans", "profiles", "rounds", "traces")
MOST_MODULES, MOST_LINES, MOST_WORDS = 15, 500, 12

CROWDED = {"cli": "one module per command"}
TWICE = {
    "compare.py",
    "execute.py",
    "refresh.py",
    "report.py",
    "solve.py",
    "tune.py",
}
"""A command, and the module of another room that it calls."""

PATHS = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in PATHS}


def imports(name: str) -> set[str]:
    """Modules of ours that a module imports, whenever it does."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = package.split(".")
            base = ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names}
    return {module for module in found if module in MODULES} - {name}


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph: nx.DiGraph[str] = nx.DiGraph([(name, other) for name in MODULES for other in imports(name)])
    assert graph.number_of_edges() > len(MODULES)
    assert [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1] == []


def test_a_folder_holds_few_modules() -> None:
    counts = Counter(path.parent.relative_to(ROOT).as_posix() for path in PATHS if path.name != "__init__.py")
    assert {folder for folder, count in counts.items() if count > MOST_MODULES} == set(CROWDED)
    assert max(folder.count("/") for folder in counts) <= 2


def test_a_module_can_be_read_in_one_sitting() -> None:
    lines = {path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in PATHS}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def test_a_file_name_stands_for_one_thing() -> None:
    names = Counter(path.name for path in PATHS if path.name != "__init__.py")
    assert {name for name, count in names.items() if count > 1} == TWICE


def test_the_name_of_a_test_has_few_words() -> None:
    named = [
        (path, node)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]
    assert len(named) > 1000
    long = {
        f"{path.relative_to(ROOT)}:{node.lineno}": node.name
        for path, node in named
        if node.name.count("_") > MOST_WORDS
    }
    assert long == {}


def test_modules_that_belong_together_names_and_folders_only_get_better() -> None:
    house = House()
    assert len(house.single_importers()) <= 8, "a small module that one neighbour imports is part of that neighbour"
    assert len(house.duplicate_class_names()) == 0, "one meaning a name"
    assert len(house.mutual_folders()) <= 1, "folders of one room import each other one way"
