"""The points of the jobs of a workload: plans of each on several numbers of nodes, from which the groups choose.

First come those near the best alone: from the narrowest on, wider ones as long as a trained sample costs at most NEAR
times what it costs at the cheapest. Once groups are chosen, the neighbours of the points that share nodes are planned
too, and groups chosen anew, while that makes them cheaper.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from ..planner.choose.candidates.pool_choice import choose_pools
from ..planner.choose.candidates.solve_options import PASSES, Pass
from ..planner.groups.inputs.job_points import Nodes, PlannedPoint, points_folder, points_there
from ..plans.schema.base import Mode
from ..plans.schema.cluster import Cluster
from ..plans.schema.groups_plan import GroupsPlan
from ..plans.schema.job import load_job
from ..plans.schema.workload import PhaseSource, Workload
from ..plans.yaml.errors import Infeasible, InputError
from ..plans.yaml.yaml_io import error_at, load
from ..profiles.length_tables import table_names
from ..profiles.profile_schema import Profile
from .input_paths import need_profile
from .solve_job import solve

NEAR = 1.5
"""Cost of a trained sample over the least alone, up to which a point's wider neighbours are planned unasked: two jobs
that share all their nodes halve it at best, and seldom as much."""

LEAST_GAIN = 0.005
"""Share of the price that further points must save for their neighbours to be planned in turn."""

PASSES_OF_A_POINT: tuple[Pass, ...] = (*PASSES[:1], Pass(24, 12, 0.03))
"""Rounds simulated for a point: of a plan that one of ten alternatives is."""

Notify = Callable[[str], None]


def plan_near_cheapest(path: Path, workload: Workload, cluster: Cluster, notify: Notify) -> None:
    """Plan the points of each job that cost nearly as little as its cheapest. Raises InputError, Infeasible."""
    fronts = [_Front(path, name, source, cluster, notify) for name, source in _planned_here(workload)]
    for front in fronts:  # once the documents of all jobs are read: a fault in one is told at once
        front.plan_near_cheapest(front.source.nodes)


def plan_neighbours(path: Path, workload: Workload, cluster: Cluster, plan: GroupsPlan, notify: Notify) -> bool:
    """Plan the neighbours of the points at which jobs share nodes; whether a new one came of it."""
    members = {name: member for key, name, member in plan.members if len(plan.groups[key].jobs) > 1}
    new = False
    for name, source in _planned_here(workload):
        if name in members and (point := members[name].point) is not None:
            new |= _Front(path, name, source, cluster, notify).around(point.nodes)
    return new


def _planned_here(workload: Workload) -> list[tuple[str, PhaseSource]]:
    sources = ((name, job.source) for name, job in sorted(workload.jobs.items()))
    return [(name, source) for name, source in sources if source is not None and source.job is not None]


class _Front:
    """Plans points of one job, each into its file."""

    def __init__(self, path: Path, name: str, source: PhaseSource, cluster: Cluster, notify: Notify) -> None:
        assert source.job is not None, "it is planned here"
        self.path, self.name, self.notify, self.source = path, name, notify, source
        self.job_path, self.cluster_path = path.parent / source.job, path.parent / load(path, Workload).cluster
        self.folder = points_folder(path, name)
        job = load_job(self.job_path)
        if job.placement is None or job.placement.streams:
            raise error_at(
                self.job_path,
                ("placement",),
                f"placement: in a group, rollout and training of {name} take turns on nodes of their own; write "
                "placement: {train_pool: POOL, streams: false}",
            )
        profile_path = self.job_path.with_name("profile.yaml")
        need_profile(profile_path, self.job_path, job)
        profile = load(profile_path, Profile)
        pools = choose_pools(cluster, job, profile)
        assert pools.train is not None, "the job has a placement"
        self.pools = pools.rollout, pools.train
        self.most = cluster.pools[self.pools[0]].nodes, cluster.pools[self.pools[1]].nodes
        self.trace = self._trace(profile)
        for pool, most, wanted in zip(self.pools, self.most, source.nodes or self.most, strict=True):
            if wanted > most:
                raise self._error("nodes", f"{wanted} nodes of pool '{pool}', which has {most}; write at most as many")
        self.points = points_there(path, name)
        self.tried = {point.nodes for point in self.points}
        self.refused = ""

    def _trace(self, profile: Profile) -> Path | None:
        """The file of the job's lengths, where the workload names one."""
        given, ship = self.source.lengths, f"the name of a table that ships ({', '.join(table_names())})"
        if given is None and profile.lengths is None:
            raise self._error("lengths", f"missing, and the profile holds none; write a trace's file, or {ship}")
        if given is None or given in table_names() or "=" in given:
            return None
        if not (trace := self.path.parent / given).is_file():
            raise self._error("lengths", f"no such file: '{given}'; write that of a trace, or {ship}")
        return trace

    def _error(self, key: str, text: str) -> InputError:
        loc = ("jobs", self.name, "source", key)
        return error_at(self.path, loc, f"{'.'.join(loc)}: {text}")

    def plan_near_cheapest(self, nodes: Nodes | None) -> None:
        """Plan that on `nodes`, and those from one node each on that cost nearly as little as the cheapest."""
        if nodes is not None:
            self._at([nodes])
        edge: list[Nodes] = [(1, 1)]
        while edge:
            self._at(edge)
            least = min((point.usd_per_1k_samples for point in self.points), default=math.inf)
            near = {p.nodes for p in self.points if p.usd_per_1k_samples <= NEAR * least}
            # What cannot be planned on few nodes may be on more.
            near |= self.tried - {point.nodes for point in self.points}
            edge = sorted({wider for at in near for wider in self._beside(at, (1,))} - self.tried)
        if not self.points:
            on = f"pools '{self.pools[0]}' and '{self.pools[1]}'"
            raise Infeasible(f"job {self.name} has no plan on any nodes of {on}; on the most: {self.refused}")

    def around(self, nodes: Nodes) -> bool:
        """Plan the points beside one; whether a new one came of it."""
        before = len(self.points)
        self._at(sorted(self._beside(nodes, (-1, 1)) - self.tried))
        return len(self.points) > before

    def _beside(self, nodes: Nodes, steps: Iterable[int]) -> set[Nodes]:
        beside = {at for step in steps for at in ((nodes[0] + step, nodes[1]), (nodes[0], nodes[1] + step))}
        return {at for at in beside if all(1 <= n <= most for n, most in zip(at, self.most, strict=True))}

    def _at(self, wanted: Iterable[Nodes]) -> None:
        """Plan the job on so many nodes: as it is fastest, and in plain rounds, whose long tails few nodes can do."""
        for at in wanted:
            if at in self.tried:
                continue
            self.tried.add(at)
            for mode in (None, "sync"):
                point = self._planned(at, mode)
                if point is None:
                    break
                if point.name in {other.name for other in self.points}:
                    point.path.unlink()
                else:
                    self.points.append(PlannedPoint(point.path.rename(self.folder / f"{point.name}.yaml"), point.plan))

    def _planned(self, nodes: Nodes, mode: Mode | None) -> PlannedPoint | None:
        self.notify(f"{self.name} on {nodes[0]} + {nodes[1]} nodes")
        out = self.folder / ".new.yaml"
        self.folder.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            if self.points:  # the first plan has warned of all that is the same at every point
                warnings.simplefilter("ignore")
            try:
                plan = solve(
                    self.job_path,
                    cluster=self.cluster_path,
                    trace=self.trace,
                    lengths=self.source.lengths if self.trace is None else None,
                    mode=mode,
                    bias_budget=None if mode is None else 0.0,
                    nodes=dict(zip(self.pools, nodes, strict=True)),
                    passes=PASSES_OF_A_POINT,
                    out=out,
                )
            except Infeasible as error:
                self.refused = str(error)
                return None
        return PlannedPoint(out, plan)
