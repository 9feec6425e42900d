"""What a rule finds: a Fault at a location in a document, and a Finding, which adds file and line.

Findings are also written in the formats of other tools: GitHub workflow commands, and SARIF 2.1.0 for code scanning."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ... import __version__
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


SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def annotation(finding: Finding) -> str:
    """Return a finding as a workflow command of GitHub Actions, which shows it beside its line in a pull request.

    File paths are relative to the root of the repository. Text is escaped as @actions/core does (toolkit,
    packages/core/src/command.ts).
    """
    file, line = finding.place
    place = {"file": _from_root(file), "line": str(line or 1)}
    properties = {**place, "title": f"rlplan {finding.rule}"}
    listed = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in properties.items())
    return f"::{'warning' if finding.warning else 'error'} {listed}::{_escaped(finding.text)}"


def sarif(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return findings as a SARIF log of one run, with the rules that they name; paths relative to the repository."""
    names = list(dict.fromkeys(finding.rule for finding in findings))
    rules = [{"id": name, "shortDescription": {"text": RULES[name].finds}} for name in names]
    results = [
        {
            "ruleId": finding.rule,
            "ruleIndex": names.index(finding.rule),
            "level": "warning" if finding.warning else "error",
            "message": {"text": finding.text},
            "locations": [_location(*finding.place)],
            # The document that names the data whose row is at fault.
            **({} if finding.row is None else {"relatedLocations": [_location(finding.file, finding.line)]}),
        }
        for finding in findings
    ]
    driver = {"name": "rlplan", "version": __version__, "rules": rules}
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _location(file: str, line: int | None) -> dict[str, Any]:
    artifact = {"uri": quote(Path(_from_root(file)).as_posix())}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": line or 1}}}


def is_sarif(path: Path) -> bool:
    """Return whether the file at `path` is a SARIF log, so that a new log may replace it."""
    return path.is_file() and SARIF_SCHEMA.encode() in path.read_bytes()[:200]


def _from_root(file: str) -> str:
    """The file's path relative to the repository's root."""
    path = os.path.abspath(file)  # noqa: PTH100 (links are the repository's)
    return os.path.relpath(path, _root(path))


def _root(path: str) -> str:
    """The folder that GitHub counts paths from: GitHub's workspace, else the nearest parent of the current folder with
    .git, else the current folder. A folder is skipped if the file is not below it."""
    current = Path.cwd()
    repositories = [str(folder) for folder in (current, *current.parents) if (folder / ".git").exists()][:1]
    for root in (os.environ.get("GITHUB_WORKSPACE", ""), *repositories):
        if root and Path(path).is_relative_to(root):
            return root
    return str(current)


def _escaped(text: str, more_chars: str = "") -> str:
    for char in "%\r\n" + more_chars:  # the percent sign first: the other escapes contain it
        text = text.replace(char, f"%{ord(char):02X}")
    return text
