"""The compiled round repeats the machines, the engines and the balancer, bit for bit (here without its compiler)."""

import random

import numpy as np
import pytest

from rlplan.rounds.compiled import round_kernel

from ...planner.simulate.test_compiled_simulator import repeats
from .plain import load, objects, on_objects

plain = load("round_kernel", "kernel_state", "compiled_engines")


@pytest.mark.parametrize("examples", [60, pytest.param(2000, marks=pytest.mark.search)])
def test_the_uncompiled_kernel_repeats_the_machines(examples, monkeypatch):
    monkeypatch.setattr(round_kernel, "simulate", lambda *world: on_objects(plain.round_kernel.simulate, *world))
    repeats(examples)


def test_tournaments_have_the_first_and_the_least_loaded_engine():
    names, dice = plain.compiled_engines, random.Random(5)
    for engines in (1, 2, 3, 5, 8):
        records = objects(np.zeros(engines, dtype=plain.kernel_state.ENGINE))
        first, least = names.tournament(engines), names.tournament(engines, (engines + 1) // 2)
        playing = set(range((engines + 1) // 2))
        for _ in range(200):
            e = dice.randrange(engines)
            if dice.random() < 0.2:
                (names.leave_out if e in playing and len(playing) > 1 else names.bring_in)(records, least, e)
                playing = playing - {e} if e in playing and len(playing) > 1 else playing | {e}
            records[e].upcoming, records[e].load = dice.randint(0, 5), dice.randint(0, 5)
            names.note_upcoming(records, first, e)
            if e in playing:
                names.note_load(records, least, e)
            assert first[1] == min(range(engines), key=lambda k: (records[k].upcoming, k))
            assert least[1] == min(playing, key=lambda k: (records[k].load, k))
