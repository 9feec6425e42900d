"""The account of a round: the fate of every prompt, draw and sample that it issued.

Invariants (asserted by `Outcome.check`):
- prompts: each prompt that the round took is in exactly one of trained, filtered, deferred, returned, failed;
- draws: issued = trained + filtered + deferred + returned + discarded + failed, each draw in exactly one;
- samples: issued = trained + filtered + deferred + returned + discarded + failed + surplus;
- a trained group has exactly the samples that the job asks for: no group is trained in part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from .events import SampleKey


class Fate(StrEnum):
    """Where a draw (or a sample of it) ended."""

    TRAINED = "trained"
    FILTERED = "filtered"  # rewards all equal under dynamic sampling: consumed, no gradient
    DEFERRED = "deferred"  # its prompt waits for a long round
    RETURNED = "returned"  # as if never issued: its prompt goes back to the feed
    DISCARDED = "discarded"  # a copy or a voided draw whose prompt was settled by another draw
    FAILED = "failed"  # the infrastructure failed on its prompt for good
    SURPLUS = "surplus"  # samples only: over-issued beyond n in a draw that was trained or filtered


PROMPT_FATES = (Fate.TRAINED, Fate.FILTERED, Fate.DEFERRED, Fate.RETURNED, Fate.FAILED)


@dataclass(frozen=True, slots=True)
class TrainedGroup:
    """A group to train: `keys` in sample order with their lengths (tokens) and rewards."""

    prompt: str
    keys: tuple[SampleKey, ...]
    tokens: tuple[int, ...]
    rewards: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The account of one round. `trained` is sorted by prompt id, so it does not depend on completion order."""

    trained: tuple[TrainedGroup, ...]
    prompts: dict[Fate, tuple[str, ...]]
    draws: dict[Fate, int]
    samples: dict[Fate, int]
    taken: tuple[str, ...]
    issued_draws: int
    issued_samples: int
    group_size: int
    exhausted: tuple[str, ...] = field(default=())
    failures: dict[str, str] = field(default_factory=dict)

    def check(self) -> list[str]:
        """Texts on the conservation laws that do not hold; empty if all hold."""
        broken: list[str] = []
        settled = Counter(p for fate in PROMPT_FATES for p in self.prompts.get(fate, ()))
        if settled != Counter(self.taken):
            difference = sorted((settled - Counter(self.taken)) + (Counter(self.taken) - settled))
            broken.append(f"prompts taken and prompts settled differ: {difference[:5]}")
        if max(settled.values(), default=0) > 1:
            broken.append("a prompt was settled twice in one round")
        if sum(self.draws.values()) != self.issued_draws:
            broken.append(f"{self.issued_draws} draws issued, {sum(self.draws.values())} accounted for")
        if sum(self.samples.values()) != self.issued_samples:
            broken.append(f"{self.issued_samples} samples issued, {sum(self.samples.values())} accounted for")
        if tuple(g.prompt for g in self.trained) != self.prompts.get(Fate.TRAINED, ()):
            broken.append("trained groups and trained prompts differ")
        if any(len(set(g.keys)) != self.group_size for g in self.trained):
            broken.append("a group was trained in part")
        return broken


def has_signal(rewards: Sequence[float]) -> bool:
    """True if the rewards of a group differ, so that its advantages are not all zero (DAPO, dynamic sampling)."""
    return max(rewards) != min(rewards)
