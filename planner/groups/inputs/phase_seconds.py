"""Seconds of a job's two phases, with their spread: from figures, from the job's own plan, or from a run of it.

A spread is `PAIRS` equally likely (rollout, train) pairs over their means: means of equal slices of the distribution,
in a fixed shuffled order, so that a stretch of iterations sees a mixture and the same document gives the same bytes.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ....plans.facts.public_models import Architecture
from ....plans.schema.cluster import Cluster
from ....plans.schema.plan import Plan
from ....plans.schema.predicted import PredictedRound, Quantiles
from ....plans.schema.workload import Phase
from ....profiles.laws.sync_law import Networks, between_pools_s
from ...tune.executed_run import ExecutedRun

# Seconds to bring a job's state onto the accelerators, warm and cold, and to transfer its weights across pools.
#
# Warm and cold starts are published for one 8-GPU node and four sizes of a dense model (RollMux, arXiv 2512.11306,
# Fig. 4); between these sizes they are interpolated by parameters, beyond them the nearest segment is extended. The
# parts of a start differ: control-plane set-up is 58-76 % of a cold one, a copy over PCIe all of a warm one, so
# neither follows from bytes alone.

_BILLIONS = (3.09, 7.62, 14.77, 32.76)  # Qwen2.5-3B, 7B, 14B, 32B
_ROLLOUT_WARM_S = (0.8, 0.9, 1.8, 1.7)
_TRAIN_WARM_S = (1.9, 4.1, 4.7, 5.9)
_ROLLOUT_COLD_S = (25.3, 38.8, 60.4, 81.7)
_TRAIN_COLD_S = (26.7, 32.7, 59.0, 81.2)

SYNC_BYTES = 2.0
"""Bytes a parameter: weights travel as bf16."""


@dataclass(frozen=True)
class Switch:
    """Seconds to load a phase's state on its node: `*_warm_s` from host memory; `cold_s` both phases, at once on their
    nodes, from nothing."""

    rollout_warm_s: float
    train_warm_s: float
    cold_s: float


def switch_seconds(a: Architecture) -> Switch:
    """Switch seconds of a model of this size."""
    billions = a.parameters / 1e9
    return Switch(
        _interpolated(billions, _ROLLOUT_WARM_S),
        _interpolated(billions, _TRAIN_WARM_S),
        max(_interpolated(billions, _ROLLOUT_COLD_S), _interpolated(billions, _TRAIN_COLD_S)),
    )


def _interpolated(billions: float, seconds: tuple[float, ...]) -> float:
    """Seconds on the line through the neighbouring sizes; never below a fifth of the smallest model's."""
    upper = next((i for i, size in enumerate(_BILLIONS[1:], 1) if billions <= size), len(_BILLIONS) - 1)
    (x0, y0), (x1, y1) = ((_BILLIONS[i], seconds[i]) for i in (upper - 1, upper))
    return max(seconds[0] / 5, y0 + (billions - x0) * (y1 - y0) / (x1 - x0))


def sync_seconds(a: Architecture, cluster: Cluster, rollout: tuple[str, int], train: tuple[str, int]) -> float:
    """Seconds of a relayed transfer of the weights (sync_law.between_pools_s) from one phase's pool to the other's;
    within one pool, of the broadcast among the rollout's nodes, if several.

    `rollout`, `train`: (pool, nodes). A link that the cluster does not name costs nothing.
    """
    networks = Networks(
        between=cluster.stream_bytes_per_s(rollout[0], train[0]) if rollout[0] != train[0] else None,
        within=cluster.stream_bytes_per_s(rollout[0], rollout[0]),
    )
    streams = min(nodes * cluster.pools[pool].accelerators.per_node for pool, nodes in (rollout, train))
    return between_pools_s(SYNC_BYTES * a.parameters, networks, streams, rollout[1], relay=True)


PAIRS = 64

_NORMAL = NormalDist()
_Z95 = _NORMAL.inv_cdf(0.95)


@dataclass(frozen=True)
class PhaseSeconds:
    """Mean seconds of both phases; `spread`: pairs over these means, or () if they are always the mean."""

    rollout_s: float
    train_s: float
    spread: tuple[tuple[float, float], ...] = ()


def from_figures(rollout: Phase, train: Phase, seed: str) -> PhaseSeconds:
    """Phase seconds from the workload's figures. Each phase is lognormal through p50 and p95, scaled to its mean if
    that is given; the two are drawn independently, since the longest response and the number of tokens say little of
    each other."""
    columns = [_figures(phase) for phase in (rollout, train)]
    if all(len(column) == 1 for column in columns):
        return PhaseSeconds(columns[0][0], columns[1][0])
    shuffle = _shuffle(seed)
    return _normalised([[column[i % len(column)] for i in shuffle.permutation(PAIRS)] for column in columns])


def from_plan(plan: Plan, seed: str) -> PhaseSeconds:
    """Phase seconds from the predictions of a plan: each round kind with its share of the steps, its rollout lognormal
    through its p50 and p95, and the rest of its step (update, weight transfer) as training. Exposed reward seconds
    count as rollout: its engines are held until the batch is complete. Warns of a plan whose trainers stream: it has
    only the part of their training after the rollout's end, and in a group all of it comes after."""
    predicted = plan.predicted
    if plan.job.streams:
        warnings.warn(
            f"job {plan.job.name}: its plan trains while it decodes, so the seconds of its training are too few here: "
            "in a group training begins when the rollout has ended; write streams: false beside train_pool into its "
            "job.yaml (placement), and solve it again",
            stacklevel=2,
        )
    rounds: list[PredictedRound] = [predicted.rounds.short]
    if predicted.rounds.long is not None and predicted.rounds.long.share > 0:
        rounds.append(predicted.rounds.long)
    counts = [max(1, round(PAIRS * of_round.share)) for of_round in rounds]
    counts[0] = PAIRS - sum(counts[1:])
    rollout: list[float] = []
    train: list[float] = []
    for of_round, count in zip(rounds, counts, strict=True):
        waiting = of_round.reward_exposed_s.mean
        rest = of_round.step_s.mean - of_round.rollout_s.mean - waiting
        rollout += [seconds + waiting for seconds in _quantiles(of_round.rollout_s, count)]
        train += [rest if rest > 0 else of_round.train_s.mean + of_round.sync_s] * count
    order = _shuffle(seed).permutation(PAIRS)
    return _normalised([[rollout[i] for i in order], [train[i] for i in order]])


def from_run(run: ExecutedRun) -> PhaseSeconds:
    """Phase seconds observed in a run's steps, in their order; steps that had to start something are left out if there
    are others. The rest of a step beside its phases counts as training."""
    steps = [step for step in run.steps if step.warm] or list(run.steps)
    rollout = [step.rollout_s + step.reward_exposed_s for step in steps]
    return _normalised([rollout, [step.train_s + step.sync_s + step.outside_s for step in steps]])


def from_turns(pairs: Sequence[tuple[float, float]]) -> PhaseSeconds:
    """Phase seconds from the (rollout, train) seconds of iterations, in their order."""
    return _normalised([[pair[0] for pair in pairs], [pair[1] for pair in pairs]])


def _figures(phase: Phase) -> list[float]:
    if phase.p50_s is None or phase.p95_s is None:
        assert phase.mean_s is not None, "the document refuses a phase without seconds"
        return [phase.mean_s]
    return _lognormal(phase.p50_s, phase.p95_s, PAIRS, phase.mean_s)


def _quantiles(figures: Quantiles, count: int) -> list[float]:
    if figures.p50 <= 0 or figures.mean <= 0:
        return [figures.mean] * count
    return _lognormal(figures.p50, max(figures.p50, figures.p95), count, figures.mean)


def _lognormal(p50: float, p95: float, count: int, mean: float | None) -> list[float]:
    """Means of `count` equal slices, ascending; scaled to `mean` if given, else they have the distribution's own.

    The mean below a quantile z of a lognormal is the whole mean times Phi(z - sigma).
    """
    sigma = math.log(p95 / p50) / _Z95
    below = [0.0, *(_NORMAL.cdf(_NORMAL.inv_cdf(i / count) - sigma) for i in range(1, count)), 1.0]
    wanted = mean if mean is not None else p50 * math.exp(sigma * sigma / 2)
    return [wanted * count * (high - low) for low, high in itertools.pairwise(below)]


def _normalised(columns: Sequence[Sequence[float]]) -> PhaseSeconds:
    rollout, train = (math.fsum(column) / len(column) for column in columns)
    pairs = tuple((a / rollout if rollout else 1.0, b / train if train else 1.0) for a, b in zip(*columns, strict=True))
    return PhaseSeconds(rollout, train, pairs if any(pair != (1.0, 1.0) for pair in pairs) else ())


def _shuffle(seed: str) -> np.random.Generator:
    """By the job's name, so that two jobs of equal figures do not have their long iterations at the same time."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big"))
