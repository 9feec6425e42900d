"""The digests of a plan's decisions and of its predictions: whether they are still what the solver wrote, or were
edited since.

The first covers what is done, not what is said about it (no predictions, no `why`, no inputs); the second the figures
by which a reviewer merges.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..schema.groups_plan import GroupsPredicted
from ..schema.predicted import Predicted
from ..schema.sections.planned_group import PlannedGroup
from ..schema.sections.planned_job import PlannedJob


def job_decisions(job: PlannedJob) -> str:
    """Digest of the decisions of one job, 64 hexadecimal digits."""
    return _digest(job.model_dump(mode="json", exclude={"why"}))


def groups_decisions(groups: Mapping[str, PlannedGroup]) -> str:
    """Digest of who runs where, 64 hexadecimal digits."""
    return _digest(
        {
            key: {
                "nodes": [[node.pool, node.slots] for node in group.nodes],
                "jobs": {
                    name: member.model_dump(mode="json", exclude={"slowdown"}) for name, member in group.jobs.items()
                },
            }
            for key, group in groups.items()
        }
    )


def job_predictions(predicted: Predicted) -> str:
    """Digest of the predictions of one job, 64 hexadecimal digits."""
    return _digest(predicted.model_dump(mode="json"))


def groups_predictions(predicted: GroupsPredicted, groups: Mapping[str, PlannedGroup]) -> str:
    """Digest of what groups are predicted to cost and each job to be slowed down by, 64 hexadecimal digits."""
    slowdowns = {
        name: member.slowdown.model_dump(mode="json")
        for group in groups.values()
        for name, member in group.jobs.items()
    }
    return _digest({"predicted": predicted.model_dump(mode="json"), "slowdowns": slowdowns})


def _digest(value: Any) -> str:
    text = json.dumps(_rounded(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _rounded(value: Any) -> Any:
    """Numbers as a plan's file has them, so that the digest of a plan in memory is that of the one on disk."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
