"""The long round by queue: which prompts count depends on the draws before them, and on nothing else."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.machines.events import Failed, Finished, Issue, Lost, ReachedCutoff, SampleKey, Scored
from rlplan.rounds.machines.exact import MAX_DRAWS, ExactQueueRound
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.round_spec import QueueRule, RoundSpec

from ..driver import CAP, SEEDS, Chaos, Sample, chaoses, drive, keyed_lengths, keyed_rewards, prompt_ids

RULE = QueueRule(12, more_copies_every=2, until_long_after=3)


@st.composite
def queues(draw):
    """(ages, P, cutoff, dynamic sampling) of a round of 3 samples a prompt."""
    ages = draw(st.lists(st.integers(0, 4), max_size=12))
    return ages, draw(st.integers(1, 8)), draw(st.integers(2, CAP - 1)), draw(st.booleans())


def machine_of(ages, target, cutoff_tokens, dynamic=False):
    spec = RoundSpec(
        "exact", target, 3, CAP, target, 3, cutoff_tokens=cutoff_tokens, dynamic_sampling=dynamic, queue=RULE
    )
    return spec.long_by_queue(ages).machine(prompt_ids(len(ages)))


@settings(max_examples=150)
@given(queue=queues(), seed=SEEDS, order=SEEDS)
def test_the_first_long_prompts_of_the_queue_are_trained(queue, seed, order):
    """Against the definition, walked over the prompts in the order of the queue, with events in any order."""
    ages, target, cutoff_tokens, _ = queue
    lengths, rewards = keyed_lengths(seed), keyed_rewards(seed)
    machine = machine_of(*queue)
    run = drive(machine, lengths, rewards, order=random.Random(order), chaos=Chaos(noise=0.2, silence=0.5))
    outcome = machine.outcome()
    expected = {fate: [] for fate in outcome.prompts}
    drawn = 0
    for prompt, age in zip(prompt_ids(len(ages)), ages, strict=True):

        def group(redraw, prompt=prompt):
            return [Sample(0, prompt, redraw, sample) for sample in range(3)]

        def is_long(redraw, group=group):
            return max(map(lengths, group(redraw))) > cutoff_tokens

        counts = len(expected[Fate.TRAINED]) + len(expected[Fate.FILTERED]) < target
        draws = MAX_DRAWS if age >= 3 and counts else RULE.copies(age)
        first = next(filter(is_long, range(draws)), None)
        drawn += (
            RULE.copies(age) if draws < MAX_DRAWS else len([s for s in run.samples.values() if s[1] == prompt]) // 3
        )
        if not counts:
            fate = Fate.RETURNED
        elif first is None and age < 3:
            fate = Fate.DEFERRED
        else:
            assert (prompt in outcome.exhausted) == (first is None)
            first = MAX_DRAWS - 1 if first is None else first
            flat = len({rewards(sample) for sample in group(first)}) == 1
            fate = Fate.FILTERED if flat and machine.dynamic_sampling else Fate.TRAINED
            trained = {run.samples[key].redraw for g in outcome.trained if g.prompt == prompt for key in g.keys}
            assert trained == ({first} if fate is Fate.TRAINED else set())
        expected[fate].append(prompt)
    assert outcome.prompts == {fate: tuple(ids) for fate, ids in expected.items()}
    assert outcome.issued_draws == drawn


@settings(max_examples=100)
@given(queue=queues(), seed=SEEDS, orders=st.tuples(SEEDS, st.none() | SEEDS))
def test_a_queue_decides_alike_in_any_order_of_events(queue, seed, orders):
    found = []
    for order in orders:
        machine = machine_of(*queue)
        dice = None if order is None else random.Random(order)
        run = drive(machine, keyed_lengths(seed), keyed_rewards(seed), order=dice, chaos=Chaos(silence=0.5))
        outcome = machine.outcome()
        groups = [(tuple(run.samples[key] for key in g.keys), g.tokens, g.rewards) for g in outcome.trained]
        found.append((groups, outcome.prompts, outcome.draws, outcome.samples, set(outcome.exhausted)))
    assert found[0] == found[1]


@settings(max_examples=150)
@given(queue=queues(), seed=SEEDS, chaos=chaoses())
def test_whatever_fails_a_queue_trains_whole_long_groups(queue, seed, chaos):
    _, target, cutoff_tokens, _ = queue
    lengths = keyed_lengths(seed)
    machine = machine_of(*queue)
    run = drive(machine, lengths, keyed_rewards(seed), order=random.Random(seed), chaos=chaos)
    outcome = machine.outcome()  # raises where a law of conservation is broken
    assert len(outcome.trained) + len(outcome.prompts[Fate.FILTERED]) <= target
    for group in outcome.trained:
        assert len({run.samples[key].redraw for key in group.keys}) == 1 and len(group.keys) == 3
        assert max(group.tokens) > cutoff_tokens or group.prompt in outcome.exhausted


def key(draw, sample=0):
    return SampleKey(draw, sample)


def round_of(prompts, target, copies=None, until_long=None):
    """A round with groups of one sample and a cutoff of 10 tokens."""
    size = len(prompts)
    chances = {"copies": copies or [1] * size, "until_long": until_long or [False] * size}
    return ExactQueueRound(list(prompts), target, 1, 10, CAP, **chances)


def told(machine, *events):
    machine.start()
    return [machine.handle(event) for event in events]


def fates(machine, *fates):
    return [machine.outcome().prompts[fate] for fate in fates]


ENDS = Fate.TRAINED, Fate.DEFERRED, Fate.RETURNED


def test_first_copies_of_all_are_issued_before_second_ones():
    actions = round_of("abc", 2, copies=[2, 1, 3]).start()
    assert [a.prompt for a in actions if isinstance(a, Issue)] == ["a", "b", "c", "a", "c", "c"]


def test_what_is_behind_the_last_long_prompt_stops_at_once():
    machine = round_of("abcd", 1)
    *_, actions = told(machine, ReachedCutoff(key(2)), Finished(key(0), 4, False), ReachedCutoff(key(1)))
    assert {a.key for a in actions} == {key(2), key(3)} and not machine.done
    machine.handle(Finished(key(1), 20, False))
    machine.handle(Scored(key(1), 1.0))
    assert fates(machine, *ENDS) == [("b",), ("a",), ("c", "d")]


def test_copies_behind_a_long_one_stop_before_it_is_chosen():
    machine = round_of("a", 1, copies=[3])
    assert [a.key for a in told(machine, ReachedCutoff(key(1)))[0]] == [key(2)]


def test_a_round_with_few_long_prompts_trains_those():
    machine = round_of("abc", 2)
    told(machine, Finished(key(0), 3, False), Finished(key(2), 3, False), Finished(key(1), 12, False))
    machine.handle(Scored(key(1), 1.0))
    assert machine.done and fates(machine, *ENDS) == [("b",), ("a", "c"), ()]


def test_a_prompt_drawn_until_long_holds_nobody_up():
    """It counts whatever it draws, so the one behind it is judged at once."""
    machine = round_of("abc", 2, until_long=[True, False, False])
    actions = told(machine, ReachedCutoff(key(1)))[0]
    assert {a.key for a in actions} == {key(2)}


def test_a_prompt_is_drawn_on_only_where_it_counts():
    machine = round_of("ab", 1, until_long=[False, True])
    first, second = told(machine, Finished(key(1), 3, False), Finished(key(0), 3, False))
    assert first == [] and [a.key for a in second if isinstance(a, Issue)] == [key(2)]


@pytest.mark.parametrize("void", [Lost(key(0)), Failed(key(0), "host gone")])
def test_a_void_draw_whose_redraw_is_short_leaves_the_batch_smaller(void):
    machine = round_of("ab", 1)
    *_, actions = told(machine, ReachedCutoff(key(0)), void)
    assert [a.key for a in actions if isinstance(a, Issue)] == [key(2)]
    machine.handle(Finished(key(2), 3, False))
    assert machine.done and fates(machine, *ENDS) == [(), ("a",), ("b",)]


def test_copies_come_again_where_the_long_one_was_void():
    machine = round_of("a", 1, copies=[2])
    *_, again = told(machine, ReachedCutoff(key(0)), Lost(key(0)), Finished(key(2), 3, False))
    assert [a.key for a in again] == [key(3)]
    machine.handle(Finished(key(3), 12, False))
    machine.handle(Scored(key(3), 1.0))
    assert fates(machine, *ENDS) == [("a",), (), ()]


@pytest.mark.parametrize("fields", [{"prompts": 0}, {"more_copies_every": 0}, {"until_long_after": 0}])
def test_a_rule_that_would_never_end_is_refused(fields):
    with pytest.raises(ValueError, match="at least 1"):
        QueueRule(**({"prompts": 9} | fields))


@pytest.mark.parametrize(("mode", "prompts"), [("sync", 9), ("exact", 3)])
def test_a_queue_is_for_exact_and_at_least_p_prompts(mode, prompts):
    with pytest.raises(ValueError, match="queue"):
        RoundSpec(mode, 4, 1, CAP, 4, 1, cutoff_tokens=10, queue=QueueRule(prompts))
