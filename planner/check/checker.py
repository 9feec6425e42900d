"""Every rule that holds for a file, and the findings of all of them: what `rlplan check` prints.

Of each document its schema is looked at first, and nothing else of one that has none. A plan is then held against its
inputs as they are now, whether they changed or not, against itself, its profile and the policy that holds for its
folder. Nothing is solved or simulated, and a fault of one file hides none of another.
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
from . import document_rules, group_rules, plan_rules
from .accelerator_rules import unlike_names
from .check_options import Asked
from .stale_figures import without_stale


@dataclass(frozen=True)
class FileReport:
    """What was found in a file.

    Attributes:
        file: as the user named it.
        kind: plan, groups, cluster, job, profile, workload or policy; None where it could not be told.
        findings: by line.
        policy: the policy that it was held against; None without one.
        said: a line on what was checked, for a file without findings.
        broken_policy: the policy that should hold for it and cannot be read; None without one.
        notes: what a reviewer should know and nothing is wrong with, a line each.
        not_executable: why the executor cannot run the plan yet, a line each; it can be reviewed all the same.
    """

    file: str
    kind: str | None
    findings: tuple[Finding, ...]
    policy: str | None = None
    said: str = ""
    broken_policy: str | None = None
    notes: tuple[str, ...] = ()
    not_executable: tuple[str, ...] = ()

    @property
    def bad_input(self) -> bool:
        """Whether the file is no document."""
        return any(finding.bad_input for finding in self.findings)


@dataclass
class Checker:
    """Checks files one by one; policies are read once.

    Attributes:
        now: the time that ages are counted to.
        policy: the one that holds for all files; None: for each the nearest one.
        max_age_days: of profiles, in place of the policy's; None: the policy's.
    """

    now: datetime
    policy: PolicyFile | None = None
    max_age_days: float | None = None
    _policies: dict[Path, PolicyFile | FileReport] = field(default_factory=dict)

    def check(self, paths: Iterable[str]) -> list[FileReport]:
        """Reports in the order of the files, and of policies that were found and cannot be read, behind them."""
        reports = [self.check_file(path) for path in paths]
        named = {os.path.abspath(report.file) for report in reports}  # noqa: PTH100 (links are the user's)
        broken = [found for found in self._policies.values() if isinstance(found, FileReport)]
        return reports + [found for found in broken if os.path.abspath(found.file) not in named]  # noqa: PTH100

    def check_file(self, path: str) -> FileReport:
        """One file, whatever it is."""
        read = read_document(path, ALL_MODELS)
        kind = None if read.mark is None else document_name(ALL_MODELS[read.mark])
        if read.value is None or read.document is None:
            return FileReport(path, kind, read.findings)
        policy, broken = self._policy_for(path)
        asked = Asked(self.now, policy, self.max_age_days)
        faults, said = _faults(read, asked)
        allowed = policy.policy if policy else None
        # What an edit that a policy allows makes of the figures is told all the same.
        kept = without_stale([fault for fault in faults if not waived(fault.rule, allowed)])
        found = located(kept, path, read.document)
        found.sort(key=lambda finding: finding.line or 0)
        held = policy.path if policy else None
        cannot = tuple(not_executable(read.value.job)) if isinstance(read.value, Plan) else ()
        return FileReport(path, kind, tuple(dict.fromkeys(found)), held, said, broken, _notes(read), cannot)

    def judge(self, path: str, faults: Iterable[Fault]) -> list[Finding]:
        """Faults of the plan at `path`, as it would be with other values, as findings: by line, without those that its
        policy waives."""
        policy, _ = self._policy_for(path)
        read = read_document(path, ALL_MODELS)
        if read.document is None:
            return list(read.findings)
        kept = (fault for fault in faults if not waived(fault.rule, policy.policy if policy else None))
        return list(dict.fromkeys(sorted(located(kept, path, read.document), key=lambda finding: finding.line or 0)))

    def _policy_for(self, path: str) -> tuple[PolicyFile | None, str | None]:
        """(the policy that holds for a file, the path of one that should and cannot be read)."""
        if self.policy is not None:
            return self.policy, None
        place = find_policy(path)
        if place is None:
            return None, None
        if place not in self._policies:
            self._policies[place] = _read_policy(shown(place))
        found = self._policies[place]
        return (found, None) if isinstance(found, PolicyFile) else (None, found.file)


def load_policy(path: str) -> PolicyFile:
    """The policy at `path`. Raises InputError for the first thing that is wrong with it."""
    found = _read_policy(path)
    if isinstance(found, PolicyFile):
        return found
    first = found.findings[0]
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
        what, remedy = f"a policy is called {POLICY_NAME}, and this file is not read", "rename it"
        return FileReport(path, "policy", (Finding("wrong-document", path, 1, "", what, remedy),))
    read = read_document(path, ALL_MODELS)
    if isinstance(read.value, Policy) and read.document is not None:
        return PolicyFile(path, read.value, read.document)
    if read.findings:
        return FileReport(path, "policy", read.findings)
    what = (
        f"is a file of kind {document_name(ALL_MODELS[read.mark])}, and a policy is needed"
        if read.mark
        else "is no policy"
    )
    return FileReport(path, "policy", (Finding("wrong-document", path, 1, "", what, "pass a rlplan.policy.yaml"),))


def _notes(read: ReadDocument) -> tuple[str, ...]:
    """What the job, or the plan's job, sets otherwise than its algorithm does; inputs of a plan that have changed in
    nothing that the solver reads; and what a plan assumes."""
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


def _faults(read: ReadDocument, asked: Asked) -> tuple[list[Fault], str]:
    value: Any = read.value
    if isinstance(value, Plan):
        return plan_rules.faults(value, read.path, asked)
    if isinstance(value, GroupsPlan):
        return group_rules.faults(value, read.path, asked)
    if isinstance(value, Workload):
        return group_rules.workload_faults(value, read.path), f"{len(value.jobs)} job(s)"
    if isinstance(value, Job):
        return document_rules.job_faults(value, read.path), f"job {value.name}"
    if isinstance(value, Profile):
        return document_rules.profile_faults(value, read.path, asked), document_rules.profile_said(value, asked)
    if isinstance(value, Cluster):
        return [*unlike_names(value), *pools_too_large(value)], f"cluster {value.name}"
    assert isinstance(value, Policy), "these are all kinds of document"
    return [], "policy"
