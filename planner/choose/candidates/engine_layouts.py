"""Candidate engine layouts: tensor-parallel sizes and numbers of engines that the pool holds, with their costs."""

from __future__ import annotations

from ....plans.check.plan_fit import one_of
from ....plans.facts.model_shape import ModelShape, undivided
from ....plans.phrases.numbers import bytes_text
from ....plans.schema.cluster import Pool
from ....plans.schema.job import Job
from ....plans.schema.levers import EngineLayout, RewardJudge
from ....plans.yaml.errors import Infeasible
from ....profiles.library.fitness import less_memory
from ....profiles.profile_schema import Profile
from ...costs.decode_costs import DecodeCost, engines_of, layout_cost
from ...costs.memory_table import JobMemory, engines_on_host
from ...costs.round_costs import judge_factors
from .pool_choice import ChosenPools
from .reward_choices import no_room_for_judge
from .solve_options import DEFAULTS, SolveOptions

EVERY_COUNT = 16
"""Numbers of nodes up to which each is a candidate of its own."""


def feasible_layouts(
    chosen: ChosenPools,
    job: Job,
    memory: JobMemory,
    options: SolveOptions = DEFAULTS,
    judge: RewardJudge | None = None,
) -> tuple[dict[EngineLayout, DecodeCost], tuple[str, ...]]:
    """(costs by layout, why others were refused) on the engines' pool. Raises Infeasible when none is left.

    `judge`: takes accelerators of the pool for itself, or slows down the engines that it is beside. Engines on GPUs do
    not wait for each other, so an entry prices as many of them as there are GPUs (decode_costs.entry_of).
    """
    pool = memory.pools.rollout
    named = [(chosen.rollout, pool)]
    if chosen.train is not None:
        named.append((chosen.train, memory.pools.of_trainers))
    for name, each in named:
        short_of = less_memory(memory.profile, each, name)
        if short_of is not None:
            raise Infeasible(short_of)
    decode: dict[EngineLayout, DecodeCost] = {}
    refused: list[str] = []
    for tp in sorted({entry.tp for entry in memory.profile.rollout}):
        counts = {entry.engines for entry in memory.profile.rollout if entry.tp == tp}
        if memory.profile.machine.kind == "cuda":
            # One engine that was measured stands for as many as there are GPUs; on GPUs no plan has a single one.
            counts = {count for count in counts if count > 1}
            if judge is not None and judge.place == "own":
                counts.add((pool.accelerators_total - judge.instances * judge.tp) // tp)
            counts |= {n * (pool.accelerators.per_node // tp) for n in node_counts(pool, options.fewer_nodes)}
        for count in sorted(count for count in counts if count > 0):
            cost = layout_cost(memory.profile, EngineLayout(tp, count), memory.pools)
            assert cost is not None, "there is an entry of this tp"
            fault = _layout_fault(cost, job, memory, chosen.rollout) or no_room_for_judge(cost.key, judge, pool)
            if fault is None:
                decode[cost.key] = cost.slowed(judge_factors(memory.profile, judge)[1]) if judge else cost
            else:
                refused.append(f"{cost.key}: {fault}")
    if not decode:
        why = _no_tp(job, memory.profile, pool, options.model) or "; ".join(refused)
        raise Infeasible(f"no rollout layout of the profile fits: {why}")
    return decode, tuple(refused)


def _layout_fault(cost: DecodeCost, job: Job, memory: JobMemory, name: str) -> str | None:
    """Why a layout cannot be used."""
    tp, engines, pool = cost.key.tp, cost.key.engines, memory.pools.rollout
    longest = job.rollout.longest_tokens
    if tp not in job.search.tp:
        return f"tp {tp} is not in the job's search.tp"
    if engines < 1 or engines > pool.engines_of(tp):
        return f"needs {max(engines, 1) * tp} accelerators, pool '{name}' has {pool.accelerators_total}"
    if cost.kv_capacity_tokens < longest:
        return f"an engine holds {cost.kv_capacity_tokens} KV tokens, the longest sequence has {longest}"
    priced = engines_of(memory.profile, cost.key)
    on_node, there = sum(engines_on_host(memory.profile, priced, pool.nodes).values()), pool.host_memory_bytes
    if on_node > there:
        return f"its engines need {bytes_text(on_node)} of host memory on a node, and a node has {bytes_text(there)}"
    for use in memory.engines_alone(priced):
        if not use.fits:
            return f"one of its accelerators would hold {use.held_text}, and has {bytes_text(use.capacity_bytes)}"
    return None


def node_counts(pool: Pool, fewer: bool) -> list[int]:
    """All nodes of the pool; if fewer will do, also every number up to `EVERY_COUNT`, and above that those that differ
    by a sixteenth at most."""
    counts, count = {pool.nodes}, 1
    while fewer and count < pool.nodes:
        counts.add(count)
        count += max(1, 2 ** (count.bit_length() - 1) // EVERY_COUNT)
    return sorted(counts)


def _no_tp(job: Job, profile: Profile, pool: Pool, shape: ModelShape | None) -> str | None:
    """Text on a profile with none of the sizes in the job's search.tp: why each of them is impossible, if it is, and
    which can be written; None if it has one."""
    wanted, there = sorted(job.search.tp), sorted({entry.tp for entry in profile.rollout})
    if set(wanted) & set(there):
        return None
    per_node = pool.accelerators.per_node
    whys = [
        f"{tp} is more than the {per_node} of a node" if tp > per_node else shape and undivided(tp, shape)
        for tp in wanted
    ]
    possible = [tp for tp in there if tp <= per_node and (shape is None or undivided(tp, shape) is None)]
    remedies = [f"{one_of(possible)} in search.tp"] if possible else []
    if not all(whys) or not possible:
        remedies.append("profile again with yours" if not all(whys) else "take another profile")
    reasons = ", ".join(why for why in whys if why)
    return (
        f"search.tp {wanted} has none of the profile's {', '.join(map(str, there))}"
        f"{f' ({reasons})' if reasons else ''}; {', or '.join(remedies)}"
    )
