"""Findings of `rlplan check` in plans that another command uses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ...planner.check.checker import Checker, FileReport
from ...planner.check.plan_rules import documents, physics, suspicions_of
from ...planner.costs.job_pools import pools_of_plan
from ...planner.costs.memory_table import JobMemory
from ...planner.costs.round_costs import nodes_of, table_of
from ...plans.check.finding import Finding
from ...plans.schema.plan import Plan, load_plan
from ...plans.yaml.errors import InputError, RunFailed, joined

MEMORY_RULES = ("engine-memory", "train-memory", "host-memory", "kv-below-longest")
"""Rules of memory: a plan with such a finding is not started, because it does not fit the machine."""


def reports(plans: Sequence[Path]) -> list[FileReport]:
    """Check plans as `rlplan check` does, against the policies in their folders too."""
    return Checker(datetime.now(UTC)).check([str(plan) for plan in plans])


def with_findings(error: InputError, plans: Sequence[Path]) -> InputError:
    """Add the findings of `rlplan check` in the plans to the error for which a start refuses them; print warnings."""
    errors = error.each()

    def is_in_error(finding: Finding) -> bool:
        place = finding.file, finding.line
        return any(
            ((fault.path, fault.line) == place and finding.message in fault.message) or _same_input(finding, fault)
            for fault in errors
        )

    findings = [finding for report in reports(plans) for finding in report.findings if not is_in_error(finding)]
    tell([finding for finding in findings if finding.warning])
    more = [
        InputError(f"[{finding.rule}] {finding.text}", finding.file, finding.line)
        for finding in findings
        if not finding.warning
    ]
    return joined([*errors, *more])


def _same_input(finding: Finding, error: InputError) -> bool:
    """Whether both say the same of an input that cannot be read or has too few prompts: the finding at the plan's key,
    the error at the input's line."""
    if error.path is None:
        return False
    if finding.row is not None:  # of very many rows the error tells only the first
        return Path(error.path).resolve() == Path(finding.row.file)
    name, fault = Path(error.path).name, error.message.partition("; ")[0]
    if finding.rule == "too-few-prompts":
        named, _, said = finding.message.partition("' ")
        return named.endswith(name) and fault.startswith(said)
    place = name if error.line is None else f"{name}:{error.line}"
    return finding.rule == "input-unreadable" and finding.message.endswith(f"{place}: {fault}")


def memory_findings(plan: Path) -> list[Finding]:
    """Findings of memory in a job's plan, by its inputs as they are now; empty if an input is missing or invalid."""
    value = load_plan(plan)
    job, cluster, profile = documents(value, str(plan), [])
    faults = [fault for fault in physics(value, cluster, job, profile) if fault.rule in MEMORY_RULES]
    return Checker(datetime.now(UTC)).findings_of(str(plan), faults)


def suspicious_costs(plan: Plan, path: Path) -> list[str]:
    """What the profile of a job's plan at `path` says that cannot be, is far from the hardware's limit, or is scaled to
    another model and the plan does not say so, a line each."""
    _, _, profile = documents(plan, str(path), [])
    faults = [] if profile is None else suspicions_of(plan, profile)
    return [fault.noted for fault in faults if fault.rule != "profile-scaled" or "model" not in plan.job.why]


def must_fit_memory(findings: Sequence[Finding]) -> None:
    """Raises RunFailed with the first of these findings of memory and the number of the others; nothing without any."""
    if findings:
        raise RunFailed(f"{findings[0].noted}{f' (and {len(findings) - 1} more)' * (len(findings) > 1)}")


def memory_rows(plan: Path) -> list[dict[str, Any]] | None:
    """The memory table of a job's plan by its inputs as they are now: a row for each place, phase and kind of round.

    None if an input is missing or invalid, or if the profile has no costs for the plan.
    """
    value = load_plan(plan)
    job, cluster, profile = documents(value, str(plan), [])
    pools = pools_of_plan(value.job, cluster)
    if job is None or pools is None or profile is None:
        return None
    memory = JobMemory(profile, pools, job.model.dtype)
    try:
        nodes = nodes_of(value.job, memory)
    except InputError:
        return None
    return [
        {
            "round": ("short", "long", "tail")[bar.kind],
            "phase": bar.phase,
            "place": bar.place,
            **({} if bar.side == "both" else {"of": bar.side}),
            "needed_bytes": bar.needed_bytes,
            "capacity_bytes": bar.capacity_bytes,
            "lower_bound": not bar.complete,
            "holds_bytes": bar.holds_bytes,
        }
        for bar in table_of(value.job, memory, nodes)
    ]


def tell(findings: Sequence[Finding]) -> None:
    """Print findings to standard error, one line each."""
    for finding in findings:
        click.echo(f"{'warning' if finding.warning else 'finding'}: {finding.noted}", err=True)
