"""A plan's rounds priced by a profile: measured entries, laws, and what a profile does not have."""

from dataclasses import replace

import pytest

from rlplan.planner.costs.decode_costs import TAIL_SEQUENCES, TAIL_TOKENS
from rlplan.planner.costs.draft_costs import beside_judge
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.costs.round_costs import RoundCosts, round_costs, scoring
from rlplan.plans.schema.sections.layouts import UpdateLayout
from rlplan.plans.schema.sections.levers import RewardJudge, RoundHandOver
from rlplan.plans.schema.sections.planned_job import Bias, LossPlan, PlannedJob, RewardPlan, StepIssue, SyncPlan
from rlplan.plans.schema.sections.planned_rounds import RoundIssue, RoundRollout, Rounds, ShortRound
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.judge_schema import Judge
from rlplan.profiles.library import library_profile


def planned(engines: int, engine_tp: int, **train) -> PlannedJob:
    short = ShortRound(
        issue=RoundIssue(prompts=8, samples=4),
        cutoff_tokens=None,
        rollout=RoundRollout(pool="main", engines=engines, tp=engine_tp, max_num_seqs=64),
        train=UpdateLayout(**{"dp": 1, "micro_batch_tokens": 8192, **train}),
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


def test_one_engine_of_a_gpu_profile_prices_as_many_as_the_plan_has() -> None:
    profile = library_profile("H800", "Qwen2.5-14B")
    short, long = round_costs(planned(16, 2, dp=8, tp=4), profile)
    assert long is short
    assert (short.decode.key.engines, short.decode.key.tp, short.max_num_seqs) == (16, 2, 64)
    assert (short.train.layout.dp, short.train.layout.tp, short.train.layout.accelerators) == (8, 4, 32)
    wide, _ = round_costs(planned(16, 2, dp=32), profile)
    assert wide.train.per_token_s != short.train.per_token_s


def test_what_a_measured_profile_lacks_is_said_with_what_it_has(make_profile) -> None:
    profile = make_profile()
    assert round_costs(planned(2, 1), profile)[0].train.layout.micro_batch_tokens == 8192
    with pytest.raises(InputError, match="no layout of 3 engines with tp 1, it has 2 x tp 1, 1 x tp 2"):
        round_costs(planned(3, 1), profile)
    with pytest.raises(InputError, match=r"trains with dp 1, micro-batches of 999 tokens, and the profile has only \("):
        round_costs(planned(2, 1, micro_batch_tokens=999), profile)
    with pytest.raises(InputError, match="trains with tp 2, micro-batches"):
        round_costs(planned(2, 1, tp=2), profile)
    with pytest.raises(InputError, match=r"with dp 1, recompute full, micro-batches of 8192 .* only \(dp 1, m"):
        round_costs(planned(2, 1, recompute="full"), profile)


@pytest.mark.parametrize(("alone_s", "alone_s_per_sequence"), [(0.004, 5e-5), (0.014, 2e-5), (0.03, 1e-3)])
def test_engines_that_a_hand_over_leaves_on_a_cpu_are_between_crowded_and_alone_and_never_slower(
    make_profile, make_rollout, alone_s, alone_s_per_sequence
) -> None:
    profile = make_profile(rollout=(make_rollout(1, 2, 0.010, 4e-4), make_rollout(1, 1, alone_s, alone_s_per_sequence)))
    plan = planned(2, 1)
    freed = RoundHandOver(engines=1, at_finished=0.5)
    rounds = Rounds(short=plan.rounds.short.model_copy(update={"hand_over": freed}), long=None)
    costs, _ = round_costs(plan.model_copy(update={"rounds": rounds}), profile)
    assert costs.change is not None and costs.change.spec.engines == 1
    crowded, after, alone = [
        each.steps_s(1, TAIL_SEQUENCES, TAIL_SEQUENCES * TAIL_TOKENS)
        for each in (costs.decode, costs.change.after, round_costs(planned(1, 1), profile)[0].decode)
    ]
    assert min(alone, crowded) - 1e-12 <= after <= crowded + 1e-12
    assert (after < crowded - 1e-6) == (alone < crowded)


def test_an_update_that_cannot_be_is_one_line() -> None:
    with pytest.raises(InputError, match="cannot be"):
        round_costs(planned(4, 2, tp=16), library_profile("H800", "Qwen2.5-14B"))


def test_a_judge_takes_the_workers_place_and_slows_what_it_stands_beside(make_profile) -> None:
    judge = Judge(per_sample_s=0.02, per_token_s=1e-4, beside_factor=1.4, rollout_factor=1.25)
    profile = make_profile(judge=judge)

    def priced(**levers: object) -> tuple[RoundCosts, RewardCost]:
        plan = planned(2, 1)
        plan = plan.model_copy(update={"reward": plan.reward.model_copy(update=levers)})
        return round_costs(plan, profile)[0], scoring(plan, profile)

    plain, workers = priced()
    own, of_its_own = priced(judge=RewardJudge(place="own", instances=3))
    beside, shared = priced(judge=RewardJudge(place="beside", instances=2))
    assert own.decode == plain.decode and beside.decode == beside_judge(plain.decode, 1.25)
    assert (of_its_own.workers, shared.workers) == (3, 2)
    assert of_its_own.read_s(1000) == pytest.approx(0.12) and shared.read_s(1000) == pytest.approx(1.4 * 0.12)
    assert workers.read_s(1000) == profile.reward.per_sample_s and not workers.after_rollout
    assert priced(synchronous=True)[1] == replace(workers, after_rollout=True)


def test_a_judge_that_the_profile_does_not_know_is_refused(make_profile) -> None:
    plan = planned(2, 1)
    reward = plan.reward.model_copy(update={"judge": RewardJudge(place="own", instances=1, tp=2)})
    plan = plan.model_copy(update={"reward": reward})
    with pytest.raises(InputError, match=r"a judge of tp 2 .* the profile holds no judge; write what yours costs"):
        scoring(plan, make_profile())
    known = Judge(per_sample_s=0.02, per_token_s=1e-4, beside_factor=1.0, rollout_factor=1.0)
    with pytest.raises(InputError, match="the profile holds a judge of tp 1"):
        scoring(plan, make_profile(judge=known))
