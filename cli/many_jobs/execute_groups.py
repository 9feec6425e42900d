"""`rlplan execute GROUPS`: runs the jobs of one co-execution group, each by its own plan, in turns on shared nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..main import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED

if TYPE_CHECKING:
    from ...executor.prepare import Options


def execute_groups_command(
    path: Path, key: str | None, out: Path, options: Options, dry_run: bool, as_json: bool
) -> int:
    """Run the group; returns the exit code. A dry run makes the checks of a start and stops."""
    from ...executor.groups.prepare_group import prepare_group

    group = prepare_group(path, key, out, options.resume)
    names = [job.name for job in group.jobs]
    if dry_run:
        checked = {"group": group.key, "checked": names, "ok": True}
        click.echo(json.dumps(checked) if as_json else f"can be started, since inputs and files are in order: group "
                   f"{group.key} with {', '.join(names)} on {len(group.rooms)} nodes")  # fmt: skip
        return 0

    from ...executor.groups.group_run import run_group
    from ...executor.groups.member_task import BAD_INPUT, DONE, STOPPED
    from ..screens.group_live import GroupView

    view = GroupView({job.name: job.planned for job in group.jobs}, options.steps, quiet=as_json)
    ends = run_group(group, out, options, view)
    codes = {end.code for end in ends.values()}
    jobs = {
        name: {"finished": end.code == DONE, "reason": end.reason if end.code != DONE else "", "restarts": end.restarts}
        for name, end in ends.items()
    }
    finished = codes == {DONE}
    if as_json:
        click.echo(json.dumps({"out": str(out), "group": group.key, "jobs": jobs, "finished": finished}))
    else:
        for name, end in jobs.items():
            how = "done" if end["finished"] else f"not done: {end['reason']}"
            click.echo(f"{name}: {how}; see: rlplan report {out / name}")
    if finished:
        return 0
    if codes <= {DONE, STOPPED}:
        return EXIT_INTERRUPTED
    return EXIT_BAD_INPUT if BAD_INPUT in codes else EXIT_FAILED
