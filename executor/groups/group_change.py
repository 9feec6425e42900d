"""What a new plan of groups changes for the jobs that run, checked before any job is moved; requests and the journal.

The running plan is the copy in the folder of the groups.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...plans.schema.groups_plan import GroupsPlan, load_groups_plan
from ...plans.yaml.errors import InputError, RunFailed
from ...plans.yaml.yaml_io import atomic_write, sha256_file
from ...rounds.permits.move_machine import JobMove
from ...rounds.permits.permit_events import PlacedJob
from ...traces.groups.group_journal import GROUPS_COPY
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
from .prepare_group import PreparedGroup, checked_groups, placed_job

# A plan numbers the units of its groups from 0. A group that runs has numbers of its own, its *live units*: the number
# of a unit never changes while a job holds it, and no other node gets it later, so that a number means the same node in
# all of the group's journal. Nodes of a pool are alike, and a job that stays keeps its nodes.

Units = tuple[int, ...]


def live_units(
    running: Mapping[str, PlacedJob],
    planned: Mapping[str, PlacedJob],
    nodes: Sequence[Units],
    stay: Collection[str],
    fresh: int,
) -> list[Units]:
    """The live units of each node of a plan's group, in the order of the plan's nodes.

    Args:
        running: jobs that run, in live units.
        planned: the plan's jobs, in its units.
        nodes: the plan's units of each of its nodes; jobs hold whole nodes.
        stay: jobs of both that keep their nodes.
        fresh: the first number that no unit had yet; nodes without a job that stays get numbers from here.

    Raises ValueError if the jobs that stay do not share nodes as they do in the plan.
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


def in_live_units(placed: PlacedJob, nodes: Sequence[Units], live: Sequence[Units]) -> PlacedJob:
    """A plan's job in live units; `nodes` and `live`: the plan's and the live units of each node (`live_units`)."""
    of = {old: new for olds, news in zip(nodes, live, strict=True) for old, new in zip(olds, news, strict=True)}
    rollout, train = (tuple(sorted(of[unit] for unit in phase)) for phase in placed.units)
    return replace(placed, units=(rollout, train))


def _on(units: Sequence[int], jobs: Mapping[str, PlacedJob], stay: Collection[str]) -> frozenset[tuple[str, int]]:
    """The (job, phase) pairs of jobs that stay on a node of these units."""
    return frozenset(
        (name, phase) for name in stay for phase, held in enumerate(jobs[name].units) if set(units) & set(held)
    )


@dataclass(frozen=True)
class MoveRequest:
    """A request of `rlplan apply`: its id, and the path and digest of the plan that is to be applied."""

    id: str
    plan: str
    sha256: str


def write_request(out: Path, request: MoveRequest) -> None:
    """Write a request for the driver of the groups in a folder. Raises RunFailed if it cannot be written."""
    path = request_file(out, request.id)
    try:
        atomic_write(path, json.dumps(vars(request)))
    except InputError as error:
        raise RunFailed(f"the plan is not applied: {error}") from None


def take_request(out: Path) -> MoveRequest | None:
    """Take the oldest request out of a folder; None: there is none that can be read."""
    for path in requests(out):
        try:
            text, owner = path.read_text(encoding="utf-8"), path.stat().st_uid
            path.unlink()
            request = MoveRequest(**json.loads(text))
        except (OSError, ValueError, TypeError):
            continue
        # A plan leads to a job's code, which runs as the driver's user.
        if owner == os.getuid() and all(isinstance(value, str) for value in vars(request).values()):
            return request
    return None


class MoveJournal:
    """Writes the journal of plans that were applied to running groups, and of what each job's move took (`moves.jsonl`,
    seconds since its first line; docs/trace.md lists its events). An existing journal is continued.

    `unfinished`: the plan whose moves are not all made, in the form of `moves_of`; None: there is none. Raises
    InputError if the journal is damaged, RunFailed if an event cannot be written.
    """

    def __init__(self, out: Path) -> None:
        with move_events(out) as events:
            last = last_moves(events)
            self.unfinished = None if last is None or last["state"] == "applied" else last
            self._began_s = float(events[0]["began_s"]) if events else time.time()
            replans = [event for event in events if event["event"] == "proposed"]
            self._applied_s = max((event["t_s"] for event in replans if event["applies"]), default=None)
        self.proposals = len(replans)
        """Number of re-plans that were proposed so far."""
        self._writer = TraceWriter(out / MOVES)
        if not events:
            self.write("groups", began_s=self._began_s)

    def write(self, event: str, /, **fields: Any) -> None:
        """Append an event; on return it is on the disk."""
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
    """The change from the running plan to a new one that passed all checks.

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
    """The change from the plan that runs in a folder to the plan at `path`; `ended`: jobs that have ended.

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
    """The folder of a job's run, and whether the run continues there."""
    folder = job_folder(out, name)
    return (out / key / name, False) if folder is None else (folder, True)


def _moves(
    running: GroupsPlan, plan: GroupsPlan, ended: Collection[str]
) -> tuple[tuple[JobMove, ...], dict[str, float | None]]:
    """The moves from one plan to another, in order: jobs that leave, jobs that move, jobs that join; and by job the
    seconds of its outage. Jobs that have ended have no move."""
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
        jobs = {name: placed_job(name, before.jobs[name]) for name in stay}
        try:
            live_units(jobs, {job.name: job.placed for job in group.jobs}, group.units, stay, 10**6)
        except ValueError as error:
            raise InputError(
                f"group {key}: {error}, without a move; solve again with --from", str(change.path)
            ) from None
