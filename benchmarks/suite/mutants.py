"""The share of small faults in product code that the tests of the same room catch.

    python -m benchmarks.suite.mutants [--count N] [--seed N] [--room NAME] [--marks EXPRESSION] [--json]

Each mutant is a copy of this tree with one line changed. First the rooms' pure tests of `make test` run
on the unchanged tree, where all must pass. Then they run on each mutant of their room until one fails; tests that
import the changed module by the fewest hops come first, and as many mutants run at once as there are cores. Mutants
that no pure test catches then run the walk (the engine tests of `make test`), one mutant at a time: a walk that fails
for lack of cores would count as a catch. Mutants that no test catches are printed with their line.

JSON: {"count", "seed", "caught": share, "rooms": {ROOM: {"mutants": N, "caught": N}}, "mutants": [{"path", "line",
"kind", "was", "now", "caught_by": test or null, "seconds"}]}.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import click
from rich.console import Console

from rlplan.plans.yaml.errors import InputError, RunFailed

from ..entry import as_json_option, run
from .changed import ROOMS, distances, import_graph, tracked_files

# Faults of one line: where product code could be wrong, and the text of the line that is.
#
# A mutation turns a comparison or its outcome, a sign, `and` to `or`, adds one to a whole number, swaps the first two
# arguments of a call, or drops a statement (a call, an addition in place, a raise, an item or attribute that is set).
# Left alone: texts, annotations, decorators and what only says how the module is imported.

COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
COMPARED |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}
SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}


@dataclass(frozen=True)
class Mutation:
    """One fault: `path` (below the root), `line` (from 1), its kind, and the file's text with the fault."""

    path: str
    line: int
    kind: str
    text: str


def variants(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """(kind, changed copy) of a node, for each fault that it can have."""
    changed = deepcopy(node)
    if isinstance(changed, ast.Compare) and type(changed.ops[0]) in COMPARED:
        changed.ops[0] = COMPARED[type(changed.ops[0])]()
        yield "comparison", changed
    elif isinstance(changed, ast.BinOp) and type(changed.op) in SIGNS:
        changed.op = SIGNS[type(changed.op)]()
        yield "sign", changed
    elif isinstance(changed, ast.BoolOp):
        changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()
        yield "and/or", changed
    elif isinstance(changed, ast.UnaryOp) and isinstance(changed.op, ast.USub | ast.Not):
        yield "sign" if isinstance(changed.op, ast.USub) else "outcome", changed.operand
    elif isinstance(changed, ast.Constant) and type(changed.value) is int:
        changed.value += 1
        yield "off by one", changed
    elif isinstance(changed, ast.Call) and len(changed.args) > 1:
        first, second = changed.args[:2]
        alike = ast.dump(first) == ast.dump(second)
        if not alike and not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            changed.args[:2] = [second, first]
            yield "swapped arguments", changed
    elif can_be_dropped(changed):
        yield "dropped", ast.Pass()


def can_be_dropped(node: ast.AST) -> bool:
    """Whether code still runs without the statement: without a local variable it would not."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call | ast.Await)
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    return isinstance(node, ast.AugAssign | ast.Raise)


def runs(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one that run: no annotations, decorators, texts within f-strings or statements that import."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "keywords") and isinstance(
            node, ast.arg | ast.AnnAssign | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom):
                if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                    continue
                yield child
                yield from runs(child)


def mutations(path: str, source: str) -> dict[int, list[Mutation]]:
    """The mutations of a file, by the line on which the changed part begins."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    raw, found = source.encode(), defaultdict(list)
    for node in runs(ast.parse(source)):
        for kind, changed in variants(node):
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            text = ast.unparse(changed)
            if isinstance(node, ast.expr):
                text = f"({text})"
            mutant = (raw[:begin] + text.encode() + raw[end:]).decode()
            try:
                ast.parse(mutant)
            except SyntaxError:  # a negative number in a pattern, for one
                continue
            found[node.lineno].append(Mutation(path, node.lineno, kind, mutant))
    return found


def draw(sources: dict[str, str], count: int, seed: int) -> list[Mutation]:
    """`count` mutations, one a line, spread over the rooms by their lines of code.

    A line's place in the draw is a digest of seed, file and the line's own text, and so is the mutation's among the
    line's: the same lines are drawn after other lines were changed. Raises ValueError if there are too few lines.
    """

    def digest(*parts: object) -> bytes:
        return hashlib.sha256(repr((seed, *parts)).encode()).digest()

    ranked: dict[str, list[tuple[bytes, list[Mutation]]]] = defaultdict(list)
    size: Counter[str] = Counter()
    for path, source in sorted(sources.items()):
        room, lines, seen = path.split("/")[0], source.splitlines(), Counter[str]()
        size[room] += len(lines)
        for number, choices in sorted(mutations(path, source).items()):
            line = lines[number - 1].strip()
            seen[line] += 1
            ranked[room].append((digest(path, line, seen[line]), choices))
    shares = {room: count * size[room] / sum(size.values()) for room in size}
    quota = {room: int(share) for room, share in shares.items()}
    for room in sorted(shares, key=lambda room: (quota[room] - shares[room], room))[: count - sum(quota.values())]:
        quota[room] += 1
    drawn = []
    for room in sorted(quota):
        if len(ranked[room]) < quota[room]:
            raise ValueError(f"{room}: {len(ranked[room])} lines can be changed, {quota[room]} are wanted")
        for rank, choices in sorted(ranked[room], key=lambda entry: entry[0])[: quota[room]]:
            drawn.append(choices[int.from_bytes(rank[:4], "big") % len(choices)])
    return drawn


ROOT = Path(__file__).resolve().parents[2]
PURE, WALK = "not engine and not search", "walk"
"""The marks of the tests that `make test` has."""

MOST_S, TEST_S, MOST_BYTES = 3600, 400, 8 * 10**9
"""Of all tests of a mutant, of a single test, of memory that a process of them writes: a fault may never end."""


def room_tests(graph: dict[str, set[str]], mutated: str) -> list[str]:
    """The test files of the room of a file, the nearest importers first, and of those its folder's mirror."""
    folder, _, _ = mutated.rpartition("/")
    hops = distances(graph, mutated)
    tests = [path for path in graph if re.match(rf"tests/{folder.split('/')[0]}/(.*/)?test_[^/]*\.py$", path)]
    return sorted(tests, key=lambda path: (hops.get(path, 99), not path.startswith(f"tests/{folder}/"), path))


def copied(files: list[str], home: Path) -> Path:
    """A copy of the tree in `home/rlplan`, under which name it is imported."""
    top = home / "rlplan"
    for path in files:
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, top / path)
    return top


def limited() -> None:
    """Called in the process that runs the tests: what a fault allocates without end does not take the machine along."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))


def caught_by(top: Path, tests: list[str], marks: str) -> str | None:
    """The first test that fails in a tree, or None. Raises RuntimeError if pytest says neither."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    command += ["--randomly-dont-reorganize", "--randomly-seed=1", "-m", marks, "--timeout", str(TEST_S), *tests]
    environment = {**os.environ, "PYTHONPATH": str(top.parent), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=top, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True, preexec_fn=limited,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=MOST_S)
    except subprocess.TimeoutExpired:
        return f"no end in {MOST_S} s"
    finally:
        for line in subprocess.run(
            ["ps", "-eo", "pid=,sid="], capture_output=True, text=True, check=True
        ).stdout.splitlines():
            pid, session = map(int, line.split())
            if session == process.pid:
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    continue
        process.wait()
    if process.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", said, re.M)
    if failed:
        return failed[1]
    if process.returncode in (1, 2, 3, 4) or process.returncode < 0:
        return f"pytest ended with {process.returncode}: {said.strip().splitlines()[-1][:80]}"
    raise RuntimeError(f"pytest ended with {process.returncode} and no test: {said[-1000:]}")


def walks(graph: dict[str, set[str]]) -> list[str]:
    """The test files of the walk, which stand in tests/ itself and belong to no room."""
    return [
        path for path in graph if re.match(r"tests/test_[^/]*\.py$", path) and f"pytest.mark.{WALK}" in text_of(path)
    ]


def text_of(path: str) -> str:
    """The text of a file of this tree."""
    return (ROOT / path).read_text(encoding="utf-8")


def tried(mutation: Mutation, top: Path, tests: list[str], marks: str) -> dict[str, object]:
    """Put the fault into a copy of the tree, run the tests, and take it out again."""
    own, original = top / mutation.path, text_of(mutation.path)
    began = time.monotonic()
    # numba's files know of changes in their own module alone, not in what that module calls.
    if "numba" in original or "compiled" in mutation.path:
        for kept in [*top.rglob("*.nbi"), *top.rglob("*.nbc")]:
            kept.unlink()
    own.write_text(mutation.text, encoding="utf-8")
    try:
        by = caught_by(top, tests, marks)
    finally:
        own.write_text(original, encoding="utf-8")
    at = mutation.line - 1
    was, now = (text.splitlines()[at].strip() for text in (original, mutation.text))
    return {
        "path": mutation.path, "line": mutation.line, "kind": mutation.kind, "was": was, "now": now, "caught_by": by,
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


@click.command()
@click.option("--count", type=click.IntRange(min=1), default=60, show_default=True, help="Mutants to draw.")
@click.option("--seed", default=1, show_default=True, help="Another seed draws other lines.")
@click.option("--room", type=click.Choice(ROOMS), help="Of this room alone.")
@click.option("--marks", default=PURE, show_default=True, help="Which tests of a room run, as pytest's -m takes them.")
@click.option(
    "--walk/--no-walk", default=True, show_default=True, help="Whether mutants that these tests miss run the walk."
)
@as_json_option
def main(count: int, seed: int, room: str | None, marks: str, walk: bool, as_json: bool) -> None:
    """Print the share of drawn faults that the tests of their room catch."""
    files = tracked_files(ROOT)
    graph = import_graph(ROOT, [path for path in files if path.endswith(".py")])
    rooms = ROOMS if room is None else (room,)
    sources = {path: text_of(path) for path in graph if path.split("/")[0] in rooms}
    try:
        drawn = draw(sources, count, seed)
    except ValueError as error:
        raise InputError(f"--count {count}: {error}") from None
    progress, done = Console(stderr=True), []
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cores) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for core in range(cores):
            trees.put(copied(files, Path(folder) / str(core)))

        @contextmanager
        def tree() -> Iterator[Path]:
            top = trees.get()
            try:
                yield top
            finally:
                trees.put(top)

        def one(mutation: Mutation) -> dict[str, object]:
            with tree() as top:
                return tried(mutation, top, room_tests(graph, mutation.path), marks)

        def on_the_unchanged_tree(name: str) -> str | None:
            with tree() as top:
                return caught_by(top, room_tests(graph, f"{name}/module.py"), marks)

        def tell(number: int, row: dict[str, object]) -> None:
            end = f"caught by {row['caught_by']}" if row["caught_by"] else "[bold]not caught[/bold]"
            progress.print(f"{number}/{count} {row['path']}:{row['line']} {row['kind']}, {row['seconds']} s: {end}")

        progress.print("running the rooms' tests on the unchanged tree")
        for failed in pool.map(on_the_unchanged_tree, sorted({each.path.split("/")[0] for each in drawn})):
            if failed:
                raise RunFailed(f"{failed} fails on the unchanged tree; mend it first")
        for row in pool.map(one, drawn):
            done.append(row)
            tell(len(done), row)
        left = [number for number, row in enumerate(done) if row["caught_by"] is None] if walk else []
        with tree() as top:
            ways = walks(graph)
            if left and (failed := caught_by(top, ways, WALK)):
                raise RunFailed(f"{failed} fails on the unchanged tree; mend it, or leave the walk out by --no-walk")
            for number in left:
                done[number] = tried(drawn[number], top, ways, WALK)
                tell(number + 1, done[number])
    counts = {name: {"mutants": 0, "caught": 0} for name in rooms}
    for row in done:
        counted = counts[str(row["path"]).split("/")[0]]
        counted["mutants"] += 1
        counted["caught"] += row["caught_by"] is not None
    share = sum(row["caught_by"] is not None for row in done) / count
    missed = [row for row in done if row["caught_by"] is None]
    lines = [f"not caught: {row['path']}:{row['line']}: {row['was']}  ->  {row['now']}" for row in missed]
    lines += [f"{name:10} {counted['caught']:3} of {counted['mutants']:3}" for name, counted in counts.items()]
    result = {"count": count, "seed": seed, "caught": round(share, 4), "rooms": counts, "mutants": done}
    tell(result, as_json, [*lines, f"caught {share:.1%} of {count} (seed {seed})"])


if __name__ == "__main__":
    run(main)
