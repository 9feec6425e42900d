"""Seconds, trained groups and deferred prompts of simulated rounds of one kind; a column holds their means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ....rounds.machines.outcome import Fate
from ....rounds.round_spec import RoundKind
from ...choose.candidates.round_kinds import LongKey
from ...costs.decode_costs import DecodeCost
from ...costs.update_costs import TrainCost
from ..round_arrays import FATES, RoundDraws, SimulatedRound
from ..streamed_updates import StreamedWork, Window, exposed_update_s

SUMS = ("tokens", "squares", "groups", "settled", "deferred", "excess", "leak", "cut", "issued", "decoded", "kept")
"""Entries of a RoundLog that are sums over what a round trained, settled or issued."""


@dataclass
class RoundLog:
    """Simulated rounds of one column, one entry a round. Times in seconds, overhead of the layout included.

    `sync_s`: of a weight transfer; `cost`: of the engines, where that depends on who trains (`sync_of`).
    """

    sync_s: float
    rollout_s: list[float] = field(default_factory=list)
    reward_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    squares: list[int] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)  # prompts that were trained or filtered
    deferred: list[int] = field(default_factory=list)
    excess: list[int] = field(default_factory=list)
    leak: list[int] = field(default_factory=list)  # excess of exhausted prompts (rounds/machines/exact.py)
    cut: list[int] = field(default_factory=list)  # trained samples that reached the cap
    issued: list[int] = field(default_factory=list)
    decoded: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)  # decoded tokens that were trained
    preemptions: int = 0
    windows: list[Window] = field(default_factory=list)  # for each round, where engines are to be handed over
    cost: DecodeCost | None = None
    _streamed: dict[TrainCost, list[StreamedWork]] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.rollout_s)

    def add(self, rollout_s: float, end_s: float, sums: Mapping[str, float], preemptions: float = 0.0) -> None:
        """Add a round that decodes for `rollout_s` and whose last reward is known at `end_s`; `sums` are rounded."""
        self.rollout_s.append(rollout_s)
        self.reward_s.append(max(0.0, end_s - rollout_s))
        for name in SUMS:
            getattr(self, name).append(round(sums[name]))
        self.preemptions += round(preemptions)

    def sync_of(self, train: TrainCost) -> float:
        """Seconds of a weight transfer from the trainers of an update."""
        return self.sync_s if self.cost is None else self.cost.sync_beside(train.layout)

    def turns_of(self, train: TrainCost) -> float:
        """Seconds of a weight transfer in which engines sleep and wake, beside trainers with this update."""
        return 0.0 if self.cost is None else self.cost.turns_beside(train.layout)

    def update_of(self, train: TrainCost) -> TrainCost:
        """An update beside the engines of these rounds: of states that stay beside them nothing moves."""
        return train if self.cost is None else self.cost.update_beside(train)

    def step_s(self, train: TrainCost) -> list[float]:
        """Seconds of each round's whole step."""
        sync_s = self.sync_of(train)
        return [
            rollout + reward + sync_s + update
            for rollout, reward, update in zip(self.rollout_s, self.reward_s, self.updates_s(train), strict=True)
        ]

    def updates_s(self, train: TrainCost) -> list[float]:
        """Seconds of each round's update after its end: without what freed engines have trained by then."""
        if not self.windows:
            return self.whole_updates_s(train)
        train = self.update_of(train)
        # Called often while the log grows, so results are kept.
        done = self._streamed.setdefault(train, [])
        done += [window.streamed(train) for window in self.windows[len(done) :]]
        return [exposed_update_s(train, t, q, d) for t, q, d in zip(self.tokens, self.squares, done, strict=True)]

    def whole_updates_s(self, train: TrainCost) -> list[float]:
        """Seconds of each round's update, with what freed engines have trained before its end."""
        train = self.update_of(train)
        return [train.update_s(t, q) for t, q in zip(self.tokens, self.squares, strict=True)]

    def step_error(self, train: TrainCost) -> float:
        """Standard error of the mean step, seconds."""
        return standard_error(self.step_s(train))

    def excess_error(self) -> float:
        """Standard error of the mean excess, tokens."""
        return standard_error(self.excess)

    def leak_error(self) -> float:
        """Standard error of the mean leak, tokens."""
        return standard_error(self.leak)

    def train_s(self, train: TrainCost) -> float:
        """Mean seconds of the update."""
        return mean(self.updates_s(train))

    def phases_s(self, train: TrainCost, rounds: int) -> dict[str, float]:
        """Mean seconds of each phase over the first `rounds` rounds."""
        return {
            "rollout": mean(self.rollout_s[:rounds]),
            "reward": mean(self.reward_s[:rounds]),
            "train": mean(self.updates_s(train)[:rounds]),
            "sync": self.sync_of(train),
        }


def mean(values: Sequence[float]) -> float:
    """Mean of at least one value."""
    return math.fsum(values) / len(values)


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean; 0 of a single value."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - 1) / len(values))


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """The draws that a round trained, in order of issue.

    Attributes:
        draws: their numbers in the round.
        prompts: indices of their prompts in the round's draws.
        tokens: of their trained samples, prompts included.
        squares: sums over these of squared tokens.
        excess: their response tokens beyond those of the prompt's first draw.
        cut: their trained samples that reached the cap.
    """

    draws: NDArray[np.int64]
    prompts: NDArray[np.int32]
    tokens: NDArray[np.int64]
    squares: NDArray[np.int64]
    excess: NDArray[np.int64]
    cut: NDArray[np.int64]


def trained_draws(
    round_kind: RoundKind, round_draws: RoundDraws, simulated: SimulatedRound, firsts: NDArray[np.int64]
) -> Trained:
    """The draws that a round trained; `firsts`: by prompt, the sum of its first draw's lengths in stream 0."""
    trained = np.flatnonzero(simulated.fate == FATES[Fate.TRAINED])
    lengths = np.minimum(
        round_draws.lengths[simulated.row[trained], : round_kind.samples], round_kind.max_tokens
    ).astype(np.int64)
    kept, prompts = simulated.kept[trained], simulated.prompt[trained]
    whole = np.where(kept, lengths + round_draws.prompt_tokens[prompts][:, None], 0)
    excess = np.where(kept, lengths, 0).sum(axis=1) - firsts[prompts]
    cut = (kept & (lengths >= round_kind.max_tokens)).sum(axis=1)
    return Trained(trained, prompts, whole.sum(axis=1), (whole * whole).sum(axis=1), excess, cut)


def record_round(
    log: RoundLog,
    round_kind: RoundKind,
    round_draws: RoundDraws,
    simulated: SimulatedRound,
    firsts: NDArray[np.int64],
    put_off_excess: int,
    key: LongKey | None = None,
    streams: bool = False,
) -> None:
    """Add a round to the log; `firsts`: by prompt, the sum of its first draw's lengths in stream 0.

    `key`: of a long round, which may hand engines over. `streams`: trainers on a pool of their own train groups while
    others are decoded.
    """
    trained = trained_draws(round_kind, round_draws, simulated, firsts)
    totals = {
        "tokens": trained.tokens.sum(),
        "squares": trained.squares.sum(),
        "groups": len(trained.draws),
        "settled": len(trained.draws) + (simulated.fate == FATES[Fate.FILTERED]).sum(),
        "deferred": (simulated.fate == FATES[Fate.DEFERRED]).sum(),
        "excess": trained.excess.sum() + put_off_excess,
        "leak": trained.excess[simulated.exhausted[trained.prompts]].sum(),
        "cut": trained.cut.sum(),
        "issued": simulated.kept.size,
        "decoded": simulated.times.decoded_tokens,
        "kept": (trained.excess + firsts[trained.prompts]).sum(),
    }
    times = simulated.times
    log.add(times.decode_end_s, times.end_s, {name: int(each) for name, each in totals.items()}, times.preemptions)
    hands_over = key is not None and bool(key.hand_over)
    if hands_over or streams:
        ready, sums, squares = simulated.ready_s[trained.draws], trained.tokens, trained.squares
        log.windows.append(
            Window(
                freed_s=0.0 if streams else times.freed_s,
                end_s=times.end_s,
                groups=tuple(zip(ready.tolist(), sums.tolist(), squares.tolist(), strict=True)),
                staying=0 if streams or key is None else (key.layout.engines - key.freed_engines) * key.layout.tp,
            )
        )
