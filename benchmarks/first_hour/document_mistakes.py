"""Mistakes in a YAML document: keys, values, units, syntax, encodings."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from .mistake import READERS, Mistake

NUMBER = re.compile(r"(?<=: )-?\d+(\.\d+)?(e[+-]?\d+)?(?=[,}\s])")
KEY = re.compile(r"(?<=[\s{])[a-z][a-z_0-9]{3,}(?=:\s)")
JUNK = (
    "0", "-1", "null", "true", "[]", "{}", "''", "1e999", ".inf", ".nan", "-0.0", "1e-300", "1000000000000000000000",
    "9" * 5000, "0x10", "1_0", "1,5", "x", "[1]", "{a: 1}", "-.5", "+1",
)  # fmt: skip
FACTORS = (1e3, 1e6, 1e9, 1e12, 1e-3, -1.0, 10.0, 0.5, 2.0)

Change = Callable[[str, random.Random], str | bytes]


def _number(text: str, rng: random.Random, new: Callable[[str], str]) -> str:
    """The text with one of its numbers replaced; prose is left alone."""
    numbers = [m for m in NUMBER.finditer(text) if '"' not in _line(text, m.start())]
    hit = rng.choice(numbers)
    return text[: hit.start()] + new(hit[0]) + text[hit.end() :]


def _line(text: str, index: int) -> str:
    begin = text.rfind("\n", 0, index) + 1
    end = text.find("\n", index)
    return text[begin : len(text) if end < 0 else end]


def _scaled(number: str, factor: float) -> str:
    value = float(number) * factor
    return repr(value) if "." in number or "e" in number else str(round(value))


def _at_a_line(text: str, rng: random.Random, inserted: str) -> str:
    lines = text.splitlines(keepends=True)
    index = rng.randint(1, len(lines))
    return "".join([*lines[:index], inserted, *lines[index:]])


def _twice(text: str, rng: random.Random) -> str:
    top = [line for line in text.splitlines(keepends=True) if re.match(r"[a-z_0-9]+: \S", line)]
    return text + rng.choice(top)


def _swapped(text: str, rng: random.Random) -> str:
    hit = rng.choice(list(KEY.finditer(text)))
    key = hit[0]
    index = rng.randrange(len(key) - 1)
    return text[: hit.start() + index] + key[index + 1] + key[index] + text[hit.start() + index + 2 :]


def _bytes_inside(text: str, rng: random.Random, inserted: bytes) -> bytes:
    data = text.encode()
    index = rng.randrange(len(data))
    return data[:index] + inserted + data[index:]


def _without_a_line(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    del lines[rng.randrange(1, len(lines))]
    return "".join(lines)


SURE: dict[str, Change] = {
    "an unknown key": lambda t, r: t + "surprise: 1\n",
    "text for a number": lambda t, r: _number(t, r, lambda n: "many"),
    "a unit behind a number": lambda t, r: _number(t, r, lambda n: n + r.choice(("GB", " s", "ms", "%", "k"))),
    "a list for a number": lambda t, r: _number(t, r, lambda n: f"[{n}, {n}]"),
    "a key twice": _twice,
    "a tab for indentation": lambda t, r: t + "surprise:\n\tx: 1\n",
    "conflict markers": lambda t, r: _at_a_line(t, r, "<<<<<<< HEAD\n") + "=======\n>>>>>>> theirs\n",
    "a tag": lambda t, r: t + "surprise: !!python/object/apply:os.system [ls]\n",
    "an anchor": lambda t, r: t + "surprise: &a [*a]\n",
    "deep nesting": lambda t, r: t + "surprise: " + "[" * 20_000 + "\n",
    "two documents": lambda t, r: t + "---\nsurprise: 1\n",
    "another mark": lambda t, r: re.sub(r"(?m)^(rlplan\w*):", r"\1s:", t, count=1),
    "another version": lambda t, r: re.sub(r"(?m)^(rlplan\w*): 1", r"\1: 7", t, count=1),
    "a value of a megabyte": lambda t, r: t + "surprise: " + "a" * 2**20 + "\n",
    "no UTF-8": lambda t, r: _bytes_inside(t, r, b"\xff\xfe"),
    "UTF-16": lambda t, r: t.encode("utf-16"),
    "latin-1": lambda t, r: (t + "surprise: \xe9\n").encode("latin-1"),
    "a null character": lambda t, r: _bytes_inside(t, r, b"\0"),
    "an empty file": lambda t, r: "",
    "only a comment": lambda t, r: "# later\n",
    "JSON that is no mapping": lambda t, r: '["rlplan"]\n',
    "a picture": lambda t, r: b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40,
}
"""Changes that certainly make the document wrong."""

MAYBE: dict[str, Change] = {
    "another number": lambda t, r: _number(t, r, lambda n: _scaled(n, r.choice(FACTORS))),
    "junk for a number": lambda t, r: _number(t, r, lambda n: r.choice(JUNK)),
    "a misspelt key": _swapped,
    "a line that is missing": _without_a_line,
    "a file that ends too early": lambda t, r: t[: r.randrange(len(t))],
    "a byte order mark and CRLF": lambda t, r: b"\xef\xbb\xbf" + t.replace("\n", "\r\n").encode(),
    "noise": lambda t, r: _bytes_inside(t, r, bytes(r.randrange(32, 127) for _ in range(3))),
}
"""Changes after which the document may still be valid."""


def document_mistakes(rng: random.Random) -> Iterator[Mistake]:
    """Yield mistakes in documents, without end; values are changed more often than syntax is broken."""
    while True:
        name = rng.choice(list(READERS))
        fault, change = rng.choice(list(rng.choice((SURE, MAYBE, MAYBE)).items()))
        yield spoilt(name, fault, change, rng.choice(READERS[name]), rng.randrange(2**31))


def spoilt(name: str, fault: str, change: Change, command: tuple[str, ...], seed: int) -> Mistake:
    """The mistake that changes the document `name` (random numbers from `seed`) and runs `command`."""

    def spoil(folder: Path) -> None:
        path = folder / name
        new = change(path.read_text(encoding="utf-8"), random.Random(seed))
        path.write_bytes(new.encode() if isinstance(new, str) else new)

    return Mistake(f"{name}: {fault}", command, fault in SURE, spoil)
