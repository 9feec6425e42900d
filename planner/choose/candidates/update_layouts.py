"""Candidate updates: layouts of trainers that hold the longest sequence, fit into memory beside the engines and, with
the reference of a job's KL, in the place that it has, and that no simpler layout beats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....plans.facts.device_shares import PLANNED_SHARE
from ....plans.facts.executable import UPDATE_VALUES, update_faults
from ....plans.facts.model_shape import ModelShape, shape_from_architecture
from ....plans.phrases.numbers import bytes_text, count, seconds
from ....plans.schema.cluster import Pool
from ....plans.schema.job import Job
from ....plans.schema.levers import EngineLayout, ReferencePlace, UpdateLayout
from ....plans.schema.planned_job import PlannedJob
from ....plans.yaml.errors import Infeasible
from ....profiles.laws.train_layouts import RECOMPUTES, physics_of
from ....profiles.profile_schema import Profile
from ...costs.decode_costs import engines_of
from ...costs.job_pools import HostShare, JobPools
from ...costs.memory_table import JobMemory, engines_on_host, reference_bytes
from ...costs.update_costs import (
    ANY_LAYOUT,
    Allowed,
    Runs,
    TrainCost,
    law_dtype_fault,
    least_peak,
    measured_costs,
    train_costs,
)
from .engine_layouts import node_counts
from .solve_options import DEFAULTS, SolveOptions

HostBytes = Mapping[TrainCost, tuple[float, ...]]
"""By update: host memory of a trainer rank in each phase, bytes."""

ROUNDING = 1e-9
"""Relative difference below which two costs are equal: sums of floats that were added in another order."""


def feasible_train(
    pools: JobPools,
    job: Job,
    profile: Profile,
    options: SolveOptions = DEFAULTS,
    reference: ReferencePlace = "none",
) -> tuple[TrainCost, ...]:
    """Ways to update that hold the longest sequence, without those that another one beats in every term of its cost, in
    host memory and, where the job considers handing engines over, on any part of the accelerators.

    Measured entries count if they fit the pool; a law gives all layouts of the nodes. Where any framework may run the
    plan, each kind of round may shard the model its own way. `reference`: where the reference of the job's KL is.
    Raises Infeasible when there is none.
    """
    model = options.model or _shape(profile)
    budgets = [tokens for tokens in job.search.micro_batch_tokens if tokens >= job.rollout.longest_tokens]
    runs = _runs(model, options.for_any)
    allowed = {**(ANY_LAYOUT if options.for_any else UPDATE_VALUES), "reference": (reference,)}
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
    costs = measured_costs(profile, pools.apart, allowed)
    most = pools.of_trainers.accelerators_total
    return [
        cost
        for cost in costs
        if cost.layout.micro_batch_tokens in budgets and cost.layout.accelerators <= most and runs(cost.layout)
    ]


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


def placed_updates(
    job: Job,
    memory: JobMemory,
    decode: Collection[EngineLayout],
    mean_tokens: float,
    options: SolveOptions,
    planned: PlannedJob | None,
) -> tuple[tuple[TrainCost, ...], tuple[HostShare, ...], str]:
    """(updates that fit, what their trainers take of host memory, why the reference is where it is).

    The reference of a job's KL has one place for all of a plan's updates: the one that the job or the plan `planned`
    names, else the devices, if the fastest update that fits with it in host memory fits with it there too. An update
    is faster by what the copies take. `mean_tokens`: of a response. Raises Infeasible, naming the reference if without
    it an update would fit.
    """

    def fitting(place: ReferencePlace) -> tuple[tuple[TrainCost, ...], tuple[HostShare, ...]]:
        return fitting_beside(feasible_train(memory.pools, job, memory.profile, options, place), decode, memory)

    kl = job.algorithm.kl
    if kl is None:
        return (*fitting("none"), "")
    wanted = kl.placement if planned is None else planned.rounds.short.train.reference
    tokens = job.rollout.samples_per_step * mean_tokens

    def seconds_of(cost: TrainCost) -> float:
        return cost.update_s(tokens, tokens * mean_tokens)

    try:
        if wanted == "device":
            return (*fitting("device"), "on the device, as algorithm.kl.placement asks")
        found = fitting("host")
    except Infeasible as error:
        raise _without_reference(error, job, memory, fitting) from None
    fastest = min(found[0], key=seconds_of)
    size = bytes_text(reference_bytes(memory.profile, fastest.layout))
    taken = f"{size} a rank; its copies take {seconds(fastest.reference_moved_s)} of each update"
    if wanted == "host":
        return (*found, f"in host memory, as algorithm.kl.placement asks: {taken}")
    try:
        beside = fitting("device")
    except Infeasible:
        beside = (), ()
    if any(cost.layout.trained == fastest.layout.trained for cost in beside[0]):
        return (*beside, f"on the device, where the fastest update has room for {size} more")
    return (*found, f"in host memory: the fastest update has no room for it on the device; {taken}")


def _without_reference(
    error: Infeasible, job: Job, memory: JobMemory, fitting: Callable[[ReferencePlace], tuple[Sequence[TrainCost], Any]]
) -> Infeasible:
    """The error, which names the reference if an update would fit without one."""
    try:
        costs, _ = fitting("none")
    except Infeasible:
        return error
    layout = costs[0].layout.model_copy(update={"reference": "device"})
    size = bytes_text(reference_bytes(memory.profile, layout))
    host = "" if job.algorithm.kl is None or job.algorithm.kl.placement != "device" else ", or placement: host"
    return Infeasible(
        f"{error}; without the reference of algorithm.kl, {size} of each rank, an update would fit: leave it out{host}"
    )
