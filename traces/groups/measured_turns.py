"""What the turns of a group's jobs took, without the waits between them: seconds of each iteration's two phases."""

from __future__ import annotations

from collections.abc import Mapping

from ...plans.schema.groups_plan import GroupMember
from ...rounds.permits.slowdown import WARM
from .group_turns import GroupTurns, TurnTaken


def turn_seconds(turns: GroupTurns, members: Mapping[str, GroupMember]) -> dict[str, list[tuple[float, float]]]:
    """Return by job the (rollout, train) seconds of its complete iterations, in their order.

    The first `WARM` of each start are left out, and iterations in which a phase had to be begun again. Pauses are not
    counted. A turn, or what follows a pause, that began with a switch is counted without the seconds that the plan has
    for one, since the planner adds them to the turns that switch; it keeps at least half of its own, in case the plan
    is wrong about the switch.

    Args:
        turns: of the group (`read_turns`).
        members: the plan's jobs of the group.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for name, member in members.items():
        pairs: list[tuple[float, float]] = []
        complete, start = 0, 0
        own_s, before_s = 0.0, -1.0  # of the turn so far; of the rollout before it, negative: there is none
        for turn in turns.turns:
            if turn.job != name:
                continue
            if turn.arrival != start:
                complete, start, before_s = 0, turn.arrival, -1.0
            switch_s = member.rollout.switch_s if turn.phase == "rollout" else member.train.switch_s
            own_s = _own_s(turn, switch_s) + (0.0 if turn.first else own_s)
            if turn.phase == "train" and turn.ended and before_s >= 0:
                complete += 1
                if complete > WARM:
                    pairs.append((before_s, own_s))
            before_s = own_s if turn.phase == "rollout" and turn.ended else -1.0
        found[name] = pairs
    return found


def _own_s(turn: TurnTaken, switch_s: float) -> float:
    """Seconds of a turn without its switch."""
    seconds = turn.end_s - turn.begun_s
    return max(seconds - switch_s, seconds / 2) if turn.switched else seconds
