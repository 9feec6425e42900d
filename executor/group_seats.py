"""A planned co-execution group as the permit machine takes it: the seat of each job, from the plan document alone."""

from __future__ import annotations

from ..plans.schema.sections.planned_group import PlannedGroup
from ..rounds.permits.permit_events import Seat


def planned_seats(group: PlannedGroup) -> list[Seat]:
    """Seats by job name, the order in which the planner's simulation lets jobs arrive; units as the group numbers
    them."""
    return [
        Seat(
            job=name,
            units=(member.rollout.units, member.train.units),
            expected_s=(member.rollout.mean_s, member.train.mean_s),
            switch_s=(member.rollout.switch_s, member.train.switch_s),
            pace_s=member.pace_s,
            keep=member.tail_units or 0,
            resume_s=(member.rollout.resume_s, member.train.resume_s),
        )
        for name, member in sorted(group.jobs.items())
    ]
