"""Candidate update layouts: layouts that hold the longest sequence and that no simpler layout beats."""

from __future__ import annotations

from collections.abc import Sequence

from ....plans.facts.executable import update_faults
from ....plans.phrases.numbers import bytes_text
from ....plans.schema.cluster import Cluster, Pool
from ....plans.schema.job import Job
from ....plans.schema.sections.layouts import UpdateLayout
from ....plans.yaml.errors import Infeasible
from ....profiles.laws.train_layouts import MEMORY_SHARE, least_peak_bytes, physics_of
from ....profiles.profile_schema import Profile
from ...costs.update_costs import TrainCost, train_cost, train_costs
from .engine_layouts import node_counts


def feasible_train(
    cluster: Cluster, job: Job, profile: Profile, pool_name: str, fewer_nodes: bool = False
) -> tuple[TrainCost, ...]:
    """Ways to update that hold the longest sequence, without those that another one beats in every term of its cost
    and, where the job considers handing engines over, on any part of the accelerators.

    Measured entries count if they fit the pool; a law gives all layouts of the nodes. Raises Infeasible when there is
    none.
    """
    pool = cluster.pools[pool_name]
    longest = job.rollout.longest_tokens
    budgets = [tokens for tokens in job.search.micro_batch_tokens if tokens >= longest]
    fits = [train_cost(t) for t in profile.train if t.micro_batch_tokens in budgets]
    fits = [t for t in fits if t.layout.accelerators <= pool.accelerators_total]
    if not fits and profile.train_law is not None:
        for nodes in node_counts(pool, fewer_nodes):
            ranks, memory_bytes = nodes * pool.accelerators.per_node, pool.accelerators.memory_bytes
            costs = train_costs(profile, ranks, budgets, memory_bytes=memory_bytes)
            fits += _unbeaten(costs, any(job.search.hand_over))
    if not fits:
        raise Infeasible(f"no update of the profile fits: {no_update(job, profile, pool, budgets)}")

    def size(cost: TrainCost) -> tuple[int, ...]:
        u = cost.layout
        return u.accelerators, u.dp, u.tp, u.pp, u.cp, u.ep, u.micro_batch_tokens

    return tuple(sorted(fits, key=size))


def _unbeaten(costs: Sequence[TrainCost], hand_over: bool) -> list[TrainCost]:
    """Updates for which no equally simple or simpler update on as many accelerators is faster, whatever is trained.
    Ties within the error go to the simplest (ties.py), so simpler updates stay.

    `hand_over`: also while only some engines were freed. These train by whole replicas (streamed_updates.Window), so a
    faster update whose replicas are larger may train nothing there. It trains on at least as many of any number of
    accelerators if its replicas divide the other's.
    """

    def terms(t: TrainCost) -> tuple[float, ...]:
        return t.step_s, t.per_token_s, t.per_token_squared_s, t.per_sample_s

    def beats(cost: TrainCost, rival: TrainCost) -> bool:
        if _complexity(cost.layout) > _complexity(rival.layout):
            return False
        if hand_over and rival.layout.replica % cost.layout.replica:
            return False
        return all(a <= b for a, b in zip(terms(cost), terms(rival), strict=True)) and terms(cost) < terms(rival)

    return [t for t in costs if not any(beats(rival, t) for rival in costs)]


def _complexity(layout: UpdateLayout) -> int:
    """0: what the executor runs; 1: data parallel, recomputing or offloading; then with tensor or expert parallelism,
    with context parallelism, with a pipeline."""
    if layout.pp > 1:
        return 4
    if layout.cp > 1:
        return 3
    if max(layout.tp, layout.ep) > 1:
        return 2
    return int(any(update_faults(layout)))


def no_update(job: Job, profile: Profile, pool: Pool, budgets: Sequence[int]) -> str:
    """Why no update fits.

    Args:
        budgets: micro-batches of the job that hold its longest sequence.
    """
    longest, wanted = job.rollout.longest_tokens, sorted(job.search.micro_batch_tokens)
    total, train_law = pool.accelerators_total, profile.train_law
    if not budgets:
        return (
            f"the longest sequence has {longest} tokens, prompt and response, and search.micro_batch_tokens {wanted} "
            f"has no micro-batch that holds it; add one of at least {longest}"
            + (" (and profile again)" if train_law is None else "")
        )
    if train_law is not None:
        sheet = physics_of(train_law).gpu.memory_bytes
        memory = min(sheet, pool.accelerators.memory_bytes)
        needed = least_peak_bytes(train_law, total, budgets)
        if needed is None:
            return f"no layout of tp, cp, pp and ep divides the model over {total} accelerators; change their number"
        return (
            f"of the ways to train on {total} accelerators, the one that takes least memory needs {bytes_text(needed)} "
            f"on each, and {bytes_text(round(MEMORY_SHARE * memory))} of its {bytes_text(memory)} may be planned; "
            "give the pool more nodes, or accelerators with more memory"
        )
    measured = sorted({entry.micro_batch_tokens for entry in profile.train})
    if not set(measured) & set(budgets):
        return (
            f"it was measured with micro-batches of {measured} tokens, and of the job's search.micro_batch_tokens "
            f"{sorted(budgets)} hold the longest sequence of {longest}; profile again, or add a measured one that does"
        )
    least = min(e.layout.accelerators for e in profile.train if e.micro_batch_tokens in budgets)
    return (
        f"the smallest needs {least} accelerators, the pool has {total}; add accelerators, or profile on this cluster"
    )
