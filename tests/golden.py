"""Results that stand in a file beside their test, whole: a changed value, sign, word or order is a changed line there.

`RLPLAN_WRITE_GOLDEN=1 pytest FILE` writes the files anew; their diff is then read like one of code.
"""

import json
import os
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Any


def same_as_golden(lines: list[str], file: Path) -> None:
    """Assert that a file in a folder `golden` holds these lines."""
    text = "".join(f"{line.rstrip()}\n" for line in lines)
    if os.environ.get("RLPLAN_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    was = file.read_text(encoding="utf-8")
    assert text == was, "\n".join(unified_diff(was.splitlines(), text.splitlines(), str(file), "now", n=0, lineterm=""))


def cases_in(file: Path) -> list[Any]:
    """The cases of a golden file in which each stands, as JSON on a line, above what comes of it: a new one is written
    there, and what comes of it by RLPLAN_WRITE_GOLDEN."""
    cases = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line[:1] in ("{", "[")]
    assert cases, f"{file} has no cases"
    return cases


def compact(value: Any) -> str:
    """A value as JSON on one line; numbers to nine digits, since machines may differ in the last ones."""
    return json.dumps(_rounded(value), ensure_ascii=False, separators=(", ", ": "))


def flat(value: Mapping[str, Any], width: int = 150, path: str = "") -> Iterator[str]:
    """Lines `dotted.path: value` of a mapping; what is longer than `width` is taken apart."""
    for key, part in value.items():
        text = f"{path}{key}: {compact(part)}"
        if len(text) > width and isinstance(part, Mapping):
            yield from flat(part, width, f"{path}{key}.")
        elif len(text) > width and isinstance(part, list) and part and isinstance(part[0], Mapping):
            yield from flat(dict(enumerate(part)), width, f"{path}{key}.")
        else:
            yield text


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, Mapping):
        return {str(key): _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list | tuple) else value
