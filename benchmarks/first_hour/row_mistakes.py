"""Mistakes in files of rows: the data, a length trace, the trace of a run."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .mistake import ROW_READERS, Mistake

Change = Callable[[list[str], random.Random], str | bytes]

SURE: dict[str, Change] = {
    "a line of text": lambda rows, r: _joined(rows, r, "call the landlord"),
    "a number for a row": lambda rows, r: _joined(rows, r, "7"),
    "a list for a row": lambda rows, r: _joined(rows, r, "[1, 2]"),
    "deep nesting": lambda rows, r: _joined(rows, r, "[" * 100_000),
    "an integer of 5,000 digits": lambda rows, r: _joined(rows, r, '{"id": "a", "answer": ' + "9" * 5000 + "}"),
    "UTF-16": lambda rows, r: "\n".join(rows).encode("utf-16"),
    "gzip": lambda rows, r: gzip.compress("\n".join(rows).encode()),
    "nothing": lambda rows, r: "",
    "blank lines": lambda rows, r: "\n \n\n",
    "CSV": lambda rows, r: "prompt,epoch,sample,tokens\na,0,0,17\n",
    "one JSON array": lambda rows, r: "[" + ",".join(rows) + "]\n",
}  # fmt: skip
MAYBE: dict[str, Change] = {
    "a torn last line": lambda rows, r: "\n".join(rows)[: -r.randint(2, 40)],
    "a value of another kind": lambda rows, r: _edited(rows, r, r.choice(ODD)),
    "a key that is missing": lambda rows, r: _without_a_key(rows, r),
    "a row twice": lambda rows, r: _joined(rows, r, r.choice(rows)),
    "CRLF": lambda rows, r: "\r\n".join(rows) + "\r\n",
    "a byte order mark": lambda rows, r: b"\xef\xbb\xbf" + ("\n".join(rows) + "\n").encode(),
    "few rows": lambda rows, r: "\n".join(rows[: r.randint(1, 5)]) + "\n",
    "half of a surrogate pair": lambda rows, r: _edited(rows, r, "\ud800"),
}
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**9, 99_999_999_999, 10**30, 1e300, float("nan"), float("inf"), "", "3", "x" * 10_000, [],
    {}, [[1]], "\x1b[31m", "\n",
)  # fmt: skip


def _joined(rows: list[str], rng: random.Random, inserted: str) -> str:
    index = rng.randrange(len(rows))
    return "\n".join([*rows[:index], inserted, *rows[index:]]) + "\n"


def _edited(rows: list[str], rng: random.Random, value: Any) -> str:
    index = rng.randrange(len(rows))
    row = json.loads(rows[index])
    row[rng.choice(list(row))] = value
    return "\n".join([*rows[:index], json.dumps(row), *rows[index + 1 :]]) + "\n"


def _without_a_key(rows: list[str], rng: random.Random) -> str:
    index = rng.randrange(len(rows))
    row = json.loads(rows[index])
    del row[rng.choice(list(row))]
    return "\n".join([*rows[:index], json.dumps(row), *rows[index + 1 :]]) + "\n"


def row_mistakes(rng: random.Random) -> Iterator[Mistake]:
    """Yield mistakes in files of rows, without end."""
    while True:
        name = rng.choice(list(ROW_READERS))
        fault, change = rng.choice(list(rng.choice((SURE, MAYBE)).items()))
        command = rng.choice(ROW_READERS[name])
        yield spoilt_rows(name, fault, change, command, rng.randrange(2**31))


def spoilt_rows(name: str, fault: str, change: Change, command: tuple[str, ...], seed: int) -> Mistake:
    """The mistake that changes the rows of `name` (random numbers from `seed`) and runs `command`."""

    def spoil(folder: Path) -> None:
        path = folder / name
        rows = path.read_text(encoding="utf-8").splitlines()
        new = change(rows, random.Random(seed))
        path.write_bytes(new.encode("utf-8", "surrogatepass") if isinstance(new, str) else new)

    # An empty trace is valid: the run has only begun. Prompts may be packed, or one array.
    valid = {("run/trace.jsonl", "nothing"), ("data.jsonl", "gzip"), ("data.jsonl", "one JSON array")}
    sure = fault in SURE and (name, fault) not in valid
    return Mistake(f"{name}: {fault}", command, sure, spoil)
