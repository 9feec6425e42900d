"""The algebra of `exact`: over many cycles the trained lengths are distributed as if every sample had been waited for.

Lengths are log-logistic with a scale of its own for each prompt (1 to 15 times the shortest), so a prompt's expected
length is known in closed form and a group's draws depend strongly on its prompt; mean and spread are exact, nothing is
estimated by a second simulation. Time is token time: all samples of a round decode at the same rate.
"""

import random
from collections import Counter

import numpy as np
import pytest

from rlplan.rounds.machines.exact import MAX_DRAWS
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.round_spec import QueueRule, RoundSpec
from rlplan.rounds.schedule import Schedule

from .driver import prompt_ids, steps

P, N, PROMPTS, CAP, CUTOFF, SHAPE = 12, 5, 60, 2000, 400, 2.0


def spec(mode, over_prompts=15, over_samples=N, queue=None):
    exact = {"cutoff_tokens": CUTOFF, "copies": 3, "queue": queue} if mode == "exact" else {}
    return RoundSpec(mode, P, N, CAP, over_prompts, over_samples, **exact, long_share=0.25 * (mode == "predict"))


class Population:
    """Prompts by the scales of their lengths (tokens), and what is known of these in closed form."""

    def __init__(self, scales):
        self.scale = dict(zip(prompt_ids(len(scales)), scales, strict=True))
        # P(length >= k) for k = 1..CAP, a row for each prompt.
        self.survival = 1 / (1 + (np.arange(CAP) / np.array(scales)[:, None]) ** SHAPE)
        self.mean = self.survival.sum(axis=1)
        self.variance = (self.survival * (2 * np.arange(1, CAP + 1) - 1)).sum(axis=1) - self.mean**2
        self.sample_long = self.survival[:, CUTOFF]
        self.group_long = 1 - (1 - self.sample_long) ** N


FEW = Population(np.geomspace(20, 300, PROMPTS))


class Trained:
    """Lengths trained in whole epochs, and how far they are from the unconditioned ones, in standard errors."""

    def __init__(self, mode, epochs, seed=1, any_order=False, of=FEW):
        dice = random.Random(seed)
        self.of, prompts = of, len(of.scale)

        def length(sample):
            u = dice.random()
            return 1 + int(of.scale[sample.prompt] * (u / (1 - u)) ** (1 / SHAPE))

        schedule = Schedule(mode, list(of.scale), seed)
        lengths: list[int] = []
        self.deferred = self.exhausted = 0
        self.by_queue: list[int] = []  # groups that rounds by queue trained
        self.waits: dict[str, list[int]] = {prompt: [] for prompt in of.scale}
        settled: Counter[tuple[int, str]] = Counter()
        before: tuple[str, ...] = ()
        self.longest: dict[str, list[int]] = {"short": [], "long": []}
        for step in steps(schedule, length, order=random.Random(-seed) if any_order else None, checked=False):
            # Epochs run into each other: what is trained for a later one does not belong to these.
            lengths.extend(t for g in step.outcome.trained if step.epochs[g.prompt] < epochs for t in g.tokens)
            longest = max((t for g in step.outcome.trained for t in g.tokens), default=0)
            self.longest[step.run.machine.kind].append(longest)
            self.deferred += sum(step.epochs[p] < epochs for p in step.outcome.prompts[Fate.DEFERRED])
            settled.update(step.settled)
            if schedule.ages:
                self.by_queue.append(len(step.outcome.trained))
            gone = (prompt for prompt in before if prompt not in schedule.deferred)
            for prompt, wait in zip(gone, schedule.waits, strict=False):
                self.waits[prompt].append(wait)
            before = schedule.deferred
            self.exhausted += sum(step.epochs[p] < epochs for p in step.outcome.exhausted)
            # Each prompt is trained once an epoch, n samples at a time.
            assert schedule.round_number < 2 * epochs * prompts / P
            if len(lengths) == epochs * prompts * N:
                break
        assert set(settled.values()) == {1}, "each prompt once an epoch"
        self.lengths = np.array(lengths)
        repeats = epochs * N
        self.ratio = self.lengths.mean() / of.mean.mean()
        self.mean_z = (self.lengths.sum() - repeats * of.mean.sum()) / np.sqrt(repeats * of.variance.sum())
        long = int((self.lengths > CUTOFF).sum())
        spread = np.sqrt(repeats * (of.sample_long * (1 - of.sample_long)).sum())
        self.share_z = (long - repeats * of.sample_long.sum()) / spread

    def kolmogorov_smirnov(self):
        """sqrt(N) * D against the exact mixture; 1.63 is its 1% point (less for a stratified sample such as this)."""
        at_most = np.append(1 - self.of.survival.mean(axis=0)[1:], 1.0)
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


# Prompts whose groups are long with chances from 0.02 to 0.98.
UNLIKE = np.linspace(0.02, 0.98, 49)
ODDS = (1 - (1 - UNLIKE) ** (1 / N)) / (1 - UNLIKE) ** (1 / N)


@pytest.mark.parametrize(
    ("prompts", "epochs", "queue"),
    [
        (294, 3, QueueRule(30, until_long_after=6)),
        *(pytest.param(512, 12, queue, marks=search) for queue in (None, QueueRule(30), QueueRule(13))),
        pytest.param(4900, 3, QueueRule(30), marks=search),
    ],
)
def test_queues_train_unlike_prompts_alike(prompts, epochs, queue):
    of = Population(CUTOFF * np.resize(ODDS, prompts) ** (1 / SHAPE))
    trained = Trained(spec("exact", 15, queue=queue), epochs, of=of)
    assert trained.is_unconditioned(), f"{trained.ratio:.4f}, {trained.mean_z:.1f} and {trained.share_z:.1f} deviations"
    if queue is not None and queue.prompts > 2 * P:
        assert len(trained.by_queue) > prompts * epochs / P / 5 and np.mean(trained.by_queue) > 0.95 * P
    waits = [np.concatenate([trained.waits[p] for p, q in zip(of.scale, of.group_long, strict=True) if low < q <= high])
             for low, high in ((0, 0.3), (0.6, 1))]  # fmt: skip
    assert queue is None or waits[0].mean() > waits[1].mean() + 0.2
    assert max(map(max, waits)) < 40


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
    group_long, epochs = FEW.group_long, 120
    leak = group_long * (1 - group_long) ** MAX_DRAWS
    trained, expected = Trained(spec("exact"), epochs, seed=2), epochs * leak.sum()
    assert leak.max() < 0.006 and abs(trained.exhausted - expected) < 3 * np.sqrt(expected)
    # Counting draws are unconditioned: a prompt has one an epoch, and it is long with the prompt's own probability.
    spread = np.sqrt(epochs * (group_long * (1 - group_long)).sum())
    assert abs(trained.deferred - epochs * group_long.sum()) < 3 * spread
