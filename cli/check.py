"""`rlplan check PLAN...`"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..plans.phrases.numbers import count
from .shared.options import Finite

if TYPE_CHECKING:
    from rich.console import Console

    from ..planner.check.checker import FileReport
    from ..plans.check.finding import Finding


@click.command("check")
@click.argument("plans", metavar="PLAN...", nargs=-1)
@click.option(
    "--policy",
    "policy_path",
    type=click.Path(),
    help="Policy to hold all plans against. Default: the nearest rlplan.policy.yaml in a plan's folder or above it, "
    "up to the root of its git repository.",
)
@click.option(
    "--max-age-days",
    type=Finite(min=0, min_open=True),
    help="Days that a profile may be old; one without a date is a finding. Default: as in the policy, else any.",
)
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "github"]),
    default="text",
    show_default=True,
    help="github: workflow commands, which show findings beside the lines of a pull request.",
)
@click.option(
    "--sarif",
    "sarif_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write the findings to FILE as SARIF 2.1.0, for GitHub code scanning and other tools.",
)
@click.option("--executor", "for_executor", is_flag=True, help="A plan that rlplan execute cannot run is a finding.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON line.")
@click.option("--rules", "list_rules", is_flag=True, help="List all rules and what each finds, and stop.")
def check_command(
    plans: tuple[str, ...],
    policy_path: str | None,
    max_age_days: float | None,
    style: str,
    sarif_path: Path | None,
    for_executor: bool,
    as_json: bool,
    list_rules: bool,
) -> int:
    """Check plans as a reviewer would: schema, inputs, physics, predictions, policy. Nothing is solved.

    PLAN is a plan of a job or of groups; clusters, jobs, workloads, profiles and policies are taken too, so that a
    pattern may name all documents of a folder. All findings of all files are reported, each by the name of its rule:

    \b
    rlplan check plan.yaml
    rlplan check plans/*.yaml --policy team.policy.yaml --max-age-days 30
    rlplan check plan.yaml --executor
    rlplan check plan.yaml --format github
    rlplan check plans/*.yaml --sarif rlplan.sarif
    rlplan check --rules

    Notes are no findings: for example, a job that overrides a setting of its algorithm, or an input that changed only
    where the solver does not read it. A plan with warnings can be run.

    Of each job's plan it is said whether rlplan execute can run it or only other frameworks can, and why. With
    --executor that is a finding: exit code 0 then means that rlplan execute can run all of them.
    """
    from ..api.input_paths import check_target
    from ..plans.check.finding import annotation, is_sarif, sarif
    from ..plans.check.rules import RULES, table
    from ..plans.yaml.yaml_io import atomic_write

    if list_rules:
        rows = [{"rule": rule.name, "family": rule.family, "finds": rule.finds} for rule in RULES.values()]
        click.echo(json.dumps({"rules": rows}) if as_json else table())
        return 0
    if not plans:
        raise click.UsageError("name at least one file, or --rules")

    from ..api.check_files import check
    from .shared.output import share

    if sarif_path is not None:
        check_target(sarif_path, *map(Path, plans), force=is_sarif(sarif_path))
    with share("check") as update:
        checked = check(*plans, policy=policy_path, max_age_days=max_age_days, executor=for_executor, progress=update)
    if sarif_path is not None:
        atomic_write(sarif_path, json.dumps(sarif(checked.findings), indent=1) + "\n")
    if as_json:
        click.echo(json.dumps(checked.as_dict()))
    elif style == "github":
        for finding in findings_shown(checked.findings):
            click.echo(annotation(finding))
    else:
        _print(checked.files, for_executor)
    return checked.exit_code


def _print(reports: Sequence[FileReport], for_executor: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for report in reports:
        site_rules = f"; policy {report.site_rules}" if report.site_rules else ""
        if not report.findings and report.broken_site_rules:
            console.print(
                Text.assemble(
                    f"{report.file}: ",
                    ("not held against its policy", "yellow"),
                    f": {report.broken_site_rules} cannot be read; else no findings: {report.summary}",
                )
            )
            continue
        if not report.findings:
            console.print(Text.assemble(f"{report.file}: ", ("ok", "green"), f": {report.summary}{site_rules}"))
            _print_notes(console, report, for_executor)
            continue
        shown = findings_shown(report.findings)
        for finding in shown:
            place = report.file if finding.line is None else f"{report.file}:{finding.line}"
            color = "red" if finding.bad_input else "yellow"
            level = "warning: " if finding.warning else ""
            console.print(
                Text.assemble((f"{place}: ", "bold"), (f"[{finding.rule}]", color), f" {level}{finding.text}")
            )
        if left := len(report.findings) - len(shown):
            console.print(
                f"{report.file}: {left} further rows of the data have faults; --json lists them", markup=False
            )
        _print_notes(console, report, for_executor)
        if report.site_rules:
            console.print(f"{report.file}: held against policy {report.site_rules}", markup=False)
    console.print(_summary(reports), markup=False)


def findings_shown(findings: Sequence[Finding]) -> list[Finding]:
    """The findings for a person to read: of a data file's rows only the first; very many may have one fault."""
    from ..plans.files.prompt_rows import MOST_FAULTS

    rows = [finding for finding in findings if finding.row is not None]
    hidden = set(rows[MOST_FAULTS:])
    return [finding for finding in findings if finding not in hidden]


def _print_notes(console: Console, report: FileReport, for_executor: bool) -> None:
    from ..api.check_files import runs_on

    for note in report.notes:
        console.print(f"{report.file}: note: {note}", markup=False)
    if report.not_executable is None:
        return
    if not report.not_executable:
        console.print(f"{report.file}: runs on: {runs_on(report)}", markup=False)
    elif not for_executor:  # else they are findings, each on a line of its own
        from ..plans.facts.executable import OTHERS_ONLY, merged

        reasons = merged((finding.key, finding.message) for finding in report.not_executable)
        console.print(f"{report.file}: runs on: {OTHERS_ONLY}: {'; '.join(reasons)}", markup=False)


def _summary(reports: Sequence[FileReport]) -> str:
    findings = sum(len(report.findings) for report in reports)
    files = count(len(reports), "file")
    if not findings:
        return f"no findings in {files}"
    bad = sum(report.bad_input for report in reports)
    faulty = sum(bool(report.findings) for report in reports)
    text = f"{count(findings, 'finding')} in {faulty} of {files}"
    warnings = sum(finding.warning for report in reports for finding in report.findings)
    text += f", {warnings} of them {'a warning' if warnings == 1 else 'warnings'}" if warnings else ""
    return f"{text}; {count(bad, 'file')} could not be read" if bad else text
