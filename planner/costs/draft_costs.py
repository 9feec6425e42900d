"""What drafts make of the costs of decoding: where they pay, by laws over measured step costs.

A step with drafts runs, for each sample, its last token and those of its draft through the model, which costs what a
step of so many sequences costs (flat below the compute knee, then rising: the curve of DecodeCost knows where), and
what proposing takes; it reads the KV once. How many tokens it verifies and gives is a DraftLaw
(profiles/draft_schema.py), which has been measured, or which a job assumes. The simulator counts tokens, so a
drafted step is charged by the token: its seconds over the tokens that it gives.

An engine leaves drafts out where they do not pay (rounds/drafts/draft_account.py), and so does the cost: a batch costs
the less of a step with and of one without. The first epoch has a law of its own: it drafts from less.
"""

from __future__ import annotations

import dataclasses

from ...plans.schema.levers import EngineLayout, RoundDrafts, SearchDrafts
from ...plans.yaml.errors import InputError
from ...profiles.draft_schema import DraftLaw, ProfiledDrafts, geometric
from .decode_costs import DecodeCost, PlannedDrafts


def draft_laws(
    measured: ProfiledDrafts | None, allowed: SearchDrafts | None, tokens: int | None = None
) -> tuple[DraftLaw, DraftLaw]:
    """(law of drafts in epochs with a history, in the first), of drafts of `tokens` (None: of those that a job names or
    a profile has measured): by the acceptance that a job assumes, else as the profile has measured it. Raises
    InputError if neither says anything of them."""
    if allowed is not None and allowed.acceptance is not None:
        law = geometric(tokens or max(allowed.tokens or (1,)), allowed.acceptance)
        return law, law
    if measured is None:
        raise InputError(
            "neither the profile nor the job says how many tokens of drafts are accepted; profile again (rlplan "
            "profile measures it), or assume a chance: search.drafts: {tokens: [2, 4], acceptance: 0.6} in the job"
        )
    if tokens is not None and tokens > measured.most_tokens:
        raise InputError(
            f"drafts of {tokens} tokens were not measured, those of up to {measured.most_tokens} were; write at most "
            "so many, or assume an acceptance (search.drafts in the job)"
        )
    return measured.law(), measured.law(first_epoch=True)


def drafted_as_planned(
    cost: DecodeCost, planned: RoundDrafts, measured: ProfiledDrafts | None, allowed: SearchDrafts | None
) -> DecodeCost:
    """`cost` with the drafts that a plan has. Raises InputError as `draft_laws`."""
    laws = draft_laws(measured, allowed, planned.tokens)
    return dataclasses.replace(cost, drafts=PlannedDrafts(planned.tokens, planned.up_to_sequences, *laws))


def draft_lengths(measured: ProfiledDrafts | None, allowed: SearchDrafts | None) -> tuple[int, ...]:
    """Tokens of drafts that a job considers: those that it names; where it names none, powers of two up to what the
    profile has measured, and that; empty where drafts are not considered."""
    if allowed is not None and allowed.tokens is not None:
        return allowed.tokens
    if measured is None:
        return ()
    most = measured.most_tokens
    return tuple(sorted({most, *(2**power for power in range(1, 8) if 2**power < most)}))


def worthwhile(cost: DecodeCost, law: DraftLaw, tokens: int) -> int:
    """The largest batch that drafts make faster without any KV, which is read once a step; 0 if none."""
    for sequences in range(cost.max_sequences, 0, -1):
        step_s, emitted = cost.drafted_step(law, tokens, sequences)
        if step_s < cost.base_s(sequences) * emitted:
            return sequences
    return 0


def affordable(cost: DecodeCost, tokens: int, law: DraftLaw, first: DraftLaw | None = None) -> DecodeCost | None:
    """`cost` with drafts up to the largest batch that is faster by them whatever KV it holds; None if none is.

    A step that verifies stays within the batches that were measured: beyond them lies a knee that was not measured.
    """
    within = cost.max_sequences
    while within and within * law.verified(tokens, within) > cost.max_sequences:
        within -= 1
    most = min(worthwhile(cost, law, tokens), within)
    return dataclasses.replace(cost, drafts=PlannedDrafts(tokens, most, law, first or law)) if most else None


def drafted_like(cost: DecodeCost, other: PlannedDrafts) -> DecodeCost:
    """`cost` with drafts like `other`, up to as large a batch at most; as it is if none is faster by them."""
    found = affordable(cost, other.tokens, other.law, other.first)
    if found is None:
        return cost
    most = min(found.up_to_sequences, other.up_to_sequences)
    return dataclasses.replace(cost, drafts=dataclasses.replace(other, up_to_sequences=most))


def drafted_costs(
    allowed: SearchDrafts | None, measured: ProfiledDrafts | None, decode: dict[EngineLayout, DecodeCost]
) -> tuple[dict[tuple[EngineLayout, int], DecodeCost], list[str]]:
    """(costs with drafts by layout and tokens of a draft, where they make some batch faster; a line for each layout and
    length where they make none faster). Raises InputError if the job names drafts that nothing prices."""
    costs: dict[tuple[EngineLayout, int], DecodeCost] = {}
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
        step_s, emitted = cost.drafted_step(law, tokens, sequences)
        return step_s / cost.base_s(sequences) / emitted

    best = min(range(1, cost.max_sequences + 1), key=ratio)
    step_s, emitted = cost.drafted_step(law, tokens, best)
    return (
        f"drafts of {tokens} tokens do not pay on {cost.key}: a step of {best} samples takes "
        f"{step_s / cost.base_s(best):.2f} of one without drafts and gives {emitted:.2f} tokens a sample"
    )
