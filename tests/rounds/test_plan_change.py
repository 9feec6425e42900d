"""A run that goes on by another plan: what the old one deferred is trained by the old rule, and nothing is biased."""

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.machines.exact import ExactQueueRound
from rlplan.rounds.round_spec import QueueRule, RoundSpec
from rlplan.rounds.schedule import Schedule

from .driver import SEEDS, keyed_lengths, keyed_rewards, prompt_ids, specs, steps
from .test_bias import CAP, FEW, N, P


def moved(schedule, spec, prompts, seed):
    """The schedule of a run that goes on by another plan."""
    again = Schedule(spec, prompts, seed)
    again.restore(json.loads(json.dumps(schedule.state())))
    return again


def exact(cutoff, queue=None):
    return RoundSpec("exact", P, N, CAP, P + 3, N, cutoff_tokens=cutoff, copies=2, queue=queue)


SYNC = RoundSpec("sync", P, N, CAP, P, N)
PREDICT = RoundSpec("predict", P, N, CAP, P, N, long_share=0.25)
UNBIASED = [exact(300), exact(600, QueueRule(P + 6)), SYNC, PREDICT, exact(300, QueueRule(P + 2))]


@settings(max_examples=60)
@given(data=st.data(), prompts=st.integers(8, 30), seed=SEEDS)
def test_each_prompt_is_trained_once_an_epoch_whatever_plans_follow_each_other(data, prompts, seed):
    first = data.draw(specs())
    schedule, settled = Schedule(first, prompt_ids(prompts), seed), Counter()
    for _ in range(4):
        drawn = data.draw(specs())
        spec = replace(
            drawn,
            prompts_per_step=first.prompts_per_step,
            samples_per_prompt=first.samples_per_prompt,
            short_prompts=first.prompts_per_step,
            short_samples=first.samples_per_prompt,
            queue=None,
        )
        schedule, owed = moved(schedule, spec, prompt_ids(prompts), seed), set(schedule.deferred)
        order = random.Random(seed)
        for step in islice(steps(schedule, keyed_lengths(seed), keyed_rewards(seed), order=order), 3):
            if owed and (schedule.owed or owed & set(step.outcome.taken)) and step.run.machine.kind == "short":
                # Only a queue that the new plan treats alike goes on beside fresh prompts.
                assert first.mode == spec.mode or not schedule.owed
            settled.update(step.settled)
        first = spec
        schedule.check_invariants()
    assert max(settled.values(), default=0) <= 1, f"seed {seed}: trained twice in an epoch: {settled.most_common(3)}"


def trained_lengths(plans, epochs, seed, change_every):
    """All lengths that were trained for whole epochs by plans that follow each other."""
    dice, prompts = random.Random(seed), list(FEW.scale)

    def length(sample):
        u = dice.random()
        return 1 + int(FEW.scale[sample.prompt] * (u / (1 - u)) ** 0.5)

    schedule, lengths, changes = Schedule(plans[0], prompts, seed), [], 0
    while len(lengths) < epochs * len(prompts) * N:
        for step in islice(steps(schedule, length, checked=False), dice.randint(1, change_every)):
            lengths += [t for g in step.outcome.trained if step.epochs[g.prompt] < epochs for t in g.tokens]
        changes += 1
        schedule = moved(schedule, dice.choice(plans), prompts, seed)
    return lengths, changes


def test_plans_that_follow_each_other_train_unconditioned_lengths():
    lengths, changes = trained_lengths(UNBIASED, epochs=120, seed=3, change_every=4)
    count = 120 * N
    error = (FEW.variance.sum() * count) ** 0.5
    assert changes > 100
    assert abs(sum(lengths) - count * FEW.mean.sum()) < 4 * error


@pytest.mark.parametrize("by_old_rule", [True, False])
def test_a_queue_drawn_by_the_new_rule_would_train_shorter_responses(monkeypatch, by_old_rule):
    if not by_old_rule:
        monkeypatch.setattr(RoundSpec, "owes_alike", lambda self, other: True)
    lengths, _ = trained_lengths([exact(150), SYNC], epochs=120, seed=5, change_every=1)
    count = 120 * N
    errors = (sum(lengths) - count * FEW.mean.sum()) / (FEW.variance.sum() * count) ** 0.5
    assert abs(errors) < 2 if by_old_rule else errors < -3


def test_what_is_owed_is_trained_before_anything_fresh():
    prompts = list(FEW.scale)
    schedule = Schedule(exact(100), prompts, 1)
    run = steps(schedule, lambda sample: 50 if sample.prompt > "k010" else 200)
    while not schedule.deferred:
        next(run)
    waiting = schedule.deferred
    alike = moved(schedule, exact(100, QueueRule(P)), prompts, 1)
    assert alike.owed == 0 and alike.deferred == waiting
    sync = moved(schedule, SYNC, prompts, 1)
    assert sync.owed == len(waiting) and sync.next_kind() == "long"
    killed = moved(sync, SYNC, prompts, 1)
    assert killed.owed == sync.owed, "a run that is killed before it has trained them still owes them"
    step = next(steps(killed, lambda sample: 300))
    assert set(step.outcome.taken) == set(waiting) and isinstance(step.run.machine, ExactQueueRound)
    assert killed.owed == 0 and killed.next_kind() == "short"
    assert moved(sync, exact(100), prompts, 1).owed == 0, "back at the plan that deferred them"


@pytest.mark.parametrize("plan", [SYNC, PREDICT])
def test_checkpoints_from_before_plans_could_change_owe_nothing(plan):
    schedule = Schedule(exact(100), list(FEW.scale), 1)
    run = steps(schedule, lambda sample: 50 if sample.prompt > "k010" else 200)
    while not schedule.deferred:
        next(run)
    state = schedule.state()
    del state["spec"]
    again = Schedule(plan, list(FEW.scale), 1)
    again.restore(state)
    assert again.owed == 0 and again.deferred == schedule.deferred
