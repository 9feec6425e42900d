"""Costs of generation in a layout of engines, read from a profile: seconds in closed form in counts of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...plans.schema.levers import EngineLayout, RoundBalance, RoundHandOver, RoundPrefix, RoundTail, UpdateLayout
from ...profiles.draft_schema import DraftLaw
from ...profiles.laws.sync_law import tensors
from ...profiles.phase_schema import Rollout
from ...profiles.profile_schema import Profile, RoundCheck
from ...rounds.balancing.placement import BLOCK_TOKENS
from ...rounds.hand_over import HandOver
from .colocation import TurnsTake, sleep_and_wake_s, turns_of
from .job_pools import JobPools, Travel
from .memory_table import Engines, engines_on_host
from .update_costs import TrainCost

TRAINING_CROWDS = 0.3
"""Of what an engine more takes of the others' speed on a CPU's cores, what a trainer takes in its place: it trains a
part of the time, and has no actor whose messages the driver serves. Measured by benchmarks.streaming: 0.2 in one run,
0.4 in another."""


HELD_TOKENS = 1000
"""KV tokens of a sequence, at which the host's seconds of a step are compared with the device's: as a batch is full."""

TAIL_SEQUENCES, TAIL_TOKENS = 16, 512
"""A batch of a round's tail, by which engines alone and beside others are compared: samples of an engine, and KV tokens
of each."""


RATES = ("a", "b", "c", "prefill_s", "prefill_s_per_token", "prefill_s_per_token_squared")
"""What engines that are slower than others need more of, beside their curve and the host's seconds."""


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
            raise ValueError(f"no draft law covers drafts of {self.tokens} tokens; the laws cover 1 to {most} tokens")


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """Seconds of generation in one engine layout: a decode step of B sequences with K KV tokens takes base_s(B) + c K.

    `base_s` is `a + b B`, or, where `curve` has points, linear between them: batches of a mixture of experts and beyond
    the compute knee bend it. It never falls. Where the profile states what the host takes (`host`), the step is the
    longer of both, taken where a sequence holds `HELD_TOKENS`: simulators are of steps that are linear in KV. A step
    with drafts is charged by the token: its seconds over the tokens of a sample that it gives (draft_costs.py).

    Attributes:
        a, b, c: seconds, seconds per sequence, seconds per KV token.
        prefill_s, prefill_s_per_token: seconds to admit a request, and more per token to prefill.
        kv_capacity_tokens: KV tokens that one engine holds at most.
        max_sequences: the most sequences on one engine that were measured; plans do not go beyond.
        sync_s: weight transfer to all engines, with sleep and wake where trainers share their GPUs (colocation.py).
        turns_s: of `sync_s`, sleep and wake.
        turns: what turns take, by KV tokens of an engine and layout of trainers; None: `turns_s`, and moves as priced.
        travel: the way of weights over networks that the cluster names, by which `sync_beside` prices them; else None.
        host_bytes: host memory of the layout's engines, whether they are in use or not (memory_table.py).
        round_s: seconds that a round takes before anything is decoded.
        finish_s: seconds by which a sample that ends holds its engine up (its way through queues and reward workers).
        prefill_s_per_token_squared: seconds more per squared token to prefill.
        curve: (sequences, seconds), ascending from 1; empty: the line.
        host: seconds of the host in a step, and more per sequence, while the device works.
        measured_engines: engines that ran at once when it was measured; 0: as many as the layout has.
        block_tokens: KV tokens of a block of the engines' cache; whole blocks of a prompt are shared by its samples.
        sharing: when a prompt's samples are put on one engine; None: they are spread as the load has it.
        balance: by what samples start longest expected first; None: they start in order.
        drafts: what engines speculate on; None: they do not.
        device: with a curve, device_s of 0 to its last point, computed once (that of 0 is that of 1); else empty.
        by_batch: with drafts, for 0 to `up_to_sequences` samples, (seconds of a step without its KV, tokens of a sample
            that it gives): of a step with drafts where these pay, else of one without; else empty.
    """

    key: EngineLayout
    a: float
    b: float
    c: float
    prefill_s: float
    prefill_s_per_token: float
    kv_capacity_tokens: int
    max_sequences: int
    sync_s: float
    host_bytes: int
    round_s: float = 0
    finish_s: float = 0
    prefill_s_per_token_squared: float = 0
    curve: tuple[tuple[int, float], ...] = ()
    host: tuple[float, float] = (0, 0)
    measured_engines: int = 0
    block_tokens: int = 16
    sharing: RoundPrefix | None = None
    balance: RoundBalance | None = None
    turns_s: float = 0
    travel: Travel | None = None
    turns: Callable[[int, UpdateLayout], TurnsTake] | None = field(default=None, repr=False, compare=False)
    drafts: PlannedDrafts | None = None
    device: tuple[float, ...] = field(init=False, repr=False, compare=False)
    by_batch: tuple[tuple[float, float], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.curve:
            counts = np.arange(self.curve[-1][0] + 1)
            values = np.interp(counts, [n for n, _ in self.curve], [s for _, s in self.curve])
            object.__setattr__(self, "device", tuple(values.tolist()))
        else:
            object.__setattr__(self, "device", ())
        batches = range(self.up_to_sequences + 1) if self.drafts else ()
        object.__setattr__(self, "by_batch", tuple(map(self._of_batch, batches)))

    def _of_batch(self, sequences: int) -> tuple[float, float]:
        plain_s, drafts = self._plain_s(sequences), self.drafts
        if drafts is None or sequences == 0:
            return plain_s, 1.0
        step_s, emitted = self.drafted_step(drafts.law, drafts.tokens, sequences)
        return (step_s, emitted) if step_s < plain_s * emitted else (plain_s, 1.0)

    @property
    def up_to_sequences(self) -> int:
        """Sequences of the largest batch that decodes with drafts; 0 without."""
        return self.drafts.up_to_sequences if self.drafts else 0

    def in_first_epoch(self) -> DecodeCost:
        """The same engines while no prompt has earlier responses, from which drafts come."""
        drafts = self.drafts
        return self if drafts is None else replace(self, drafts=replace(drafts, law=drafts.first))

    def drafted_step(self, law: DraftLaw, tokens: int, sequences: int) -> tuple[float, float]:
        """(seconds of a step of so many samples that verifies drafts of at most `tokens`, without KV; tokens of a
        sample that it gives)."""
        verified = sequences * law.verified(tokens, sequences)
        low = math.floor(verified)
        low_s, high_s = self.device_s(low), self.device_s(low + 1)
        step_s = low_s + (verified - low) * (high_s - low_s) + self.host_s(sequences) + law.extra_s(sequences)
        return step_s, law.emitted(tokens, sequences)

    def sync_beside(self, trainers: UpdateLayout) -> float:
        """Seconds of a weight transfer from trainers of a layout, with sleep and wake."""
        way_s = self.sync_s - self.turns_s if self.travel is None else self.travel.seconds(trainers)
        return way_s + self.turns_beside(trainers)

    def turns_beside(self, trainers: UpdateLayout) -> float:
        """Seconds of a step in which the engines sleep and wake beside trainers of a layout."""
        return self.turns_s if self.turns is None else self.turns(self.kv_capacity_tokens, trainers).engines_s

    def update_beside(self, train: TrainCost) -> TrainCost:
        """Costs of an update beside the engines: of states that stay beside these nothing moves."""
        if self.turns is None or not train.moves_s:
            return train
        return train.with_moves(self.turns(self.kv_capacity_tokens, train.layout).trainers_s)

    def with_kv(self, tokens: int | None) -> DecodeCost:
        """The same engines with room for so many KV tokens; None: for all that fit, beside which trainers make room."""
        if tokens is None:
            return replace(self, turns=None)
        return replace(self, kv_capacity_tokens=min(tokens, self.kv_capacity_tokens))

    def slowed(self, factor: float) -> DecodeCost:
        """The same engines where decoding and prefill take `factor` times as long: beside a judge, for example."""
        if factor == 1.0:
            return self
        rates: dict[str, Any] = {rate: factor * getattr(self, rate) for rate in RATES}
        curve = tuple((count, factor * seconds) for count, seconds in self.curve)
        return replace(self, **rates, curve=curve, host=(factor * self.host[0], factor * self.host[1]))

    def base_s(self, sequences: int) -> float:
        """Seconds per generated token of a step of so many sequences, without their KV."""
        if not 0 <= sequences < len(self.by_batch):
            return self._plain_s(sequences)
        step_s, emitted = self.by_batch[sequences]
        return step_s / emitted

    def _plain_s(self, sequences: int) -> float:
        """Seconds of a step without drafts and KV: an engine that may draft never schedules ahead
        (vllm/config/vllm.py), so that the host's seconds come on top of the device's."""
        device_s, host_s = self.device_s(sequences), self.host_s(sequences)
        if self.drafts is not None and sequences:
            return device_s + host_s
        return max(device_s, host_s - HELD_TOKENS * self.c * sequences)

    def host_s(self, sequences: int) -> float:
        """Seconds of the host in a decode step with so many sequences."""
        return self.host[0] + self.host[1] * sequences

    def device_s(self, sequences: int) -> float:
        """Seconds on the device of a step with so many sequences and no KV; beyond the curve along its last slope."""
        if not self.curve:
            return self.a + self.b * sequences
        if sequences < len(self.device):
            return self.device[sequences]
        if len(self.curve) == 1:
            return self.curve[0][1]
        (low, low_s), (high, high_s) = self.curve[-2:]
        return high_s + (high_s - low_s) / (high - low) * (sequences - high)

    def steps_s(self, steps: int, sequences: int, kv_tokens: float) -> float:
        """Seconds of `steps` decode steps from `kv_tokens` on, during which no sample joins or leaves.

        Each step adds one KV token per sequence: sum over k < steps of base_s(B) + c (K + k B).
        """
        grown = steps * kv_tokens + sequences * (steps * (steps - 1) // 2)
        return steps * self.base_s(sequences) + self.kv_s(sequences) * grown

    def kv_s(self, sequences: int) -> float:
        """Seconds per generated token that each KV token adds to a step of so many sequences."""
        return self.c / self.by_batch[sequences][1] if 0 <= sequences < len(self.by_batch) else self.c

    def emitted(self, sequences: int) -> float:
        """Tokens of a sample that a decode step of so many sequences gives."""
        return self.by_batch[sequences][1] if 0 <= sequences < len(self.by_batch) else 1

    def admit_s(self, tokens: float, cached: float = 0) -> float:
        """Seconds to admit a request of so many tokens, of which the first `cached` need no prefill."""
        linear, squared = self.prefill_s_per_token, self.prefill_s_per_token_squared
        return self.prefill_s + (tokens - cached) * (linear + squared * (tokens + cached))

    def prefix_s(self, tokens: float) -> float:
        """Seconds to prefill the first `tokens` tokens of a prompt: what `admit_s` leaves out of those cached."""
        return tokens * (self.prefill_s_per_token + self.prefill_s_per_token_squared * tokens)


@dataclass(frozen=True, slots=True)
class ChangeCost:
    """A planned change of a round's engines before its end.

    Attributes:
        spec: which engines decode on, and when they begin.
        after: costs of those that decode on.
        takes_s: seconds from when nothing decodes on the engines that stop until others can decode in their place; 0
            where engines of the round go on.
    """

    spec: RoundHandOver | RoundTail
    after: DecodeCost
    takes_s: float = 0.0

    @property
    def is_tail(self) -> bool:
        """Whether other engines take the place of all those of the round."""
        return isinstance(self.spec, RoundTail)

    def machine(self, samples: int, engines: int) -> HandOver:
        """The decision of a round of so many samples that are to be trained, on so many engines."""
        return HandOver(self.spec, samples, engines)

    def numbers(self, engines: int) -> range:
        """Numbers of the engines that decode on; those of a tail follow the round's `engines`."""
        stay = self.spec.stay(engines)
        return range(engines, engines + stay) if self.is_tail else range(stay)


SENT_BYTES = {"cpu": 4, "cuda": 2}
"""Bytes of a parameter on its way, by kind of accelerator."""


def entry_of(profile: Profile, layout: EngineLayout) -> Rollout | None:
    """The profile's rollout entry by which an engine layout is priced; None if the profile has none for its TP size.

    The one that was measured with as many engines. Else, on GPUs, the nearest: that whose number of engines is off by
    the smallest factor, of two the larger. Engines on GPUs share nothing that decoding waits for, so one says what many
    do; engines on a CPU share its cores, and no other number of them tells.
    """
    alike = [entry for entry in profile.rollout if entry.tp == layout.tp]
    same_count = [entry for entry in alike if entry.engines == layout.engines]
    if same_count or not alike or profile.machine.kind != "cuda":
        return same_count[0] if same_count else None
    count = max(1, layout.engines)
    return min(alike, key=lambda e: (max(e.engines, count) / min(e.engines, count), -e.engines))


def least_kv_tokens(longest_tokens: int, draft_tokens: int, block_tokens: int) -> int:
    """KV tokens without which vLLM does not start: whole blocks for the longest sequence with a draft behind it, and
    the block that it keeps for itself (vllm/v1/core/block_pool.py)."""
    return (-(-(longest_tokens + draft_tokens) // block_tokens) + 1) * block_tokens


def engines_of(profile: Profile, layout: EngineLayout, kv_tokens: int | None = None) -> Engines:
    """The engines of a layout with the profile's entry for them, as the memory table takes them."""
    entry = entry_of(profile, layout)
    assert entry is not None, f"{layout} is priced by no entry"
    return Engines(entry, layout, kv_tokens)


def checks_of(profile: Profile, layout: EngineLayout) -> tuple[RoundCheck, ...]:
    """The profile's checks for a layout: its own, else those of the entry that prices it, else all checks."""
    entry = entry_of(profile, layout)
    for priced in (layout, entry.layout) if entry is not None else (layout,):
        layout_checks = tuple(check for check in profile.checks if check.layout == priced)
        if layout_checks:
            return layout_checks
    return profile.checks


def layout_cost(profile: Profile, layout: EngineLayout, pools: JobPools | None = None) -> DecodeCost | None:
    """Decode costs of an engine layout by its profile entry (`entry_of`); None without an entry. `pools`: as of
    `decode_cost`."""
    entry = entry_of(profile, layout)
    return None if entry is None else decode_cost(profile, entry, layout.engines, pools)


def decode_cost(
    profile: Profile, rollout: Rollout, engines: int | None = None, pools: JobPools | None = None
) -> DecodeCost:
    """Decode costs by one entry of `profile.rollout`, scaled to what whole rounds of the layout took (`checks_of`).

    `engines`: of how many engines; None, as many as the entry is of. `pools`: of the job; None: trainers take turns
    with the engines, and no network is named. Where no round was checked, the means over other layouts stand in (1 and
    0 without any). Raises ValueError for other engines than the entry's, unless on GPUs.
    """
    count = rollout.engines if engines is None else engines
    if count != rollout.engines and profile.machine.kind != "cuda":
        raise ValueError(f"{count} engines of tp {rollout.tp} were not measured, {rollout.engines} were")
    layout = EngineLayout(rollout.tp, count)
    checks = checks_of(profile, layout)
    factor = sum(c.factor for c in checks) / len(checks) if checks else 1.0
    overhead_s = sum(c.overhead_s for c in checks) / len(checks) if checks else 0.0
    per_sample_s = sum(c.overhead_s_per_sample for c in checks) / len(checks) if checks else 0.0
    apart = pools is not None and pools.apart
    turns_s = 0.0 if apart else sleep_and_wake_s(profile, rollout.tp)
    sync_s = (rollout.sync_apart or rollout.sync).p50 if apart else rollout.sync.p50
    return DecodeCost(
        key=layout,
        a=rollout.step_s,
        b=rollout.step_s_per_sequence,
        c=rollout.step_s_per_kv_token,
        prefill_s=rollout.prefill_s,
        prefill_s_per_token=rollout.prefill_s_per_token,
        kv_capacity_tokens=rollout.kv_capacity_tokens,
        max_sequences=max([1, *(p.sequences for p in rollout.points), *rollout.curve_sequences[-1:]]),
        sync_s=sync_s + turns_s,
        host_bytes=round(sum(engines_on_host(profile, Engines(rollout, layout), 1).values())),
        round_s=overhead_s,
        # Fitted over all engines' samples; here each engine pays for its own.
        finish_s=count * per_sample_s,
        prefill_s_per_token_squared=rollout.prefill_s_per_token_squared,
        curve=tuple(zip(rollout.curve_sequences, rollout.curve_s, strict=True)),
        host=(rollout.host_s, rollout.host_s_per_sequence),
        measured_engines=0 if count == rollout.engines else rollout.engines,
        block_tokens=rollout.kv_block_tokens or BLOCK_TOKENS[profile.machine.kind],
        turns_s=turns_s,
        turns=turns_of(profile, pools.rollout, Engines(rollout, layout)) if pools is not None and turns_s else None,
        travel=None if pools is None else _travel(profile, pools, layout, sync_s),
    ).slowed(factor)


def _travel(profile: Profile, pools: JobPools, engines: EngineLayout, constant_s: float) -> Travel | None:
    """The way of weights to a layout's engines; None where the profile's constant says it all: no network is named, or
    it was measured end to end in the pool in which it is planned."""
    networks = pools.networks
    if (networks.between if pools.apart else networks.within) is None:
        return None
    if profile.provenance == "measured" and not pools.apart:
        return None
    law = profile.train_law
    size_bytes = round(profile.sent_bytes(SENT_BYTES[profile.machine.kind]))
    return Travel(pools, engines, size_bytes, constant_s, None if law is None else tensors(law.shape))


def beside_training(cost: DecodeCost, alone: DecodeCost | None, stay: int) -> DecodeCost:
    """Costs of the engines that go on decoding after a hand-over, while the cores of the others train.

    Args:
        cost: of all engines, before the hand-over.
        alone: of as many engines as go on, with nothing beside them, on a CPU; None on GPUs, where engines do not slow
            each other down, so that their costs stay.
        stay: number of engines that go on.
    """
    # What a sample that ends costs is the driver's, which serves all engines in turn.
    cost = replace(cost, finish_s=cost.finish_s * stay / cost.key.engines)
    if alone is None or cost.curve or alone.curve:  # a CPU's steps are lines
        return cost
    # Engines are not slower alone. Where the profile says so, its entry for fewer engines is out of date: tuning
    # corrects the layout that a run used, and other layouts by a part only.
    crowded_s, alone_s = [each.steps_s(1, TAIL_SEQUENCES, TAIL_SEQUENCES * TAIL_TOKENS) for each in (cost, alone)]
    faster = min(1.0, crowded_s / alone_s)

    def between(rate: str) -> Any:
        return float(TRAINING_CROWDS * getattr(cost, rate) + (1.0 - TRAINING_CROWDS) * faster * getattr(alone, rate))

    changes: dict[str, Any] = {rate: between(rate) for rate in RATES}
    return replace(cost, **changes)
