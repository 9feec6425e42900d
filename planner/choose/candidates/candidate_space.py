"""The candidate space of a solve: all kinds of round worth simulating, with the costs of their layouts and updates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ....plans.facts.device_shares import PLANNED_SHARE
from ....plans.facts.executable import UPDATE_VALUES, update_faults
from ....plans.facts.model_shape import ModelShape, shape_from_architecture
from ....plans.phrases.numbers import bytes_text, count
from ....plans.schema.cluster import Cluster, Pool
from ....plans.schema.job import Job
from ....plans.schema.levers import EngineLayout, RewardJudge, UpdateLayout
from ....plans.schema.planned_job import PlannedJob
from ....plans.yaml.errors import Infeasible
from ....profiles.laws.suspicions import measured_updates
from ....profiles.laws.train_layouts import RECOMPUTES, physics_of
from ....profiles.profile_schema import Profile
from ....rounds.hand_over import free_replicas
from ...costs.colocation import MAP_BYTES_PER_S, sleep_and_wake_s, turns_known
from ...costs.decode_costs import DecodeCost, engines_of
from ...costs.draft_costs import drafted_costs
from ...costs.job_pools import HostShare, JobPools
from ...costs.memory_table import WEIGHT_BYTES, DeviceMemory, JobMemory, engines_on_host
from ...costs.update_costs import (
    ANY_LAYOUT,
    Allowed,
    Runs,
    TrainCost,
    is_allowed,
    law_dtype_fault,
    least_peak,
    train_cost,
    train_costs,
)
from ...lengths.length_model import LengthModel
from .candidate_rounds import long_keys, short_keys
from .engine_layouts import feasible_layouts, node_counts
from .pool_choice import choose_pools, must_be_a_pool, must_be_plannable
from .reward_choices import RewardChoice, reward_choices, undecided
from .round_kinds import LongKey, ShortKey, defers
from .solve_options import DEFAULTS, SolveOptions

# Candidate update layouts: layouts that hold the longest sequence, fit into memory beside the engines, and that no
# simpler layout beats.

HostBytes = Mapping[TrainCost, tuple[float, ...]]
"""By update: host memory of a trainer rank in each phase, bytes."""

ROUNDING = 1e-9
"""Relative difference below which two costs are equal: sums of floats that were added in another order."""


def feasible_train(
    pools: JobPools, job: Job, profile: Profile, options: SolveOptions = DEFAULTS
) -> tuple[TrainCost, ...]:
    """Ways to update that hold the longest sequence, without those that another one beats in every term of its cost, in
    host memory and, where the job considers handing engines over, on any part of the accelerators.

    Measured entries count if they fit the pool; a law gives all layouts of the nodes. Where any framework may run the
    plan, each kind of round may shard the model its own way. Raises Infeasible when there is none.
    """
    model = options.model or _shape(profile)
    budgets = [tokens for tokens in job.search.micro_batch_tokens if tokens >= job.rollout.longest_tokens]
    allowed, runs = ANY_LAYOUT if options.for_any else UPDATE_VALUES, _runs(model, options.for_any)
    fits = _measured_train(pools, profile, budgets, allowed, runs)
    if not fits and profile.train_law is not None:
        fits = _priced_train(pools, job, profile, options, budgets, allowed, runs)
    if not fits:
        why = no_update(job, profile, pools.of_trainers, budgets, allowed, runs, model)
        raise Infeasible(f"no update of the profile fits: {why}")

    def size(cost: TrainCost) -> tuple[int, ...]:
        u = cost.layout
        return u.accelerators, u.dp, u.tp, u.pp, u.cp, u.sp, u.ep, u.state_copies, u.micro_batch_tokens

    return tuple(sorted(fits, key=size))


def _measured_train(
    pools: JobPools, profile: Profile, budgets: Sequence[int], allowed: Allowed, runs: Runs
) -> list[TrainCost]:
    """Measured updates that the pool of trainers holds, with micro-batches of `budgets` tokens."""
    costs = [
        train_cost(entry, pools.apart)
        for entry in measured_updates(profile.train)
        if entry.micro_batch_tokens in budgets and is_allowed(entry.layout, allowed)
    ]
    most = pools.of_trainers.accelerators_total
    return [cost for cost in costs if cost.layout.accelerators <= most and runs(cost.layout)]


def _priced_train(
    pools: JobPools, job: Job, profile: Profile, options: SolveOptions, budgets: Sequence[int], allowed: Allowed,
    runs: Runs,
) -> list[TrainCost]:  # fmt: skip
    """Updates by the profile's training law, on each number of nodes those that none beats."""
    dtype_fault = law_dtype_fault(profile, job.model.dtype, job.model.head_dtype)
    if dtype_fault is not None:
        raise Infeasible(f"no update of the profile fits: {dtype_fault}")
    pool, memory = pools.of_trainers, JobMemory(profile, pools, job.model.dtype)
    unbeaten = _unbeaten if options.for_any else _unbeaten_shardings
    fits: list[TrainCost] = []
    for nodes in node_counts(pool, options.fewer_nodes):
        ranks, memory_bytes = nodes * pool.accelerators.per_node, pool.accelerators.memory_bytes
        costs = train_costs(profile, ranks, budgets, allowed, memory_bytes, pools.apart)
        costs = tuple(cost for cost in costs if runs(cost.layout))
        host = {cost: memory.rank_on_host(cost.layout) for cost in costs}
        fits += unbeaten(costs, any(job.search.hand_over), host)
    return fits


def fitting_beside(
    train: Sequence[TrainCost], layouts: Collection[EngineLayout], memory: JobMemory
) -> tuple[tuple[TrainCost, ...], tuple[HostShare, ...]]:
    """(updates that fit beside engines, or on the pool that trainers have to themselves; what the trainers of each take
    of host memory).

    On devices they fit beside any layout's engines, in host memory beside those of the layout that takes least: which
    layouts and updates a plan has together is the program's to choose. Raises Infeasible, with what is lacking, where
    no update fits.
    """
    profile, pools, pool = memory.profile, memory.pools, memory.pools.of_trainers
    engines = {layout: engines_of(profile, layout) for layout in layouts}
    on_node = {key: sum(engines_on_host(profile, each, pool.nodes).values()) for key, each in engines.items()}
    smallest = min(layouts, key=lambda layout: (on_node[layout], layout))
    beside = 0.0 if pools.apart else on_node[smallest]
    fitting: dict[TrainCost, HostShare] = {}
    lacking: list[tuple[float, str]] = []
    for cost in train:
        share = memory.trainer_share(cost.layout)
        if pools.apart:
            uses = memory.trainers_alone(cost.layout)
        else:
            uses = [use for each in engines.values() for use in memory.on_devices(each, cost.layout)]
        if all(use.fits for use in uses) and beside + share.on_node(pool.nodes) <= pool.host_memory_bytes:
            fitting[cost] = share
        else:
            table = memory.table(pools.whole, [(engines[smallest], cost.layout)])
            worst = max([*uses, *(use for use in table if use.side != "engines")], key=lambda use: use.fullness)
            where = "host memory that a node has" if worst.place == "host" else "memory that an accelerator has"
            lacking.append((worst.fullness, f"{worst.held_text} of the {bytes_text(worst.capacity_bytes)} of {where}"))
    if not fitting:
        where = "on the pool that trainers have to themselves" if pools.apart else "beside the engines"
        raise Infeasible(
            f"no update fits into memory {where}: that which lacks least would take {min(lacking)[1]}; add nodes, or "
            "nodes with more memory"
        )
    return tuple(fitting), tuple(fitting.values())


def _runs(model: ModelShape | None, for_any: bool) -> Runs:
    """Which layouts of a model are candidates: all, or those that the executor runs."""
    return lambda layout: for_any or not any(update_faults(layout, model))


class _Rivals:
    """Compares each of many updates with all others; in arrays, since a training law gives thousands of updates."""

    def __init__(self, costs: Sequence[TrainCost], host: HostBytes) -> None:
        terms = [(c.step_s, c.per_token_s, c.per_token_squared_s, *host.get(c, ())) for c in costs]
        self._terms = np.array(terms, dtype=np.float64)
        self._above = self._terms * (1 + ROUNDING)
        self._complexity = np.array([_complexity(cost.layout) for cost in costs])
        self._savings = np.array([_savings(cost.layout) for cost in costs])

    def beating(self, number: int) -> NDArray[np.bool_]:
        """Which updates are no more complex than update `number`, take no more host memory and are faster, whatever is
        trained; or are equal in all of it, and save less memory."""
        never_more = (self._terms <= self._above[number]).all(axis=1)
        somewhere_less = (self._terms[number] > self._above).any(axis=1)
        no_more_complex = self._complexity <= self._complexity[number]
        beating: NDArray[np.bool_] = (
            never_more & no_more_complex & (somewhere_less | (self._savings < self._savings[number]))
        )
        return beating


def _unbeaten(costs: Sequence[TrainCost], hand_over: bool, host: HostBytes) -> list[TrainCost]:
    """Updates for which no equally simple or simpler update on as many accelerators is faster, whatever is trained, and
    takes no more host memory. Ties within the error go to the simplest (ties.py), so simpler updates stay.

    `hand_over`: also while only some engines were freed. These train by whole replicas (streamed_updates.Window), so a
    faster update whose replicas are larger may train nothing there. It trains on at least as many of any number of
    accelerators if its replicas divide the other's.
    """
    rivals, replicas = _Rivals(costs, host), np.array([cost.layout.replica for cost in costs])
    return [
        cost
        for number, cost in enumerate(costs)
        if not (rivals.beating(number) & (not hand_over or replicas[number] % replicas == 0)).any()
    ]


def _unbeaten_shardings(costs: Sequence[TrainCost], hand_over: bool, host: HostBytes) -> list[TrainCost]:
    """As `_unbeaten`, where both kinds of round shard the model alike.

    Then an update may be part of the best pair although another one beats it, whose sharding is worse for the other
    kind of round. So it is left out only if one of its own sharding beats it, or if each update of its sharding is
    beaten by some update of one other sharding.
    """
    of_sharding: dict[tuple[int, ...], list[TrainCost]] = {}
    for cost in costs:
        of_sharding.setdefault(sharding_of(cost.layout), []).append(cost)
    kept = [_unbeaten(alike, False, host) for alike in of_sharding.values()]
    every = [cost for alike in kept for cost in alike]
    rivals = _Rivals(every, host)
    place = np.array([sharding for sharding, alike in enumerate(kept) for _ in alike])
    replicas = [alike[0].layout.replica for alike in kept]
    unbeaten = []
    for sharding, alike in enumerate(kept):
        numbers = np.flatnonzero(place == sharding)
        beating = set.intersection(*(set(place[rivals.beating(number)].tolist()) for number in numbers)) - {sharding}
        if not any(not hand_over or replicas[sharding] % replicas[other] == 0 for other in beating):
            unbeaten += alike
    return unbeaten


def sharding_of(layout: UpdateLayout) -> tuple[int, ...]:
    """What the model is sharded by: updates of one sharding can follow each other without moving any shard."""
    return layout.dp, layout.tp, layout.pp, layout.cp, layout.sp, layout.ep, layout.state_copies


def _savings(layout: UpdateLayout) -> int:
    """How much is done to save memory: first by offloading, then by recomputation."""
    return len(RECOMPUTES) * layout.offload + RECOMPUTES.index(layout.recompute)


def _complexity(layout: UpdateLayout) -> int:
    """0: data parallel; 2: with tensor or expert parallelism; 4: with sequence parallelism; 6: with context
    parallelism; 8: with a pipeline; one more with several copies of the states."""
    above = (max(layout.tp, layout.ep) > 1, layout.sp > 1, layout.cp > 1, layout.pp > 1)
    return 2 * max(number for number, is_so in enumerate((True, *above)) if is_so) + (layout.state_copies > 1)


def _shape(profile: Profile) -> ModelShape | None:
    """The shape of the model that the profile's law is of; None without a law."""
    if profile.train_law is None:
        return None
    return shape_from_architecture(profile.train_law.shape)


def no_update(
    job: Job,
    profile: Profile,
    pool: Pool,
    budgets: Sequence[int],
    allowed: Allowed,
    runs: Runs,
    model: ModelShape | None,
) -> str:
    """Why no update fits.

    Args:
        budgets: micro-batches of the job that hold its longest sequence.
        allowed: values of the keys of a layout that are considered.
        runs: which layouts are candidates.
        model: the model's shape, None: unknown.
    """
    longest, wanted = job.rollout.longest_tokens, sorted(job.search.micro_batch_tokens)
    total, train_law = pool.accelerators_total, profile.train_law
    accelerators = count(total, "accelerator")
    if not budgets:
        return (
            f"the longest sequence has {longest} tokens, prompt and response, and search.micro_batch_tokens {wanted} "
            f"has no micro-batch that holds it; add one of at least {longest}"
            + (" (and profile again)" if train_law is None else "")
        )
    if train_law is not None:
        sheet = physics_of(train_law).gpu.memory_bytes
        memory = min(sheet, pool.accelerators.memory_bytes)
        needed = least_peak(train_law, total, budgets, allowed, runs)
        if needed is None:
            sizes = [size for size in ("dp", "tp", "sp", "cp", "pp", "ep") if tuple(allowed.get(size, ())) != (1,)]
            named = f"{', '.join(sizes[:-1])} and {sizes[-1]}"
            return f"no layout of {named} divides the model over {accelerators}; change their number"
        return (
            f"of the ways to train on {accelerators}, the one that takes least memory needs {bytes_text(needed)} "
            f"on each, and {bytes_text(round(PLANNED_SHARE * memory))} of its {bytes_text(memory)} may be planned; "
            "give the pool more nodes, or accelerators with more memory"
        )
    measured = sorted({entry.micro_batch_tokens for entry in profile.train})
    if not set(measured) & set(budgets):
        return (
            f"it was measured with micro-batches of {measured} tokens, and of the job's search.micro_batch_tokens "
            f"{sorted(budgets)} hold the longest sequence of {longest}; profile again, or add a measured one that does"
        )
    fitting = [e.layout for e in profile.train if e.micro_batch_tokens in budgets]
    least = min((layout.accelerators for layout in fitting if runs(layout)), default=None)
    if least is None:
        faults = [f"{key} {text}" for layout in fitting for key, text in update_faults(layout, model)]
        return f"none of its measured updates can be run by rlplan execute ({faults[0]}); profile another layout"
    return (
        f"the smallest needs {count(least, 'accelerator')}, the pool has {total}; add accelerators, or profile on this "
        "cluster"
    )


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
    deadlines; the number of a key's choice counts them from 0.
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
    train, train_host = fitting_beside(feasible_train(pools, job, profile, options), decode, memory)
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
