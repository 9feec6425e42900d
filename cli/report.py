"""`rlplan report RUN`"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..plans.phrases.sentences import one_line
from .shared.options import force_option

if TYPE_CHECKING:
    from ..traces.groups.group_journal import GroupJournal


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path), help="Write everything as one page; -: standard output.")
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON document.")
def report_command(run: Path, html: Path | None, overwrite: bool, as_json: bool) -> int:
    """Show what was measured in RUN beside what its plan predicted. RUN is the --out of `rlplan execute`.

    RUN may still be going on, or have died: its state is shown, with the figures of its trace so far. Of several runs,
    those that cannot be read are named and the others are shown. Of co-execution groups their turns are shown: who had
    which nodes when, each job's slowdown beside its bound, and moves; each job's own run lies in a folder below.

    \b
    Example:
      rlplan report runs/demo --html report.html
    """
    from ..traces.groups.groups_folder import group_folders

    if groups := group_folders(run):
        return _groups(run, groups, html, overwrite, as_json)

    from ..api.input_paths import check_target
    from ..plans.diff.change import plain
    from ..plans.yaml.yaml_io import STDOUT, atomic_write
    from ..traces.report import report
    from ..traces.run_log import run_files
    from .screens.report_text import comparison, run_text
    from .shared.output import check_stdout, tell

    check_stdout(html, "--html", as_json)
    if html is not None:
        check_target(html, *run_files(run), kind="page", force=overwrite)
    result: dict[str, Any] = plain(report(run))
    for message in result["unreadable"].values():
        click.echo(f"warning: left out: {one_line(message)}", err=True)
    if html is not None:
        from ..plans.page.page_of_run import run_page
        from ..traces.report_state import utc

        atomic_write(html, run_page(result, title=run.resolve().name, written_at=utc(time.time())))
    if as_json:
        click.echo(json.dumps(result, indent=1))
        return 0
    lines = [run_text(name, detail) for name, detail in result["runs"].items()]
    if "baseline" in result:
        lines.append(comparison(result))
    if html is not None and html != STDOUT:
        lines.append(f"page: {one_line(str(html))}")
    tell(_printable("\n".join(lines)), html)
    return 0


def _groups(run: Path, folders: dict[str, Path], html: Path | None, overwrite: bool, as_json: bool) -> int:
    """The report of co-execution groups."""
    from ..api.input_paths import check_target
    from ..plans.schema.groups_plan import load_groups_plan
    from ..plans.yaml.yaml_io import STDOUT, atomic_write
    from ..traces.groups.group_journal import GROUP_JOURNAL, GROUPS_COPY, load_journal
    from ..traces.groups.group_report import group_report
    from ..traces.groups.groups_folder import MOVES, moves_of
    from ..traces.report_state import utc
    from .screens.groups_text import group_text, moves_lines
    from .shared.output import check_stdout, tell

    check_stdout(html, "--html", as_json)
    if html is not None:
        written = [folder / name for folder in (run, *folders.values()) for name in (GROUP_JOURNAL, GROUPS_COPY, MOVES)]
        check_target(html, *written, kind="page", force=overwrite)
    reports = {}
    for key, folder in folders.items():
        journal = load_journal(folder)
        reports[key] = group_report(folder, journal)
        add_planned_so_far(reports[key], journal, load_groups_plan(folder / GROUPS_COPY).rules.interference)
    result = {"groups": reports, "moves": moves_of(run)}
    if html is not None:
        from ..plans.page.page_of_groups import group_run_page

        atomic_write(html, group_run_page(result, title=run.resolve().name, written_at=utc(time.time())))
    if as_json:
        click.echo(json.dumps(result))
        return 0
    lines = [group_text(run.resolve().name, report) for report in reports.values()]
    if result["moves"] is not None:
        lines.append("\n".join(moves_lines(result["moves"])))
    lines += [] if html is None or html == STDOUT else [f"page: {html}"]
    tell(_printable("\n\n".join(lines)), html)
    return 0


def _printable(text: str) -> str:
    """The text as standard output can show it: if that is not Unicode, ASCII for blocks and `?` for other letters."""
    from .screens.bars import ASCII

    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    if encoding.lower().startswith("utf"):
        return text
    return text.translate(ASCII).encode(encoding, "replace").decode(encoding)


def add_planned_so_far(report: dict[str, Any], journal: GroupJournal, interference: float) -> None:
    """Add `slowdown_planned_so_far` to each job of a group's report (traces/groups/group_report.py): its slowdown over
    as many steps, simulated with the plan's seconds; None where jobs came or went, or started again.

    Args:
        journal: of the group.
        interference: of the plan's rules.
    """
    from ..planner.groups.simulate.first_steps import first_slowdowns
    from ..traces.groups.group_journal import read_placed_job

    jobs: dict[str, Any] = report["jobs"]
    unchanged = {placed["job"] for placed in journal.first_jobs} == jobs.keys() and not report["left"]
    planned = None
    if jobs and unchanged and all(row["starts"] == 1 for row in jobs.values()):
        alone_s, steps = ({job: row[key] for job, row in jobs.items()} for key in ("alone_s", "steps"))
        planned = first_slowdowns(
            journal.rule, list(map(read_placed_job, journal.first_jobs)), alone_s, steps, interference
        )
    for job, row in jobs.items():
        row["slowdown_planned_so_far"] = None if planned is None else planned[job]
