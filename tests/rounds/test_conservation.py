"""What must hold in every round, whatever the order of events and whatever fails."""

import pytest

from rlplan.rounds.machines.events import Failed, Finished, Issue, SampleKey, Scored
from rlplan.rounds.machines.exact import ExactShortRound
from rlplan.rounds.machines.outcome import PROMPT_FATES, Fate
from rlplan.rounds.machines.race import RaceRound
from rlplan.rounds.machines.round import MAX_FAILURES_PER_PROMPT
from rlplan.rounds.schedule import Schedule

from .driver import (
    CAP,
    Chaos,
    chaoses,
    drive,
    keyed_lengths,
    keyed_rewards,
    keyed_steps,
    live_keys,
    over,
    prompt_ids,
    waves,
)


@over(prompts=(1, 25), chaos=chaoses(), examples=60)
def test_every_round_accounts_for_each_prompt_draw_and_sample_once(spec, prompts, seed, chaos):
    run_of = keyed_steps(Schedule(spec, prompt_ids(prompts), seed), seed, chaos)
    lengths, rewards = keyed_lengths(seed), keyed_rewards(seed)
    for _ in range(4):
        run, outcome, _ = next(run_of)
        issues = [a for actions in run.actions for a in actions if isinstance(a, Issue)]
        assert outcome.issued_samples == sum(outcome.samples.values()) == len({i.key for i in issues}) == len(issues)
        assert outcome.issued_draws == sum(outcome.draws.values()) == len({i.key.draw for i in issues})
        settled = [p for fate in PROMPT_FATES for p in outcome.prompts[fate]]
        assert sorted(settled) == sorted(outcome.taken) and len(set(settled)) == len(settled)
        assert {i.prompt for i in issues} == set(outcome.taken)
        assert set(outcome.failures) == set(outcome.prompts[Fate.FAILED])
        # A trained group is n samples of one draw, as they were reported.
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


@over(prompts=(1, 25), chaos=chaoses())
def test_replayed_events_give_a_fresh_machine_the_same_actions(spec, prompts, seed, chaos):
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    run_of = keyed_steps(schedule, seed, chaos)
    for _ in range(3):
        before = schedule.state()
        run, outcome, _ = next(run_of)
        again = Schedule(spec, prompt_ids(prompts), seed)
        again.restore(before)
        fresh = again.begin()
        assert [fresh.start(), *(fresh.handle(event) for event in run.events)] == run.actions
        assert again.end(fresh) == outcome
        assert again.state() == schedule.state()


@over(prompts=(1, 25), examples=60)
def test_repeated_and_late_events_change_nothing(spec, prompts, seed):
    chaos = Chaos(loss=0.05, failure=0.1, noise=0.3)
    run, outcome, _ = next(keyed_steps(Schedule(spec, prompt_ids(prompts), seed), seed, chaos))
    quiet = Schedule(spec, prompt_ids(prompts), seed).begin()
    quiet.start()
    for event in run.effective:
        quiet.handle(event)
    assert quiet.outcome() == outcome


@over("race", prompts=(1, 25), chaos=chaoses())
def test_race_trains_the_first_scored_samples_of_the_first_complete_groups(spec, prompts, seed, chaos):
    run_of = keyed_steps(Schedule(spec, prompt_ids(prompts), seed), seed, chaos)
    for _ in range(3):
        run, outcome, _ = next(run_of)
        scored: dict[int, list[int]] = {}
        for event in run.effective:
            if isinstance(event, Scored):
                scored.setdefault(event.key.draw, []).append(event.key.sample)
        for group in outcome.trained:
            first = scored[group.keys[0].draw][: spec.samples_per_prompt]
            assert [k.sample for k in group.keys] == sorted(first)
        # Groups that were complete and were not trained can only have been filtered.
        complete = sum(len(samples) >= spec.samples_per_prompt for samples in scored.values())
        assert complete - len(outcome.trained) == len(outcome.prompts[Fate.FILTERED])


@over("sync", prompts=(1, 25))
def test_sync_trains_or_filters_every_prompt_that_it_issued(spec, prompts, seed):
    run_of = keyed_steps(Schedule(spec, prompt_ids(prompts), seed), seed, Chaos(loss=0.1, noise=0.2))
    for _ in range(4):
        _, outcome, _ = next(run_of)
        filtered = outcome.prompts[Fate.FILTERED] if spec.dynamic_sampling else ()
        assert sorted([*outcome.prompts[Fate.TRAINED], *filtered]) == sorted(outcome.taken)


def machine_of(kind, prompts, target, size, **options):
    """A round of this kind over so many prompts, by the names of `prompt_ids`."""
    names = prompt_ids(prompts)
    if kind == "race":
        return RaceRound(names, target, size, size, CAP, **options)
    if kind == "short":
        return ExactShortRound(names, target, size, 10, CAP, **options)
    return waves(names, size, 10, 2, CAP, **options)


KINDS = pytest.mark.parametrize("kind", ["race", "short", "long"])


@KINDS
def test_a_prompt_that_always_fails_is_given_up_and_named(kind):
    machine = machine_of(kind, 3, 3, 2)
    failures, pending = 0, machine.start()
    while pending:
        action = pending.pop(0)
        if not isinstance(action, Issue):
            continue
        if action.prompt == "k001":
            failures += not machine.done and action.key in live_keys(machine)
            pending += machine.handle(Failed(action.key, "boom"))
        else:
            machine.handle(Finished(action.key, 12 if kind == "long" else 5, False))
            machine.handle(Scored(action.key, 1.0))
    outcome = machine.outcome()
    assert failures == MAX_FAILURES_PER_PROMPT + 1
    assert outcome.prompts[Fate.FAILED] == ("k001",) and outcome.failures == {"k001": "boom"}
    assert outcome.prompts[Fate.TRAINED] == ("k000", "k002")


@KINDS
def test_a_round_over_no_prompts_is_done_at_once(kind):
    machine = machine_of(kind, 0, 4, 3)
    assert machine.start() == [] and machine.done
    assert machine.outcome().issued_samples == 0


@KINDS
def test_a_flat_group_is_filtered_only_with_dynamic_sampling(kind):
    for dynamic, fate in ((False, Fate.TRAINED), (True, Fate.FILTERED)):
        machine = machine_of(kind, 2, 2, 2, dynamic_sampling=dynamic)
        drive(machine, lambda s: 12 if kind == "long" else 5, lambda s: 1.0)
        assert machine.outcome().prompts[fate] == ("k000", "k001")


def test_a_race_over_filtered_prompts_ends_when_the_feed_is_empty():
    feed = prompt_ids(11)[5:]

    def take(count):
        taken, feed[:] = feed[:count], feed[count:]
        return taken

    machine = RaceRound(prompt_ids(5), 4, 3, 3, CAP, dynamic_sampling=True, take=take)
    outcome = drive(machine, lambda s: 5, lambda s: 1.0).machine.outcome()
    assert outcome.prompts[Fate.FILTERED] == tuple(prompt_ids(11)) and not feed


def test_a_refill_keeps_the_planned_over_issue():
    """P = 4 of 6, so half as many again as are missing stay open."""
    feed = prompt_ids(20)[6:]
    machine = RaceRound(
        prompt_ids(6), 4, 2, 2, CAP, dynamic_sampling=True, take=lambda k: [feed.pop(0) for _ in range(k)]
    )
    machine.start()

    def complete(draw, *rewards):
        issued = set()
        for sample, reward in enumerate(rewards):
            key = SampleKey(draw, sample)
            machine.handle(Finished(key, 3, False))
            issued |= {a.prompt for a in machine.handle(Scored(key, reward)) if isinstance(a, Issue)}
        return issued

    assert complete(0, 1.0, 1.0) == {"k006"}, "4 missing: 6 open"
    assert complete(1, 0.0, 1.0) == set()
    assert complete(2, 0.0, 1.0) == set()
    assert complete(3, 0.0, 0.0) == set(), "2 missing: 3 open suffice, and 3 are"
    assert complete(4, 0.0, 0.0) == {"k007"}


@pytest.mark.parametrize(("size", "issued", "cap"), [(0, 2, 9), (1, 2, 0), (3, 2, 9)])
def test_a_race_that_could_train_no_group_is_refused(size, issued, cap):
    RaceRound(["a"], 1, 1, 1, 1)
    with pytest.raises(ValueError, match="at least"):
        RaceRound(["a"], 1, size, issued, cap)
