"""Mode `predict`: history decides who gets a long round, and nothing else."""

from __future__ import annotations

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

from .driver import CAP, SEEDS, chaoses, keyed_lengths, keyed_rewards, prompt_ids, specs, steps

many = settings(max_examples=60, deadline=None)
SPEC = RoundSpec("predict", 3, 2, CAP, 3, 2, long_share=0.3)

groups = st.dictionaries(
    st.sampled_from(prompt_ids(8)), st.lists(st.integers(1, 500), min_size=1, max_size=5), max_size=8
)


def history_of(*epochs: dict[str, list[int]]) -> LengthHistory:
    history = LengthHistory()
    for epoch in epochs:
        for prompt, tokens in epoch.items():
            history.record(prompt, tokens)
    return history


def test_the_prompts_with_the_longest_history_are_expected_long() -> None:
    history = history_of({"a": [10, 12], "b": [300, 20], "c": [90, 110], "d": [15, 9]})
    assert history.expected_long("abcd", 0.5) == {"b", "c"}
    assert history.expected_long("abcd", 0.25) == {"c"}, "the mean of logs, in which one lost answer counts little"


def test_not_everybody_can_be_longer_than_the_others() -> None:
    assert history_of({"a": [10], "b": [300]}).expected_long("ab", 0.9) == {"b"}
    assert history_of({"a": [10]}).expected_long("a", 0.9) == frozenset()


def test_what_was_never_recorded_is_never_expected_long_and_counts_in_the_share() -> None:
    history = history_of({"a": [10], "b": [300]})
    assert history.expected_long("abcdefgh", 0.25) == {"a", "b"}
    assert history.expected_long("cdef", 0.5) == LengthHistory().expected_long("ab", 0.5) == frozenset()


def test_earlier_epochs_count_less_than_later_ones() -> None:
    history = history_of({"a": [400] * 4, "b": [20] * 4}, {"a": [20] * 4, "b": [400] * 4})
    assert history.expected_long("ab", 0.5) == {"b"}


def test_few_samples_are_believed_less_than_many() -> None:
    history = history_of({"few": [200], "many": [150] * 8, "x": [10] * 8, "y": [10] * 8})
    assert history.expected_long(["few", "many", "x", "y"], 0.25) == {"many"}


def test_a_response_of_no_tokens_is_refused_and_an_empty_group_says_nothing() -> None:
    history = LengthHistory()
    history.record("a", [])
    assert len(history) == 0
    with pytest.raises(ValueError, match="no tokens"):
        history.record("a", [3, 0])


@many
@given(first=groups, second=groups, share=st.sampled_from([0.2, 0.5, 0.9]), seed=SEEDS)
def test_the_order_within_an_epoch_does_not_matter_and_the_state_holds_everything(
    first: dict[str, list[int]], second: dict[str, list[int]], share: float, seed: int
) -> None:
    dice = random.Random(seed)

    def mixed(epoch: dict[str, list[int]]) -> dict[str, list[int]]:
        prompts = dice.sample(sorted(epoch), len(epoch))
        return {p: dice.sample(epoch[p], len(epoch[p])) for p in prompts}

    history, other = history_of(first, second), history_of(mixed(first), mixed(second))
    assert history.state() == other.state()
    resumed = LengthHistory()
    resumed.restore(json.loads(json.dumps(history.state())))
    prompts = prompt_ids(8)
    assert resumed.expected_long(prompts, share) == history.expected_long(reversed(prompts), share)
    assert len(history.expected_long(prompts, share)) <= round(share * len(prompts))


@many
@given(spec=specs(modes=("predict",)), chaos=chaoses(), prompts=st.integers(1, 40), seed=SEEDS)
def test_every_sample_runs_to_its_end_and_no_round_defers_anything(
    spec: RoundSpec, chaos: object, prompts: int, seed: int
) -> None:
    run_of = steps(
        Schedule(spec, prompt_ids(prompts), seed),
        keyed_lengths(seed),
        keyed_rewards(seed),
        order=random.Random(seed),
        chaos=chaos,  # type: ignore[arg-type]
    )
    for step in itertools.islice(run_of, 12):
        fates = step.outcome.prompts
        assert not fates[Fate.DEFERRED] and not fates[Fate.RETURNED]
        # A group is given up only when the infrastructure fails on its prompt again and again.
        failed = {d.number for d in step.run.machine.draws if d.fate is Fate.FAILED}
        aborted = {a.key.draw for actions in step.run.actions for a in actions if isinstance(a, Abort)}
        assert aborted <= failed


@many
@given(spec=specs(modes=("predict",)), prompts=st.integers(4, 40), seed=SEEDS)
def test_short_rounds_hold_nobody_who_is_expected_long_and_long_rounds_nobody_else(
    spec: RoundSpec, prompts: int, seed: int
) -> None:
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed))
    expected: dict[int, list[str]] = {}
    while schedule.epoch < 3:
        expected |= {e["epoch"]: e["expected_long"] for e in schedule.state()["epochs"]}
        step = next(run_of)
        expected |= {e["epoch"]: e["expected_long"] for e in schedule.state()["epochs"]}
        assert step.outcome.taken, "no round is empty"
        for prompt, epoch in step.epochs.items():
            assert (prompt in expected[epoch]) == (step.run.machine.kind == "long")
    # Of the first epoch nothing was known, and of the last round before an epoch nothing in it.
    assert not expected[0]
    if prompts > 2 * spec.prompts_per_step and not spec.dynamic_sampling:
        assert all(bool(long) == (round(spec.long_share * prompts) > 0) for epoch, long in expected.items() if epoch)


def test_the_next_epoch_is_sorted_by_the_lengths_of_the_last_and_not_of_this_one() -> None:
    length = {p: 20 + i for i, p in enumerate(prompt_ids(9))}
    schedule = Schedule(SPEC, prompt_ids(9), seed=1)
    run_of = steps(schedule, lambda s: length[s.prompt], lambda s: 1.0)
    while schedule.epoch == 0:
        next(run_of)
    [epoch] = schedule.state()["epochs"]
    assert epoch["expected_long"] == ["k006", "k007", "k008"]
    for prompt in length:
        length[prompt] = 40 - length[prompt]
    while schedule.epoch == 1:
        assert schedule.state()["epochs"][0]["expected_long"] == ["k006", "k007", "k008"]
        next(run_of)
    # Two epochs that contradict each other: the later one counts more.
    assert schedule.state()["epochs"][-1]["expected_long"] == ["k000", "k001", "k002"]


def test_filtered_groups_are_part_of_the_history() -> None:
    spec = RoundSpec("predict", 3, 2, CAP, 3, 2, dynamic_sampling=True, long_share=0.3)
    schedule = Schedule(spec, prompt_ids(6), seed=1)
    run_of = steps(schedule, lambda s: 5, lambda s: 1.0)
    while schedule.epoch == 0:
        assert not next(run_of).outcome.trained
    assert schedule.state()["history"] == {p: [pytest.approx(math.log(5)), 2.0, 0.0] for p in prompt_ids(6)}


def test_a_run_that_goes_over_to_predict_begins_without_history() -> None:
    sync = Schedule(RoundSpec("sync", 3, 2, CAP, 3, 2), prompt_ids(9), seed=0)
    next(steps(sync, lambda s: 4, lambda s: 1.0))
    schedule = Schedule(SPEC, prompt_ids(9), seed=0)
    schedule.restore(json.loads(json.dumps(sync.state())))
    run_of = steps(schedule, lambda s: 4, lambda s: 1.0)
    kinds = [next(run_of).run.machine.kind for _ in range(2)]
    assert kinds == ["short", "short"] and schedule.epoch == 1
    assert len(schedule.state()["epochs"][-1]["expected_long"]) == 3, "what the rest of that epoch taught"


def test_a_history_expects_the_lengths_of_a_prompt_and_by_how_much_they_spread() -> None:
    history = LengthHistory()
    rng = random.Random(3)
    middles = {f"k{n}": 10.0 * 1.5**n for n in range(8)}
    for prompt, middle in middles.items():
        history.record(prompt, [max(1, round(middle * math.exp(rng.gauss(0, 0.7)))) for _ in range(400)])
    recorded = history.recorded([*middles, "never"])
    assert set(recorded.expected) == set(middles)
    assert recorded.spread == pytest.approx(0.7, rel=0.1)
    for prompt, middle in middles.items():
        assert recorded.expected[prompt].median == pytest.approx(middle, rel=0.15)
        assert recorded.expected[prompt].mean == pytest.approx(middle * math.exp(0.7**2 / 2), rel=0.15)


def test_what_is_expected_of_a_prompt_does_not_hang_on_which_others_are_asked_for() -> None:
    history = LengthHistory()
    for number in range(5):
        history.record(f"k{number}", [10 + number, 20 + 3 * number])
    assert history.recorded(["k2"]).expected["k2"] == history.recorded([f"k{n}" for n in range(5)]).expected["k2"]


def test_a_balanced_run_of_any_mode_resumes_with_its_history_and_checkpoints_of_earlier_versions_are_read() -> None:
    spec = RoundSpec("sync", 3, 2, CAP, 3, 2, keeps_history=True)
    schedule = Schedule(spec, prompt_ids(6), seed=1)
    run_of = steps(schedule, lambda s: 5 + s.sample, lambda s: 1.0)
    for _ in range(3):
        next(run_of)
    resumed = Schedule(spec, prompt_ids(6), seed=1)
    resumed.restore(json.loads(json.dumps(schedule.state())))
    assert resumed.recorded() == schedule.recorded() and len(resumed.recorded().expected) == 6
    old = schedule.state() | {"history": {p: numbers[:2] for p, numbers in schedule.state()["history"].items()}}
    resumed.restore(old)
    assert set(resumed.recorded().expected) == set(schedule.recorded().expected)
    assert "history" not in Schedule(RoundSpec("sync", 3, 2, CAP, 3, 2), prompt_ids(6), seed=1).state()
