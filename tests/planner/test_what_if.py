"""Changing documents by dotted path: any value, checked as a file's is, and refused in one line that helps."""

import pytest

from rlplan.planner.what_if import change
from rlplan.plans.yaml.errors import InputError

from .synthetic_run import solved


@pytest.fixture(scope="module")
def documents():
    return solved(mode="exact")


def test_nothing_set_changes_nothing(documents):
    assert change(documents, []) == (documents, [])


def test_each_document_takes_values_at_any_depth(documents):
    changed, notes = change(
        documents,
        [
            "plan.job.rounds.short.cutoff_tokens=512",
            "profile.rollout.0.step_s=2e-3",
            "cluster.pools.main.nodes=2",
            "job.algorithm.dynamic_sampling=true",
            "job.search.tp=[1]",
        ],
    )
    assert changed.plan.job.rounds.short.cutoff_tokens == 512
    assert changed.profile.rollout[0].step_s == 0.002 and changed.profile.rollout[1] == documents.profile.rollout[1]
    assert changed.cluster.pools["main"].nodes == 2
    assert changed.job.algorithm.dynamic_sampling is True and changed.job.search.tp == (1,)
    assert notes == []
    assert documents.plan.job.rounds.short.cutoff_tokens != 512


@pytest.mark.parametrize("setter", ["job.rollout.samples_per_prompt=8", "plan.job.issue.samples_per_prompt=8"])
def test_p_and_n_follow_wherever_they_stand(setter, documents):
    changed, notes = change(documents, [setter])
    rounds = changed.plan.job.rounds
    assert changed.job.rollout.samples_per_prompt == changed.plan.job.issue.samples_per_prompt == 8
    assert rounds.short.issue.samples == rounds.long.issue.samples == 8
    assert len(notes) == 3 and all("follows: 4 -> 8" in note for note in notes)


def test_over_issue_keeps_its_share_when_p_changes_unless_it_is_set_too(documents):
    before = documents.plan.job.rounds.short.issue.prompts
    changed, _ = change(documents, ["job.rollout.prompts_per_step=16"])
    assert changed.plan.job.rounds.short.issue.prompts == 2 * before
    own, _ = change(documents, ["job.rollout.prompts_per_step=16", "plan.job.rounds.short.issue.prompts=21"])
    assert own.plan.job.rounds.short.issue.prompts == 21


FAULTS = {
    "no value": ("plan.job.rounds", ["PATH=VALUE"]),
    "no path": ("=3", ["PATH=VALUE"]),
    "no such document": ("plann.job=1", ["did you mean plan.job"]),
    "nothing like it": ("x.y=1", ["begins with plan, job, cluster, profile"]),
    "a misspelt key": (
        "plan.job.rounds.short.cutof_tokens=512",
        ["there is no plan.job.rounds.short.cutof_tokens", "did you mean plan.job.rounds.short.cutoff_tokens"],
    ),
    "a list item that is not there": ("profile.rollout.7.step_s=1", ["profile.rollout.0.step_s"]),
    "below a single value": ("plan.job.bias.mode.x=1", ["there is no plan.job.bias.mode.x"]),
    "a whole document": ("plan=3", ["name a value inside the plan"]),
    "text for a number": ("profile.rollout.0.step_s=fast", ["step_s", "number", "fast"]),
    "a fraction for a count": ("plan.job.rounds.short.cutoff_tokens=5.5", ["cutoff_tokens", "whole number"]),
    "out of bounds": ("job.rollout.samples_per_prompt=1", ["samples_per_prompt", "at least 2"]),
    "not YAML": ("plan.job.issue={", ["not valid YAML"]),
    "two values": ("plan.job.bias.budget=0\nx: 1", ["one YAML value"]),
    "a mode that the rounds are not of": ("plan.job.bias.mode=sync", ["bias.mode=sync", "mode sync"]),
    "more engines than accelerators": ("plan.job.rounds.short.rollout.engines=9", ["engines=9", "at most"]),
    "a pool that is not there": ("plan.job.rounds.long.rollout.pool=gpu", ["no pool 'gpu'", "main"]),
    "a cutoff beyond the cap": ("job.rollout.max_response_tokens=10", ["max_response_tokens=10", "cutoff_tokens"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_is_refused_in_one_line_that_names_it_and_what_was_meant(fault, documents):
    text, words = FAULTS[fault]
    with pytest.raises(InputError) as refused:
        change(documents, [text])
    message = str(refused.value)
    assert message.startswith("--set ") and "\n" not in message
    for word in words:
        assert word in message


def test_a_key_that_the_file_leaves_out_while_it_is_null_can_be_set(documents):
    changed, notes = change(documents, ["plan.job.reward.adaptive_timeout={min_s: 0.5, anchor_factor: 1.5}"])
    assert changed.plan.job.reward.timeout_numbers()["min_s"] == 0.5 and notes == []
    with pytest.raises(InputError, match=r"adaptive_timeout.*at least 1"):
        change(documents, ["plan.job.reward.adaptive_timeout={min_s: 0.5, anchor_factor: 0.5}"])
