"""The checker of `rlplan check`: the findings of all rules on a file of any kind.

The schema of a document is checked first; a file that fails it is checked no further. A plan is then checked against
its inputs as they are now, against itself, its profile and the site rules of its folder. Nothing is solved or
simulated, and a fault of one file hides none of another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ...plans.check.any_document import ReadDocument, read_document
from ...plans.check.finding import Fault, Finding, located
from ...plans.check.input_rules import UNREAD_TEXT, input_path, unread_changes
from ...plans.check.policy_rules import waived
from ...plans.check.resource_rules import pools_too_large
from ...plans.facts.executable import not_executable
from ...plans.phrases.caveats import assumed_notes
from ...plans.schema.cluster import Cluster
from ...plans.schema.groups_plan import GroupsPlan
from ...plans.schema.job import Job
from ...plans.schema.plan import Plan
from ...plans.schema.policy import MISNAMED, POLICY_NAME, Policy, PolicyFile, find_policy
from ...plans.schema.sections.length_evidence import MUCH_AT_CAP
from ...plans.schema.workload import Workload
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_io import document_name
from ...profiles.document_models import ALL_MODELS
from ...profiles.profile_schema import Profile
from . import group_rules, job_rules, plan_rules, profile_rules
from .accelerator_rules import unlike_names
from .check_options import CheckOptions
from .stale_figures import without_stale


@dataclass(frozen=True)
class FileReport:
    """The findings of one file.

    Attributes:
        file: as the user named it.
        kind: plan, groups, cluster, job, profile, workload or policy; None where it could not be told.
        findings: by line.
        policy: the site rules file that it was checked against; None without one.
        summary: a line on what was checked, for a file without findings.
        broken_policy: the site rules file that should hold for it and cannot be read; None without one.
        notes: facts for a reviewer that are no faults, a line each.
        not_executable: why the executor cannot run the plan yet, a line each; it can be reviewed all the same.
    """

    file: str
    kind: str | None
    findings: tuple[Finding, ...]
    policy: str | None = None
    summary: str = ""
    broken_policy: str | None = None
    notes: tuple[str, ...] = ()
    not_executable: tuple[str, ...] = ()

    @property
    def bad_input(self) -> bool:
        """Whether the file is no document."""
        return any(finding.bad_input for finding in self.findings)


@dataclass
class Checker:
    """Checks files one by one; site rules files are read once.

    Attributes:
        now: the time that ages are counted to.
        policy: the site rules that hold for all files; None: for each file those of the nearest rlplan.policy.yaml.
        max_age_days: of profiles, in place of the site rules'; None: theirs.
    """

    now: datetime
    policy: PolicyFile | None = None
    max_age_days: float | None = None
    _policies: dict[Path, PolicyFile | FileReport] = field(default_factory=dict)

    def check(self, paths: Iterable[str]) -> list[FileReport]:
        """Reports in the order of the files, followed by those of site rules files that cannot be read."""
        reports = [self.check_file(path) for path in paths]
        named = {os.path.abspath(report.file) for report in reports}  # noqa: PTH100 (links are the user's)
        broken = [rules for rules in self._policies.values() if isinstance(rules, FileReport)]
        return reports + [report for report in broken if os.path.abspath(report.file) not in named]  # noqa: PTH100

    def check_file(self, path: str) -> FileReport:
        """The report on one file of any kind."""
        read = read_document(path, ALL_MODELS)
        kind = None if read.mark is None else document_name(ALL_MODELS[read.mark])
        if read.value is None or read.document is None:
            return FileReport(path, kind, read.findings)
        policy, broken = self._policy_for(path)
        options = CheckOptions(self.now, policy, self.max_age_days)
        faults, summary = _faults(read, options)
        allowed = policy.policy if policy else None
        # If the site rules waive an edit, the figures that the edit made stale are still findings.
        kept = without_stale([fault for fault in faults if not waived(fault.rule, allowed)])
        findings = located(kept, path, read.document)
        findings.sort(key=lambda finding: finding.line or 0)
        held = policy.path if policy else None
        cannot = tuple(not_executable(read.value.job)) if isinstance(read.value, Plan) else ()
        return FileReport(path, kind, tuple(dict.fromkeys(findings)), held, summary, broken, _notes(read), cannot)

    def findings_of(self, path: str, faults: Iterable[Fault]) -> list[Finding]:
        """Faults of the plan at `path` with changed values, as findings: by line, without those that its site rules
        waive."""
        policy, _ = self._policy_for(path)
        read = read_document(path, ALL_MODELS)
        if read.document is None:
            return list(read.findings)
        kept = (fault for fault in faults if not waived(fault.rule, policy.policy if policy else None))
        return list(dict.fromkeys(sorted(located(kept, path, read.document), key=lambda finding: finding.line or 0)))

    def _policy_for(self, path: str) -> tuple[PolicyFile | None, str | None]:
        """(the site rules that hold for a file, the path of those that should and cannot be read)."""
        if self.policy is not None:
            return self.policy, None
        place = find_policy(path)
        if place is None:
            return None, None
        if place not in self._policies:
            self._policies[place] = _read_policy(shown(place))
        rules = self._policies[place]
        return (rules, None) if isinstance(rules, PolicyFile) else (None, rules.file)


def load_policy(path: str) -> PolicyFile:
    """The site rules at `path`. Raises InputError for the first thing that is wrong with them."""
    rules = _read_policy(path)
    if isinstance(rules, PolicyFile):
        return rules
    first = rules.findings[0]
    raise InputError(first.text, path, first.line)


def shown(path: Path) -> str:
    """A path as it is shown: relative to the current folder where it is below it."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # on another drive
        return str(path)
    return str(path) if relative.startswith("..") else relative


def _read_policy(path: str) -> PolicyFile | FileReport:
    if Path(path).name == MISNAMED:
        message, remedy = f"a policy is called {POLICY_NAME}, and this file is not read", "rename it"
        return FileReport(path, "policy", (Finding("wrong-document", path, 1, "", message, remedy),))
    read = read_document(path, ALL_MODELS)
    if isinstance(read.value, Policy) and read.document is not None:
        return PolicyFile(path, read.value, read.document)
    if read.findings:
        return FileReport(path, "policy", read.findings)
    message = (
        f"is a file of kind {document_name(ALL_MODELS[read.mark])}, and a policy is needed"
        if read.mark
        else "is no policy"
    )
    return FileReport(path, "policy", (Finding("wrong-document", path, 1, "", message, "pass a rlplan.policy.yaml"),))


def _notes(read: ReadDocument) -> tuple[str, ...]:
    """Notes on a file: inputs of a plan that changed only where the solver does not read them, an edit by hand, many
    responses at the cap, keys that override the job's algorithm, and what a plan assumes."""
    job: Any = read.value
    notes: list[str] = []
    assumed = assumed_notes(job.inputs) if isinstance(job, Plan) else []
    if isinstance(job, Plan):
        notes += [f"'{path}' {UNREAD_TEXT}" for path in unread_changes(job, read.path)]
        notes += ["the decisions were edited by hand, and predicted anew by rlplan refresh"] * job.solver.refreshed
        predicted = job.predicted
        # A job that cannot be read is a finding of the plan's.
        job = read_document(str(input_path(job.inputs.job, read.path)), ALL_MODELS).value
        capped = isinstance(job, Job) and predicted.lengths_tokens[-1] >= job.rollout.max_response_tokens
        if capped and (share := predicted.share_at_longest) >= MUCH_AT_CAP:
            notes.append(f"at least {share:.0%} of the responses reach the cap (rollout.max_response_tokens)")
    overrides = job.algorithm.overrides() if isinstance(job, Job) else ()
    overridden = [f"the job overrides its algorithm: {', '.join(overrides)}"] if overrides else []
    return (*notes, *overridden, *assumed)


def _faults(read: ReadDocument, options: CheckOptions) -> tuple[list[Fault], str]:
    value: Any = read.value
    if isinstance(value, Plan):
        return plan_rules.plan_faults(value, read.path, options)
    if isinstance(value, GroupsPlan):
        return group_rules.groups_faults(value, read.path, options)
    if isinstance(value, Workload):
        return group_rules.workload_faults(value, read.path), f"{len(value.jobs)} job(s)"
    if isinstance(value, Job):
        return job_rules.job_faults(value, read.path), f"job {value.name}"
    if isinstance(value, Profile):
        return profile_rules.profile_faults(value, read.path, options), profile_rules.profile_summary(value, options)
    if isinstance(value, Cluster):
        return [*unlike_names(value), *pools_too_large(value)], f"cluster {value.name}"
    assert isinstance(value, Policy), "these are all kinds of document"
    return [], "policy"
