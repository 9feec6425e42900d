"""The setting that all columns of a solve share, and how many sequences and KV tokens their engines have room for.

A plan says how many KV tokens its engines have room for before any of its rounds is simulated, so that all of them are
simulated with that room. Loads of an engine are drawn from the length model, on numbers of their own: a plan's draws do
not change what it has room for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ....plans.schema.levers import EngineLayout, RoundBalance, RoundHandOver, RoundTail
from ....plans.schema.predicted import StepNoise
from ....rounds.balancing.length_estimates import NOTHING
from ....rounds.machines.exact import MAX_DRAWS, most_draws_at_once
from ....rounds.round_spec import Mode
from ...choose.candidates.round_kinds import LongKey, ShortKey, defers
from ...costs.decode_costs import ChangeCost, DecodeCost, least_kv_tokens
from ...costs.reward_costs import RewardCost
from ...costs.round_costs import RoundCosts
from ...costs.update_costs import TrainCost
from ...lengths.draws import Draws, EarlierEpoch, Numbers, Tokens
from ...lengths.length_model import LengthModel
from ..reference_round import Observe
from ..round_arrays import RoundDraws
from .queue_rounds import QueueStates
from .step_noise import SILENT

# The numbers by which a plan balances a round's samples by history (rounds/balancing/), from a layout's costs.

DIGITS = 4


def balance_of(cost: DecodeCost) -> RoundBalance:
    """The numbers of rounds on a layout. Where its decode steps bend with the batch, the line through their ends."""
    b = (cost.base_s(cost.max_sequences) - cost.base_s(1)) / max(cost.max_sequences - 1, 1)
    return RoundBalance(
        by="history",
        step_s=_rounded(max(cost.base_s(1) - b, 1e-9)),
        step_s_per_sequence=_rounded(b),
        step_s_per_kv_token=_rounded(cost.kv_s(1)),
        kv_capacity_tokens=cost.kv_capacity_tokens,
    )


def _rounded(value: float) -> float:
    """To as many digits as costs are known to, so that plans are easy to read."""
    return float(f"{value:.{DIGITS}g}")


KV_MARGIN = 1.25
"""Times what an engine's samples are seen to hold at once that it has room for. What they hold is random, and the
model's lengths are those of a policy that goes on learning. Too little room only makes samples wait, or be prefilled
again, which is simulated; room that is never used costs nothing but what else could have stayed on the accelerator."""

_GROUPS = 4096
"""Groups that loads are drawn from."""

KV_LOADS = 32
"""Engines' loads that are drawn to see what samples hold at once; the fullest of them counts."""

Load = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Prompt tokens and response tokens of each sample, both of shape (`KV_LOADS`, samples of a load)."""


def kv_peak(prompt_tokens: NDArray[np.int64], tokens: NDArray[np.int64], waits: bool = False) -> int:
    """The most KV tokens that an engine's samples hold at once: of several loads, the fullest.

    Samples that begin together grow by a token a step, so the most is held as one of them ends, by it and those that
    are longer: at `t` tokens, sum over samples of at least `t` tokens of `prompt + t`. What prompts share is not
    counted.

    Args:
        prompt_tokens, tokens: of each sample, shape (loads, samples of a load).
        waits: further samples begin as others end, so that all may be at their ends at once.
    """
    if waits:
        return int((prompt_tokens + tokens).sum(axis=1).max())
    order = np.argsort(tokens, axis=1)
    ends, prompts = (np.take_along_axis(each, order, axis=1) for each in (tokens, prompt_tokens))
    running = np.arange(tokens.shape[1], 0, -1)
    of_prompts = prompts[:, ::-1].cumsum(axis=1)[:, ::-1]
    return int((of_prompts + running * ends).max())


@dataclass(frozen=True, slots=True)
class Loads:
    """Draws loads of groups of `group_size` samples, cut at `cap_tokens`, of which an engine has `together` each."""

    model: LengthModel
    group_size: int
    cap_tokens: int
    together: int

    def of_groups(self, samples: int, limit_tokens: int, longer: float = 0.0) -> Load:
        """Loads of so many samples, which end at the limit at the latest; `longer`: only of groups whose longest sample
        has more tokens."""
        model, rng = self.model, np.random.default_rng(KV_LOADS)
        groups = rng.integers(len(model.tables), size=max(_GROUPS, samples))
        tokens = np.minimum(model.draw_many(groups, (self.group_size,), rng), self.cap_tokens)
        of_groups = tokens.max(axis=1)
        # The longest there are, where none is longer.
        kept = np.flatnonzero(of_groups > min(longer, int(of_groups.max()) - 1))
        places = kept[rng.integers(len(kept), size=(KV_LOADS, -(-samples // self.together)))]
        drawn = np.minimum(tokens[places][..., : self.together], limit_tokens)
        prompts = np.broadcast_to(model.prompt_tokens[groups[places]][..., None], drawn.shape)
        return prompts.reshape(KV_LOADS, -1)[:, :samples], drawn.reshape(KV_LOADS, -1)[:, :samples]

    def of_long_round(self, key: LongKey, at_once: int, target: int, draws: int | None = None) -> Load:
        """Loads of a long round of `target` prompts: samples of deferred groups that run to their end; in `exact`,
        beside them draws that end at the cutoff at the latest. `at_once`: of an engine at most; `draws`: that a queue
        issues."""
        rule, model, size = key.deferral, self.model, self.group_size
        whole = min(at_once, -(-size * target // key.layout.engines))
        if rule.mode != "exact" or rule.cutoff_tokens is None:
            share = rule.long_share or max(0.0, 1.0 - target / max(rule.prompts, 1))
            (limit,) = model.group_max_quantiles(size, (1.0 - share,))
            return self.of_groups(whole, self.cap_tokens, limit - 1)
        long = 1.0 - model.groups_within(rule.cutoff_tokens, size)
        # Of a prompt that is put off: a wave of draws begins when all before it were short (most_draws_at_once).
        weights, drawn, beside = long / max(long.sum(), 1e-12), key.copies, float(key.copies)
        while drawn < MAX_DRAWS:
            beside = max(beside, drawn * float((weights * (1.0 - long) ** drawn).sum()))
            drawn *= 2
        if draws is not None:
            beside = draws / target - 1.0
        further = min(at_once - whole, math.ceil(beside * whole))
        prompts, tokens = self.of_groups(whole, self.cap_tokens, rule.cutoff_tokens)
        if further <= 0:
            return prompts, tokens
        more = self.of_groups(further, rule.cutoff_tokens)
        return np.hstack([prompts, more[0]]), np.hstack([tokens, more[1]])


# Prompts that a column is fed with at once: an epoch of its own.
FEED = 768

CELL_PROMPTS = 128
"""Prompts of the cells that large rounds are simulated by (cells.py)."""


BALANCED_SHARE = 2
"""Times its part of a round's samples that an engine may decode at once where samples are balanced by history: one that
has short ones gets more of them."""


@dataclass(frozen=True)
class Setting:
    """The setting that all columns of a solve share: the step's size, costs and draws.

    `watch` is called before each simulated round and returns its observer; a round that ran out of rows is begun anew.
    `max_prompt_tokens`: of the longest prompt that the job takes; 0: of the longest that was traced.
    `other_rewards`: scoring costs of the reward choices 1, 2, ... (reward_choices.py); `reward` are those of choice 0.
    `as_written`: kinds of round of a plan that are not what this setting makes of their keys (refresh.py).
    `cell_prompts`: rounds of more than twice as many prompts are simulated by cells of about so many (cells.py); 0: all
    rounds are simulated whole. `streams`: trainers have a pool of their own, and train complete groups of a round while
    its others are decoded. `change`: costs of a change of engines, from those of the round, the change that is planned
    and the number of reward workers. `prompts`: of the data; None: so many that no epoch's end matters.
    """

    target: int
    group_size: int
    cap_tokens: int
    dynamic_sampling: bool
    decode: dict[EngineLayout, DecodeCost]
    reward: RewardCost
    draws: Draws
    drafted: dict[tuple[EngineLayout, int], DecodeCost] = field(default_factory=dict)
    watch: Callable[[], Observe] | None = None
    noise: Callable[[EngineLayout, TrainCost], StepNoise] = lambda layout, train: SILENT  # of a step, by the machine
    max_prompt_tokens: int = 0
    as_written: Mapping[ShortKey | LongKey, RoundCosts] = field(default_factory=dict)
    cell_prompts: int = CELL_PROMPTS
    streams: bool = False
    crowding: Callable[[EngineLayout, int], float] = lambda layout, workers: 1.0  # of decoding, beside reward workers
    other_rewards: tuple[RewardCost, ...] = ()
    prompts: int | None = None
    change: Callable[[DecodeCost, RoundHandOver | RoundTail, int], ChangeCost] = lambda cost, spec, workers: ChangeCost(
        spec, cost
    )

    @property
    def simulated_target(self) -> int:
        """P, or, where rounds are simulated by cells, as many prompts as a cell trains at most."""
        return min(self.target, 2 * self.cell_prompts) if self.cell_prompts else self.target

    @property
    def rewards_differ(self) -> bool:
        """Whether some choice of rewards takes unlike seconds for samples, which are drawn then."""
        return any(cost.executions is not None for cost in (self.reward, *self.other_rewards))

    def cost_of(self, key: ShortKey | LongKey) -> DecodeCost:
        """Decode costs of a kind of round."""
        if key not in self.of_costs:
            self.of_costs[key] = self._cost_of(key)
        return self.of_costs[key]

    def _cost_of(self, key: ShortKey | LongKey) -> DecodeCost:
        if key in self.as_written:
            return self.as_written[key].decode
        cost = self._on_device(key).slowed(self.crowding(key.layout, self.reward_of(key).on_cores))
        cost = cost.with_kv(self.kv_tokens(key))
        if isinstance(key, LongKey) and key.tail:  # for engines that take all that is free trainers make room
            cost = replace(cost, turns=None)
        # Samples that start where they would end soonest are not kept with their prompts.
        return replace(cost, sharing=None, balance=balance_of(cost)) if key.balanced else cost

    def _on_device(self, key: ShortKey | LongKey) -> DecodeCost:
        """Decode costs of the engines of a kind of round, with all the KV that they have room for."""
        return self.drafted[key.layout, key.draft_tokens] if key.draft_tokens else self.decode[key.layout]

    def in_first_epoch(self) -> Setting:
        """The same while no prompt has earlier responses, from which drafts come."""
        written = {key: costs.in_first_epoch() for key, costs in self.as_written.items()}
        drafted = {key: cost.in_first_epoch() for key, cost in self.drafted.items()}
        return dataclasses.replace(self, drafted=drafted, as_written=written)

    def reward_of(self, key: ShortKey | LongKey) -> RewardCost:
        """Scoring costs of a kind of round."""
        return self.reward if key.reward == 0 else self.other_rewards[key.reward - 1]

    def change_of(self, key: LongKey) -> ChangeCost | None:
        """The change of engines of a kind of long round, with how much samples grow that still run then, by the length
        model: the mean of what lengths have beyond the share that has ended, and beyond the cutoff."""
        share = key.hand_over or key.tail
        if not share:
            return None
        lengths = np.minimum(self.draws.model.tables.ravel(), self.cap_tokens)
        reached = max(float(np.quantile(lengths, share)), key.deferral.cutoff_tokens or 0)
        beyond = lengths[lengths > reached]
        growth = round(float(beyond.mean()) - reached) if len(beyond) else 0
        if key.hand_over:
            spec: RoundHandOver | RoundTail = RoundHandOver(
                engines=key.freed_engines, at_finished=share, growth_tokens=growth
            )
        else:
            assert key.tail_layout is not None
            tp, engines = key.tail_layout
            spec = RoundTail(engines=engines, tp=tp, at_finished=share, growth_tokens=growth)
        return self.change(self.cost_of(key), spec, self.reward_of(key).on_cores)

    def at_once(self, key: ShortKey | LongKey) -> int:
        """Sequences that one engine decodes at once in a kind of round, `max_num_seqs` of a plan.

        As many as the round can have in flight, so that none waits for it, but at most as many as were measured. Short
        rounds issue anew only in the place of what has ended; long rounds of `exact` draw in waves that double. Where a
        prompt's samples are kept together, the balancer lets an engine get ahead of the others for their sake.
        """
        if key in self.as_written:
            return self.as_written[key].max_num_seqs
        alike, prompts = self._in_flight(key)
        cost, engines = self._on_device(key), key.layout.engines
        ahead = self._ahead(cost, alike)
        if key.balanced:
            return max(1, min(cost.max_sequences, BALANCED_SHARE * math.ceil(alike * prompts / engines)))
        # An engine gets a sample only while it is at most so far ahead of every other one.
        most = (alike * prompts + (engines - 1) * (ahead + 1)) // engines
        return max(1, min(cost.max_sequences, most))

    def _in_flight(self, key: ShortKey | LongKey) -> tuple[int, int]:
        """(samples of a prompt that a kind of round has in flight at most, prompts)."""
        if isinstance(key, ShortKey):
            return key.samples, key.prompts
        if key.queue:
            return self.group_size, self.queue_of(key).most_draws
        draws = most_draws_at_once(key.copies) if key.deferral.mode == "exact" else 1
        return self.group_size * draws, self.target

    def kv_tokens(self, key: ShortKey | LongKey) -> int | None:
        """KV tokens that one engine has room for in a kind of round, `kv_tokens` of a plan; None: all that there is, in
        a plan that is there already and does not say. Short and long rounds of a layout share engines, which have what
        those need that need the most, each as issued at least."""
        if key in self.as_written:
            return self.as_written[key].kv_tokens
        rule, needed = key.deferral, self._kv_needed(key)
        if not defers(rule, self.target):
            return needed
        shared: ShortKey | LongKey = LongKey(rule, 1, key.layout, key.draft_tokens)
        if isinstance(key, LongKey):
            issued = rule.prompts or self.target, rule.samples or self.group_size
            shared = ShortKey(rule.mode, *issued, rule.cutoff_tokens, key.layout, rule.long_share, key.draft_tokens)
        return max(needed, self._kv_needed(shared))

    def _kv_needed(self, key: ShortKey | LongKey) -> int:
        """KV tokens that a kind of round needs of an engine: `KV_MARGIN` times what its samples hold at once, and in
        whole blocks one for each of them, which is not full, and one for vLLM. That is no more than so many samples of
        the greatest length take, and no less than one of them."""
        cost, at_once, block = self._on_device(key), self.at_once(key), self._on_device(key).block_tokens
        longest_prompt = self.max_prompt_tokens or int(self.draws.model.prompt_tokens.max())
        longest = longest_prompt + self.cap_tokens
        cutoff = key.cutoff_tokens if isinstance(key, ShortKey) else None
        # An engine is given a token beyond a sample's last one before it tells that the sample has ended.
        most = at_once * (longest_prompt + (cutoff or self.cap_tokens) + 1)
        # Engines that decode on after a hand-over get what the others hold.
        freed = key.freed_engines if isinstance(key, LongKey) else 0
        margin = KV_MARGIN * key.layout.engines / (key.layout.engines - freed)
        held = min(most, math.ceil(margin * self._held_at_once(key, at_once)))
        needed = max(longest + 1, held) + (at_once + 1) * block
        least = least_kv_tokens(longest, key.draft_tokens, block)
        return min(cost.kv_capacity_tokens, max(least, math.ceil(needed / block) * block))

    def _held_at_once(self, key: ShortKey | LongKey, at_once: int) -> int:
        """KV tokens that the samples of one engine hold at once."""
        (alike, prompts), engines = self._in_flight(key), key.layout.engines
        kept_together = self._on_device(key).sharing is not None and not key.balanced
        together = self.group_size if kept_together else min(self.group_size, -(-alike // engines))
        waits = self.dynamic_sampling or key.balanced or at_once < alike * prompts // engines
        loads = Loads(self.draws.model, self.group_size, self.cap_tokens, together)
        if isinstance(key, ShortKey):
            known: tuple[object, ...] = (at_once, together, waits, key.cutoff_tokens)
        else:
            waits = key.deferral.mode != "exact" and waits  # draws that wait are few (Loads.of_long_round)
            known = (at_once, together, waits, key.deferral, engines, key.copies, key.queue)
        if known not in self.of_loads:
            drawn = (
                loads.of_groups(at_once, key.cutoff_tokens or self.cap_tokens)
                if isinstance(key, ShortKey)
                else loads.of_long_round(key, at_once, self.target, prompts if key.queue else None)
            )
            self.of_loads[known] = kv_peak(*drawn, waits)
        return self.of_loads[known]

    def _ahead(self, cost: DecodeCost, alike: int) -> int:
        """Samples by which an engine may be ahead of the least loaded one and still get one more; `alike` are those of
        one prompt, of which the first goes to the least loaded engine."""
        if cost.sharing is None:
            return 0
        longest = self.max_prompt_tokens or int(self.draws.model.prompt_tokens.max())
        return min(math.floor(cost.sharing.lead(longest)), alike - 1)

    def round_draws(
        self, key: ShortKey | LongKey, prompts: Numbers, lengths: Tokens, drawn: tuple[Numbers, Numbers | int, Numbers],
        offset: Numbers | None = None, more: bool = False,
    ) -> RoundDraws:  # fmt: skip
        """The draws of a round of these prompts; `drawn`: of each row of `lengths` its prompt, stream, occurrence."""
        return RoundDraws(
            lengths=lengths,
            prompt_tokens=self.draws.prompt_tokens_of(prompts),
            cap_tokens=self.draws.model.cap_tokens,
            expected_tokens=self.draws.model.mean_tokens,
            rewards=self.draws.rewards(*drawn) if self.dynamic_sampling else 0.0,
            reward_draws=self.draws.reward_draws(*drawn) if self.rewards_differ else 0.0,
            prompt_draws=self.draws.prompt_draws(prompts) if self.rewards_differ else 0.0,
            offset=offset,
            more=more,
            recorded=self.earlier.recorded(prompts) if self.cost_of(key).balance is not None else NOTHING,
        )

    @cached_property
    def earlier(self) -> EarlierEpoch:
        """The earlier epoch from which mode `predict`, and balanced rounds, have the history of their prompts."""
        return EarlierEpoch(self.draws, self.group_size, feed_size("predict", self.simulated_target))

    def queue_of(self, key: LongKey) -> QueueStates:
        """The queue that such long rounds issue, which is the same whatever their engines."""
        rule, cutoff_tokens, kept = key.queue_rule, key.deferral.cutoff_tokens, self.draws.queues
        assert rule is not None and cutoff_tokens is not None, "a queue belongs to mode exact"
        numbers = self.group_size, self.target, cutoff_tokens, rule, self.prompts
        if numbers not in kept:
            kept[numbers] = QueueStates(self.draws, *numbers)
        return cast(QueueStates, kept[numbers])

    @cached_property
    def of_costs(self) -> dict[ShortKey | LongKey, DecodeCost]:
        """Decode costs by kind of round: made on demand, kept by `cost_of`."""
        return {}

    @cached_property
    def of_loads(self) -> dict[tuple[object, ...], int]:
        """What loads of an engine hold at once, by what they are drawn by: made on demand, kept by `kv_tokens`."""
        return {}

    @cached_property
    def of_cells(self) -> dict[tuple[EngineLayout, int], Setting]:
        """Settings of cells, by their layout and the prompts that they train: made on demand, kept by cells.py."""
        return {}


def feed_size(mode: Mode, prompts: int) -> int:
    """Prompts of a feed for rounds that issue so many."""
    # Of a feed in `predict` as much as a half is left to long rounds.
    return max(FEED, 6 * prompts) * (2 if mode == "predict" else 1)
