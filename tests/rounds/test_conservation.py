"""What must hold in every round, whatever the order of events and whatever fails."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.machines.events import Action, Event, Failed, Finished, Issue, SampleKey, Scored
from rlplan.rounds.machines.exact_long import ExactLongRound
from rlplan.rounds.machines.exact_short import ExactShortRound
from rlplan.rounds.machines.outcome import PROMPT_FATES, Fate
from rlplan.rounds.machines.race import RaceRound
from rlplan.rounds.machines.round import MAX_FAILURES_PER_PROMPT, Draw
from rlplan.rounds.round_spec import RoundSpec
from rlplan.rounds.schedule import Schedule

from .driver import (
    CAP,
    SEEDS,
    Chaos,
    Sample,
    chaoses,
    drive,
    keyed_lengths,
    keyed_rewards,
    live_keys,
    prompt_ids,
    specs,
    steps,
)

many = settings(max_examples=100, deadline=None)


@many
@given(spec=specs(), chaos=chaoses(), prompts=st.integers(1, 25), seed=SEEDS)
def test_every_round_ends_and_accounts_for_each_prompt_draw_and_sample_once(
    spec: RoundSpec, chaos: Chaos, prompts: int, seed: int
) -> None:
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed), chaos=chaos)
    for _ in range(4):
        run, outcome, _ = next(run_of)
        issues = [a for actions in run.actions for a in actions if isinstance(a, Issue)]
        assert outcome.issued_samples == len({i.key for i in issues}) == len(issues)
        assert outcome.issued_draws == len({i.key.draw for i in issues})
        assert sum(outcome.draws.values()) == outcome.issued_draws
        assert sum(outcome.samples.values()) == outcome.issued_samples
        settled = [p for fate in PROMPT_FATES for p in outcome.prompts[fate]]
        assert sorted(settled) == sorted(outcome.taken) and len(set(settled)) == len(settled)
        assert {i.prompt for i in issues} == set(outcome.taken)
        assert set(outcome.failures) == set(outcome.prompts[Fate.FAILED])


@many
@given(spec=specs(), chaos=chaoses(), prompts=st.integers(1, 25), seed=SEEDS)
def test_a_trained_group_has_exactly_n_samples_of_one_draw_with_the_lengths_and_rewards_that_were_reported(
    spec: RoundSpec, chaos: Chaos, prompts: int, seed: int
) -> None:
    lengths, rewards = keyed_lengths(seed), keyed_rewards(seed)
    run_of = steps(Schedule(spec, prompt_ids(prompts), seed), lengths, rewards, order=random.Random(seed), chaos=chaos)
    for _ in range(3):
        run, outcome, _ = next(run_of)
        assert len(outcome.trained) <= spec.prompts_per_step
        assert [g.prompt for g in outcome.trained] == sorted(g.prompt for g in outcome.trained)
        for group in outcome.trained:
            assert len(set(group.keys)) == spec.samples_per_prompt
            assert len({k.draw for k in group.keys}) == 1 and list(group.keys) == sorted(group.keys)
            named = [run.samples[k] for k in group.keys]
            assert {s.prompt for s in named} == {group.prompt}
            assert group.tokens == tuple(min(lengths(s), CAP) for s in named)
            assert group.rewards == tuple(rewards(s) for s in named)
            assert not spec.dynamic_sampling or len(set(group.rewards)) > 1


@many
@given(spec=specs(), chaos=chaoses(), prompts=st.integers(1, 25), seed=SEEDS)
def test_recorded_events_replayed_into_a_fresh_machine_give_the_same_actions(
    spec: RoundSpec, chaos: Chaos, prompts: int, seed: int
) -> None:
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    run_of = steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed), chaos=chaos)
    for _ in range(3):
        before = schedule.state()
        run, outcome, _ = next(run_of)
        again = Schedule(spec, prompt_ids(prompts), seed)
        again.restore(before)
        fresh = again.begin()
        assert [fresh.start(), *(fresh.handle(event) for event in run.events)] == run.actions
        assert again.end(fresh) == outcome
        assert again.state() == schedule.state()


@many
@given(spec=specs(), prompts=st.integers(1, 25), seed=SEEDS)
def test_repeated_and_late_events_change_nothing(spec: RoundSpec, prompts: int, seed: int) -> None:
    noisy = Schedule(spec, prompt_ids(prompts), seed)
    chaos = Chaos(loss=0.05, failure=0.1, noise=0.3)
    run, outcome, _ = next(
        steps(noisy, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed), chaos=chaos)
    )
    quiet = Schedule(spec, prompt_ids(prompts), seed).begin()
    quiet.start()
    for event in run.effective:
        quiet.handle(event)
    assert quiet.outcome() == outcome


def _scored_by_draw(events: list[Event]) -> dict[int, list[int]]:
    order: dict[int, list[int]] = {}
    for event in events:
        if isinstance(event, Scored):
            order.setdefault(event.key.draw, []).append(event.key.sample)
    return order


@many
@given(spec=specs(modes=("race",)), chaos=chaoses(), prompts=st.integers(1, 25), seed=SEEDS)
def test_race_trains_the_first_n_scored_samples_of_the_first_complete_groups(
    spec: RoundSpec, chaos: Chaos, prompts: int, seed: int
) -> None:
    run_of = steps(
        Schedule(spec, prompt_ids(prompts), seed),
        keyed_lengths(seed),
        keyed_rewards(seed),
        order=random.Random(seed),
        chaos=chaos,
    )
    for _ in range(3):
        run, outcome, _ = next(run_of)
        scored = _scored_by_draw(run.effective)
        size = spec.samples_per_prompt
        for group in outcome.trained:
            first = scored[group.keys[0].draw][:size]
            assert [k.sample for k in group.keys] == sorted(first)
        # Groups that were complete and were not trained can only have been filtered.
        complete = sum(len(samples) >= size for samples in scored.values())
        assert complete - len(outcome.trained) == len(outcome.prompts[Fate.FILTERED])


@many
@given(spec=specs(modes=("sync",)), prompts=st.integers(1, 25), seed=SEEDS)
def test_sync_trains_every_prompt_that_it_issued_and_nothing_is_deferred_or_thrown_away(
    spec: RoundSpec, prompts: int, seed: int
) -> None:
    chaos = Chaos(loss=0.1, noise=0.2)
    run_of = steps(
        Schedule(spec, prompt_ids(prompts), seed),
        keyed_lengths(seed),
        keyed_rewards(seed),
        order=random.Random(seed),
        chaos=chaos,
    )
    for _ in range(4):
        _, outcome, _ = next(run_of)
        filtered = outcome.prompts[Fate.FILTERED] if spec.dynamic_sampling else ()
        assert sorted([*outcome.prompts[Fate.TRAINED], *filtered]) == sorted(outcome.taken)


def test_a_prompt_that_always_fails_is_given_up_and_named_while_the_others_are_trained() -> None:
    for mode in ("sync", "race", "defer", "exact"):
        spec = RoundSpec(mode, 3, 2, CAP, 3, 2, cutoff_tokens=20 if mode == "exact" else None, copies=1)  # type: ignore[arg-type]
        machine = Schedule(spec, prompt_ids(3), seed=0).begin()
        failures = 0
        pending = machine.start()
        while pending:
            action = pending.pop(0)
            if not isinstance(action, Issue):
                continue
            if action.prompt == "k001":
                failures += not machine.done and action.key in live_keys(machine)
                pending += machine.handle(Failed(action.key, "boom"))
            else:
                machine.handle(Finished(action.key, 5, False))
                machine.handle(Scored(action.key, 1.0))
        outcome = machine.outcome()
        assert failures == MAX_FAILURES_PER_PROMPT + 1
        assert outcome.prompts[Fate.FAILED] == ("k001",) and outcome.failures == {"k001": "boom"}
        assert outcome.prompts[Fate.TRAINED] == ("k000", "k002")


def test_dynamic_sampling_refills_a_race_round_and_ends_it_when_the_epoch_is_used_up() -> None:
    feed = prompt_ids(11)[5:]

    def take(count: int) -> list[str]:
        taken, feed[:] = feed[:count], feed[count:]
        return taken

    machine = RaceRound(prompt_ids(5), 4, 3, 3, CAP, dynamic_sampling=True, take=take)
    run = drive(machine, lambda s: 5, lambda s: 1.0)
    outcome = run.machine.outcome()
    assert outcome.prompts[Fate.FILTERED] == tuple(prompt_ids(11)) and not feed


def test_a_round_over_no_prompts_is_done_at_once() -> None:
    for machine in (
        RaceRound([], 4, 3, 3, CAP),
        ExactShortRound([], 4, 3, 10, CAP),
        ExactLongRound([], 3, 10, 2, CAP),
    ):
        assert machine.start() == [] and machine.done
        assert machine.outcome().issued_samples == 0


@settings(max_examples=60, deadline=None)
@given(spec=specs(), seed=SEEDS)
def test_a_refill_never_asks_for_more_than_a_whole_round_issues(spec: RoundSpec, seed: int) -> None:
    asked: list[int] = []
    schedule = Schedule(spec, prompt_ids(40), seed)
    hand_out = schedule._take

    def take(count: int) -> list[str]:
        asked.append(count)
        return hand_out(count)

    schedule._take = take  # type: ignore[method-assign]
    machine = schedule.begin()
    assert asked == [spec.short_prompts]
    drive(machine, keyed_lengths(seed), keyed_rewards(seed), order=random.Random(seed))
    assert all(0 < count <= spec.short_prompts for count in asked)
    assert len(set(machine.taken)) == len(machine.taken)


def test_a_refill_keeps_the_planned_over_issue() -> None:
    """P = 4 of 6, so half as many again as are missing stay open."""
    feed = prompt_ids(20)[6:]
    machine = RaceRound(
        prompt_ids(6), 4, 2, 2, CAP, dynamic_sampling=True, take=lambda k: [feed.pop(0) for _ in range(k)]
    )
    machine.start()

    def complete(draw: int, rewards: tuple[float, float]) -> set[str]:
        issued: set[str] = set()
        for sample, reward in enumerate(rewards):
            key = SampleKey(draw, sample)
            machine.handle(Finished(key, 3, False))
            issued |= {a.prompt for a in machine.handle(Scored(key, reward)) if isinstance(a, Issue)}
        return issued

    assert complete(0, (1.0, 1.0)) == {"k006"}, "4 missing: 6 open"
    assert complete(1, (0.0, 1.0)) == set()
    assert complete(2, (0.0, 1.0)) == set()
    assert complete(3, (0.0, 0.0)) == set(), "2 missing: 3 open suffice, and 3 are"
    assert complete(4, (0.0, 0.0)) == {"k007"}


def test_the_driver_notices_a_machine_that_hangs() -> None:
    class Deaf(RaceRound):
        def _on_scored(self, draw: Draw, sample: int, actions: list[Action]) -> None:
            return

    with pytest.raises(AssertionError, match="hangs"):
        drive(Deaf(["a"], 1, 1, 1, CAP), lambda s: 3, lambda s: 1.0)


def test_a_sample_is_named_by_prompt_redraw_and_place() -> None:
    machine = RaceRound(["a", "b"], 2, 3, 3, CAP)
    run = drive(machine, lambda s: 3, lambda s: 1.0, number=7)
    assert set(run.samples.values()) == {Sample(7, p, 0, s) for p in "ab" for s in range(3)}
