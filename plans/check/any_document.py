"""Read a document of any kind; every fault of its schema is a finding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import BaseModel, ValidationError

from ..schema.cluster import Cluster
from ..schema.groups_plan import GroupsPlan
from ..schema.job import Job
from ..schema.plan import Plan
from ..schema.site_rules import SiteRules
from ..schema.workload import Workload
from ..yaml.errors import InputError
from ..yaml.fault_lines import ExplainedFault, explain_all
from ..yaml.yaml_doc import Document, parse
from ..yaml.yaml_io import read_text
from .finding import Finding, finding_of
from .rules import RULES

MODELS: Mapping[str, type[BaseModel]] = {
    "rlplan": Plan,
    "rlplan_groups": GroupsPlan,
    "rlplan_cluster": Cluster,
    "rlplan_job": Job,
    "rlplan_workload": Workload,
    "rlplan_policy": SiteRules,
}
"""Models by the mark of their documents. The profile's model is added in profiles/document_models.py."""

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
"""Rules by pydantic's type of error; every other type of error is `wrong-type`."""


@dataclass(frozen=True)
class ReadDocument:
    """The result of reading a file.

    Attributes:
        path: as the user named it.
        mark: the key that names the kind of document: `rlplan`, `rlplan_job`, …; None if the file has no such key.
        document: its text, parsed; None if the text is not valid YAML.
        value: the model; None if the document has faults.
        findings: these faults.
    """

    path: str
    mark: str | None
    document: Document | None
    value: BaseModel | None
    findings: tuple[Finding, ...] = ()


def read_document(path: str, models: Mapping[str, type[BaseModel]] = MODELS) -> ReadDocument:
    """Read the file at `path` as the kind of document that its mark names. Raises nothing, whatever the file holds."""
    try:
        if not path:
            raise InputError("the file name is empty; name the file")
        text = read_text(path)
    except InputError as error:
        return ReadDocument(path, None, None, None, (_unreadable(error, path),))
    try:
        document = parse(text, path)
    except InputError as error:
        broken = [finding_of("not-yaml", each, path) for each in error.each()]
        return ReadDocument(path, None, None, None, tuple(broken) if text.strip() else (_unreadable(error, path),))
    value = document.value
    if not isinstance(value, dict):
        finding = Finding("wrong-document", path, 1, "", "must be a mapping of keys to values at the top")
        return ReadDocument(path, None, document, None, (finding,))
    marks = [key for key in value if key in models]
    if not marks:
        return ReadDocument(path, None, document, None, (_unmarked(path, document, models),))
    mark = marks[0]
    try:
        return ReadDocument(path, mark, document, models[mark].model_validate(value))
    except ValidationError as error:
        findings = [_finding(path, fault) for fault in explain_all(error, document, models[mark])]
        if mark == "rlplan_groups" and not any(finding.rule == "job-in-two-groups" for finding in findings):
            findings[:0] = _shared_jobs(path, document)
        return ReadDocument(path, mark, document, None, tuple(findings))


def _shared_jobs(path: str, document: Document) -> list[Finding]:
    """Findings for jobs in two groups. The model checks this only after each group is valid, so it is checked here."""
    groups, group_of, findings = document.value.get("groups"), dict[str, str](), list[Finding]()
    for key, group in groups.items() if isinstance(groups, dict) else ():
        jobs = group.get("jobs") if isinstance(group, dict) else None
        for name in jobs if isinstance(jobs, dict) else ():
            if name in group_of:
                location = ("groups", key, "jobs", name)
                message = f"'{name}' is also in group '{group_of[name]}'"
                findings.append(
                    Finding("job-in-two-groups", path, document.line_of(location), ".".join(location), message)
                )
            group_of.setdefault(name, key)
    return findings


_REMEDIES = {
    "no such file": "check the path; it is relative to the current folder",
    "the file is empty": "write the document, or remove the file",
}


def _unreadable(error: InputError, path: str) -> Finding:
    """The error as a finding of `unreadable`, always with a remedy."""
    finding = finding_of("unreadable", error, path)
    return (
        finding if finding.remedy else replace(finding, remedy=_REMEDIES.get(finding.message, "make the file readable"))
    )


def _unmarked(path: str, document: Document, models: Mapping[str, type[BaseModel]]) -> Finding:
    """The finding for a document without a mark, or with an unknown mark."""
    mark = next((key for key in document.value if key.startswith("rlplan")), None)
    message = "has no mark of a document of rlplan" if mark is None else f"'{mark}' is not the mark of a document"
    line = 1 if mark is None else document.lines[(mark,)]
    return Finding("wrong-document", path, line, "", message, f"its first key must be one of {', '.join(models)}")


def _finding(path: str, fault: ExplainedFault) -> Finding:
    rule = fault.rule if fault.rule in RULES else _RULE_OF_TYPE.get(fault.rule, "wrong-type")
    message, _, remedy = " ".join(fault.message.split()).partition("; ")
    key = ".".join(str(part) for part in fault.location if part != "[key]")
    # The finding has the key, so the message need not begin with it.
    return Finding(rule, path, fault.line, " ".join(key.split()), message.removeprefix(f"{key}: "), remedy)
