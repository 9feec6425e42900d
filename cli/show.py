"""`rlplan show PLAN`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..plans.plan import Plan


@click.command("show")
@click.argument("plan_path", metavar="PLAN", type=click.Path(path_type=Path))
@click.option(
    "--timeline",
    type=click.Path(path_type=Path),
    help="Write the groups' timelines as Chrome trace JSON, for ui.perfetto.dev.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON line.")
def show_command(plan_path: Path, timeline: Path | None, as_json: bool) -> int:
    """Draw PLAN: of a plan of groups, who has which node when, slowdowns, memory, costs and why.

    A plan of one job gets a summary; `rlplan simulate` draws its timeline. Nothing is solved, and inputs that have
    changed since do not matter.
    """
    from ..plans.errors import InputError
    from ..plans.groups_plan import document_kind, load_groups_plan
    from ..plans.plan import load_plan
    from ..plans.yaml_io import atomic_write
    from .paths import check_target
    from .solve import plan_summary, plan_text

    if document_kind(plan_path) != "rlplan_groups":
        if timeline is not None:
            raise InputError(
                "--timeline here is for plans of groups; for a plan of one job use rlplan simulate --timeline"
            )
        plan: Plan = load_plan(plan_path)
        click.echo(json.dumps(plan_summary(plan, plan_path)) if as_json else plan_text(plan, plan_path))
        return 0

    from rich.console import Console

    from ..planner.groups.perfetto import chrome_trace
    from .show_groups import render
    from .solve_groups import summary

    groups = load_groups_plan(plan_path)
    result: dict[str, Any] = {**summary(groups, plan_path), "why": {k: g.why for k, g in groups.groups.items()}}
    if timeline is not None:
        check_target(timeline, plan_path)
        atomic_write(timeline, json.dumps(chrome_trace(groups), separators=(",", ":")) + "\n")
        result["timeline"] = str(timeline)
    if as_json:
        click.echo(json.dumps(result))
    else:
        console = Console()
        console.print(render(groups, console.width), soft_wrap=True)
    return 0
