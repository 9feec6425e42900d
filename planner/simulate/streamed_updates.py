"""The groups that are trained before the round ends, on devices that engines have freed or that trainers have to
themselves, and the rest that is trained after it.

Trainers take groups as rounds/group_queue.py says, at their share of the speed of all replicas; gradients add up, and
the optimizer steps once, at the end (RollPacker, arXiv 2509.21009). The update after the round waits for the groups
that are being trained when the round ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...rounds.group_queue import GroupQueue
from ...rounds.hand_over import free_replicas
from ...rounds.machines.outcome import Outcome
from ..costs.round_costs import RoundCosts
from ..costs.update_costs import TrainCost


@dataclass(frozen=True, slots=True)
class StreamedWork:
    """Work that trainers begin before the round's end: groups, tokens, seconds of work; the accelerators that did it;
    seconds from the round's end until they are done with it."""

    groups: int = 0
    tokens: int = 0
    squared_tokens: int = 0
    busy_s: float = 0.0
    accelerators: int = 0
    late_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """The window in which trainers train groups of a round that is still decoded. Seconds from the round's start.

    Attributes:
        freed_s: when their devices were free; None: never.
        end_s: the round's end.
        groups: as `streamed` takes them.
        staying: accelerators on which engines go on decoding, the first ones of the pool; 0: trainers have a pool of
            their own.
    """

    freed_s: float | None
    end_s: float
    groups: tuple[tuple[float, int, int], ...]
    staying: int

    def streamed(self, train: TrainCost) -> StreamedWork:
        """The groups that are trained in the window by `train`, of which whole replicas on free devices take part."""
        layout = train.layout
        replicas = free_replicas(range(layout.accelerators), layout.replica, range(self.staying))
        return streamed(self.freed_s, self.end_s, self.groups, train, len(replicas) if train.early else 0)


def round_window(
    kind: RoundCosts,
    freed_s: float | None,
    end_s: float,
    outcome: Outcome,
    ready_s: Mapping[int, float],
    prompt_tokens: Callable[[str], int],
) -> Window:
    """The window of a round that ended so.

    Args:
        freed_s: when engines changed; None: they did not.
        ready_s: by number of a trained draw, when it was ready.
        prompt_tokens: of a prompt.
    """
    groups = []
    for group in outcome.trained:
        whole = [prompt_tokens(group.prompt) + tokens for tokens in group.tokens]
        groups.append((ready_s[group.keys[0].draw], sum(whole), sum(tokens * tokens for tokens in whole)))
    if kind.streams:
        return Window(0.0, end_s, tuple(groups), 0)
    layout, change = kind.decode.key, kind.change
    if change is None or change.is_tail:  # the trainer's devices are never free before the end
        return Window(None, end_s, tuple(groups), layout.engines * layout.tp)
    return Window(freed_s, end_s, tuple(groups), change.spec.stay(layout.engines) * layout.tp)


def streamed(
    freed_s: float | None,
    end_s: float,
    groups: Sequence[tuple[float, int, int]],
    train: TrainCost,
    replicas: int,
) -> StreamedWork:
    """The groups trained between `freed_s` (None: nothing was freed) and `end_s`.

    Args:
        groups: (ready_s, tokens, sum of squared tokens) of each trained group, prompts included.
        replicas: of the trainer, that take part.
    """
    if freed_s is None or not replicas:
        return StreamedWork()
    ready = sorted(groups)
    queue = GroupQueue(train.layout.micro_batch_tokens * replicas)
    queue.begin()
    clock, offered, share = freed_s, 0, replicas / train.layout.dp
    taken, tokens, squares, busy_s = 0, 0, 0, 0.0
    while clock < end_s:
        while offered < len(ready) and ready[offered][0] <= clock:
            queue.offer(offered, ready[offered][1])
            offered += 1
        chosen = queue.take()
        if not chosen:
            clock = ready[offered][0] if offered < len(ready) else math.inf
            continue
        portion = [ready[number] for number in chosen]
        work = [sum(group[1] for group in portion), sum(group[2] for group in portion)]
        seconds = (train.update_s(*work) - train.step_s) / share
        queue.trained()
        clock, busy_s, taken = clock + seconds, busy_s + seconds, taken + len(chosen)
        tokens, squares = tokens + work[0], squares + work[1]
    late_s = clock - end_s if taken and clock < math.inf else 0.0
    return StreamedWork(taken, tokens, squares, busy_s, replicas * train.layout.replica, max(late_s, 0.0))


def exposed_update_s(train: TrainCost, tokens: int, squared_tokens: int, done: StreamedWork) -> float:
    """Seconds of the update after the round's end, where `done` of its tokens were begun before."""
    return done.late_s + train.update_s(tokens - done.tokens, squared_tokens - done.squared_tokens)
