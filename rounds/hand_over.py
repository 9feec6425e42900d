"""When engines of a round stop decoding: some, which then train (RollPacker, arXiv 2509.21009, section 4.4), or all,
whose devices fewer engines of a higher TP size take for the tail (PAT, arXiv 2605.23945).

Engines change once in a round: at a planned share of the samples to be trained, if what runs then fits into the engines
that decode on, else at the next milestone. The samples of the engines that stop go on elsewhere, their tokens kept and
their KV recomputed. All engines have the same weights, and no optimizer steps meanwhile: the round stays on-policy.

Invariants:
- the decision depends on counts and tokens only, never on the clock: the same samples give the same decision;
- a round changes its engines at most once, and some engine always decodes on;
- nothing is freed unless each sample that runs, grown by `growth_tokens`, fits into the KV of the engines that decode
  on, with a margin if it did not fit before;
- a trainer's replica trains early only if no engine that stays is on any of its devices (`free_replicas`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from typing import Protocol

# The published algorithm looks again when another 5 % of the samples have ended (RollPacker, arXiv 2509.21009).
MILESTONE = 0.05

# A hand-over cannot be taken back, and a forecast that hardly fits is overtaken by the next tokens: after it was
# refused once, it must leave this share of the KV to spare.
MARGIN = 0.1


class PlannedEngineChange(Protocol):
    """A change of a round's engines as a plan has it (`RoundHandOver` and `RoundTail` of plans/schema)."""

    @property
    def at_finished(self) -> float:
        """Share of the samples to be trained that must have ended."""

    @property
    def growth_tokens(self) -> int:
        """By how much a running sample is expected to grow, for the projection of KV."""

    def stay(self, engines: int) -> int:
        """How many engines decode on, where the round has `engines`. Raises ValueError if none does."""


def free_replicas(ranks: Sequence[Hashable], replica: int, staying: Collection[Hashable]) -> tuple[int, ...]:
    """Numbers of the trainer's replicas that can train while the engines on the devices `staying` decode.

    Args:
        ranks: the device of each trainer rank, in order; replicas are `replica` ranks each, one after another.
        staying: devices of the engines that go on decoding.
    """
    busy = set(staying)
    groups = [ranks[first : first + replica] for first in range(0, len(ranks), replica)]
    return tuple(number for number, devices in enumerate(groups) if busy.isdisjoint(devices))


class HandOver:
    """The decision of one round. Tell it each finished sample that may be trained; ask when it says so.

    Args:
        samples: samples that the round is to train.
        engines: engines of the round.

    `stay` is how many engines decode on: of the round's, or of the tail's in their place.
    """

    def __init__(self, spec: PlannedEngineChange, samples: int, engines: int) -> None:
        self.spec = spec
        self.samples = samples
        self.stay = spec.stay(engines)
        self.finished = 0
        self.freed = self.refused = False
        self.milestone = max(1, math.ceil(spec.at_finished * samples))
        self.stride = max(1, math.ceil(MILESTONE * samples))

    def sample_finished(self) -> bool:
        """One more sample has ended; whether to project and `decide` now."""
        self.finished += 1
        return not self.freed and self.finished >= self.milestone

    def decide(self, held_tokens: int, sequences: int, capacity_tokens: int) -> bool:
        """Whether to free the engines now; if not, the next milestone is another chance.

        Args:
            held_tokens: tokens of all samples that run or wait, prompts included.
            sequences: how many these are.
            capacity_tokens: KV tokens that one engine holds that decodes on.
        """
        assert not self.freed and self.finished >= self.milestone, "no decision is due"
        self.milestone = self.finished + self.stride
        share = 1.0 - MARGIN if self.refused else 1.0
        self.freed = held_tokens + sequences * self.spec.growth_tokens <= share * (self.stay * capacity_tokens)
        self.refused = not self.freed
        return self.freed

    def check_invariants(self) -> None:
        """Assert what must hold between any two events."""
        assert self.stay >= 1, "no engine goes on decoding"
        assert not self.freed or self.finished >= math.ceil(self.spec.at_finished * self.samples)
