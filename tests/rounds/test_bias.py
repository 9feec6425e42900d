"""The algebra of `exact`: over many cycles the trained lengths are distributed as if every sample had been waited for.

Lengths are log-logistic with a scale of its own for each prompt (1 to 15 times the shortest), so a prompt's expected
length is known in closed form and a group's draws depend strongly on its prompt; mean and spread are exact, nothing is
estimated by a second simulation. Time is token time: all samples of a round decode at the same rate.
"""

import random

import numpy as np
import pytest

from rlplan.rounds.machines.exact_queue import MAX_DRAWS
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.round_spec import RoundSpec
from rlplan.rounds.schedule import Schedule

from .driver import prompt_ids, steps

P, N, PROMPTS, CAP, CUTOFF, SHAPE = 12, 5, 60, 2000, 400, 2.0
SCALE = dict(zip(prompt_ids(PROMPTS), np.geomspace(20, 300, PROMPTS), strict=True))


def spec(mode, over_prompts=15, over_samples=N, queue=None):
    exact = {"cutoff_tokens": CUTOFF, "copies": 3, "queue": queue} if mode == "exact" else {}
    return RoundSpec(mode, P, N, CAP, over_prompts, over_samples, **exact, long_share=0.25 * (mode == "predict"))


# P(length >= k) for k = 1..CAP, a row for each prompt.
SURVIVAL = 1 / (1 + (np.arange(CAP) / np.array(list(SCALE.values()))[:, None]) ** SHAPE)
MEAN = SURVIVAL.sum(axis=1)
VARIANCE = (SURVIVAL * (2 * np.arange(1, CAP + 1) - 1)).sum(axis=1) - MEAN**2
P_SAMPLE_LONG = SURVIVAL[:, CUTOFF]


class Trained:
    """Lengths trained in whole epochs, and how far they are from the unconditioned ones, in standard errors."""

    def __init__(self, mode, epochs, seed=1, any_order=False):
        dice = random.Random(seed)

        def length(sample):
            u = dice.random()
            return 1 + int(SCALE[sample.prompt] * (u / (1 - u)) ** (1 / SHAPE))

        schedule = Schedule(mode, prompt_ids(PROMPTS), seed)
        lengths: list[int] = []
        self.deferred = self.exhausted = self.by_queue = 0
        waits: list[int] = []
        self.longest: dict[str, list[int]] = {"short": [], "long": []}
        for step in steps(schedule, length, order=random.Random(-seed) if any_order else None, checked=False):
            # Epochs run into each other: what is trained for a later one does not belong to these.
            lengths.extend(t for g in step.outcome.trained if step.epochs[g.prompt] < epochs for t in g.tokens)
            longest = max((t for g in step.outcome.trained for t in g.tokens), default=0)
            self.longest[step.run.machine.kind].append(longest)
            self.deferred += sum(step.epochs[p] < epochs for p in step.outcome.prompts[Fate.DEFERRED])
            self.by_queue += len(schedule.ages) > 0
            waits += schedule.waits
            self.exhausted += sum(step.epochs[p] < epochs for p in step.outcome.exhausted)
            # Each prompt is trained once an epoch, n samples at a time.
            assert schedule.round_number < 2 * epochs * PROMPTS / P
            if len(lengths) == epochs * PROMPTS * N:
                break
        self.lengths = np.array(lengths)
        repeats = epochs * N
        self.ratio = self.lengths.mean() / MEAN.mean()
        self.mean_z = (self.lengths.sum() - repeats * MEAN.sum()) / np.sqrt(repeats * VARIANCE.sum())
        long = int((self.lengths > CUTOFF).sum())
        spread = np.sqrt(repeats * (P_SAMPLE_LONG * (1 - P_SAMPLE_LONG)).sum())
        self.share_z = (long - repeats * P_SAMPLE_LONG.sum()) / spread

    def kolmogorov_smirnov(self):
        """sqrt(N) * D against the exact mixture; 1.63 is its 1% point (less for a stratified sample such as this)."""
        at_most = np.append(1 - SURVIVAL.mean(axis=0)[1:], 1.0)
        counted = np.searchsorted(np.sort(self.lengths), np.arange(1, CAP + 1), side="right") / len(self.lengths)
        return float(np.abs(counted - at_most).max() * np.sqrt(len(self.lengths)))

    def is_unconditioned(self):
        return abs(self.mean_z) < 3 and abs(self.share_z) < 3 and self.kolmogorov_smirnov() < 1.63


# A thrifty round, in which few draws do not count, and a lavish one, in which most do not. In the lavish one a machine
# that looks at draws that do not count is found out.
THRIFTY, LAVISH = 15, 36
search = pytest.mark.search


@pytest.mark.parametrize(
    ("issued", "any_order", "epochs"),
    [
        (LAVISH, True, 20),
        *(pytest.param(issued, any_order, 110, marks=search) for issued in (THRIFTY, LAVISH) for any_order in (0, 1)),
    ],
)
def test_exact_trains_on_unconditioned_lengths(issued, any_order, epochs):
    trained = Trained(spec("exact", issued), epochs, any_order=any_order)
    assert trained.is_unconditioned(), f"trained mean is {trained.ratio:.3f} x the unconditioned"
    # The test has power: a standard error is below 0.8 %, and a good part of the groups went through long rounds.
    assert abs(trained.ratio - 1) / abs(trained.mean_z) < 0.008 * (110 / epochs) ** 0.5
    assert trained.deferred > 0.2 * epochs * PROMPTS


@pytest.mark.parametrize("epochs", [12, pytest.param(50, marks=search)])
def test_race_keeps_short_answers_and_defer_fewer_of_them(epochs):
    race = Trained(spec("race", over_prompts=15, over_samples=6), epochs)
    deferring = Trained(spec("defer"), epochs)
    sync = Trained(spec("sync", over_prompts=P), epochs)
    assert race.ratio < 0.85, "f_p = 1.25, f_n = 1.2"
    assert race.ratio + 0.05 < deferring.ratio < sync.ratio - 0.05
    assert deferring.mean_z < -3
    assert sync.is_unconditioned()


@pytest.mark.parametrize("epochs", [20, pytest.param(110, marks=search)])
def test_predict_trains_on_unconditioned_lengths_in_shorter_rounds(epochs):
    trained, plain = (Trained(spec(mode, over_prompts=P), epochs) for mode in ("predict", "sync"))
    assert trained.is_unconditioned() and trained.deferred == 0
    assert len(trained.longest["long"]) > 0.9 * epochs
    assert np.median(trained.longest["short"]) < 0.8 * np.median(plain.longest["short"])
    assert np.median(trained.longest["long"]) > np.median(plain.longest["short"])


@search
def test_prompts_that_are_hardly_ever_long_leak_within_their_bound():
    """Exhausted with probability (1 - q)^MAX_DRAWS: weighted by q this is at most 0.6 % (see exact.py)."""
    group_long, epochs = 1 - (1 - P_SAMPLE_LONG) ** N, 120
    leak = group_long * (1 - group_long) ** MAX_DRAWS
    trained, expected = Trained(spec("exact"), epochs, seed=2), epochs * leak.sum()
    assert leak.max() < 0.006 and abs(trained.exhausted - expected) < 3 * np.sqrt(expected)
    # Counting draws are unconditioned: a prompt has one an epoch, and it is long with the prompt's own probability.
    spread = np.sqrt(epochs * (group_long * (1 - group_long)).sum())
    assert abs(trained.deferred - epochs * group_long.sum()) < 3 * spread
