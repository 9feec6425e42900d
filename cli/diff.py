"""`rlplan diff OLD NEW`"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..plans.diff.review import Report
    from ..plans.schema.groups_plan import GroupsPlan
    from ..plans.schema.plan import Plan

NONE = "none"


@click.command("diff")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--markdown", is_flag=True, help="Print GitHub markdown for a pull request, at most 40 lines.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON line.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if the plans differ, as git diff does.")
@click.option("--full", is_flag=True, help="All rows, also of what did not change; with --markdown, without its limit.")
def diff_command(old: str, new: str, markdown: bool, as_json: bool, exit_code: bool, full: bool) -> int:
    """Show what changes from plan OLD to plan NEW, by meaning, and the cost of the changes.

    Both are plans of one job, or both are plans of groups: files, or REV:PATH as in git, which is read with its inputs
    from that revision. Write `none` for OLD if the plan is new, for NEW if it was removed.
    """
    from ..plans.yaml.errors import InputError

    if markdown and as_json:
        raise InputError("--markdown and --json are two ways to print; give one of them")
    with ExitStack() as stack:
        sides = _side(old, stack), _side(new, stack)
        report, result, same = _difference(sides[0], sides[1], full)
    if as_json:
        click.echo(json.dumps({"old": old, "new": new, "verdict": report.verdict, **result}, allow_nan=False))
    elif markdown:
        from ..plans.diff.markdown import MAX_LINES
        from ..plans.diff.markdown import markdown as rendered

        click.echo(rendered(report, None if full else MAX_LINES), nl=False)
    else:
        from rich.console import Console

        from ..plans.diff.terminal_text import render

        Console(highlight=False).print(render(report, full), soft_wrap=False)
    return 1 if exit_code and not same else 0


@dataclass(frozen=True)
class _Side:
    """One of the two plans: its path as given but without a revision, the file to read, and the digest of its bytes."""

    plan: Plan | GroupsPlan
    name: str
    path: Path
    sha256: str


def _side(operand: str, stack: ExitStack) -> _Side | None:
    """The plan that an operand names; None for `none`."""
    from ..plans.schema.groups_plan import document_kind, load_groups_plan
    from ..plans.schema.plan import load_plan
    from ..plans.yaml.yaml_io import sha256_file
    from .shared.revisions import name_of, plan_file

    if operand == NONE:
        return None
    path = stack.enter_context(plan_file(operand))
    plan = load_groups_plan(path) if document_kind(path) == "rlplan_groups" else load_plan(path)
    return _Side(plan, name_of(operand), path, sha256_file(path))


def _difference(old: _Side | None, new: _Side | None, full: bool) -> tuple[Report, dict[str, Any], bool]:
    """The report to show, the difference as data for --json, and whether the plans are the same."""
    from ..planner.reprice import reprice
    from ..plans.diff.groups_diff import diff_groups
    from ..plans.diff.groups_report import groups_report
    from ..plans.diff.input_diff import InputFiles
    from ..plans.diff.job_diff import diff_jobs
    from ..plans.diff.job_report import job_report
    from ..plans.diff.one_plan import one_plan_dict, one_plan_report
    from ..plans.schema.groups_plan import GroupsPlan
    from ..plans.schema.plan import Plan
    from ..plans.yaml.errors import InputError

    if old is None or new is None:
        side = new or old
        if side is None:
            raise InputError("none on both sides: name a plan")
        report = one_plan_report(side.plan, side.name, new is not None, InputFiles(side.path.parent))
        return report, one_plan_dict(side.plan, new is not None), False
    title = new.name if old.name == new.name else f"{old.name} -> {new.name}"
    files = InputFiles(old.path.parent), InputFiles(new.path.parent)
    if isinstance(old.plan, Plan) and isinstance(new.plan, Plan):
        job = diff_jobs(old.plan, new.plan, *files, reprice(old.plan, new.plan, new.path))
        return job_report(job, new.name, title, full), job.as_dict(), job.same
    if isinstance(old.plan, GroupsPlan) and isinstance(new.plan, GroupsPlan):
        groups = diff_groups(old.plan, new.plan, *files, old_sha256=old.sha256)
        return groups_report(groups, new.name, title, full), groups.as_dict(), groups.same
    kinds = {True: "a plan of one job", False: "a plan of groups"}
    raise InputError(
        f"{old.name} is {kinds[isinstance(old.plan, Plan)]} and {new.name} is {kinds[isinstance(new.plan, Plan)]}; "
        "compare two of one kind"
    )
