"""Journals of planned groups, as a group would write them whose jobs take other seconds than planned."""

from collections.abc import Mapping

from rlplan.planner.groups.simulate.permit_simulator import TrueTurns, simulate_turns
from rlplan.plans.schema.groups_plan import PlannedGroup
from rlplan.rounds.permits.permit_events import Seat
from rlplan.rounds.permits.permit_machine import PermitMachine
from rlplan.traces.groups.group_turns import GroupTurns, TurnTaken


def journal_of(
    key: str, group: PlannedGroup, rule: str, factors: Mapping[str, tuple[float, float]], turns: int
) -> GroupTurns:
    """The first turns of a group; `factors`: by job, true over planned seconds of (rollout, train)."""
    seats, truths = [], []
    for name, member in sorted(group.jobs.items()):
        phases = member.rollout, member.train
        seats.append(
            Seat(
                name,
                (phases[0].units, phases[1].units),
                (phases[0].mean_s, phases[1].mean_s),
                (phases[0].switch_s, phases[1].switch_s),
                member.pace_s,
            )
        )
        one, other = factors.get(name, (1.0, 1.0))
        truths.append(TrueTurns(((phases[0].mean_s * one, phases[1].mean_s * other),)))
    made = GroupTurns(key, rule, (0,), arrivals=dict.fromkeys(group.jobs, 1))
    for span in simulate_turns(PermitMachine(rule), seats, truths):
        assert span.ends_phase, "nothing is paused and no tail moves"
        made.turns.append(
            TurnTaken(span.job, span.phase, span.start_s, span.end_s, span.units, span.switched, True, 0.0, 1)
        )
        made.end_s = span.end_s
        if len(made.turns) == turns:
            return made
    raise AssertionError("the simulation goes on for ever")
