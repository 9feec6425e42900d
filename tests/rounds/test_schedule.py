"""Between rounds: epochs, the deferred queue, and going on after a stop."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds import schedule as schedule_module
from rlplan.rounds.outcome import Fate
from rlplan.rounds.schedule import MAX_WAIT_ROUNDS, RoundSpec, Schedule

from .driver import CAP, SEEDS, Chaos, Step, chaoses, keyed_lengths, keyed_rewards, prompt_ids, specs, steps

SETTLED = (Fate.TRAINED, Fate.FILTERED, Fate.FAILED)
many = settings(max_examples=60, deadline=None)


def _epochs(schedule: Schedule, seed: int, chaos: Chaos, count: int) -> list[list[Step]]:
    run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed), chaos=chaos)
    until = itertools.takewhile(lambda step: step.epoch < count, run_of)
    return [list(group) for _, group in itertools.groupby(until, key=lambda step: step.epoch)]


@many
@given(spec=specs(), chaos=chaoses(), prompts=st.integers(1, 40), seed=SEEDS)
def test_over_an_epoch_each_prompt_is_trained_filtered_or_failed_exactly_once(
    spec: RoundSpec, chaos: Chaos, prompts: int, seed: int
) -> None:
    epochs = _epochs(Schedule(spec, prompt_ids(prompts), seed), seed, chaos, 3)
    assert len(epochs) == 3
    for epoch in epochs:
        settled = Counter(p for step in epoch for fate in SETTLED for p in step.outcome.prompts[fate])
        assert settled == Counter(prompt_ids(prompts))


@many
@given(spec=specs(modes=("race", "defer", "exact")), chaos=chaoses(), prompts=st.integers(1, 60), seed=SEEDS)
def test_a_deferred_prompt_starts_again_from_nothing_within_a_bounded_number_of_rounds(
    spec: RoundSpec, chaos: Chaos, prompts: int, seed: int
) -> None:
    """The wait itself is bounded, not only by a full queue or the epoch's end (the limit is lowered to show it)."""
    wait = 3
    latest: dict[str, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule_module, "MAX_WAIT_ROUNDS", wait)
        schedule = Schedule(spec, prompt_ids(prompts), seed)
        run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed), chaos=chaos)
        for step in itertools.islice(run_of, 12):
            if step.run.machine.kind == "long":
                for prompt in step.outcome.taken:
                    assert step.run.number <= latest.pop(prompt)
            for place, prompt in enumerate(schedule.deferred):
                # From `wait` rounds on all rounds are long, and each takes P from the head.
                latest.setdefault(prompt, step.run.number + wait + place // spec.prompts_per_step)
            assert set(latest) == set(schedule.deferred)


@many
@given(spec=specs(modes=("sync", "race", "defer", "exact")), chaos=chaoses(), prompts=st.integers(1, 40), seed=SEEDS)
def test_an_epoch_ends_with_an_empty_queue_and_the_next_has_an_order_of_its_own(
    spec: RoundSpec, chaos: Chaos, prompts: int, seed: int
) -> None:
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    epochs = []
    for epoch in range(3):
        assert schedule.epoch == epoch and schedule.deferred == () and schedule.next_kind() == "short"
        state = schedule.state()
        assert sorted(state["fresh"]) == prompt_ids(prompts) and state["settled"] == []
        epochs.append(state["fresh"])
        run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed), chaos=chaos)
        while schedule.epoch == epoch:
            next(run_of)
    assert prompts < 12 or len({tuple(order) for order in epochs}) == 3
    other = Schedule(spec, list(reversed(prompt_ids(prompts))), seed)
    assert other.state()["fresh"] == epochs[0], "the order does not depend on the order of the file"


@many
@given(spec=specs(modes=("exact",)), chaos=chaoses(), prompts=st.integers(1, 40), seed=SEEDS)
def test_returned_prompts_come_again_first_thing_in_the_next_short_round_of_the_same_epoch(
    spec: RoundSpec, chaos: Chaos, prompts: int, seed: int
) -> None:
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    waiting: tuple[str, ...] = ()
    run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed), chaos=chaos)
    for step in itertools.islice(run_of, 10):
        if step.run.machine.kind == "short":
            assert step.outcome.taken[: len(waiting)] == waiting[: len(step.outcome.taken)]
            waiting = step.outcome.prompts[Fate.RETURNED]
        assert not waiting or schedule.epoch == step.epoch


@many
@given(spec=specs(), chaos=chaoses(), prompts=st.integers(1, 30), seed=SEEDS, stop=st.integers(0, 8))
def test_going_on_after_a_stop_equals_not_having_stopped(
    spec: RoundSpec, chaos: Chaos, prompts: int, seed: int, stop: int
) -> None:
    """Wherever it stops: between rounds of a tail cycle, before a long round, at an epoch's end."""

    def go_on(schedule: Schedule, count: int) -> list[object]:
        made = []
        for _ in range(count):
            order = random.Random(schedule.round_number)
            run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=order, chaos=chaos)
            step = next(run_of)
            made.append((step.run.number, step.epoch, step.run.machine.kind, step.run.actions, step.outcome))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule_module, "MAX_WAIT_ROUNDS", 2)
        whole = Schedule(spec, prompt_ids(prompts), seed)
        expected = go_on(whole, stop + 5)

        first = Schedule(spec, prompt_ids(prompts), seed)
        before = go_on(first, stop)
        on_disk = json.dumps(first.state())
        second = Schedule(spec, prompt_ids(prompts), seed)
        second.restore(json.loads(on_disk))
        assert second.state() == first.state()
        assert before + go_on(second, 5) == expected
        assert second.state() == whole.state()


EXACT = RoundSpec("exact", 3, 2, CAP, 5, 2, cutoff_tokens=10, copies=2)


def _one_in_three_is_long(schedule: Schedule) -> list[tuple[str, tuple[str, ...]]]:
    """Rounds of one epoch as (kind, prompts taken)."""
    # In a long round the second redraw is long, in a short round each third prompt.
    run_of = steps(
        schedule,
        lambda s: 20 if s.redraw == 1 or int(s.prompt[1:]) % 3 == 0 else 4,
        lambda s: 1.0,
    )
    return [
        (step.run.machine.kind, step.outcome.taken)
        for step in itertools.takewhile(lambda step: step.epoch == 0, run_of)
    ]


def test_a_long_round_comes_when_the_queue_holds_p_and_when_the_epoch_has_nothing_fresh() -> None:
    rounds = _one_in_three_is_long(Schedule(EXACT, prompt_ids(21), seed=3))
    kinds = [kind for kind, _ in rounds]
    sizes = [len(taken) for kind, taken in rounds if kind == "long"]
    assert kinds[0] == "short" and kinds[-1] == "long" and sizes == [3, 3, 1]
    assert {p for kind, taken in rounds if kind == "long" for p in taken} == {f"k{i:03d}" for i in range(0, 21, 3)}


def test_a_long_round_comes_as_soon_as_the_queue_holds_exactly_p() -> None:
    schedule = Schedule(EXACT, prompt_ids(21), seed=3)
    slow = schedule.state()["fresh"][-3:]  # the first three to be taken; five are issued and two are short
    run_of = steps(schedule, lambda s: 20 if s.prompt in slow else 4, lambda s: 1.0)
    assert next(run_of).outcome.prompts[Fate.DEFERRED] == tuple(reversed(slow))
    assert len(schedule.deferred) == EXACT.prompts_per_step and schedule.next_kind() == "long"
    assert next(run_of).outcome.prompts[Fate.TRAINED] == tuple(sorted(slow))


def test_a_state_in_the_middle_of_a_tail_cycle_holds_the_deferred_queue_and_since_when() -> None:
    schedule = Schedule(EXACT, prompt_ids(21), seed=3)
    slow = schedule.state()["fresh"][-8]  # the eighth to be taken
    run_of = steps(schedule, lambda s: 20 if s.prompt == slow else 4, lambda s: 1.0)
    while not schedule.deferred:
        deferred_in = schedule.round_number
        next(run_of)
    next(run_of)
    assert deferred_in > 0 and schedule.state()["deferred"] == [[slow, deferred_in]]
    resumed = Schedule(EXACT, prompt_ids(21), seed=3)
    resumed.restore(schedule.state())
    assert resumed.deferred == (slow,) and resumed.round_number == deferred_in + 2


def test_a_prompt_that_waits_alone_gets_a_long_round_after_max_wait_rounds() -> None:
    schedule = Schedule(EXACT, prompt_ids(3 * MAX_WAIT_ROUNDS + 50), seed=0)
    slow = schedule.state()["fresh"][-2]
    run_of = steps(schedule, lambda s: 20 if s.prompt == slow else 4, lambda s: 1.0, checked=False)
    kinds = {step.run.number: step.run.machine.kind for step in itertools.islice(run_of, MAX_WAIT_ROUNDS + 2)}
    assert [number for number, kind in kinds.items() if kind == "long"] == [MAX_WAIT_ROUNDS]


@pytest.mark.parametrize(
    "other", [prompt_ids(20), prompt_ids(22), [*prompt_ids(20), "k999"]], ids=["fewer", "more", "another"]
)
def test_a_state_of_another_data_set_is_refused_and_changes_nothing(other: list[str]) -> None:
    schedule = Schedule(EXACT, prompt_ids(21), seed=3)
    next(steps(schedule, lambda s: 20, lambda s: 1.0))
    resumed = Schedule(EXACT, other, seed=3)
    untouched = resumed.state()
    with pytest.raises(ValueError, match="another data set"):
        resumed.restore(schedule.state())
    assert resumed.state() == untouched


def test_a_state_that_holds_a_prompt_twice_is_refused() -> None:
    schedule = Schedule(EXACT, prompt_ids(4), seed=3)
    state = schedule.state()
    state["settled"] = ["k001"]
    with pytest.raises(ValueError, match="another data set"):
        schedule.restore(state)


def test_prompt_ids_must_be_unique_and_present() -> None:
    for prompts in ([], ["a", "b", "a"]):
        with pytest.raises(ValueError, match="unique"):
            Schedule(EXACT, prompts, seed=0)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"short_prompts": 2}, "fewer prompts"),
        ({"mode": "race", "short_samples": 1}, "fewer prompts or samples"),
        ({"cutoff_tokens": None}, "needs a cutoff"),
        ({"short_samples": 3}, "exactly n samples"),
        ({"mode": "defer", "short_samples": 3}, "exactly n samples"),
        ({"mode": "sync"}, "exactly P prompts"),
        ({"mode": "predict"}, "exactly P prompts"),
        ({"mode": "predict", "short_prompts": 3}, "needs a share"),
        ({"mode": "predict", "short_prompts": 3, "long_share": 1.0}, "needs a share"),
    ],
)
def test_a_spec_that_cannot_be_run_is_refused(fields: dict[str, object], complaint: str) -> None:
    valid = {
        "mode": "exact",
        "prompts_per_step": 3,
        "samples_per_prompt": 2,
        "max_tokens": CAP,
        "short_prompts": 5,
        "short_samples": 2,
        "cutoff_tokens": 10,
    }
    RoundSpec(**valid)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=complaint):
        RoundSpec(**(valid | fields))  # type: ignore[arg-type]


def test_a_round_that_trains_a_prompt_again_in_the_same_epoch_is_caught() -> None:
    schedule = Schedule(RoundSpec("sync", 3, 2, CAP, 3, 2), prompt_ids(9), seed=0)
    run_of = steps(schedule, lambda s: 4, lambda s: 1.0)
    trained = next(run_of).outcome.trained[0].prompt
    schedule._fresh.append(trained)
    with pytest.raises(AssertionError, match="trained twice"):
        next(run_of)
