"""Engines handed over to training: what the round loses, and what the window trains."""

import dataclasses

import numpy as np
import pytest

from rlplan.planner.costs.decode_costs import ChangeCost, DecodeCost
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.costs.update_costs import TrainCost
from rlplan.planner.simulate.one_round import simulate_one_round
from rlplan.planner.simulate.round_arrays import RoundDraws, SimulatedRound
from rlplan.planner.simulate.streamed_updates import StreamedWork, Window, exposed_update_s, streamed
from rlplan.plans.schema.levers import EngineLayout, RoundHandOver, UpdateLayout
from rlplan.rounds.round_spec import RoundKind


def train(per_token_s: float = 0.1, **sizes: int) -> TrainCost:
    """Seconds are tokens over 10, and a second for the optimizer."""
    return TrainCost(UpdateLayout(**{"dp": 1, "micro_batch_tokens": 1, **sizes}), 1.0, per_token_s, 0.0)


TRAIN, TWO, SMALL = train(), train(dp=2), train(micro_batch_tokens=120)


def tail(hand_over: RoundHandOver | None, capacity: int = 10**6, reference: bool = False) -> SimulatedRound:
    """16 samples on 4 engines: 12 end at 100 tokens, one of each engine's at 1000."""
    lengths = np.full((16, 1), 100, dtype=np.int32)
    lengths[:4] = 1000
    round_kind = RoundKind("short", 16, 16, 1, 1, 4096)
    round_draws = RoundDraws(lengths, np.full(16, 10, dtype=np.int32), 4096, 1.0)
    decode = DecodeCost(EngineLayout(1, 4), 0.01, 1e-5, 0.0, 0.01, 1e-4, capacity, 64, 0.0, 0)
    change = None if hand_over is None else ChangeCost(hand_over, decode)
    reward = RewardCost(8, 0.0, 0.0)
    observe = (lambda *event: None) if reference else None
    return simulate_one_round(round_kind, round_draws, decode, reward, 64, change, observe=observe)


@pytest.mark.parametrize("reference", [False, True])
def test_engines_are_freed_at_the_share_at_little_cost(reference: bool) -> None:
    plain, freed = (tail(spec, reference=reference).times for spec in (None, RoundHandOver(engines=2, at_finished=0.5)))
    assert plain.freed_s is None and plain.moved == 0
    # When 8 of 16 samples have ended, two long ones run on the last two engines, or four short ones beside them.
    assert 2 <= freed.moved <= 8
    assert 1.0 < freed.freed_s < 1.2
    assert plain.end_s < freed.end_s < 1.02 * plain.end_s
    assert freed.decoded_tokens == plain.decoded_tokens


def test_nothing_is_freed_where_the_others_could_not_hold_it() -> None:
    roomy = 2000
    assert tail(RoundHandOver(engines=3, at_finished=0.5, growth_tokens=100), roomy).times.freed_s is not None
    late = tail(RoundHandOver(engines=3, at_finished=0.5, growth_tokens=1000), roomy).times
    assert late.moved == 0 and late.freed_s == late.end_s


UNSORTED = [(3.0, 20, 0), (1.0, 10, 0), (9.0, 30, 0)]
WAITING = [(0.0, 10, 0)] * 4


@pytest.mark.parametrize(
    ("freed_s", "end_s", "groups", "cost", "replicas", "expected"),
    [
        # One of two replicas: 2 s for the first from 2 s on, 4 s for the second, 6 s for the third from 9 s on.
        (2.0, 9.0, UNSORTED, TWO, 1, StreamedWork(2, 30, 0, 6.0, 1)),
        (2.0, 15.0, UNSORTED, TWO, 1, StreamedWork(3, 60, 0, 12.0, 1)),
        (None, 15.0, UNSORTED, TWO, 1, StreamedWork()),
        (2.0, 15.0, UNSORTED, TWO, 0, StreamedWork()),
        # Portions of 30 tokens, of the micro-batches: three groups, and the fourth after them.
        (1.0, 3.9, WAITING, SMALL, 1, StreamedWork(3, 30, 0, 3.0, 1, pytest.approx(0.1))),
        (1.0, 4.1, WAITING, SMALL, 1, StreamedWork(4, 40, 0, 4.0, 1, pytest.approx(0.9))),
    ],
)
def test_groups_are_trained_in_portions_as_they_become_ready(freed_s, end_s, groups, cost, replicas, expected) -> None:
    assert streamed(freed_s, end_s, groups, cost, replicas) == expected


def test_the_update_waits_for_groups_in_training_at_the_rounds_end() -> None:
    done = streamed(2.0, 14.0, [(3.0, 20, 0), (9.0, 30, 0), (14.0, 5, 0)], TWO, 1)
    assert (done.groups, done.late_s) == (2, 1.0)
    assert exposed_update_s(TWO, 55, 0, done) == pytest.approx(1.0 + TWO.update_s(5, 0))


def test_what_was_trained_early_is_not_exposed_but_the_optimizer_is() -> None:
    assert exposed_update_s(TRAIN, 60, 0, StreamedWork(2, 30, 0, 6.0)) == pytest.approx(1.0 + 3.0)
    assert exposed_update_s(TRAIN, 60, 0, StreamedWork()) == pytest.approx(1.0 + 6.0)


@pytest.mark.parametrize(
    ("sizes", "busy_s"),
    [
        ({"dp": 8}, 2.0),
        ({"dp": 2, "tp": 4}, 2.0),
        ({"dp": 5}, 5.0),  # its last one, on the fifth accelerator
        ({"dp": 3, "tp": 3}, 3.0),  # the second one is on the third to sixth
        ({"dp": 1, "tp": 8}, 0.0),
        ({"dp": 4}, 0.0),
    ],
)
def test_only_whole_replicas_on_free_accelerators_train_early(sizes, busy_s: float) -> None:
    window = Window(2.0, 100.0, ((1.0, 10, 0),), staying=4)
    assert window.streamed(train(**sizes)).busy_s == pytest.approx(busy_s)
    assert dataclasses.replace(window, staying=0).streamed(TRAIN).busy_s == pytest.approx(1.0)
    assert dataclasses.replace(window, freed_s=None).streamed(TRAIN) == StreamedWork()
