"""`rlplan execute GROUPS`: runs the jobs of co-execution groups, each by its own plan, in turns on shared nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...plans.phrases.numbers import count
from ..main import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED

if TYPE_CHECKING:
    from ...executor.groups.job_process import JobEnd
    from ...executor.groups.prepare_group import PreparedGroup
    from ...executor.prepare import Options
    from ...plans.check.finding import Finding


def execute_groups_command(
    path: Path, key: str | None, out: Path, options: Options, dry_run: bool, as_json: bool
) -> int:
    """Run all groups of a plan, or one; returns the exit code. A dry run makes the checks of a start and stops."""
    from ...executor.groups.prepare_group import prepare_groups
    from ..shared.findings import memory_findings, must_fit_memory, reports

    groups = prepare_groups(path, key, out, options.resume)
    beyond_memory = [
        finding for group in groups for job in group.jobs for finding in memory_findings(job.execution.plan_path)
    ]
    if dry_run:
        checked = [finding for report in reports([path]) for finding in report.findings]
        return _dry_run(groups, [*checked, *beyond_memory], as_json)
    must_fit_memory(beyond_memory)

    from ...executor.groups.group_run import run_groups
    from ..screens.group_live import GroupView
    from .replans import write_replan

    view = GroupView(options.steps, quiet=as_json)
    ends = run_groups(groups, out, key is not None, options, view, write_replan)
    return _told(ends, out, [group.key for group in groups], as_json)


def _dry_run(groups: Sequence[PreparedGroup], findings: Sequence[Finding], as_json: bool) -> int:
    from ...executor.placement.live_checks import live_check_of_rooms

    names = {group.key: [job.name for job in group.jobs] for group in groups}
    rooms = [room for group in groups for room in group.rooms]
    lack = live_check_of_rooms(rooms, groups[0].kind)
    ok = lack is None and all(finding.warning for finding in findings)
    code = 0 if ok else EXIT_BAD_INPUT if any(finding.bad_input for finding in findings) else EXIT_FAILED
    texts = [finding.noted for finding in findings]
    if as_json:
        click.echo(json.dumps({"groups": names, "findings": texts, "shortage": lack, "ok": ok}))
        return code
    for text in texts:
        click.echo(text)
    if lack is not None:
        click.echo(f"cluster in RAY_ADDRESS: {lack}")
    if ok:
        told = "; ".join(f"{key} with {', '.join(jobs)}" for key, jobs in names.items())
        click.echo(
            f"can be started, since inputs, memory and files are in order: {told}, on {count(len(rooms), 'node')}"
        )
    return code


def _told(ends: dict[str, JobEnd], out: Path, keys: list[str], as_json: bool) -> int:
    """Print how the jobs ended; returns the exit code."""
    from ...executor.groups.member_task import BAD_INPUT, DONE, STOPPED

    codes = {end.code for end in ends.values() if not end.left} or {DONE}
    if as_json:
        jobs = {
            name: {
                "finished": end.code == DONE,
                "left": end.left,
                "reason": end.reason if end.code != DONE and not end.left else "",
                "restarts": end.restarts,
            }
            for name, end in ends.items()
        }
        click.echo(json.dumps({"out": str(out), "groups": keys, "jobs": jobs, "finished": codes == {DONE}}))
    else:
        for name, end in ends.items():
            click.echo(f"{name}: {_how(end)}")
        click.echo(f"see: rlplan report {out}")
    if codes == {DONE}:
        return 0
    if codes <= {DONE, STOPPED}:
        return EXIT_INTERRUPTED
    return EXIT_BAD_INPUT if BAD_INPUT in codes else EXIT_FAILED


def _how(end: JobEnd) -> str:
    from ...executor.groups.member_task import DONE, STOPPED

    if end.left:
        return "left with a checkpoint, since a plan without it was applied"
    if end.code == DONE:
        return "done"
    return "stopped with a checkpoint; continue with --resume" if end.code == STOPPED else f"failed: {end.reason}"
