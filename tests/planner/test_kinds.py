"""A plan's rounds priced by a profile: measured entries, laws, and what a profile does not have."""

import pytest

from rlplan.planner.kinds import kinds
from rlplan.plans.errors import InputError
from rlplan.plans.plan import (
    Bias,
    PlannedJob,
    RewardPlan,
    RoundIssue,
    RoundRollout,
    Rounds,
    RoundTrain,
    ShortRound,
    StepIssue,
    SyncPlan,
)
from rlplan.profiles.library import library_profile


def planned(engines: int, engine_tp: int, **train) -> PlannedJob:
    short = ShortRound(
        issue=RoundIssue(prompts=8, samples=4),
        cutoff_tokens=None,
        rollout=RoundRollout(pool="main", engines=engines, tp=engine_tp, max_num_seqs=64),
        train=RoundTrain(**{"dp": 1, "micro_batch_tokens": 8192, **train}),
    )
    return PlannedJob(
        name="toy",
        bias=Bias(mode="sync", budget=0.0),
        issue=StepIssue(prompts_per_step=8, samples_per_prompt=4),
        rounds=Rounds(short=short, long=None),
        reward=RewardPlan(workers=1, deadline_s=1.0),
        sync=SyncPlan(checksum_every=1),
        why={},
    )


def test_one_engine_of_a_gpu_profile_prices_as_many_as_the_plan_has() -> None:
    profile = library_profile("H800", "Qwen2.5-14B")
    short, long = kinds(planned(16, 2, dp=8, tp=4), profile)
    assert long is short
    assert (short.decode.key.engines, short.decode.key.tp, short.max_num_seqs) == (16, 2, 64)
    assert (short.train.dp, short.train.tp, short.train.accelerators) == (8, 4, 32)
    wide, _ = kinds(planned(16, 2, dp=32), profile)
    assert wide.train.per_token_s != short.train.per_token_s


def test_what_a_measured_profile_lacks_is_said_with_what_it_has(make_profile) -> None:
    profile = make_profile()
    assert kinds(planned(2, 1), profile)[0].train.micro_batch_tokens == 8192
    with pytest.raises(InputError, match=r"no layout of 3 engine\(s\) with tp 1, it has 2 x tp 1, 1 x tp 2"):
        kinds(planned(3, 1), profile)
    with pytest.raises(InputError, match="no update with micro-batches of 999 tokens"):
        kinds(planned(2, 1, micro_batch_tokens=999), profile)
    with pytest.raises(InputError, match="no update"):
        kinds(planned(2, 1, tp=2), profile)


def test_an_update_that_cannot_be_is_one_line() -> None:
    with pytest.raises(InputError, match="cannot be"):
        kinds(planned(4, 2, tp=16), library_profile("H800", "Qwen2.5-14B"))
