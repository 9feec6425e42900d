"""Drafts and hand-overs in jobs and plans: off unless named, and refused where they cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from rlplan.plans.schema.job import load_job
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.schema.sections.levers import RewardJudge, RoundDrafts, RoundHandOver, SearchDrafts
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump

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
        ("drafts: {tokens: [4, 2]}", r"ascending; write \[2, 4\]"),
        ("drafts: {tokens: [2], acceptance: 1.0}", "less than 1"),
        ("drafts: {acceptance: 0.6}", r"no stated length; write tokens: \[2, 4\]"),
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


TIMEOUT = "adaptive_timeout: {min_s: 0.5, anchor_factor: 1.5}"


def test_a_timeout_that_adapts_is_read_from_job_and_plan_and_off_where_it_is_not_named(folder: Any) -> None:
    job, plan = load_job(folder.path("job.yaml")), load_plan(folder.path("plan.yaml"))
    fixed = {"max_s": 2.0, "min_s": None, "anchor_factor": 1.0}
    assert job.reward.timeout_numbers() == plan.job.reward.timeout_numbers() == fixed
    folder.edit("job.yaml", "  deadline_s: 2.0\n", f"  deadline_s: 2.0\n  {TIMEOUT}\n")
    folder.edit("plan.yaml", "deadline_s: 2.0}", f"deadline_s: 2.0, {TIMEOUT}}}")
    folder.check()
    job, plan = load_job(folder.path("job.yaml")), load_plan(folder.path("plan.yaml"))
    adaptive = {"max_s": 2.0, "min_s": 0.5, "anchor_factor": 1.5}
    assert job.reward.timeout_numbers() == plan.job.reward.timeout_numbers() == adaptive
    assert TIMEOUT in dump(job) and TIMEOUT in dump(plan)


def test_documents_that_name_no_timeout_keep_their_bytes(folder: Any) -> None:
    assert "timeout" not in dump(load_plan(folder.path("plan.yaml"))) + dump(load_job(folder.path("job.yaml")))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [("job.yaml", "  deadline_s: 2.0\n", "  deadline_s: 2.0\n  {}\n"), ("plan.yaml", "2.0}", "2.0, {}}}")],
)
@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("adaptive_timeout: {min_s: 3, anchor_factor: 1.5}", r"min_s is 3, above .*write at most 2 \(deadline_s\)"),
        ("adaptive_timeout: {min_s: 1, anchor_factor: 0.9}", "at least 1, not 0.9"),
        ("adaptive_timeout: {min_s: 0, anchor_factor: 2}", "more than 0"),
        ("adaptive_timeout: {min_s: 1}", "missing key .*anchor_factor"),
        ("adaptive_timeout: {min: 1, anchor_factor: 2}", "unit|min_s"),
    ],
)
def test_timeouts_that_cannot_be_are_refused_with_their_line(folder, file, old, new, written, said) -> None:
    at = folder.edit(file, old, new.format(written))
    with pytest.raises(InputError, match=said) as caught:
        (load_job if file == "job.yaml" else load_plan)(folder.path(file))
    assert caught.value.line == at + (file == "job.yaml")


def test_a_plan_may_have_a_judge_or_score_synchronously_and_keeps_its_bytes_without(folder: Any) -> None:
    text = dump(load_plan(folder.path("plan.yaml")))
    assert "judge" not in text and "synchronous" not in text
    folder.edit("plan.yaml", "2.0}", "2.0, judge: {place: beside, instances: 2}, synchronous: true}")
    reward = load_plan(folder.path("plan.yaml")).job.reward
    assert reward.judge == RewardJudge(place="beside", instances=2, tp=1) and reward.synchronous
    assert "synchronous: true" in dump(load_plan(folder.path("plan.yaml")))


def test_a_job_may_bound_its_deadlines_and_leave_its_workers_open(folder: Any) -> None:
    text = folder.path("job.yaml").read_text()
    folder.edit("job.yaml", "  deadline_s: 2.0\n", "  deadline_s: 2.0\n  shortest_deadline_s: 0.5\n")
    job = load_job(folder.path("job.yaml"))
    assert job.reward.shortest_deadline_s == 0.5
    assert "shortest_deadline_s: 0.5" in dump(job)
    folder.path("job.yaml").write_text(text.replace("  workers: 1\n", ""))
    assert load_job(folder.path("job.yaml")).reward.workers is None
    assert "workers" not in dump(load_job(folder.path("job.yaml")))


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (f"shortest_deadline_s: 0.5\n  {TIMEOUT}", "adaptive_timeout fixes them; remove one of the two"),
        ("shortest_deadline_s: 3.0", "is 3, above the longest deadline; write at most 2 "),
    ],
)
def test_a_bound_that_leaves_nothing_to_decide_is_told_at_its_line(folder: Any, bound: str, message: str) -> None:
    line = folder.edit("job.yaml", "  deadline_s: 2.0\n", f"  deadline_s: 2.0\n  {bound}\n")
    with pytest.raises(InputError, match=message) as caught:
        load_job(folder.path("job.yaml"))
    assert caught.value.line in (line, line + 1)
