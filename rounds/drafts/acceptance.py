"""A table of how often drafted tokens are accepted, which learns from verified drafts.

A drafted token belongs to a *cell*: the length of the context that it followed before, how often that context occurred,
and the share of these occurrences that the token followed. The share alone is a bad estimate: a token that followed a
context once may follow it always, or never again. So a cell's rate begins at its share and moves to what is measured.

Invariants:
- the table depends on the verified drafts and their order, never on a clock;
- of a draft only the tokens up to the first rejected one count: nothing is known of the others;
- `state()` holds all of it, as JSON-ready data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compiled.numba_options import compiled

CONTEXT = 16
"""The longest context that is looked up, in tokens; longer ones gave no better estimates."""

_LENGTHS = 7  # of contexts: 1, 2, 3, 4 to 5, 6 to 8, 9 to 15, 16
_OCCURRENCES = 4  # 1, 2 to 3, 4 to 15, more
_SHARES = 5  # below 0.4, 0.7, 0.9, 1, and 1
CELLS = _LENGTHS * _OCCURRENCES * _SHARES

_MIDDLES = (0.25, 0.55, 0.8, 0.95, 1.0)
"""Middle of each class of shares."""

PRIOR = 8.0
"""Weight of the first estimate of a rate, in drafted tokens."""

FADE = 0.9
"""Factor on the weight of earlier drafts when new weights come: the policy drifts slowly."""


@compiled
def cell_of(context: int, occurrences: int, share: float) -> int:
    """The cell of a token that followed a `share` of the `occurrences` of a context of `context` tokens."""
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
    """Rates before any draft was verified: the share, reduced towards 0 if it rests on few occurrences."""
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
        """New weights came: earlier drafts count less."""
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
