"""The feed has no end: epochs run into each other, and no round is small because one of them ends."""

import dataclasses
import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds import schedule as schedule_module
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.round_spec import RoundSpec, prompts_wanted
from rlplan.rounds.schedule import MAX_OPEN_EPOCHS, MAX_WAIT_ROUNDS, Schedule

from .driver import CAP, SEEDS, keyed_lengths, keyed_steps, over, prompt_ids, steps, uniform

P, N = 4, 3
SPECS = {
    "sync": RoundSpec("sync", P, N, CAP, P, N),
    "race": RoundSpec("race", P, N, CAP, P + 2, N + 1),
    "defer": RoundSpec("defer", P, N, CAP, P + 1, N),
    "exact": RoundSpec("exact", P, N, CAP, P + 3, N, cutoff_tokens=25, copies=2),
    "predict": RoundSpec("predict", P, N, CAP, P, N, long_share=0.25),
}
each_mode = pytest.mark.parametrize("mode", SPECS)


@each_mode
@settings(max_examples=15)
@given(prompts=st.integers(20, 61), seed=SEEDS)
def test_every_round_of_many_epochs_trains_p_groups(mode, prompts, seed):
    """20 to 61 prompts are 5 to 15 rounds an epoch, with any rest; and all are trained alike often."""
    schedule = Schedule(SPECS[mode], prompt_ids(prompts), seed)
    trained: Counter[str] = Counter()
    epochs = 3
    rounds = -(-epochs * prompts // P)
    for step in itertools.islice(keyed_steps(schedule, seed, checked=False), rounds):
        assert len(step.outcome.trained) == P
        trained.update(step.outcome.prompts[Fate.TRAINED])
    assert trained.total() == rounds * P
    state = schedule.state()
    for prompt in prompt_ids(prompts):
        ahead = sum(prompt in e["fresh"] for e in state["epochs"])
        waits = sum(prompt == name for name, *_ in state["deferred"])
        assert trained[prompt] == state["next_epoch"] - ahead - waits, "each epoch that is begun, or it still waits"
        assert prompt in schedule.deferred or epochs - 1 <= trained[prompt] <= epochs + 1


@over("sync", "race", "defer", "predict", prompts=(0, 20), examples=30)
def test_data_as_large_as_rounds_want_fill_each_of_them(spec, prompts, seed):
    spec = dataclasses.replace(spec, dynamic_sampling=False)
    wanted = prompts_wanted(spec.mode, spec.prompts_per_step, spec.short_prompts, spec.long_share)
    schedule = Schedule(spec, prompt_ids(wanted + prompts), seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule_module, "MAX_OPEN_EPOCHS", 99)  # an epoch of a round or two would be waited for
        for step in itertools.islice(keyed_steps(schedule, seed, checked=False), 25):
            assert len(step.outcome.trained) == spec.prompts_per_step
            issued = spec.short_prompts if step.run.machine.kind == "short" else spec.prompts_per_step
            assert len(step.outcome.taken) == issued


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (("sync", 16, 16), 16),
        (("sync", 16, 16, 0.0, 0.5), 49),  # 32 in the mean, and 3 deviations of 8.5 on either side of P - P
        (("race", 16, 16), 16),
        (("race", 16, 20), 35),
        (("defer", 16, 20, 0.0, 0.5), 68),
        (("exact", 16, 20), 35),
        (("exact", 16, 20, 0.0, 0.5), 64),
        (("exact", 16, 80, 0.0, 0.5), 95),
        (("predict", 16, 16, 0.25), 64),
        (("predict", 16, 16, 0.25, 0.5), 108),
    ],
)
def test_data_must_hold_what_rounds_take_and_what_waits(asked, wanted):
    assert prompts_wanted(*asked) == wanted


LUCKY = {
    "exact": (RoundSpec("exact", 16, 2, CAP, 20, 2, cutoff_tokens=10), 0.22, 0.0),
    "exact, filtered": (RoundSpec("exact", 16, 2, CAP, 20, 2, cutoff_tokens=10, dynamic_sampling=True), 0.22, 0.3),
    "sync, filtered": (RoundSpec("sync", 16, 2, CAP, 16, 2, dynamic_sampling=True), 0.0, 0.5),
    "defer, filtered": (RoundSpec("defer", 16, 2, CAP, 20, 2, dynamic_sampling=True), 0.0, 0.5),
    "predict, filtered": (RoundSpec("predict", 16, 2, CAP, 16, 2, dynamic_sampling=True, long_share=0.3), 0.0, 0.5),
}


@pytest.mark.parametrize(
    ("case", "rounds"),
    [("exact, filtered", 60), *(pytest.param(case, 250, marks=pytest.mark.search) for case in LUCKY)],
)
def test_only_data_with_headroom_for_refills_leave_rounds_whole(case, rounds, monkeypatch):
    """Which groups are long, and which are filtered, is drawn for each group anew."""
    monkeypatch.setattr(schedule_module, "MAX_OPEN_EPOCHS", 99)
    spec, long, flat = LUCKY[case]

    def luck(sample, of):
        return random.Random(f"{of}:{sample.round_number}:{sample.prompt}:{sample.redraw}").random()

    def length(sample):
        return 20 if luck(sample, "length") < long else 2 + sample.sample + int(7 * luck(sample, "place"))

    def smaller(accepted):
        """Share of the short rounds that train fewer than P groups in as much data as is wanted."""
        asked = (spec.mode, spec.prompts_per_step, spec.short_prompts, spec.long_share)
        schedule = Schedule(spec, prompt_ids(prompts_wanted(*asked, accepted)), 1)
        run_of = steps(schedule, length, lambda s: 1.0 if luck(s, "reward") < flat else float(s.sample), checked=False)
        short = [step for step in itertools.islice(run_of, rounds) if step.run.machine.kind == "short"]
        return sum(len(step.outcome.trained) < spec.prompts_per_step for step in short) / len(short)

    assert smaller((1 - long) * (1 - flat)) < 0.01 < smaller(1.0)


@over(prompts=(1, 40))
def test_a_round_is_smaller_than_p_for_stated_reasons_only(spec, prompts, seed):
    schedule = Schedule(spec, prompt_ids(prompts), seed)
    run_of = keyed_steps(schedule, seed)
    for _ in range(12):
        begun, first = len(schedule.state()["epochs"]), schedule.state()["epochs"][0]["epoch"]
        waiting, oldest = (
            schedule.deferred,
            min((since for _, _, since, *_ in schedule.state()["deferred"]), default=None),
        )
        step = next(run_of)
        taken, settled = step.outcome.taken, len(step.outcome.trained) + len(step.outcome.prompts[Fate.FILTERED])
        assert taken, "no round is empty"
        if step.run.machine.kind == "long":
            assert len(taken) == settled
            waited = oldest is not None and step.run.number - oldest >= MAX_WAIT_ROUNDS
            waited |= begun >= MAX_OPEN_EPOCHS - 1
            assert len(taken) == spec.prompts_per_step or waited or prompts - len(waiting) < spec.prompts_per_step
        elif len(step.outcome.trained) < spec.prompts_per_step:
            # In `predict` whom the round passed over waits in the queue now.
            put_off = set(schedule.deferred) - set(step.outcome.prompts[Fate.DEFERRED])
            ahead = max(step.epochs.values()) - first >= MAX_OPEN_EPOCHS - 1
            assert ahead or set(taken) | put_off | set(waiting) == set(prompt_ids(prompts)), "somebody was free"


@each_mode
@pytest.mark.parametrize(("prompts", "rounds"), [(P, 40), (1, 12)])
def test_a_data_set_of_p_prompts_or_one_is_trained_evenly(mode, prompts, rounds):
    trained: Counter[str] = Counter()
    epochs: dict[str, list[int]] = {prompt: [] for prompt in prompt_ids(prompts)}
    for step in itertools.islice(keyed_steps(Schedule(SPECS[mode], prompt_ids(prompts), seed=1), 1), rounds):
        assert step.outcome.trained or step.outcome.prompts[Fate.DEFERRED], "no round is empty"
        trained.update(step.outcome.prompts[Fate.TRAINED])
        for epoch, prompt in step.settled:
            epochs[prompt].append(epoch)
    assert max(trained.values()) - min(trained.values()) <= 1 and min(trained.values()) >= rounds / 2
    assert all(each == list(range(len(each))) for each in epochs.values())
    assert mode not in ("sync", "predict") or set(trained.values()) == {rounds}, "nothing is put off"


@pytest.mark.parametrize("mode", ["sync", "race", "exact"])
def test_refills_go_on_into_the_next_epoch(mode):
    """10 prompts of which 6 are filtered, and P is 3: rounds have to look into the next epoch for their last."""
    samples = N + (mode == "race")
    spec = dataclasses.replace(
        SPECS[mode], prompts_per_step=3, short_prompts=3, short_samples=samples, dynamic_sampling=True
    )
    schedule = Schedule(spec, prompt_ids(10), seed=2)
    flat = set(schedule.state()["epochs"][0]["fresh"][:6])
    run_of = steps(schedule, lambda s: 4, lambda s: 1.0 if s.prompt in flat else float(s.sample % 2))
    settled: Counter[tuple[int, str]] = Counter()
    overlaps = 0
    for step in itertools.islice(run_of, 20):
        assert len(step.outcome.trained) == 3 and len(set(step.outcome.taken)) == len(step.outcome.taken)
        overlaps += len(set(step.epochs.values())) > 1
        settled.update(step.settled)
    assert overlaps >= 5 and set(settled.values()) == {1}


def test_a_filtered_round_ends_when_every_prompt_was_in_it():
    schedule = Schedule(RoundSpec("sync", 3, 2, CAP, 3, 2, dynamic_sampling=True), prompt_ids(8), seed=2)
    for epoch, step in enumerate(itertools.islice(steps(schedule, lambda s: 4), 3)):
        assert not step.outcome.trained
        assert step.epochs == dict.fromkeys(prompt_ids(8), epoch)


def test_over_issue_beyond_the_data_set_issues_what_there_is():
    schedule = Schedule(RoundSpec("defer", 3, 2, CAP, 9, 2), prompt_ids(6), seed=2)
    rounds = list(itertools.islice(steps(schedule, keyed_lengths(2)), 8))
    assert [len(step.outcome.taken) for step in rounds] == [6, 3] * 4
    assert all(len(step.outcome.trained) == 3 for step in rounds)


@settings(max_examples=8)
@given(hard=st.sampled_from([0.3, 0.7, 0.9]), seed=SEEDS)
def test_no_prompt_runs_ahead_of_others_that_are_mostly_long(hard, seed):
    """Of 16 prompts in rounds of 4; without the bound easy ones were trained more often with every epoch."""
    schedule = Schedule(SPECS["exact"], prompt_ids(16), seed)
    is_hard = dict(zip(prompt_ids(16), (place < hard * 16 for place in range(16)), strict=True))

    def length(sample):
        return 30 if uniform(seed, sample, "long") < (0.3 if is_hard[sample.prompt] else 0.02) else 5

    trained, sizes = Counter(), []
    for step in itertools.islice(steps(schedule, length, checked=False), 120):
        trained.update(step.outcome.prompts[Fate.TRAINED])
        sizes.append(len(step.outcome.trained))
        assert len(schedule.state()["epochs"]) <= MAX_OPEN_EPOCHS + 2
        counts = [trained[prompt] for prompt in is_hard]
        assert max(counts) - min(counts) <= MAX_OPEN_EPOCHS + 2
    assert sum(sizes) > 0.85 * P * len(sizes), "rounds are hardly smaller for it"


def test_few_deferred_prompts_wait_for_whole_long_rounds():
    """Of 32 prompts about one is long, and P is 4: each epoch would end with a long round of that one."""
    schedule = Schedule(SPECS["exact"], prompt_ids(32), 1)
    run_of = steps(schedule, lambda s: 30 if uniform(1, s, "long") < 0.012 else 5, checked=False)
    rounds = list(itertools.islice(run_of, 400))
    sizes = [len(step.outcome.taken) for step in rounds if step.run.machine.kind == "long"]
    assert len(sizes) > 8 and sum(sizes) > 2.5 * len(sizes)


def test_a_queue_that_is_drained_issues_nothing_fresh():
    schedule = Schedule(SPECS["exact"], prompt_ids(30), seed=0)
    run_of = steps(schedule, keyed_lengths(3), order=random.Random(0))
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


def test_only_the_bounded_wait_gives_a_smaller_long_round(monkeypatch):
    monkeypatch.setattr(schedule_module, "MAX_WAIT_ROUNDS", 5)
    schedule = Schedule(RoundSpec("exact", 4, 2, CAP, 5, 2, cutoff_tokens=10), prompt_ids(30), seed=0)
    run_of = steps(schedule, lambda s: 20 if s.prompt == "k007" else 4)
    sizes = {(s.run.machine.kind, len(s.outcome.trained)) for s in itertools.islice(run_of, 60)}
    assert sizes == {("short", 4), ("long", 1)}
