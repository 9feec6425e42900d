"""YAML text to plain Python values, with the line of every key.

Scalars follow YAML 1.2's core schema (PyYAML's own resolver is 1.1, where `1e-3` is a string and `no` is false), so
`1e-3` is a float, `no` is a string, and an integer may hold underscores. Anchors, aliases and tags are refused: a
document is reviewed line by line, so each line must show its own value, and an alias may expand without bound.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.resolver import Resolver

from .errors import InputError

Loc = tuple[str | int, ...]

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
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
    """

    value: Any
    lines: dict[Loc, int]
    last_line: int
    torn: bool

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
    lines: dict[Loc, int] = field(default_factory=dict)

    def fail(self, node: yaml.Node, message: str) -> InputError:
        return InputError(message, self.path, node.start_mark.line + 1)

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
        self.check_text(node)
        return plain_value(node.value) if node.style is None else node.value

    def mapping(self, node: yaml.MappingNode, location: Loc) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode) or not isinstance(key, str):
                raise self.fail(key_node, "a key must be a plain word")
            self.check_text(key_node)
            if key in result:
                raise self.fail(key_node, f"key '{key}' is given twice; remove one of the two")
            self.lines[(*location, key)] = key_node.start_mark.line + 1
            result[key] = self.build(value_node, (*location, key))
        return result

    def check_text(self, node: yaml.ScalarNode) -> None:
        """Raise InputError for half of a surrogate pair (from an escape): no file and no terminal can show it."""
        if any("\ud800" <= char <= "\udfff" for char in node.value):
            raise self.fail(node, "text holds half of a surrogate pair; write the character itself")

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
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {_MAX_DEPTH}", mark)
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
        raise InputError(f"not valid YAML: {message}; {remedy}", path, line) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(
            f"not valid YAML: character #x{ord(text[error.position]):04x} is not allowed; remove it", path, line
        ) from None
    if node is None:
        raise InputError("the file is empty", path, 1 if text.strip() else None)
    builder = _Builder(path, {(): 1})
    return Document(builder.build(node, ()), builder.lines, last_line, torn)


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
