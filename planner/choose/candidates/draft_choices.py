"""Which lengths of drafts are worth simulating on which engines, and why the others are not."""

from __future__ import annotations

from ....plans.schema.sections.layouts import EngineLayout
from ....plans.schema.sections.levers import SearchDrafts
from ....profiles.drafts.draft_law import DraftLaw
from ....profiles.drafts.draft_schema import ProfiledDrafts
from ...costs.decode_costs import DecodeCost
from ...costs.draft_costs import DraftedCost, affordable, draft_laws, draft_lengths, drafted_step


def drafted_costs(
    allowed: SearchDrafts | None, measured: ProfiledDrafts | None, decode: dict[EngineLayout, DecodeCost]
) -> tuple[dict[tuple[EngineLayout, int], DraftedCost], list[str]]:
    """(costs with drafts by layout and tokens of a draft, where they make some batch faster; a line for each layout and
    length where they make none faster). Raises InputError if the job names drafts that nothing prices."""
    costs: dict[tuple[EngineLayout, int], DraftedCost] = {}
    refused: list[str] = []
    for tokens in draft_lengths(measured, allowed):
        law, first = draft_laws(measured, allowed, tokens)
        for layout, cost in decode.items():
            found = affordable(cost, tokens, law, first)
            if found is None:
                refused.append(_does_not_pay(cost, law, tokens))
            else:
                costs[layout, tokens] = found
    return costs, refused


def _does_not_pay(cost: DecodeCost, law: DraftLaw, tokens: int) -> str:
    """Text on drafts that pay in no batch, by that in which they come closest to it."""

    def ratio(sequences: int) -> float:
        step_s, emitted = drafted_step(cost, law, tokens, sequences)
        return step_s / DecodeCost.base_s(cost, sequences) / emitted

    best = min(range(1, cost.max_sequences + 1), key=ratio)
    step_s, emitted = drafted_step(cost, law, tokens, best)
    return (
        f"drafts of {tokens} tokens do not pay on {cost.key}: a step of {best} samples takes "
        f"{step_s / DecodeCost.base_s(cost, best):.2f} of one without drafts and gives {emitted:.2f} tokens a sample"
    )
