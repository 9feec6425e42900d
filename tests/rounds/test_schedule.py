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
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.round_spec import RoundSpec
from rlplan.rounds.schedule import MAX_WAIT_ROUNDS, Schedule

from .driver import CAP, SEEDS, Chaos, Lengths, chaoses, keyed_lengths, keyed_rewards, prompt_ids, specs, steps

many = settings(max_examples=60, deadline=None)


@many
@given(spec=specs(), chaos=chaoses(), prompts=st.integers(1, 40), seed=SEEDS)
def test_over_an_epoch_each_prompt_is_trained_filtered_or_failed_exactly_once(
    spec: RoundSpec, chaos: Chaos, prompts: int, seed: int
) -> None:
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed), chaos=chaos)
    settled: Counter[tuple[int, str]] = Counter()
    while schedule.state()["epochs"][0]["epoch"] < 3:
        waiting = set(schedule.deferred)
        step = next(run_of)
        settled.update(step.settled)
        assert len(step.outcome.taken) == len(set(step.outcome.taken)), "a prompt is in a round once at most"
        assert step.run.machine.kind == "long" or not waiting.intersection(step.outcome.taken)
    assert set(settled.values()) == {1}
    for epoch in range(3):
        assert sorted(p for number, p in settled if number == epoch) == prompt_ids(prompts)


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
@given(spec=specs(), prompts=st.integers(1, 40), seed=SEEDS)
def test_prompts_are_first_issued_in_the_order_of_the_epochs_each_of_which_has_one_of_its_own(
    spec: RoundSpec, prompts: int, seed: int
) -> None:
    """The order of an epoch depends on the seed and its number alone, not on the file's nor on what rounds drew."""

    def issued(names: list[str], lengths: Lengths) -> tuple[dict[int, list[str]], list[tuple[int, str]]]:
        schedule = Schedule(spec, names, seed)
        run_of = steps(schedule, lengths, keyed_rewards(seed), order=random.Random(seed))
        orders: dict[int, list[str]] = {}
        seen: dict[tuple[int, str], None] = {}
        for _ in range(12):
            orders |= {e["epoch"]: e["fresh"] for e in schedule.state()["epochs"] if not e["settled"]} | orders
            step = next(run_of)
            if step.run.machine.kind == "short":
                seen |= {(step.epochs[p], p): None for p in step.outcome.taken}
        return orders, list(seen)

    orders, seen = issued(prompt_ids(prompts), keyed_lengths(seed))
    assert sorted(orders[0]) == prompt_ids(prompts)
    assert prompts < 12 or len({tuple(order) for order in orders.values()}) == len(orders)
    assert issued(list(reversed(prompt_ids(prompts))), lambda s: 1)[0][0] == orders[0]
    if spec.mode == "sync" and prompts % spec.prompts_per_step == 0 and not spec.dynamic_sampling:
        assert [p for _, p in seen[:prompts]] == orders[0][: len(seen)], "nobody is in flight, so nobody is passed over"


@many
@given(spec=specs(modes=("exact",)), chaos=chaoses(), prompts=st.integers(1, 40), seed=SEEDS)
def test_returned_prompts_keep_their_place_and_only_who_was_in_flight_before_them_comes_first(
    spec: RoundSpec, chaos: Chaos, prompts: int, seed: int
) -> None:
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    waiting: list[str] = []
    epochs: dict[str, int] = {}
    in_flight: set[str] = set()
    run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed), chaos=chaos)
    for step in itertools.islice(run_of, 10):
        if step.run.machine.kind == "short":
            again = [p for p in step.outcome.taken if p in waiting]
            assert again == waiting[: len(again)]
            assert all(step.epochs[p] == epochs[p] for p in again)
            if again:
                assert set(step.outcome.taken[: step.outcome.taken.index(again[-1])]) <= in_flight.union(again)
            waiting = list(step.outcome.prompts[Fate.RETURNED])
            epochs = {p: step.epochs[p] for p in waiting}
            in_flight = set()
        in_flight.update(step.outcome.taken, schedule.deferred)


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
            made.append((step.run.number, step.epochs, step.run.machine.kind, step.run.actions, step.outcome))
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


def test_a_long_round_waits_for_p_prompts_across_the_border_of_two_epochs() -> None:
    """21 prompts of which 7 are long, and P is 3: the seventh waits for two of the next epoch."""
    schedule = Schedule(EXACT, prompt_ids(21), seed=3)
    run_of = steps(
        schedule,
        # In a long round the second redraw is long, in a short round each third prompt.
        lambda s: 20 if s.redraw == 1 or int(s.prompt[1:]) % 3 == 0 else 4,
        lambda s: 1.0,
    )
    rounds = list(itertools.islice(run_of, 21))
    assert {len(step.outcome.trained) for step in rounds} == {3}
    long = [step for step in rounds if step.run.machine.kind == "long"]
    assert {p for step in long[:3] for p in step.outcome.taken} == {f"k{i:03d}" for i in range(0, 21, 3)}
    assert [sorted(step.epochs.values()) for step in long[:3]] == [[0, 0, 0], [0, 0, 0], [0, 1, 1]]
    settled = Counter(pair for step in rounds for pair in step.settled)
    assert settled.total() == 63 and set(settled.values()) == {1}
    assert {p for epoch, p in settled if epoch == 0} == set(prompt_ids(21))


def test_a_long_round_comes_as_soon_as_the_queue_holds_exactly_p() -> None:
    schedule = Schedule(EXACT, prompt_ids(21), seed=3)
    slow = schedule.state()["epochs"][0]["fresh"][:3]  # five are issued and two are short
    run_of = steps(schedule, lambda s: 20 if s.prompt in slow else 4, lambda s: 1.0)
    assert next(run_of).outcome.prompts[Fate.DEFERRED] == tuple(slow)
    assert len(schedule.deferred) == EXACT.prompts_per_step and schedule.next_kind() == "long"
    assert next(run_of).outcome.prompts[Fate.TRAINED] == tuple(sorted(slow))


def test_a_state_in_the_middle_of_a_tail_cycle_holds_the_deferred_queue_and_since_when() -> None:
    schedule = Schedule(EXACT, prompt_ids(21), seed=3)
    slow = schedule.state()["epochs"][0]["fresh"][7]
    run_of = steps(schedule, lambda s: 20 if s.prompt == slow else 4, lambda s: 1.0)
    while not schedule.deferred:
        deferred_in = schedule.round_number
        next(run_of)
    next(run_of)
    assert deferred_in > 0 and schedule.state()["deferred"] == [[slow, 0, deferred_in]]
    resumed = Schedule(EXACT, prompt_ids(21), seed=3)
    resumed.restore(schedule.state())
    assert resumed.deferred == (slow,) and resumed.round_number == deferred_in + 2


def test_a_prompt_that_waits_alone_gets_a_long_round_after_max_wait_rounds() -> None:
    schedule = Schedule(EXACT, prompt_ids(3 * MAX_WAIT_ROUNDS + 50), seed=0)
    slow = schedule.state()["epochs"][0]["fresh"][1]
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
    state["epochs"][0]["settled"] = ["k001"]
    with pytest.raises(ValueError, match="another data set"):
        schedule.restore(state)


def test_a_state_of_a_version_that_ended_epochs_by_smaller_rounds_is_refused() -> None:
    old = {"epoch": 0, "round_number": 2, "fresh": prompt_ids(21), "deferred": [], "settled": []}
    with pytest.raises(ValueError, match="another version"):
        Schedule(EXACT, prompt_ids(21), seed=3).restore(old)


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
    schedule._open[0].fresh.insert(0, trained)
    with pytest.raises(AssertionError, match="trained twice"):
        next(run_of)


@many
@given(prompts=st.integers(36, 60), seed=SEEDS)
def test_upcoming_prompts_are_those_of_the_next_round_and_asking_for_them_changes_nothing(
    prompts: int, seed: int
) -> None:
    spec = RoundSpec("sync", 4, 2, CAP, short_prompts=4, short_samples=2)
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    expected: list[tuple[str, int]] = []
    for step in itertools.islice(steps(schedule, keyed_lengths(seed), keyed_rewards(seed)), 8):
        now = [(prompt, step.epochs[prompt]) for prompt in step.outcome.taken]
        assert now[: len(expected)] == expected
        before = schedule.state()
        expected = schedule.upcoming(4)
        assert schedule.state() == before
