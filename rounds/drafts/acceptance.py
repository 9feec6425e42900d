"""How often drafted tokens are accepted, by what is known of them before: a table that learns.

A drafted token belongs to a *cell*: how long the context was that it followed before, how often that context occurred,
and which share of these occurrences it followed. The share alone is a bad estimate: what followed a context once may
follow it always, or never again. So each cell's rate begins at what its share says and moves to what was seen.

Invariants:
- the table depends on the drafts that were verified and their order, never on a clock;
- of a draft only the tokens up to the first that was rejected count: nothing is known of the others;
- `state()` holds all of it, as JSON-ready data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compiled.numba_options import compiled

CONTEXT = 16
"""The longest context that is looked up, in tokens; longer ones were not seen to tell more."""

_LENGTHS = 7  # of contexts: 1, 2, 3, 4 to 5, 6 to 8, 9 to 15, 16
_OCCURRENCES = 4  # 1, 2 to 3, 4 to 15, more
_SHARES = 5  # below 0.4, 0.7, 0.9, 1, and 1
CELLS = _LENGTHS * _OCCURRENCES * _SHARES

_MIDDLES = (0.25, 0.55, 0.8, 0.95, 1.0)
"""Share that stands for those of a class."""

PRIOR = 8.0
"""Drafted tokens that the first guess of a rate counts."""

FADE = 0.9
"""What the drafts of earlier weights still count when new weights come: the policy drifts, and slowly."""


@compiled
def cell_of(context: int, occurrences: int, share: float) -> int:
    """The cell of a token that followed a share of the occurrences of a context of so many tokens."""
    if context <= 3:
        length = context - 1
    elif context <= 5:
        length = 3
    elif context <= 8:
        length = 4
    else:
        length = 5 if context < CONTEXT else 6
    often = 0 if occurrences <= 1 else 1 if occurrences <= 3 else 2 if occurrences <= 15 else 3
    part = 4 if share >= 1.0 - 1e-9 else 3 if share >= 0.9 else 2 if share >= 0.7 else 1 if share >= 0.4 else 0
    return (length * _OCCURRENCES + often) * _SHARES + part


def first_rates() -> NDArray[np.float64]:
    """Rates before any draft was verified: the share, drawn towards nothing by how few occurrences it rests on."""
    seen = np.array([1.0, 2.5, 8.0, 32.0])
    by_share = np.array(_MIDDLES)[None, :] * (seen / (seen + 1.0))[:, None]
    return np.tile(by_share.reshape(-1), _LENGTHS)


class AcceptanceTable:
    """Rates of accepted drafts by cell; `rates` is float64 [CELLS] and always up to date."""

    def __init__(self) -> None:
        self._first = first_rates()
        self._drafted = np.zeros(CELLS)
        self._accepted = np.zeros(CELLS)
        self.rates = self._first.copy()

    def verified(self, cells: Sequence[int], accepted: int) -> None:
        """A draft whose tokens belong to `cells` was verified; its first `accepted` tokens were accepted."""
        assert 0 <= accepted <= len(cells), f"{accepted} of {len(cells)} drafted tokens were accepted"
        for number, cell in enumerate(cells[: accepted + 1]):
            self._drafted[cell] += 1.0
            self._accepted[cell] += number < accepted
            self.rates[cell] = (PRIOR * self._first[cell] + self._accepted[cell]) / (PRIOR + self._drafted[cell])

    def fade(self) -> None:
        """New weights came: what was learnt counts less."""
        self._drafted *= FADE
        self._accepted *= FADE
        self.rates = (PRIOR * self._first + self._accepted) / (PRIOR + self._drafted)

    def check_invariants(self) -> None:
        """Assert what must hold between any two events."""
        assert (self._accepted <= self._drafted).all(), "more was accepted than drafted"
        assert ((self.rates >= 0.0) & (self.rates <= 1.0)).all(), "a rate is no share"

    def state(self) -> dict[str, Any]:
        """Everything, as JSON-ready data."""
        return {"drafted": self._drafted.tolist(), "accepted": self._accepted.tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state()`."""
        self._drafted, self._accepted = np.array(state["drafted"], float), np.array(state["accepted"], float)
        self.rates = (PRIOR * self._first + self._accepted) / (PRIOR + self._drafted)
