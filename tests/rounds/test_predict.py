"""Mode `predict`: history decides who gets a long round, and nothing else."""

import itertools
import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.machines.events import Abort
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.predict import LengthHistory
from rlplan.rounds.round_spec import RoundSpec
from rlplan.rounds.schedule import Schedule

from .driver import CAP, SEEDS, chaoses, keyed_steps, over, prompt_ids, steps

SPEC = RoundSpec("predict", 3, 2, CAP, 3, 2, long_share=0.3)
SYNC = RoundSpec("sync", 3, 2, CAP, 3, 2)


def history_of(*epochs):
    history = LengthHistory()
    for epoch in epochs:
        for prompt, tokens in epoch.items():
            history.record(prompt, tokens)
    return history


def test_the_prompts_with_the_longest_history_are_expected_long():
    history = history_of({"a": [10, 12], "b": [300, 20], "c": [90, 110], "d": [15, 9]})
    assert history.expected_long("abcd", 0.5) == {"b", "c"}
    assert history.expected_long("abcd", 0.25) == {"c"}, "the mean of logs, in which one lost answer counts little"


def test_not_everybody_can_be_longer_than_the_others():
    assert history_of({"a": [10], "b": [300]}).expected_long("ab", 0.9) == {"b"}
    assert history_of({"a": [10]}).expected_long("a", 0.9) == frozenset()
    assert history_of({"a": [10], "b": [300], "c": [20]}).expected_long("abc", 0.9, keep=2) == {"b"}


def test_what_was_never_recorded_is_never_expected_long():
    history = history_of({"a": [10], "b": [300]})
    assert history.expected_long("abcdefgh", 0.25) == {"a", "b"}, "the others count in the share"
    assert history.expected_long("cdef", 0.5) == LengthHistory().expected_long("ab", 0.5) == frozenset()


def test_a_response_of_no_tokens_is_refused():
    history = LengthHistory()
    history.record("a", [])
    assert len(history) == 0, "an empty group says nothing"
    with pytest.raises(ValueError, match="no tokens"):
        history.record("a", [3, 0])
    history.record("a", [1])
    assert len(history) == 1


lengths = st.dictionaries(
    st.sampled_from(prompt_ids(8)), st.lists(st.integers(1, 500), min_size=1, max_size=5), max_size=8
)


@settings(max_examples=40)
@given(first=lengths, second=lengths, share=st.sampled_from([0.2, 0.5, 0.9]), seed=SEEDS)
def test_a_history_ignores_the_order_within_an_epoch(first, second, share, seed):
    dice = random.Random(seed)

    def mixed(epoch):
        return {p: dice.sample(epoch[p], len(epoch[p])) for p in dice.sample(sorted(epoch), len(epoch))}

    history, other = history_of(first, second), history_of(mixed(first), mixed(second))
    assert history.state() == other.state()
    resumed = LengthHistory()
    resumed.restore(json.loads(json.dumps(history.state())))
    prompts = prompt_ids(8)
    assert resumed.expected_long(prompts, share) == history.expected_long(reversed(prompts), share)
    assert resumed.recorded(prompts) == history.recorded(prompts)
    assert len(history.expected_long(prompts, share)) <= round(share * len(prompts))


@over("predict", prompts=(1, 40), chaos=chaoses())
def test_every_sample_runs_to_its_end_and_nothing_is_deferred(spec, prompts, seed, chaos):
    for step in itertools.islice(keyed_steps(Schedule(spec, prompt_ids(prompts), seed), seed, chaos), 12):
        assert not step.outcome.prompts[Fate.DEFERRED] and not step.outcome.prompts[Fate.RETURNED]
        # A group is given up only when the infrastructure fails on its prompt again and again.
        failed = {d.number for d in step.run.machine.draws if d.fate is Fate.FAILED}
        assert {a.key.draw for actions in step.run.actions for a in actions if isinstance(a, Abort)} <= failed


@over("predict", prompts=(4, 60))
def test_long_rounds_hold_exactly_those_expected_long(spec, prompts, seed):
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    run_of = keyed_steps(schedule, seed)
    expected: dict[int, set[str]] = {}

    def look():
        for epoch in schedule.state()["epochs"]:
            assert expected.setdefault(epoch["epoch"], set(epoch["expected_long"])) == set(epoch["expected_long"])

    while schedule.epoch < 3:
        look()
        step = next(run_of)
        look()
        assert step.outcome.taken, "no round is empty"
        for prompt, epoch in step.epochs.items():
            assert (prompt in expected[epoch]) == (step.run.machine.kind == "long")
    share, target = round(spec.long_share * prompts), spec.prompts_per_step
    assert not expected[0], "of the first epoch nothing was known"
    assert all(len(long) <= max(0, min(share, prompts - target)) for long in expected.values())
    # Of the epoch before only its last round may be missing in the history.
    least = min(share, prompts - 2 * target)
    assert spec.dynamic_sampling or all(len(long) >= min(least, 1) for number, long in expected.items() if number)


def test_the_next_epoch_is_sorted_by_lengths_of_the_last():
    length = {p: 20 + i for i, p in enumerate(prompt_ids(9))}
    schedule = Schedule(SPEC, prompt_ids(9), seed=1)
    run_of = steps(schedule, lambda s: length[s.prompt])
    while schedule.epoch == 0:
        next(run_of)
    [epoch] = schedule.state()["epochs"]
    assert epoch["expected_long"] == ["k006", "k007", "k008"]
    for prompt in length:
        length[prompt] = 40 - length[prompt]
    while schedule.epoch == 1:
        assert schedule.state()["epochs"][0]["expected_long"] == ["k006", "k007", "k008"], "not by its own"
        next(run_of)
    # Two epochs that contradict each other: the later one counts more.
    assert schedule.state()["epochs"][-1]["expected_long"] == ["k000", "k001", "k002"]


def test_filtered_groups_are_part_of_the_history():
    spec = RoundSpec("predict", 3, 2, CAP, 3, 2, dynamic_sampling=True, long_share=0.3)
    schedule = Schedule(spec, prompt_ids(6), seed=1)
    run_of = steps(schedule, lambda s: 5)
    while schedule.epoch == 0:
        assert not next(run_of).outcome.trained
    assert schedule.state()["history"] == {p: [pytest.approx(math.log(5)), 2.0, 0.0] for p in prompt_ids(6)}


def test_a_run_that_goes_over_to_predict_begins_without_history():
    sync = Schedule(SYNC, prompt_ids(9), seed=0)
    next(steps(sync, lambda s: 4))
    schedule = Schedule(SPEC, prompt_ids(9), seed=0)
    schedule.restore(json.loads(json.dumps(sync.state())))
    run_of = steps(schedule, lambda s: 4)
    kinds = [next(run_of).run.machine.kind for _ in range(2)]
    assert kinds == ["short", "short"] and schedule.epoch == 1
    assert len(schedule.state()["epochs"][-1]["expected_long"]) == 3, "what the rest of that epoch taught"


def test_a_small_history_is_drawn_towards_that_of_all():
    history = history_of({"forgotten": [7]})
    history.restore({"a": [1.0, 2.0, 2.0], "b": [4.0, 4.0, 0.0]})  # logs of 0 and 2, and four of 4
    recorded = history.recorded(["a"])
    within = 2.0 / 4.0  # two squared distances of 1, over 1 + 3 degrees of freedom
    score = 2.5 + 2 / (2 + 3) * (1.0 - 2.5)
    variance = (2.0 + 3 * within) / (2 + 3) * (1 + 1 / (2 + 3))
    assert recorded.expected["a"].median == pytest.approx(math.exp(score))
    assert recorded.expected["a"].mean == pytest.approx(math.exp(score + variance / 2))
    assert recorded.spread == pytest.approx(within**0.5)
    assert history.recorded(["a", "b"]).expected["a"] == recorded.expected["a"], "whoever else is asked for"
    history.record("b", [3, 3])
    mean = (2.0 * 4.0 + 2 * math.log(3)) / 4.0
    assert history.state()["b"] == pytest.approx([mean, 4.0, 2.0 * 2 / 4.0 * (math.log(3) - 4.0) ** 2])


def test_a_balanced_run_of_any_mode_resumes_with_its_history():
    spec = RoundSpec("sync", 3, 2, CAP, 3, 2, keeps_history=True)
    schedule, resumed = (Schedule(spec, prompt_ids(6), seed=1) for _ in range(2))
    run_of = steps(schedule, lambda s: 5 + s.sample)
    for _ in range(3):
        next(run_of)
    resumed.restore(json.loads(json.dumps(schedule.state())))
    assert resumed.recorded() == schedule.recorded() and len(resumed.recorded().expected) == 6
    # A checkpoint of an earlier version has no spreads.
    resumed.restore(schedule.state() | {"history": {p: n[:2] for p, n in schedule.state()["history"].items()}})
    assert set(resumed.recorded().expected) == set(schedule.recorded().expected)
    assert "history" not in Schedule(SYNC, prompt_ids(6), seed=1).state()
