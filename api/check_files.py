"""`check`: documents as a reviewer reads them; `rlplan check FILE...` calls it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from numbers import Real
from typing import Any

from ..planner.check.check_options import DataReader
from ..planner.check.checker import Checker, FileReport, load_site_rules
from ..plans.check.finding import Finding
from ..plans.facts.executable import OTHERS_ONLY
from ..plans.phrases.numbers import count
from ..plans.schema.cluster import Cluster
from ..plans.schema.groups_plan import GroupsPlan
from ..plans.schema.job import Job
from ..plans.schema.plan import Plan
from ..plans.schema.site_rules import SiteRules
from ..plans.schema.workload import Workload
from ..plans.yaml.errors import InputError
from ..profiles.profile_schema import Profile
from .given_documents import File, name_of

GROUPS_RUN_ON = "nothing as a whole: each job's own plan is executed"
"""What is said of a plan of groups that cannot be executed, in place of an executor."""


@dataclass(frozen=True, repr=False)
class Checked:
    """What was found, file by file; `exit_code` as of `rlplan check`: 0 without findings that are more than warnings, 1
    with such, 2 if a file is no document."""

    files: tuple[FileReport, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all files."""
        return tuple(finding for file in self.files for finding in file.findings)

    @property
    def ok(self) -> bool:
        """Whether there are no findings but warnings."""
        return all(finding.warning for finding in self.findings)

    @property
    def exit_code(self) -> int:
        return 2 if any(file.bad_input for file in self.files) else int(not self.ok)

    def as_dict(self) -> dict[str, Any]:
        """What `rlplan check --json` prints."""
        files = [
            {
                "file": file.file,
                "kind": file.kind,
                "findings": [finding.data() for finding in file.findings],
                "policy": file.site_rules,
                "notes": list(file.notes),
                "runs_on": runs_on(file),
                "not_executable": [finding.data() for finding in file.not_executable or ()],
            }
            for file in self.files
        ]
        warned = sum(finding.warning for finding in self.findings)
        return {"files": files, "findings": len(self.findings), "warnings": warned, "ok": self.ok}

    def __repr__(self) -> str:
        lines = (f"\n  {finding.noted}" for finding in self.findings)
        return f"<Checked {count(len(self.files), 'file')}: {count(len(self.findings), 'finding')}{''.join(lines)}>"


def check(
    *documents: File | Plan | GroupsPlan | Cluster | Job | Workload | Profile | SiteRules,
    policy: File | SiteRules | None = None,
    max_age_days: float | None = None,
    executor: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> Checked:
    """Check documents as a reviewer would: schema, inputs, physics, predictions, policy. Nothing is solved.

    A file that cannot be read, or that is no document, is a finding, and no error.

    Args:
        documents: files of any kind, or objects.
        policy: site rules for all of them; default: for each file those of the nearest rlplan.policy.yaml above it.
        max_age_days: of profiles; default: as in the policy, else any.
        executor: a plan that `rlplan execute` cannot run is a finding.
        progress: called with a text and the share of a data file that is read.

    Raises InputError for a policy that cannot be read.
    """
    if not documents:
        raise InputError("name at least one file to check")
    if max_age_days is not None and not (isinstance(max_age_days, Real) and 0 < max_age_days < math.inf):
        raise InputError(f"max_age_days: {max_age_days!r} is no finite number above 0; leave it out for any age")
    site_rules = None if policy is None else load_site_rules(name_of(policy))
    reader = DataReader(progress) if progress else DataReader()
    checker = Checker(datetime.now(UTC), site_rules, max_age_days, executor, reader)
    return Checked(tuple(checker.check([name_of(document) for document in documents])))


def runs_on(report: FileReport) -> str | None:
    """Which executor a plan fits; None for another document."""
    if report.not_executable is None:
        return None
    if not report.not_executable:
        return "rlplan execute"
    return GROUPS_RUN_ON if report.kind == "groups" else OTHERS_ONLY
