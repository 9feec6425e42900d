"""The front of nodes: for each number of nodes the fastest schedule, its seconds, its USD, and what binds."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Iterator, Mapping

from ..plans.phrases.sentences import PHASE_NAMES
from ..plans.schema.cluster import Cluster
from ..plans.schema.job import Job
from ..plans.yaml.errors import Infeasible
from ..profiles.length_trace import LengthTrace
from ..profiles.profile_schema import Profile
from ..rounds.round_spec import Mode
from .choose.candidate_search import Progress, Search
from .choose.candidates.engine_layouts import node_counts
from .choose.candidates.pool_choice import choose_pools, engine_pools
from .choose.candidates.solve_options import PASSES, SolveOptions
from .choose.cycle_cost import Cycle
from .search_inputs import prepare

ROUNDS = PASSES[2]
"""Rounds of a point's schedule, enough to compare points: their draws are the same."""

FASTEST = 3
"""Schedules of a number of nodes that get so many rounds; the fastest of them is the point."""


@dataclasses.dataclass(frozen=True, slots=True)
class NodesPoint:
    """The fastest schedule on so many nodes of a pool, or the reason why there is none (the figures are then None).

    Attributes:
        train_nodes: of the pool that trainers have to themselves; None: they take turns with the engines.
        step_s: seconds of the mean step.
        binds: the longest phase of the mean step, with its share.
    """

    pool: str
    nodes: int
    train_nodes: int | None
    mode: Mode | None = None
    step_s: float | None = None
    seconds_per_sample: float | None = None
    usd_per_1k_samples: float | None = None
    binds: str = ""
    reason: str = ""


def nodes_front(
    cluster: Cluster,
    job: Job,
    profile: Profile,
    trace: LengthTrace,
    options: SolveOptions,
    progress: Progress = lambda text, share: None,
    others: Mapping[str, Profile] | None = None,
) -> Iterator[NodesPoint]:
    """Yield a point for each number of nodes of each pool that the profiles price, and, where trainers have a pool of
    their own, of that; the fewest nodes of a pool first. `others`: as of `solve`.

    Each is of a search of its own with fewer rounds than `solve` simulates, on the same draws. Warns of nothing.
    """
    priced = {**dict.fromkeys(engine_pools(cluster, job, profile), profile), **(others or {})}
    for place, (pool, of_pool) in enumerate(sorted(priced.items())):
        on = dataclasses.replace(options, pool=pool, objective="seconds", within_s=None, passes=PASSES[:1])

        def of_all(text: str, share: float, place: int = place) -> None:
            progress(text, (place + share) / len(priced))

        yield from _on_pool(cluster, job, of_pool, trace, on, of_all)


def _on_pool(
    cluster: Cluster, job: Job, profile: Profile, trace: LengthTrace, options: SolveOptions, progress: Progress
) -> Iterator[NodesPoint]:
    chosen = choose_pools(cluster, job, profile, None, options.pool)
    own = chosen.train and cluster.pools[chosen.train]
    counts = list(
        itertools.product(node_counts(cluster.pools[chosen.rollout], True), node_counts(own, True) if own else [0])
    )
    for number, (rollout, train) in enumerate(counts):
        progress(f"on {rollout + train} nodes", number / len(counts))
        sizes = {chosen.rollout: rollout, **({chosen.train: train} if chosen.train else {})}
        pools = {n: p.model_copy(update={"nodes": sizes.get(n, p.nodes)}) for n, p in cluster.pools.items()}
        point = NodesPoint(chosen.rollout, rollout, train or None)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                search = prepare(cluster.model_copy(update={"pools": pools}), job, profile, trace, options)
                cycle = _fastest(search)
        except Infeasible as error:
            yield dataclasses.replace(point, reason=str(error))
            continue
        phases = search.phase_seconds(cycle, cycle.short.rounds, cycle.long.rounds if cycle.long else 0)
        longest = max(phases, key=lambda phase: phases[phase])
        seconds = cycle.seconds_per_sample(search.limits.group_size)
        yield dataclasses.replace(
            point,
            mode=cycle.short.deferral.mode,
            step_s=cycle.step_s(),
            seconds_per_sample=seconds,
            usd_per_1k_samples=1000 * seconds * search.limits.usd_per_s(search.limits.all_nodes),
            binds=f"{PHASE_NAMES[longest]} {phases[longest] / sum(phases.values()):.0%} of the step",
        )


def _fastest(search: Search) -> Cycle:
    """The fastest schedule that keeps the limits. Raises Infeasible if none does."""
    search.run_passes(lambda text, share: None)
    kept = [c for c in search.cycles() if search.may_choose(c.short.deferral.mode) and not c.violations(search.limits)]
    if not kept:
        raise Infeasible("no simulated schedule keeps the limits")
    best = sorted(kept, key=lambda c: (c.cost(search.limits), c.name))[:FASTEST]
    simulated = [search.simulate(cycle, ROUNDS.short_rounds, ROUNDS.long_rounds) for cycle in best]
    return min(simulated, key=lambda c: (bool(c.violations(search.limits)), c.cost(search.limits), c.name))
