"""Remedies for a workload that does not fit its nodes: more nodes, looser bounds, more host memory, larger groups.

Every remedy that the error names was tried: the group program placed all jobs with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from ....plans.yaml.errors import Infeasible
from ..inputs.capacity import Shortage, node_limits, nodes_taken
from ..inputs.group_model import Jobs, NodeTypes, Rules
from .group_program import solve_groups
from .group_solution import QUICK

_FACTORS = (1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0)
"""Factors of bounds, or of host memory, that are tried."""

_EFFORT = replace(QUICK, greedy=True)
_DEAR = 1000.0


def without_room(jobs: Jobs, node_types: NodeTypes, rules: Rules, short: Sequence[Shortage] = ()) -> Infeasible:
    """The error that the jobs do not fit into the nodes: the proven shortages, if any, and remedies."""
    remedies = [_more_nodes(jobs, node_types, rules, [s.pool for s in short])]

    def fits_looser(factor: float) -> bool:
        return bool(_nodes({n: replace(job, slo=job.slo * factor) for n, job in jobs.items()}, node_types, rules))

    def fits_roomier(factor: float) -> bool:
        larger = {p: replace(k, host_memory_bytes=k.host_memory_bytes * factor) for p, k in node_types.items()}
        return bool(_nodes(jobs, larger, rules))

    for fits, text in (
        (fits_looser, "with every slo {:g} times as loose"),
        (fits_roomier, "with {:g} times the host memory on every node"),
    ):
        factor = _least_factor(fits)
        if factor is not None:
            remedies.append(text.format(factor))
    if _nodes(jobs, node_types, replace(rules, group_cap=rules.group_cap + 1)):
        remedies.append(f"with group_cap {rules.group_cap + 1}")
    there = ", ".join(f"{limit} of pool '{pool}'" for pool, limit in node_limits(node_types).items())
    cause = "; ".join(map(str, short)) or f"no way to share the nodes ({there}) holds all {len(jobs)} jobs"
    return Infeasible(f"{cause}; they fit " + ", or ".join(text for text in remedies if text))


def _more_nodes(jobs: Jobs, node_types: NodeTypes, rules: Rules, first: Sequence[str]) -> str:
    """The remedy of more nodes of one pool, a pool in `first` if one will do, else of several pools."""
    limited = list(dict.fromkeys([*first, *node_limits(node_types)]))
    for lifted in [*({pool} for pool in limited), set(limited)]:
        # Whatever the prices are: as few nodes as can be of the pools that are too small.
        unlimited = {
            pool: replace(node_type, usd_per_hour=_DEAR, limit=None)
            if pool in lifted
            else replace(node_type, usd_per_hour=1.0)
            for pool, node_type in node_types.items()
        }
        taken = _nodes(jobs, unlimited, rules)
        if taken:
            more = [f"{taken[p]} nodes of pool '{p}'" for p in sorted(lifted) if taken[p] > (node_types[p].limit or 0)]
            return "with " + " and ".join(more) if more else ""
    return ""


def _least_factor(fits: Callable[[float], bool]) -> float | None:
    """The least factor with which the jobs fit, if they fit with all larger ones too; None: not with the largest."""
    if not fits(_FACTORS[-1]):
        return None
    return _FACTORS[bisect_left(_FACTORS, True, hi=len(_FACTORS) - 1, key=fits)]


def _nodes(jobs: Jobs, node_types: NodeTypes, rules: Rules) -> dict[str, int] | None:
    """Nodes by pool of a solution within the limits; None if a quick search has none."""
    try:
        solution = solve_groups(list(jobs.values()), node_types, rules, effort=_EFFORT)
    except Infeasible:
        return None
    return nodes_taken(solution.groups, node_types)
