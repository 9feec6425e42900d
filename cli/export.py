"""`rlplan export PLAN --to FRAMEWORK`: a plan as the files and flags of another trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..plans.yaml.errors import InputError
from .shared.options import force_option

if TYPE_CHECKING:
    from ..frameworks.exports.draft import FrameworkExport, Price
    from ..plans.facts.trainer_setup import Framework

_COLOURS = {"mapped": "green", "approximated": "yellow", "not expressible": "red"}


@click.command("export")
@click.argument("plan_path", metavar="PLAN", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "framework",
    type=click.Choice(["trl", "verl", "slime", "vime", "skyrl", "openrlhf"]),
    required=True,
    help="The trainer that the files are for.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder of the files. Default: PLAN's name and the trainer's."
)
@click.option(
    "--no-plugin", is_flag=True, help="Keys only: leave out rlplan's plug-in, which runs the plan's rounds there."
)
@click.option("--simulate", "priced", is_flag=True, help="Simulate what approximations cost (half a minute for each).")
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line.")
def export_command(
    plan_path: Path,
    framework: Framework,
    out: Path | None,
    no_plugin: bool,
    priced: bool,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Write PLAN as the files of another trainer, with a line that starts it there.

    Each decision of the plan is mapped, approximated (and what that costs), or not expressible; a list says so. With
    rlplan's plug-ins TRL, verl, slime and vime run the plan's own rounds (exact, race, defer); the files use them
    unless --no-plugin is given.

    Every key that is written exists in the version that is named, and does something there. Of a plan of groups the
    placement of each job is written, in a folder for each.
    """
    from ..frameworks.exports.export_groups import export_groups
    from ..frameworks.exports.export_plan import export_plan
    from ..plans.yaml.yaml_io import document_kind

    out = out or Path(f"{plan_path.stem}-{framework}")
    if document_kind(plan_path) == "rlplan_groups":
        of_jobs = export_groups(plan_path, framework)
        for name, each in of_jobs.items():
            _write(out / name, each, overwrite)
        if as_json:
            click.echo(json.dumps({"jobs": {name: _facts(out / name, each) for name, each in of_jobs.items()}}))
        else:
            for name, each in of_jobs.items():
                _show(out / name, each)
        return 0
    price = _price(plan_path) if priced else None
    export = export_plan(plan_path, framework, out, plugin=not no_plugin, price=price)
    _write(out, export, overwrite)
    if as_json:
        click.echo(json.dumps(_facts(out, export)))
    else:
        _show(out, export)
    return 0


def _price(plan_path: Path) -> Price:
    """What a step takes longer with other values of the plan, as a share, by simulation."""
    from ..api.simulate_run import simulate

    own: list[float] = []

    def mean(changes: Mapping[str, Any]) -> float:
        return float(simulate(plan_path, set=changes, steps=60).figures["all"]["step_s"]["mean"])

    def price(changes: Mapping[str, Any]) -> float | None:
        try:
            if not own:
                own.append(mean({}))
            return mean(changes) / own[0] - 1.0
        except InputError:
            return None  # the profile has no costs of such a layout

    return price


def _write(folder: Path, export: FrameworkExport, overwrite: bool) -> None:
    try:
        there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        if there and not overwrite:
            raise InputError(f"is not empty ({', '.join(there[:3])}); name a new folder, or add --force", str(folder))
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in export.files.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}; name another folder", str(folder)) from None


def _facts(folder: Path, export: FrameworkExport) -> dict[str, Any]:
    return {
        "framework": export.framework,
        "version": export.version,
        "folder": str(folder),
        "files": sorted(export.files),
        "launch": export.launch,
        "decisions": [decision.as_dict() for decision in export.decisions],
    }


def _show(folder: Path, export: FrameworkExport) -> None:
    click.echo(f"{export.framework} {export.version}, in {folder}: {', '.join(sorted(export.files))}")
    for status in ("not expressible", "approximated", "mapped"):
        chosen = [each for each in export.decisions if each.status == status]
        click.echo(click.style(f"{status}: {len(chosen)}", fg=_COLOURS[status]))
        for each in chosen:
            there = " = ".join(filter(None, (each.key, each.value)))
            click.echo(f"  {each.decision}: {'; '.join(filter(None, (there, each.cost)))}")
    click.echo(f"start it there: {export.launch}")
