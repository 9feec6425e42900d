"""Parse the JSON rows of data files and traces; every fault is one ValueError with a message for the user."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any


class JsonError(ValueError):
    """No JSON value that can be used; the message is for the user. `line`: where, counted from 1."""

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line


def parse_json(text: str, unique_keys: bool = False) -> Any:
    """The JSON value of `text`. Raises JsonError: no JSON, nested too deeply, an integer that Python does not read;
    with `unique_keys` also an object with one key twice."""
    start = len(text) - len(text.lstrip())
    value, end = _value_at(text, start, _UNIQUE if unique_keys else _PLAIN)
    rest = _past_space(text, end)
    if rest < len(text):
        comma = text[rest:].strip() == ","
        why = "a comma follows the row; remove it" if comma else f"Extra data at column {_column(text, rest)}"
        raise JsonError(f"not valid JSON: {why}", _line(text, rest))
    return value


def array_items(text: str) -> Iterator[tuple[int, Any]]:
    """(line, value) of each item of a text that is a JSON array. Raises JsonError as `parse_json` with unique keys."""
    at, line, counted = _past_space(text, 0) + 1, 1, 0
    at = _past_space(text, at)
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        value, end = _value_at(text, at, _UNIQUE)
        yield line, value
        at = _past_space(text, end)
        if text[at : at + 1] == ",":
            at = _past_space(text, at + 1)
            if text[at : at + 1] != "]":
                continue
            why = "a comma follows the last row; remove it"
        elif text[at : at + 1] == "]":
            break
        else:
            why = f"neither a comma nor the array's end follows a row, at column {_column(text, at)}"
        raise JsonError(f"not valid JSON: {why}", _line(text, at))
    after = _past_space(text, at + 1)
    if after < len(text):
        raise JsonError("not valid JSON: more follows the end of the array", _line(text, after))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise JsonError(f"JSON has the key {repeated[:80]!r} twice in one object; keep one")
    return found


_PLAIN, _UNIQUE = json.JSONDecoder(), json.JSONDecoder(object_pairs_hook=_unique)


def _value_at(text: str, at: int, decoder: json.JSONDecoder) -> tuple[Any, int]:
    """(value, its end) of the JSON value that begins at `at`."""
    try:
        value, end = decoder.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise JsonError(f"not valid JSON: {error.msg} at column {error.colno}", error.lineno) from None
    except JsonError as error:
        raise JsonError(str(error), _line(text, at)) from None
    except RecursionError:
        place = _deep(text, at)
        raise JsonError(
            f"JSON is nested too deeply at column {_column(text, place)}; flatten it", _line(text, place)
        ) from None
    except ValueError:
        raise JsonError("JSON holds a number of more than 4,300 digits; write it as text", _line(text, at)) from None
    return value, end


def _deep(text: str, at: int) -> int:
    """Where the value that begins at `at` is deeper than any row has use for."""
    depth = 0
    for match in re.compile(r'"(?:\\.|[^"\\])*"|[\[{\]}]').finditer(text, at):
        depth += match[0] in "[{"
        depth -= match[0] in "]}"
        if depth > _DEEPEST:
            return match.start()
    return at


_DEEPEST = 100


def _past_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _column(text: str, at: int) -> int:
    return at - text.rfind("\n", 0, at)


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
