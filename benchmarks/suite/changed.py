"""The test files that a change concerns: of what differs from a commit, uncommitted changes included.

    python -m benchmarks.suite.changed [--base COMMIT]      # prints a path a line

A changed module's tests are those in its folder's mirror below tests/ and those that import the module itself. A
changed test file is itself; a changed helper or conftest.py of tests stands for the tests that import it, from
wherever. A file that is no module (a golden file, a template, a page) stands for the tests of the nearest folder above
it that has any. Without --base the commit is where HEAD left origin/main, or HEAD where there is none.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import click

from rlplan.plans.yaml.errors import InputError

from ..entry import run

# Which modules of ours a file imports, read from its text: product, benchmarks and tests.

ROOMS = ("api", "cli", "executor", "frameworks", "planner", "plans", "profiles", "rounds", "traces")
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


ROOT = Path(__file__).resolve().parents[2]
WHOLE = {"pyproject.toml", "Makefile", "tests/conftest.py", "__init__.py"}
"""A change of one of these concerns every test."""


PAGES = {"README.md", "CONTRIBUTING.md", "mkdocs.yml"}
"""Pages outside docs/, of which tests/docs/ takes care."""


def is_test(path: str) -> bool:
    """Whether pytest collects the file."""
    return path.startswith("tests/") and Path(path).name.startswith("test_") and path.endswith(".py")


def nearest_tests(path: str, graph: dict[str, set[str]]) -> set[str]:
    """The tests in the folder of a file below tests/, or in its folder's mirror; without any, those further up."""
    folder = Path(path.removeprefix("tests/")).parent
    for above in (folder, *folder.parents):
        mirror = Path("tests") / above
        if found := {other for other in graph if is_test(other) and Path(other).parent == mirror}:
            return found
    return set()


def concerned(changed: list[str], graph: dict[str, set[str]]) -> list[str]:
    """The test files of a change, sorted. `changed`: paths below the root; `graph`: all files' import_graph."""
    if WHOLE & set(changed):
        return sorted(path for path in graph if is_test(path))
    found: set[str] = set()
    for path in changed:
        folder, _, _ = path.rpartition("/")
        if is_test(path):
            found.add(path)
        elif path in PAGES or not path.endswith(".py"):
            found |= nearest_tests(f"docs/{path}" if path in PAGES else path, graph)
        elif path.startswith("tests/"):
            found |= {other for other in distances(graph, path) if is_test(other)}
        else:
            if path.split("/")[0] in (*ROOMS, "benchmarks", "docs"):
                found |= {other for other in graph if is_test(other) and other.rpartition("/")[0] == f"tests/{folder}"}
            found |= {other for other, imported in graph.items() if is_test(other) and path in imported}
    return sorted(found & graph.keys())


def changed_files(base: str | None) -> list[str]:
    """Paths that differ from `base`, new ones included. Raises InputError if it is no commit."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().split("\n")[0].rstrip(".")
            raise InputError(f"git {' '.join(arguments)}: {said}; name a commit of this repository")
        return done.stdout.splitlines()

    if base is None:
        has_main = subprocess.run(
            ["git", "rev-parse", "--quiet", "--verify", "origin/main"], cwd=ROOT, capture_output=True, check=False
        )
        base = git("merge-base", "HEAD", "origin/main")[0] if has_main.returncode == 0 else "HEAD"
    return sorted(
        {*git("diff", "--name-only", "--no-renames", base), *git("ls-files", "--others", "--exclude-standard")}
    )


@click.command()
@click.option("--base", help="A commit; default: where HEAD left origin/main, else HEAD.")
def main(base: str | None) -> None:
    """Print the test files that the change since a commit concerns."""
    graph = import_graph(ROOT, [path for path in tracked_files(ROOT) if path.endswith(".py")])
    for path in concerned(changed_files(base), graph):
        click.echo(path)


if __name__ == "__main__":
    run(main)
