"""The job limits how much more rounds issue than they train, and a plan says what it wastes."""

import re

import pytest

from rlplan.planner.choose.candidates.candidate_space import enumerate_space
from rlplan.planner.choose.candidates.short_rounds import over_issue
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.plans.schema.job import Search
from rlplan.plans.yaml.errors import Infeasible

from ..conftest import CAP, heavy_trace, laptop, small_job, small_profile
from ..synthetic_run import solved


def space(most, modes=("sync", "race", "defer", "exact", "predict"), **sizes):
    job = small_job(sizes, search={"tp": [1], "micro_batch_tokens": [4096], "max_over_issue": most})
    return enumerate_space(laptop(), job, small_profile(), fit_lengths(heavy_trace(), CAP), modes)


@pytest.mark.parametrize("most", [1.0, 1.3, 2.0, 3.0])
def test_no_candidate_issues_more_than_the_job_allows(most):
    found = space(most)
    assert all(over_issue(key.prompts, key.samples, 16, 8) <= most for key in found.short)
    assert all(key.copies <= most for key in found.long)


def test_the_default_has_room_for_rollpackers_quarter_more_of_both_and_not_for_three_times():
    assert Search(tp=(1,), micro_batch_tokens=(1024,)).max_over_issue == 2.0
    issued = {(key.prompts, key.samples) for key in space(2.0).short if key.mode == "race"}
    assert (20, 10) in issued and max(p * n for p, n in issued) <= 2 * 16 * 8
    assert max(key.prompts for key in space(9.0).short) > 2 * 16


def test_modes_that_the_limit_leaves_out_are_named_and_one_that_is_forced_is_refused():
    found = space(1.0)
    assert {key.mode for key in found.short} == {"sync", "predict"}
    (refusal,) = [text for text in found.refused if "max_over_issue" in text]
    assert all(mode in refusal for mode in ("race", "defer", "exact"))
    with pytest.raises(Infeasible, match=r"search.max_over_issue is 1.*exact 1\..*raise it"):
        space(1.0, modes=("sync", "exact"))


def test_a_plan_says_how_much_of_what_it_decodes_is_not_trained():
    exact, plain = solved(mode="exact").plan, solved(mode="sync").plan
    said = exact.job.why["waste"]
    issued, wasted = re.match(r"over a cycle ([\d.]+) samples are issued .*; ([\d.]+)%", said).groups()
    short = exact.job.rounds.short.issue
    assert 1.0 < float(issued) < 4.0 and 0.0 < float(wasted) < 100.0
    assert short.prompts * short.samples <= 2 * 8 * 4
    assert "waste" not in plain.job.why
