"""A party's process as the driver sees it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Party:
    """A process of a role, begun with the words of `within` before its own (as `ip netns exec NAME`)."""

    def __init__(self, role: str, name: str, within: Sequence[str] = ()) -> None:
        self.name = name
        command = [*within, sys.executable, "-m", f"{__package__}.party", role]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)

    def begin(self, method: str, *arguments: Any) -> None:
        """Begin a call; `answer` waits for it."""
        assert self._process.stdin is not None
        pickle.dump((method, arguments), self._process.stdin)
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What the call that was begun last returned. Raises RuntimeError with the words of an error of the party."""
        assert self._process.stdout is not None
        try:
            ok, value = pickle.load(self._process.stdout)
        except EOFError:
            raise RuntimeError(f"{self.name} has ended") from None
        if not ok:
            raise RuntimeError(f"{self.name}: {value}")
        return value

    def call(self, method: str, *arguments: Any) -> Any:
        """A call and its answer."""
        self.begin(method, *arguments)
        return self.answer()

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def all_of(parties: Sequence[tuple[Party, tuple[Any, ...]]]) -> list[Any]:
    """The answers of calls to several parties at once; each is of a method's name and its arguments."""
    for party, call in parties:
        party.begin(*call)
    return [party.answer() for party, _ in parties]
