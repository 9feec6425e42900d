"""What a new plan of groups changes for the jobs that run: every check before a job is touched.

The running plan is the copy in the folder of the groups. Nothing is written here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...plans.schema.groups_plan import GroupsPlan, load_groups_plan
from ...plans.yaml.errors import InputError, RunFailed
from ...plans.yaml.yaml_io import atomic_write, sha256_file
from ...rounds.permits.move_machine import JobMove
from ...rounds.permits.permit_events import Seat
from ...traces.groups.group_turns import GROUPS_COPY
from ...traces.groups.groups_folder import (
    MOVES,
    is_one_groups,
    job_folder,
    last_moves,
    move_events,
    request_file,
    requests,
)
from ...traces.trace import TraceWriter
from .prepare_group import PreparedGroup, checked_groups, seat_of

# The units of a group that runs, for those of a plan: nodes of a pool are alike, and a job that stays keeps its own.
#
# A plan numbers the units of its groups from 0. Numbers of a group that runs never change while a job holds the unit,
# and none is given to another node later, so that the journal of turns means the same nodes from beginning to end.

Units = tuple[int, ...]


def live_units(
    running: Mapping[str, Seat], planned: Mapping[str, Seat], nodes: Sequence[Units], stay: Collection[str], fresh: int
) -> list[Units]:
    """The live units of each node of a plan's group, in the order of the plan's nodes.

    Args:
        running: seats of the jobs that run, in live units.
        planned: seats of the plan's jobs, in its units.
        nodes: the plan's units of each of its nodes; jobs hold whole nodes.
        stay: jobs of both that keep their nodes.
        fresh: the first number that no unit had yet; nodes that no such job is on get these.

    Raises ValueError if the jobs that stay do not meet on nodes as they do in the plan.
    """
    there: dict[frozenset[tuple[str, int]], list[int]] = {}
    for unit in sorted({unit for name in stay for phase in running[name].units for unit in phase}):
        there.setdefault(_on([unit], running, stay), []).append(unit)
    found: list[Units] = []
    for units in nodes:
        met = _on(units, planned, stay)
        if not met:
            found.append(tuple(range(fresh, fresh + len(units))))
            fresh += len(units)
            continue
        left = there.get(met, [])
        if len(left) < len(units):
            raise ValueError(f"{', '.join(sorted({name for name, _ in met}))}: other nodes than those that it has")
        found.append(tuple(left[: len(units)]))
        there[met] = left[len(units) :]
    if any(there.values()):
        raise ValueError(f"{', '.join(sorted(stay))}: fewer nodes than they have")
    return found


def live_seat(seat: Seat, nodes: Sequence[Units], live: Sequence[Units]) -> Seat:
    """A plan's seat in live units; `nodes` and `live`: of each node, as of `live_units`."""
    of = {old: new for olds, news in zip(nodes, live, strict=True) for old, new in zip(olds, news, strict=True)}
    rollout, train = (tuple(sorted(of[unit] for unit in phase)) for phase in seat.units)
    return replace(seat, units=(rollout, train))


def _on(units: Sequence[int], seats: Mapping[str, Seat], stay: Collection[str]) -> frozenset[tuple[str, int]]:
    """The (job, phase) pairs of jobs that stay on a node of these units."""
    return frozenset(
        (name, phase) for name in stay for phase, held in enumerate(seats[name].units) if set(units) & set(held)
    )


# The journal of plans that were applied to running groups, and of what each job's move took.
#
# The driver of the groups writes it (`moves.jsonl`, seconds since its first line); `rlplan apply` and `rlplan status`
# read it. docs/trace.md lists its events.


@dataclass(frozen=True)
class MoveRequest:
    """What `rlplan apply` asks for: the plan at this path, which had this digest; `id` names the request."""

    id: str
    plan: str
    sha256: str


def write_request(out: Path, request: MoveRequest) -> None:
    """Ask the driver of the groups in a folder. Raises RunFailed if the disk does not take it."""
    path = request_file(out, request.id)
    try:
        atomic_write(path, json.dumps(vars(request)))
    except InputError as error:
        raise RunFailed(f"the plan is not applied: {error}") from None


def take_request(out: Path) -> MoveRequest | None:
    """The oldest request that waits in a folder, which waits no more; None: there is none that can be read."""
    for path in requests(out):
        try:
            text = path.read_text(encoding="utf-8")
            path.unlink()
            return MoveRequest(**json.loads(text))
        except (OSError, ValueError, TypeError):
            continue
    return None


class MoveJournal:
    """Writes the journal; goes on with one that is there. `unfinished`: the plan whose moves are left, as `moves_of`
    tells it; None: none are.

    Raises InputError if it is damaged, RunFailed if the disk does not take an event.
    """

    def __init__(self, out: Path) -> None:
        with move_events(out) as events:
            last = last_moves(events)
            self.unfinished = None if last is None or last["state"] == "applied" else last
            self._began_s = float(events[0]["began_s"]) if events else time.time()
            replans = [event for event in events if event["event"] == "proposed"]
            self._applied_s = max((event["t_s"] for event in replans if event["applies"]), default=None)
        self.proposals = len(replans)
        """Re-plans that were proposed so far."""
        self._writer = TraceWriter(out / MOVES)
        if not events:
            self.write("groups", began_s=self._began_s)

    def write(self, event: str, /, **fields: Any) -> None:
        """Append an event, and have it on the disk."""
        now_s = max(0.0, time.time() - self._began_s)
        if event == "proposed":
            self.proposals += 1
            self._applied_s = now_s if fields["applies"] else self._applied_s
        try:
            self._writer.write(event, now_s, **fields)
            self._writer.flush()
        except OSError as error:
            raise RunFailed(f"the journal of moves cannot be written ({error.strerror}); make room") from error

    def hours_since_applied(self) -> float | None:
        """Hours since a re-plan was applied without asking a person; None: none was."""
        return None if self._applied_s is None else max(0.0, time.time() - self._began_s - self._applied_s) / 3600.0

    def close(self) -> None:
        """Close it."""
        self._writer.close()


@dataclass(frozen=True)
class GroupChange:
    """A plan that passed all checks, beside the one that runs.

    Attributes:
        path: of the new plan.
        sha256: its digest.
        groups: the new plan's groups, by id.
        moves: of the jobs, in the order of the plan.
        price_s: predicted seconds of each move's outage; None where the plan has none.
    """

    path: Path
    sha256: str
    groups: dict[str, PreparedGroup]
    moves: tuple[JobMove, ...]
    price_s: dict[str, float | None]

    def rows(self) -> list[dict[str, str | float | None]]:
        """The moves, for JSON."""
        return [
            {"job": m.job, "from_group": m.from_group, "to_group": m.to_group, "price_s": self.price_s[m.job]}
            for m in self.moves
        ]


def planned_change(out: Path, path: Path, ended: Collection[str]) -> GroupChange:
    """The change from the plan that runs in a folder to the plan at `path`; `ended`: jobs that do not run any more.

    Raises InputError if the new plan was not solved from the running one, if one of its groups or jobs cannot be
    executed, or if jobs would change nodes without a move.
    """
    copy = out / GROUPS_COPY
    if not copy.is_file():
        raise InputError("holds no groups that run; start them with rlplan execute", str(out))
    if is_one_groups(out):
        raise InputError(
            "runs one group alone (--group), whose jobs cannot be moved; stop it, and execute all groups of the new "
            "plan with another --out",
            str(out),
        )
    running, plan = load_groups_plan(copy), load_groups_plan(path)
    previous = plan.inputs.previous
    if previous is None or previous.sha256 != sha256_file(copy):
        whose = "anew" if previous is None else "from another plan than the one that runs"
        raise InputError(f"was solved {whose}; solve with --from {copy}", str(path))
    if plan.rules.policy != running.rules.policy:
        raise InputError(
            f"its permit rule is {plan.rules.policy}, and that of the running groups {running.rules.policy}, which "
            "cannot change while they run; keep rules.policy, or stop the groups and start anew",
            str(path),
        )
    groups = {group.key: group for group in checked_groups(path, None, lambda key, name: _folder(out, key, name))}
    moves, price_s = _moves(running, plan, ended)
    change = GroupChange(path, sha256_file(path), groups, moves, price_s)
    _check_stayers(running, ended, change)
    return change


def _folder(out: Path, key: str, name: str) -> tuple[Path, bool]:
    """The folder of a job's run, which goes on if it has one."""
    folder = job_folder(out, name)
    return (out / key / name, False) if folder is None else (folder, True)


def _moves(
    running: GroupsPlan, plan: GroupsPlan, ended: Collection[str]
) -> tuple[tuple[JobMove, ...], dict[str, float | None]]:
    """The moves from one plan to another, in order: jobs that leave, those that move, those that join. A job that has
    ended stays so, and leaves without a move."""
    old = {name: key for key, group in running.groups.items() for name in group.jobs}
    new = {name: key for key, group in plan.groups.items() for name in group.jobs}
    leave = [JobMove(name, key, None) for name, key in old.items() if name not in new and name not in ended]
    join = [JobMove(name, None, key) for name, key in new.items() if name not in old]
    move = [JobMove(m.job, m.from_group, m.to_group) for m in plan.moves if m.job in old and m.job not in ended]
    price_s: dict[str, float | None] = {m.job: 0.0 for m in leave}
    price_s |= {m.job: m.price_s for m in plan.moves}
    price_s |= {m.job: plan.groups[new[m.job]].jobs[m.job].cold_s for m in join}
    return (*leave, *move, *join), price_s


def _check_stayers(running: GroupsPlan, ended: Collection[str], change: GroupChange) -> None:
    """Raises InputError if a job would change nodes or groups without a move."""
    gone = {*ended, *(move.job for move in change.moves)}
    for key, before in running.groups.items():
        stay = [name for name in before.jobs if name not in gone]
        group = change.groups.get(key)
        if lost := [name for name in stay if group is None or all(job.name != name for job in group.jobs)]:
            raise InputError(
                f"{', '.join(lost)}: in another group than now without a move; solve again with --from",
                str(change.path),
            )
        if group is None or not stay:
            continue
        seats = {name: seat_of(name, before.jobs[name]) for name in stay}
        try:
            live_units(seats, {job.name: job.seat for job in group.jobs}, group.units, stay, 10**6)
        except ValueError as error:
            raise InputError(
                f"group {key}: {error}, without a move; solve again with --from", str(change.path)
            ) from None
