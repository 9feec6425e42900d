"""Costs of decoding with speculative drafts, or beside a judge on the same GPUs: laws over measured step costs.

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
import math
from dataclasses import dataclass, field

from ...plans.schema.levers import EngineLayout, RoundDrafts, SearchDrafts
from ...plans.yaml.errors import InputError
from ...profiles.draft_schema import DraftLaw, ProfiledDrafts, geometric
from .decode_costs import DecodeCost


@dataclass(frozen=True, slots=True)
class PlannedDrafts:
    """Speculative decoding (drafts) as a plan has it.

    Attributes:
        tokens: drafted a step at most.
        up_to_sequences: the largest batch that is speculated on.
        law: what drafts give and take, in epochs with a history.
        first: the same in the first epoch.
    """

    tokens: int
    up_to_sequences: int
    law: DraftLaw
    first: DraftLaw

    def __post_init__(self) -> None:
        most = min(self.law.most_tokens, self.first.most_tokens)
        if not 1 <= self.tokens <= most:
            raise ValueError(f"drafts of {self.tokens} tokens have no law, which tells of 1 to {most}")


@dataclass(frozen=True, slots=True)
class DraftedCost(DecodeCost):
    """A DecodeCost with drafts; made by `drafted`.

    Attributes:
        by_batch: for 0 to `up_to_sequences` samples, (seconds of a step without its KV, tokens of a sample that it
            gives): of a step with drafts where these pay, else of one without.
    """

    drafts: PlannedDrafts | None = None
    by_batch: tuple[tuple[float, float], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        DecodeCost.__post_init__(self)
        batches = range(self.up_to_sequences + 1)
        object.__setattr__(self, "by_batch", tuple(self._of_batch(sequences) for sequences in batches))

    def _of_batch(self, sequences: int) -> tuple[float, float]:
        drafts = self.drafts
        if drafts is None or sequences == 0:
            return DecodeCost.base_s(self, sequences), 1.0
        plain_s = self._plain_s(sequences)
        step_s, emitted = drafted_step(self, drafts.law, drafts.tokens, sequences)
        return (step_s, emitted) if step_s < plain_s * emitted else (plain_s, 1.0)

    def _plain_s(self, sequences: int) -> float:
        """Seconds of a step without drafts: an engine that may draft never schedules ahead (vllm/config/vllm.py)."""
        if self.drafts is None:
            return DecodeCost.base_s(self, sequences)
        return self.device_s(sequences) + self.host_s(sequences)

    @property
    def up_to_sequences(self) -> int:
        """Sequences of the largest batch that decodes with drafts."""
        return self.drafts.up_to_sequences if self.drafts else 0

    def base_s(self, sequences: int) -> float:
        """Seconds per generated token of a step of so many sequences, without their KV."""
        if not 0 <= sequences < len(self.by_batch):
            return self._plain_s(sequences)
        step_s, emitted = self.by_batch[sequences]
        return step_s / emitted

    def kv_s(self, sequences: int) -> float:
        """Seconds per generated token that each KV token adds."""
        return self.c / self.by_batch[sequences][1] if 0 <= sequences < len(self.by_batch) else self.c

    def emitted(self, sequences: int) -> float:
        """Tokens of a sample that a decode step of so many sequences gives."""
        return self.by_batch[sequences][1] if 0 <= sequences < len(self.by_batch) else 1

    def in_first_epoch(self) -> DraftedCost:
        """The same engines while no prompt has earlier responses."""
        assert self.drafts is not None, "made by `drafted`"
        return dataclasses.replace(self, drafts=dataclasses.replace(self.drafts, law=self.drafts.first))


def drafted(cost: DecodeCost, drafts: PlannedDrafts) -> DraftedCost:
    """Decode costs `cost` with drafts."""
    fields = {f.name: getattr(cost, f.name) for f in dataclasses.fields(cost) if f.init}
    return DraftedCost(**{**fields, "drafts": drafts})


def first_epoch_cost(cost: DecodeCost) -> DecodeCost:
    """Costs while no prompt has earlier responses; those without drafts are the same."""
    return cost.in_first_epoch() if isinstance(cost, DraftedCost) else cost


def drafted_step(cost: DecodeCost, law: DraftLaw, tokens: int, sequences: int) -> tuple[float, float]:
    """(seconds of a step of so many samples that verifies drafts of at most `tokens`, without KV; tokens of a sample
    that it gives)."""
    verified = sequences * law.verified(tokens, sequences)
    low = math.floor(verified)
    low_s, high_s = cost.device_s(low), cost.device_s(low + 1)
    step_s = low_s + (verified - low) * (high_s - low_s) + cost.host_s(sequences) + law.extra_s(sequences)
    return step_s, law.emitted(tokens, sequences)


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
) -> DraftedCost:
    """`cost` with the drafts that a plan has. Raises InputError as `draft_laws`."""
    laws = draft_laws(measured, allowed, planned.tokens)
    return drafted(cost, PlannedDrafts(planned.tokens, planned.up_to_sequences, *laws))


def draft_lengths(measured: ProfiledDrafts | None, allowed: SearchDrafts | None) -> tuple[int, ...]:
    """Tokens of drafts that a job considers: those that it names; where it names none, powers of two up to what the
    profile has measured, and that; empty where drafts are not considered."""
    if allowed is not None and allowed.tokens is not None:
        return allowed.tokens
    if measured is None:
        return ()
    most = measured.most_tokens
    return tuple(sorted({most, *(2**power for power in range(1, 8) if 2**power < most)}))


def worthwhile(cost: DecodeCost, law: DraftLaw, tokens: int, kv_tokens: float = 0.0) -> int:
    """The largest batch, of sequences with `kv_tokens` each, that drafts make faster; 0 if none."""
    for sequences in range(cost.max_sequences, 0, -1):
        step_s, emitted = drafted_step(cost, law, tokens, sequences)
        kv_s = DecodeCost.kv_s(cost, sequences) * sequences * kv_tokens
        if step_s + kv_s < (DecodeCost.base_s(cost, sequences) + kv_s) * emitted:
            return sequences
    return 0


def affordable(cost: DecodeCost, tokens: int, law: DraftLaw, first: DraftLaw | None = None) -> DraftedCost | None:
    """`cost` with drafts up to the largest batch that is faster by them whatever KV it holds; None if none is.

    A step that verifies stays within the batches that were measured: beyond them lies a knee that was not measured.
    """
    within = cost.max_sequences
    while within and within * law.verified(tokens, within) > cost.max_sequences:
        within -= 1
    most = min(worthwhile(cost, law, tokens), within)
    return drafted(cost, PlannedDrafts(tokens, most, law, first or law)) if most else None


def drafted_like(cost: DecodeCost, other: DraftedCost) -> DecodeCost:
    """`cost` with the drafts of `other`, up to as large a batch at most; as it is if none is faster by them."""
    assert other.drafts is not None, "made by `drafted`"
    found = affordable(cost, other.drafts.tokens, other.drafts.law, other.drafts.first)
    if found is None:
        return cost
    most = min(found.up_to_sequences, other.up_to_sequences)
    return drafted(cost, dataclasses.replace(other.drafts, up_to_sequences=most))


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
        host=(cost.host[0] * factor, cost.host[1] * factor),
    )


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
