"""`rlplan execute GROUPS`: runs the jobs of one co-execution group, each by its own plan, in turns on shared nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...plans.phrases.numbers import count
from ..main import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED

if TYPE_CHECKING:
    from ...executor.groups.group_run import JobEnd
    from ...executor.groups.prepare_group import PreparedGroup
    from ...executor.prepare import Options


def execute_groups_command(
    path: Path, key: str | None, out: Path, options: Options, dry_run: bool, as_json: bool
) -> int:
    """Run the group; returns the exit code. A dry run makes the checks of a start and stops."""
    from ...executor.groups.prepare_group import prepare_group
    from ..shared.findings import line, memory_findings, must_fit_memory

    group = prepare_group(path, key, out, options.resume)
    beyond_memory = [finding for job in group.jobs for finding in memory_findings(job.execution.plan_path)]
    if dry_run:
        return _dry_run(group, [line(finding) for finding in beyond_memory], as_json)
    must_fit_memory(beyond_memory)

    from ...executor.groups.group_run import run_group
    from ..screens.group_live import GroupView

    view = GroupView({job.name: job.planned for job in group.jobs}, options.steps, quiet=as_json)
    return _told(run_group(group, out, options, view), out, group.key, as_json)


def _dry_run(group: PreparedGroup, beyond_memory: list[str], as_json: bool) -> int:
    from ...executor.placement.live_check import live_check_of_rooms

    names = [job.name for job in group.jobs]
    lack = live_check_of_rooms(group.rooms, group.kind)
    ok = not beyond_memory and lack is None
    if as_json:
        result = {"group": group.key, "checked": names, "findings": beyond_memory, "shortage": lack, "ok": ok}
        click.echo(json.dumps(result))
        return 0 if ok else EXIT_FAILED
    for text in beyond_memory:
        click.echo(text)
    if lack is not None:
        click.echo(f"cluster in RAY_ADDRESS: {lack}")
    if ok:
        click.echo(
            f"can be started, since inputs, memory and files are in order: group {group.key} with {', '.join(names)} "
            f"on {count(len(group.rooms), 'node')}"
        )
    return 0 if ok else EXIT_FAILED


def _told(ends: dict[str, JobEnd], out: Path, key: str, as_json: bool) -> int:
    """Print how the jobs ended; returns the exit code."""
    from ...executor.groups.member_task import BAD_INPUT, DONE, STOPPED

    codes = {end.code for end in ends.values()}
    if as_json:
        jobs = {
            name: {
                "finished": end.code == DONE,
                "reason": end.reason if end.code != DONE else "",
                "restarts": end.restarts,
            }
            for name, end in ends.items()
        }
        click.echo(json.dumps({"out": str(out), "group": key, "jobs": jobs, "finished": codes == {DONE}}))
    else:
        for name, end in ends.items():
            stopped = "stopped with a checkpoint; continue with --resume"
            how = "done" if end.code == DONE else stopped if end.code == STOPPED else f"failed: {end.reason}"
            click.echo(f"{name}: {how}")
        click.echo(f"see: rlplan report {out}")
    if codes == {DONE}:
        return 0
    if codes <= {DONE, STOPPED}:
        return EXIT_INTERRUPTED
    return EXIT_BAD_INPUT if BAD_INPUT in codes else EXIT_FAILED
