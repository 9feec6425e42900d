"""Costs of the kinds of round that a plan has written, by a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...plans.facts.plan_text import update_text
from ...plans.phrases.numbers import count
from ...plans.schema.cluster import Cluster
from ...plans.schema.levers import EngineLayout, RewardJudge, RoundHandOver, RoundTail, SearchDrafts, UpdateLayout
from ...plans.schema.planned_job import PlannedJob
from ...plans.schema.planned_rounds import LongRound, RoundRollout, ShortRound
from ...plans.yaml.errors import InputError
from ...profiles.judge_schema import Judge
from ...profiles.laws.suspicions import measured_update
from ...profiles.profile_schema import Profile
from .colocation import sleep_and_wake_s
from .decode_costs import ChangeCost, DecodeCost, beside_training, engines_of, layout_cost
from .draft_costs import drafted_as_planned, drafted_like
from .job_pools import JobPools, NodesTaken, fewest, pools_of_plan
from .memory_table import Engines, JobMemory, MemoryUse, Side
from .reward_costs import AT_ONCE, RewardCost, crowding, further_costs, reward_cost, slower_of, slowest_of
from .update_costs import TrainCost, train_cost, train_cost_in, with_reference


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """Costs of one kind of round: its engines, with at most `max_num_seqs` sequences on each, and its update.

    `kv_tokens`: for which each engine has room, as the plan says.

    `change`: of the engines before the round's end. `streams`: trainers on a pool of their own train complete groups
    while others are decoded.
    """

    decode: DecodeCost
    max_num_seqs: int
    train: TrainCost
    change: ChangeCost | None = None
    streams: bool = False
    kv_tokens: int | None = None

    def in_first_epoch(self) -> RoundCosts:
        """The same while no prompt has earlier responses, from which drafts come."""
        change = self.change
        if change is not None:
            change = replace(change, after=change.after.in_first_epoch())
        return replace(self, decode=self.decode.in_first_epoch(), change=change)


def round_costs(
    planned: PlannedJob, profile: Profile, allowed: SearchDrafts | None = None, cluster: Cluster | None = None
) -> tuple[RoundCosts, RoundCosts]:
    """Costs of the plan's (short, long) rounds by the profile; the short ones twice if the plan has no long rounds.

    `allowed`: what the job says of drafts; what it does not say is the profile's. `cluster`: names the networks that
    weights cross; None: they take no time. Raises InputError if the profile lacks a layout or an update of the plan, or
    if nothing says what its drafts give.
    """
    rounds = planned.rounds
    judge = planned.reward.judge
    slower = judge_factors(profile, judge)[1] if judge is not None else 1.0
    pools, apart = pools_of_plan(planned, cluster), planned.placement is not None
    further = further_costs(planned.reward.further.values())
    workers = planned.reward.all_workers or profile.reward.workers

    def kind(round_: ShortRound | LongRound) -> RoundCosts:
        rollout = round_.rollout
        # A copy beside an engine is taken as busy all the time: what it takes is measured under load.
        decode = _crowded(profile, decode_of(profile, rollout, pools), slower, workers, further)
        if rollout.drafts is not None:
            decode = drafted_as_planned(decode, rollout.drafts, profile.drafts, allowed)
        spec = round_.change
        change = None if spec is None else change_of(profile, slower, apart, further, decode, spec, workers)
        if isinstance(spec, RoundTail):  # whose engines take all that is free, so that trainers make room
            decode = replace(decode, turns=None)
        train = decode.update_beside(train_of(profile, round_.train, apart))
        return RoundCosts(decode, rollout.max_num_seqs, train, change, planned.streams, rollout.kv_tokens)

    short = kind(rounds.short)
    return short, kind(rounds.long) if rounds.long else short


def scoring(planned: PlannedJob, profile: Profile) -> RewardCost:
    """Costs of the plan's reward workers or judge. Raises InputError if the profile does not have the judge."""
    reward = planned.reward
    cost = AT_ONCE
    if reward.workers:
        main = reward_cost(profile.reward, reward.workers, reward.timeout_spec())
        cost = slowest_of(main, further_costs(reward.further.values()))
    return replace(with_judge(cost, profile, reward.judge), after_rollout=reward.synchronous)


def with_judge(cost: RewardCost, profile: Profile, planned: RewardJudge | None) -> RewardCost:
    """Costs of scoring by workers of these costs and by a judge. Raises InputError if the profile does not have it."""
    if planned is None:
        return cost
    judge = judge_of(profile, planned)
    factor, _ = judge_factors(profile, planned)
    per_sample_s, per_token_s = factor * judge.per_sample_s, factor * judge.per_token_s
    delay_s = 0.0 if judge.latency_s is None else max(0.0, factor * judge.latency_s - per_sample_s)
    return slower_of(cost, RewardCost(planned.instances, per_sample_s, delay_s, per_token_s=per_token_s, of_judge=True))


def judge_factors(profile: Profile, planned: RewardJudge) -> tuple[float, float]:
    """Factors on the judge's seconds and on those of decode and prefill; 1 and 1 for a judge that has accelerators of
    its own. Raises InputError if the profile does not have the judge, or not at this share."""
    judge = judge_of(profile, planned)
    if planned.place == "own":
        return 1.0, 1.0
    factors = judge.factors(planned.share)
    if factors is None:
        shares = ", ".join(f"{each.share:g}" for each in judge.shares) or "none"
        raise InputError(
            f"the plan has a judge with a share of {planned.share:g} of the engines' compute (job.reward.judge), and "
            f"the profile's shares are: {shares}; write one of these, or remove the key"
        )
    return factors


def judge_of(profile: Profile, planned: RewardJudge) -> Judge:
    profiled = profile.judge
    if profiled is None or (profiled.tp, profiled.at_once) != (planned.tp, planned.at_once):
        held = "holds no judge"
        if profiled is not None:
            held = f"holds a judge of tp {profiled.tp}" + f" with {profiled.at_once} samples at once" * (
                profiled.at_once != planned.at_once
            )
        raise InputError(
            f"the plan has a judge of tp {planned.tp} (job.reward.judge) and the profile {held}; write what yours "
            "costs under judge in the profile, or remove it from the plan"
        )
    return profiled


def change_of(
    profile: Profile,
    slower: float,
    apart: bool,
    further: Sequence[RewardCost],
    cost: DecodeCost,
    spec: RoundHandOver | RoundTail,
    workers: int,
) -> ChangeCost:
    """A change of the engines of a round that cost `cost`, which a judge slows down by the factor `slower`.

    Engines that a hand-over leaves on a CPU decode faster than before, or as fast. The engines of a tail get weights of
    their own, after those that stop are asleep; where trainers have a pool of their own (`apart`) no other sleep and
    wake of the step brings the earlier engines back. They draft as the round's engines do.
    Raises InputError if the profile does not price the tail's engines.
    """
    if isinstance(spec, RoundTail):
        after = layout_cost(profile, spec.layout)
        if after is None:
            raise InputError(
                f"the profile has no layout of {count(spec.engines, 'engine')} with tp {spec.tp}, which decode the "
                "tail of long rounds; profile again, or write tail: null"
            )
        turns_s = sleep_and_wake_s(profile, spec.tp)
        takes_s = after.sync_s - after.turns_s + (2 * turns_s if apart else turns_s)
        after = replace(after, block_tokens=cost.block_tokens, sharing=cost.sharing, balance=cost.balance)
        if cost.drafts is not None:
            after = drafted_like(after, cost.drafts)
        return ChangeCost(spec, _crowded(profile, after, slower, workers, further), takes_s)
    stay = spec.stay(cost.key.engines)
    alone = layout_cost(profile, EngineLayout(cost.key.tp, stay)) if profile.machine.kind == "cpu" else None
    if alone is not None:
        alone = _crowded(profile, alone, slower, workers, further)
    return ChangeCost(spec, beside_training(cost, alone, stay))


def _crowded(
    profile: Profile, cost: DecodeCost, slower: float, workers: int, further: Sequence[RewardCost]
) -> DecodeCost:
    """Costs beside a judge and reward workers."""
    return cost.slowed(slower).slowed(crowding(profile.machine, profile.reward, cost.key, workers, further))


def decode_of(profile: Profile, rollout: RoundRollout, pools: JobPools | None = None) -> DecodeCost:
    """Decode costs of the plan's engines, by the profile's entry for them; `pools`: of the plan, None: one without
    networks. Raises InputError without an entry."""
    cost = layout_cost(profile, rollout.layout, pools)
    if cost is not None:
        return replace(cost.with_kv(rollout.kv_tokens), sharing=rollout.prefix, balance=rollout.balance)
    profiled = ", ".join(f"{r.engines} x tp {r.tp}" for r in sorted(profile.rollout, key=lambda r: (r.tp, r.engines)))
    raise InputError(
        f"the profile has no layout of {count(rollout.engines, 'engine')} with tp {rollout.tp}, it has {profiled}; "
        "profile again or take one of these"
    )


def nodes_of(planned: PlannedJob, memory: JobMemory) -> NodesTaken:
    """Nodes that a plan takes of each of its pools: for engines, for trainers, and for the host memory of those that
    are there; where no number of a pool's nodes has that, all of them. Nodes are chosen before the size of KV caches,
    so trainers have host memory here for what leaves GPUs beside the largest cache.

    Raises InputError if the profile lacks a layout of the plan.
    """
    profile, pools = memory.profile, memory.pools
    rounds: list[ShortRound | LongRound] = [planned.rounds.short, *filter(None, [planned.rounds.long])]
    for kind in rounds:
        decode_of(profile, kind.rollout)
    engines = max(pools.rollout.nodes_of(each.engines, each.tp) for kind in rounds for each in kind.layouts)
    trainers = max(pools.of_trainers.nodes_of(1, kind.train.accelerators) for kind in rounds)
    kinds = [(replace(each, kv_tokens=None), trained) for each, trained in _in_use(planned, profile)]

    def held(side: Side, most: int) -> int:
        """The fewest nodes whose host memory suffices to what this side's fullest node holds."""

        def suffice(nodes: int) -> bool:
            table = memory.table(NodesTaken(nodes, nodes), kinds)
            return all(use.fits for use in table if use.place == "host" and use.side == side)

        return fewest(most, suffice)

    if pools.train is None:
        return NodesTaken(max(held("both", pools.rollout.nodes), engines, trainers))
    return NodesTaken(
        max(held("engines", pools.rollout.nodes), engines), max(held("trainers", pools.train.nodes), trainers)
    )


def _in_use(planned: PlannedJob, profile: Profile) -> list[tuple[Engines, UpdateLayout]]:
    """Engines and trainers of each kind of round, as the memory table takes them. The profile prices all layouts."""
    rounds: list[ShortRound | LongRound] = [planned.rounds.short, *filter(None, [planned.rounds.long])]
    return [
        (engines_of(profile, layout, kind.rollout.kv_tokens if layout == kind.rollout.layout else None), kind.train)
        for kind in rounds
        for layout in kind.layouts
    ]


def table_of(planned: PlannedJob, memory: JobMemory, nodes: NodesTaken) -> tuple[MemoryUse, ...]:
    """The memory table of a plan on so many nodes. The profile prices all of its layouts."""
    return memory.table(nodes, _in_use(planned, memory.profile))


def train_of(profile: Profile, layout: UpdateLayout, apart: bool = False) -> TrainCost:
    """Costs of the plan's update: by a measured entry, else by the profile's law. `apart`: trainers are on a pool of
    their own. Raises InputError without either."""
    entry = measured_update(profile.train, layout)
    if entry is not None:
        return with_reference(profile, train_cost(entry, apart), layout.reference)
    if profile.train_law is not None:
        try:
            return train_cost_in(profile, layout, apart)
        except ValueError as error:
            raise InputError(f"the plan's update cannot be: {error}") from None
    profiled = ", ".join(f"({update_text(t.layout)})" for t in profile.train)
    raise InputError(
        f"the plan trains with {update_text(layout)}, and the profile has only {profiled}; profile again or take one "
        "of these"
    )
