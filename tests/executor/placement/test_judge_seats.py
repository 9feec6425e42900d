"""Where the copies of a judge sit: on devices that no engine ever has, or on those of engines."""

from __future__ import annotations

import pytest

from rlplan.executor.placement.seats import DoesNotFit, Judges, Room, Seat, place

NAMES = ("judge-0", "judge-1")


def seats(judges: Judges, engines: int = 2, nodes: int = 2, devices: int = 2) -> list[Seat]:
    named = {1: [f"rollout-tp1-{number}" for number in range(engines)]}
    room = Room("main", nodes, devices, 8)
    placement = place(room, named, {"plan": nodes * devices}, workers=0, judges=judges)
    assert placement.double_booked() == [], "a judge of its own shares with trainers, which have the devices later"
    return [placement.engines[name] for name in judges.names]


def test_judges_of_their_own_are_spread_over_devices_without_an_engine() -> None:
    assert seats(Judges(NAMES, tp=1, beside=False)) == [Seat(0, (1,)), Seat(1, (1,))]
    assert seats(Judges(NAMES[:1], tp=2, beside=False), engines=2, nodes=1, devices=4) == [Seat(0, (2, 3))]


def test_judges_beside_engines_are_on_devices_of_engines() -> None:
    assert seats(Judges(NAMES, tp=1, beside=True)) == [Seat(0, (0,)), Seat(1, (0,))]


@pytest.mark.parametrize("beside", [False, True])
def test_a_judge_without_a_device_does_not_fit(beside: bool) -> None:
    engines = 1 if beside else 2
    says = "engines have room for 1" if beside else "engines leave room for 0"
    with pytest.raises(DoesNotFit, match=f"2 copies of the judge need 1 device each on one node; .* the {says}"):
        seats(Judges(NAMES, tp=1, beside=beside), engines=engines, nodes=1)
