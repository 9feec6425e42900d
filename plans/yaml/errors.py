"""The errors that a command reports with a message and an exit code, and not as a crash; all are a `RlplanError`.

`InputError` is one line that names file, line, what is wrong and what to do; the CLI prints it and exits with 2. If a
document has several faults, the first error holds the others, and the CLI prints a line for each.
`Infeasible` says that the inputs are valid and no plan satisfies them; the CLI exits with 3.
`RunFailed` says that plan and inputs are valid and the run failed on its machines; the CLI exits with 1.
This module imports nothing else of rlplan, so that a command can catch these errors before it loads heavy modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


class RlplanError(Exception):
    """An error that rlplan reports: what it was given, or what became of a run; never a fault of its own code."""

    exit_code: ClassVar[int] = 1
    """With which the command line ends."""

    def as_dict(self) -> dict[str, Any]:
        """The error as data: the name of its class, its exit code, and file, line and message of each fault; file and
        line are None where no file, or no single line of it, is at fault."""
        error = next(known.__name__ for known in type(self).__mro__ if known.__module__ == __name__)
        faults = [{"file": file, "line": line, "message": message} for file, line, message in self._faults()]
        return {"error": error, "exit_code": self.exit_code, "faults": faults}

    def lines(self) -> list[str]:
        """A line for each fault."""
        return str(self).splitlines() or [""]

    def _faults(self) -> list[tuple[str | None, int | None, str]]:
        return [(None, None, line) for line in self.lines()]


class InputError(RlplanError, ValueError):
    """The user's input is wrong. `str()` is the whole line: `FILE:LINE: message`.

    Args:
        message: what is wrong and what to do, on one line, without file and line number.
        path: the file as the user named it; None if the fault is in no file (a command line option).
        line: line in that file, counted from 1; None if no single line is wrong (a missing file).
        others: further errors that were found together with this one, in the order in which they are printed.
    """

    exit_code = 2

    def __init__(
        self,
        message: str,
        path: str | None = None,
        line: int | None = None,
        others: Sequence[InputError] = (),
    ) -> None:
        assert line is None or path is not None, "a line number without a file"
        # A value quoted from the user's file may hold line breaks; the message must be one line.
        self.message = " ".join(message.split())
        self.path = path
        self.line = line
        # Flat: an error in `others` may itself have others.
        self.others: tuple[InputError, ...] = tuple(single for error in others for single in error.each())
        shown = None if path is None else path.replace("\n", "\\n").replace("\r", "\\r")
        place = "" if shown is None else f"{shown}: " if line is None else f"{shown}:{line}: "
        super().__init__(place + self.message)

    @property
    def file(self) -> str | None:
        """`path`, by the name that a Finding has for it."""
        return self.path

    def each(self) -> tuple[InputError, ...]:
        """This error without its others, then each of the others."""
        return (InputError(self.message, self.path, self.line) if self.others else self, *self.others)

    def lines(self) -> list[str]:
        """A line for each error, this one first."""
        return [str(error) for error in (self, *self.others)]

    def _faults(self) -> list[tuple[str | None, int | None, str]]:
        return [(error.path, error.line, error.message) for error in self.each()]

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str | None, int | None, tuple[InputError, ...]]]:
        # Exceptions pickle by `args`, which here is the whole line. Without this method, an error from a Ray worker
        # would have file and line number twice.
        return (InputError, (self.message, self.path, self.line, self.others))


class ErrorCollector:
    """Collects the InputErrors of several reads, so that the user sees all of them at once."""

    def __init__(self) -> None:
        self.errors: list[InputError] = []

    def try_read(self, read: Callable[[], T]) -> T | None:
        """The result of `read`; if `read` raises InputError, the error is collected and the result is None."""
        try:
            return read()
        except InputError as error:
            self.errors.append(error)
            return None

    def raise_any(self) -> None:
        """Raise one InputError with all collected errors, if there are any."""
        if self.errors:
            raise joined(self.errors)


def joined(errors: Sequence[InputError]) -> InputError:
    """One error that holds all `errors` (at least one); each is printed on its own line."""
    assert errors, "nothing is wrong"
    first, *others = (single for error in errors for single in error.each())
    return InputError(first.message, first.path, first.line, others)


class Infeasible(RlplanError):
    """No plan satisfies the constraints. The message names the binding constraint and how to relax it."""

    exit_code = 3


class RunFailed(RlplanError, RuntimeError):
    """The run cannot continue. The message names the process that it waited for or that died."""
