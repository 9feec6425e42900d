"""The errors that a command reports as an answer and not as a crash.

`InputError` is one line that names file, line, what is wrong and what to do; the CLI prints it and exits with 2. Where
one reading finds several faults, the first carries the others, and the CLI prints a line for each.
`Infeasible` says that the inputs are sound and no plan satisfies them; the CLI exits with 3.
`RunFailed` says that plan and inputs are sound and the machines failed them; the CLI exits with 1.
This module imports nothing of ours, so that a command can catch these before it has loaded anything heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class InputError(ValueError):
    """Something that the user wrote is wrong. `str()` is the whole line: `FILE:LINE: message`.

    Args:
        message: what is wrong and what to do about it, on one line, without the place.
        path: the file as the user named it; None when the fault is in no file (a command line option).
        line: line in that file, counted from 1; None when no single line is at fault (a missing file).
        others: further faults that were found in the same reading, in the order in which they are to be told.
    """

    def __init__(
        self,
        message: str,
        path: str | None = None,
        line: int | None = None,
        others: Sequence[InputError] = (),
    ) -> None:
        assert line is None or path is not None, "a line number without a file"
        # A value quoted from the user's file may hold line breaks; the promise is one line.
        self.message = " ".join(message.split())
        self.path = path
        self.line = line
        # Flat, so that whoever joins errors that were joined already loses none and nests none.
        self.others: tuple[InputError, ...] = tuple(one for error in others for one in error.each())
        shown = None if path is None else path.replace("\n", "\\n").replace("\r", "\\r")
        place = "" if shown is None else f"{shown}: " if line is None else f"{shown}:{line}: "
        super().__init__(place + self.message)

    def each(self) -> tuple[InputError, ...]:
        """This fault, without the others, and each of the others."""
        return (InputError(self.message, self.path, self.line) if self.others else self, *self.others)

    def lines(self) -> list[str]:
        """A line for each fault, this one first."""
        return [str(error) for error in (self, *self.others)]

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str | None, int | None, tuple[InputError, ...]]]:
        # Exceptions pickle by `args`, which holds the finished line here; without this a Ray worker's error would
        # come back with its place inside the message.
        return (InputError, (self.message, self.path, self.line, self.others))


class Faults:
    """Gathers the faults of several readings, so that one look mends them all."""

    def __init__(self) -> None:
        self.found: list[InputError] = []

    def of(self, read: Callable[[], T]) -> T | None:
        """What `read` gives; None, with the fault kept, where it raises InputError."""
        try:
            return read()
        except InputError as error:
            self.found.append(error)
            return None

    def raise_any(self) -> None:
        """Raise InputError with all of them, if there are any."""
        if self.found:
            raise joined(self.found)


def joined(faults: Sequence[InputError]) -> InputError:
    """Faults that were found together as one error, of which each is told on its own line; at least one."""
    assert faults, "nothing is wrong"
    first, *others = (one for fault in faults for one in fault.each())
    return InputError(first.message, first.path, first.line, others)


class Infeasible(Exception):
    """No plan satisfies the constraints. The message names the constraint that binds and what would relax it."""


class RunFailed(RuntimeError):
    """The run cannot go on. The message names whom it waited for or what died."""
