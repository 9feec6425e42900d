"""The groups that handed-over engines train before the round ends, and the rest that is trained after it.

The freed part of the accelerators trains groups one after another, in the order in which they become ready, at its
share of the speed of all; gradients add up, and the optimizer steps once, at the end (RollPacker, arXiv 2509.21009). A
group that would not be done by the round's end is left to all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..costs.update_costs import TrainCost


@dataclass(frozen=True, slots=True)
class Streamed:
    """Work that handed-over engines do before the round's end: groups, tokens, samples, seconds of work."""

    groups: int = 0
    tokens: int = 0
    squared_tokens: int = 0
    samples: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """The window in which freed engines train. Seconds from the round's start.

    Attributes:
        freed_s: when they were freed; None: never.
        end_s: the round's end.
        groups: as `streamed` takes them.
        accelerators: that were freed.
        share: they are of all that the round decodes on.
    """

    freed_s: float | None
    end_s: float
    groups: tuple[tuple[float, int, int, int], ...]
    accelerators: int
    share: float

    def streamed(self, train: TrainCost) -> Streamed:
        """The groups trained in the window by `train`, of which the freed accelerators take as many whole replicas as
        they hold.

        A part of a replica trains nothing: where the update splits the model over more than was freed, all is left.
        """
        replicas = min(train.layout.dp, self.accelerators // train.layout.replica)
        share = min(self.share, replicas / train.layout.dp)
        return streamed(self.freed_s if share else None, self.end_s, self.groups, train, share)


def streamed(
    freed_s: float | None, end_s: float, groups: Sequence[tuple[float, int, int, int]], train: TrainCost, share: float
) -> Streamed:
    """The groups trained between `freed_s` (None: nothing was freed) and `end_s`.

    Args:
        groups: (ready_s, tokens, sum of squared tokens, samples) of each trained group, prompts included.
        share: of the accelerators that were freed, within (0, 1).
    """
    if freed_s is None:
        return Streamed()
    clock, done = freed_s, Streamed()
    for ready_s, tokens, squares, samples in sorted(groups):
        seconds = (train.update_s(tokens, squares, samples) - train.step_s) / share
        clock = max(clock, ready_s) + seconds
        if clock > end_s:
            break
        done = Streamed(
            done.groups + 1,
            done.tokens + tokens,
            done.squared_tokens + squares,
            done.samples + samples,
            done.busy_s + seconds,
        )
    return done


def exposed_update_s(train: TrainCost, tokens: int, squared_tokens: int, samples: int, done: Streamed) -> float:
    """Seconds of the update after the round's end, where `done` of its tokens were trained before."""
    return train.update_s(tokens - done.tokens, squared_tokens - done.squared_tokens, samples - done.samples)
