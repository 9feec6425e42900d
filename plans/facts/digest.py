"""The digests of a plan's decisions and of its predictions: they differ from the plan's own if somebody edited it.

The digest of the decisions covers no predictions, no `why` and no inputs; the digest of the predictions covers the
figures that a reviewer reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..schema.groups_plan import GroupsPredicted, PlannedGroup
from ..schema.planned_job import PlannedJob
from ..schema.predicted import Predicted


def job_decisions(job: PlannedJob) -> str:
    """Return the digest of the decisions of one job, 64 hexadecimal digits."""
    return _digest(job.model_dump(mode="json", exclude={"why"}))


def groups_decisions(groups: Mapping[str, PlannedGroup]) -> str:
    """Return the digest of which job runs on which nodes, 64 hexadecimal digits."""
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
    """Return the digest of the predictions of one job, 64 hexadecimal digits."""
    return _digest(predicted.model_dump(mode="json"))


def groups_predictions(predicted: GroupsPredicted, groups: Mapping[str, PlannedGroup]) -> str:
    """Return the digest of the predicted costs of groups and slowdowns of jobs, 64 hexadecimal digits."""
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
    """Round numbers as in a plan's file, so that the digest of a plan in memory is that of the one on disk."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
