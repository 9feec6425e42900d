"""Lines of a plan's `why` are read as they were written."""

from hypothesis import given
from hypothesis import strategies as st

from rlplan.plans.phrases.why_line import Alternative, parse

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
def test_a_line_is_read_as_it_was_written(chosen, next_best, percent, rough, unit, where, rest):
    line = Alternative(chosen, next_best, percent, rough, unit, where, rest)
    read = parse(line.text())
    assert read == (Alternative(chosen, next_best, None) if percent is None else line)


def test_other_lines_tell_no_alternative():
    assert parse("long rounds are 13.1% of the steps and 46.9% of the time") is None
    assert parse("4 copies at once: every other choice breaks a limit of the plan") is None
    assert parse("") is None


def test_a_line_says_what_the_next_best_costs():
    line = Alternative("cutoff 112 tokens", "cutoff 64 tokens", 6.54, True, "time", "rollout +6.7%")
    assert line.text() == (
        "cutoff 112 tokens; next best: cutoff 64 tokens, about +6.5% time per sample (rollout +6.7%)"
    )
    anew = line._replace(rest="chosen anew")
    assert "+6.5% time per sample, the rest chosen anew (rollout +6.7%)" in anew.text()
    assert Alternative("a", "b", None).text() == "a; next best: b, within 0.5% of it"
