"""Numbers, names and lines read one way wherever they are printed."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.plans.facts.plan_text import solver_status, trainers_text, update_text
from rlplan.plans.page.page_of_plan import value_text
from rlplan.plans.phrases.numbers import (
    bytes_of,
    bytes_text,
    count,
    digits,
    fixed,
    percent,
    runs_text,
    seconds,
    span,
    times,
    usd,
)
from rlplan.plans.phrases.sentences import (
    Alternative,
    levers_of,
    levers_text,
    listed,
    one_line,
    parse,
    sentence,
    shorten,
)
from rlplan.plans.schema.levers import UpdateLayout
from rlplan.plans.schema.plan import Solver
from rlplan.plans.yaml.yaml_io import dump, loads


def test_figures_have_three_digits_units_and_thousands_separators():
    values = (None, 0, 0.0051, 0.0123, 0.325, 0.9996, 1.234, 9.996, 99.99, 123.45, 12345.6)
    assert [seconds(value) for value in values] == [
        "–", "0 s", "5.1 ms", "12 ms", "0.325 s", "1.00 s", "1.23 s", "10.0 s", "100 s", "123 s", "12,346 s",
    ]  # fmt: skip
    assert [digits(v) for v in (0, 0.000123, 0.5, 2.1399, 77.81, 123.4, 98765.4)] == [
        "0", "0.000123", "0.500", "2.14", "77.8", "123", "98,765",
    ]  # fmt: skip
    assert (span(0.0, 0.007), span(1.285, 1.548), span(0.0666, 0.0666)) == ("0–7.0 ms", "1.28–1.55 s", "67 ms")
    assert [usd(v) for v in (337.92, 0.000929, 12345.6)] == ["337.92", "0.000929", "12,345.60"]
    assert (count(1, "step"), count(3363, "step"), times(1.234)) == ("1 step", "3,363 steps", "1.23x")
    assert (fixed(1.25, ".1f"), fixed(None, ".1f"), fixed(float("nan"), ".1f")) == ("1.2", "–", "–")


def test_small_shares_are_not_rounded_away():
    assert [percent(share) for share in (0.0, 0.0001, 0.012, 0.0994, 0.5, 1.0, -0.02)] == [
        "0%", "<0.1%", "1.2%", "9.9%", "50%", "100%", "-2.0%",
    ]  # fmt: skip


def test_bytes_are_in_the_unit_of_what_there_is():
    pairs = (28.7e9, 70.5e9), (80e9, 16e12), (40_000, 900_000_000), (0, 900_000_000)
    assert [bytes_of(*pair) for pair in pairs] == ["28.7 of 70.5 GB", "0.1 of 16.0 TB", "<1 of 900 MB", "0 of 900 MB"]
    assert [bytes_text(size) for size in (1.6e13, 9.66e11, 5e8)] == ["16 TB", "966 GB", "500 MB"]


def test_sentences_begin_large_end_with_a_stop_and_stay_on_a_line():
    assert [listed(each) for each in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]
    assert sentence("as it is") == "As it is." and one_line("a\n  b\tc") == "a b c"
    assert shorten("abcdef", 6) == "abcdef" and len(shorten("abcdefg", 6)) == 6 and shorten("abcdefg", 6).endswith("…")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "optimal of 10 schedules"),
        ({"given_up": 0.013}, "1.3% slower than the best of 10 schedules; chosen because it is simpler"),
        ({"given_up": 0.0002}, "optimal of 10 schedules"),
        ({"given_up": 0.01, "objective": "usd_per_sample"},
         "1.0% dearer than the best of 10 schedules; chosen because it is simpler"),
        ({"status": "feasible", "gap": 0.02},
         "best found of 10 schedules, not proven; one up to 2.00% faster may exist"),
        ({"status": "feasible", "gap": 0.02, "given_up": 0.013},
         "1.3% slower than the best found of 10 schedules; chosen because it is simpler; "
         "one up to 2.00% faster may exist"),
        ({"status": "feasible", "gap": 0.02, "refreshed": True},
         "edited by hand and refreshed, 2.00% slower than the solver's bound"),
    ],
)  # fmt: skip
def test_the_status_of_a_plan_is_worded(changes, text):
    solver = {"name": "HiGHS", "status": "optimal", "gap": 0.0, "bound": 1.0, "reached": 1.0, "candidates": 10}
    assert solver_status(Solver(**solver | {"objective": "seconds_per_sample"} | changes)) == text


def test_sizes_above_one_and_options_that_are_on_are_named():
    plain = UpdateLayout(dp=1, micro_batch_tokens=4096)
    assert (trainers_text(plain), update_text(plain)) == ("dp 1", "dp 1, micro-batches of 4096 tokens")
    sharded = plain.model_copy(update={"tp": 2, "sp": 4, "recompute": "full", "offload": True})
    assert update_text(sharded) == "tp 2, sp 4, recompute full, offload, micro-batches of 4096 tokens"
    assert value_text(sharded) == update_text(sharded), "a page has the same text"
    for size in (name for name in UpdateLayout.model_fields if len(name) == 2):
        assert trainers_text(plain.model_copy(update={size: 4})) == f"{size} 4"
    hybrid = plain.model_copy(update={"dp": 16, "state_copies": 2})
    assert trainers_text(hybrid) == "dp 16, 2 copies of the states"


def test_layouts_that_differ_in_any_key_have_different_texts():
    """So that a message that compares a plan's layout with measured ones never shows the same on both sides."""
    values = {key: (2, 4) for key in ("dp", "tp", "pp", "cp", "sp", "ep", "micro_batch_tokens")}
    values["state_copies"] = (1, 2)
    values |= {"recompute": ("none", "full", "selective"), "offload": (False, True)}
    values["reference"] = ("none", "device", "host")
    assert set(values) == set(UpdateLayout.model_fields)
    layouts = [UpdateLayout(**dict(zip(values, each, strict=True))) for each in itertools.product(*values.values())]
    assert len({update_text(layout) for layout in layouts}) == len(layouts)


@pytest.mark.parametrize("key", ["sp", "state_copies"])
def test_sizes_that_are_seldom_used_are_not_written(key):
    plain, shared = (UpdateLayout(dp=2, **{key: size}, micro_batch_tokens=512) for size in (1, 2))
    assert key not in dump(plain) and f"{key}: 2" in dump(shared)
    assert loads(dump(plain), UpdateLayout) == plain and loads(dump(shared), UpdateLayout) == shared


phrases = st.text("abcdef xyz,.0123456789%", min_size=1, max_size=30)


@given(
    phrases,
    phrases,
    st.one_of(st.none(), st.floats(-90, 900).map(lambda x: round(x, 1))),
    st.booleans(),
    st.sampled_from(["time", "cost"]),
    phrases,
    st.sampled_from(["", "kept", "chosen anew"]),
)
def test_a_line_of_why_is_read_as_it_was_written(chosen, next_best, percent, rough, unit, where, rest):
    line = Alternative(chosen, next_best, percent, rough, unit, where, rest)
    assert parse(line.text()) == (Alternative(chosen, next_best, None) if percent is None else line)


def test_a_line_of_why_says_what_the_next_best_costs():
    for other in ("", "long rounds are 13.1% of the steps", "4 copies at once: every other choice breaks a limit"):
        assert parse(other) is None
    line = Alternative("cutoff 112 tokens", "cutoff 64 tokens", 6.54, True, "time", "rollout +6.7%")
    text = "cutoff 112 tokens; next best: cutoff 64 tokens, about +6.5% time per sample"
    assert line.text() == f"{text} (rollout +6.7%)"
    assert line._replace(rest="chosen anew").text() == f"{text}, the rest chosen anew (rollout +6.7%)"
    assert Alternative("a", "b", None).text() == "a; next best: b, within 0.5% of it"


def test_the_seconds_of_levers_are_read_as_they_were_written():
    saved_s = {"long rounds": 58.3, "drafts": 1.25e-05, "hand-over": -0.5, "tail": 123456.0}
    text = levers_text(saved_s, 121.28)
    assert "long rounds +58.3 s (+48.1%), drafts" in text
    read = levers_of(text)
    assert list(read) == ["long_rounds", "drafts", "hand_over", "tail"]
    assert list(read.values()) == pytest.approx(list(saved_s.values()), rel=5e-3)
    assert levers_of(None) == {}


@pytest.mark.parametrize(
    ("numbers", "said"), [([], ""), ([4], "4"), ([0, 1, 2, 3], "0-3"), ([0, 2, 3, 7], "0, 2-3, 7"), ([5, 6], "5-6")]
)
def test_runs_of_numbers_are_named_by_their_ends(numbers, said):
    assert runs_text(numbers) == said
