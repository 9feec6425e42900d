"""The result of the GPU check as it grows: fragments, each told as one JSON line at once, which together are all of it.

Invariants:
- whenever the check is cut, the lines that were told hold all that was measured: merged in their order they are the
  result;
- a part begins only while as many seconds are left as it takes at least.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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


def run_parts(
    parts: Mapping[str, Callable[[], object]],
    least_s: Mapping[str, float],
    left_s: Callable[[], float],
    tell: Callable[[Fragment], None],
) -> None:
    """Run the parts, in order; what is skipped or fails is told with the reason, and the next one goes on.

    `least_s`: by part, the seconds without which it is not begun; `left_s` says how many are left.
    """
    for name, work in parts.items():
        if (left := left_s()) < least_s[name]:
            why = f"takes at least {least_s[name]:.0f} s, and {max(left, 0.0):.0f} of --seconds are left"
            tell({"skipped": {name: why}})
            continue
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other parts are worth having
            tell({"failed": {name: f"{type(error).__name__}: {error}"}})
