"""What would make a workload fit that does not. Every remedy that is named was tried: a placement with it was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ....plans.yaml.errors import Infeasible
from ..choose.group_program import solve_groups
from ..inputs.capacity import Shortage, node_limits, nodes_taken
from ..inputs.group_model import GroupJob, NodeKind, Rules
from .moves import QUICK

_LOOSER = (1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0)
"""By how much bounds, or host memory, are tried to be larger."""

_LOOK = replace(QUICK, greedy=True)
_DEAR = 1000.0


def without_room(
    jobs: Mapping[str, GroupJob], kinds: Mapping[str, NodeKind], rules: Rules, short: Sequence[Shortage] = ()
) -> Infeasible:
    """That the jobs do not fit into the nodes there are: what is proven to be short, if anything, and what helps."""
    found = [_more_nodes(jobs, kinds, rules, [s.pool for s in short])]

    def looser(by: float) -> bool:
        return bool(_nodes({n: replace(job, slo=job.slo * by) for n, job in jobs.items()}, kinds, rules))

    def roomier(by: float) -> bool:
        larger = {p: replace(k, host_memory_bytes=k.host_memory_bytes * by) for p, k in kinds.items()}
        return bool(_nodes(jobs, larger, rules))

    for helps, text in (
        (looser, "with every slo {:g} times as loose"),
        (roomier, "with {:g} times the host memory on every node"),
    ):
        by = _least(helps)
        if by is not None:
            found.append(text.format(by))
    if _nodes(jobs, kinds, replace(rules, group_cap=rules.group_cap + 1)):
        found.append(f"with group_cap {rules.group_cap + 1}")
    there = ", ".join(f"{limit} of pool '{pool}'" for pool, limit in node_limits(kinds).items())
    what = "; ".join(map(str, short)) or f"no way to share the nodes ({there}) holds all {len(jobs)} jobs"
    return Infeasible(f"{what}; they fit " + ", or ".join(text for text in found if text))


def _more_nodes(jobs: Mapping[str, GroupJob], kinds: Mapping[str, NodeKind], rules: Rules, first: Sequence[str]) -> str:
    """Nodes of one pool, of those in `first` if one will do, else of several, with which a placement was found."""
    limited = list(dict.fromkeys([*first, *node_limits(kinds)]))
    for lifted in [*({pool} for pool in limited), set(limited)]:
        # Whatever the prices are: as few nodes as can be of what there is too little of.
        asked = {
            pool: replace(kind, usd_per_hour=_DEAR, limit=None) if pool in lifted else replace(kind, usd_per_hour=1.0)
            for pool, kind in kinds.items()
        }
        taken = _nodes(jobs, asked, rules)
        if taken:
            parts = [f"{taken[p]} nodes of pool '{p}'" for p in sorted(lifted) if taken[p] > (kinds[p].limit or 0)]
            return "with " + " and ".join(parts) if parts else ""
    return ""


def _least(helps: Callable[[float], bool]) -> float | None:
    """The least step that helps if larger ones do so too; None: not even the largest."""
    if not helps(_LOOSER[-1]):
        return None
    low, high = 0, len(_LOOSER) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if helps(_LOOSER[middle]) else (middle + 1, high)
    return _LOOSER[high]


def _nodes(jobs: Mapping[str, GroupJob], kinds: Mapping[str, NodeKind], rules: Rules) -> dict[str, int] | None:
    """Nodes by pool of a placement within the limits; None if a quick search finds none."""
    try:
        solution = solve_groups(list(jobs.values()), kinds, rules, effort=_LOOK)
    except Infeasible:
        return None
    return nodes_taken(solution.groups, kinds)
