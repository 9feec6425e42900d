"""The feed has no end: epochs run into each other, and no round is small because one of them ends."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds import schedule as schedule_module
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.round_spec import RoundSpec, prompts_wanted
from rlplan.rounds.schedule import MAX_WAIT_ROUNDS, Schedule

from .driver import CAP, SEEDS, Sample, keyed_lengths, keyed_rewards, prompt_ids, specs, steps

many = settings(max_examples=60, deadline=None)

P, N = 4, 3
SPECS = {
    "sync": RoundSpec("sync", P, N, CAP, P, N),
    "race": RoundSpec("race", P, N, CAP, P + 2, N + 1),
    "defer": RoundSpec("defer", P, N, CAP, P + 1, N),
    "exact": RoundSpec("exact", P, N, CAP, P + 3, N, cutoff_tokens=25, copies=2),
    "predict": RoundSpec("predict", P, N, CAP, P, N, long_share=0.25),
}


@pytest.mark.parametrize("mode", SPECS)
@settings(max_examples=25, deadline=None)
@given(prompts=st.integers(20, 61), seed=SEEDS)
def test_whatever_the_size_of_the_data_set_every_round_of_many_epochs_trains_p_groups(
    mode: str, prompts: int, seed: int
) -> None:
    """20 to 61 prompts are 5 to 15 rounds an epoch, with any rest; and all are trained alike often."""
    schedule = Schedule(SPECS[mode], prompt_ids(prompts), seed)
    run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed), checked=False)
    trained: Counter[str] = Counter()
    epochs = 5
    rounds = -(-epochs * prompts // P)
    for step in itertools.islice(run_of, rounds):
        assert len(step.outcome.trained) == P
        trained.update(step.outcome.prompts[Fate.TRAINED])
    assert trained.total() == rounds * P
    state = schedule.state()
    for prompt in prompt_ids(prompts):
        ahead = sum(prompt in e["fresh"] for e in state["epochs"])
        waits = sum(prompt == name for name, _, _ in state["deferred"])
        assert trained[prompt] == state["next_epoch"] - ahead - waits, "each epoch that is begun, or it still waits"
        assert prompt in schedule.deferred or epochs - 1 <= trained[prompt] <= epochs + 1


@many
@given(spec=specs(modes=("sync", "race", "defer", "predict")), more=st.integers(0, 20), seed=SEEDS)
def test_a_data_set_as_large_as_rounds_want_gives_each_of_them_all_that_it_issues(
    spec: RoundSpec, more: int, seed: int
) -> None:
    spec = dataclasses.replace(spec, dynamic_sampling=False)
    wanted = prompts_wanted(spec.mode, spec.prompts_per_step, spec.short_prompts, spec.long_share)
    schedule = Schedule(spec, prompt_ids(wanted + more), seed)
    run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed), checked=False)
    for step in itertools.islice(run_of, 40):
        assert len(step.outcome.trained) == spec.prompts_per_step
        issued = spec.short_prompts if step.run.machine.kind == "short" else spec.prompts_per_step
        assert len(step.outcome.taken) == issued


REFILLED = {
    "exact": (RoundSpec("exact", 16, 2, CAP, 20, 2, cutoff_tokens=10), 0.22, 0.0),
    "exact, filtered": (RoundSpec("exact", 16, 2, CAP, 20, 2, cutoff_tokens=10, dynamic_sampling=True), 0.22, 0.3),
    "sync, filtered": (RoundSpec("sync", 16, 2, CAP, 16, 2, dynamic_sampling=True), 0.0, 0.5),
    "defer, filtered": (RoundSpec("defer", 16, 2, CAP, 20, 2, dynamic_sampling=True), 0.0, 0.5),
    "predict, filtered": (RoundSpec("predict", 16, 2, CAP, 16, 2, dynamic_sampling=True, long_share=0.3), 0.0, 0.5),
}


@pytest.mark.parametrize("case", REFILLED)
def test_a_data_set_with_headroom_for_refills_leaves_short_rounds_whole_and_one_without_does_not(case: str) -> None:
    """Which groups are long, and which are filtered, is drawn for each group anew."""
    spec, long, flat = REFILLED[case]

    def luck(sample: Sample, of: str) -> float:
        return random.Random(f"{of}:{sample.round_number}:{sample.prompt}:{sample.redraw}").random()

    def length(sample: Sample) -> int:
        return 20 if luck(sample, "length") < long else 2 + sample.sample + int(7 * luck(sample, "place"))

    def smaller(accepted: float) -> float:
        """Share of the short rounds that train fewer than P groups in as much data as is wanted."""
        asked = (spec.mode, spec.prompts_per_step, spec.short_prompts, spec.long_share)
        schedule = Schedule(spec, prompt_ids(prompts_wanted(*asked, accepted)), 1)
        run_of = steps(schedule, length, lambda s: 1.0 if luck(s, "reward") < flat else float(s.sample), checked=False)
        rounds = [step for step in itertools.islice(run_of, 250) if step.run.machine.kind == "short"]
        return sum(len(step.outcome.trained) < spec.prompts_per_step for step in rounds) / len(rounds)

    assert smaller((1 - long) * (1 - flat)) < 0.01 < smaller(1.0)


@many
@given(spec=specs(), prompts=st.integers(1, 40), seed=SEEDS)
def test_a_round_is_smaller_than_p_for_no_other_reason_than_those_that_are_stated(
    spec: RoundSpec, prompts: int, seed: int
) -> None:
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed))
    for _ in range(12):
        waiting, oldest = schedule.deferred, min((since for _, _, since in schedule.state()["deferred"]), default=None)
        step = next(run_of)
        taken, settled = step.outcome.taken, len(step.outcome.trained) + len(step.outcome.prompts[Fate.FILTERED])
        assert taken, "no round is empty"
        if step.run.machine.kind == "long":
            assert len(taken) == settled
            waited = oldest is not None and step.run.number - oldest >= MAX_WAIT_ROUNDS
            assert len(taken) == spec.prompts_per_step or waited or prompts - len(waiting) < spec.prompts_per_step
        elif len(step.outcome.trained) < spec.prompts_per_step:
            # In `predict` whom the round passed over waits in the queue now.
            put_off = set(schedule.deferred) - set(step.outcome.prompts[Fate.DEFERRED])
            assert set(taken) | put_off | set(waiting) == set(prompt_ids(prompts)), "somebody was free"


@many
@given(spec=specs(modes=("race", "defer", "exact")), prompts=st.integers(12, 40), seed=SEEDS)
def test_a_prompt_in_flight_is_passed_over_and_issued_for_the_next_epoch_once_it_is_settled(
    spec: RoundSpec, prompts: int, seed: int
) -> None:
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed))
    turn = dict.fromkeys(prompt_ids(prompts), 0)
    for _ in range(20):
        waiting = set(schedule.deferred)
        step = next(run_of)
        assert step.epochs == {p: turn[p] for p in step.outcome.taken}, "each prompt's epochs come in order"
        if step.run.machine.kind == "short":
            assert not waiting.intersection(step.outcome.taken)
        for _, prompt in step.settled:
            turn[prompt] += 1


def test_a_prompt_that_waits_long_falls_behind_by_epochs_and_then_catches_up() -> None:
    spec = RoundSpec("exact", 3, 2, CAP, 3, 2, cutoff_tokens=10)
    names = prompt_ids(9)
    schedule = Schedule(spec, names, seed=0)
    run_of = steps(schedule, lambda s: 20 if s.prompt == "k004" and s.round_number < 60 else 4, lambda s: 1.0)
    trained: Counter[str] = Counter()
    sizes: list[int] = []
    for step in itertools.islice(run_of, 150):
        trained.update(step.outcome.prompts[Fate.TRAINED])
        sizes.append(len(step.outcome.trained))
    # One bounded wait: a long round of one. Until then eight prompts went on by themselves.
    assert sorted(set(sizes)) == [1, 3] and sizes.count(1) == 1
    assert sum(trained.values()) == 149 * 3 + 1
    assert max(trained.values()) - min(trained.values()) <= 1, trained


@pytest.mark.parametrize("mode", SPECS)
def test_a_data_set_of_exactly_p_prompts_is_trained_again_and_again_without_an_empty_round(mode: str) -> None:
    schedule = Schedule(SPECS[mode], prompt_ids(P), seed=1)
    run_of = steps(schedule, keyed_lengths(1), keyed_rewards(1), order=random.Random(1))
    trained: Counter[str] = Counter()
    for step in itertools.islice(run_of, 40):
        assert step.outcome.trained or step.outcome.prompts[Fate.DEFERRED]
        trained.update(step.outcome.prompts[Fate.TRAINED])
    assert max(trained.values()) - min(trained.values()) <= 1
    assert mode not in ("sync", "predict") or set(trained.values()) == {40}, "whole rounds where nothing is put off"


@pytest.mark.parametrize("mode", SPECS)
def test_one_prompt_is_a_data_set(mode: str) -> None:
    schedule = Schedule(SPECS[mode], ["only"], seed=1)
    run_of = steps(schedule, keyed_lengths(1), keyed_rewards(1), order=random.Random(1))
    epochs = [e for step in itertools.islice(run_of, 12) for e, _ in step.settled]
    assert epochs == list(range(len(epochs))) and len(epochs) >= 6


@pytest.mark.parametrize("mode", ["sync", "race", "exact"])
def test_refills_of_dynamic_sampling_go_on_into_the_next_epoch_without_a_prompt_of_the_round_at_hand(mode: str) -> None:
    """10 prompts of which 6 are filtered, and P is 4: each round has to look into the next epoch for its last."""
    spec = SPECS[mode]
    spec = RoundSpec(
        spec.mode, 3, N, CAP, 3, N + (mode == "race"), spec.cutoff_tokens, spec.copies, dynamic_sampling=True
    )
    schedule = Schedule(spec, prompt_ids(10), seed=2)
    flat = set(schedule.state()["epochs"][0]["fresh"][:6])

    def reward(sample: Sample) -> float:
        return 1.0 if sample.prompt in flat else float(sample.sample % 2)

    run_of = steps(schedule, lambda s: 4, reward)
    settled: Counter[tuple[int, str]] = Counter()
    overlaps = 0
    for step in itertools.islice(run_of, 20):
        assert len(step.outcome.trained) == 3 and len(set(step.outcome.taken)) == len(step.outcome.taken)
        overlaps += len(set(step.epochs.values())) > 1
        settled.update(step.settled)
    assert overlaps >= 5 and set(settled.values()) == {1}


def test_a_round_whose_prompts_are_all_filtered_ends_when_every_prompt_has_been_in_it() -> None:
    spec = RoundSpec("sync", 3, 2, CAP, 3, 2, dynamic_sampling=True)
    schedule = Schedule(spec, prompt_ids(8), seed=2)
    for epoch, step in enumerate(itertools.islice(steps(schedule, lambda s: 4, lambda s: 1.0), 3)):
        assert not step.outcome.trained
        assert step.epochs == dict.fromkeys(prompt_ids(8), epoch)


def test_over_issue_beyond_the_data_set_issues_what_there_is() -> None:
    spec = RoundSpec("defer", 3, 2, CAP, 9, 2)
    schedule = Schedule(spec, prompt_ids(6), seed=2)
    rounds = list(itertools.islice(steps(schedule, keyed_lengths(2), lambda s: 1.0), 8))
    assert [len(step.outcome.taken) for step in rounds] == [6, 3] * 4
    assert all(len(step.outcome.trained) == 3 for step in rounds)


@many
@given(spec=specs(), prompts=st.integers(2, 20), seed=SEEDS)
def test_a_round_that_is_begun_and_never_ended_is_as_if_never_begun(spec: RoundSpec, prompts: int, seed: int) -> None:
    """What a run that breaks off in a round may write into its checkpoint."""
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed))
    for _ in range(5):
        next(run_of)
    before = json.dumps(schedule.state())
    whole = Schedule(spec, prompt_ids(prompts), seed)
    whole.restore(json.loads(before))
    broken_off = schedule.begin()
    broken_off.start()
    resumed = Schedule(spec, prompt_ids(prompts), seed)
    resumed.restore(json.loads(json.dumps(schedule.state())))
    for _ in range(4):
        ours, theirs, again = (
            next(steps(s, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(7)))
            for s in (resumed, whole, schedule)
        )
        assert (ours.outcome, ours.epochs) == (theirs.outcome, theirs.epochs) == (again.outcome, again.epochs)


@many
@given(spec=specs(modes=("predict",)), prompts=st.integers(20, 60), seed=SEEDS)
def test_in_predict_two_epochs_that_overlap_keep_each_its_own_expectation(
    spec: RoundSpec, prompts: int, seed: int
) -> None:
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed))
    expected: dict[int, set[str]] = {}
    for _ in range(40):
        for epoch in schedule.state()["epochs"]:
            assert expected.setdefault(epoch["epoch"], set(epoch["expected_long"])) == set(epoch["expected_long"])
        step = next(run_of)
        for epoch in schedule.state()["epochs"]:
            expected.setdefault(epoch["epoch"], set(epoch["expected_long"]))
        for prompt, number in step.epochs.items():
            assert (prompt in expected[number]) == (step.run.machine.kind == "long")
    assert expected[0] == set()
    keep = prompts - spec.prompts_per_step
    assert all(len(long) <= max(0, min(round(spec.long_share * prompts), keep)) for long in expected.values())
    # Of the epoch before only its last round may be missing in the history.
    least = min(round(spec.long_share * prompts), prompts - 2 * spec.prompts_per_step)
    assert spec.dynamic_sampling or all(len(long) >= min(least, 1) for number, long in expected.items() if number)


def test_a_queue_that_is_drained_issues_nothing_fresh() -> None:
    schedule = Schedule(SPECS["exact"], prompt_ids(30), seed=0)
    run_of = steps(schedule, keyed_lengths(3), lambda s: 1.0, order=random.Random(0))
    while not schedule.deferred:
        next(run_of)
    waiting = set(schedule.deferred)
    schedule.drain()
    settled: set[str] = set()
    while schedule.deferred:
        step = next(run_of)
        assert step.run.machine.kind == "long"
        settled.update(p for _, p in step.settled)
    assert settled == waiting


def test_the_bounded_wait_gives_a_smaller_long_round_and_the_others_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_module, "MAX_WAIT_ROUNDS", 5)
    schedule = Schedule(RoundSpec("exact", 4, 2, CAP, 5, 2, cutoff_tokens=10), prompt_ids(30), seed=0)
    run_of = steps(schedule, lambda s: 20 if s.prompt == "k007" else 4, lambda s: 1.0)
    sizes = [(s.run.machine.kind, len(s.outcome.trained)) for s in itertools.islice(run_of, 60)]
    assert {size for kind, size in sizes if kind == "short"} == {4}
    assert {size for kind, size in sizes if kind == "long"} == {1}
