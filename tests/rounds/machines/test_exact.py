"""The exact rounds: what is decided does not depend on when things are told, only on what was drawn."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.machines import exact
from rlplan.rounds.machines.events import Abort, Failed, Finished, Issue, Lost, ReachedCutoff, SampleKey, Score, Scored
from rlplan.rounds.machines.exact import ExactShortRound, most_draws_at_once
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.schedule import Schedule

from ..driver import CAP, SEEDS, Chaos, Sample, drive, keyed_lengths, keyed_rewards, over, prompt_ids, steps, waves


def account(step):
    """All that a round decided. Draws of a long round are named by prompt and redraw: later waves of different prompts
    are numbered as they come."""
    outcome = step.outcome
    trained = [(tuple(step.run.samples[k] for k in g.keys), g.tokens, g.rewards) for g in outcome.trained]
    return trained, outcome.prompts, outcome.draws, outcome.samples, outcome.taken, set(outcome.exhausted)


@over("exact", prompts=(1, 25), orders=st.tuples(SEEDS, st.none() | SEEDS))
def test_what_is_decided_does_not_depend_on_completion_order(spec, prompts, seed, orders):
    """Lengths and rewards are functions of the sample's name; nothing is lost, but events may repeat and come late."""
    found = []
    for order in orders:
        schedule = Schedule(spec, prompt_ids(prompts), seed)
        dice = None if order is None else random.Random(order)
        chaos = Chaos() if order is None else Chaos(noise=0.2, silence=0.5)
        run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=dice, chaos=chaos)
        found.append(([account(next(run_of)) for _ in range(6)], schedule.state()))
    assert found[0] == found[1]


@over("exact", prompts=(1, 25), examples=60)
def test_a_draw_counts_while_fewer_than_p_before_it_were_accepted(spec, prompts, seed):
    """Against the definition, walked over the prompts in the order in which they were taken."""
    lengths, rewards = keyed_lengths(seed), keyed_rewards(seed)
    machine = Schedule(spec, prompt_ids(prompts), seed).begin()
    outcome = drive(machine, lengths, rewards, order=random.Random(seed)).machine.outcome()
    target = min(spec.prompts_per_step, len(machine._initial))
    expected: dict[Fate, list[str]] = {fate: [] for fate in outcome.prompts}
    for prompt in outcome.taken:
        group = [Sample(0, prompt, 0, s) for s in range(spec.samples_per_prompt)]
        if len(expected[Fate.TRAINED]) == target:
            fate = Fate.RETURNED
        elif max(map(lengths, group)) > spec.cutoff_tokens:
            fate = Fate.DEFERRED
        elif spec.dynamic_sampling and len(set(map(rewards, group))) == 1:
            fate = Fate.FILTERED
        else:
            fate = Fate.TRAINED
        expected[fate].append(prompt)
    expected[Fate.TRAINED].sort()
    assert outcome.prompts == {fate: tuple(ids) for fate, ids in expected.items()}


@settings(max_examples=50)
@given(seed=SEEDS, prompts=st.integers(1, 6), copies=st.integers(1, 5), cutoff_tokens=st.integers(5, CAP - 1))
def test_a_long_round_trains_the_lowest_numbered_long_redraw(seed, prompts, copies, cutoff_tokens):
    size, lengths = 3, keyed_lengths(seed)
    machine = waves(prompt_ids(prompts), size, cutoff_tokens, copies, CAP)
    chaos = Chaos(noise=0.2, silence=0.5)
    run = drive(machine, lengths, keyed_rewards(seed), order=random.Random(seed), chaos=chaos)
    outcome = machine.outcome()
    assert outcome.prompts[Fate.TRAINED] == tuple(prompt_ids(prompts))
    for group in outcome.trained:
        redraw = run.samples[group.keys[0]].redraw
        longest = [max(lengths(Sample(0, group.prompt, r, s)) for s in range(size)) for r in range(redraw + 1)]
        if group.prompt in outcome.exhausted:
            assert redraw == exact.MAX_DRAWS - 1 and max(longest) <= cutoff_tokens
        else:
            assert longest[-1] > cutoff_tokens >= max(longest[:-1], default=0)


def key(draw, sample=0):
    return SampleKey(draw, sample)


def ended(draw, tokens=4, truncated=False, sample=0):
    return Finished(SampleKey(draw, sample), tokens, truncated)


def scored(draw, sample=0):
    return Scored(SampleKey(draw, sample), 1.0)


def started(machine, *events):
    """The machine, and what it does about the last of the events."""
    actions = machine.start()
    for event in events:
        actions = machine.handle(event)
    return machine, actions


def short_round(prompts, target, size=1):
    return ExactShortRound(list(prompts), target, size, 10, CAP)


def long_round(prompts="a", size=1, copies=2):
    return waves(list(prompts), size, 10, copies, CAP)


def issues(actions):
    return [a for a in actions if isinstance(a, Issue)]


def fates(machine, *fates):
    return [machine.outcome().prompts[fate] for fate in fates]


def test_a_sample_that_is_cut_at_the_cutoff_is_long():
    short, _ = started(short_round("ab", 2), ended(0, 10), scored(0), ended(1, 10, truncated=True))
    assert fates(short, Fate.TRAINED, Fate.DEFERRED) == [("a",), ("b",)]
    long, actions = started(long_round(), ended(0, 10))
    assert actions == []
    assert long.handle(ReachedCutoff(key(1))) == [Abort(key(0))]
    assert long.handle(ended(1, 11)) == [Score(key(1))]


def test_short_rounds_stop_at_the_cutoff_and_long_rounds_watch_it():
    for machine, limits in ((short_round("a", 1, 2), (10, None)), (long_round(size=2, copies=3), (CAP, 10))):
        assert {(i.max_tokens, i.cutoff_tokens) for i in issues(machine.start())} == {limits}


def test_a_long_round_issues_first_copies_before_second_ones():
    assert [i.prompt for i in issues(long_round("abc", 2).start())] == [p for p in "abcabc" for _ in range(2)]


def test_a_long_draw_of_a_short_round_stops_at_once():
    machine, actions = started(short_round("ab", 2, 3), ended(1))
    assert actions == [Score(key(1))]
    assert machine.handle(ended(1, 10, True, sample=1)) == [Abort(key(1, s)) for s in range(3)]


def test_draws_stop_once_it_is_known_that_they_do_not_count():
    machine, actions = started(short_round("abc", 2), ended(0), ended(1, 5))
    assert actions == [Score(key(1)), Abort(key(2))]
    assert not machine.done, "two rewards are still missing"


def test_waves_double_until_a_draw_is_long():
    machine = long_round(size=2, copies=3)
    run = drive(machine, lambda s: CAP - 2 if s.redraw >= 11 else 3, lambda s: 1.0)
    waves = [len({i.key.draw for i in issues(a)}) for a in run.actions]
    assert [w for w in waves if w] == [3, 3, 6]
    assert {run.samples[k].redraw for k in machine.outcome().trained[0].keys} == {11}


@pytest.mark.parametrize(("copies", "most"), [(1, 32), (3, 24), (5, 24), (33, 33), (64, 64), (99, 64)])
def test_the_most_draws_at_once_are_those_of_the_largest_wave(copies, most):
    assert most_draws_at_once(copies) == most


def test_a_prompt_that_is_never_long_is_trained_after_max_draws(monkeypatch):
    monkeypatch.setattr(exact, "MAX_DRAWS", 7)
    machine = waves(["never", "often"], 2, 10, 2, CAP)
    run = drive(machine, lambda s: 30 if s.prompt == "often" else 3, lambda s: 1.0)
    outcome = machine.outcome()
    assert outcome.exhausted == ("never",) and outcome.prompts[Fate.TRAINED] == ("never", "often")
    assert sum(s.prompt == "never" and s.sample == 0 for s in run.samples.values()) == 7
    assert {run.samples[k].redraw for k in outcome.trained[0].keys} == {6}


@pytest.mark.parametrize(("length", "reported"), [(3, ("a",)), (30, ())])
def test_an_exhausted_prompt_is_reported_unless_its_redraw_is_long(length, reported, monkeypatch):
    monkeypatch.setattr(exact, "MAX_DRAWS", 2)
    machine, actions = started(long_round(), ended(0, 3), ended(1, 3), Failed(key(1), "host gone"))
    assert [i.key for i in issues(actions)] == [key(2)]
    machine.handle(ended(2, length))
    machine.handle(scored(2))
    assert machine.outcome().exhausted == reported


def test_a_chosen_draw_that_is_lost_starts_a_row_of_its_own():
    """A row is cut by place, not by draw number: a redrawn elder has a higher number than its juniors."""
    machine, actions = started(long_round(), Lost(key(0)), ReachedCutoff(key(2)))  # draw 2 took the first place
    assert actions == [Abort(key(1))]
    machine.handle(Lost(key(2)))  # draw 3 is alone now
    assert [i.key for i in issues(machine.handle(ended(3)))] == [key(4)], "short, so one more is drawn"
    machine.handle(ended(4, 20))
    machine.handle(scored(4))
    assert machine.done and machine.outcome().draws[Fate.DISCARDED] == 4


def test_a_counting_draw_whose_redraw_is_long_is_deferred():
    # Two are accepted: "c" does not count, come what may.
    machine, _ = started(short_round("abc", 2), ended(0), ended(1), scored(1), Failed(key(0), "host gone"))
    assert not machine.done
    machine.handle(ended(3, 10, True))
    assert fates(machine, Fate.TRAINED, Fate.DEFERRED, Fate.RETURNED) == [("b",), ("a",), ("c",)]


@pytest.mark.parametrize("machine", [short_round("ab", 1, 3), long_round(size=3, copies=1)], ids=["short", "long"])
def test_the_sample_that_was_lost_is_not_aborted(machine):
    _, actions = started(machine, Lost(key(0, 1)))
    assert [a.key for a in actions if isinstance(a, Abort)] == [key(0, 0), key(0, 2)]


def test_prompts_keep_their_place_though_an_engine_was_lost():
    # "a" and "d" are drawn again, as draws 5 and 6.
    lost = Lost(key(0)), Lost(key(3))
    machine, _ = started(short_round("abcde", 1), *lost, ended(1, 10, True), ended(5, 10, True), ended(2, 3), scored(2))
    assert fates(machine, Fate.DEFERRED, Fate.RETURNED) == [("a", "b"), ("d", "e")]


def test_a_cutoff_beyond_the_lengths_and_no_copies_are_refused():
    for cutoff_tokens in (0, CAP, CAP + 1):
        with pytest.raises(ValueError, match="cutoff"):
            ExactShortRound(["a"], 1, 1, cutoff_tokens, CAP)
    with pytest.raises(ValueError, match="copies"):
        long_round(copies=0)
    assert ExactShortRound(["a"], 1, 1, 1, 2).cutoff_tokens == len(issues(long_round(copies=1).start())) == 1
