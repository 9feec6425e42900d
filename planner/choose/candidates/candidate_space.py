"""The candidate space of a solve: all kinds of round worth simulating, with the costs of their layouts and updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from ....plans.facts.model_shape import ModelShape
from ....plans.schema.base import Mode
from ....plans.schema.cluster import Cluster, Pool
from ....plans.schema.job import Job
from ....plans.schema.levers import EngineLayout, RewardJudge
from ....plans.schema.planned_job import PlannedJob
from ....profiles.profile_schema import Profile
from ....rounds.hand_over import free_replicas
from ...costs.colocation import MAP_BYTES_PER_S, sleep_and_wake_s, turns_known
from ...costs.decode_costs import DecodeCost, engines_of
from ...costs.draft_costs import DraftedCost, drafted_costs
from ...costs.job_pools import JobPools
from ...costs.memory_table import WEIGHT_BYTES, DeviceMemory, HostShare, JobMemory
from ...costs.update_costs import TrainCost
from ...lengths.length_model import LengthModel
from ..rewards.reward_choices import RewardChoice, reward_choices, undecided
from .engine_layouts import feasible_layouts
from .job_limits import must_be_a_pool, must_be_plannable
from .long_rounds import long_keys
from .pool_choice import choose_pools
from .round_kinds import LongKey, ShortKey, defers
from .short_rounds import (
    short_keys,
)
from .update_layouts import feasible_train, fitting_beside, sharding_of

MODES: tuple[Mode, ...] = get_args(Mode)


RESHARD_BYTES_PER_PARAMETER = 14
"""Of a parameter, what moves to another sharding: bfloat16 weight, float32 master weight and both moments of Adam."""


@dataclass(frozen=True)
class Space:
    """All candidates, sorted; `decode` and `train` hold the costs of the layouts and micro-batches that are feasible.

    `pools`: those of engines and trainers, the former called `pool`, the latter `train_pool` (None: the same).
    `host_memory_bytes` are those that engines, and trainers beside them, may take of a node; `refused` says, for each
    layout and lever that was left out, why; `reshard_s` and `layout_switch_s` are seconds of changing shards and
    engines between kinds of round. `drafted`: costs with drafts, by layout and drafted tokens.
    `kept_together`: the share of a rollout that layouts save by keeping a prompt's samples together, if they do.
    `train_host`: of each of `train`, the host memory of its trainers. `rewards`: the choices of reward workers and
    deadlines; the number of a key's choice counts them from 0.
    """

    pool: str
    pools: JobPools
    decode: dict[EngineLayout, DecodeCost]
    train: tuple[TrainCost, ...]
    short: tuple[ShortKey, ...]
    long: tuple[LongKey, ...]
    host_memory_bytes: int
    refused: tuple[str, ...]
    reshard_s: float = 0.0
    layout_switch_s: float = 0.0
    drafted: dict[tuple[EngineLayout, int], DraftedCost] = field(default_factory=dict)
    kept_together: dict[EngineLayout, float] = field(default_factory=dict)
    train_host: tuple[HostShare, ...] = ()
    train_pool: str | None = None
    rewards: tuple[RewardChoice, ...] = ()
    judge: RewardJudge | None = None

    @property
    def sharding(self) -> tuple[int, ...]:
        """For each update choice a number; choices with the same number shard the model alike."""
        kinds = [sharding_of(t.layout) for t in self.train]
        return tuple(kinds.index(kind) for kind in kinds)


def enumerate_space(
    cluster: Cluster,
    job: Job,
    profile: Profile,
    model: LengthModel,
    modes: Sequence[Mode],
    fewer_nodes: bool = False,
    prompts: int | None = None,
    for_any: bool = False,
    shape: ModelShape | None = None,
    planned: PlannedJob | None = None,
    judge: RewardJudge | None = None,
    pool: str | None = None,
) -> Space:
    """The candidates of `modes`. Raises Infeasible, naming why, when no layout or update is left, or no forced mode;
    Unplannable (job_limits.py) for a job or a pool that is refused at once.

    `fewer_nodes`: also those that leave nodes of the pool unused. `prompts`: how many the data set holds, None for as
    many as any round wants; rounds that want more are left out. `for_any`: also what only other frameworks than `rlplan
    execute` can run (plans/facts/executable.py). `shape`: of the job's model; None: that of the profile's. `planned`: a
    plan of the job, whose pools are taken; None: the job's. `judge`: where the job's judge is, if it has one. `pool`:
    the engines'; None: the first that they can have.
    """
    chosen = choose_pools(cluster, job, profile, planned, pool)
    pools = chosen.pools
    memory = JobMemory(profile, pools, job.model.dtype)
    decode, refused = feasible_layouts(chosen, job, profile, fewer_nodes, judge, shape)
    must_be_plannable(job, chosen.rollout, pools.rollout, profile)
    if chosen.train is not None:
        must_be_a_pool(chosen.train, pools.of_trainers, profile)
    train = feasible_train(pools, job, profile, fewer_nodes, for_any, shape)
    train, train_host = fitting_beside(train, decode, memory)
    short, without = short_keys(job, model, modes, decode, prompts)
    rules = sorted({s.deferral for s in short if defers(s.deferral, job.rollout.prompts_per_step)})
    drafted, no_drafts = drafted_costs(job.search.drafts, profile.drafts, decode)
    hand_over = () if pools.apart else job.search.hand_over
    early = {key: _early(memory, key, train) for key in decode} if hand_over else {}
    hands_over = frozenset(key for key, updates in early.items() if updates)
    train = tuple(replace(cost, early=all(_has_room(memory, key, cost) for key in hands_over)) for cost in train)
    no_hand_over = (
        "no engines are handed over: trainers have a pool of their own, and train while engines decode"
        if pools.apart
        else "no engines are handed over: no update has a replica on the accelerators of half of the engines, and "
        "room for its shards beside the others"
    )
    long = long_keys(job, model, rules, decode, drafted, hands_over, hand_over, prompts)
    short += [key._replace(draft_tokens=g) for key in short for layout, g in drafted if layout == key.layout]
    under_way = round(memory.weights_under_way("engines")) if pools.apart else 0
    return Space(
        pool=chosen.rollout,
        pools=pools,
        decode=decode,
        train=train,
        short=tuple(short),
        long=tuple(long),
        host_memory_bytes=pools.rollout.host_memory_bytes - under_way,
        refused=(*refused, *without, *no_drafts, *([] if hands_over or not job.search.hand_over else [no_hand_over])),
        reshard_s=_reshard_s(profile, pools.of_trainers),
        layout_switch_s=_layout_switch_s(profile, pools.apart),
        drafted=drafted,
        train_host=train_host,
        train_pool=chosen.train,
        rewards=_rewards(job, pools.rollout, decode, profile, planned),
        judge=judge,
    )


def _early(memory: JobMemory, layout: EngineLayout, train: Sequence[TrainCost]) -> list[TrainCost]:
    """The updates that train while half of the engines of a layout decode on: those leave a replica its devices, and
    have room for shards of the trainer."""
    if layout.engines < 2:
        return []
    stay = range((layout.engines - layout.engines // 2) * layout.tp)
    free = [cost for cost in train if free_replicas(range(cost.layout.accelerators), cost.layout.replica, stay)]
    return [cost for cost in free if _has_room(memory, layout, cost)]


def _has_room(memory: JobMemory, layout: EngineLayout, update: TrainCost) -> bool:
    """Whether engines of a layout have room for shards of an update beside them."""
    accelerators = memory.pools.rollout.accelerators
    if accelerators.kind != "cuda":
        return True
    device = DeviceMemory(memory.profile, float(accelerators.memory_bytes), memory.weight_bytes)
    return device.could_stream(update.layout, engines_of(memory.profile, layout))


def _rewards(
    job: Job, pool: Pool, decode: dict[EngineLayout, DecodeCost], profile: Profile, planned: PlannedJob | None
) -> tuple[RewardChoice, ...]:
    """The job's choices of reward workers and deadlines, after that of the plan `planned` of it, if there is one."""
    choices = reward_choices(job, pool, decode, profile.reward)
    if planned is None:
        return choices
    written = RewardChoice.of_plan(planned.reward)
    return (written, *(choice for choice in choices if choice != written and undecided(job.reward)))


def _reshard_s(profile: Profile, pool: Pool) -> float:
    """Seconds to move the model's training state between two shardings, over the network of all accelerators at once.

    0 for a measured profile without a training law, which knows no other sharding.
    """
    if profile.train_law is None:
        return 0.0
    moved = RESHARD_BYTES_PER_PARAMETER * profile.model_parameters
    return moved / (pool.accelerators_total * profile.train_law.fabric_bytes_per_s)


def _layout_switch_s(profile: Profile, apart: bool = False) -> float:
    """Seconds to wake the engines of another layout on the same GPUs; on a CPU both layouts stay awake.

    Where engines sleep and wake in every step, as priced or as measured (colocation.py), the engines of the other
    layout wake instead, at no further cost. Where trainers are elsewhere (`apart`), engines do so only for those of
    another layout; their weights come with the transfer.
    """
    if profile.machine.kind != "cuda":
        return 0.0
    if turns_known(profile):
        return max(sleep_and_wake_s(profile, entry.tp) for entry in profile.rollout) if apart else 0.0
    weight_bytes = WEIGHT_BYTES["bfloat16"] * profile.model_parameters
    return weight_bytes / min(entry.tp for entry in profile.rollout) / MAP_BYTES_PER_S
