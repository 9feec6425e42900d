"""The task of the process of a job in a co-execution group, and the exit codes by which it ends."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..placement.live_nodes import LeasedNode, NodeFacts
from ..placement.run_placement import Placement
from ..rollout.unit_change import EngineUnits
from .permit_actor import MemberPermits

DONE, FAILED, BAD_INPUT, STOPPED = 0, 1, 2, 130
"""Exit codes, the same as those of `rlplan execute`."""


@dataclass(frozen=True)
class MemberTask:
    """What a job's process is to do.

    Attributes:
        job: its name in the group.
        plan: path of its own plan.
        out: folder of its run.
        actor: Ray's name of the actor that gives permits.
        process: unique name of the process.
        driver: process id of the group's driver; the process ends with it.
        nodes: (Ray's id, what a process sees there, whether the machine is shared with other nodes) of each node that
            the plan's placement uses.
        options: of `execute`.
        units: of each node, the group's units that the job's rollout holds there; none on a node that only trains.
        tail_units: units on which the tail of a rollout goes on; 0: on all.
        tail_finished: share of a round's samples after which its tail is reached; None: never.
        pauses: whether the rollout may be paused.
    """

    job: str
    plan: str
    out: str
    actor: str
    process: str
    driver: int
    nodes: list[tuple[str, list[Any], bool]]
    options: dict[str, Any]
    units: list[list[int]]
    tail_units: int = 0
    tail_finished: float | None = None
    pauses: bool = False

    def write(self, path: Path) -> None:
        """Write it to a file."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> MemberTask:
        """Read it from a file."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    @cached_property
    def permits(self) -> MemberPermits:
        """The permits of the job."""
        return MemberPermits(self.actor, self.job, self.process)

    @property
    def leased(self) -> tuple[LeasedNode, ...]:
        """The nodes, which the group's driver has leased."""
        return tuple(_leased(*node) for node in self.nodes)

    def engine_units(self, placement: Placement) -> EngineUnits | None:
        """Units of the engines of a placement; None if its rollout is on one node, which it keeps from start to end."""
        if sum(map(bool, self.units)) < 2 and not self.pauses:
            return None
        of_node = dict(zip(placement.nodes_in_use(), map(frozenset, self.units), strict=True))
        engines = {name for names in placement.engine_sets.values() for name in names}
        return EngineUnits(
            {name: of_node[placement.engines[name].node] for name in sorted(engines)},
            self.tail_units,
            self.tail_finished,
            self.pauses,
        )


def _leased(node_id: str, seen: list[Any], part: bool) -> LeasedNode:
    address, host, cores, gpus, versions, faults = seen
    pairs = (tuple(map(tuple, versions)), tuple(map(tuple, faults)))
    facts = NodeFacts(address, host, tuple(cores), tuple(gpus), *pairs)
    return LeasedNode(node_id, facts, part=part)
