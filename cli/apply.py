"""`rlplan apply PLAN`: another plan for a run, or for groups, that goes on."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import click

from ..plans.phrases.numbers import seconds
from ..plans.phrases.sentences import one_line
from ..plans.yaml.errors import InputError, RunFailed
from .main import EXIT_FAILED
from .shared.options import Finite, trust_option

LOOK_S = 0.5
"""How often the journal of moves is read."""

HEARD_S = 60.0
"""Seconds within which the driver must have answered: it looks about once a second."""


@click.command("apply")
@click.argument("plan", metavar="PLAN", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder of what runs: the --out of execute."
)
@click.option("--dry-run", is_flag=True, help="Check the plan, print what it changes, and stop.")
@trust_option
@click.option(
    "--timeout",
    type=Finite(min=1),
    default=None,
    help="Seconds until the command stops waiting; what it asked for goes on. Default: until all is done.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line.")
def apply_command(plan: Path, out: Path, dry_run: bool, trust: str | None, timeout: float | None, as_json: bool) -> int:
    """Have what runs in --out go on by PLAN.

    A plan of one job is taken at the end of the step at hand. Where it needs other engines, trainers or reward workers
    than the run has, these are started anew from a checkpoint; else nothing stops. What the old plan deferred is
    trained first. A plan that cannot be started is refused, and the run goes on by the plan that it has. A run that
    does not go on takes it with `rlplan execute PLAN --out RUN --resume`.

    A plan of groups is what `rlplan solve workload.yaml --from OUT/groups.yaml` wrote. Jobs that it lacks stop at the
    end of their step, with a checkpoint; jobs that it moves do the same, and start again on their new nodes; jobs that
    are new start when the others have made room. A group never has jobs of both plans together, so that every bound
    holds on the way. The driver of the groups makes the moves and writes each into OUT/moves.jsonl: if this command is
    ended, the moves go on, and the same command shows them again. If the driver ends, `rlplan execute GROUPS --out OUT
    --resume` makes the moves that are left.
    """
    from ..plans.yaml.yaml_io import document_kind

    if document_kind(plan) == "rlplan":
        return _told_of_run(apply_to_run(plan, out, dry_run, timeout, trust), as_json)
    from ..executor.groups.group_change import MoveRequest, planned_change, write_request
    from ..plans.yaml.yaml_io import sha256_file
    from ..traces.groups.groups_status import groups_status
    from .shared.findings import memory_findings, must_fit_memory
    from .shared.trust import must_be_trusted, trust_of

    status = groups_status(out)
    known = status["moves"]
    if known is not None and known["sha256"] == sha256_file(plan):
        if dry_run or known["state"] == "applied":
            return _told(known, as_json)
        request_id = known["id"]
    else:
        ended = {name for name, row in status["jobs"].items() if row["state"] == "ended"}
        change = planned_change(out, plan, ended)
        jobs = [job for group in change.groups.values() for job in group.jobs]
        must_fit_memory([finding for job in jobs for finding in memory_findings(job.execution.plan_path)])
        if dry_run:
            return _told({"plan": str(plan), "state": "not applied", "moves": change.rows()}, as_json)
        must_be_trusted(trust_of([job.execution for job in jobs], plan), trust, plan)
        if not status["running"]:
            raise InputError("no driver runs its groups; start them with rlplan execute --resume, then apply", str(out))
        request_id = uuid.uuid4().hex
        write_request(out, MoveRequest(request_id, str(plan.resolve()), change.sha256))
    return _told(_followed(out, plan, request_id, timeout), as_json)


def _followed(out: Path, plan: Path, request_id: str, timeout: float | None) -> dict[str, Any]:
    """Show what becomes of a request until all its moves are made; returns them. Raises RunFailed, InputError if the
    driver refuses the plan."""
    from ..traces.groups.group_journal import GROUPS_COPY
    from ..traces.groups.groups_folder import moves_of, refusal_of, request_file
    from ..traces.run_log import driver_runs

    began, shown = time.monotonic(), dict[str, str]()
    waits = request_file(out, request_id)
    while True:
        running = driver_runs(out)  # asked first, so that what it wrote last is read after it
        moves = moves_of(out)
        if moves is not None and moves["id"] == request_id:
            _tell_changes(moves, shown)
            if moves["state"] == "applied":
                return moves
        elif (reason := refusal_of(out, request_id)) is not None:
            raise InputError(f"the driver of {out} refuses it: {reason}", str(plan))
        elif not running or (waits.exists() and time.monotonic() - began > HEARD_S):
            waits.unlink(missing_ok=True)
            why = f"did not answer within {HEARD_S:.0f} s" if running else "has ended"
            copy = out / GROUPS_COPY
            raise RunFailed(
                f"the driver {why}, and the plan is not applied; resume the groups with the plan that they run (a copy "
                f"is {copy}), then apply again"
            )
        if not running:
            raise RunFailed(
                f"the driver has ended; rlplan execute {plan} --out {out} --resume makes the moves that are left"
            )
        if timeout is not None and time.monotonic() - began > timeout:
            raise RunFailed(f"moves are left after {timeout:.0f} s, and go on; see rlplan status {out}")
        time.sleep(LOOK_S)


def _tell_changes(moves: dict[str, Any], shown: dict[str, str]) -> None:
    """Print which moves are at another state than last time, on standard error."""
    for move in moves["moves"]:
        job, state = move["job"], move["state"]
        if shown.get(job, "to do") != state:
            shown[job] = state
            took = f" after {seconds(move['outage_s'])} of outage" if state == "made" and "outage_s" in move else ""
            why = f": {one_line(move['reason'])}" if state in ("failed", "lacks nodes") else ""
            click.echo(f"{one_line(job)}: {state}{took}{why}", err=True)


def _told(moves: dict[str, Any], as_json: bool) -> int:
    """Print the moves; returns the exit code."""
    from .screens.groups_text import moves_lines

    click.echo(json.dumps(moves) if as_json else "\n".join(moves_lines(moves)))
    return EXIT_FAILED if any(move.get("state") == "failed" for move in moves["moves"]) else 0


def apply_to_run(
    plan: Path, out: Path, dry_run: bool = False, timeout: float | None = None, trust: str | None = None
) -> dict[str, Any]:
    """Have the run in `out` go on by `plan`, and wait until it does, `timeout` seconds at most.

    Returns `plan`, `state` (`in force` before, `not applied`, `applied`), `changes` of decisions (by dotted key old and
    new), and of one that is applied `from_step`. Raises InputError for a plan that the run cannot go on by, RunFailed
    if it ended or did not take the plan in time.
    """
    from ..executor.groups.group_change import MoveRequest, write_request
    from ..executor.prepare import placement_of, prepare
    from ..executor.records.plan_changes import plan_change
    from ..traces.run_log import TRACE, driver_runs
    from .shared.findings import memory_findings, must_fit_memory
    from .shared.trust import must_be_trusted, trust_of

    must_fit_memory(memory_findings(plan))
    (asked,) = prepare([plan], out, resume=True)
    placement_of([asked])
    change = plan_change(out, asked.text, asked.plan)
    result: dict[str, Any] = {"plan": str(plan), "state": "in force", "changes": {}}
    if change is None:
        return result
    result |= {"state": "not applied", "changes": {key: list(values) for key, values in change.changes.items()}}
    if dry_run:
        return result
    must_be_trusted(trust_of([asked]), trust, plan)
    if not driver_runs(out):
        raise InputError(
            f"is not running; to continue it by this plan: rlplan execute {plan} --out {out} --resume", str(out)
        )
    read = (out / TRACE).stat().st_size
    request = MoveRequest(uuid.uuid4().hex, str(plan.resolve()), change.sha256)
    write_request(out, request)
    event = _answer(out, request.id, change.sha256, read, timeout)
    if event["event"] == "plan_refused":
        raise InputError(f"the run in {out} refuses it: {event.get('reason')}", str(plan))
    return result | {"state": "applied", "from_step": int(event["step"]) + 1, "owed": int(event.get("owed", 0))}


def _answer(out: Path, request_id: str, sha256: str, read: int, timeout: float | None) -> dict[str, Any]:
    """The event of a run's trace, after its first `read` bytes, that answers a request. Raises RunFailed if none
    comes."""
    from ..traces.groups.groups_folder import request_file
    from ..traces.run_log import TRACE, driver_runs

    began = time.monotonic()
    while True:
        running = driver_runs(out)  # asked first, so that what it wrote last is read after it
        with (out / TRACE).open("rb") as file:
            file.seek(read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                read += len(line)
                if line.startswith((b'{"event":"plan"', b'{"event":"plan_refused"')):
                    event: dict[str, Any] = json.loads(line)
                    if sha256 == event.get("sha256") or request_id == event.get("id"):
                        return event
        late = timeout is not None and time.monotonic() - began > timeout
        if not running:
            request_file(out, request_id).unlink(missing_ok=True)
            raise RunFailed(f"the run in {out} has ended before it took the plan; go on by it with --resume")
        if late:
            raise RunFailed(f"the run in {out} has not ended its step within {timeout:.0f} s; it takes the plan then")
        time.sleep(LOOK_S)


def _told_of_run(result: dict[str, Any], as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(result))
        return 0
    for key, (old, new) in result["changes"].items():
        click.echo(f"{key}  {old} -> {new}")
    click.echo(
        {
            "in force": "the run has this plan already",
            "not applied": "the run can go on by this plan; nothing is applied (--dry-run)",
            "applied": f"applied: from step {result.get('from_step')} on the run goes by {result['plan']}",
        }[result["state"]]
    )
    return 0
