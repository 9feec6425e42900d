"""Costs of an update in a layout of trainers: by a profile's measured entry, else by its training law."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ...plans.schema.levers import ReferencePlace, UpdateLayout
from ...profiles.laws.suspicions import measured_update, measured_updates
from ...profiles.laws.train_law import ATTENTION_BACKWARD, BACKWARD, FILL, IMBALANCE, fits_heads
from ...profiles.laws.train_layouts import RECOMPUTES, SIZES, fitted_memory, physics_of, train_layouts
from ...profiles.phase_schema import Train, TrainLaw
from ...profiles.profile_schema import Profile
from .colocation import reference_move_s, state_moves_s

Allowed = Mapping[str, Sequence[Any]]
"""By key of a layout of trainers the values that are considered; keys that are not in it may have any value."""

Runs = Callable[[UpdateLayout], bool]
"""Whether a layout is a candidate."""

LAW_DTYPE = "bfloat16"
"""What training laws are of: runs that they are fitted to compute in it, as their data sheets' rates do."""

ANY_LAYOUT: Allowed = MappingProxyType({})
"""All layouts are considered."""


@dataclass(frozen=True, slots=True)
class TrainCost:
    """One update in one layout: seconds, per token (prompts included), per sum over samples of squared tokens.

    Attributes:
        peak_bytes: accelerator memory of a rank; 0: not known.
        host_link_s: of `step_s`, what a law takes for states that move between GPU and host memory.
        moves_s: of `step_s`, states that make room for engines and come back.
        reference_s: of `step_s`, what the forward pass of a reference takes.
        reference_moved_s: of that, bringing the reference from host memory.
        early: whether ranks have room for their shards beside engines that decode, so that freed devices may train.
    """

    layout: UpdateLayout
    step_s: float
    per_token_s: float
    per_token_squared_s: float
    peak_bytes: int = 0
    host_link_s: float = 0
    moves_s: float = 0
    reference_s: float = 0
    reference_moved_s: float = 0
    early: bool = True

    def with_moves(self, moves_s: float) -> TrainCost:
        """The same where the moves of states take so long."""
        more_s = moves_s - self.moves_s
        law_s = self.host_link_s + more_s if self.host_link_s else 0.0
        return replace(self, step_s=self.step_s + more_s, host_link_s=law_s, moves_s=moves_s)

    def update_s(self, tokens: float, squared_tokens: float) -> float:
        """Seconds of an update on samples with these sums."""
        return self.step_s + (self.per_token_s * tokens + self.per_token_squared_s * squared_tokens)


def train_cost(train: Train, apart: bool = False) -> TrainCost:
    """Costs of one entry of `profile.train`, with the moves of its states if they were measured, unless trainers are on
    a pool of their own (`apart`)."""
    moves_s = 0.0 if apart or train.moves_s is None else train.moves_s
    return TrainCost(
        layout=train.layout,
        step_s=train.step_s + moves_s,
        per_token_s=train.step_s_per_token,
        per_token_squared_s=train.step_s_per_token_squared,
        peak_bytes=train.peak_bytes,
        moves_s=moves_s,
    )


def with_reference(profile: Profile, cost: TrainCost, place: ReferencePlace) -> TrainCost:
    """The update with the forward pass of a reference that is kept at `place` over all of its samples, which comes
    before it.

    By the profile's law a pass that only scores, as the law has it. A measured update took BACKWARD + 1 forward passes
    for a token, and one more where it recomputed; of attention's pairs it took more, as the law has them
    (profiles/laws/train_law.py), so that the reference takes one of so many parts.
    """
    if place == "none":
        return cost
    layout = cost.layout.model_copy(update={"reference": place})
    moved_s = reference_move_s(profile, layout)
    if measured_update(profile.train, layout) is None and profile.train_law is not None:
        physics = physics_of(profile.train_law)
        token, pair, micro = physics.scored(layout)
        micro_tokens = FILL * layout.micro_batch_tokens
        more_s = micro / 2 + IMBALANCE * math.log2(layout.dp) * (micro_tokens * token + micro) + moved_s
        per_token_s, per_pair_s = (token + micro / micro_tokens) / layout.dp, pair / layout.dp
        host_link_s = cost.host_link_s + moved_s
    else:
        again = layout.recompute != "none"
        per_token_s = cost.per_token_s / (1 + BACKWARD + (layout.recompute == "full"))
        per_pair_s = cost.per_token_squared_s / (1 + ATTENTION_BACKWARD + again)
        more_s, host_link_s = moved_s, cost.host_link_s
    return replace(
        cost,
        layout=layout,
        step_s=cost.step_s + more_s,
        per_token_s=cost.per_token_s + per_token_s,
        per_token_squared_s=cost.per_token_squared_s + per_pair_s,
        host_link_s=host_link_s,
        reference_s=more_s,
        reference_moved_s=moved_s,
    )


def train_cost_in(profile: Profile, layout: UpdateLayout, apart: bool = False) -> TrainCost:
    """Costs of an update in any layout by a profile's law, moving the optimizer's states included (colocation.py),
    unless trainers are on a pool of their own (`apart`).

    Raises ValueError when the layout cannot be, naming why, and without a law.
    """
    train_law = profile.train_law
    if train_law is None:
        raise ValueError("the profile has no training law")
    physics = physics_of(train_law)
    why = fits_heads(physics.architecture, layout, train_law.accelerators_per_node)
    if why is not None:
        raise ValueError(why)
    update, moves_s = physics.update(layout), 0.0 if apart else state_moves_s(profile, layout)
    cost = TrainCost(
        layout=layout,
        step_s=update.step_s + moves_s,
        per_token_s=update.per_token_s,
        per_token_squared_s=update.per_token_squared_s,
        peak_bytes=fitted_memory(train_law, layout).peak_bytes,
        host_link_s=physics.moments_s(layout) + moves_s,
        moves_s=moves_s,
    )
    return with_reference(profile, cost, layout.reference)


def measured_costs(profile: Profile, apart: bool, allowed: Allowed) -> list[TrainCost]:
    """Costs of the profile's measured entries that have allowed values, with the reference that is allowed."""
    places = allowed.get("reference", ("none",))
    costs = [
        with_reference(profile, train_cost(entry, apart), place)
        for entry in measured_updates(profile.train)
        for place in places
    ]
    return [cost for cost in costs if is_allowed(cost.layout, allowed)]


def train_costs(
    profile: Profile,
    accelerators: int,
    micro_batch_tokens: Sequence[int],
    allowed: Allowed = ANY_LAYOUT,
    memory_bytes: int | None = None,
    apart: bool = False,
) -> tuple[TrainCost, ...]:
    """Every allowed way to update on exactly `accelerators`: the profile's measured entries of that size, else its
    law's.

    Entries that were measured go before a law, which is off by more. `memory_bytes`: of an
    accelerator, where it has less than its data sheet says. `apart`: trainers are on a pool of their own.
    """
    measured = tuple(
        cost
        for cost in measured_costs(profile, apart, allowed)
        if cost.layout.micro_batch_tokens in micro_batch_tokens and cost.layout.accelerators == accelerators
    )
    if measured or profile.train_law is None:
        return measured
    train_law = profile.train_law
    layouts = train_layouts(train_law, accelerators, micro_batch_tokens, memory_bytes=memory_bytes, **allowed)
    return tuple(train_cost_in(profile, layout, apart) for layout in layouts)


def is_allowed(layout: UpdateLayout, allowed: Allowed) -> bool:
    """Whether every key of a layout has an allowed value."""
    return all(getattr(layout, key) in values for key, values in allowed.items())


def law_dtype_fault(profile: Profile, dtype: str, head_dtype: str | None = None) -> str | None:
    """Why a job that has the model in `dtype`, its head in `head_dtype`, cannot be priced by the profile's training
    law, and what to do; None if it can, or without a law."""
    if profile.train_law is None or (dtype == LAW_DTYPE and head_dtype is None):
        return None
    if dtype == LAW_DTYPE:
        return (
            f"the profile's training law is of {LAW_DTYPE} and the job's model.head_dtype is {head_dtype}; leave it "
            "out, or measure updates: rlplan profile"
        )
    computed = "" if dtype == "float32" else ", which trainers compute in float32"
    return (
        f"the profile's training law is of {LAW_DTYPE} and the job's model.dtype is {dtype}{computed}; write "
        f"model.dtype {LAW_DTYPE}, or measure updates: rlplan profile"
    )


def least_peak(
    train_law: TrainLaw, accelerators: int, budgets: Sequence[int], allowed: Allowed, runs: Runs
) -> int | None:
    """The least memory of a rank, in bytes, that any candidate on exactly `accelerators` takes; None if none divides
    the model.

    Args:
        budgets: micro-batches in tokens.
        allowed: values of the keys of a layout that are considered.
        runs: which of these layouts are candidates.
    """
    shape, per_node = train_law.shape, train_law.accelerators_per_node
    values: dict[str, Sequence[Any]] = {
        **dict.fromkeys(("tp", "pp", "cp", "sp"), SIZES),
        "ep": SIZES if shape.experts else (1,),
        "recompute": RECOMPUTES,
        "offload": (False, True),
        **allowed,
        "micro_batch_tokens": budgets,
    }
    peaks = []
    for choice in itertools.product(*values.values()):
        replica = UpdateLayout(dp=1, **dict(zip(values, choice, strict=True)))
        if accelerators % replica.replica:
            continue
        layout = replica.model_copy(update={"dp": accelerators // replica.replica})
        if fits_heads(shape, layout, per_node) is None and runs(layout):
            peaks.append(fitted_memory(train_law, layout).peak_bytes)
    return min(peaks, default=None)
