"""The errors that a command reports as an answer and not as a crash.

`InputError` is one line that names file, line, what is wrong and what to do; the CLI prints it and exits with 2.
`Infeasible` says that the inputs are sound and no plan satisfies them; the CLI exits with 3.
`RunFailed` says that plan and inputs are sound and the machines failed them; the CLI exits with 1.
This module imports nothing, so that a command can catch these before it has loaded anything heavy.
"""

from __future__ import annotations


class InputError(ValueError):
    """Something that the user wrote is wrong. `str()` is the whole line: `FILE:LINE: message`.

    Args:
        message: what is wrong and what to do about it, on one line, without the place.
        path: the file as the user named it; None when the fault is in no file (a command line option).
        line: line in that file, counted from 1; None when no single line is at fault (a missing file).
    """

    def __init__(self, message: str, path: str | None = None, line: int | None = None) -> None:
        assert line is None or path is not None, "a line number without a file"
        # A value quoted from the user's file may hold line breaks; the promise is one line.
        self.message = " ".join(message.split())
        self.path = path
        self.line = line
        shown = None if path is None else path.replace("\n", "\\n").replace("\r", "\\r")
        place = "" if shown is None else f"{shown}: " if line is None else f"{shown}:{line}: "
        super().__init__(place + self.message)

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str | None, int | None]]:
        # Exceptions pickle by `args`, which holds the finished line here; without this a Ray worker's error would
        # come back with its place inside the message.
        return (InputError, (self.message, self.path, self.line))


class Infeasible(Exception):
    """No plan satisfies the constraints. The message names the constraint that binds and what would relax it."""


class RunFailed(RuntimeError):
    """The run cannot go on. The message names whom it waited for or what died."""
