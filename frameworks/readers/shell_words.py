"""Words of a shell script: how they are cut, and what they expand to, without a shell.

Expanded are variables with the usual defaults and cuts, arrays, integer arithmetic, and the few commands whose output
follows from their words alone (`dirname`, `basename`, `echo`, `seq`). What follows from the machine (`$(nproc)`, a
variable that the script never sets) stays in the text as it is written, and is named in `ShellWord.unresolved`.
"""

from __future__ import annotations

import ast
import fnmatch
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MOST_DEPTH = 20
MOST_TEXT = 50_000
"""Characters that a word's expansions may have: `A=$A$A`, again and again, would fill the memory."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_SPECIAL = frozenset("@*#?$!-0123456789")


class UnclosedText(ValueError):
    """A quote, bracket or substitution that no character closes. Args: the offset at which it begins."""


@dataclass(frozen=True, slots=True)
class ShellWord:
    """A word as a command gets it; `line` from 1 of the file `path`; `unresolved`: variables and commands whose values
    are not known."""

    text: str
    line: int = 1
    unresolved: tuple[str, ...] = ()
    path: str = ""


class ShellVariables:
    """Variables and arrays of a script, and the arguments that it was started with."""

    def __init__(self, folder: str) -> None:
        self.folder, self.path = folder, ""
        self.arguments: tuple[ShellWord, ...] = ()
        self._values: dict[str, list[ShellWord]] = {}

    def assign(self, name: str, words: Sequence[ShellWord], append: bool = False, scalar: bool = True) -> None:
        """Give a variable (one word, or none) or an array (`scalar` False) its value."""
        if not append or name not in self._values:
            self._values[name] = list(words)
        elif scalar:
            old = self._values[name][0] if self._values[name] else ShellWord("")
            new = words[0] if words else ShellWord("")
            self._values[name] = [ShellWord(old.text + new.text, new.line, old.unresolved + new.unresolved)]
        else:
            self._values[name] += words

    def get(self, name: str) -> list[ShellWord] | None:
        """The words of a variable or array; None: it was never set."""
        if name in ("BASH_SOURCE", "0"):
            return [ShellWord(f"{self.folder}/script.sh")]
        return self._values.get(name)


def end_of(text: str, start: int) -> int:
    """The index behind a quoted text, an expansion or an escaped character that begins at `start`; else `start` + 1.
    Raises UnclosedText."""
    first, two = text[start], text[start : start + 2]
    if first == "\\":
        return min(len(text), start + 2)
    if first == "'":
        return _found(text, "'", start + 1, start) + 1
    if first == "`":
        return _found(text, "`", start + 1, start) + 1
    if first == '"':
        at = start + 1
        while at < len(text) and text[at] != '"':
            at = end_of(text, at) if text[at] in "\\`$" else at + 1
        if at >= len(text):
            raise UnclosedText(start)
        return at + 1
    if two in ("$(", "${"):
        opening, closing = two[1], {"(": ")", "{": "}"}[two[1]]
        at, depth = start + 2, 1
        while depth:
            if at >= len(text):
                raise UnclosedText(start)
            if text[at] in "\\'\"`$" and not (opening == "{" and text[at] == "'"):
                at = end_of(text, at)
                continue
            depth += (text[at] == opening) - (text[at] == closing)
            at += 1
        return at
    return start + 1


def _found(text: str, what: str, start: int, opened: int) -> int:
    at = text.find(what, start)
    if at < 0:
        raise UnclosedText(opened)
    return at


def expand(raw: str, line: int, variables: ShellVariables, depth: int = 0) -> list[ShellWord]:
    """The words that a word of a script becomes: none for an empty array, several for one with elements."""
    fields, size = _Fields(line, variables.path), 0
    for piece, quoted in _pieces(raw):
        if not piece.startswith(("$", "`")) or len(piece) < 2 or (quoted is None):
            fields.add(piece)
            continue
        values, unresolved = _value(piece, variables, depth)
        size += sum(len(word.text) + 1 for word in values)
        if size > MOST_TEXT:
            values, unresolved = [ShellWord(piece)], (piece,)
        if re.fullmatch(r"\$\{?\w+\[[@*]\]\}?|\$\{?[@*]\}?", piece):
            fields.elements(values)
        elif quoted:
            fields.add(" ".join(word.text for word in values), unresolved)
        else:
            fields.split(" ".join(word.text for word in values), unresolved)
    # "${A[@]}" of an empty array is no word; any other quoted text is one, even an empty one.
    listed = re.fullmatch(r'"\$(\{\w+\[@\]\}|\{?@\}?)"', raw) is not None
    return fields.words(had_quotes=not listed and ('"' in raw or "'" in raw))


def expand_text(raw: str, line: int, variables: ShellVariables, depth: int = 0) -> ShellWord:
    """What a word becomes where nothing is split: the right side of an assignment."""
    words = expand(raw, line, variables, depth)
    unresolved = tuple(each for word in words for each in word.unresolved)
    return ShellWord(" ".join(word.text for word in words), line, unresolved, variables.path)


class _Fields:
    def __init__(self, line: int, path: str) -> None:
        self._line, self._path, self._done = line, path, list[ShellWord]()
        self._text, self._unresolved, self._begun = "", list[str](), False

    def add(self, text: str, unresolved: Sequence[str] = ()) -> None:
        self._text, self._begun = self._text + text, True
        self._unresolved += unresolved

    def split(self, text: str, unresolved: Sequence[str]) -> None:
        parts = text.split()
        if text[:1].isspace():
            self._close()
        for index, part in enumerate(parts):
            if index:
                self._close()
            self.add(part, unresolved)
        if parts and text[-1:].isspace():
            self._close()

    def elements(self, words: Sequence[ShellWord]) -> None:
        for index, word in enumerate(words):
            if index:
                self._close()
            self.add(word.text, word.unresolved)
            self._line, self._path = word.line, word.path or self._path

    def _close(self) -> None:
        if self._begun:
            unresolved = tuple(dict.fromkeys(self._unresolved))
            self._done.append(ShellWord(self._text, self._line, unresolved, self._path))
        self._text, self._unresolved, self._begun = "", [], False

    def words(self, had_quotes: bool) -> list[ShellWord]:
        self._close()
        if not self._done and had_quotes:
            return [ShellWord("", self._line)]
        return self._done


def _pieces(raw: str) -> Iterator[tuple[str, bool | None]]:
    """(piece, quoted) of a word: an expansion in or out of double quotes, or (None) text that stands for itself."""
    at, quoted = 0, False
    while at < len(raw):
        char = raw[at]
        if char == "'" and not quoted:
            end = end_of(raw, at)
            yield raw[at + 1 : end - 1], None
        elif char == '"':
            quoted, end = not quoted, at + 1
        elif char == "\\" and (not quoted or raw[at + 1 : at + 2] in '"\\$`\n'):
            end = at + 2
            yield raw[at + 1 : end].replace("\n", ""), None
        elif char == "`" or raw[at : at + 2] in ("$(", "${"):
            end = end_of(raw, at)
            yield raw[at:end], quoted
        elif char == "$" and raw[at : at + 2] == "$'" and not quoted:
            end = end_of(raw, at + 1)
            yield raw[at + 2 : end - 1], None
        elif char == "$" and (name := _NAME.match(raw, at + 1)):
            end = name.end()
            yield raw[at:end], quoted
        elif char == "$" and raw[at + 1 : at + 2] in _SPECIAL and at + 1 < len(raw):
            end = at + 2
            yield raw[at:end], quoted
        else:
            end = at + 1
            yield char, None
        at = end


def _value(piece: str, variables: ShellVariables, depth: int) -> tuple[list[ShellWord], tuple[str, ...]]:
    """(words, what is not known) of an expansion."""
    if depth > MOST_DEPTH:
        return [ShellWord(piece)], (piece,)
    if piece.startswith("$(("):
        number = arithmetic(piece[3:-2], variables, depth)
        return ([ShellWord(piece)], (piece,)) if number is None else ([ShellWord(str(number))], ())
    if piece.startswith(("$(", "`")):
        text = _output(piece[2:-1] if piece[0] == "$" else piece[1:-1], variables, depth)
        return ([ShellWord(piece)], (piece,)) if text is None else ([ShellWord(text)], ())
    inner = piece[2:-1] if piece.startswith("${") else piece[1:]
    return _parameter(piece, inner, variables, depth)


def _parameter(
    piece: str, inner: str, variables: ShellVariables, depth: int
) -> tuple[list[ShellWord], tuple[str, ...]]:
    match = re.match(r"([#!]?)([A-Za-z_]\w*|[@*#?$!0-9-])(\[[^\]]*\])?(.*)\Z", inner, re.DOTALL)
    if match is None:
        return [ShellWord(piece)], (piece,)
    sign, name, index, operation = match.groups()
    words: list[ShellWord] | None
    if name in ("@", "*"):
        if sign or not operation:
            return ([ShellWord(str(len(variables.arguments)))] if sign else list(variables.arguments)), ()
        words = list(variables.arguments) or None
    elif name.isdigit() and name != "0":
        words = list(variables.arguments[int(name) - 1 : int(name)]) or (None if operation else [])
    else:
        words = variables.get(name)
    if index and index not in ("[@]", "[*]") and words is not None:
        at = arithmetic(index[1:-1], variables, depth)
        words = [words[at]] if at is not None and -len(words) <= at < len(words) else None
    if sign == "#":
        return ([ShellWord(piece)], (piece,)) if words is None else (
            [ShellWord(str(len(words) if index else len(words[0].text) if words else 0))], (),
        )  # fmt: skip
    if words is not None and not index:
        words = words[:1]
    empty = words is None or not "".join(word.text for word in words)
    for begin, absent in ((":-", empty), (":=", empty), ("-", words is None), ("=", words is None)):
        if operation.startswith(begin):
            if not absent:
                break
            word = expand_text(operation[len(begin) :], 1, variables, depth + 1)
            if "=" in begin:
                variables.assign(name, [word])
            return [word], word.unresolved
    if operation.startswith((":+", "+")):
        if empty:
            return [], ()
        word = expand_text(operation.lstrip(":")[1:], 1, variables, depth + 1)
        return [word], word.unresolved
    if words is None and index in ("[@]", "[*]"):
        return [], ()
    if words is None:
        return [ShellWord(piece)], (f"${name}",)
    unresolved = tuple(each for word in words for each in word.unresolved)
    if not operation or operation.startswith((":-", ":=", "-", "=", ":?", "?")):
        return words, unresolved
    cut = [_cut(word.text, operation, variables, depth) for word in words]
    if any(text is None for text in cut):
        return [ShellWord(piece)], (piece,)
    return [ShellWord(str(text), word.line) for text, word in zip(cut, words, strict=True)], unresolved


def _cut(text: str, operation: str, variables: ShellVariables, depth: int) -> str | None:
    """What `#`, `%`, `/`, `^^` and `,,` leave of a text; None for another operation."""
    for sign, begins in (("##", True), ("#", True), ("%%", False), ("%", False)):
        if operation.startswith(sign):
            pattern = expand_text(operation[len(sign) :], 1, variables, depth + 1).text
            ends = range(len(text) + 1) if (len(sign) == 1) == begins else range(len(text), -1, -1)
            for end in ends:
                part = text[:end] if begins else text[end:]
                if fnmatch.fnmatchcase(part, pattern):
                    return text[end:] if begins else text[:end]
            return text
    if operation in ("^^", ",,"):
        return text.upper() if operation == "^^" else text.lower()
    if operation.startswith("/"):
        old, _, new = operation.lstrip("/").partition("/")
        old, new = (expand_text(each, 1, variables, depth + 1).text for each in (old, new))
        return text.replace(old, new, -1 if operation.startswith("//") else 1) if old else text
    return None


def _output(command: str, variables: ShellVariables, depth: int) -> str | None:
    """What a command in `$( )` prints, where that follows from its words; None where it does not."""
    if "BASH_SOURCE" in command or re.search(r"\$\{?0\b", command):
        up = command.count("/..") + max(0, command.count("dirname") - 1)
        return os.path.normpath("/".join([variables.folder or ".", *[".."] * up])) if "dirname" in command else None
    if re.search(r"[|;&<>]", command):
        return None
    if command.split()[:1] not in (["echo"], ["dirname"], ["basename"], ["seq"]):
        return None
    try:
        words = [word for raw in _split_words(command) for word in expand(raw, 1, variables, depth + 1)]
    except UnclosedText:
        return None
    if any(word.unresolved for word in words):
        return None
    name, texts = words[0].text, [word.text for word in words[1:]]
    if name == "echo":
        return " ".join(text for text in texts if text not in ("-n", "-e"))
    if name == "dirname" and texts:
        return os.path.dirname(texts[-1].rstrip("/")) or "."  # noqa: PTH120 (a shell's, also of what is no path here)
    if name == "basename" and texts:
        base = texts[0].rstrip("/").split("/")[-1]
        return base.removesuffix(texts[1]) if len(texts) > 1 else base
    if name == "seq" and texts and all(re.fullmatch(r"-?\d{1,6}", text) for text in texts):
        numbers = [int(text) for text in texts]
        first, step = (numbers[0] if len(numbers) > 1 else 1), (numbers[1] if len(numbers) == 3 else 1)
        return " ".join(map(str, range(first, numbers[-1] + (1 if step > 0 else -1), step)[:10_000])) if step else None
    return None


def _split_words(command: str) -> Iterator[str]:
    at = start = 0
    while at < len(command):
        if command[at].isspace():
            if at > start:
                yield command[start:at]
            at = start = at + 1
        else:
            at = end_of(command, at)
    if at > start:
        yield command[start:at]


def arithmetic(expression: str, variables: ShellVariables, depth: int = 0) -> int | None:
    """The integer of an arithmetic expression; None where it uses what is not known."""
    text = expand_text(f'"{expression}"', 1, variables, depth + 1)
    if text.unresolved or len(text.text) > 500:
        return None
    source = text.text.replace("&&", " and ").replace("||", " or ").strip()
    ternary = re.fullmatch(r"(.+?)\?(.+?):(.+)", source)
    try:
        tree = ast.parse(
            f"({ternary[2]}) if ({ternary[1]}) else ({ternary[3]})" if ternary else source or "0", mode="eval"
        )
        return int(_number(tree.body, variables, depth + 1))
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError):
        return None


def _number(node: ast.expr, variables: ShellVariables, depth: int) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.Name) and depth < MOST_DEPTH:
        words = variables.get(node.id)
        number = None if not words else arithmetic(words[0].text, variables, depth + 1)
        if number is None:
            raise ValueError(node.id)
        return number
    if isinstance(node, ast.UnaryOp):
        inner = _number(node.operand, variables, depth)
        return -inner if isinstance(node.op, ast.USub) else int(not inner) if isinstance(node.op, ast.Not) else inner
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left, variables, depth), _number(node.right, variables, depth)
        if isinstance(node.op, ast.Div | ast.FloorDiv):
            return int(left / right) if abs(left) < 2**50 else left // right
        if isinstance(node.op, ast.Pow) and (abs(left) > 2**20 or not 0 <= right <= 64):
            raise ValueError("a power beyond any size")
        operations = {
            ast.Add: "__add__",
            ast.Sub: "__sub__",
            ast.Mult: "__mul__",
            ast.Mod: "__mod__",
            ast.Pow: "__pow__",
        }
        if type(node.op) in operations:
            return int(getattr(left, operations[type(node.op)])(right))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _number(node.left, variables, depth), _number(node.comparators[0], variables, depth)
        compared = {ast.Eq: left == right, ast.NotEq: left != right, ast.Lt: left < right, ast.LtE: left <= right,
                    ast.Gt: left > right, ast.GtE: left >= right}  # fmt: skip
        if type(node.ops[0]) in compared:
            return int(compared[type(node.ops[0])])
    if isinstance(node, ast.BoolOp):
        values = [_number(each, variables, depth) for each in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.IfExp):
        return _number(node.body if _number(node.test, variables, depth) else node.orelse, variables, depth)
    raise ValueError(type(node).__name__)
