"""Engines handed over to training: what the round loses, and what the window trains."""

import dataclasses

import numpy as np
import pytest

from rlplan.planner.costs.decode_costs import ChangeCost, DecodeCost
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.costs.update_costs import TrainCost
from rlplan.planner.simulate.one_round import simulate_one_round
from rlplan.planner.simulate.round_arrays import RoundDraws, SimulatedRound
from rlplan.planner.simulate.streamed_updates import Streamed, Window, exposed_update_s, streamed
from rlplan.plans.schema.sections.layouts import EngineLayout, UpdateLayout
from rlplan.rounds.hand_over import HandOverSpec
from rlplan.rounds.round_spec import RoundKind

REWARD = RewardCost(8, 0.0, 0.0)


# Seconds are tokens over 10, and a second for the optimizer.
ONE_REPLICA = UpdateLayout(dp=1, micro_batch_tokens=1)
TRAIN = TrainCost(ONE_REPLICA, step_s=1.0, per_token_s=0.1, per_token_squared_s=0.0)


def tail(hand_over: HandOverSpec | None, capacity: int = 10**6, reference: bool = False) -> SimulatedRound:
    """16 samples on 4 engines: 12 end at 100 tokens, one of each engine's at 1000."""
    lengths = np.full((16, 1), 100, dtype=np.int32)
    lengths[:4] = 1000
    round_kind = RoundKind("short", 16, 16, 1, 1, 4096)
    round_draws = RoundDraws(lengths, np.full(16, 10, dtype=np.int32), 4096, 1.0)
    decode = DecodeCost(EngineLayout(1, 4), 0.01, 1e-5, 0.0, 0.01, 1e-4, capacity, 64, 0.0, 0)
    change = None if hand_over is None else ChangeCost(hand_over, decode)
    return simulate_one_round(round_kind, round_draws, decode, REWARD, 64, change, reference=reference)


@pytest.mark.parametrize("reference", [False, True])
def test_engines_are_freed_at_the_share_and_the_rest_decodes_on_at_little_cost(reference: bool) -> None:
    plain, freed = tail(None, reference=reference), tail(HandOverSpec(2, 0.5), reference=reference)
    assert plain.times.freed_s is None and plain.times.moved == 0
    # When 8 of 16 samples have ended, two long ones run on the last two engines, or four short ones beside them.
    assert 2 <= freed.times.moved <= 8
    assert 1.0 < freed.times.freed_s < 1.2
    assert plain.times.end_s < freed.times.end_s < 1.02 * plain.times.end_s
    assert freed.times.decoded_tokens == plain.times.decoded_tokens


def test_nothing_is_freed_where_the_others_could_not_hold_it() -> None:
    roomy = 2000
    assert tail(HandOverSpec(3, 0.5, growth_tokens=100), roomy).times.freed_s is not None
    late = tail(HandOverSpec(3, 0.5, growth_tokens=1000), roomy).times
    assert late.moved == 0 and late.freed_s == late.end_s


def test_groups_are_trained_in_the_order_in_which_they_become_ready() -> None:
    groups = [(3.0, 20, 0, 1), (1.0, 10, 0, 1), (9.0, 30, 0, 1)]
    # One of two replicas: 2 s for the first from 2 s on, 4 s for the second, 6 s for the third from 9 s on.
    train = dataclasses.replace(TRAIN, layout=ONE_REPLICA.model_copy(update={"dp": 2}))
    assert streamed(2.0, 9.0, groups, train, 1) == Streamed(2, 30, 0, 2, 6.0, 1)
    assert streamed(2.0, 15.0, groups, train, 1) == Streamed(3, 60, 0, 3, 12.0, 1)
    assert streamed(None, 15.0, groups, train, 1) == streamed(2.0, 15.0, groups, train, 0) == Streamed()


def test_the_update_waits_for_the_groups_that_are_trained_when_the_round_ends() -> None:
    train = dataclasses.replace(TRAIN, layout=ONE_REPLICA.model_copy(update={"dp": 2}))
    done = streamed(2.0, 14.0, [(3.0, 20, 0, 1), (9.0, 30, 0, 1), (14.0, 5, 0, 1)], train, 1)
    assert (done.groups, done.late_s) == (2, 1.0)
    assert exposed_update_s(train, 55, 0, 3, done) == pytest.approx(1.0 + train.update_s(5, 0, 1))


def test_groups_that_wait_are_taken_in_portions_of_the_micro_batches() -> None:
    layout = ONE_REPLICA.model_copy(update={"micro_batch_tokens": 120})
    train = dataclasses.replace(TRAIN, layout=layout)
    groups = [(0.0, 10, 0, 1)] * 4
    # Portions of 30 tokens: three groups, and the fourth after them.
    assert streamed(1.0, 3.9, groups, train, 1) == Streamed(3, 30, 0, 3, 3.0, 1, pytest.approx(0.1))
    assert streamed(1.0, 4.1, groups, train, 1).groups == 4


def test_what_the_window_trained_is_not_exposed_but_the_optimizer_step_is() -> None:
    done = Streamed(2, 30, 0, 2, 6.0)
    assert exposed_update_s(TRAIN, 60, 0, 3, done) == pytest.approx(1.0 + 3.0)
    assert exposed_update_s(TRAIN, 60, 0, 3, Streamed()) == pytest.approx(1.0 + 6.0)


def test_a_hand_over_pays_where_a_tail_leaves_engines_idle() -> None:
    fast = dataclasses.replace(TRAIN, per_token_s=0.005)
    plain, freed = tail(None), tail(HandOverSpec(2, 0.75))
    groups = [(float(at), 110, 110**2, 1) for at in freed.ready_s]
    fast = dataclasses.replace(fast, layout=ONE_REPLICA.model_copy(update={"dp": 4}))
    done = streamed(freed.times.freed_s, freed.times.end_s, groups, fast, 2)
    assert done.groups >= 6
    after = exposed_update_s(fast, 16 * 110, 16 * 110**2, 16, done)
    assert freed.times.end_s + after < plain.times.end_s + fast.update_s(16 * 110, 16 * 110**2, 16)


def test_only_whole_replicas_on_free_accelerators_train_early() -> None:
    window = Window(2.0, 100.0, ((1.0, 10, 0, 0),), staying=4)

    def busy_s(**sizes: int) -> float:
        layout = ONE_REPLICA.model_copy(update=sizes)
        return window.streamed(dataclasses.replace(TRAIN, layout=layout)).busy_s

    assert busy_s(dp=8) == busy_s(dp=2, tp=4) == pytest.approx(2.0)
    assert busy_s(dp=5) == pytest.approx(5.0)  # its last one, on the fifth accelerator
    assert busy_s(dp=3, tp=3) == pytest.approx(3.0)  # the second one is on the third to sixth
    assert busy_s(dp=1, tp=8) == busy_s(dp=4) == 0.0
    assert dataclasses.replace(window, staying=0).streamed(TRAIN).busy_s == pytest.approx(1.0)
    assert dataclasses.replace(window, freed_s=None).streamed(TRAIN) == Streamed()
