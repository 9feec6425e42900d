"""What a rule finds: a Fault at a location in a document, and a Finding, which adds file and line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ..yaml.errors import InputError
from ..yaml.yaml_doc import Document, Loc
from .rules import RULES


@dataclass(frozen=True, slots=True)
class DataRow:
    """The row that a fault of a job's data is about.

    Attributes:
        file: absolute path of the data file.
        line: counted from 1; in Parquet the number of the row.
        id: None where the row has none that can be read.
    """

    file: str
    line: int
    id: str | None


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at a location of a document.

    Attributes:
        rule: the name of the rule in `rules.RULES`.
        location: path of keys and indices.
        message: what is wrong.
        remedy: what to do; may be empty.
        row: of the data file, where one is at fault.
    """

    rule: str
    location: Loc
    message: str
    remedy: str = ""
    row: DataRow | None = None

    def __post_init__(self) -> None:
        assert self.rule in RULES, f"rule '{self.rule}' is not in the catalogue"

    @classmethod
    def of(cls, rule: str, location: Loc, text: str) -> Fault:
        """The fault that one line tells: behind the first semicolon it says what to do."""
        message, _, remedy = text.partition("; ")
        return cls(rule, location, message, remedy)

    @property
    def key(self) -> str:
        """The location as a dotted key."""
        return ".".join(str(part) for part in self.location)

    @property
    def text(self) -> str:
        """What is wrong and what to do, without the location."""
        return f"{self.message}; {self.remedy}" if self.remedy else self.message

    @property
    def noted(self) -> str:
        """The fault on one line: rule, location, what is wrong and what to do."""
        return f"[{self.rule}] {self.key}: {self.text}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault in a file.

    Attributes:
        rule: the name of the rule in `rules.RULES`.
        file: as the user named it.
        line: counted from 1; None if the fault has no line (a file that cannot be read).
        key: dotted; empty for the whole document.
        message, remedy: what is wrong, and what to do (may be empty).
        row: of the data file that the document names, where one is at fault.
    """

    rule: str
    file: str
    line: int | None
    key: str
    message: str
    remedy: str = ""
    row: DataRow | None = None

    @property
    def place(self) -> tuple[str, int | None]:
        """(file, line) of what is to be mended: the data's row, or the document."""
        return (self.file, self.line) if self.row is None else (self.row.file, self.row.line)

    @property
    def bad_input(self) -> bool:
        """Whether the file is not a valid document, so that no other rule could check it."""
        return RULES[self.rule].bad_input

    @property
    def warning(self) -> bool:
        """Whether the finding is only a warning: the plan can be run as it is."""
        return RULES[self.rule].warning

    @property
    def text(self) -> str:
        """Key, message and remedy on one line, without file and line number."""
        text = f"{self.message}; {self.remedy}" if self.remedy else self.message
        return text if not self.key or f"'{self.key}'" in self.message else f"{self.key}: {text}"

    @property
    def noted(self) -> str:
        """The finding on one line, with its place and its rule's name."""
        return f"{self.file}{'' if self.line is None else f':{self.line}'}: [{self.rule}] {self.text}"

    def data(self) -> dict[str, Any]:
        """The finding as a JSON object, without the file."""
        data: dict[str, Any] = {"rule": self.rule, "line": self.line, "key": self.key, "message": self.message}
        data |= {"warning": True} if self.warning else {}
        data |= {"row": asdict(self.row)} if self.row is not None else {}
        return {**data, "remedy": self.remedy} if self.remedy else data


def located(faults: Iterable[Fault], file: str, document: Document) -> list[Finding]:
    """The faults as findings: with `file`, and their lines in `document`."""
    return [
        Finding(
            fault.rule,
            file,
            # A key that is not in the text has the line of the mapping that should hold it.
            min(document.line_of(fault.location), document.last_line),
            fault.key,
            _one_line(fault.message),
            _one_line(fault.remedy),
            fault.row,
        )
        for fault in faults
    ]


def finding_of(rule: str, error: InputError, file: str) -> Finding:
    """The finding for an InputError about `file`; the text after the first semicolon is the remedy."""
    message, _, remedy = error.message.partition("; ")
    line = error.line if error.path == file else None
    return Finding(rule, file, line, "", message, remedy)


def _one_line(text: str) -> str:
    return " ".join(text.split())
