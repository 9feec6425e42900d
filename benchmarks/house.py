"""How heavy is the house? Sizes, modules that are part of a neighbour, and the hands that a value passes through.

    python -m benchmarks.house --json            # all figures, each with its aim
    python -m benchmarks.house --no-trace        # without decode_second_files, in seconds

What a figure counts, of the product's rooms (api cli executor planner plans profiles rounds traces) if nothing else is
said; lines are non-blank ones:

- product_lines, product_modules (without `__init__.py`), benchmark_lines, test_lines;
- single_importers: modules under 150 lines that one module of the same folder alone imports;
- cutoff_files: files that name `cutoff_tokens`;
- duplicate_class_names: public classes of a module's top level whose name another module has too;
- mutual_folders: pairs of folders of one room that import each other, both ways;
- decode_second_files: files with a function that holds a decode second of the measured profile of the shipped CPU
  example, unchanged, while `solve` plans that example: as argument, local or result, or in an object, list or mapping
  of these, three levels deep;
- response_files: files of the executor that take, return, keep or make, by their annotations and calls, an object that
  holds a response: of a class with a field of its tokens (RESPONSE_FIELDS), or with a field or a base of such a class.

Before the house was made lighter (commit b9156048): 80,506 lines in 639 modules, 56 single importers, 47, 31 and 38
files in the order above, 46 class names, 50 pairs of folders, 14,365 lines of benchmarks, 44,407 of tests.

What is traced are the first 12 calls of each function; a second that is only added to another is not followed further.
"""

from __future__ import annotations

import ast
import math
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import click

from .entry import as_json_option, run, tell

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("api", "cli", "executor", "frameworks", "planner", "plans", "profiles", "rounds", "traces")
SMALL = 150
AIMS = {
    "product_lines": 64_000,
    "product_modules": 430,
    "single_importers": 25,
    "cutoff_files": 24,
    "response_files": 20,
    "decode_second_files": 16,
    "duplicate_class_names": 0,
    "mutual_folders": 4,
    "benchmark_lines": 9_000,
    "test_lines": None,
}
RESPONSE_FIELDS = ("response_tokens", "tokens")
SEQUENCES = {"list", "tuple", "Ints", "ndarray", "array", "Sequence"}
CALLS = 12
DEPTH = 3
MOST_ITEMS = 8


class House:
    """The product's modules, who imports whom, and their sizes."""

    def __init__(self) -> None:
        self.paths = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
        dotted = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in self.paths)
        self.modules = dict(zip((name.removesuffix(".__init__") for name in dotted), self.paths, strict=True))
        self.texts = {name: path.read_text(encoding="utf-8") for name, path in self.modules.items()}
        self.trees = {name: ast.parse(text) for name, text in self.texts.items()}
        self.importers: dict[str, set[str]] = defaultdict(set)
        for name in self.modules:
            for other in self._imports(name):
                self.importers[other].add(name)

    def _imports(self, name: str) -> set[str]:
        package = name if self.modules[name].name == "__init__.py" else name.rpartition(".")[0]
        found = set()
        for node in ast.walk(self.trees[name]):
            if isinstance(node, ast.ImportFrom) and node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
                named = (f"{base}.{alias.name}" for alias in node.names)
                found |= {module if module in self.modules else base for module in named}
        return {module for module in found if module in self.modules} - {name}

    def single_importers(self) -> list[str]:
        """Modules that should be part of the one neighbour that imports them."""
        return [
            name
            for name, path in self.modules.items()
            if path.name != "__init__.py"
            and len(self.importers[name]) == 1
            and next(iter(self.importers[name])).rpartition(".")[0] == name.rpartition(".")[0]
            and non_blank(self.texts[name]) < SMALL
        ]

    def duplicate_class_names(self) -> list[str]:
        """Public class names of more than one module, with these modules."""
        where: dict[str, list[str]] = defaultdict(list)
        for name, tree in self.trees.items():
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    where[node.name].append(name)
        return [f"{name}: {', '.join(modules)}" for name, modules in sorted(where.items()) if len(modules) > 1]

    def mutual_folders(self) -> list[str]:
        """Pairs of folders of one room that import each other."""
        folder = {name: path.parent.as_posix() for name, path in self.modules.items()}
        room = {name: name.partition(".")[0] for name in self.modules}
        edges = {
            (folder[importer], folder[name])
            for name, importers in self.importers.items()
            for importer in importers
            if folder[importer] != folder[name] and room[importer] == room[name]
        }
        short = {path: Path(path).relative_to(ROOT).as_posix() for path in folder.values()}
        return sorted(f"{short[a]} <-> {short[b]}" for a, b in edges if a < b and (b, a) in edges)


def files_that_hold(values: set[float], work: Callable[[], object]) -> list[str]:
    """Product files with a function that holds one of the numbers while `work` runs; see the module."""
    product = {path.as_posix(): path.relative_to(ROOT).as_posix() for path in House().paths}
    calls: Counter[CodeType] = Counter()
    files: set[str] = set()

    def look(frame: FrameType, event: str, result: Any) -> None:
        code = frame.f_code
        if event != "return" or calls[code] >= CALLS:
            return
        calls[code] += 1
        file = product.get(str(Path(code.co_filename).resolve()))
        if file is None or file in files:
            calls[code] = CALLS
        elif any(holds_value(each, values, DEPTH) for each in (*frame.f_locals.values(), result)):
            files.add(file)

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return sorted(files)


def holds_value(value: Any, values: set[float], depth: int) -> bool:
    """Whether it is one of the numbers, or has one in its parts, so many levels deep."""
    if type(value) is float:
        return value in values
    if depth == 0 or isinstance(value, str | bytes | int | type | None):
        return False
    parts: Any = ()
    if isinstance(value, dict):
        parts = list(value.values())[:MOST_ITEMS]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)[:MOST_ITEMS]
    elif type(value).__module__.startswith("rlplan."):
        named = getattr(type(value), "__dataclass_fields__", None) or getattr(value, "__dict__", {})
        parts = [getattr(value, name, None) for name in named]
    return any(holds_value(part, values, depth - 1) for part in parts)


def non_blank(text: str) -> int:
    """Lines that hold something."""
    return sum(1 for line in text.splitlines() if line.strip())


def lines_below(folder: str) -> int:
    """Non-blank lines of the Python files of a folder."""
    return sum(non_blank(path.read_text(encoding="utf-8")) for path in (ROOT / folder).rglob("*.py"))


def decode_second_files() -> list[str]:
    """See the module."""
    from rlplan.api.solve_job import solve
    from rlplan.planner.choose.candidates.solve_options import Pass
    from rlplan.plans.schema.job import load_job
    from rlplan.plans.yaml.yaml_io import dump, load
    from rlplan.profiles.profile_schema import Profile

    home = ROOT / "plans" / "examples" / "cpu-demo"
    measured = {layout.step_s for layout in load(home / "profile.yaml", Profile).rollout}
    job = load_job(home / "job.yaml")
    search = job.search.model_copy(update={"tp": (1,), "micro_batch_tokens": (4096,)})
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cluster.yaml", "profile.yaml", "profile.lengths.jsonl", "data.jsonl", "model"):
            (Path(folder) / name).symlink_to(home / name)
        path = Path(folder) / "job.yaml"
        path.write_text(dump(job.model_copy(update={"search": search})))
        return files_that_hold(measured, lambda: solve(path, force=True, passes=(Pass(2, 1, math.inf),)))


def response_files(house: House) -> list[str]:
    """See the module."""
    trees = {name: tree for name, tree in house.trees.items() if name.startswith("executor.")}
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {node.name: [each for each in node.body if isinstance(each, ast.AnnAssign)] for node in classes}
    parts = {
        node.name: {name for part in (*node.bases, *(each.annotation for each in fields[node.name]))
                    for name in names_in(part)}
        for node in classes
    }  # fmt: skip
    carriers = {
        name
        for name, its in fields.items()
        if any(isinstance(each.target, ast.Name) and each.target.id in RESPONSE_FIELDS
               and names_in(each.annotation) & SEQUENCES for each in its)
    }  # fmt: skip
    while more := {name for name, its in parts.items() if its & carriers} - carriers:
        carriers |= more
    return sorted(
        house.modules[name].relative_to(ROOT).as_posix() for name, tree in trees.items() if holds(tree, carriers)
    )


def names_in(annotation: ast.expr | None) -> set[str]:
    """Names that an annotation has."""
    nodes = ast.walk(annotation) if annotation is not None else ()
    return {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute)
    }


def holds(tree: ast.Module, carriers: set[str]) -> bool:
    """Whether a module takes, returns, keeps or makes an object of these classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and names_in(node.annotation) & carriers:
            return True
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and names_in(node.returns) & carriers:
            return True
        if isinstance(node, ast.Call) and names_in(node.func) & carriers:
            return True
    return False


@click.command("house", help=__doc__)
@as_json_option
@click.option("--trace/--no-trace", default=True, help="Also trace a solve: a minute.")
@click.option("--names", is_flag=True, help="Print what was counted, too.")
def command(as_json: bool, trace: bool, names: bool) -> None:
    """Print the table."""
    house = House()
    listed: dict[str, list[str]] = {
        "single_importers": house.single_importers(),
        "cutoff_files": [name for name, text in house.texts.items() if "cutoff_tokens" in text],
        "duplicate_class_names": house.duplicate_class_names(),
        "mutual_folders": house.mutual_folders(),
        "response_files": response_files(house),
    }
    if trace:
        listed["decode_second_files"] = decode_second_files()
    figures: dict[str, int | None] = {name: None for name in AIMS} | {name: len(each) for name, each in listed.items()}
    figures["product_lines"] = sum(map(non_blank, house.texts.values()))
    figures["product_modules"] = sum(path.name != "__init__.py" for path in house.paths)
    figures |= {"benchmark_lines": lines_below("benchmarks"), "test_lines": lines_below("tests")}
    found = {name: {"value": figures[name], "aim": aim} for name, aim in AIMS.items()}
    lines = []
    for name, figure in found.items():
        lines.append(f"{name:24} {figure['value'] if figure['value'] is not None else '-':>8}  aim {figure['aim']}")
        lines += [f"    {each}" for each in listed.get(name, ()) if names]
    tell({**found, "names": listed} if names else found, as_json, lines)


if __name__ == "__main__":
    run(command)
