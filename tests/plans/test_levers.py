"""Drafts and hand-overs in jobs and plans: off unless named, and refused where they cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from rlplan.plans.errors import InputError
from rlplan.plans.job import load_job
from rlplan.plans.levers import RoundDrafts, RoundHandOver, SearchDrafts
from rlplan.plans.plan import load_plan
from rlplan.plans.yaml_io import dump

DRAFTS, HAND_OVER = "max_num_seqs: 80, drafts: null", "hand_over: null\n    long:"


def test_a_job_that_names_no_levers_considers_none(folder: Any) -> None:
    search = load_job(folder.path("job.yaml")).search
    assert search.hand_over == () and search.drafts is None


def test_a_job_says_which_levers_may_be_considered(folder: Any) -> None:
    line = "micro_batch_tokens: [1024, 2048, 4096, 8192]\n"
    folder.edit("job.yaml", line, line + "  hand_over: [0.4, 0.6]\n  drafts: {tokens: [2, 4], acceptance: 0.6}\n")
    job = load_job(folder.path("job.yaml"))
    assert job.search.hand_over == (0.4, 0.6)
    assert job.search.drafts == SearchDrafts(tokens=(2, 4), acceptance=0.6)
    assert "  hand_over: [0.4, 0.6]\n" in dump(job)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("hand_over: [0.6, 0.4]", r"ascending; write \[0\.4, 0\.6\]"),
        ("hand_over: [0]", "at least 0.01"),
        ("hand_over: [1.0]", "less than 1"),
        ("hand_over: 0.4", r"must be a list"),
        ("drafts: {tokens: [], acceptance: 0.6}", "at least 1 item"),
        ("drafts: {tokens: [2], acceptance: 1.0}", "less than 1"),
        ("drafts: {tokens: [2]}", "missing key 'search.drafts.acceptance'"),
    ],
)
def test_levers_that_cannot_be_are_refused_with_their_line(folder: Any, written: str, said: str) -> None:
    line = "micro_batch_tokens: [1024, 2048, 4096, 8192]\n"
    at = folder.edit("job.yaml", line, line + f"  {written}\n")
    with pytest.raises(InputError, match=said) as caught:
        load_job(folder.path("job.yaml"))
    assert caught.value.line == at + 1


def test_a_plan_carries_the_levers_of_each_kind_of_round(folder: Any) -> None:
    folder.edit("plan.yaml", DRAFTS, "max_num_seqs: 80, drafts: {tokens: 4, up_to_sequences: 32}")
    folder.edit("plan.yaml", HAND_OVER, "hand_over: {engines: 1, at_finished: 0.6}\n    long:")
    folder.check()
    rounds = load_plan(folder.path("plan.yaml")).job.rounds
    assert rounds.short.rollout.drafts == RoundDrafts(tokens=4, up_to_sequences=32)
    assert rounds.short.hand_over == RoundHandOver(engines=1, at_finished=0.6)
    assert rounds.long is not None and rounds.long.rollout.drafts is None and rounds.long.hand_over is None


def test_a_plan_of_before_the_levers_is_still_read(folder: Any) -> None:
    plan = folder.path("plan.yaml")
    before = load_plan(plan)
    plan.write_text(plan.read_text().replace("      hand_over: null\n", "").replace(", drafts: null", ""))
    assert load_plan(plan) == before


def test_a_hand_over_leaves_an_engine_to_decode_on(folder: Any) -> None:
    line = folder.edit("plan.yaml", HAND_OVER, "hand_over: {engines: 2, at_finished: 0.6}\n    long:")
    with pytest.raises(InputError, match=r"frees 2 of 2 .*write at most 1") as caught:
        load_plan(folder.path("plan.yaml"))
    assert caught.value.line == line
