"""The candidate space of a solve: all kinds of round worth simulating, with the costs of their layouts and updates."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from ....plans.schema.cluster import Cluster, Pool
from ....plans.schema.job import Job
from ....plans.schema.levers import EngineLayout, RewardJudge
from ....plans.schema.planned_job import PlannedJob
from ....profiles.profile_schema import Profile
from ....rounds.hand_over import free_replicas
from ...costs.colocation import MAP_BYTES_PER_S, sleep_and_wake_s, turns_known
from ...costs.decode_costs import DecodeCost, engines_of
from ...costs.draft_costs import drafted_costs
from ...costs.job_pools import HostShare, JobPools
from ...costs.memory_table import WEIGHT_BYTES, DeviceMemory, JobMemory
from ...costs.update_costs import (
    TrainCost,
)
from ...lengths.length_model import LengthModel
from .candidate_rounds import long_keys, short_keys
from .engine_layouts import feasible_layouts
from .pool_choice import choose_pools, must_be_a_pool, must_be_plannable
from .reward_choices import RewardChoice, reward_choices, undecided
from .round_kinds import LongKey, ShortKey, defers
from .solve_options import DEFAULTS, SolveOptions
from .update_layouts import placed_updates, sharding_of

RESHARD_BYTES_PER_PARAMETER = 14
"""Of a parameter, what moves to another sharding: bfloat16 weight, float32 master weight and both moments of Adam."""


@dataclass(frozen=True)
class Space:
    """All candidates, sorted; `decode` and `train` hold the costs of the layouts and micro-batches that are feasible.

    `memory`: what the job's engines and trainers hold, with the profile that prices all of it and their pools, of which
    that of engines is called `pool`, that of trainers `train_pool` (None: the same).
    `host_memory_bytes` are those that engines, and trainers beside them, may take of a node; `refused` says, for each
    layout and lever that was left out, why; `reshard_s` and `layout_switch_s` are seconds of changing shards and
    engines between kinds of round. `drafted`: costs with drafts, by layout and drafted tokens.
    `kept_together`: the share of a rollout that layouts save by keeping a prompt's samples together, if they do.
    `train_host`: of each of `train`, the host memory of its trainers. `rewards`: the choices of reward workers and
    deadlines; the number of a key's choice counts them from 0. `reference`: why a reference is where it is; empty: it
    has none.
    """

    pool: str
    memory: JobMemory
    decode: dict[EngineLayout, DecodeCost]
    train: tuple[TrainCost, ...]
    short: tuple[ShortKey, ...]
    long: tuple[LongKey, ...]
    host_memory_bytes: int
    refused: tuple[str, ...]
    reshard_s: float = 0.0
    layout_switch_s: float = 0.0
    drafted: dict[tuple[EngineLayout, int], DecodeCost] = field(default_factory=dict)
    kept_together: dict[EngineLayout, float] = field(default_factory=dict)
    train_host: tuple[HostShare, ...] = ()
    train_pool: str | None = None
    rewards: tuple[RewardChoice, ...] = ()
    reference: str = ""
    judge: RewardJudge | None = None

    @property
    def profile(self) -> Profile:
        """What the candidates are priced by."""
        return self.memory.profile

    @property
    def pools(self) -> JobPools:
        """The pools of engines and trainers."""
        return self.memory.pools

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
    options: SolveOptions = DEFAULTS,
    planned: PlannedJob | None = None,
    judge: RewardJudge | None = None,
) -> Space:
    """The candidates of a solve. Raises Infeasible, naming why, when no layout or update is left, or no forced mode;
    Unplannable (pool_choice.py) for a job or a pool that is refused at once.

    `planned`: a plan of the job, whose pools are taken; None: the job's. `judge`: where the job's judge is, if it has
    one.
    """
    chosen = choose_pools(cluster, job, profile, planned, options.pool)
    pools = chosen.pools
    memory = JobMemory(profile, pools, job.model.dtype)
    decode, refused = feasible_layouts(chosen, job, memory, options, judge)
    must_be_plannable(job, chosen.rollout, pools.rollout, profile)
    if chosen.train is not None:
        must_be_a_pool(chosen.train, pools.of_trainers, profile)
    train, train_host, reference = placed_updates(job, memory, decode, model.mean_tokens, options, planned)
    short, without = short_keys(job, model, options.modes, decode, options.prompts)
    drafted, no_drafts = drafted_costs(job.search.drafts, profile.drafts, decode)
    rules = sorted({key.deferral for key in short if defers(key.deferral, job.rollout.prompts_per_step)})
    hands_over, no_hand_over = _hand_over_layouts(job, memory, decode, train)
    train = tuple(replace(cost, early=all(_has_room(memory, key, cost) for key in hands_over)) for cost in train)
    under_way = round(memory.weights_under_way("engines")) if pools.apart else 0
    return Space(
        pool=chosen.rollout,
        memory=memory,
        decode=decode,
        train=train,
        short=(*short, *(s._replace(draft_tokens=g) for s in short for layout, g in drafted if layout == s.layout)),
        long=tuple(long_keys(job, model, rules, decode, drafted, hands_over, options.prompts)),
        host_memory_bytes=pools.rollout.host_memory_bytes - under_way,
        refused=(*refused, *without, *no_drafts, *no_hand_over),
        reshard_s=_reshard_s(profile, pools.of_trainers),
        layout_switch_s=_layout_switch_s(profile, pools.apart),
        drafted=drafted,
        train_host=train_host,
        train_pool=chosen.train,
        rewards=_rewards(job, pools.rollout, decode, profile, planned),
        judge=judge,
        reference=reference,
    )


def _hand_over_layouts(
    job: Job, memory: JobMemory, decode: Collection[EngineLayout], train: Sequence[TrainCost]
) -> tuple[frozenset[EngineLayout], tuple[str, ...]]:
    """(layouts of which half of the engines may be handed over; why there are none, where the job considers it)."""
    if not job.search.hand_over:
        return frozenset(), ()
    if memory.pools.apart:
        why = "trainers have a pool of their own, and train while engines decode"
        return frozenset(), (f"no engines are handed over: {why}",)
    layouts = frozenset(layout for layout in decode if _early(memory, layout, train))
    why = (
        "no update has a replica on the accelerators of half of the engines, and room for its shards beside the others"
    )
    return layouts, () if layouts else (f"no engines are handed over: {why}",)


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
