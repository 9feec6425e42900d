"""The result of the GPU check as it grows: fragments, each told as one JSON line at once, which together are all of it.

Invariants:
- whenever the check is cut, the lines that were told hold all that was measured: merged in their order they are the
  result;
- a part begins only while as many seconds are left as it takes at least.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .command_parts import Fragment


def merged(result: Mapping[str, Any], fragment: Mapping[str, Any]) -> Fragment:
    """A result with a fragment: mappings are merged key by key, of anything else the fragment's value counts."""
    found = dict(result)
    for key, value in fragment.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = merged(found[key], value) if both else value
    return found


class Told:
    """Tells fragments, each as a line of `print_line` and of a file, with the seconds since the start under `at_s`."""

    def __init__(self, path: Path, print_line: Callable[[str], None], began_s: float) -> None:
        self._path, self._print, self._began_s = path, print_line, began_s
        self.result: Fragment = {}

    def tell(self, fragment: Fragment) -> None:
        """Add a fragment to the result."""
        self.result = merged(self.result, fragment)
        line = json.dumps(fragment | {"at_s": round(time.monotonic() - self._began_s, 1)})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._print(line)


class Section(NamedTuple):
    """A part of the check: its name, the seconds without which it is not begun, and what runs it."""

    name: str
    least_s: float
    run: Callable[[], object]


def run_sections(
    sections: Sequence[Section], wanted: Collection[str], left_s: Callable[[], float], tell: Callable[[Fragment], None]
) -> None:
    """Run the wanted sections, in order; what is skipped or fails is told with the reason, and the next one goes on."""
    for section in sections:
        if section.name not in wanted:
            continue
        if (left := left_s()) < section.least_s:
            why = f"takes at least {section.least_s:.0f} s, and {max(left, 0.0):.0f} of --seconds are left"
            tell({"skipped": {section.name: why}})
            continue
        try:
            section.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other parts are worth having
            tell({"failed": {section.name: f"{type(error).__name__}: {error}"}})
