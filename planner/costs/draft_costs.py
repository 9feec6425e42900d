"""Costs of decoding with speculative drafts, or beside a judge on the same GPUs: laws over measured step costs.

Drafts of g tokens whose tokens are accepted with probability a each, until one is not, give (1 - a^(g+1)) / (1 - a)
tokens a step on average (RhymeRL, arXiv 2508.18588). A step then runs B (g + 1) tokens through the model, which costs
what a step of so many sequences costs (flat below the compute knee, then rising: the curve of DecodeCost knows where),
and reads the KV once. The simulator counts tokens, so a drafted step is charged by the token: its seconds over the
tokens that it gives. Larger batches lose by drafts, so these are used up to a batch size only.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from .decode_costs import DecodeCost


@dataclass(frozen=True, slots=True)
class Drafts:
    """Speculative decoding (drafts) as a plan has it.

    Attributes:
        tokens: g, drafted a step.
        acceptance: a, of each token given that those before it were accepted; within [0, 1).
        up_to_sequences: the largest batch that is speculated on.
        draft_s: seconds that drafting itself adds to a step.
    """

    tokens: int
    acceptance: float
    up_to_sequences: int
    draft_s: float = 0.0

    def __post_init__(self) -> None:
        if self.tokens < 1 or not 0 <= self.acceptance < 1 or self.draft_s < 0:
            raise ValueError("drafts have at least 1 token, an acceptance within [0, 1) and no negative seconds")

    @property
    def emitted(self) -> float:
        """Mean tokens that a decode step with drafts gives per sequence."""
        return (1 - self.acceptance ** (self.tokens + 1)) / (1 - self.acceptance)


@dataclass(frozen=True, slots=True)
class DraftedCost(DecodeCost):
    """A DecodeCost with drafts; made by `drafted`."""

    drafts: Drafts | None = None

    @property
    def up_to_sequences(self) -> int:
        """Sequences of the largest batch that decodes with drafts."""
        return self.drafts.up_to_sequences if self.drafts else 0

    def _uses(self, sequences: int) -> Drafts | None:
        drafts = self.drafts
        return drafts if drafts is not None and 1 <= sequences <= drafts.up_to_sequences else None

    def base_s(self, sequences: int) -> float:
        """Seconds per generated token of a step of so many sequences, without their KV."""
        drafts = self._uses(sequences)
        if drafts is None:
            return DecodeCost.base_s(self, sequences)
        verified = DecodeCost.base_s(self, sequences * (drafts.tokens + 1))
        return (verified + drafts.draft_s) / drafts.emitted

    def kv_s(self, sequences: int) -> float:
        """Seconds per generated token that each KV token adds."""
        drafts = self._uses(sequences)
        return self.c if drafts is None else self.c / drafts.emitted


def drafted(cost: DecodeCost, drafts: Drafts) -> DraftedCost:
    """Decode costs `cost` with drafts."""
    fields = {f.name: getattr(cost, f.name) for f in dataclasses.fields(cost) if f.init}
    return DraftedCost(**{**fields, "drafts": drafts})


def worthwhile(cost: DecodeCost, tokens: int, acceptance: float, kv_tokens: float = 0.0, draft_s: float = 0.0) -> int:
    """The largest batch, of sequences with `kv_tokens` each, up to which drafts make every batch faster; 0 if none."""
    drafts = Drafts(tokens, acceptance, cost.max_sequences, draft_s)
    fast = drafted(cost, drafts)
    for count in range(1, cost.max_sequences + 1):
        kv = count * kv_tokens
        if fast.base_s(count) + fast.kv_s(count) * kv >= cost.base_s(count) + cost.kv_s(count) * kv:
            return count - 1
    return cost.max_sequences


def affordable(cost: DecodeCost, tokens: int, acceptance: float) -> DraftedCost | None:
    """`cost` with drafts for batches that are faster by them whatever KV they hold; None if not even one sequence is.

    A step that verifies stays within the batches that were measured: beyond them lies a knee that was not measured.
    """
    most = min(worthwhile(cost, tokens, acceptance), cost.max_sequences // (tokens + 1))
    return drafted(cost, Drafts(tokens, acceptance, most)) if most else None


def beside_judge(cost: DecodeCost, factor: float) -> DecodeCost:
    """`cost` where a judge on the same GPUs slows decoding and prefill by `factor` (at least 1).

    A judge with workers of its own is a RewardCost; what it takes from the rollout is this factor.
    """
    if factor < 1:
        raise ValueError(f"a judge does not speed decoding up: factor {factor}")
    return slowed(cost, factor)


def slowed(cost: DecodeCost, factor: float) -> DecodeCost:
    """`cost` with decoding and prefill that take `factor` times as long."""
    if factor == 1.0:
        return cost
    return dataclasses.replace(
        cost,
        a=cost.a * factor,
        b=cost.b * factor,
        c=cost.c * factor,
        prefill_s=cost.prefill_s * factor,
        prefill_s_per_token=cost.prefill_s_per_token * factor,
        prefill_s_per_token_squared=cost.prefill_s_per_token_squared * factor,
        curve=tuple((count, seconds * factor) for count, seconds in cost.curve),
    )
