"""Faults of one line: where product code could be wrong, and the text of the line that is.

A mutation turns a comparison or its outcome, a sign, `and` to `or`, adds one to a whole number, swaps the first two
arguments of a call, or drops a statement (a call, an addition in place, a raise, an item or attribute that is set).
Left alone: texts, annotations, decorators and what only says how the module is imported.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

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
