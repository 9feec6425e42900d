"""`rlplan refresh PLAN`"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..plans.yaml.errors import Infeasible, InputError, joined
from .shared.options import force_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..plans.check.finding import Fault
    from ..plans.schema.plan import Inputs, Plan
    from ..plans.yaml.yaml_doc import Loc


@click.command("refresh")
@click.argument("plan_path", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("--out", "-o", type=click.Path(path_type=Path), help="Where the plan goes. Default: PLAN itself.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the simulation, as of the solve."
)
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print a summary as one JSON line.")
def refresh_command(plan_path: Path, out: Path | None, seed: int, overwrite: bool, as_json: bool) -> int:
    """Predict PLAN anew after its decisions were edited, and write it as a valid plan.

    The decisions stay as they are. Predictions, digests and reasons are computed again from the plan's own inputs, as
    `rlplan solve` does, and the plan says that it was edited and refreshed. Its gap is then the distance from the
    solver's bound. A plan that was not edited does not change. Comments of the file are lost.

    A plan that `rlplan check` would reject is not written: an edit that does not fit cluster, job or profile is bad
    input; one that breaks the job's limits, or needs too much memory, is no feasible plan.
    """
    from ..api.input_paths import check_target, plan_inputs
    from ..api.job_timeline import data_prompts
    from ..planner.refresh import refresh
    from ..planner.what_if import load_documents
    from ..plans.schema.plan import load_plan
    from ..plans.yaml.yaml_io import WRITTEN_DIGITS, document_kind, error_at, write_document
    from .screens.solved import plan_summary, plan_text
    from .shared.findings import MEMORY_RULES
    from .shared.output import check_stdout, share, tell

    if document_kind(plan_path) == "rlplan_groups":
        raise InputError("is a plan of groups, which is solved anew: rlplan solve WORKLOAD --from PLAN", str(plan_path))
    out = out or plan_path
    check_stdout(out, "--out", as_json)
    check_target(out, *plan_inputs(plan_path)[1:], kind="plan", force=overwrite)
    plan = load_plan(plan_path)
    faults = [fault for fault in _faults(plan, plan_path) if not _is_rewritten(fault)]
    if bad_input := [fault for fault in faults if fault.rule not in MEMORY_RULES]:
        raise joined([error_at(plan_path, fault.location, f"{fault.key}: {fault.text}") for fault in bad_input])
    if faults:  # of memory only: no simulation is needed to refuse them
        raise _infeasible(faults, plan_path)
    documents = load_documents(plan_path)
    with share("refresh") as update:
        try:
            new = refresh(
                plan,
                documents.cluster,
                documents.job,
                documents.profile,
                documents.trace,
                _inputs(plan, plan_path, out),
                documents.model,
                seed=seed,
                progress=update,
                prompts=data_prompts(documents, plan_path),
            )
        except InputError as error:
            # `refresh` does not know the plan's file.
            raise error if error.path else InputError(error.message, str(plan_path)) from None
    if faults := _faults(new, out):
        raise _infeasible(faults, plan_path)
    write_document(new, out, WRITTEN_DIGITS)
    summary = {**plan_summary(new, out), "edited": new.solver.refreshed}
    tell(json.dumps(summary) if as_json else plan_text(new, out), out)
    return 0


def _faults(plan: Plan, path: Path) -> list[Fault]:
    """Faults for which `rlplan check`, without a policy, rejects a plan at `path`; warnings are left out."""
    from ..planner.check.check_options import CheckOptions
    from ..planner.check.plan_rules import plan_faults
    from ..plans.check.rules import RULES

    faults, _ = plan_faults(plan, str(path), CheckOptions(datetime.now(UTC), None, None))
    return [fault for fault in faults if not RULES[fault.rule].warning]


_OF_PREDICTIONS = (
    "decisions-edited", "predictions-edited", "other-version", "solved-at-unlikely", "provenance-differs"
)  # fmt: skip


def _is_rewritten(fault: Fault) -> bool:
    """Whether a fault is in a part of the plan that refresh writes anew, and not in the decisions."""
    from ..plans.check.rules import RULES

    of_figures = fault.location[0] == "predicted" or RULES[fault.rule].family == "predictions"
    return of_figures or fault.rule in _OF_PREDICTIONS


def _infeasible(faults: Sequence[Fault], plan_path: Path) -> Infeasible:
    """The faults as one error, a line each, at the decisions that cause them."""
    from ..plans.yaml.yaml_io import error_at

    decided = {fault.rule for fault in faults if fault.location[0] == "job"}
    lines: dict[str, None] = {}
    for fault in faults:
        if fault.location[0] == "predicted" and fault.rule in decided:
            continue
        location = _decision_of(fault.location)
        remedy = f"{fault.remedy}, then refresh again" if fault.remedy else "edit the plan again"
        lines[str(error_at(plan_path, location, f"{'.'.join(map(str, location))}: {fault.message}; {remedy}"))] = None
    return Infeasible("\n".join(lines))


def _decision_of(location: Loc) -> Loc:
    """The decisions behind a predicted memory bar, since the bar itself is not edited; any other location as it is."""
    if location[:2] == ("predicted", "rounds") and "memory" in location:
        return ("job", "rounds", location[2], "train" if "train" in location else "rollout")
    return ("job", "rounds") if location[:2] == ("predicted", "host_memory") else location


def _inputs(plan: Plan, plan_path: Path, out: Path) -> Inputs:
    """The plan's inputs with paths relative to `out`, and with digests of the files as they are now."""
    from ..api.given_documents import inputs_of, lengths_input
    from ..plans.check.solved_rules import input_path
    from ..plans.yaml.yaml_io import load
    from ..profiles.profile_schema import Profile

    old, trace = plan.inputs, plan.inputs.lengths.file
    cluster, job, profile = (input_path(file, plan_path) for file in (old.cluster, old.job, old.profile))
    lengths = old.lengths if trace is None else lengths_input(input_path(trace, plan_path), out)
    return inputs_of(out, cluster, job, profile, load(profile, Profile), lengths)
