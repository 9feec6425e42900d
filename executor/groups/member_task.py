"""What the process of a job in a co-execution group is told, and how it ends."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..placement.live_nodes import LeasedNode, NodeFacts
from .permit_actor import MemberPermits

DONE, FAILED, BAD_INPUT, STOPPED = 0, 1, 2, 130
"""Exit codes, as those of `rlplan execute`."""


@dataclass(frozen=True)
class MemberTask:
    """What a job's process is to do.

    Attributes:
        job: its name in the group.
        plan: path of its own plan.
        out: folder of its run.
        actor: Ray's name of the actor that gives permits.
        process: name of the process, which no other ever has.
        driver: process id of the group's driver, without which no process of a job goes on.
        nodes: (Ray's id, what a process sees there, whether the machine is shared with other nodes) of each node that
            the plan's placement uses.
        options: of `execute`.
    """

    job: str
    plan: str
    out: str
    actor: str
    process: str
    driver: int
    nodes: list[tuple[str, list[Any], bool]]
    options: dict[str, Any]

    def write(self, path: Path) -> None:
        """Write it to a file."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> MemberTask:
        """Read it from a file."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Member:
    """A run's place in its group: its turns, and nodes that the group's driver has leased."""

    permits: MemberPermits
    nodes: tuple[LeasedNode, ...]

    @classmethod
    def of(cls, task: MemberTask) -> Member:
        """The place that a task has."""
        return cls(MemberPermits(task.actor, task.job, task.process), tuple(map(_leased, task.nodes)))


def _leased(node: tuple[str, list[Any], bool]) -> LeasedNode:
    """A node of a task."""
    node_id, (address, host, cores, gpus, versions), part = node
    facts = NodeFacts(address, host, tuple(cores), tuple(gpus), tuple(map(tuple, versions)))
    return LeasedNode(node_id, facts, part=part)
