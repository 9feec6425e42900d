"""Costs of the kinds of round that a plan has written, by a profile."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...plans.phrases.numbers import count
from ...plans.phrases.update_text import update_text
from ...plans.schema.cluster import Cluster
from ...plans.schema.sections.layouts import UpdateLayout
from ...plans.schema.sections.levers import RewardJudge, SearchDrafts
from ...plans.schema.sections.planned_job import PlannedJob
from ...plans.schema.sections.planned_rounds import LongRound, RoundRollout, ShortRound
from ...plans.yaml.errors import InputError
from ...profiles.phase_schema import Judge
from ...profiles.profile_schema import Profile
from ...rounds.balance import PrefixSharing
from ...rounds.hand_over import HandOverSpec
from .decode_costs import DecodeCost, engines_of, layout_cost
from .draft_costs import Drafts, beside_judge, drafted
from .job_pools import JobPools, NodesTaken, pools_of_plan
from .memory_bars import Bar, Engines, Side
from .memory_table import memory_table
from .reward_costs import RewardCost, reward_cost
from .update_costs import TrainCost, measured_update, train_cost, train_cost_in


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """Costs of one kind of round: its engines, with at most `max_num_seqs` sequences on each, and its update.

    `hand_over`: engines that train while the tail decodes.
    """

    decode: DecodeCost
    max_num_seqs: int
    train: TrainCost
    hand_over: HandOverSpec | None = None


def round_costs(
    planned: PlannedJob, profile: Profile, allowed: SearchDrafts | None = None, cluster: Cluster | None = None
) -> tuple[RoundCosts, RoundCosts]:
    """Costs of the plan's (short, long) rounds by the profile; the short ones twice if the plan has no long rounds.

    `allowed`: what the job says of drafts, which are no part of a profile. `cluster`: names the networks that weights
    cross; None: they take no time. Raises InputError if the profile lacks a
    layout or an update of the plan, or the job the acceptance of its drafts.
    """
    rounds = planned.rounds
    judge = planned.reward.judge
    slower = judge_of(profile, judge).rollout_factor if judge is not None and judge.place == "beside" else 1.0
    pools, apart = pools_of_plan(planned, cluster), planned.placement is not None
    short = _kind(profile, rounds.short, allowed, slower, pools, apart)
    return short, _kind(profile, rounds.long, allowed, slower, pools, apart) if rounds.long else short


def scoring(planned: PlannedJob, profile: Profile) -> RewardCost:
    """Costs of the plan's reward workers or judge. Raises InputError if the profile does not have the judge."""
    reward = planned.reward
    if reward.judge is None:
        cost = reward_cost(profile.reward, reward.workers, reward.timeout_numbers())
    else:
        judge = judge_of(profile, reward.judge)
        factor = judge.beside_factor if reward.judge.place == "beside" else 1.0
        per_sample_s, per_token_s = factor * judge.per_sample_s, factor * judge.per_token_s
        cost = RewardCost(reward.judge.instances, per_sample_s, 0.0, per_token_s=per_token_s)
    return replace(cost, after_rollout=reward.synchronous)


def judge_of(profile: Profile, planned: RewardJudge) -> Judge:
    profiled = profile.judge
    if profiled is None or profiled.tp != planned.tp:
        held = "holds no judge" if profiled is None else f"holds a judge of tp {profiled.tp}"
        raise InputError(
            f"the plan has a judge of tp {planned.tp} (job.reward.judge) and the profile {held}; write what yours "
            "costs under judge in the profile, or remove it from the plan"
        )
    return profiled


def _kind(
    profile: Profile,
    round_: ShortRound | LongRound,
    allowed: SearchDrafts | None,
    slower: float,
    pools: JobPools | None,
    apart: bool,
) -> RoundCosts:
    rollout = round_.rollout
    # A copy beside an engine is taken as busy all the time: what it takes is measured under load.
    decode = beside_judge(decode_of(profile, rollout, pools), slower)
    if rollout.drafts is not None:
        if allowed is None:
            raise InputError(
                "the plan's rounds decode with drafts, and the job does not say how many of their tokens are accepted; "
                "write search.drafts: {tokens: [...], acceptance: ...} in the job, or drafts: null in the plan"
            )
        decode = drafted(decode, Drafts(rollout.drafts.tokens, allowed.acceptance, rollout.drafts.up_to_sequences))
    freed = round_.hand_over
    return RoundCosts(
        decode,
        rollout.max_num_seqs,
        train_of(profile, round_.train, apart),
        HandOverSpec(freed.engines, freed.at_finished) if freed else None,
    )


def decode_of(profile: Profile, rollout: RoundRollout, pools: JobPools | None = None) -> DecodeCost:
    """Decode costs of the plan's engines, by the profile's entry for them; `pools`: of the plan, None: one without
    networks. Raises InputError without an entry."""
    cost = layout_cost(profile, rollout.layout, pools)
    if cost is not None:
        return replace(cost, sharing=sharing_of(rollout))
    profiled = ", ".join(f"{r.engines} x tp {r.tp}" for r in sorted(profile.rollout, key=lambda r: (r.tp, r.engines)))
    raise InputError(
        f"the profile has no layout of {count(rollout.engines, 'engine')} with tp {rollout.tp}, it has {profiled}; "
        "profile again or take one of these"
    )


def nodes_of(planned: PlannedJob, profile: Profile, pools: JobPools, weight_bytes: float) -> NodesTaken:
    """Nodes that a plan takes of each of its pools: for engines, for trainers, and for the host memory of those that
    are there; where no number of a pool's nodes has that, all of them.

    `weight_bytes`: of an engine's parameter. Raises InputError if the profile lacks a layout of the plan.
    """
    rounds: list[ShortRound | LongRound] = [planned.rounds.short, *filter(None, [planned.rounds.long])]
    for kind in rounds:
        decode_of(profile, kind.rollout)
    engines = max(pools.rollout.nodes_of(kind.rollout.engines, kind.rollout.tp) for kind in rounds)
    trainers = max(pools.of_trainers.nodes_of(1, kind.train.accelerators) for kind in rounds)

    def held(side: Side, most: int) -> int:
        """The fewest nodes whose host memory suffices to what this side's fullest node holds."""
        few = 1
        while few < most:  # with more nodes, the fullest node holds no more
            middle = (few + most) // 2
            table = table_of(planned, profile, pools, weight_bytes, NodesTaken(middle, middle))
            if all(bar.fits for bar in table if bar.place == "host" and bar.side == side):
                most = middle
            else:
                few = middle + 1
        return most

    if pools.train is None:
        return NodesTaken(max(held("both", pools.rollout.nodes), engines, trainers))
    return NodesTaken(
        max(held("engines", pools.rollout.nodes), engines), max(held("trainers", pools.train.nodes), trainers)
    )


def in_use(planned: PlannedJob, profile: Profile) -> list[tuple[Engines, UpdateLayout]]:
    """Engines and trainers of each kind of round, as the memory table takes them. The profile prices all layouts."""
    rounds: list[ShortRound | LongRound] = [planned.rounds.short, *filter(None, [planned.rounds.long])]
    return [(engines_of(profile, kind.rollout.layout), kind.train) for kind in rounds]


def table_of(
    planned: PlannedJob, profile: Profile, pools: JobPools, weight_bytes: float, nodes: NodesTaken
) -> tuple[Bar, ...]:
    """The memory table of a plan on so many nodes. The profile prices all of its layouts."""
    return memory_table(profile, pools, weight_bytes, nodes, in_use(planned, profile))


def sharing_of(rollout: RoundRollout) -> PrefixSharing | None:
    """When the balancer keeps a prompt's samples on one engine, as the plan has it; None: it spreads them by load."""
    prefix = rollout.prefix
    return None if prefix is None else PrefixSharing(prefix.block_tokens, prefix.tokens_per_sample)


def train_of(profile: Profile, layout: UpdateLayout, apart: bool = False) -> TrainCost:
    """Costs of the plan's update: by a measured entry, else by the profile's law. `apart`: trainers are on a pool of
    their own. Raises InputError without either."""
    entry = measured_update(profile, layout)
    if entry is not None:
        return train_cost(entry, apart)
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
