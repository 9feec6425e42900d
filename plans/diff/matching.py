"""Which group of one plan is which of another: by their jobs, since a group's id says nothing.

Groups are paired so that as many jobs as possible stay in their group (a maximum weight matching); among such pairings
the one that keeps most ids. A job whose group is not paired with its old one has moved.
"""

from __future__ import annotations

import networkx as nx

from ..groups_plan import GroupsPlan


def match_groups(old: GroupsPlan, new: GroupsPlan) -> dict[str, str]:
    """Id in `new` to id in `old`, for groups that have a job in common and are paired."""
    home = {job: key for key, group in old.groups.items() for job in group.jobs}
    graph: nx.Graph[tuple[str, str]] = nx.Graph()
    scale = len(new.groups) + 1  # so that all kept ids together weigh less than one job
    for key, group in new.groups.items():
        for job in group.jobs:
            if job in home:
                edge = ("new", key), ("old", home[job])
                stay = graph.edges[edge]["weight"] if graph.has_edge(*edge) else int(key == home[job])
                graph.add_edge(*edge, weight=stay + scale)
    pairs = nx.max_weight_matching(graph)
    return {a[1]: b[1] for pair in pairs for a, b in [pair if pair[0][0] == "new" else pair[::-1]]}
