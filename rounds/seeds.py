"""Seeds of samples: the same draw of a prompt has the same seed in every run of a job.

Where two runs of one job draw a prompt to its end, they draw it with the same seeds (common random numbers), so that
their lengths, and above all those of hard prompts, differ by what their plans do; a resumed run draws what the
uninterrupted one would have drawn; and samples lost with an engine are drawn again as they were, so that deaths, which
hit long responses most, do not shorten what is trained on.

Invariants:
- within a run no two samples share a seed, but for the same sample issued again (up to collisions of 32-bit numbers,
  all that a CPU generator takes);
- a draw that may be cut short and the draw that takes its place are independent: draws of rounds that run everything
  to its end (`sync`, `predict`, long rounds by waves) and draws of rounds that cut are seeded from different lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from .machines.events import Issue, SampleKey


@dataclass(frozen=True, slots=True)
class RoundSeeds:
    """Seeds of one round's samples.

    Attributes:
        base: the job's seed.
        epoch_of: by prompt, the epoch that issued it to the round; in one epoch a prompt is trained once.
        cut_round: the round's number if it may cut draws short, None if it runs all draws to their end.
    """

    base: int
    epoch_of: Callable[[str], int]
    cut_round: int | None

    def of(self, prompt: str, nth_draw: int, sample: int) -> int:
        """Seed within [0, 2**32) of a sample of the round's `nth_draw`-th draw (from 0) of this prompt."""
        line = "whole" if self.cut_round is None else f"cut {self.cut_round}"
        name = f"{self.base}:{self.epoch_of(prompt)}:{line}:{nth_draw}:{sample}:{prompt}"
        return int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big")


class SeedLedger:
    """Which seed each issue of a round gets: its own, or that of the lost sample that it stands in for."""

    def __init__(self, seeds: RoundSeeds) -> None:
        self._seeds = seeds
        self._origins: dict[SampleKey, tuple[str, int, int]] = {}  # (prompt, place among its draws, sample)
        self._draws: dict[str, list[int]] = {}  # draw numbers of a prompt, by place
        self._vacant: dict[str, list[tuple[str, int, int]]] = {}  # origins of lost samples, by prompt

    def issue(self, issue: Issue) -> int:
        """The seed of an issue. A new draw after a loss takes the void one's place; a new sample the lost one's."""
        prompt, draw = issue.prompt, issue.key.draw
        draws, vacant = self._draws.setdefault(prompt, []), self._vacant.setdefault(prompt, [])
        if draw not in draws and vacant:
            place = vacant[0][1]
            draws[place] = draw
            vacant[:] = [lost for lost in vacant if lost[1] != place]
        elif draw not in draws:
            draws.append(draw)
        place = draws.index(draw)
        origin = next((lost for lost in vacant if lost[1] == place), (prompt, place, issue.key.sample))
        if origin in vacant:
            vacant.remove(origin)
        self._origins[issue.key] = origin
        return self._seeds.of(*origin)

    def seed(self, key: SampleKey) -> int:
        """The seed of a sample that was issued."""
        return self._seeds.of(*self._origins[key])

    def lose(self, key: SampleKey) -> None:
        """Note that an issued sample was lost with its engine: the next issue for its prompt gets its seed."""
        origin = self._origins[key]
        self._vacant[origin[0]].append(origin)
