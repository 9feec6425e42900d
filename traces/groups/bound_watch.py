"""The bound machine, fed with the journal of a group: what the driver of the group was told, or would have been."""

from __future__ import annotations

from collections.abc import Mapping

from ...plans.schema.sections.planned_group import GroupMember
from ...rounds.permits.bound_events import Bound, BoundEvent
from ...rounds.permits.bound_machine import BoundMachine
from .group_turns import GroupTurns


def bound_of(member: GroupMember) -> Bound:
    """Return the bound that a plan sets a job."""
    return Bound(alone_s=member.slowdown.alone_s, slo=member.slowdown.slo)


def bound_watch(
    turns: GroupTurns, members: Mapping[str, GroupMember], stretch: int
) -> tuple[BoundMachine, list[BoundEvent]]:
    """Return the machine after all turns of a journal, and all that it told; times as in the journal.

    Args:
        turns: of the group (`read_turns`).
        members: the plan's jobs of the group; turns of other jobs are passed over.
        stretch: the plan's `rules.stretch`.
    """
    machine = BoundMachine({name: bound_of(member) for name, member in members.items()}, stretch)
    told: list[BoundEvent] = []
    for turn in turns.turns:
        if turn.phase == "train" and turn.ended:
            told += machine.ended(turn.job, turn.arrival, turn.end_s)
    return machine, told
