"""`rlplan show PLAN`"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..plans.phrases.sentences import one_line
from ..plans.yaml.errors import InputError
from .shared.options import force_option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..plans.schema.groups_plan import GroupsPlan
    from ..plans.schema.plan import Plan
    from ..plans.yaml.output_files import Written


@click.command("show")
@click.argument("plan_path", metavar="PLAN", type=click.Path(path_type=Path))
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    help="Write one page that needs no network: timeline, front, phases, lengths; -: standard output.",
)
@click.option(
    "--timeline",
    type=click.Path(path_type=Path),
    help="Write a timeline as Chrome trace JSON, for ui.perfetto.dev; that of one job is simulated from its inputs.",
)
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON line.")
def show_command(plan_path: Path, html: Path | None, timeline: Path | None, overwrite: bool, as_json: bool) -> int:
    """Show PLAN on one screen: gain, cost and their error, timeline, what binds, and the reasons.

    For one job: its rounds, the critical path and slack, memory, speed against bias. For groups: which job uses which
    node when, and each job's slack against its bound. Nothing is solved. Inputs that have changed since the plan was
    solved are named; they do not change what is shown.
    """
    from ..plans.schema.groups_plan import load_groups_plan
    from ..plans.schema.plan import load_plan
    from ..plans.yaml.yaml_io import document_kind

    if document_kind(plan_path) == "rlplan_groups":
        groups = load_groups_plan(plan_path)
        _check_targets(html, timeline, groups, plan_path, overwrite, as_json)
        return _groups(groups, plan_path, html, timeline, as_json)
    plan = load_plan(plan_path)
    _check_targets(html, timeline, plan, plan_path, overwrite, as_json)
    return _job(plan, plan_path, html, timeline, as_json)


def _job(plan: Plan, path: Path, html: Path | None, timeline: Path | None, as_json: bool) -> int:
    from ..api.job_timeline import compact, timeline_of
    from .screens.job_screen import data, render
    from .shared.findings import memory_findings, memory_rows, suspicious_costs

    notes = stale_notes(plan, path) + _edited(plan)
    notes += [f"memory does not hold it: {finding.text}" for finding in memory_findings(path)]
    notes += [plan.job.why["model"]] if "model" in plan.job.why else []
    notes += [f"the profile: {noted}" for noted in suspicious_costs(plan, path)]
    files: dict[str, tuple[Path, str]] = {}
    if timeline is not None:
        files["timeline"] = timeline, compact(timeline_of(path).document())
    if html is not None:
        from ..plans.page.page_of_plan import plan_page

        files["html"] = html, plan_page(plan, title=f"{plan.job.name}: {path.name}", notes=stale_notes(plan, path))
    result = {**data(plan, path), "memory": memory_rows(path), "notes": notes}
    return _print(result, files, as_json, lambda width: render(plan, path.name, notes, width))


def _groups(plan: GroupsPlan, path: Path, html: Path | None, timeline: Path | None, as_json: bool) -> int:
    from ..api.job_timeline import compact
    from ..planner.groups.write_groups import chrome_trace
    from .screens.groups_screen import data, render

    notes = stale_notes(plan, path) + _edited(plan)
    files: dict[str, tuple[Path, str]] = {}
    if timeline is not None:
        files["timeline"] = timeline, compact(chrome_trace(plan))
    if html is not None:
        from ..plans.page.page_of_groups import groups_page

        files["html"] = html, groups_page(plan, title=path.name, notes=stale_notes(plan, path))
    result = {**data(plan, path), "notes": notes}
    return _print(result, files, as_json, lambda width: render(plan, path.name, notes, width))


def _check_targets(
    html: Path | None, timeline: Path | None, plan: Plan | GroupsPlan, path: Path, overwrite: bool, as_json: bool
) -> None:
    """Raise InputError unless both files can be written and are neither the same nor an input."""
    from ..api.input_paths import check_target
    from ..plans.check.solved_rules import input_files, input_path
    from .shared.output import check_stdout

    inputs = (path, *(input_path(file, path) for _, file in input_files(plan)))
    targets: tuple[tuple[Written, Path | None], ...] = (("page", html), ("timeline", timeline))
    for kind, target in targets:
        check_stdout(target, f"--{'html' if kind == 'page' else kind}", as_json)
        if target is not None:
            check_target(target, *inputs, kind=kind, force=overwrite)
    if html is not None and timeline is not None and html.resolve() == timeline.resolve():
        raise InputError("--html and --timeline name one file; name two", str(html))


def stale_notes(plan: Plan | GroupsPlan, path: Path) -> list[str]:
    """Notes on the files that a plan was solved from: which of them have changed, and which are missing."""
    from ..plans.check.solved_rules import UNREAD_TEXT, input_files, stale_inputs, unread_changes

    faults = list(stale_inputs(plan, path))
    rules = {
        one_line(file.path): next((fault.rule for fault in faults if fault.location[: len(loc)] == loc), None)
        for loc, file in input_files(plan)
    }
    changed = [name for name, rule in rules.items() if rule == "input-changed"]
    missing = [name for name, rule in rules.items() if rule not in ("input-changed", None)]
    notes = [f"solved from another {', '.join(changed)}; solve again before you run it"] if changed else []
    notes += [f"{one_line(name)} {UNREAD_TEXT}" for name in unread_changes(plan, path)]
    return notes + ([f"not here: {', '.join(missing)}"] if missing else [])


def _edited(plan: Plan | GroupsPlan) -> list[str]:
    """Notes on a plan that was edited after it was solved."""
    from ..plans.check.solved_rules import has_edited_decisions, has_edited_predictions
    from ..plans.schema.groups_plan import GroupsPlan

    refresh = "" if isinstance(plan, GroupsPlan) else ": rlplan refresh"
    notes = []
    if has_edited_decisions(plan):
        notes.append(f"its decisions were edited since it was solved, and the predictions are of those before{refresh}")
    if has_edited_predictions(plan):
        notes.append(f"its predictions were edited since it was solved; do not trust them{refresh}")
    return notes


def _print(
    result: dict[str, Any], files: dict[str, tuple[Path, str]], as_json: bool, screen: Callable[[int], RenderableType]
) -> int:
    from ..plans.yaml.yaml_io import STDOUT, atomic_write

    for name, (path, text) in files.items():
        atomic_write(path, text)
        result[name] = str(path)
    if as_json:
        click.echo(json.dumps(result))
        return 0
    from rich.console import Console

    from .screens.bars import drawn
    from .shared.output import tell

    targets = {name: path for name, (path, _) in files.items()}
    console = Console(highlight=False, stderr=STDOUT in targets.values())
    tools = {"html": "a browser", "timeline": "ui.perfetto.dev"}
    lines = [f"{name}: {path}; open it in {tools[name]}" for name, path in targets.items() if path != STDOUT]
    tell(drawn(console, [(screen(console.width), False), *((line, True) for line in lines)]), *targets.values())
    return 0
