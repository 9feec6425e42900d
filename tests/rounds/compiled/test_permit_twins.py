"""The compiled permit machine repeats the permit machine and its clock, bit for bit (here without its compiler)."""

import itertools
import random

import numpy as np
import pytest

from rlplan.planner.groups.simulate.permit_simulator import TruePhases, simulate_phases
from rlplan.rounds.permits.permit_events import PlacedJob
from rlplan.rounds.permits.permit_machine import PermitMachine

from .plain import load

plain = load("permit_kernel", "compiled_permits")
kernel, RULES = plain.permit_kernel, plain.compiled_permits.PERMIT_RULES
WORDS = 5


def words(units):
    return [sum(1 << u % 64 for u in units if u // 64 == word) for word in range(WORDS)]


def arrays(seats, truths):
    """A group as the twin takes it."""
    draws = max(len(truth.draws_s) for truth in truths)
    return plain.compiled_permits.PlacedArrays(
        units=np.array([[words(units) for units in seat.units] for seat in seats], np.uint64),
        expected_s=np.array([seat.expected_s for seat in seats]),
        switch_s=np.array([seat.switch_s for seat in seats]),
        pace_s=np.array([seat.pace_s for seat in seats]),
        keep=np.array([seat.keep for seat in seats]),
        resume_s=np.array([seat.resume_s for seat in seats], np.float64),
        tail_share=np.array([truth.tail_share for truth in truths]),
        draws_s=np.array([(truth.draws_s * draws)[:draws] for truth in truths]),
    )


def group(seed):
    dice = random.Random(seed)
    pick, seconds = dice.choice, [50.0, 100.0, 80.0, 113.0, 134.0, 241.0, 888.0]
    units, apart = dice.randint(1, 5), pick([1, 31, 43])  # units are then in one word, or in several
    draws, seats, truths = dice.randint(1, 3), [], []
    for number in range(dice.randint(1, 5)):
        rollout, train = dice.sample(range(units), dice.randint(1, units)), pick([[6, 7], [7, units - 1]])
        expected = pick(seconds), pick(seconds)
        seats.append(
            PlacedJob(
                f"job-{number}",
                (tuple(apart * u for u in sorted(rollout)), tuple(apart * u for u in sorted(train))),
                expected,
                pick([(0.0, 0.0), (1.8, 4.7)]),
                pace_s=sum(expected) * dice.uniform(1, 2),
                keep=dice.randint(0, max(0, len(rollout) - 1)),
                resume_s=pick([(None, None), (None, 2.0), (5.0, 0.0)]),
            )
        )
        factors = [(dice.uniform(0.3, 2), dice.uniform(0.3, 2)) for _ in range(draws)]
        truths.append(TruePhases(tuple((expected[0] * a, expected[1] * b) for a, b in factors), pick([0.0, 0.2, 0.5])))
    return seats, truths


def phases(seats, truths, rule, interference, count):
    """(job, whether it trained, end) of the first phases that end, by the reference."""
    ends = (s for s in simulate_phases(PermitMachine(rule), seats, truths, interference) if s.ends_phase)
    return ((int(s.job[4:]), s.phase == "train", s.end_s) for s in itertools.islice(ends, count))


def state(seats):
    return plain.compiled_permits.empty_state(len(seats), WORDS)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "seeds", [range(15), pytest.param(range(15, 400), marks=pytest.mark.search)], ids=["few", "many"]
)
def test_the_twin_ends_the_same_phases_at_the_same_times(rule, seeds):
    for seed in seeds:
        (seats, truths), interference, count = group(seed), (0.0, 0.05)[seed % 2], 60
        expected = list(phases(seats, truths, rule, interference, count))
        who, what, when = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count)
        kernel.trace(arrays(seats, truths), state(seats), RULES[rule], interference, who, what, when)
        assert list(zip(who.tolist(), (what == 1).tolist(), when.tolist(), strict=True)) == expected


def pair(pace=1.3, factors=(1.0,)):
    """Two jobs on one training node, of which the second is faster; turns take so many times what is expected."""
    seats = [
        PlacedJob("job-0", ((0,), (9,)), (300.0, 100.0), pace_s=pace * 400.0),
        PlacedJob("job-1", ((1,), (9,)), (60.0, 40.0), pace_s=pace * 100.0),
    ]
    return seats, [TruePhases(tuple((s * a, s_ * a) for a in factors)) for s, s_ in (seat.expected_s for seat in seats)]


@pytest.mark.parametrize("rule", RULES)
def test_a_period_is_what_repeats_in_the_reference(rule):
    seats, truths = pair()
    P, log, times = arrays(seats, truths), np.zeros((200, 2, 4)), np.zeros(200)
    used = state(seats)
    a, b = kernel.period(P, used, log, times, RULES[rule], 0.0)
    assert 0 <= a < b
    assert (a, b) == kernel.period(P, used, log.copy(), times.copy(), RULES[rule], 0.0), "it begins anew"
    ends = [(job, end) for job, train, end in phases(seats, truths, rule, 0.0, 400) if train]
    for job in (0, 1):
        within = sum(who == job and times[a] < end <= times[b] for who, end in ends)
        assert within == log[b, job, 3] - log[a, job, 3] > 0
    assert times[b] in [end for job, end in ends if job == kernel.slowest_of(P) == 0]


@pytest.mark.parametrize("rule", RULES)
def test_completions_are_the_ends_of_iterations(rule):
    for seed in range(6):
        seats, truths = group(seed)
        ends, counts, limit = np.zeros((len(seats), 4)), np.ones(len(seats), np.int64), 6
        kernel.completions(arrays(seats, truths), state(seats), RULES[rule], 0.05, limit, ends, counts)
        trained = [[] for _ in seats]
        for job, train, end in phases(seats, truths, rule, 0.05, 4000):
            if train:
                trained[job].append(end)
            if min(map(len, trained)) == limit:
                break
        assert ends.tolist() == [each[:4] for each in trained]
        assert counts.tolist() == [len(each) for each in trained]


def long_run(groups, rule, verdict=False):
    stacked = plain.compiled_permits.PlacedArrays(
        *(np.stack(each) for each in zip(*(arrays(*one) for one in groups), strict=True))
    )
    counts, out = np.array([len(seats) for seats, _ in groups]), np.zeros((len(groups), len(groups[0][0])))
    log, times = np.zeros((300, out.shape[1], 4)), np.zeros(300)
    kernel.long_run_many(stacked, state(groups[0][0]), counts, log, times, RULES[rule], 0.0, verdict, out)
    return out.tolist()


def test_the_long_run_is_the_mean_of_a_period():
    (slow, fast), alone = long_run([pair(), pair()], "first_come")
    assert [slow, fast] == alone and slow == pytest.approx(400.0) and 100.0 < fast < 140.0
    # In turns one waits for the other.
    assert long_run([pair()], "round_robin") == [[pytest.approx(400.0)] * 2]


def test_a_verdict_says_whether_all_keep_their_paces():
    uneven = [1 + 0.01 * (number**3 % 17) for number in range(17)]  # no short period
    groups = [pair(1.9, uneven), pair(1.001, uneven)]
    assert long_run(groups, "multi_rate", verdict=True) == [[kernel.KEPT] * 2, [kernel.BROKEN] * 2]
    for kept, rule, verdict in ((True, "multi_rate", False), (True, "first_come", True), (False, "multi_rate", False)):
        means = long_run(groups, rule, verdict)[not kept]
        assert min(means) > 100.0, "a verdict is of multi_rate only"
