"""The exact rounds: what is decided does not depend on when things are told, only on what was drawn."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.machines import exact_long
from rlplan.rounds.machines.events import (
    Abort,
    Action,
    Failed,
    Finished,
    Issue,
    Lost,
    ReachedCutoff,
    SampleKey,
    Score,
    Scored,
)
from rlplan.rounds.machines.exact_long import ExactLongRound
from rlplan.rounds.machines.exact_short import ExactShortRound
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.round_spec import RoundSpec
from rlplan.rounds.schedule import Schedule

from .driver import CAP, SEEDS, Chaos, Sample, Step, drive, keyed_lengths, keyed_rewards, prompt_ids, specs, steps


def _account(step: Step) -> tuple[object, ...]:
    """All that a round decided. Draws of a long round are named by prompt and redraw: later waves of different prompts
    are numbered as they come."""
    outcome = step.outcome
    trained = [(tuple(step.run.samples[k] for k in g.keys), g.tokens, g.rewards) for g in outcome.trained]
    return trained, outcome.prompts, outcome.draws, outcome.samples, outcome.taken, outcome.exhausted and True


@settings(max_examples=80, deadline=None)
@given(spec=specs(modes=("exact",)), prompts=st.integers(1, 25), seed=SEEDS, orders=st.tuples(SEEDS, st.none() | SEEDS))
def test_who_is_trained_deferred_and_returned_does_not_depend_on_completion_order(
    spec: RoundSpec, prompts: int, seed: int, orders: tuple[int, int | None]
) -> None:
    """Lengths and rewards are functions of the sample's name; nothing is lost, but events may repeat and come late."""
    accounts: list[list[tuple[object, ...]]] = []
    states = []
    for order in orders:
        schedule = Schedule(spec, prompt_ids(prompts), seed)
        dice = None if order is None else random.Random(order)
        chaos = Chaos() if order is None else Chaos(noise=0.2, silence=0.5)
        run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=dice, chaos=chaos)
        accounts.append([_account(next(run_of)) for _ in range(6)])
        states.append(schedule.state())
    assert accounts[0] == accounts[1]
    assert states[0] == states[1]


@settings(max_examples=80, deadline=None)
@given(spec=specs(modes=("exact",)), prompts=st.integers(1, 25), seed=SEEDS)
def test_a_draw_counts_if_and_only_if_fewer_than_p_before_it_were_accepted(
    spec: RoundSpec, prompts: int, seed: int
) -> None:
    """Against the definition, walked over the prompts in the order in which they were taken."""
    lengths, rewards = keyed_lengths(seed), keyed_rewards(seed)
    machine = Schedule(spec, prompt_ids(prompts), seed).begin()
    assert isinstance(machine, ExactShortRound)
    outcome = drive(machine, lengths, rewards, order=random.Random(seed)).machine.outcome()
    target = min(spec.prompts_per_step, len(machine._initial))
    expected: dict[Fate, list[str]] = {fate: [] for fate in outcome.prompts}
    assert spec.cutoff_tokens is not None
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


@settings(max_examples=80, deadline=None)
@given(seed=SEEDS, prompts=st.integers(1, 6), copies=st.integers(1, 5), cutoff_tokens=st.integers(5, CAP - 1))
def test_a_long_round_trains_the_lowest_numbered_long_redraw_of_each_prompt(
    seed: int, prompts: int, copies: int, cutoff_tokens: int
) -> None:
    size = 3
    lengths = keyed_lengths(seed)
    machine = ExactLongRound(prompt_ids(prompts), size, cutoff_tokens, copies, CAP)
    chaos = Chaos(noise=0.2, silence=0.5)
    run = drive(machine, lengths, keyed_rewards(seed), order=random.Random(seed), chaos=chaos)
    outcome = machine.outcome()
    assert outcome.prompts[Fate.TRAINED] == tuple(prompt_ids(prompts))
    for group in outcome.trained:
        redraw = run.samples[group.keys[0]].redraw
        longest = [max(lengths(Sample(0, group.prompt, r, s)) for s in range(size)) for r in range(redraw + 1)]
        if group.prompt in outcome.exhausted:
            assert redraw == exact_long.MAX_DRAWS - 1 and max(longest) <= cutoff_tokens
        else:
            assert longest[-1] > cutoff_tokens >= max(longest[:-1], default=0)


def _issues(actions: list[Action]) -> list[Issue]:
    return [a for a in actions if isinstance(a, Issue)]


def test_a_sample_that_ends_exactly_at_the_cutoff_is_short_and_one_cut_there_is_long_in_both_kinds_of_round() -> None:
    short = ExactShortRound(["a", "b"], 2, 1, 10, CAP)
    short.start()
    short.handle(Finished(SampleKey(0, 0), 10, False))
    short.handle(Scored(SampleKey(0, 0), 1.0))
    short.handle(Finished(SampleKey(1, 0), 10, True))
    outcome = short.outcome()
    assert outcome.prompts[Fate.TRAINED] == ("a",) and outcome.prompts[Fate.DEFERRED] == ("b",)

    long = ExactLongRound(["a"], 1, 10, 2, CAP)
    long.start()
    assert long.handle(Finished(SampleKey(0, 0), 10, False)) == []
    assert long.handle(ReachedCutoff(SampleKey(1, 0))) == [Abort(SampleKey(0, 0))]
    assert long.handle(Finished(SampleKey(1, 0), 11, False)) == [Score(SampleKey(1, 0))]


def test_short_rounds_never_decode_past_the_cutoff_and_long_rounds_watch_it() -> None:
    assert {(i.max_tokens, i.cutoff_tokens) for i in _issues(ExactShortRound(["a"], 1, 2, 10, CAP).start())} == {
        (10, None)
    }
    assert {(i.max_tokens, i.cutoff_tokens) for i in _issues(ExactLongRound(["a"], 2, 10, 3, CAP).start())} == {
        (CAP, 10)
    }


def test_a_long_round_issues_first_copies_of_all_prompts_before_second_ones() -> None:
    issues = _issues(ExactLongRound(["a", "b", "c"], 2, 10, 2, CAP).start())
    assert [i.prompt for i in issues] == [p for p in "abcabc" for _ in range(2)]


def test_a_long_draw_of_a_short_round_stops_at_once_and_is_not_scored() -> None:
    machine = ExactShortRound(["a", "b"], 2, 3, 10, CAP)
    machine.start()
    assert machine.handle(Finished(SampleKey(1, 0), 4, False)) == [Score(SampleKey(1, 0))]
    actions = machine.handle(Finished(SampleKey(1, 1), 10, True))
    assert actions == [Abort(SampleKey(1, s)) for s in range(3)]


def test_draws_that_do_not_count_are_stopped_as_soon_as_the_counting_ones_are_known() -> None:
    machine = ExactShortRound(["a", "b", "c"], 2, 1, 10, CAP)
    machine.start()
    machine.handle(Finished(SampleKey(0, 0), 4, False))
    actions = machine.handle(Finished(SampleKey(1, 0), 5, False))
    assert actions == [Score(SampleKey(1, 0)), Abort(SampleKey(2, 0))]
    assert not machine.done, "two rewards are still missing"


def test_waves_double_until_a_draw_is_long() -> None:
    machine = ExactLongRound(["a"], 2, 10, 3, CAP)
    longest_from = 11
    run = drive(machine, lambda s: CAP - 2 if s.redraw >= longest_from else 3, lambda s: 1.0)
    waves = [len({i.key.draw for i in _issues(a)}) for a in run.actions]
    assert [w for w in waves if w] == [3, 3, 6]
    assert {run.samples[k].redraw for k in machine.outcome().trained[0].keys} == {longest_from}


def test_a_prompt_that_is_never_long_is_trained_after_max_draws_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_long, "MAX_DRAWS", 7)
    machine = ExactLongRound(["never", "often"], 2, 10, 2, CAP)
    run = drive(machine, lambda s: 30 if s.prompt == "often" else 3, lambda s: 1.0)
    outcome = machine.outcome()
    assert outcome.exhausted == ("never",) and outcome.prompts[Fate.TRAINED] == ("never", "often")
    assert sum(s.prompt == "never" and s.sample == 0 for s in run.samples.values()) == 7
    assert {run.samples[k].redraw for k in outcome.trained[0].keys} == {6}


def test_an_exhausted_prompt_whose_reward_fails_is_reported_once_and_not_at_all_if_its_new_draw_is_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact_long, "MAX_DRAWS", 2)
    for length, reported in ((3, ("a",)), (30, ())):
        machine = ExactLongRound(["a"], 1, 10, 2, CAP)
        machine.start()
        machine.handle(Finished(SampleKey(0, 0), 3, False))
        machine.handle(Finished(SampleKey(1, 0), 3, False))
        issued = _issues(machine.handle(Failed(SampleKey(1, 0), "host gone")))
        assert [i.key for i in issued] == [SampleKey(2, 0)]
        machine.handle(Finished(SampleKey(2, 0), length, False))
        machine.handle(Scored(SampleKey(2, 0), 1.0))
        assert machine.outcome().exhausted == reported


def test_a_chosen_draw_that_is_lost_after_its_elder_was_redrawn_starts_a_row_of_its_own() -> None:
    """A row is cut by place, not by draw number: a redrawn elder has a higher number than its juniors."""
    machine = ExactLongRound(["a"], 1, 10, 2, CAP)
    machine.start()
    machine.handle(Lost(SampleKey(0, 0)))  # draw 2 takes the first place, before draw 1
    assert machine.handle(ReachedCutoff(SampleKey(2, 0))) == [Abort(SampleKey(1, 0))]
    machine.handle(Lost(SampleKey(2, 0)))  # draw 3 is alone now
    issued = machine.handle(Finished(SampleKey(3, 0), 4, False))
    assert [i.key for i in _issues(issued)] == [SampleKey(4, 0)], "short, so one more is drawn"
    machine.handle(Finished(SampleKey(4, 0), 20, False))
    machine.handle(Scored(SampleKey(4, 0), 1.0))
    assert machine.done and machine.outcome().draws[Fate.DISCARDED] == 4


def test_a_counting_draw_whose_reward_fails_is_drawn_again_and_deferred_if_it_is_long_now() -> None:
    machine = ExactShortRound(["a", "b", "c"], 2, 1, 10, CAP)
    machine.start()
    machine.handle(Finished(SampleKey(0, 0), 4, False))
    machine.handle(Finished(SampleKey(1, 0), 4, False))  # two are accepted: "c" does not count, come what may
    machine.handle(Scored(SampleKey(1, 0), 1.0))
    machine.handle(Failed(SampleKey(0, 0), "host gone"))
    assert not machine.done
    machine.handle(Finished(SampleKey(3, 0), 10, True))
    outcome = machine.outcome()
    assert [outcome.prompts[f] for f in (Fate.TRAINED, Fate.DEFERRED, Fate.RETURNED)] == [("b",), ("a",), ("c",)]


def test_the_sample_that_was_lost_or_failed_is_not_aborted() -> None:
    for machine in (ExactShortRound(["a", "b"], 1, 3, 10, CAP), ExactLongRound(["a"], 3, 10, 1, CAP)):
        machine.start()
        aborted = [a.key for a in machine.handle(Lost(SampleKey(0, 1))) if isinstance(a, Abort)]
        assert aborted == [SampleKey(0, 0), SampleKey(0, 2)]


def test_prompts_keep_their_place_in_feed_and_queue_though_an_engine_was_lost() -> None:
    machine = ExactShortRound(["a", "b", "c", "d", "e"], 1, 1, 10, CAP)
    machine.start()
    machine.handle(Lost(SampleKey(0, 0)))  # "a" is redrawn as draw 5
    machine.handle(Lost(SampleKey(3, 0)))  # "d" is redrawn as draw 6
    machine.handle(Finished(SampleKey(1, 0), 10, True))
    machine.handle(Finished(SampleKey(5, 0), 10, True))
    machine.handle(Finished(SampleKey(2, 0), 3, False))
    machine.handle(Scored(SampleKey(2, 0), 1.0))
    outcome = machine.outcome()
    assert outcome.prompts[Fate.DEFERRED] == ("a", "b")
    assert outcome.prompts[Fate.RETURNED] == ("d", "e")


def test_senseless_settings_are_refused() -> None:
    for cutoff_tokens in (0, CAP, CAP + 1):
        with pytest.raises(ValueError, match="cutoff"):
            ExactShortRound(["a"], 1, 1, cutoff_tokens, CAP)
    with pytest.raises(ValueError, match="copies"):
        ExactLongRound(["a"], 1, 10, 0, CAP)
