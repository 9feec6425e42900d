"""YAML text to plain Python values, with the line of every key.

Scalars follow YAML 1.2's core schema (PyYAML's own resolver is 1.1, where `1e-3` is a string and `no` is false), so
`1e-3` is a float, `no` is a string, and a number may hold underscores. Anchors, aliases and tags are refused: a
document is reviewed line by line, so each line must show its own value, and an alias may expand without bound. So are
numbers and characters that people, editors or versions of YAML read differently (odd_text.py).
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.resolver import Resolver

from .errors import InputError, joined
from .odd_text import doubtful_number, hidden, is_quote, named, suspect

Loc = tuple[str | int, ...]

_DIGITS = "[0-9]+(?:_[0-9]+)*"
_INT = re.compile(rf"[-+]?(0|(?=[1-9]){_DIGITS})")
_FLOAT = re.compile(rf"[-+]?(\.{_DIGITS}|{_DIGITS}(\.({_DIGITS})?)?)([eE][-+]?{_DIGITS})?")
_SPECIAL = {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}
_MAX_DEPTH = 40  # Our documents have depth 6; PyYAML recurses, and a hostile file must not exhaust the stack.


@dataclass(frozen=True)
class Document:
    """A parsed document.

    Attributes:
        value: mappings as dict with str keys, sequences as list, scalars as str, int, float, bool or None.
        lines: for each location (path of keys and indices) the line that its key, or its list item, stands on, from 1.
        last_line: number of the last line of the text.
        torn: whether the text has no line break at its end, so that the file may be truncated.
        plain: the text of each unquoted scalar, as it is written.
    """

    value: Any
    lines: dict[Loc, int]
    last_line: int
    torn: bool
    plain: dict[Loc, str] = field(default_factory=dict)

    def line_of(self, location: Loc) -> int:
        """Line of the key at `location`, or of the nearest enclosing key in the document."""
        while location not in self.lines:
            location = location[:-1]
        return self.lines[location]


def plain_value(text: str) -> Any:
    """Value of an unquoted scalar: None, bool, int, float or the text itself."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in ("true", "false") and text in (text.lower(), text.title(), text.upper()):
        return text.lower() == "true"
    # int() of a huge literal costs quadratic time and Python refuses it; as a float it is refused as not an integer.
    if _INT.fullmatch(text) and len(text) < 400:
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return _SPECIAL.get(text.lower(), text)


@dataclass
class _Builder:
    path: str
    source: list[str]
    lines: dict[Loc, int] = field(default_factory=dict)
    plain: dict[Loc, str] = field(default_factory=dict)
    doubts: list[InputError] = field(default_factory=list)

    def fail(self, node: yaml.Node, message: str) -> InputError:
        return InputError(message, self.path, node.start_mark.line + 1)

    def doubt(self, node: yaml.ScalarNode, location: Loc) -> None:
        """Note a fault of an unquoted key or value that is probably not what was meant; the text is read on."""
        number = doubtful_number(node.value) if self.plain.get(location) == node.value else None
        if number is not None:
            self.doubts.append(self.fail(node, f"{'.'.join(map(str, location))}: {number}"))
        odd = node.value[0] if is_quote(node.value[:1]) else next(filter(hidden, node.value), None)
        if odd is None:
            return
        begin, end = node.start_mark.line, node.end_mark.line
        at = next(n for n in range(begin, end + 1) if self.source[n].find(odd, self._first(node, n)) >= 0)
        column = self.source[at].find(odd, self._first(node, at)) + 1
        quotes = "" if is_quote(odd) else ", or put the text in quotes"
        self.doubts.append(InputError(f"column {column} is {named(odd)}{quotes}", self.path, at + 1))

    @staticmethod
    def _first(node: yaml.ScalarNode, line: int) -> int:
        return node.start_mark.column if line == node.start_mark.line else 0

    def build(self, node: yaml.Node, location: Loc) -> Any:
        if isinstance(node, yaml.MappingNode):
            self.check_tag(node, "tag:yaml.org,2002:map")
            return self.mapping(node, location)
        if isinstance(node, yaml.SequenceNode):
            self.check_tag(node, "tag:yaml.org,2002:seq")
            items: list[Any] = []
            for index, item in enumerate(node.value):
                self.lines[(*location, index)] = item.start_mark.line + 1
                items.append(self.build(item, (*location, index)))
            return items
        assert isinstance(node, yaml.ScalarNode)
        self.check_tag(node, "tag:yaml.org,2002:str")
        if node.style is not None:
            return node.value
        self.plain[location] = node.value
        self.doubt(node, location)
        return plain_value(node.value)

    def mapping(self, node: yaml.MappingNode, location: Loc) -> dict[str, Any]:
        result: dict[str, Any] = {}
        before = ""
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode) or not isinstance(key, str):
                raise self.fail(key_node, "a key must be a plain word")
            if key in result:
                raise self.fail(key_node, f"key '{key}' is given twice; remove one of the two")
            self.lines[(*location, key)] = key_node.start_mark.line + 1
            if node.flow_style and key.isdecimal() and value_node.value == "" and before.isdecimal():
                column, two = key_node.start_mark.column + 1, f"{before},{key}"
                raise self.fail(
                    key_node,
                    f"column {column}: the comma in {two} ends the value; write {before}{key}, or {before}.{key}",
                )
            result[key] = self.build(value_node, (*location, key))
            if key_node.style is None:
                self.doubt(key_node, (*location, key, "[key]"))
            before = value_node.value if isinstance(value_node, yaml.ScalarNode) else ""
        return result

    def check_tag(self, node: yaml.Node, plain: str) -> None:
        if node.tag != plain:
            raise self.fail(node, f"tags are not taken; remove '{node.tag.replace('tag:yaml.org,2002:', '!!')}'")


class Refused(Exception):
    """Valid YAML that rlplan's documents must not contain. Arguments: the message and the line."""


class _Nodes:
    """Composes nodes without implicit tags (every scalar stays a string for `plain_value`), and limits the depth."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own shape)

    depth = 0
    peek_event: Any

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if getattr(event, "anchor", None) is not None:
            message = (
                f"anchors and aliases are not taken; write the value out at each place instead of '{event.anchor}'"
            )
            raise Refused(message, event.start_mark.line + 1)
        if self.depth > _MAX_DEPTH:
            mark = event.start_mark
            message = (
                f"column {mark.column + 1}: nested deeper than {_MAX_DEPTH}; check the brackets and the indentation"
            )
            raise Refused(message, mark.line + 1)
        self.depth += 1
        try:
            node: yaml.Node | None = super().compose_node(parent, index)  # type: ignore[misc]
            if isinstance(node, yaml.ScalarNode):
                node.style = node.style or None  # libyaml's plain style is ""
            return node
        finally:
            self.depth -= 1


class _Loader(_Nodes, yaml.SafeLoader):
    """The pure Python loader, for its messages about broken files."""


if yaml.__with_libyaml__:
    from yaml._yaml import CParser

    class _FastLoader(_Nodes, Composer, CParser, Resolver):
        """Reads with libyaml, six times faster, and builds the same nodes."""

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            Composer.__init__(self)
            Resolver.__init__(self)


def parse(text: str, path: str) -> Document:
    """Parse one YAML document. `path` is used in messages only.

    Raises InputError with the line for what is not YAML, a second document, a repeated key, an anchor, a tag.
    """
    last_line = max(1, text.count("\n") + (0 if text.endswith("\n") else 1))
    torn = bool(text) and not text.endswith("\n")
    source = re.split(r"\r\n|\r|\n", text.removeprefix("\ufeff"))
    breaks = re.search("[\x85\u2028\u2029]", text)  # YAML 1.1 counts them as line breaks, editors do not
    if breaks is not None:
        column = breaks.start() - text.rfind("\n", 0, breaks.start())
        line = text.count("\n", 0, breaks.start()) + 1
        raise InputError(f"not valid YAML: column {column} is {named(breaks[0])}", path, line)
    try:
        node = _compose(text)
    except Refused as refused:
        raise InputError(refused.args[0], path, refused.args[1]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # Where something is left open, the end of the file is where the parser notices.
        line = min(mark.line + 1, last_line) if mark else last_line
        at_end = mark is not None and (mark.index >= len(text.rstrip()) or mark.line + 1 >= last_line)
        remedy = "the file ends too early; it may be truncated, so write it again" if at_end else "correct the syntax"
        message = (error.problem or error.context or "syntax error").removeprefix("but ")
        if mark is not None and not at_end:
            message = f"column {mark.column + 1}: {message}"
        cause = suspect(source, line)
        if cause is not None:
            raise InputError(f"not valid YAML: {cause[1]}", path, cause[0]) from None
        raise InputError(f"not valid YAML: {message}; {remedy}", path, line) from None
    except yaml.reader.ReaderError as error:
        line, column = text.count("\n", 0, error.position) + 1, error.position - text.rfind("\n", 0, error.position)
        raise InputError(f"not valid YAML: column {column} is {named(text[error.position])}", path, line) from None
    if node is None:
        raise InputError("the file is empty", path, 1 if text.strip() else None)
    builder = _Builder(path, source, {(): 1})
    value = builder.build(node, ())
    if builder.doubts:
        raise joined(builder.doubts)
    return Document(value, builder.lines, last_line, torn, builder.plain)


def _compose(text: str) -> yaml.Node | None:
    """The document's root node. Raises Refused, or YAMLError with the message of PyYAML's own parser."""
    if yaml.__with_libyaml__:
        # libyaml has other messages, and disagrees with PyYAML on some rare texts: PyYAML then decides.
        with contextlib.suppress(yaml.YAMLError, UnicodeError):
            return _composed(_FastLoader(text))
    return _composed(_Loader(text))


def _composed(loader: Any) -> yaml.Node | None:
    try:
        node: yaml.Node | None = loader.get_single_node()
    finally:
        loader.dispose()
    return node
