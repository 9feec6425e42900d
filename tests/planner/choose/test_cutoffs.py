"""A job bounds or fixes the cutoff of mode exact; other modes do not look at it."""

import pytest

from rlplan.planner.choose.candidates.candidate_space import MODES, enumerate_space
from rlplan.planner.choose.candidates.job_limits import Unplannable
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.plans.check.resource_rules import not_in_search
from rlplan.plans.schema.job import Job
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, loads

from ..conftest import CAP, heavy_trace, laptop, small_job, small_profile
from ..synthetic_run import solved

SIZES = {"prompts_per_step": 16, "samples_per_prompt": 8}


def job(**bounds: int) -> Job:
    search = {"tp": [1], "micro_batch_tokens": [4096]}
    return small_job(SIZES, search={**search, "cutoff_tokens": bounds} if bounds else search)


def cutoffs(modes=MODES, **bounds: int) -> list[int]:
    space = enumerate_space(laptop(), job(**bounds), small_profile(), fit_lengths(heavy_trace(), CAP), modes)
    return sorted({key.cutoff_tokens for key in space.short if key.cutoff_tokens is not None})


def test_a_fixed_cutoff_is_the_only_one_tried_and_is_not_rounded():
    middle = cutoffs()[3] + 1
    assert cutoffs(min=middle, max=middle) == [middle]


def test_bounds_leave_the_quantiles_within_them_and_are_tried_themselves():
    free = cutoffs()
    low, high = free[1] + 1, free[-2] + 1
    assert cutoffs(min=low, max=high) == [low, *free[2:-1], high]
    assert cutoffs(min=low)[:2] == [low, free[2]] and cutoffs(max=high)[-1] == high


def test_a_cutoff_out_of_reach_names_what_can_be_reached_and_is_refused_only_where_a_mode_has_one():
    with pytest.raises(
        Unplannable, match=r"search.cutoff_tokens: is 1, .* a cutoff of \d+ to \d+ tokens; write"
    ) as caught:
        cutoffs(min=1, max=1)
    assert (caught.value.document, caught.value.loc) == ("job", ("search", "cutoff_tokens"))
    with pytest.raises(Unplannable, match=f"is {CAP} to {2 * CAP}, "):
        cutoffs(min=CAP, max=2 * CAP)
    assert cutoffs(modes=("sync", "race"), min=1, max=1) == []


@pytest.mark.parametrize(
    ("bounds", "refusal"),
    [({"min": 9, "max": 8}, "below min 9"), ({"max": 0}, "at least 1"), ({"at": 9}, "unknown key")],
)
def test_bounds_that_no_response_can_meet_are_refused_with_their_line(bounds, refusal):
    written, stated = dump(job(min=1, max=64)), "{min: 1, max: 64}"
    assert stated in written
    wrong = written.replace(stated, "{" + ", ".join(f"{key}: {value}" for key, value in bounds.items()) + "}")
    with pytest.raises(InputError, match=refusal) as caught:
        loads(wrong, Job, "job.yaml")
    assert caught.value.line is not None and "cutoff_tokens" in str(caught.value)


def test_a_plan_cuts_where_its_job_says_and_an_edit_beyond_that_is_a_finding():
    documents = solved(mode="exact")
    cutoff = documents.plan.job.rounds.short.cutoff_tokens + 1
    bounded = documents.job.model_copy(update={"search": job(min=cutoff, max=cutoff).search})
    (fault,) = [fault for fault in not_in_search(documents.plan, bounded) if fault.location[-1] == "cutoff_tokens"]
    assert fault.location == ("job", "rounds", "short", "cutoff_tokens") and f"is {cutoff - 1}, " in fault.text
    assert not list(not_in_search(documents.plan, documents.job))
