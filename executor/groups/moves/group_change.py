"""What a new plan of groups changes for the jobs that run: every check before a job is touched.

The running plan is the copy in the folder of the groups. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ....plans.schema.groups_plan import GroupsPlan, load_groups_plan
from ....plans.yaml.errors import InputError
from ....plans.yaml.yaml_io import sha256_file
from ....rounds.permits.move_machine import JobMove
from ....traces.groups.group_turns import GROUPS_COPY
from ....traces.groups.groups_folder import is_one_groups, job_folder
from ..prepare_group import PreparedGroup, checked_groups, seat_of
from .live_units import live_units


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
