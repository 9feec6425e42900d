"""Drafts and a judge beside decoding, as laws over step costs."""

import dataclasses

import numpy as np
import pytest

from rlplan.planner.costs.decode_costs import DecodeCost, PlannedDrafts
from rlplan.planner.costs.draft_costs import (
    affordable,
    draft_laws,
    draft_lengths,
    drafted_costs,
    worthwhile,
)
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.simulate.one_round import simulate_one_round
from rlplan.planner.simulate.round_arrays import RoundDraws
from rlplan.plans.schema.levers import EngineLayout, SearchDrafts
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.draft_schema import DraftBatch, DraftLaw, DraftRates, ProfiledDrafts, geometric
from rlplan.rounds.round_spec import RoundKind

from ..assumed_drafts import assumed

# Flat up to 64 sequences: the weights are read once. Beyond the knee a step is bound by arithmetic.
KNEE = DecodeCost(
    EngineLayout(1, 1), a=0.0, b=0.0, c=1e-7, prefill_s=0.001, prefill_s_per_token=1e-5, kv_capacity_tokens=10**6,
    max_sequences=256, sync_s=0.0, host_bytes=0, curve=((1, 0.010), (64, 0.010), (256, 0.040)),
)  # fmt: skip
MEASURED = ProfiledDrafts(
    first=DraftRates(drafted=(0.5, 0.2, 0.1), accepted=(0.2, 0.1, 0.0), sequence_steps=900),
    later=DraftRates(drafted=(0.9, 0.7, 0.4), accepted=(0.6, 0.4, 0.2), sequence_steps=800),
    by_batch=(DraftBatch(sequences=1, factor=1.1), DraftBatch(sequences=24, factor=0.8)),
    step_s=0.001,
    step_s_per_sequence=1e-5,
    provenance="measured",
)
LAW = geometric(3, 0.7)
NEVER = dataclasses.replace(geometric(3, 0.0), step_s=0.001)
"""Of drafts of which nothing is accepted."""


def test_drafts_pay_below_the_knee_only() -> None:
    most = worthwhile(KNEE, LAW, 3)
    fast = dataclasses.replace(KNEE, drafts=PlannedDrafts(3, most, LAW, LAW))
    assert 16 <= most < 64
    assert fast.base_s(1) == pytest.approx(0.010 / LAW.emitted(3, 1))
    assert all(fast.base_s(count) <= KNEE.base_s(count) for count in range(1, 257))
    assert fast.base_s(most + 1) == KNEE.base_s(most + 1)
    assert worthwhile(KNEE, NEVER, 3) == 0


@pytest.mark.parametrize("acceptance", [0.0, 0.4, 0.99])
@pytest.mark.parametrize(("step_s", "per_sequence_s"), [(0.0, 0.0), (0.01, 0.0), (0.001, 0.001)])
@pytest.mark.parametrize(("tokens", "up_to"), [(1, 80), (3, 1), (6, 40)])
def test_no_batch_is_slower_by_drafts(acceptance: float, step_s: float, per_sequence_s, tokens, up_to: int) -> None:
    law = dataclasses.replace(geometric(tokens, acceptance), step_s=step_s, step_s_per_sequence=per_sequence_s)
    fast = dataclasses.replace(KNEE, drafts=PlannedDrafts(tokens, up_to, law, law))
    for count in range(1, 100):
        assert fast.base_s(count) <= KNEE.base_s(count) and fast.kv_s(count) <= KNEE.c
    assert fast.base_s(up_to + 1) == KNEE.base_s(up_to + 1) and fast.kv_s(up_to + 1) == KNEE.c


@pytest.mark.parametrize("reference", [False, True])
def test_a_tail_is_faster_by_what_a_step_emits(reference: bool) -> None:
    round_kind = RoundKind("short", 1, 1, 2, 2, 4096)
    round_draws = RoundDraws(np.array([[2000, 2000]], dtype=np.int32), np.ones(1, dtype=np.int32), 4096, 1.0)
    free = DecodeCost(EngineLayout(1, 1), 0.01, 0.0, 0.0, 0.0, 0.0, 10**6, 64, 0.0, 0)
    drafts = assumed(3, 0.7, 8)
    plain, fast = (
        simulate_one_round(
            round_kind,
            round_draws,
            cost,
            RewardCost(1, 0.0, 0.0),
            9,
            observe=(lambda *event: None) if reference else None,
        ).times.end_s
        for cost in (free, dataclasses.replace(free, drafts=drafts))
    )
    assert plain / fast == pytest.approx(drafts.law.emitted(3, 2))


def test_a_step_verifies_what_is_drafted_and_not_what_might_be() -> None:
    line = dataclasses.replace(KNEE, a=0.01, b=0.001, curve=())
    fast = dataclasses.replace(line, drafts=PlannedDrafts(2, 8, MEASURED.law(), MEASURED.law(first_epoch=True)))
    factor = 1.1 - 0.3 * 3 / 23  # of four samples
    verified, emitted = 1 + factor * 1.6, 1 + factor * 1.0
    step_s = 0.01 + 0.001 * 4 * verified + 0.001 + 4e-5
    assert fast.base_s(4) == pytest.approx(step_s / emitted) and fast.kv_s(4) == pytest.approx(1e-7 / emitted)


def test_the_first_epoch_drafts_by_its_own_law() -> None:
    fast = dataclasses.replace(KNEE, drafts=PlannedDrafts(3, 16, MEASURED.law(), MEASURED.law(first_epoch=True)))
    assert KNEE.base_s(4) > fast.in_first_epoch().base_s(4) > fast.base_s(4)
    assert fast.in_first_epoch().up_to_sequences == 16 and KNEE.in_first_epoch() is KNEE


def test_a_judge_slows_every_part_of_decoding_alike() -> None:
    squared = dataclasses.replace(KNEE, prefill_s_per_token_squared=1e-6)
    slow = squared.slowed(1.25)
    assert slow.steps_s(7, 100, 5000) == pytest.approx(1.25 * KNEE.steps_s(7, 100, 5000))
    assert slow.admit_s(300) == pytest.approx(1.25 * squared.admit_s(300))
    line = dataclasses.replace(KNEE, a=0.01, b=0.001, curve=())
    assert line.slowed(2.0).base_s(3) == pytest.approx(2 * line.base_s(3))


def test_drafts_on_slower_engines_are_slower_engines_with_drafts() -> None:
    drafts = assumed(3, 0.7, 16)
    slow, other = (
        dataclasses.replace(KNEE, drafts=drafts).slowed(1.5),
        dataclasses.replace(KNEE.slowed(1.5), drafts=drafts),
    )
    assert slow == other and slow.base_s(3) == other.base_s(3)


def test_a_plan_drafts_where_that_is_faster_and_was_measured() -> None:
    fast = affordable(KNEE, 3, LAW)
    assert fast is not None
    assert fast.up_to_sequences == min(worthwhile(KNEE, LAW, 3), KNEE.max_sequences // 4)
    assert affordable(dataclasses.replace(KNEE, max_sequences=32), 3, LAW).up_to_sequences == 32 // 4
    assert affordable(KNEE, 3, NEVER) is None


def test_acceptance_is_assumed_by_the_job_or_measured_or_lacks() -> None:
    assume = SearchDrafts(tokens=(2, 4), acceptance=0.6)
    assert draft_laws(MEASURED, assume, 4) == (geometric(4, 0.6),) * 2
    assert draft_laws(MEASURED, None, 3) == (MEASURED.law(), MEASURED.law(first_epoch=True))
    with pytest.raises(InputError, match=r"^neither the profile nor the job says .*; profile again"):
        draft_laws(None, SearchDrafts(tokens=(2,)), 2)
    with pytest.raises(InputError, match="of 4 tokens were not measured, those of up to 3 were"):
        draft_laws(MEASURED, None, 4)
    for tokens in (0, 4):
        with pytest.raises(ValueError, match="1 to 3"):
            PlannedDrafts(tokens, 8, LAW, LAW)


def test_measured_drafts_are_considered_unless_the_job_says_otherwise() -> None:
    assert draft_lengths(MEASURED, None) == (2, 3) and draft_lengths(None, None) == ()
    assert draft_lengths(MEASURED, SearchDrafts(tokens=())) == ()
    assert draft_lengths(MEASURED, SearchDrafts(tokens=(1,))) == (1,)
    costs, refused = drafted_costs(None, MEASURED, {KNEE.key: KNEE})
    assert set(costs) == {(KNEE.key, 2), (KNEE.key, 3)} and refused == []


def test_drafts_that_pay_in_no_batch_are_refused_with_their_figures() -> None:
    slow = MEASURED.model_copy(update={"step_s": 0.1})
    costs, refused = drafted_costs(SearchDrafts(tokens=(3,)), slow, {KNEE.key: KNEE})
    assert costs == {}
    assert refused[0].startswith("drafts of 3 tokens do not pay on 1 x tp 1: a step of ")
    assert DraftLaw((0.9,), (0.6,)).emitted(1, 1) == 1.6
