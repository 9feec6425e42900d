"""The compiled permit machine repeats the permit machine and its clock, turn by turn and bit by bit."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.groups.simulate.permit_simulator import TrueTurns, simulate_turns
from rlplan.rounds.compiled.compiled_permit_rules import PERMIT_RULES
from rlplan.rounds.compiled.compiled_permit_state import SeatArrays, empty_state
from rlplan.rounds.compiled.permit_kernel import trace
from rlplan.rounds.permits.permit_events import Seat
from rlplan.rounds.permits.permit_machine import PermitMachine

WORDS = 5


def words(units: tuple[int, ...]) -> list[int]:
    return [sum(1 << u % 64 for u in units if u // 64 == word) for word in range(WORDS)]


def arrays(seats: list[Seat], truths: list[TrueTurns]) -> SeatArrays:
    """The same group as the compiled permit machine takes it."""
    draws = max(len(truth.draws_s) for truth in truths)
    return SeatArrays(
        units=np.array([[words(units) for units in seat.units] for seat in seats], np.uint64),
        expected_s=np.array([seat.expected_s for seat in seats]),
        switch_s=np.array([seat.switch_s for seat in seats]),
        pace_s=np.array([seat.pace_s for seat in seats]),
        keep=np.array([seat.keep for seat in seats]),
        resume_s=np.array([seat.resume_s for seat in seats], np.float64),
        tail_share=np.array([truth.tail_share for truth in truths]),
        draws_s=np.array([(truth.draws_s * draws)[:draws] for truth in truths]),
    )


SECONDS = st.sampled_from([50.0, 100.0, 80.0, 113.0, 134.0, 241.0, 888.0])


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Seat], list[TrueTurns]]:
    seats, truths = [], []
    count = draw(st.integers(1, 5))
    draws = draw(st.integers(1, 4))
    rollout_units = draw(st.integers(1, 5))
    apart = draw(st.sampled_from([1, 31, 43]))  # units are then in one word, or in several
    for number in range(count):
        rollout = draw(st.lists(st.integers(0, rollout_units - 1), min_size=1, max_size=rollout_units, unique=True))
        spill = draw(st.booleans())
        train = [6, 7] if not spill else [7, rollout_units - 1]
        expected = draw(SECONDS), draw(SECONDS)
        factors = draw(st.lists(st.tuples(st.floats(0.3, 2), st.floats(0.3, 2)), min_size=draws, max_size=draws))
        seats.append(
            Seat(
                job=f"job-{number}",
                units=(tuple(apart * u for u in sorted(rollout)), tuple(apart * u for u in sorted(train))),
                expected_s=expected,
                switch_s=draw(st.sampled_from([(0.0, 0.0), (1.8, 4.7)])),
                pace_s=sum(expected) * draw(st.floats(1, 2)),
                keep=draw(st.integers(0, max(0, len(rollout) - 1))),
                resume_s=draw(st.sampled_from([(None, None), (None, 2.0), (5.0, 0.0)])),
            )
        )
        truths.append(
            TrueTurns(
                tuple((expected[0] * a, expected[1] * b) for a, b in factors),
                draw(st.sampled_from([0.0, 0.2, 0.5])),
            )
        )
    return seats, truths


@settings(max_examples=150, deadline=None)
@given(groups(), st.sampled_from(sorted(PERMIT_RULES)), st.sampled_from([0.0, 0.05]))
def test_compiled_and_reference_machine_end_the_same_phases_at_the_same_times(
    group: tuple[list[Seat], list[TrueTurns]], policy: str, interference: float
) -> None:
    seats, truths = group
    phases = 120
    spans = simulate_turns(PermitMachine(policy), seats, truths, interference, check=True)
    expected = [
        (int(span.job[4:]), span.phase == "train", span.end_s)
        for span in islice((span for span in spans if span.ends_phase), phases)
    ]
    who, what, when = np.zeros(phases, np.int64), np.zeros(phases, np.int64), np.zeros(phases)
    trace(arrays(seats, truths), empty_state(len(seats), WORDS), PERMIT_RULES[policy], interference, who, what, when)
    assert list(zip(who.tolist(), (what == 1).tolist(), when.tolist(), strict=True)) == expected


@pytest.mark.parametrize("policy", sorted(PERMIT_RULES))
def test_a_lone_job_runs_as_if_alone(policy: str) -> None:
    seat = Seat("job-0", ((0,), (1,)), (100.0, 50.0), (2.0, 5.0), pace_s=150.0)
    who, what, when = np.zeros(4, np.int64), np.zeros(4, np.int64), np.zeros(4)
    group = arrays([seat], [TrueTurns(((100.0, 50.0),))])
    trace(group, empty_state(1, WORDS), PERMIT_RULES[policy], 0.1, who, what, when)
    assert when.tolist() == [100.0, 150.0, 250.0, 300.0]
