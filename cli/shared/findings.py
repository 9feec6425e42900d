"""What `rlplan check` finds in plans that another command is about to use."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ...planner.check.checker import FileReport
    from ...planner.what_if import Documents
    from ...plans.check.finding import Finding
    from ...plans.yaml.errors import InputError

MEMORY_RULES = ("engine-memory", "train-memory", "host-memory", "kv-below-longest")
"""What no machine can do, however fast or dear it is: findings without which a run does not start."""

_TOLD = ("input-changed", "input-missing")  # simulate warns of these when it reads the plan


def reports(plans: Sequence[Path]) -> list[FileReport]:
    """What `rlplan check` says of plans, of the policies in their folders too."""
    from ...planner.check.checker import Checker

    return Checker(datetime.now(UTC)).check([str(plan) for plan in plans])


def with_findings(error: InputError, plans: Sequence[Path]) -> InputError:
    """What a start refuses of plans, and behind it what `rlplan check` finds in them beside that; warnings are told."""
    from ...plans.yaml.errors import InputError, joined

    told = error.each()

    def known(finding: Finding) -> bool:
        return any(
            (one.path, one.line) == (finding.file, finding.line) and finding.message in one.message for one in told
        )

    found = [finding for report in reports(plans) for finding in report.findings if not known(finding)]
    tell([finding for finding in found if finding.warning])
    more = [
        InputError(f"[{finding.rule}] {finding.text}", finding.file, finding.line)
        for finding in found
        if not finding.warning
    ]
    return joined([*told, *more])


def memory_findings(plan: Path) -> list[Finding]:
    """What memory does not hold of a plan of a job, by its inputs as they are now; nothing where one of them is not
    here, or is no document."""
    from ...planner.check.checker import Checker
    from ...planner.check.plan_rules import documents, physics
    from ...plans.schema.plan import load_plan

    value = load_plan(plan)
    job, cluster, profile = documents(value, str(plan), [])
    faults = [fault for fault in physics(value, cluster, job, profile, None) if fault.rule in MEMORY_RULES]
    return Checker(datetime.now(UTC)).findings_of(str(plan), faults)


def memory_rows(plan: Path) -> list[dict[str, Any]] | None:
    """The memory table of a plan of a job by its inputs as they are now, a row for each place, phase and kind of round;
    None where an input is not here, or does not price the plan."""
    from ...planner.check.plan_rules import documents
    from ...planner.costs.memory_bars import WEIGHT_BYTES
    from ...planner.costs.round_costs import nodes_of, table_of
    from ...plans.schema.plan import load_plan
    from ...plans.yaml.errors import InputError

    value = load_plan(plan)
    job, cluster, profile = documents(value, str(plan), [])
    pool = cluster.pools.get(value.job.rounds.short.rollout.pool) if cluster is not None else None
    if job is None or pool is None or profile is None:
        return None
    weight_bytes = WEIGHT_BYTES[job.model.dtype]
    try:
        nodes = nodes_of(value.job, profile, pool, weight_bytes)
    except InputError:
        return None
    return [
        {
            "round": ("short", "long")[bar.kind],
            "phase": bar.phase,
            "place": bar.place,
            "needed_bytes": bar.needed_bytes,
            "capacity_bytes": bar.capacity_bytes,
            "lower_bound": not bar.complete,
            "holds_bytes": bar.holds_bytes,
        }
        for bar in table_of(value.job, profile, pool, weight_bytes, nodes)
    ]


def simulated_findings(plan: Path, documents: Documents, changed: bool) -> list[Finding]:
    """What `rlplan check` finds in a plan as it is simulated; findings about its input files are warned of instead.

    `changed`: whether the documents are other than their files. Then only what they decide is looked at: predictions,
    digests and prices are of the plan before.
    """
    from ...planner.check.checker import Checker
    from ...planner.check.plan_rules import physics
    from ...plans.check.rules import RULES

    checker = Checker(datetime.now(UTC))
    if changed:
        faults = physics(documents.plan, documents.cluster, documents.job, documents.profile, None)
        # What the loss is divided by changes no second, and nobody trains by these documents.
        return checker.findings_of(str(plan), [fault for fault in faults if fault.rule != "loss-divisor"])
    found: list[Finding] = []
    for finding in checker.check_file(str(plan)).findings:
        if RULES[finding.rule].family != "inputs":
            found.append(finding)
        elif finding.rule not in _TOLD:
            click.echo(f"warning: {line(finding)}", err=True)
    return found


def tell(findings: Sequence[Finding]) -> None:
    """Findings on standard error, a line each."""
    for finding in findings:
        click.echo(f"{'warning' if finding.warning else 'finding'}: {line(finding)}", err=True)


def line(finding: Finding) -> str:
    """A finding on one line, with its place and its rule's name."""
    place = finding.file if finding.line is None else f"{finding.file}:{finding.line}"
    return f"{place}: [{finding.rule}] {finding.text}"
