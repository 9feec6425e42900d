"""Drafts by an acceptance that is assumed, the same in all epochs."""

from rlplan.planner.costs.decode_costs import PlannedDrafts
from rlplan.profiles.draft_schema import geometric


def assumed(tokens: int, acceptance: float, up_to_sequences: int) -> PlannedDrafts:
    """Drafts of `tokens` tokens, each of which is accepted with one chance if those before it were."""
    law = geometric(tokens, acceptance)
    return PlannedDrafts(tokens, up_to_sequences, law, law)
