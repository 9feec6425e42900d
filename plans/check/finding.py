"""What a rule finds: a fault at a place in a document, and the same with file and line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..yaml.errors import InputError
from ..yaml.yaml_doc import Document, Loc
from .rules import RULES


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at `loc` of a document.

    Attributes:
        rule: its name in `rules.RULES`.
        loc: path of keys and indices.
        what: what is wrong.
        remedy: what to do; empty where that is plain.
    """

    rule: str
    loc: Loc
    what: str
    remedy: str = ""

    def __post_init__(self) -> None:
        assert self.rule in RULES, f"rule '{self.rule}' is not in the catalogue"

    @property
    def key(self) -> str:
        """The dotted key."""
        return ".".join(str(part) for part in self.loc)

    @property
    def text(self) -> str:
        """What is wrong and what to do, without the place."""
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault in a file.

    Attributes:
        rule: its name in `rules.RULES`.
        file: as the user named it.
        line: counted from 1; None where no line is at fault (a file that cannot be read).
        key: dotted; empty for the whole document.
        message, remedy: what is wrong, and what to do (may be empty).
    """

    rule: str
    file: str
    line: int | None
    key: str
    message: str
    remedy: str = ""

    @property
    def bad_input(self) -> bool:
        """Whether the file is no document at all, so that the rest of it could not be looked at."""
        return RULES[self.rule].bad_input

    @property
    def warning(self) -> bool:
        """Whether the plan can be run as it is."""
        return RULES[self.rule].warning

    @property
    def text(self) -> str:
        """All of it but the place, on one line."""
        told = f"{self.message}; {self.remedy}" if self.remedy else self.message
        return told if not self.key or f"'{self.key}'" in self.message else f"{self.key}: {told}"

    def data(self) -> dict[str, Any]:
        """As JSON has it, the file left out."""
        found: dict[str, Any] = {"rule": self.rule, "line": self.line, "key": self.key, "message": self.message}
        found |= {"warning": True} if self.warning else {}
        return {**found, "remedy": self.remedy} if self.remedy else found


def located(faults: Iterable[Fault], file: str, document: Document) -> list[Finding]:
    """Faults with the lines of the document that they are in."""
    return [
        Finding(
            fault.rule,
            file,
            # What a flow mapping leaves out, or a truncated file, has the line of what encloses it.
            min(document.line_of(fault.loc), document.last_line),
            fault.key,
            _one_line(fault.what),
            _one_line(fault.remedy),
        )
        for fault in faults
    ]


def of_error(rule: str, error: InputError, file: str) -> Finding:
    """An InputError about `file` as a finding; what it says after its first semicolon is its remedy."""
    message, _, remedy = error.message.partition("; ")
    line = error.line if error.path == file else None
    return Finding(rule, file, line, "", message, remedy)


def _one_line(text: str) -> str:
    return " ".join(text.split())
