"""`rlplan status RUNS`"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from .shared.options import Finite


@click.command("status")
@click.argument("runs", metavar="RUNS", type=click.Path(path_type=Path))
@click.option("--watch", is_flag=True, help="Print it again and again while a driver runs the groups.")
@click.option(
    "--every", type=Finite(min=0.1), default=2.0, show_default=True, help="Seconds between two looks of --watch."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line; with --watch, one for each look.")
def status_command(runs: Path, watch: bool, every: float, as_json: bool) -> int:
    """Show what the co-execution groups in RUNS do now. RUNS is the --out of `rlplan execute groups.yaml`.

    Each job is shown with its group, the phase that it is in or whom it waits for, its steps, and its slowdown beside
    the bound; below are the moves of the plan that was applied last. Only files are read: it can be run on any host
    that sees the folder, and on groups that have ended.
    """
    from ..traces.groups.groups_status import groups_status
    from .screens.groups_text import status_text

    while True:
        status = groups_status(runs)
        _show(status_text(status), status, watch, as_json)
        if not watch or not status["running"]:
            return 0
        time.sleep(every)


def _show(text: str, status: dict[str, Any], watch: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(status))
        return
    if watch and sys.stdout.isatty():
        click.clear()
    click.echo(text)
