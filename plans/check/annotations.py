"""Findings in the formats of other tools: GitHub workflow commands, and SARIF 2.1.0 for code scanning."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ... import __version__
from .finding import Finding
from .rules import RULES

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
