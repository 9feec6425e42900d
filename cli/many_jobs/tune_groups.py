"""`rlplan tune RUN` of co-execution groups: the seconds of switches that the run measured go into its workload."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...plans.phrases.numbers import count, seconds
from ...plans.phrases.sentences import one_line

if TYPE_CHECKING:
    from ...planner.groups.inputs.measured_phases import MeasuredSwitch


def tune_groups_command(run: Path, plan_path: Path | None, out: Path | None, overwrite: bool, as_json: bool) -> int:
    """Compare the switches of a run with those of its plan, and write a workload where they differ."""
    from ...api.input_paths import check_target
    from ...planner.groups.inputs.measured_phases import measured_switches, tuned_workload
    from ...plans.check.plan_check import input_path
    from ...plans.schema.groups_plan import load_groups_plan
    from ...plans.yaml.editor_schemas import place_schema
    from ...plans.yaml.errors import InputError
    from ...plans.yaml.yaml_io import atomic_write, sha256_file
    from ...traces.groups.group_turns import GROUPS_COPY
    from ..shared.paths import must_be_file

    if plan_path is None:
        raise InputError("is a run of groups; name the plan that it runs with --plan groups.yaml", str(run))
    plan, copy = load_groups_plan(plan_path), run / GROUPS_COPY
    if not copy.is_file() or sha256_file(copy) != sha256_file(plan_path):
        raise InputError(
            f"runs another plan of groups than {plan_path} is now (a copy is {GROUPS_COPY} in it)", str(run)
        )
    workload = input_path(plan.inputs.workload, plan_path)
    out = out or workload.with_name(f"{workload.stem}.tuned.yaml")
    if out.resolve().parent != workload.resolve().parent:
        raise InputError(f"must be in the folder of {workload}, whose paths are relative to it", str(out))
    must_be_file(out, "a workload is written there")
    check_target(out, workload, plan_path, kind="document", force=overwrite)
    switches = measured_switches(run, plan)
    changes = [switch for switch in switches if switch.changes]
    if changes:
        atomic_write(out, tuned_workload(workload, changes))
        place_schema(out.parent, "workload")
    result = {
        "decision": "change" if changes else "keep",
        "switches": [asdict(switch) for switch in switches],
        "workload": str(out) if changes else None,
    }
    click.echo(json.dumps(result) if as_json else _text(switches, plan_path, out if changes else None))
    return 0


def _text(switches: list[MeasuredSwitch], plan_path: Path, out: Path | None) -> str:
    wide = max(len(one_line(switch.job)) for switch in switches) + 2
    lines = [f"{'switch of':{wide + 9}}{'planned':>10}{'measured':>10}{'error':>10}"]
    for switch in switches:
        figures = (switch.planned_s, switch.measured_s, switch.error_s)
        cells = "".join(f"{seconds(figure):>10}" for figure in figures)
        kept = "" if switch.changes else "   kept"
        lines.append(f"{one_line(switch.job):{wide}}{switch.phase:9}{cells}   of {count(switch.turns, 'turn')}{kept}")
    if out is None:
        return "\n".join([*lines, "keep: no switch differs by more than its error, and by what groups would show"])
    return "\n".join([*lines, f"change: -> {out}; rlplan solve {out} --from {plan_path} says what to move"])
