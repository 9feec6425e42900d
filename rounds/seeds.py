"""Seeds of samples: the same draw of a prompt has the same luck in every run of a job.

Where two runs of one job draw a prompt to its end, they draw it with the same luck (common random numbers), so that
their lengths, and above all those of hard prompts, differ by what their plans do; a resumed run draws what the
uninterrupted one would have drawn; and what an engine's death took is drawn again as it was, so that deaths, which hit
long responses most, do not shorten what is trained on.

Invariants:
- within a run no two samples share a seed, but for the same sample issued again (up to collisions of 32-bit numbers,
  all that a CPU generator takes);
- a draw that may be cut short and the draw that takes its place are independent: draws of rounds that run everything
  to its end (`sync`, long rounds) and draws of rounds that cut are seeded from different lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True, slots=True)
class RoundSeeds:
    """Seeds of one round's samples.

    Attributes:
        base: the job's seed.
        epoch: of the round's prompts; in one epoch a prompt is trained once.
        cut_round: the round's number if it may cut draws short, None if it runs all draws to their end.
    """

    base: int
    epoch: int
    cut_round: int | None

    def of(self, prompt: str, nth_draw: int, sample: int) -> int:
        """Seed within [0, 2**32) of a sample of the round's `nth_draw`-th draw (from 0) of this prompt."""
        line = "whole" if self.cut_round is None else f"cut {self.cut_round}"
        name = f"{self.base}:{self.epoch}:{line}:{nth_draw}:{sample}:{prompt}"
        return int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big")
