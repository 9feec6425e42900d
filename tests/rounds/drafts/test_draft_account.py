"""Whether drafts pay, by what steps took."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.drafts.draft_account import (
    LEAST_CHANCE,
    MOST_CHANCE,
    OUTLIER,
    OUTLIERS,
    PAUSE,
    PAUSE_FIRST,
    PLAIN_EVERY,
    PLAIN_FIRST,
    PLAIN_RUN,
    TRIAL,
    WARM_UP,
    DraftAccount,
)


def drive(account, steps, running, plain_s, drafted_s, emitted):
    """Take steps as an engine would; returns for each whether it had drafts."""
    had = []
    for _ in range(steps):
        drafts = account.least_chance(running) is not None
        had.append(drafts)
        tokens = round(running * emitted) if drafts else running
        account.record(running, drafts, running * 4 * drafts, tokens, drafted_s if drafts else plain_s)
    return had


def plain(account, running, *seconds):
    for each in seconds:
        account.record(running, False, 0, running, each)


def test_some_steps_of_a_class_go_without_drafts():
    """So that it is known what these take."""
    had = drive(DraftAccount(8), 10 * PLAIN_EVERY, 4, 0.010, 0.012, 2.0)
    assert not any(had[:PLAIN_FIRST]) and had[PLAIN_FIRST]
    assert had.count(False) == PLAIN_FIRST + 10 * PLAIN_RUN - 2  # the last row has begun only


def test_drafts_that_do_not_pay_are_left_out_but_for_trials():
    account = DraftAccount(8)
    had = drive(account, 8 * PAUSE, 4, 0.010, 0.020, 1.25)
    growing = (PAUSE // PAUSE_FIRST).bit_length()  # pauses until they are longest
    assert had.count(True) <= WARM_UP + (growing + 8) * TRIAL
    first = WARM_UP + PLAIN_FIRST
    assert all(had[PLAIN_FIRST:first]) and not had[first]
    assert had[first + 1 :].index(True) == PAUSE_FIRST - 1
    late = had[4 * PAUSE :]
    assert any(late), "they are never tried again"
    assert late.count(True) / len(late) <= 1.5 * TRIAL / PAUSE
    assert account.means()[7].saved_s < 0


def test_what_did_not_pay_at_first_is_tried_again_soon():
    """Rates were being learnt."""
    account = DraftAccount(8)
    drive(account, WARM_UP + PLAIN_FIRST + 8, 4, 0.010, 0.020, 1.25)
    assert drive(account, 4 * PAUSE_FIRST, 4, 0.010, 0.012, 2.0).count(True) > 2 * PAUSE_FIRST


def test_a_costly_look_that_finds_nothing_is_left_out():
    account, looked = DraftAccount(8), 0
    for _ in range(4 * PAUSE):
        looks = account.least_chance(4) is not None
        looked += looks
        account.record(4, looks, 0, 4, 0.011 if looks else 0.010)
    assert WARM_UP <= looked < PAUSE // 2


def test_the_first_plain_step_after_drafts_is_not_counted():
    account = DraftAccount(8)
    plain(account, 4, *[0.010] * PLAIN_FIRST)
    account.record(4, True, 8, 8, 0.012)
    plain(account, 4, 0.020)
    assert account.means()[7].plain_s == 0.010
    plain(account, 4, 0.014)
    assert account.means()[7].plain_s == pytest.approx(0.011)


def test_drafts_that_begin_to_pay_come_back_after_some_trials():
    account = DraftAccount(8)
    drive(account, 2 * PAUSE, 4, 0.010, 0.020, 1.25)
    drive(account, 4 * PAUSE, 4, 0.010, 0.011, 2.5)
    assert drive(account, 1000, 4, 0.010, 0.011, 2.5).count(True) > 900
    had = drive(account, 1000, 4, 0.010, 0.100, 0.5)
    runs = [len(list(run)) for drafts, run in itertools.groupby(had) if not drafts]
    pause = next(length for length in runs if length > PLAIN_RUN)
    assert pause <= PAUSE_FIRST + PLAIN_RUN, "the next pause is short again"


@settings(max_examples=40)
@given(st.integers(1, 64), st.integers(1, 300))
def test_a_batch_above_up_to_sequences_gets_none(up_to, running):
    account = DraftAccount(up_to)
    had = drive(account, 3 * PLAIN_FIRST, running, 0.01, 0.01, 2.0)
    assert any(had) == (running <= up_to)
    assert account.least_chance(0) is None


def test_one_class_of_batch_says_nothing_of_another():
    account = DraftAccount(64)
    drive(account, 300, 40, 0.010, 0.030, 1.25)
    assert drive(account, 300, 2, 0.010, 0.011, 2.0).count(True) > 250
    assert account.least_chance(40) is None


def test_a_token_must_be_likelier_the_more_samples_verify_it():
    account = DraftAccount(64)
    chances = []
    for running, seconds in ((1, 0.010), (50, 0.030)):
        plain(account, running, *[seconds] * PLAIN_FIRST)
    for running, seconds in ((1, 0.010), (50, 0.030)):
        drive(account, PLAIN_FIRST, running, seconds, 0.01, 2.0)
        chances.append(account.least_chance(running))
    token_s = 0.020 / (48 - 1.5)  # between the middles of the two classes
    assert chances == pytest.approx([token_s / 0.010, 50 * token_s / 0.030])
    assert LEAST_CHANCE < chances[0] < chances[1] < MOST_CHANCE


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9), st.floats(0.0, 0.5), st.floats(1.0, 5.0)), max_size=200)
)
def test_the_same_steps_give_the_same_decisions(steps):
    one, other = DraftAccount(32), DraftAccount(32)
    for running, drafted, seconds, emitted in steps:
        chances = [account.least_chance(running) for account in (one, other)]
        assert chances[0] == chances[1]
        assert chances[0] is None or (running <= 32 and LEAST_CHANCE <= chances[0] <= MOST_CHANCE)
        for account in (one, other):
            account.record(running, chances[0] is not None, drafted, int(running * emitted), seconds)
    assert one.means() == other.means()


def test_seconds_saved_are_those_of_the_round_without_outliers():
    account = DraftAccount(8)
    plain(account, 2, *[0.010] * PLAIN_FIRST)
    for _ in range(10):
        account.record(2, True, 6, 5, 0.015)
    account.record(2, True, 6, 5, 0.015 * OUTLIER * 1.1)  # it waited for something
    account.record(2, True, 6, 5, 0.0)  # more than decoding: it is only counted
    account.record(2, True, 0, 2, 0.015)  # it found no drafts
    means = account.means()[3]
    assert means.verified == 12 and means.saved_s == pytest.approx(10 * (2.5 * 0.010 - 0.015) - 0.005)
    assert (means.plain_s, means.drafted_s, means.emitted) == pytest.approx((0.010, 0.015, 2.5))
    account.begin_round()
    assert account.means()[3][:3] == means[:3] and account.means()[3][3:] == (0, 0.0)


def test_many_outliers_in_a_row_begin_the_mean_anew():
    account = DraftAccount(8)
    plain(account, 2, *[0.010] * PLAIN_FIRST, *[0.050] * (OUTLIERS - 1))
    assert account.means()[3].plain_s == 0.010
    plain(account, 2, 0.010, *[0.050] * (OUTLIERS - 1))
    assert account.means()[3].plain_s == 0.010, "not in a row"
    plain(account, 2, 0.050, 0.070)
    assert account.means()[3].plain_s == pytest.approx(0.060)
