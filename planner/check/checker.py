"""The checker of `rlplan check`: the findings of all rules on a file of any kind.

The schema of a document is checked first; a file that fails it is checked no further. A plan is then checked against
its inputs as they are now, against itself, its profile and the site rules of its folder. Nothing is solved or
simulated, and a fault of one file hides none of another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ...plans.check.any_document import ReadDocument, read_document
from ...plans.check.finding import Fault, Finding, located
from ...plans.check.plan_check import model_of_plan
from ...plans.check.plan_fit import executor_faults, pools_too_large
from ...plans.check.site_breaches import plan_breaches, unknown_pools, waived
from ...plans.check.solved_rules import UNREAD_TEXT, input_path, unread_changes
from ...plans.facts.executable import unsupported_in_groups
from ...plans.facts.plan_text import assumed_notes, cut_text
from ...plans.phrases.numbers import count
from ...plans.schema.cluster import Cluster
from ...plans.schema.groups_plan import GroupsPlan
from ...plans.schema.job import Job
from ...plans.schema.plan import Plan
from ...plans.schema.predicted_evidence import MUCH_AT_CAP
from ...plans.schema.site_rules import MISNAMED, SITE_RULES_NAME, SiteRules, SiteRulesFile, find_site_rules
from ...plans.schema.workload import Workload
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_io import document_name
from ...profiles.document_models import ALL_MODELS
from ...profiles.profile_schema import Profile
from . import group_rules, job_rules, plan_rules, profile_rules
from .accelerator_rules import unknown_notes, unlike_names
from .check_options import CheckOptions, DataReader


@dataclass(frozen=True)
class FileReport:
    """The findings of one file.

    Attributes:
        file: as the user named it.
        kind: plan, groups, cluster, job, profile, workload or policy; None where it could not be told.
        findings: by line.
        site_rules: path of the site rules that it was checked against; None without any.
        summary: a line on what was checked, for a file without findings.
        broken_site_rules: path of the site rules that it should be checked against and that cannot be read; None
            without any.
        notes: what a reviewer should know though nothing is wrong with it, a line each.
        not_executable: why `rlplan execute` cannot run a plan, a finding each; empty if it can. None: no plan, or a
            plan of groups that was not asked. They are among `findings` only if the checker asks for what it can run.
    """

    file: str
    kind: str | None
    findings: tuple[Finding, ...]
    site_rules: str | None = None
    summary: str = ""
    broken_site_rules: str | None = None
    notes: tuple[str, ...] = ()
    not_executable: tuple[Finding, ...] | None = None

    @property
    def bad_input(self) -> bool:
        """Whether the file is no document."""
        return any(finding.bad_input for finding in self.findings)


@dataclass
class Checker:
    """Checks files one by one; site rules files are read once.

    Attributes:
        now: the time that ages are counted to.
        site_rules: the site rules for all files; None: for each file those of the nearest rlplan.policy.yaml.
        max_age_days: of profiles, in place of the site rules'; None: theirs.
        for_executor: a plan that `rlplan execute` cannot run is a finding.
        data: reads data files.
    """

    now: datetime
    site_rules: SiteRulesFile | None = None
    max_age_days: float | None = None
    for_executor: bool = False
    data: DataReader = field(default_factory=DataReader)
    _files_read: dict[Path, SiteRulesFile | FileReport] = field(default_factory=dict)

    def check(self, paths: Iterable[str]) -> list[FileReport]:
        """Reports in the order of the files, followed by those of site rules files that cannot be read."""
        reports = [self.check_file(path) for path in paths]
        named = {os.path.abspath(report.file) for report in reports}  # noqa: PTH100 (links are the user's)
        broken = [rules_file for rules_file in self._files_read.values() if isinstance(rules_file, FileReport)]
        return reports + [report for report in broken if os.path.abspath(report.file) not in named]  # noqa: PTH100

    def check_file(self, path: str) -> FileReport:
        """The report on one file of any kind."""
        read = read_document(path, ALL_MODELS)
        kind = None if read.mark is None else document_name(ALL_MODELS[read.mark])
        if read.value is None or read.document is None:
            return FileReport(path, kind, read.findings)
        rules_file, broken = self._site_rules_for(path)
        options = CheckOptions(self.now, rules_file, self.max_age_days, self.data)
        faults, summary = _faults(read, options)
        allowed = rules_file.rules if rules_file else None
        # Where the site rules waive an edit, its stale figures are findings all the same.
        kept = _without_stale([fault for fault in faults if not waived(fault.rule, allowed)])
        cannot = tuple(located(_not_executable(read), path, read.document))
        findings = [*located(kept, path, read.document), *(cannot if self.for_executor else ())]
        findings.sort(key=lambda finding: finding.line or 0)
        held = rules_file.path if rules_file else None
        asked = isinstance(read.value, Plan) or (self.for_executor and isinstance(read.value, GroupsPlan))
        others_only = cannot if asked else None
        return FileReport(
            path, kind, tuple(dict.fromkeys(findings)), held, summary, broken, _notes(read, self.data), others_only
        )

    def changed_findings(self, path: str, plan: Plan, job: Job, cluster: Cluster, profile: Profile) -> list[Finding]:
        """Findings in the plan at `path` with decisions, inputs and figures that differ from its files': physics and
        site rules."""
        rules_file, _ = self._site_rules_for(path)
        # Divisors of the loss change no seconds, and nothing is trained by these documents.
        faults = [f for f in plan_rules.physics(plan, cluster, job, profile) if f.rule != "loss-divisor"]
        if rules_file is not None:
            faults += plan_breaches(plan, rules_file, job)
            faults += unknown_pools(rules_file, cluster, ("inputs", "cluster"))
        return self.findings_of(path, faults)

    def findings_of(self, path: str, faults: Iterable[Fault]) -> list[Finding]:
        """Faults of the plan at `path` with changed values, as findings: by line, without those that its site rules
        waive."""
        rules_file, _ = self._site_rules_for(path)
        read = read_document(path, ALL_MODELS)
        if read.document is None:
            return list(read.findings)
        kept = (fault for fault in faults if not waived(fault.rule, rules_file.rules if rules_file else None))
        return list(dict.fromkeys(sorted(located(kept, path, read.document), key=lambda finding: finding.line or 0)))

    def _site_rules_for(self, path: str) -> tuple[SiteRulesFile | None, str | None]:
        """(the site rules that hold for a file, the path of those that should and cannot be read)."""
        if self.site_rules is not None:
            return self.site_rules, None
        rules_path = find_site_rules(path)
        if rules_path is None:
            return None, None
        if rules_path not in self._files_read:
            self._files_read[rules_path] = _read_site_rules(shown(rules_path))
        rules_file = self._files_read[rules_path]
        return (rules_file, None) if isinstance(rules_file, SiteRulesFile) else (None, rules_file.file)


def load_site_rules(path: str) -> SiteRulesFile:
    """The site rules at `path`. Raises InputError for the first thing that is wrong with them."""
    rules_file = _read_site_rules(path)
    if isinstance(rules_file, SiteRulesFile):
        return rules_file
    first = rules_file.findings[0]
    raise InputError(first.text, path, first.line)


def shown(path: Path) -> str:
    """A path as it is shown: relative to the current folder where it is below it."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # on another drive
        return str(path)
    return str(path) if relative.startswith("..") else relative


def _read_site_rules(path: str) -> SiteRulesFile | FileReport:
    if Path(path).name == MISNAMED:
        message, remedy = f"a policy is called {SITE_RULES_NAME}, and this file is not read", "rename it"
        return FileReport(path, "policy", (Finding("wrong-document", path, 1, "", message, remedy),))
    read = read_document(path, ALL_MODELS)
    if isinstance(read.value, SiteRules) and read.document is not None:
        return SiteRulesFile(path, read.value, read.document)
    if read.findings:
        return FileReport(path, "policy", read.findings)
    message = f"is a {document_name(ALL_MODELS[read.mark])}, and a policy is needed" if read.mark else "is no policy"
    return FileReport(path, "policy", (Finding("wrong-document", path, 1, "", message, "pass a rlplan.policy.yaml"),))


def _notes(read: ReadDocument, data: DataReader) -> tuple[str, ...]:
    """Notes on a file: inputs of a plan that changed only where the solver does not read them, an edit by hand, many
    responses at the cap, keys that override the job's algorithm, answers that could not be read here, and what a plan
    assumes."""
    job, job_path = read.value, read.path
    notes: list[str] = []
    assumed = assumed_notes(job.inputs) if isinstance(job, Plan) else []
    if isinstance(job, Plan):
        notes += [f"'{path}' {UNREAD_TEXT}" for path in unread_changes(job, read.path)]
        notes += ["the decisions were edited by hand, and predicted anew by rlplan refresh"] * job.solver.refreshed
        predicted = job.predicted
        # A job that cannot be read is a finding of the plan's.
        job_path = str(input_path(job.inputs.job, read.path))
        job = read_document(job_path, ALL_MODELS).value
        if (predicted.cut_share or 0) >= MUCH_AT_CAP:
            notes.append(f"{cut_text(predicted)} (rollout.max_response_tokens)")
    overrides = job.algorithm.overrides() if isinstance(job, Job) else ()
    overridden = [f"the job overrides its algorithm: {', '.join(overrides)}"] if overrides else []
    if isinstance(job, Cluster):
        notes += unknown_notes(job, job_rules.neighbour(read.path, "profile.yaml", Profile))
    of_data = job_rules.data_notes(job, job_path, data) if isinstance(job, Job) else []
    return (*notes, *overridden, *of_data, *assumed)


def _not_executable(read: ReadDocument) -> list[Fault]:
    """Why `rlplan execute` cannot run a plan; empty if it can, and for a document that is no plan."""
    if isinstance(read.value, Plan):
        cluster = read_document(str(input_path(read.value.inputs.cluster, read.path)), ALL_MODELS).value
        known = cluster if isinstance(cluster, Cluster) else None
        return executor_faults(read.value, model_of_plan(read.value, read.path), known)
    if isinstance(read.value, GroupsPlan):
        return [Fault("not-executable", *fault) for fault in unsupported_in_groups(read.value)]
    return []


def _faults(read: ReadDocument, options: CheckOptions) -> tuple[list[Fault], str]:
    value: Any = read.value
    if isinstance(value, Plan):
        return plan_rules.plan_faults(value, read.path, options)
    if isinstance(value, GroupsPlan):
        return group_rules.groups_faults(value, read.path, options)
    if isinstance(value, Workload):
        return group_rules.workload_faults(value, read.path), f"{count(len(value.jobs), 'job')}"
    if isinstance(value, Job):
        return job_rules.job_faults(value, read.path, options), f"job {value.name}"
    if isinstance(value, Profile):
        return profile_rules.profile_faults(value, read.path, options), profile_rules.profile_summary(value, options)
    if isinstance(value, Cluster):
        profile = job_rules.neighbour(read.path, "profile.yaml", Profile)
        return [*unlike_names(value, profile), *pools_too_large(value)], f"cluster {value.name}"
    assert isinstance(value, SiteRules), "these are all kinds of document"
    return [], "policy"


_STALE = ("decisions-edited", "input-changed")
"""Rules by whose findings figures of the plan are stale: they were predicted for other decisions or inputs. Findings on
these figures are left out, since solving again predicts all of them anew."""
_STALE_KEYS = {
    "capacity-contradicts-inputs": "predicted.",
    "nodes-do-not-add-up": "predicted.nodes",
    "price-does-not-add-up": "predicted.usd_per_hour",
    "lengths-beyond-cap": "predicted.lengths_tokens",
}
"""By rule, the beginning of the keys of those figures that the rule compares with the decisions or the inputs."""
_MEMORY = ("train-memory", "host-memory")


def _without_stale(faults: Sequence[Fault]) -> list[Fault]:
    """The faults, without those on stale figures; memory that is too small is then reported only at the decision."""
    if not any(fault.rule in _STALE for fault in faults):
        return list(faults)
    decided = {fault.rule for fault in faults if fault.rule in _MEMORY and fault.location[0] == "job"}

    def left_out(fault: Fault) -> bool:
        begins = _STALE_KEYS.get(fault.rule)
        if begins is not None and fault.key.startswith(begins):
            return True
        return fault.location[0] == "predicted" and fault.rule in decided

    return [fault for fault in faults if not left_out(fault)]
