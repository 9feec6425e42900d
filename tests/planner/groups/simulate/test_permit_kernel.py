"""The compiled permit machine repeats the permit machine and its clock, turn by turn and bit by bit."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.groups.inputs.group_model import Group, GroupJob, Pin, Rules
from rlplan.planner.groups.simulate.permit_simulator import machine_seats, seats_of, simulate_turns
from rlplan.rounds.compiled.compiled_permits import PERMIT_RULES, SeatArrays, empty_state
from rlplan.rounds.compiled.permit_kernel import trace
from rlplan.rounds.permits.permit_machine import PermitMachine

from ..made import POLICIES, group, job, named

SECONDS = st.sampled_from([50.0, 100.0, 80.0, 113.0, 134.0, 241.0, 888.0])
DRAWN = st.lists(st.tuples(st.floats(0.3, 2), st.floats(0.3, 2)), max_size=4)


@st.composite
def groups(draw: st.DrawFn) -> tuple[Group, dict[str, GroupJob]]:
    """Up to five jobs whose phases meet on some of eight units, which are in one word of bits or in several."""
    jobs, pins, wide, apart = {}, [], draw(st.integers(1, 5)), draw(st.sampled_from([1, 31, 43]))
    for number in range(draw(st.integers(1, 5))):
        name = f"{number}"
        made = job(
            name, draw(SECONDS), draw(SECONDS), draw(st.floats(1, 2)), spread=tuple(draw(DRAWN)),
            tail_share=draw(st.sampled_from([0.0, 0.2, 0.5])),
        )  # fmt: skip
        warm, resume = draw(st.sampled_from([(0.0, 0.0), (1.8, 4.7)])), draw(st.sampled_from([(None, 2.0), (5.0, 0.0)]))
        rollout, train = (
            (replace(ways[0], warm_s=w, resume_s=r),)
            for ways, w, r in zip((made.rollout, made.train), warm, resume, strict=True)
        )
        jobs[name] = replace(made, rollout=rollout, train=train)
        units = draw(st.sets(st.integers(0, wide - 1), min_size=1)), draw(st.sampled_from([{6, 7}, {7, wide - 1}]))
        held, trained = (tuple(apart * unit for unit in sorted(phase)) for phase in units)
        pins.append(Pin(name, 0, held, 0, trained))
    return Group((), tuple(pins)), jobs


def ends(made: Group, jobs: dict[str, GroupJob], rules: Rules, phases: int) -> list[tuple[int, bool, float]]:
    """(job, whether it trained, seconds) of the first ends of phases, by the compiled machine."""
    seats = SeatArrays(*(field[0] for field in seats_of([made], jobs, rules)))
    who, what, when = np.zeros(phases, np.int64), np.zeros(phases, np.int64), np.zeros(phases)
    state, rule = empty_state(len(made.pins), seats.units.shape[-1]), PERMIT_RULES[rules.permit_rule]
    trace(seats, state, rule, rules.interference, who, what, when)
    return list(zip(who.tolist(), (what == 1).tolist(), when.tolist(), strict=True))


@pytest.mark.parametrize("examples", [80, pytest.param(400, marks=pytest.mark.search)])
def test_compiled_and_reference_machine_end_the_same_phases(examples: int) -> None:
    @settings(max_examples=examples)
    @given(groups(), st.sampled_from(POLICIES), st.sampled_from([0.0, 0.05]), st.sampled_from([0.0, 0.3, 0.7]))
    def agree(made: tuple[Group, dict[str, GroupJob]], policy: str, interference: float, tail_keep: float) -> None:
        rules = Rules(permit_rule=policy, interference=interference, tail_keep=tail_keep)
        seats, truths = machine_seats(*made, rules)
        spans = simulate_turns(PermitMachine(policy), seats, truths, interference, check=True)
        ended = islice((span for span in spans if span.ends_phase), 120)
        assert ends(*made, rules, 120) == [(int(span.job), span.phase == "train", span.end_s) for span in ended]

    agree()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_lone_job_runs_as_if_alone(policy: str) -> None:
    rules = Rules(permit_rule=policy, interference=0.1)
    found = ends(group("0", (0,)), named(job("0", 100, 50)), rules, 4)
    assert [seconds for _, _, seconds in found] == [100.0, 150.0, 250.0, 300.0]
