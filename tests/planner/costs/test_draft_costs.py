"""Drafts and a judge beside decoding, as laws over step costs."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.planner.costs.decode_costs import DecodeCost
from rlplan.planner.costs.draft_costs import (
    Drafts,
    affordable,
    beside_judge,
    draft_laws,
    draft_lengths,
    drafted,
    drafted_costs,
    first_epoch_cost,
    slowed,
    worthwhile,
)
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.simulate.one_round import simulate_one_round
from rlplan.planner.simulate.round_arrays import RoundDraws
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.plans.schema.sections.levers import SearchDrafts
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.drafts.draft_law import DraftLaw, geometric
from rlplan.profiles.drafts.draft_schema import DraftBatch, DraftRates, ProfiledDrafts
from rlplan.rounds.round_spec import RoundKind

from ..assumed_drafts import assumed

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
MEASURED = ProfiledDrafts(
    first=DraftRates(drafted=(0.5, 0.2, 0.1), accepted=(0.2, 0.1, 0.0), sequence_steps=900),
    later=DraftRates(drafted=(0.9, 0.7, 0.4), accepted=(0.6, 0.4, 0.2), sequence_steps=800),
    by_batch=(DraftBatch(sequences=1, factor=1.1), DraftBatch(sequences=24, factor=0.8)),
    step_s=0.001,
    step_s_per_sequence=1e-5,
    provenance="measured",
)


def test_drafts_pay_below_the_knee_and_not_beyond_it() -> None:
    law = geometric(3, 0.7)
    most = worthwhile(KNEE, law, 3)
    fast = drafted(KNEE, Drafts(3, most, law, law))
    assert 16 <= most < 64
    assert fast.base_s(1) == pytest.approx(0.010 / law.emitted(3, 1))
    assert all(fast.base_s(count) <= KNEE.base_s(count) for count in range(1, 257))
    assert fast.base_s(most + 1) == KNEE.base_s(most + 1)
    assert worthwhile(KNEE, dataclasses.replace(geometric(3, 0.0), step_s=0.001), 3) == 0


def test_long_contexts_gain_as_well_because_the_kv_is_read_once_a_step() -> None:
    law = geometric(3, 0.7)
    assert worthwhile(KNEE, law, 3, kv_tokens=20_000) >= worthwhile(KNEE, law, 3)


@given(st.floats(0, 0.01), st.floats(0, 0.001), st.floats(0, 0.99), st.integers(1, 6), st.integers(1, 80))
def test_no_batch_is_slower_by_drafts_and_beyond_the_planned_one_all_is_as_without(
    step_s: float, per_sequence_s: float, acceptance: float, tokens: int, up_to: int
) -> None:
    law = dataclasses.replace(geometric(tokens, acceptance), step_s=step_s, step_s_per_sequence=per_sequence_s)
    fast = drafted(KNEE, Drafts(tokens, up_to, law, law))
    for count in range(1, 100):
        assert fast.base_s(count) <= KNEE.base_s(count) and fast.kv_s(count) <= KNEE.c
    assert fast.base_s(up_to + 1) == KNEE.base_s(up_to + 1) and fast.kv_s(up_to + 1) == KNEE.c


@pytest.mark.parametrize("reference", [False, True])
def test_a_tail_is_faster_by_what_a_step_emits(reference: bool) -> None:
    round_kind = RoundKind("short", 1, 1, 2, 2, 4096)
    round_draws = RoundDraws(np.array([[2000, 2000]], dtype=np.int32), np.ones(1, dtype=np.int32), 4096, 1.0)
    free = DecodeCost(EngineLayout(1, 1), 0.01, 0.0, 0.0, 0.0, 0.0, 10**6, 64, 0.0, 0)
    reward = RewardCost(1, 0.0, 0.0)
    drafts = assumed(3, 0.7, 8)
    plain = simulate_one_round(round_kind, round_draws, free, reward, 9, reference=reference).times.end_s
    fast = simulate_one_round(
        round_kind, round_draws, drafted(free, drafts), reward, 9, reference=reference
    ).times.end_s
    assert plain / fast == pytest.approx(drafts.law.emitted(3, 2))


def test_a_step_verifies_what_is_drafted_and_not_what_might_be() -> None:
    line = dataclasses.replace(KNEE, a=0.01, b=0.001, curve=())
    law = MEASURED.law()
    fast = drafted(line, Drafts(2, 8, law, MEASURED.law(first_epoch=True)))
    factor = 1.1 - 0.3 * 3 / 23  # of four samples
    verified, emitted = 1 + factor * 1.6, 1 + factor * 1.0
    step_s = 0.01 + 0.001 * 4 * verified + 0.001 + 4e-5
    assert fast.base_s(4) == pytest.approx(step_s / emitted) and fast.kv_s(4) == pytest.approx(1e-7 / emitted)


def test_the_first_epoch_drafts_by_its_own_law_and_plain_costs_have_no_epochs() -> None:
    fast = drafted(KNEE, Drafts(3, 16, MEASURED.law(), MEASURED.law(first_epoch=True)))
    assert KNEE.base_s(4) > first_epoch_cost(fast).base_s(4) > fast.base_s(4)
    assert first_epoch_cost(fast).up_to_sequences == 16 and first_epoch_cost(KNEE) is KNEE


def test_a_judge_slows_every_part_of_decoding_alike() -> None:
    slow = beside_judge(KNEE, 1.25)
    assert slow.steps_s(7, 100, 5000) == pytest.approx(1.25 * KNEE.steps_s(7, 100, 5000))
    assert slow.admit_s(300) == pytest.approx(1.25 * KNEE.admit_s(300))
    with pytest.raises(ValueError, match="speed decoding up"):
        beside_judge(KNEE, 0.9)


def test_drafts_on_slower_engines_are_slower_engines_with_drafts() -> None:
    drafts = assumed(3, 0.7, 16)
    assert slowed(drafted(KNEE, drafts), 1.5) == drafted(slowed(KNEE, 1.5), drafts)
    assert slowed(drafted(KNEE, drafts), 1.5).base_s(3) == drafted(slowed(KNEE, 1.5), drafts).base_s(3)


def test_drafts_without_a_law_are_refused() -> None:
    for tokens in (0, 4):
        with pytest.raises(ValueError, match="1 to 3"):
            assumed_law = geometric(3, 0.5)
            Drafts(tokens, 8, assumed_law, assumed_law)


def test_a_plan_drafts_where_that_is_faster_and_within_what_was_measured() -> None:
    law = geometric(3, 0.7)
    fast = affordable(KNEE, 3, law)
    assert fast is not None
    assert fast.up_to_sequences == min(worthwhile(KNEE, law, 3), KNEE.max_sequences // 4)
    assert affordable(KNEE, 3, dataclasses.replace(geometric(3, 0.0), step_s=1e-3)) is None


def test_a_job_assumes_an_acceptance_or_the_profile_has_measured_it_or_one_line_says_what_lacks() -> None:
    assume = SearchDrafts(tokens=(2, 4), acceptance=0.6)
    assert draft_laws(MEASURED, assume, 4) == (geometric(4, 0.6),) * 2
    assert draft_laws(MEASURED, None, 3) == (MEASURED.law(), MEASURED.law(first_epoch=True))
    with pytest.raises(InputError, match=r"^neither the profile nor the job says .*; profile again"):
        draft_laws(None, SearchDrafts(tokens=(2,)), 2)
    with pytest.raises(InputError, match="of 4 tokens were not measured, those of up to 3 were"):
        draft_laws(MEASURED, None, 4)


def test_drafts_that_were_measured_are_considered_unless_the_job_says_otherwise() -> None:
    assert draft_lengths(MEASURED, None) == (2, 3) and draft_lengths(None, None) == ()
    assert draft_lengths(MEASURED, SearchDrafts(tokens=())) == ()
    assert draft_lengths(MEASURED, SearchDrafts(tokens=(1,))) == (1,)
    costs, refused = drafted_costs(None, MEASURED, {KNEE.key: KNEE})
    assert set(costs) == {(KNEE.key, 2), (KNEE.key, 3)} and refused == []


def test_drafts_that_pay_in_no_batch_are_refused_with_what_a_step_takes_and_gives() -> None:
    slow = MEASURED.model_copy(update={"step_s": 0.1})
    costs, refused = drafted_costs(SearchDrafts(tokens=(3,)), slow, {KNEE.key: KNEE})
    assert costs == {}
    assert refused[0].startswith("drafts of 3 tokens do not pay on 1 x tp 1: a step of ")
    assert DraftLaw((0.9,), (0.6,)).emitted(1, 1) == 1.6
