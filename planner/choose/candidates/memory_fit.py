"""Which candidates fit into memory: engines by themselves, and trainers beside them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ....plans.schema.cluster import Pool
from ....plans.schema.levers import EngineLayout
from ....plans.yaml.errors import Infeasible
from ....profiles.profile_schema import Profile
from ...costs.decode_costs import engines_of
from ...costs.device_memory import device_bars, trainer_bars
from ...costs.host_memory import Share, engine_share, trainer_share
from ...costs.job_pools import JobPools
from ...costs.memory_bars import Bar, gb, largest
from ...costs.memory_table import memory_table
from ...costs.update_costs import TrainCost


def engines_fault(profile: Profile, pool: Pool, weight_bytes: float, layout: EngineLayout) -> str | None:
    """Why the pool's memory does not hold a layout's engines; None if it does. The profile has an entry for them."""
    engines = engines_of(profile, layout)
    on_node = engine_share(profile, engines).on_node(pool.nodes)
    if on_node > pool.host_memory_bytes:
        return f"its engines need {gb(on_node)} of host memory on a node, and a node has {gb(pool.host_memory_bytes)}"
    for bar in device_bars(profile, pool, weight_bytes, engines, None):
        if not bar.fits:
            return f"one of its accelerators would hold {_told(bar)}, and has {gb(bar.capacity_bytes)}"
    return None


def fitting_beside(
    train: Sequence[TrainCost],
    layouts: Collection[EngineLayout],
    profile: Profile,
    pools: JobPools,
    weight_bytes: float,
) -> tuple[tuple[TrainCost, ...], tuple[Share, ...]]:
    """(updates that fit beside engines, or on the pool that trainers have to themselves; what the trainers of each take
    of host memory).

    On devices they fit beside any layout's engines, in host memory beside those of the layout that takes least: which
    layouts and updates a plan has together is the program's to choose. Raises Infeasible, with what is lacking, where
    no update fits.
    """
    engines = {layout: engines_of(profile, layout) for layout in layouts}
    pool, apart = pools.of_trainers, pools.apart
    on_node = {layout: engine_share(profile, each).on_node(pool.nodes) for layout, each in engines.items()}
    smallest = min(layouts, key=lambda layout: (on_node[layout], layout))
    fitting: dict[TrainCost, Share] = {}
    lacking: list[tuple[float, str]] = []
    for cost in train:
        share = trainer_share(profile, pool, weight_bytes, cost.layout, apart)
        if apart:
            bars, beside = trainer_bars(profile, pool, weight_bytes, cost.layout), 0.0
        else:
            beside = on_node[smallest]
            bars = [b for each in engines.values() for b in device_bars(profile, pool, weight_bytes, each, cost.layout)]
        if all(bar.fits for bar in bars) and beside + share.on_node(pool.nodes) <= pool.host_memory_bytes:
            fitting[cost] = share
        else:
            table = memory_table(profile, pools, weight_bytes, pools.whole, [(engines[smallest], cost.layout)])
            bars += [bar for bar in table if bar.side != "engines"]
            worst = max(bars, key=lambda bar: bar.needed_bytes / bar.capacity_bytes)
            where = "host memory that a node has" if worst.place == "host" else "memory that an accelerator has"
            need = f"{_told(worst)} of the {gb(worst.capacity_bytes)} of {where}"
            lacking.append((worst.needed_bytes / worst.capacity_bytes, need))
    if not fitting:
        where = "on the pool that trainers have to themselves" if apart else "beside the engines"
        raise Infeasible(
            f"no update fits into memory {where}: that which lacks least would take {min(lacking)[1]}; add nodes, or "
            "nodes with more memory"
        )
    return tuple(fitting), tuple(fitting.values())


def _told(bar: Bar) -> str:
    return f"{gb(bar.needed_bytes)} ({largest(bar.holds_bytes)})"
