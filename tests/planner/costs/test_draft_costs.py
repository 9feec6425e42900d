"""Drafts and a judge beside decoding, as laws over step costs."""

import numpy as np
import pytest

from rlplan.planner.costs.decode_costs import DecodeCost
from rlplan.planner.costs.draft_costs import Drafts, affordable, beside_judge, drafted, worthwhile
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.simulate.one_round import play
from rlplan.planner.simulate.round_arrays import Luck
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.rounds.round_spec import RoundKind

# Flat up to 64 sequences: the weights are read once. Beyond the knee a step is bound by arithmetic.
KNEE = DecodeCost(
    key=EngineLayout(1, 1),
    a=0.0,
    b=0.0,
    c=1e-7,
    prefill_s=0.001,
    prefill_s_per_token=1e-5,
    kv_capacity_tokens=10**6,
    max_sequences=256,
    sync_s=0.0,
    host_bytes=0,
    curve=((1, 0.010), (64, 0.010), (256, 0.040)),
)


def test_emitted_tokens_are_the_mean_of_a_simulated_acceptance() -> None:
    drafts = Drafts(4, 0.7, 8)
    accepted = np.random.default_rng(0).random((200_000, 4)) < 0.7
    assert drafts.emitted == pytest.approx(1 + np.cumprod(accepted, axis=1).sum(axis=1).mean(), rel=0.01)


def test_drafts_pay_below_the_knee_and_not_beyond_it() -> None:
    g, a = 3, 0.7
    most = worthwhile(KNEE, g, a)
    fast = drafted(KNEE, Drafts(g, a, most))
    assert 16 <= most < 64
    assert fast.base_s(1) == pytest.approx(0.010 / Drafts(g, a, 1).emitted)
    assert all(fast.base_s(count) <= KNEE.base_s(count) for count in range(1, 257))
    assert fast.base_s(most + 1) == KNEE.base_s(most + 1)
    assert worthwhile(KNEE, g, 0.0, draft_s=0.001) == 0


def test_long_contexts_gain_as_well_because_the_kv_is_read_once_a_step() -> None:
    assert worthwhile(KNEE, 3, 0.7, kv_tokens=20_000) >= worthwhile(KNEE, 3, 0.7)


@pytest.mark.parametrize("reference", [False, True])
def test_a_tail_is_faster_by_what_a_step_emits(reference: bool) -> None:
    round_kind = RoundKind("short", 1, 1, 2, 2, 4096)
    luck = Luck(np.array([[2000, 2000]], dtype=np.int32), np.ones(1, dtype=np.int32), 4096, 1.0)
    free = DecodeCost(EngineLayout(1, 1), 0.01, 0.0, 0.0, 0.0, 0.0, 10**6, 64, 0.0, 0)
    reward = RewardCost(1, 0.0, 0.0)
    drafts = Drafts(3, 0.7, 8)
    plain = play(round_kind, luck, free, reward, 9, reference=reference).times.end_s
    fast = play(round_kind, luck, drafted(free, drafts), reward, 9, reference=reference).times.end_s
    assert plain / fast == pytest.approx(drafts.emitted)


def test_a_judge_slows_every_part_of_decoding_alike() -> None:
    slow = beside_judge(KNEE, 1.25)
    assert slow.steps_s(7, 100, 5000) == pytest.approx(1.25 * KNEE.steps_s(7, 100, 5000))
    assert slow.admit_s(300) == pytest.approx(1.25 * KNEE.admit_s(300))
    with pytest.raises(ValueError, match="speed decoding up"):
        beside_judge(KNEE, 0.9)


def test_bad_drafts_are_refused() -> None:
    for tokens, acceptance in ((0, 0.5), (3, 1.0), (3, -0.1)):
        with pytest.raises(ValueError, match="drafts have"):
            Drafts(tokens, acceptance, 8)


def test_a_plan_drafts_where_that_is_faster_and_within_what_was_measured() -> None:
    fast = affordable(KNEE, 3, 0.7)
    assert fast is not None
    assert fast.up_to_sequences == min(worthwhile(KNEE, 3, 0.7), KNEE.max_sequences // 4)
    assert affordable(KNEE, 3, 0.0) is None or affordable(KNEE, 3, 0.0).base_s(1) < KNEE.base_s(1)
