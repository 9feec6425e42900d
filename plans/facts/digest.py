"""Digests of a plan's decisions and predictions, and of the values that the solver reads from its input files.

The first two differ from the plan's own if somebody edited it. That of the decisions covers no predictions, no `why`
and no inputs; that of the predictions covers the figures that a reviewer reads.

Only a change of the values that the solver reads makes a plan stale: a learning rate changes a run and no plan, so
whoever tunes it need not solve again. A plan has two digests of each file: one of its bytes, and one of its values
without those that the solver does not read (`UNREAD`). If only the first differs, `check` notes that the file has
changed and nothing is refused. The second covers values and no text: not comments, not the order of keys, not keys that
a job states with their default. Of a profile it covers the values as they stand in the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..schema.cluster import Cluster
from ..schema.groups_plan import GroupsPredicted, PlannedGroup
from ..schema.job import Job
from ..schema.plan import Digest64, SolverRead
from ..schema.planned_job import PlannedJob
from ..schema.predicted import Predicted
from ..yaml.yaml_doc import parse
from ..yaml.yaml_io import loads, read_text


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


Kind = Literal["cluster", "job", "profile"]

UNREAD: Mapping[Kind, tuple[str, ...]] = {
    "cluster": ("name", "pools.*.slots"),
    "job": (
        "data.seed",
        "reward.weight",
        "reward.pattern",
        "reward.target_tokens",
        "reward.per_token",
        "reward.cache_tokens",
        "reward.max_tokens",
        "reward.retries",
        "reward.memory_bytes",
        "reward.sandbox",
        "reward.environment",
        "rollout.seed_per_sample",
        "algorithm.name",
        "algorithm.learning_rate",
        "algorithm.schedule",
        "algorithm.weight_decay",
        "algorithm.betas",
        "algorithm.max_grad_norm",
        "algorithm.clip_low",
        "algorithm.clip_high",
        "algorithm.dual_clip",
        "algorithm.entropy_bonus",
        "algorithm.importance_sampling",
        "algorithm.kl.coefficient",
        "algorithm.kl.estimator",
        "algorithm.kl.applied_to",
        "algorithm.seed",
        "evaluate",
        "logprob_limits",
    ),
    "profile": ("note", "outliers", "reward_audit", "volatile"),
}
"""Dotted keys that no plan depends on; `*` is any key. Slots are for workloads; evaluations are priced beside a
plan. `algorithm.name` is here
since the values that it sets (`dynamic_sampling`, `mask_truncated`) are read by their own keys; one that needs mode
sync is in the digest by `Algorithm.whole_step`."""


def solver_read(cluster_path: str | Path, job_path: str | Path, profile_path: str | Path) -> SolverRead:
    """Return the digests of a plan's inputs. Raises InputError where one of the files is no document of its kind."""
    return SolverRead(
        cluster=read_digest("cluster", cluster_path),
        job=read_digest("job", job_path),
        profile=read_digest("profile", profile_path),
    )


def read_digest(kind: Kind, path: str | Path) -> Digest64:
    """Return the digest of the file at `path`. Raises InputError where it is no document of its kind."""
    return digest_of(kind, read_text(path), str(path))


def digest_of(kind: Kind, text: str, path: str = "<text>") -> Digest64:
    """Return the digest of a document's text. Raises InputError, with `path`, where it is no document of its kind."""
    if kind == "profile":
        # plans/ does not import the profile's model: without its defaults a plan is stale sooner, never later.
        value = parse(text, path).value
    else:
        document = loads(text, Cluster if kind == "cluster" else Job, path)
        value = document.model_dump(mode="json")
        if isinstance(document, Job) and (setting := document.algorithm.whole_step) is not None:
            value["whole_step"] = setting
        if kind == "cluster" and not value["links"]:
            del value["links"]  # plans from before the solver read links have a digest without them
    for key in UNREAD[kind]:
        _remove(value, key.split("."))
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _remove(value: Any, path: Sequence[str]) -> None:
    """Remove the key at `path` from nested mappings, in each entry for `*` and in each item of a list; do nothing if it
    is not there."""
    if isinstance(value, list):
        for item in value:
            _remove(item, path)
    if not isinstance(value, dict):
        return
    key, *rest = path
    if not rest:
        value.pop(key, None)
        return
    for name in list(value) if key == "*" else [key]:
        _remove(value.get(name), rest)
