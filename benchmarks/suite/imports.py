"""Which modules of ours a file imports, read from its text: product, benchmarks and tests."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

ROOMS = ("api", "cli", "executor", "planner", "plans", "profiles", "rounds", "traces")
"""Folders that are installed as rlplan.ROOM."""


def tracked_files(root: Path) -> list[str]:
    """Paths below the root that git tracks or would track, and that exist; sorted."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(path for path in set(listed) if (root / path).is_file())


def dotted(path: str) -> str:
    """The name by which `path` is imported, less the leading `rlplan.`: plans/yaml/errors.py is plans.yaml.errors."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def import_graph(root: Path, paths: list[str]) -> dict[str, set[str]]:
    """For each Python file, those of `paths` that it imports; for a test also its conftest.py files."""
    modules = {dotted(path): path for path in paths if path.endswith(".py")}
    graph = {}
    for path in modules.values():
        names = set()
        package = path.split("/")[:-1]
        for node in ast.walk(ast.parse((root / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        found = {modules[name] for name in (name.removeprefix("rlplan.") for name in names) if name in modules}
        if path.startswith("tests/"):
            beside = ("/".join([*package[:depth], "conftest.py"]) for depth in range(1, len(package) + 1))
            found |= {conftest for conftest in beside if dotted(conftest) in modules}
        graph[path] = found - {path}
    return graph


def distances(graph: dict[str, set[str]], source: str) -> dict[str, int]:
    """How many imports lie between each file and `source`, which it needs; files that do not need it are left out."""
    importers: dict[str, set[str]] = {}
    for path, others in graph.items():
        for other in others:
            importers.setdefault(other, set()).add(path)
    found, reached = {source: 0}, [source]
    for path in reached:
        for importer in sorted(importers.get(path, set()) - found.keys()):
            found[importer] = found[path] + 1
            reached.append(importer)
    return found
