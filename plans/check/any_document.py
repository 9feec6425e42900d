"""Read any document of rlplan's, with every fault of its schema as a finding of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import BaseModel, ValidationError

from ..schema.cluster import Cluster
from ..schema.groups_plan import GroupsPlan
from ..schema.job import Job
from ..schema.plan import Plan
from ..schema.policy import Policy
from ..schema.workload import Workload
from ..yaml.errors import InputError
from ..yaml.fault_lines import Explained, explain_all
from ..yaml.yaml_doc import Document, parse
from ..yaml.yaml_io import read_text
from .finding import Finding, of_error
from .rules import RULES

MODELS: Mapping[str, type[BaseModel]] = {
    "rlplan": Plan,
    "rlplan_groups": GroupsPlan,
    "rlplan_cluster": Cluster,
    "rlplan_job": Job,
    "rlplan_workload": Workload,
    "rlplan_policy": Policy,
}
"""By mark; the profile's model is the planner's to add."""

_RULE_OF_TYPE = {
    "extra_forbidden": "unknown-key",
    "missing": "missing-key",
    "literal_error": "wrong-choice",
    "string_pattern_mismatch": "wrong-form",
    "string_too_short": "wrong-form",
    "string_too_long": "wrong-form",
    "too_short": "wrong-length",
    "too_long": "wrong-length",
    "greater_than": "out-of-range",
    "greater_than_equal": "out-of-range",
    "less_than": "out-of-range",
    "less_than_equal": "out-of-range",
    "finite_number": "out-of-range",
}
"""Rules by pydantic's type of error; what is not here is a wrong type."""


@dataclass(frozen=True)
class ReadDocument:
    """A file that was read.

    Attributes:
        path: as the user named it.
        mark: `rlplan`, `rlplan_job`, …; None where it could not be told.
        document: its text, parsed; None where that failed.
        value: the model; None where its schema has faults.
        findings: these faults.
    """

    path: str
    mark: str | None
    document: Document | None
    value: BaseModel | None
    findings: tuple[Finding, ...] = ()


def read_document(path: str, models: Mapping[str, type[BaseModel]] = MODELS) -> ReadDocument:
    """Read the file at `path` as whatever it is marked as. Raises nothing for what a file may hold."""
    try:
        if not path:
            raise InputError("an empty word is no file; name the file")
        text = read_text(path)
    except InputError as error:
        return ReadDocument(path, None, None, None, (_unreadable(error, path),))
    try:
        document = parse(text, path)
    except InputError as error:
        found = of_error("not-yaml", error, path) if text.strip() else _unreadable(error, path)
        return ReadDocument(path, None, None, None, (found,))
    value = document.value
    if not isinstance(value, dict):
        found = Finding("wrong-document", path, 1, "", "must be a mapping of keys to values at the top")
        return ReadDocument(path, None, document, None, (found,))
    marks = [key for key in value if key in models]
    if not marks:
        return ReadDocument(path, None, document, None, (_unmarked(path, document, models),))
    mark = marks[0]
    try:
        return ReadDocument(path, mark, document, models[mark].model_validate(value))
    except ValidationError as error:
        findings = [_finding(path, fault) for fault in explain_all(error, document, models[mark])]
        if mark == "rlplan_groups" and not any(found.rule == "job-in-two-groups" for found in findings):
            findings[:0] = _shared_jobs(path, document)
        return ReadDocument(path, mark, document, None, tuple(findings))


def _shared_jobs(path: str, document: Document) -> list[Finding]:
    """Jobs in two groups: a plan whose groups have faults of their own does not come to look at all of them."""
    groups, seen, found = document.value.get("groups"), dict[str, str](), list[Finding]()
    for key, group in groups.items() if isinstance(groups, dict) else ():
        jobs = group.get("jobs") if isinstance(group, dict) else None
        for name in jobs if isinstance(jobs, dict) else ():
            if name in seen:
                at = ("groups", key, "jobs", name)
                what = f"'{name}' is also in group '{seen[name]}'"
                found.append(Finding("job-in-two-groups", path, document.line_of(at), ".".join(at), what))
            seen.setdefault(name, key)
    return found


_REMEDIES = {
    "no such file": "check the path; it is relative to the current folder",
    "is not UTF-8 text": "save it as UTF-8, or name another file",
    "the file is empty": "write the document, or remove the file",
}


def _unreadable(error: InputError, path: str) -> Finding:
    found = of_error("unreadable", error, path)
    return found if found.remedy else replace(found, remedy=_REMEDIES.get(found.message, "make the file readable"))


def _unmarked(path: str, document: Document, models: Mapping[str, type[BaseModel]]) -> Finding:
    strange = next((key for key in document.value if key.startswith("rlplan")), None)
    what = "is not marked as a document of rlplan's" if strange is None else f"'{strange}' marks no document"
    line = 1 if strange is None else document.lines[(strange,)]
    return Finding("wrong-document", path, line, "", what, f"its first key must be one of {', '.join(models)}")


def _finding(path: str, fault: Explained) -> Finding:
    rule = fault.rule if fault.rule in RULES else _RULE_OF_TYPE.get(fault.rule, "wrong-type")
    message, _, remedy = " ".join(fault.message.split()).partition("; ")
    key = ".".join(str(part) for part in fault.loc if part != "[key]")
    # The message names the key itself, in words that fit the fault.
    return Finding(rule, path, fault.line, " ".join(key.split()), message.removeprefix(f"{key}: "), remedy)
