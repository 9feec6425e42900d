"""A plan's rounds priced by a profile: measured entries, laws, and what a profile does not have."""

from dataclasses import replace

import pytest

from rlplan.planner.costs.decode_costs import TAIL_SEQUENCES, TAIL_TOKENS
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.costs.round_costs import RoundCosts, round_costs, scoring
from rlplan.plans.schema.levers import RewardJudge, RoundHandOver, UpdateLayout
from rlplan.plans.schema.planned_job import Bias, LossPlan, PlannedJob, RewardPlan, StepIssue, SyncPlan
from rlplan.plans.schema.planned_rounds import RoundIssue, RoundRollout, Rounds, ShortRound
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.judge_schema import Judge
from rlplan.profiles.library import library_profile

from ..conftest import rollout, small_profile

H800 = library_profile("H800", "Qwen2.5-14B")
JUDGE = Judge(per_sample_s=0.02, per_token_s=1e-4, beside_factor=1.4, rollout_factor=1.25)


def planned(engines: int = 2, engine_tp: int = 1, hand_over: RoundHandOver | None = None, **train) -> PlannedJob:
    short = ShortRound(
        issue=RoundIssue(prompts=8, samples=4),
        cutoff_tokens=None,
        rollout=RoundRollout(pool="main", engines=engines, tp=engine_tp, max_num_seqs=64),
        train=UpdateLayout(**{"dp": 1, "micro_batch_tokens": 8192, **train}),
        hand_over=hand_over,
    )
    return PlannedJob(
        name="toy",
        bias=Bias(mode="sync", budget=0.0),
        issue=StepIssue(prompts_per_step=8, samples_per_prompt=4),
        rounds=Rounds(short=short, long=None),
        reward=RewardPlan(workers=1, deadline_s=1.0),
        loss=LossPlan(samples=32.0, tokens=3200),
        sync=SyncPlan(checksum_every=1),
        why={},
    )


def rewarded(**levers: object) -> PlannedJob:
    plan = planned()
    return plan.model_copy(update={"reward": plan.reward.model_copy(update=levers)})


def test_one_engine_of_a_gpu_profile_prices_as_many_as_planned() -> None:
    short, long = round_costs(planned(16, 2, dp=8, tp=4), H800)
    assert long is short
    assert (short.decode.key.engines, short.decode.key.tp, short.max_num_seqs) == (16, 2, 64)
    assert (short.train.layout.dp, short.train.layout.tp, short.train.layout.accelerators) == (8, 4, 32)
    wide, _ = round_costs(planned(16, 2, dp=32), H800)
    assert wide.train.per_token_s != short.train.per_token_s


@pytest.mark.parametrize(
    ("plan", "profile", "says"),
    [
        (planned(3), small_profile(), "no layout of 3 engines with tp 1, it has 2 x tp 1, 1 x tp 2"),
        (planned(micro_batch_tokens=999), small_profile(),
         r"trains with dp 1, micro-batches of 999 tokens, and the profile has only \("),
        (planned(tp=2), small_profile(), "trains with tp 2, micro-batches"),
        (planned(recompute="full"), small_profile(),
         r"with dp 1, recompute full, micro-batches of 8192 .* only \(dp 1, m"),
        (planned(4, 2, tp=16), H800, "the plan's update cannot be"),
    ],
)  # fmt: skip
def test_what_a_profile_lacks_is_said_with_what_it_has(plan, profile, says) -> None:
    assert round_costs(planned(), small_profile())[0].train.layout.micro_batch_tokens == 8192
    with pytest.raises(InputError, match=says):
        round_costs(plan, profile)


@pytest.mark.parametrize(("alone_s", "alone_s_per_sequence"), [(0.004, 5e-5), (0.014, 2e-5), (0.03, 1e-3)])
def test_engines_after_a_hand_over_are_between_crowded_and_alone(alone_s, alone_s_per_sequence) -> None:
    profile = small_profile(rollout=(rollout(1, 2, 0.010, 4e-4), rollout(1, 1, alone_s, alone_s_per_sequence)))
    costs, _ = round_costs(planned(hand_over=RoundHandOver(engines=1, at_finished=0.5)), profile)
    assert costs.change is not None and costs.change.spec.engines == 1
    crowded, after, alone = [
        each.steps_s(1, TAIL_SEQUENCES, TAIL_SEQUENCES * TAIL_TOKENS)
        for each in (costs.decode, costs.change.after, round_costs(planned(1), profile)[0].decode)
    ]
    assert min(alone, crowded) - 1e-12 <= after <= crowded + 1e-12
    assert (after < crowded - 1e-6) == (alone < crowded)


def test_a_judge_takes_the_workers_place_and_slows_its_neighbours() -> None:
    profile = small_profile(judge=JUDGE)

    def priced(**levers: object) -> tuple[RoundCosts, RewardCost]:
        return round_costs(rewarded(**levers), profile)[0], scoring(rewarded(**levers), profile)

    plain, workers = priced()
    own, of_its_own = priced(judge=RewardJudge(place="own", instances=3))
    beside, shared = priced(judge=RewardJudge(place="beside", instances=2))
    assert own.decode == plain.decode and beside.decode == plain.decode.slowed(1.25)
    assert (of_its_own.workers, shared.workers) == (3, 2)
    assert of_its_own.read_s(1000) == pytest.approx(0.12) and shared.read_s(1000) == pytest.approx(1.4 * 0.12)
    assert workers.read_s(1000) == profile.reward.per_sample_s and not workers.after_rollout
    assert priced(synchronous=True)[1] == replace(workers, after_rollout=True)


def test_a_judge_that_the_profile_does_not_know_is_refused() -> None:
    plan = rewarded(judge=RewardJudge(place="own", instances=1, tp=2))
    with pytest.raises(InputError, match=r"a judge of tp 2 .* the profile holds no judge; write what yours costs"):
        scoring(plan, small_profile())
    with pytest.raises(InputError, match="the profile holds a judge of tp 1"):
        scoring(plan, small_profile(judge=JUDGE))
