"""Other values in a document that a person wrote: canonical text, with the comments kept.

Documents that rlplan computes (plans, profiles) are written with all their keys. Documents that people write (job,
cluster, workload, policy) keep only the keys that they have, and single blank lines. The canonical form has the same
values as the text before it, and the canonical form of a canonical text is the same text.

Each comment belongs to a key and moves with that key. ruamel.yaml (0.19) was tried and does not keep comments: it drops
a comment inside a flow mapping, and it stores a comment between two keys with the first of the keys.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel

from .errors import InputError
from .yaml_doc import Document, Loc, parse
from .yaml_io import document_name, header, lines, loads

M = TypeVar("M", bound=BaseModel)

WRITTEN_BY_PEOPLE = ("job", "cluster", "workload", "policy")

_MODELINE = re.compile(r"#\s*yaml-language-server:\s*\$schema=\S+")


def with_values(text: str, model: type[M], values: Mapping[Loc, Any], path: str = "<text>") -> str:
    """Canonical text of a document with other values at some locations, whose parents it has; comments are kept.

    Raises InputError if the document is not valid, before or after, or lacks a parent.
    """
    document, value = parse(text, path), loads(text, model, path)
    by_people = document_name(model) in WRITTEN_BY_PEOPLE
    remarks = _remarks(text, document, blank_lines=by_people)
    first = text.lstrip("\ufeff").partition("\n")[0].rstrip()
    head = f"{first}\n" if _MODELINE.fullmatch(first) else header(model)
    dumped = value.model_dump(mode="python", exclude_unset=by_people)
    for location, new in values.items():
        inner: Any = dumped
        for key in location[:-1]:
            if not isinstance(inner, dict) or key not in inner:
                raise InputError(f"has no {'.'.join(map(str, location[:-1]))}", path)
            inner = inner[key]
        inner[location[-1]] = new
    result = head + _written(dumped, remarks)
    loads(result, model, path)
    return result


@dataclass
class _Remarks:
    """Comments by the location that they belong to; an empty comment is a blank line.

    Attributes:
        before: on lines of their own above the key.
        beside: at the end of the key's line.
        after: on lines of their own below the key; those of location () end the document.
    """

    before: dict[Loc, list[str]]
    beside: dict[Loc, list[str]]
    after: dict[Loc, list[str]]


def _remarks(text: str, document: Document, blank_lines: bool) -> _Remarks:
    """Comments and, if `blank_lines`, blank lines of `text`, by the location that they belong to."""
    remarks = _Remarks({}, {}, {})
    # For each line, the location of the outermost key that begins on it.
    starts: dict[int, Loc] = {}
    for location, at_line in document.lines.items():
        if location and (at_line not in starts or len(location) < len(starts[at_line])):
            starts[at_line] = location
    numbers = sorted(starts)
    source = text.lstrip("\ufeff").splitlines()
    marks = _comment_columns(text.lstrip("\ufeff"))
    for number, line in enumerate(source, start=1):
        if number == 1 and _MODELINE.fullmatch(line.rstrip()):
            continue
        column = marks.get(number)
        if column is None and (line.strip() or not blank_lines):
            continue
        comment = "" if column is None else line[column:].rstrip()
        index = bisect_left(numbers, number)
        if column is not None and line[:column].strip():
            if index == len(numbers) or numbers[index] != number:
                index -= 1
            remarks.beside.setdefault(starts[numbers[index]] if index >= 0 else (), []).append(comment)
            continue
        below = numbers[index] if index < len(numbers) else None
        above = starts[numbers[index - 1]] if index else None
        deeper = column is not None and below is not None and column > _indent(source[below - 1])
        if below is None:
            if comment:
                remarks.after.setdefault(starts[numbers[-1]] if column and numbers else (), []).append(comment)
        elif deeper and above is not None and starts[below][: len(above)] != above:
            # A comment that is indented deeper than the next key belongs to the key above it.
            remarks.after.setdefault(above, []).append(comment)
        else:
            remarks.before.setdefault(starts[below], []).append(comment)
    return remarks


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" -"))


def _comment_columns(text: str) -> dict[int, int]:
    """The column of the `#` of each line that has a comment, by line number from 1."""
    inside: list[tuple[int, int]] = []
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.ScalarToken):
            begin, end = token.start_mark.index, token.end_mark.index
            if token.style in ("|", ">"):  # its first line may hold a comment, the others are text
                begin = text.index("\n", begin)
            inside.append((begin, end))
    columns: dict[int, int] = {}
    start = 0
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        for match in re.finditer(r"(?:^|(?<=\s))#", line):
            index = start + match.start()
            if not any(begin <= index < end for begin, end in inside):
                columns[number] = match.start()
                break
        start += len(line)
    return columns


def _written(value: dict[str, object], remarks: _Remarks) -> str:
    """Canonical text of a document with its comments."""
    canonical_lines = lines(value)
    places = {line.location: index for index, line in enumerate(canonical_lines)}

    def place(location: Loc) -> int:
        while location and location not in places:
            location = location[:-1]
        return places.get(location, 0)

    before: dict[int, list[str]] = {}
    beside: dict[int, list[str]] = {}
    after: dict[int, list[str]] = {}
    for by_index, by_location in ((before, remarks.before), (beside, remarks.beside), (after, remarks.after)):
        for location, comments in by_location.items():
            if by_location is remarks.after and not location:
                continue  # the end of the document
            by_index.setdefault(place(location), []).extend(comments)
    out: list[str] = []
    for index, line in enumerate(canonical_lines):
        indent = " " * (len(line.text) - len(line.text.lstrip(" ")))
        # A line has one comment beside it; if values of several lines are now on one line, the other comments go above.
        aside = beside.get(index, [])
        for comment in before.get(index, []) + aside[1:]:
            if comment:
                out.append(f"{indent}{comment}")
            elif out and out[-1]:  # one blank line in a row, and none at the top
                out.append("")
        out.append(f"{line.text}  {aside[0]}" if aside else line.text)
        out += [f"{indent}{comment}" for comment in after.get(index, [])]
    out += remarks.after.get((), [])
    return "".join(f"{line}\n" for line in out)
