"""Between rounds: epochs, the deferred queue, and going on after a stop."""

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
from rlplan.rounds.round_spec import RoundSpec
from rlplan.rounds.schedule import MAX_OPEN_EPOCHS, MAX_WAIT_ROUNDS, Schedule

from .driver import (
    CAP,
    SEEDS,
    chaoses,
    keyed_lengths,
    keyed_rewards,
    keyed_steps,
    over,
    prompt_ids,
    queue_rules,
    specs,
    steps,
)


@over(prompts=(1, 40), chaos=chaoses(), examples=60)
def test_over_an_epoch_each_prompt_is_settled_exactly_once(spec, prompts, seed, chaos):
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    run_of = keyed_steps(schedule, seed, chaos)
    turn = dict.fromkeys(prompt_ids(prompts), 0)
    settled: Counter[tuple[int, str]] = Counter()
    while schedule.state()["epochs"][0]["epoch"] < 2:
        waiting = set(schedule.deferred)
        step = next(run_of)
        assert step.epochs == {p: turn[p] for p in step.outcome.taken}, "each prompt's epochs come in order"
        assert len(step.outcome.taken) == len(set(step.outcome.taken)), "a prompt is in a round once at most"
        assert step.run.machine.kind == "long" or not waiting.intersection(step.outcome.taken), "it is in flight"
        settled.update(step.settled)
        turn.update({prompt: epoch + 1 for epoch, prompt in step.settled})
    assert set(settled.values()) == {1}
    for epoch in range(2):
        assert sorted(p for number, p in settled if number == epoch) == prompt_ids(prompts)


@over("race", "defer", "exact", prompts=(1, 60), chaos=chaoses())
def test_a_deferred_prompt_is_drawn_again_within_bounded_rounds(spec, prompts, seed, chaos):
    """The wait itself is bounded, not only by a full queue or the epoch's end (the limit is lowered to show it)."""
    wait, spec = 3, dataclasses.replace(spec, queue=None)
    latest: dict[str, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule_module, "MAX_WAIT_ROUNDS", wait)
        schedule = Schedule(spec, prompt_ids(prompts), seed)
        for step in itertools.islice(keyed_steps(schedule, seed, chaos), 12):
            if step.run.machine.kind == "long":
                for prompt in step.outcome.taken:
                    assert step.run.number <= latest.pop(prompt)
            for place, prompt in enumerate(schedule.deferred):
                # From `wait` rounds on all rounds are long, and each takes P from the head.
                latest.setdefault(prompt, step.run.number + wait + place // spec.prompts_per_step)
            assert set(latest) == set(schedule.deferred)


@over(prompts=(1, 40))
def test_the_order_of_an_epoch_depends_on_seed_and_number_alone(spec, prompts, seed):
    def issued(names, lengths):
        schedule = Schedule(spec, names, seed)
        run_of = steps(schedule, lengths, keyed_rewards(seed), order=random.Random(seed))
        orders: dict[int, list[str]] = {}
        seen: dict[tuple[int, str], None] = {}
        for _ in range(8):
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


@over("exact", prompts=(1, 40), chaos=chaoses())
def test_returned_prompts_keep_their_place_in_the_feed(spec, prompts, seed, chaos):
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    waiting: list[str] = []
    epochs: dict[str, int] = {}
    in_flight: set[str] = set()
    for step in itertools.islice(keyed_steps(schedule, seed, chaos), 10):
        taken = step.outcome.taken
        if step.run.machine.kind == "short":
            again = [p for p in taken if p in waiting]
            assert again == waiting[: len(again)]
            assert all(step.epochs[p] == epochs[p] for p in again)
            if again:  # only who was in flight before them comes first
                assert set(taken[: taken.index(again[-1])]) <= in_flight.union(again)
            waiting = list(step.outcome.prompts[Fate.RETURNED])
            epochs = {p: step.epochs[p] for p in waiting}
            in_flight = set()
        in_flight.update(taken, schedule.deferred)


@over(prompts=(1, 30), chaos=chaoses(), stop=st.integers(0, 8), examples=60)
def test_going_on_after_a_stop_equals_not_having_stopped(spec, prompts, seed, chaos, stop):
    """Wherever it stops: in a round, between rounds of a tail cycle, before a long round, at an epoch's end."""

    def go_on(schedule, count):
        made = []
        for _ in range(count):
            order = random.Random(schedule.round_number)
            step = next(steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=order, chaos=chaos))
            made.append((step.run.number, step.epochs, step.run.machine.kind, step.run.actions, step.outcome))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule_module, "MAX_WAIT_ROUNDS", 2)
        whole, first = (Schedule(spec, prompt_ids(prompts), seed) for _ in range(2))
        expected = go_on(whole, stop + 5)
        before = go_on(first, stop)
        for broken_off in (False, True):  # a round that is begun and never ended is as if never begun
            if broken_off:
                first.begin().start()
            second = Schedule(spec, prompt_ids(prompts), seed)
            second.restore(json.loads(json.dumps(first.state())))
            assert second.state() == first.state()
            assert before + go_on(second, 5) == expected
            assert second.state() == whole.state()
        assert before + go_on(first, 5) == expected


@settings(max_examples=40)
@given(spec=specs(("exact",)), rule=st.data(), prompts=st.integers(8, 80), seed=SEEDS)
def test_queues_come_when_q_wait_and_waves_when_epochs_end(spec, rule, prompts, seed):
    """The queue keeps its order; a prompt's age is the long rounds that found it short, and is bounded."""
    rule = rule.draw(queue_rules(spec.prompts_per_step))
    schedule = Schedule(dataclasses.replace(spec, queue=rule), prompt_ids(prompts), seed)
    ages: Counter[str] = Counter()
    waited: Counter[str] = Counter()
    before, begun, fresh = list[str](), 1, True
    for step in itertools.islice(keyed_steps(schedule, seed), 30):
        taken, fates = step.outcome.taken, step.outcome.prompts
        if step.run.machine.kind == "short":
            assert schedule.ages == schedule.waits == ()
        elif schedule.ages:
            assert len(taken) == rule.prompts and schedule.ages == tuple(ages[prompt] for prompt in taken)
            assert list(taken) == before[: rule.prompts] and fresh
        else:
            few = prompts - len(before) < spec.prompts_per_step
            late = begun >= MAX_OPEN_EPOCHS - 1  # a short round might begin an epoch more
            assert (not fresh or few or late) and not fates[Fate.DEFERRED]
            assert len(taken) == spec.prompts_per_step or few or late
        if step.run.machine.kind == "long":
            waited.update(before)
            ages.update(fates[Fate.DEFERRED])
            gone = [prompt for prompt in before if prompt not in schedule.deferred]
            assert list(schedule.waits) == [waited.pop(prompt) for prompt in gone]
            assert [p for p in before if p in schedule.deferred] == list(schedule.deferred)
            assert max([ages.pop(prompt, 0) for prompt in gone] + list(ages.values())) <= rule.until_long_after
        state = schedule.state()
        before, begun, fresh = list(schedule.deferred), len(state["epochs"]), bool(state["epochs"][0]["fresh"])


def test_a_checkpoint_without_ages_is_gone_on_with():
    schedule, resumed = exact(), exact()
    next(with_slow(schedule, *prompt_ids(21)))
    state = schedule.state()
    assert {tuple(numbers) for _, _, _, *numbers in state["deferred"]} == {(0, 0)}
    resumed.restore(state | {"deferred": [entry[:3] for entry in state["deferred"]]})
    assert resumed.state() == state


EXACT = RoundSpec("exact", 3, 2, CAP, 5, 2, cutoff_tokens=10, copies=2)


def exact(prompts=21, seed=3):
    return Schedule(EXACT, prompt_ids(prompts), seed)


def with_slow(schedule, *slow, **how):
    """Rounds in which only these prompts are long."""
    return steps(schedule, lambda s: 20 if s.prompt in slow else 4, **how)


def test_a_long_round_waits_for_p_prompts_across_two_epochs():
    """21 prompts of which 7 are long, and P is 3: the seventh waits for two of the next epoch."""
    # In a long round the second redraw is long, in a short round each third prompt.
    run_of = steps(exact(), lambda s: 20 if s.redraw == 1 or int(s.prompt[1:]) % 3 == 0 else 4)
    rounds = list(itertools.islice(run_of, 21))
    assert {len(step.outcome.trained) for step in rounds} == {3}
    long = [step for step in rounds if step.run.machine.kind == "long"]
    assert {p for step in long[:3] for p in step.outcome.taken} == {f"k{i:03d}" for i in range(0, 21, 3)}
    assert [sorted(step.epochs.values()) for step in long[:3]] == [[0, 0, 0], [0, 0, 0], [0, 1, 1]]
    settled = Counter(pair for step in rounds for pair in step.settled)
    assert settled.total() == 63 and set(settled.values()) == {1}
    assert {p for epoch, p in settled if epoch == 0} == set(prompt_ids(21))


def test_a_long_round_comes_when_the_queue_holds_exactly_p():
    schedule = exact()
    slow = schedule.state()["epochs"][0]["fresh"][:3]  # five are issued and two are short
    run_of = with_slow(schedule, *slow)
    assert next(run_of).outcome.prompts[Fate.DEFERRED] == tuple(slow)
    assert len(schedule.deferred) == EXACT.prompts_per_step and schedule.next_kind() == "long"
    assert next(run_of).outcome.prompts[Fate.TRAINED] == tuple(sorted(slow))


def test_a_prompt_that_waits_alone_gets_a_long_round():
    schedule = exact(3 * MAX_WAIT_ROUNDS + 50, seed=0)
    run_of = with_slow(schedule, schedule.state()["epochs"][0]["fresh"][1], checked=False)
    kinds = {step.run.number: step.run.machine.kind for step in itertools.islice(run_of, MAX_WAIT_ROUNDS + 2)}
    assert [number for number, kind in kinds.items() if kind == "long"] == [MAX_WAIT_ROUNDS]


@pytest.mark.parametrize(
    ("prompts", "change", "complaint"),
    [
        (prompt_ids(20), {}, "another data set"),
        (prompt_ids(22), {}, "another data set"),
        ([*prompt_ids(20), "k999"], {}, "another data set"),
        (prompt_ids(21), {"deferred": [["k001", 0, 0]]}, "another data set"),  # a prompt that is in two places
        (prompt_ids(21), {"epochs": None}, "another version"),
    ],
)
def test_a_state_of_another_job_is_refused_and_changes_nothing(prompts, change, complaint):
    schedule, resumed = exact(), Schedule(EXACT, prompts, seed=3)
    next(with_slow(schedule, *prompt_ids(21)))
    state = {key: value for key, value in (schedule.state() | change).items() if value is not None}
    untouched = resumed.state()
    with pytest.raises(ValueError, match=complaint):
        resumed.restore(state)
    assert resumed.state() == untouched


@pytest.mark.parametrize("prompts", [[], ["a", "b", "a"]])
def test_prompt_ids_must_be_unique_and_present(prompts):
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
def test_a_spec_that_cannot_be_run_is_refused(fields, complaint):
    valid = {"mode": "exact", "prompts_per_step": 3, "samples_per_prompt": 2, "max_tokens": CAP}
    valid |= {"short_prompts": 5, "short_samples": 2, "cutoff_tokens": 10}
    spec, plain = RoundSpec(**valid), RoundSpec("sync", 3, 2, CAP, 3, 2)
    assert spec.long(3).redraws and spec.short().exact and not spec.short().redraws and not plain.long(3).redraws
    assert plain.long(3).copies == () and spec.long(3).copies == (1, 1, 1)
    with pytest.raises(ValueError, match=complaint):
        RoundSpec(**(valid | fields))


def test_a_round_that_trains_a_prompt_twice_in_an_epoch_is_caught():
    schedule = Schedule(RoundSpec("sync", 3, 2, CAP, 3, 2), prompt_ids(9), seed=0)
    run_of = with_slow(schedule)
    trained = next(run_of).outcome.trained[0].prompt
    schedule._open[0].fresh.insert(0, trained)
    with pytest.raises(AssertionError, match="trained twice"):
        next(run_of)


@over("sync", prompts=(48, 60), examples=20)
def test_upcoming_prompts_are_those_of_the_next_round(spec, prompts, seed):
    schedule = Schedule(dataclasses.replace(spec, dynamic_sampling=False), prompt_ids(prompts), seed)
    expected: list[tuple[str, int]] = []
    for step in itertools.islice(keyed_steps(schedule, seed), 8):
        now = [(prompt, step.epochs[prompt]) for prompt in step.outcome.taken]
        assert now[: len(expected)] == expected
        before = schedule.state()
        expected = schedule.upcoming(spec.prompts_per_step)
        assert schedule.state() == before, "asking changes nothing"
