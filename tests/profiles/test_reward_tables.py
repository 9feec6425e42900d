"""Reward seconds that ship by kind: what they say, and whose jobs take them."""

import numpy as np
import pytest
from pydantic import ValidationError

from rlplan.planner.costs.reward_costs import reward_cost
from rlplan.plans.schema.levers import timeout_spec
from rlplan.plans.yaml.yaml_io import WRITTEN_DIGITS, dump, loads
from rlplan.profiles.library import library_profile
from rlplan.profiles.profile_schema import Profile
from rlplan.profiles.reward_tables import (
    RewardTable,
    reward_assumed,
    reward_kinds,
    reward_table,
    with_reward_times,
)

DEADLINE = timeout_spec(30.0, None)


def seconds_of(kind, count=4000):
    """What samples of a kind take a worker under a deadline of 30 s."""
    cost = reward_cost(reward_table(kind).reward(8), 8, DEADLINE)
    luck = (np.arange(count) + 0.5) / count
    prompts = np.random.default_rng(0).permutation(luck)
    return np.array([cost.sample_s(p, s, 100) for p, s in zip(prompts, luck, strict=True)])


def test_each_kind_of_reward_has_a_table_with_source_and_error():
    assert reward_kinds() == ["code", "format", "function", "math"]
    for kind in reward_kinds():
        table = reward_table(kind)
        assert table.kind == kind and table.error.scale >= 0.5 and table.source and table.error_source


def test_executions_of_code_take_the_published_seconds():
    """RollPacker, Fig. 7a: median 0.31 s, p90 0.87 s, 5 % at the limit of 30 s."""
    seconds = seconds_of("code")
    assert np.median(seconds) == pytest.approx(0.31, abs=0.03)
    assert np.quantile(seconds, 0.9) == pytest.approx(0.87, abs=0.35)
    assert np.mean(seconds >= 30.0) == pytest.approx(0.05, abs=0.01)


def test_a_code_reward_costs_a_hundred_times_an_assumed_check():
    assumed = reward_cost(library_profile("H100", "Qwen2.5-7B").reward, 8, DEADLINE).mean_s()
    assert seconds_of("code").mean() > 100 * assumed
    assert 0.2 * assumed < seconds_of("math").mean() < 5 * assumed


def test_a_shipped_profile_takes_the_seconds_of_its_jobs_kind():
    profile = library_profile("H100", "Qwen2.5-7B")
    assert reward_assumed(profile)
    for kind in reward_kinds():
        taken, table = with_reward_times(profile, kind)
        assert table == reward_table(kind) and (taken.reward.executions is not None) == (kind == "code")
        assert taken.reward.workers == profile.reward.workers
        assert with_reward_times(taken, kind) == (taken, table), "what was taken is still an assumption"
        file = loads(dump(taken, digits=WRITTEN_DIGITS), Profile)
        assert with_reward_times(file, kind)[1] == table, "from a file too"
        slower = taken.reward.model_copy(update={"per_sample_s": 1.5 * taken.reward.per_sample_s})
        refitted = taken.model_copy(update={"reward": slower})
        assert with_reward_times(refitted, kind) == (refitted, None), "what a run taught is none any more"


def test_reward_seconds_that_somebody_knows_are_left_alone():
    profile = library_profile("H100", "Qwen2.5-7B")
    measured = profile.model_copy(update={"provenance": "measured"})
    written = profile.model_copy(update={"reward": profile.reward.model_copy(update={"evidence": {}})})
    law = reward_table("code").executions()
    fitted = profile.model_copy(update={"reward": profile.reward.model_copy(update={"executions": law})})
    for own in (measured, written, fitted):
        assert with_reward_times(own, "code") == (own, None)


def test_another_job_of_the_kind_is_slower_or_hangs_more():
    table = reward_table("code")
    own, slower, hanging = (
        reward_cost(law, 8, DEADLINE).mean_s()
        for law in (table.reward(8), table.reward(8, scale=2.0), table.reward(8, hanging=2.0))
    )
    assert own < slower < 2 * own, "what hangs has the deadline already"
    assert hanging > 1.5 * own


@pytest.mark.parametrize("wrong", [{"per_sample_s": None}, {"right_s": (1.0,)}, {"kind": "judge"}, {"unsolved": 0.5}])
def test_a_table_is_one_number_or_a_whole_distribution(wrong):
    good = reward_table("math").model_dump()
    assert RewardTable.model_validate(good)
    with pytest.raises(ValidationError):
        RewardTable.model_validate({**good, **wrong})
