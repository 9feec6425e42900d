"""What is said of dropped groups, held against simulated over-sampling of which all is known."""

import statistics

import pytest

from rlplan.frameworks.logs.sample_dump import DumpedSample
from tests.frameworks.logs.over_sampling import CAP, Oversampled


def test_each_missing_number_was_dropped():
    run = Oversampled(16, 24, 30)
    audit, last = run.audit(), max(sample.group_number for sample in run.samples)
    assert [row["group"] for row in audit["dropped_groups"]] == sorted(n for n in run.dropped if n < last)
    assert audit["prompts_trained"] == 16 * 30 and audit["prompts_issued"] == last + 1
    assert audit["prompts_dropped"] == audit["prompts_issued"] - audit["prompts_trained"] and not audit["at_least"]


@pytest.mark.parametrize(
    ("trained", "issued", "size", "spread"), [(32, 48, 8, 0.8), (32, 36, 4, 0.8), (16, 32, 4, 0.4), (8, 12, 2, 0.8)]
)
def test_the_length_ratio_is_found_without_the_dropped_lengths(trained, issued, size, spread):
    run = Oversampled(trained, issued, 50, size=size, spread=spread)
    audit = run.audit(cap_tokens=CAP)
    assert run.ratio < 0.9
    assert audit["length_ratio"] == pytest.approx(run.ratio, rel=0.08)
    assert audit["length_ratio_low"] < run.ratio < audit["length_ratio_high"]
    assert sum(audit["longest"]["dropped"]) == pytest.approx(audit["prompts_dropped"])
    assert audit["unconditioned_mean_tokens"] == pytest.approx(statistics.mean(run.all), rel=0.08)


def test_without_over_sampling_nothing_is_dropped():
    audit = Oversampled(16, 16, 20).audit()
    assert (audit["prompts_dropped"], audit["length_ratio"], audit["dropped"]) == (0, 1.0, [])


def test_named_prompts_were_dropped_as_often_as_is_said():
    run = Oversampled(32, 48, 40, rows=100)
    audit = run.audit()
    assert len(audit["dropped"]) > 20
    for row in audit["dropped"]:
        assert 0 < row["dropped"] <= run.missed[int(row["prompt"][1:])]
    some, others = audit["whom"]["dropped_sometimes"], audit["whom"]["never_dropped"]
    assert some["mean_tokens"] > 1.3 * others["mean_tokens"] and some["mean_reward"] is not None


def test_rows_count_prompts_that_were_never_trained():
    run = Oversampled(16, 32, 40, rows=100, framework="verl", size=2, spread=1.5)
    never = sum(given == missed for given, missed in zip(run.given, run.missed, strict=True))
    plain, counted = run.audit(), run.audit(rows=100)
    assert never > 0 and counted["prompts_dropped"] > plain["prompts_dropped"] > 0
    assert counted["prompts_dropped"] <= sum(run.missed) and counted["at_least"]
    assert plain["length_ratio"] is None and plain["prompts_issued"] is None


def test_a_prompt_that_is_in_the_data_twice_blames_no_other():
    run = Oversampled(20, 20, 25, rows=100)
    twice = {"p7": "p8"}
    run.samples = [
        DumpedSample(**{k: getattr(s, k) for k in s.__slots__} | {"prompt": twice.get(s.prompt, s.prompt)})
        for s in run.samples
    ]
    assert run.audit()["dropped"] == []


def test_missing_dumps_are_no_dropped_prompts():
    run = Oversampled(16, 24, 30)
    audit = run.audit(keep=lambda sample: sample.step not in (7, 8))
    assert audit["dropped"] == [] and any("dumps of some steps are missing" in note for note in audit["notes"])
    assert {row["group"] for row in audit["dropped_groups"]} <= set(run.dropped)


def test_a_filter_needs_the_log_to_be_told_apart():
    run = Oversampled(16, 30, 30, filtered=6)
    alone, beside = run.audit(), run.audit(log=True)
    assert alone["length_ratio"] is None and any("dynamic sampling may" in note for note in alone["notes"])
    assert beside["prompts_filtered"] == 180 and beside["prompts_dropped"] == pytest.approx(8 * 30, abs=8)
    assert beside["length_ratio"] == pytest.approx(run.ratio, rel=0.1)


def test_partial_rollout_counts_only_what_is_surely_gone():
    run = Oversampled(16, 24, 30)
    last = max(sample.step for sample in run.samples)
    late = {group for group in run.dropped if group < 100}  # as if they were trained in the last step
    extra = [DumpedSample(last, "late", str(group), 50, 10, False, 0.0, "late", group) for group in late]
    run.samples += extra
    audit = run.audit()
    assert audit["at_least"] and audit["length_ratio"] is None
    assert not {row["group"] for row in audit["dropped_groups"]} & late


def test_rounds_of_a_plan_drop_nothing():
    run = Oversampled(16, 24, 10)
    run.samples = [DumpedSample(**{k: getattr(s, k) for k in s.__slots__} | {"long_round": False}) for s in run.samples]
    audit = run.audit()
    assert audit["prompts_issued"] is None and "rounds of a plan" in audit["notes"][0]
