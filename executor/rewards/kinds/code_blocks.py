"""The code of a response: which of its blocks are the solution that a row's tests want.

A block is what stands between two fences (three or more backticks or tildes, any language tag, attributes,
indented, quoted), or an indented block of Markdown, or a text that is Python as a whole. The solution is the last
block that defines the names that the tests use; for tests on standard input, the last program that reads it.
Examples of use, output and shell commands define nothing, so they never replace it. Where a block needs names that
only earlier blocks define (a helper, the imports), those come before it.

`Block` says what a block of Python defines, uses, reads and prints, read from its text without running it.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

_PYTHON_TAGS = ("", "py", "py3", "python", "python2", "python3", "ipython", "ipython3", "code")
_BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_OUTER, _INNER, _DEFINED = range(3)
"""Where a node stands: in the module's own scope, in that of an expression there, below a function or a class."""
_PASSED_OVER = (ast.Constant, ast.Load, ast.Store, ast.Del)
_BROKEN_DEFINITION = re.compile(
    r"^[ \t]*(?:async[ \t]+def|def|class)[ \t]+(\w+)\b.*\n(?:[ \t]*\n)*[ \t]+\S", re.MULTILINE
)
"""A definition with a body in a text that does not parse: the last word of a response may be wrong Python."""


@dataclass(frozen=True)
class Block:
    """One block of a response: its text, and the language that it is tagged with (lower case, "" for none)."""

    text: str
    tag: str = ""

    @cached_property
    def _parsed(self) -> tuple[ast.Module | None, str]:
        """The text as Python, or None and what is wrong with it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(self.text), ""
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return None, str(error)

    @property
    def tree(self) -> ast.Module | None:
        """The text as Python, or None if it is none."""
        return self._parsed[0]

    @property
    def leaves_string_open(self) -> bool:
        """Whether a string with three quotes begins in it and does not end."""
        return "unterminated triple-quoted" in self._parsed[1]

    @property
    def is_python(self) -> bool:
        """Whether it is meant as Python, be it with an error; a session with `>>>` is not."""
        if self.tree is not None:
            return True
        return self.tag in _PYTHON_TAGS and not self.text.lstrip().startswith(">>>")

    @cached_property
    def _nodes(self) -> list[tuple[ast.AST, int]]:
        """Its nodes but constants, in one pass, each with where it stands: see `_OUTER`."""
        found: list[tuple[ast.AST, int]] = []
        waiting: list[tuple[ast.AST, int]] = [(self.tree, _OUTER)] if self.tree else []
        while waiting:
            node, place = waiting.pop()
            found.append((node, place))
            kind = type(node)
            inside = max(place, _DEFINED if kind in _DEFINITIONS else _INNER if kind in _SCOPES else _OUTER)
            for field in node._fields:
                child = getattr(node, field, None)
                for each in child if type(child) is list else (child,):
                    if isinstance(each, ast.AST) and type(each) not in _PASSED_OVER:
                        waiting.append((each, inside))
        return found

    @cached_property
    def _outer(self) -> list[ast.AST]:
        """The nodes of the module's own scope, also those within `if`, `try`, `with` and loops."""
        return [node for node, place in self._nodes if place == _OUTER]

    @cached_property
    def _read(self) -> frozenset[str]:
        """Names that it reads anywhere."""
        return frozenset(
            node.id for node, _ in self._nodes if type(node) is ast.Name and isinstance(node.ctx, ast.Load)
        )

    @cached_property
    def _attributes(self) -> frozenset[str]:
        """Attributes that it reads anywhere, such as `stdin` in `sys.stdin`."""
        return frozenset(
            node.attr for node, _ in self._nodes if type(node) is ast.Attribute and isinstance(node.ctx, ast.Load)
        )

    @cached_property
    def bound(self) -> frozenset[str]:
        """Names that the module's scope gives a value; `*` where it imports all that a module has."""
        return frozenset(name for node in self._outer for name in _bound_by(node))

    @cached_property
    def free(self) -> frozenset[str]:
        """Names that it reads and that nothing in it gives a value."""
        return self._read - {name for node, _ in self._nodes for name in _bound_by(node)} - _BUILTINS

    @cached_property
    def defined(self) -> frozenset[str]:
        """Names that it defines for tests. Methods of a class `Solution` count; names that it imports from elsewhere
        than the standard library do not (`from solution import add` is an example of use), nor functions of no body."""
        if self.tree is None:
            return frozenset(_BROKEN_DEFINITION.findall(self.text) if self.is_python else ())
        names: set[str] = set()
        for node in self._outer:
            if isinstance(node, ast.ImportFrom) and (node.level or not _is_standard(node.module)):
                continue
            if isinstance(node, _FUNCTIONS) and _is_stub(node):
                continue
            names.update(_bound_by(node))
            if isinstance(node, ast.ClassDef) and node.name == "Solution":
                names.update(method.name for method in node.body if isinstance(method, _FUNCTIONS))
        return frozenset(names)

    @cached_property
    def defines_code(self) -> bool:
        """Whether it defines a function or a class."""
        if self.tree is None:
            return bool(self.defined)
        return any(isinstance(node, (*_DEFINITIONS, ast.Lambda)) for node in self._outer)

    @cached_property
    def reads(self) -> bool:
        """Whether it reads standard input."""
        if self.tree is None:
            return self.is_python and bool(re.search(r"\binput\s*\(|\bstdin\b", self.text))
        if "stdin" in self._read | self._attributes or ("input" in self._read and "input" not in self.bound):
            return True
        return any(type(node) is ast.Call and _opens_stdin(node) for node, _ in self._nodes)

    @cached_property
    def prints(self) -> bool:
        """Whether it writes to standard output."""
        if self.tree is None:
            return self.is_python and bool(re.search(r"\bprint\b|\bstdout\b", self.text))
        return "print" in self._read or not self._attributes.isdisjoint({"stdout", "write"})

    @cached_property
    def acts(self) -> bool:
        """Whether it calls something when it is run, beyond definitions and settings of the interpreter."""
        if self.tree is None:
            return self.is_python
        return any(
            type(node) is ast.Call and place != _DEFINED and not _is_setting(node) for node, place in self._nodes
        )


def _bound_by(node: ast.AST) -> Iterator[str]:
    """The names that this node itself gives a value."""
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        yield node.name


def _is_standard(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in sys.stdlib_module_names


def _is_stub(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the function has no body but its docstring, `...` and `pass`: a signature that someone shows."""
    return all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in function.body
    )


def _is_setting(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("setrecursionlimit", "stack_size")


def _opens_stdin(node: ast.Call) -> bool:
    """Whether a call is such as `open(0)`, `os.read(0, n)`, `open("/dev/stdin")` or `fileinput.input()`."""
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if name == "input" and isinstance(node.func, ast.Attribute):
        return isinstance(node.func.value, ast.Name) and node.func.value.id == "fileinput"
    first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
    return name in ("open", "read", "fdopen", "Path") and (first == "/dev/stdin" or (first == 0 and first is not False))


_FENCE = re.compile(r"(?P<before>.*?)(?<![`~])(?P<fence>`{3,}(?!`)|~{3,}(?!~))(?P<info>[^`]*)$")
_MARKS = re.compile(r"(?:[ \t>]|[-*+] |\d{1,3}[.)] )*")
"""What may stand before a fence: spaces, the marks of quotes and of list items."""
_ONE_LINE = re.compile(r"(?<!`)(`{3,})(?:python3?|py)?([^`\n]+)\1(?!`)[ \t]*$", re.IGNORECASE)
_PYTHON_TAG = re.compile(r"(?:py|python)[\d.]*", re.IGNORECASE)
_THOUGHT_ENDS = re.compile(
    r"</(?:think(?:ing)?|thought|reasoning)>|\[/THINK\]|<\|end_of_thought\|>|◁/think▷", re.IGNORECASE
)
_ANSWERS = tuple(
    re.compile(rf"{begin}((?:(?!{begin}).)*?){end}", re.DOTALL | re.IGNORECASE)
    for begin, end in (
        ("<answer>", "</answer>"),
        ("<solution>", "</solution>"),
        ("<code>", "</code>"),
        (r"<\|begin_of_solution\|>", r"<\|end_of_solution\|>"),
        (r"\[PYTHON\]", r"\[/PYTHON\]"),
        (r"\[BEGIN\]", r"\[DONE\]"),
    )
)
_MOST_BLOCKS = 100
"""Blocks of a text that are looked at, from its end: a response must not hold up scoring by thousands of them."""
_MOST_CLOSERS = 64
"""Lines with fences that may close a block: more than these in one docstring is no solution."""


def solution_of(response: str, needs: frozenset[str], reads_stdin: bool) -> str | None:
    """The source of the response's solution, or None if it holds no code.

    Args:
        response: the whole text of the response. Thoughts (`<think>`) count only if no code follows them; code in
            `<answer>` tags goes before code outside. A fence that is not closed begins no block.
        needs: the names that the tests use of it. Where no block defines all of them, the blocks that do so together
            are joined; where these do not either, the block that defines most counts, and the tests fail.
        reads_stdin: whether it is tested as a program on standard input; `needs` plays no part then.
    """
    fallback: str | None = None
    for scope in _scopes(response.replace("\r\n", "\n").replace("\ufeff", "")):
        blocks = list(_blocks(scope))[-_MOST_BLOCKS:]
        solution = _program(blocks) if reads_stdin else _definer(blocks, needs)
        if solution is not None:
            return solution
        code = [block for block in blocks if block.is_python]
        if code and fallback is None:
            fallback = next((block for block in reversed(code) if block.acts), code[-1]).text
    return fallback


def _scopes(response: str) -> Iterator[str]:
    """The parts of the response to look for code in, the most telling first."""
    ends = [match.end() for match in _THOUGHT_ENDS.finditer(response)]
    for text in [response[end:] for end in ends[-1:]] + [response]:
        answers = sorted((match.start(), match[1]) for tags in _ANSWERS for match in tags.finditer(text))
        yield from (inner for _, inner in reversed(answers))
        yield text


def _program(blocks: Sequence[Block]) -> str | None:
    """The last block that is a program on standard input, else with what it takes of others; else what prints."""
    sources = [_with_helpers(blocks, {at}) for at in range(len(blocks))]
    wholes = [Block(source) if source != block.text else block for source, block in zip(sources, blocks, strict=True)]
    pairs = list(zip(blocks, wholes, strict=True))
    for found in (
        [whole for block, whole in pairs if block.reads and block.prints and block.acts],
        [whole for _, whole in pairs if whole.reads and whole.prints and whole.acts],
        [whole for _, whole in pairs if whole.reads],
        [whole for _, whole in pairs if whole.prints and whole.acts],
    ):
        if found:
            return found[-1].text
    return _definer(blocks, frozenset())


def _definer(blocks: Sequence[Block], needs: frozenset[str]) -> str | None:
    """The last block that defines all that is needed, or the blocks that do so together, or the one with most of it."""
    counts = [len(needs & block.defined) for block in blocks]
    most = max(counts, default=0)
    if most == 0:
        found = [at for at, block in enumerate(blocks) if block.defines_code]
        if not needs and not found:
            found = [at for at, block in enumerate(blocks) if block.defined]
        return _with_helpers(blocks, {found[-1]}) if found else None
    chosen = {max(at for at, count in enumerate(counts) if count == most)}
    if most < len(needs) and needs <= frozenset().union(*(block.defined for block in blocks)):
        chosen = {max(at for at, block in enumerate(blocks) if name in block.defined) for name in needs}
    return _with_helpers(blocks, chosen)


def _with_helpers(blocks: Sequence[Block], chosen: set[int]) -> str:
    """The chosen blocks, and before them the earlier ones that define names which they use and do not define."""
    joined: list[str] = []
    missing: frozenset[str] = frozenset()
    for at in range(max(chosen), -1, -1):
        block = blocks[at]
        if at in chosen or (missing and (missing & block.bound or "*" in block.bound)):
            joined.insert(0, block.text)
            missing = (missing - block.bound) | block.free
    return "\n\n".join(joined)


def _blocks(text: str) -> Iterator[Block]:
    """The complete blocks of a text, in their order."""
    if _is_code(whole := Block(textwrap.dedent(text))):
        yield whole
        return
    lines = text.split("\n")
    fenced = [at for at, line in enumerate(lines) if "```" in line or "~~~" in line]
    outside: int | None = 0
    closed_at = -1
    for order, at in enumerate(fenced):
        if at <= closed_at:
            continue
        fence = _opening(lines[at])
        if fence is None:
            if one := _ONE_LINE.search(lines[at]):
                yield Block(one[2].strip() + "\n")
            continue
        if outside is not None:
            yield from _indented(lines[outside:at])
        # A prompt may end with the opening fence; the response then begins with code, and closes it.
        prefilled = Block("\n".join(lines[:at]) + "\n") if order == 0 and not fence.info else None
        if prefilled and prefilled.tree and (prefilled.defines_code or prefilled.reads or prefilled.prints):
            yield prefilled
            closed_at = at
        elif closed := _closed(lines, at, fence, fenced[order + 1 : order + 1 + _MOST_CLOSERS]):
            block, closed_at = closed
            yield block
        outside = closed_at + 1 if closed_at >= at else None
    if outside is not None:
        yield from _indented(lines[outside:])


@dataclass(frozen=True)
class _Fence:
    """An opening fence: its marks, the column it begins in, and what stands after it."""

    marks: str
    column: int
    info: str

    @property
    def tag(self) -> str:
        """The language: `python` of `python title="x"`, of `{python}` and of `{.python .numbered}`."""
        word = re.match(r"[{.\s]*([\w+#-]*)", self.info)
        return word[1].lower() if word else ""


def _opening(line: str) -> _Fence | None:
    """The fence that the line opens. Words may stand before it if it is tagged as Python ("Solution: ```python")."""
    match = _FENCE.match(line)
    if match is None:
        return None
    marks, info = match["fence"], match["info"].strip()
    if _MARKS.fullmatch(match["before"]):
        return _Fence(marks, 0 if ">" in match["before"] else len(match["before"]), info)
    return _Fence(marks, 0, info) if _PYTHON_TAG.fullmatch(info) else None


def _closed(lines: list[str], opened: int, fence: _Fence, fenced: list[int]) -> tuple[Block, int] | None:
    """The block that the fence at line `opened` begins, and the line that closes it; None if nothing does.

    Of the later lines with fences (`fenced`), the first that may close it does, unless a string with three quotes is
    open there: then the first with which the text is Python. A fence at the end of a line of code closes the block
    where no other makes it Python.
    """
    own_line = re.compile(rf"[ \t>]*{fence.marks}{fence.marks[0]}*[ \t]*(?:<[^>]*>[ \t]*)*")
    closers = [at for at in fenced if own_line.fullmatch(lines[at])]
    first: Block | None = None
    for at in closers:
        block = _cut(lines[opened + 1 : at], fence)
        first = first or block
        if block.tree is not None:
            return block, at
        if not block.leaves_string_open:
            break
    before = [at for at in fenced if not closers or at < closers[0]]
    for at in before:
        code = lines[at].rstrip().removesuffix(fence.marks)
        if code != lines[at].rstrip() and _is_code(block := _cut([*lines[opened + 1 : at], code], fence)):
            return block, at
    # A fence with a tag inside opens a block of its own: the one before it was cut off, or holds Markdown.
    if first is None or any((inner := _opening(lines[at])) is not None and inner.info for at in before):
        return None
    return first, closers[0]


def _cut(body: list[str], fence: _Fence) -> Block:
    """The lines without the marks of a quote and without the fence's own indentation."""
    if not fence.tag and body and _PYTHON_TAG.fullmatch(body[0].strip()):
        body = body[1:]  # the tag came a line late
    quoted = [line.lstrip() for line in body]
    if body and all(line.startswith(">") and not line.startswith(">>>") for line in quoted):
        body = [re.sub(r"^> ?", "", line) for line in quoted]
    near = [re.sub(rf"^[ \t]{{0,{fence.column}}}", "", line) for line in body]
    block = Block("\n".join(near) + "\n", fence.tag)
    if block.tree is None:
        dedented = Block(textwrap.dedent("\n".join(body)) + "\n", fence.tag)
        return dedented if dedented.tree is not None else block
    return block


def _indented(lines: list[str]) -> Iterator[Block]:
    """The blocks of Python that Markdown marks by four spaces after a blank line."""
    at = 0
    while at < len(lines):
        end = at + 1
        if lines[at].startswith(("    ", "\t")) and (at == 0 or not lines[at - 1].strip()):
            while end < len(lines) and (not lines[end].strip() or lines[end].startswith(("    ", "\t"))):
                end += 1
            block = Block(textwrap.dedent("\n".join(lines[at:end])).rstrip() + "\n")
            if _is_code(block):
                yield block
        at = end


def _is_code(block: Block) -> bool:
    """Whether a text without fences is Python that defines or does something; no word, number, or `Note: x`."""
    if block.tree is None or all(isinstance(statement, ast.AnnAssign) for statement in block.tree.body):
        return False
    return bool(block.bound or block.acts)
