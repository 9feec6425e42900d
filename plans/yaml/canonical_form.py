"""Canonical form of a document that somebody edited: keys in order, one spelling of each value, comments kept.

What rlplan computes (plans, profiles) is written out with all its keys. What people write (job, cluster, workload,
policy) keeps the keys that it has and its single blank lines. Canonical text of canonical text is the same text, and
says what the text before said.

Comments are placed by the key that they belong to, since keys move. ruamel.yaml (0.19) was tried for this and does not
keep them: it drops a comment inside a flow mapping, and stores one between two keys with the key before it, so that it
moves away with that key.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import TypeVar

import yaml
from pydantic import BaseModel

from .yaml_doc import Document, Loc, parse
from .yaml_io import document_name, header, loads
from .yaml_write import lines

M = TypeVar("M", bound=BaseModel)

WRITTEN_BY_PEOPLE = ("job", "cluster", "workload", "policy")

_MODELINE = re.compile(r"#\s*yaml-language-server:\s*\$schema=\S+")


def canonical(text: str, model: type[M], path: str = "<text>") -> str:
    """Canonical text of the document `text`; `path` is used in messages only. Raises InputError if it is not valid."""
    document, value = parse(text, path), loads(text, model, path)
    by_people = document_name(model) in WRITTEN_BY_PEOPLE
    remarks = _remarks(text, document, blank_lines=by_people)
    first = text.lstrip("\ufeff").partition("\n")[0].rstrip()
    head = f"{first}\n" if _MODELINE.fullmatch(first) else header(model)
    result = head + _written(value.model_dump(mode="python", exclude_unset=by_people), remarks)
    assert loads(result, model, path) == value, "canonical form changed the document"
    return result


@dataclass
class _Remarks:
    """Comments by the location that they belong to; an empty one is a blank line."""

    before: dict[Loc, list[str]]
    beside: dict[Loc, list[str]]
    after: dict[Loc, list[str]]


def _remarks(text: str, document: Document, blank_lines: bool) -> _Remarks:
    """What stands in `text` that its value does not hold."""
    found = _Remarks({}, {}, {})
    # By line, of each line the outermost key; a location is known by where it begins.
    starts: dict[int, Loc] = {}
    for loc, at_line in document.lines.items():
        if loc and (at_line not in starts or len(loc) < len(starts[at_line])):
            starts[at_line] = loc
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
        here = bisect_left(numbers, number)
        if column is not None and line[:column].strip():
            at = here if here < len(numbers) and numbers[here] == number else here - 1
            found.beside.setdefault(starts[numbers[at]] if at >= 0 else (), []).append(comment)
            continue
        below = numbers[here] if here < len(numbers) else None
        above = starts[numbers[here - 1]] if here else None
        deeper = column is not None and below is not None and column > _indent(source[below - 1])
        if below is None:
            if comment:
                found.after.setdefault(starts[numbers[-1]] if column and numbers else (), []).append(comment)
        elif deeper and above is not None and starts[below][: len(above)] != above:
            # Indented like what stands above it: it belongs there, and not to the next key.
            found.after.setdefault(above, []).append(comment)
        else:
            found.before.setdefault(starts[below], []).append(comment)
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" -"))


def _comment_columns(text: str) -> dict[int, int]:
    """By line from 1, the column of its comment's `#`."""
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
    canonical_lines = lines(value)
    places = {line.loc: index for index, line in enumerate(canonical_lines)}

    def place(loc: Loc) -> int:
        while loc and loc not in places:
            loc = loc[:-1]
        return places.get(loc, 0)

    before: dict[int, list[str]] = {}
    beside: dict[int, list[str]] = {}
    after: dict[int, list[str]] = {}
    for there, held in ((before, remarks.before), (beside, remarks.beside), (after, remarks.after)):
        for loc, comments in held.items():
            if held is remarks.after and not loc:
                continue  # the end of the document
            there.setdefault(place(loc), []).extend(comments)
    out: list[str] = []
    for index, line in enumerate(canonical_lines):
        indent = " " * (len(line.text) - len(line.text.lstrip(" ")))
        # One comment fits beside a line; those of values that came to stand on one line go above it.
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
